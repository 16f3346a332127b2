/* The struct of an open GGUF file, for gguf.c, which reads one file, and gguf_parts.c, which joins those of a model. */
#ifndef SN_MODEL_GGUF_PRIVATE_H
#define SN_MODEL_GGUF_PRIVATE_H

#include "model/gguf.h"
#include "model/mapped_file.h"

struct sn_gguf {
    sn_mapped_file *maps; /* (n_maps), by address; none if the bytes belong to the caller */
    size_t n_maps;
    int version;
    size_t alignment;
    size_t n_values, n_tensors;
    sn_gguf_value *values; /* sorted by key */
    sn_gguf_tensor *tensors;
    const sn_gguf_tensor **by_name; /* (n_tensors), sorted */
};

/* Sorts by_name, which has room for all. SN_REFUSED: two tensors have one name. */
sn_status sn_gguf_sort_names(sn_gguf *gguf, sn_err *err) SN_MUST_USE;

#endif
