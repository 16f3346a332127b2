/* Safetensors (https://github.com/huggingface/safetensors): eight bytes of header length, a JSON header that gives each
 * tensor's type, shape and place, then the data. One file, or a folder's shards that an index file names.
 *
 * Opening checks headers whole: lengths, shapes against bytes, names given twice, gaps and overlaps. Tensor data is a
 * view into the mapped files, valid until close and of any alignment. Immutable once open; any thread may read. */
#ifndef SN_MODEL_SAFETENSORS_H
#define SN_MODEL_SAFETENSORS_H

#include "base/dtype.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SN_SAFETENSORS_DIMS_MAX = 4, SN_SAFETENSORS_TYPE_SIZE = 16 };

typedef struct sn_safetensors_tensor {
    const char *name;
    char type[SN_SAFETENSORS_TYPE_SIZE];  /* as the file calls it: "BF16" */
    sn_dtype dtype;                       /* SN_DTYPE_COUNT when the type is none of ours ("F64", "F8_E4M3") */
    int n_dims;                           /* 0: a single number */
    size_t dims[SN_SAFETENSORS_DIMS_MAX]; /* outermost first; those behind n_dims are 1 */
    size_t elements;
    const uint8_t *data;
    size_t bytes;
} sn_safetensors_tensor;

typedef struct sn_safetensors sn_safetensors;

sn_status sn_safetensors_open(const char *path, sn_safetensors **out, sn_err *err) SN_MUST_USE;

/* model.safetensors in the folder, or the shards that its model.safetensors.index.json names. Shards that are not there
 * are left out, with their tensors, as long as one is: a node may hold a part of the model's files. */
sn_status sn_safetensors_open_folder(const char *folder, sn_safetensors **out, sn_err *err) SN_MUST_USE;

/* One file's bytes, which stay the caller's and must outlive it; `name` stands for the path in sentences. */
sn_status sn_safetensors_open_memory(const void *data, size_t len, const char *name, sn_safetensors **out,
                                     sn_err *err) SN_MUST_USE;
void sn_safetensors_close(sn_safetensors **file); /* NULL-safe */

/* Tensors, sorted by name; find gives NULL when there is none of the name. */
size_t sn_safetensors_n_tensors(const sn_safetensors *file);
const sn_safetensors_tensor *sn_safetensors_tensor_at(const sn_safetensors *file, size_t i);
const sn_safetensors_tensor *sn_safetensors_find(const sn_safetensors *file, const char *name);

/* A tensor to be written: F32, F16, BF16, I32 or I64. */
typedef struct sn_safetensors_entry {
    const char *name;
    sn_dtype dtype;
    int n_dims;
    size_t dims[SN_SAFETENSORS_DIMS_MAX];
    const void *data;
} sn_safetensors_entry;

/* Writes a file with these tensors, in this order. The file appears under its name only when it is whole. */
sn_status sn_safetensors_write(const char *path, const sn_safetensors_entry *entries, size_t n,
                               sn_err *err) SN_MUST_USE;
/* The same as bytes, into an empty buffer. */
sn_status sn_safetensors_image(const sn_safetensors_entry *entries, size_t n, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif
