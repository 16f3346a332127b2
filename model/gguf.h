/* GGUF files, versions 2 and 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): typed metadata, then the
 * directory of tensors, then their data. Little-endian files only.
 *
 * A model may be cut into several files, which sn_gguf_open joins: metadata is then that of the first.
 *
 * Central type: sn_gguf, immutable once open; any thread may read it. Opening checks the whole header (counts, lengths,
 * types, duplicate names, offsets, overlaps), so that lookups need no further check. Only names are copied: strings,
 * arrays and tensor data are views into the mapped file, at any alignment, valid until sn_gguf_close. SN_REFUSED says
 * what is wrong with a file. */
#ifndef SN_MODEL_GGUF_H
#define SN_MODEL_GGUF_H

#include "base/dtype.h"
#include "model/mapped_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Types of metadata values, with the numbers of the file format. Arrays of arrays are refused. */
typedef enum sn_gguf_type {
    SN_GGUF_U8,
    SN_GGUF_I8,
    SN_GGUF_U16,
    SN_GGUF_I16,
    SN_GGUF_U32,
    SN_GGUF_I32,
    SN_GGUF_F32,
    SN_GGUF_BOOL,
    SN_GGUF_STRING,
    SN_GGUF_ARRAY,
    SN_GGUF_U64,
    SN_GGUF_I64,
    SN_GGUF_F64,
    SN_GGUF_TYPE_COUNT
} sn_gguf_type;

enum { SN_GGUF_DIMS_MAX = 4, SN_GGUF_NAME_SIZE = 128 };

/* The bytes of a string in the file: without a NUL at the end, and not necessarily UTF-8. */
typedef struct sn_gguf_str {
    const char *data;
    size_t len;
} sn_gguf_str;

bool sn_gguf_str_equals(sn_gguf_str text, const char *word);

typedef struct sn_gguf_value {
    sn_gguf_str key;
    sn_gguf_type type;
    sn_gguf_type element;    /* of an array the type of its elements; else the same as type */
    size_t n;                /* elements of an array; else 1 */
    const uint8_t *data;     /* the bytes of the first element; a string is its length (u64), then its bytes */
    const uint64_t *strings; /* of an array of strings: element i begins at data + strings[i] */
} sn_gguf_value;

typedef struct sn_gguf_tensor {
    char name[SN_GGUF_NAME_SIZE];
    sn_dtype dtype;
    int n_dims;
    size_t dims[SN_GGUF_DIMS_MAX]; /* as in the file: dims[0] is the length of a row; dims from n_dims on are 1 */
    const uint8_t *data;
    size_t bytes;
} sn_gguf_tensor;

typedef struct sn_gguf sn_gguf;

/* Opens the model that the file is, or is a part of: then with all parts (gguf_parts.h). */
sn_status sn_gguf_open(const char *path, sn_gguf **out, sn_err *err) SN_MUST_USE;
/* Opens this one file, with the tensors that are in it. */
sn_status sn_gguf_open_file(const char *path, sn_gguf **out, sn_err *err) SN_MUST_USE;
/* The same for bytes in memory, which belong to the caller and must outlive the sn_gguf. `name` replaces the path in
 * errors.
 */
sn_status sn_gguf_open_memory(const void *data, size_t len, const char *name, sn_gguf **out, sn_err *err) SN_MUST_USE;
void sn_gguf_close(sn_gguf **gguf); /* accepts NULL */
/* How many bytes at the beginning of a file come before the tensors' data, by the first `len` bytes of it;
 * *header_bytes is 0 when a longer beginning is needed. */
sn_status sn_gguf_header_bytes(const void *prefix, size_t len, size_t *header_bytes, sn_err *err) SN_MUST_USE;
/* As sn_model_file_of. */
bool sn_gguf_file_of(const sn_gguf *gguf, const void *bytes, const char **path, uint64_t *offset);
/* The files that are open, n of them. */
const sn_mapped_file *sn_gguf_files(const sn_gguf *gguf, size_t *n);
int sn_gguf_version(const sn_gguf *gguf);

/* The value of a key; NULL: the file does not have it. */
const sn_gguf_value *sn_gguf_find(const sn_gguf *gguf, const char *key);

/* All values, sorted by key. */
size_t sn_gguf_n_values(const sn_gguf *gguf);
const sn_gguf_value *sn_gguf_value_at(const sn_gguf *gguf, size_t i);

/* Single values by key. An absent key is SN_REFUSED if `required`, else SN_OK, and *out is left as it was (set the
 * default before). A value of another type, or an integer that does not fit, is SN_REFUSED. u32 and i32 accept every
 * integer type, f32 accepts F32 and F64. */
sn_status sn_gguf_u32(const sn_gguf *gguf, const char *key, bool required, uint32_t *out, sn_err *err) SN_MUST_USE;
sn_status sn_gguf_i32(const sn_gguf *gguf, const char *key, bool required, int32_t *out, sn_err *err) SN_MUST_USE;
sn_status sn_gguf_f32(const sn_gguf *gguf, const char *key, bool required, float *out, sn_err *err) SN_MUST_USE;
sn_status sn_gguf_bool(const sn_gguf *gguf, const char *key, bool required, bool *out, sn_err *err) SN_MUST_USE;
sn_status sn_gguf_string(const sn_gguf *gguf, const char *key, bool required, sn_gguf_str *out,
                         sn_err *err) SN_MUST_USE;

/* An array by key whose elements are of exactly the type `element`. An absent key: as above. */
sn_status sn_gguf_array(const sn_gguf *gguf, const char *key, sn_gguf_type element, bool required,
                        const sn_gguf_value **out, sn_err *err) SN_MUST_USE;
/* Element i < value->n of an array of strings, of I32, of F32; in constant time. */
sn_gguf_str sn_gguf_string_at(const sn_gguf_value *value, size_t i);
int32_t sn_gguf_i32_at(const sn_gguf_value *value, size_t i);
float sn_gguf_f32_at(const sn_gguf_value *value, size_t i);

/* Tensors, in the order of the file; find returns NULL when there is none of that name. */
size_t sn_gguf_n_tensors(const sn_gguf *gguf);
const sn_gguf_tensor *sn_gguf_tensor_at(const sn_gguf *gguf, size_t i);
const sn_gguf_tensor *sn_gguf_tensor_find(const sn_gguf *gguf, const char *name);

#endif
