/* Safetensors files (https://github.com/huggingface/safetensors): eight bytes of header length, a JSON header with
 * type, shape and offsets of each tensor, then the data. One file, or the shards in a folder that an index file lists.
 *
 * Central type: sn_safetensors, immutable once open; any thread may read it. Opening checks the headers completely:
 * lengths, shapes against bytes, duplicate names, gaps and overlaps. Tensor data are views into the mapped files, at
 * any alignment, valid until sn_safetensors_close. SN_REFUSED says what is wrong with a file. */
#ifndef SN_MODEL_SAFETENSORS_H
#define SN_MODEL_SAFETENSORS_H

#include "base/dtype.h"
#include "base/mem.h"
#include "model/mapped_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SN_SAFETENSORS_DIMS_MAX = 4, SN_SAFETENSORS_TYPE_SIZE = 16, SN_SAFETENSORS_NAME_MAX = 256 };

typedef struct sn_safetensors_tensor {
    const char *name;
    char type[SN_SAFETENSORS_TYPE_SIZE];  /* in the words of the file: "BF16" */
    sn_dtype dtype;                       /* SN_DTYPE_COUNT: not supported ("F64", "F8_E4M3") */
    int n_dims;                           /* 0: a single number */
    size_t dims[SN_SAFETENSORS_DIMS_MAX]; /* outermost first; dims from n_dims on are 1 */
    size_t elements;
    const uint8_t *data;
    size_t bytes;
} sn_safetensors_tensor;

typedef struct sn_safetensors sn_safetensors;

sn_status sn_safetensors_open(const char *path, sn_safetensors **out, sn_err *err) SN_MUST_USE;

/* Opens model.safetensors in the folder, or the shards that model.safetensors.index.json lists. Shards that are missing
 * are left out, with their tensors, as long as one exists: a node may hold a part of the model's files. */
sn_status sn_safetensors_open_folder(const char *folder, sn_safetensors **out, sn_err *err) SN_MUST_USE;

/* The same for one file's bytes in memory, which belong to the caller and must outlive the result. `name` replaces the
 * path in errors. */
sn_status sn_safetensors_open_memory(const void *data, size_t len, const char *name, sn_safetensors **out,
                                     sn_err *err) SN_MUST_USE;
void sn_safetensors_close(sn_safetensors **file); /* accepts NULL */

/* Tensors, sorted by name; find returns NULL when there is none of that name. */
/* Whether the index names the tensor in a shard that the folder lacks. */
bool sn_safetensors_lacks(const sn_safetensors *file, const char *name);
/* A shard that the index names and the folder lacks: if there are several, that of a tensor whose name ends so. NULL:
 * it lacks none. */
const char *sn_safetensors_missing(const sn_safetensors *file, const char *name);
/* The files that are open, n of them. */
const sn_mapped_file *sn_safetensors_files(const sn_safetensors *file, size_t *n);
/* As sn_model_file_of. */
bool sn_safetensors_file_of(const sn_safetensors *file, const void *bytes, const char **path, uint64_t *offset);
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

/* Writes a file with these tensors, in this order. The file appears under its name only when it is complete. */
sn_status sn_safetensors_write(const char *path, const sn_safetensors_entry *entries, size_t n,
                               sn_err *err) SN_MUST_USE;
/* Appends the bytes of such a file to an empty buffer. */
sn_status sn_safetensors_serialize(const sn_safetensors_entry *entries, size_t n, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif
