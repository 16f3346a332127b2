/* A file is opened in three steps: read_file_bytes parses the JSON header and reads one entry per tensor (type, shape,
 * offsets, each checked); check_offsets sorts the file's tensors by offset and refuses gaps and overlaps; and, after
 * all files of a folder, sort_all sorts all tensors by name and refuses names that occur twice. Sizes are limited so
 * that no product of dimensions overflows. Writing is in safetensors_write.c. */
#include "model/safetensors.h"

#include "base/mem.h"
#include "base/file.h"
#include "model/json.h"
#include "model/mapped_file.h"
#include "model/not_a_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    HEADER_MAX = 100000000, /* the limit of the format */
    INDEX_MAX = 256 << 20,
    TENSORS_MAX = 1 << 20,
    SHARDS_MAX = 4096,
    NAME_MAX_BYTES = SN_SAFETENSORS_NAME_MAX,
};
static const size_t ELEMENTS_MAX = (size_t)1 << 48; /* of a tensor: far below an overflow of any size */

struct sn_safetensors {
    sn_mapped_file *maps; /* [n_maps] */
    size_t n_maps;
    sn_safetensors_tensor *tensors; /* sorted by name, once open */
    size_t n_tensors, capacity;
    json_t *missing; /* object: tensors of shards that are not in the folder, to their file; or NULL */
};

/* One file while it is read. */
typedef struct file_bytes {
    const uint8_t *data; /* after the header */
    size_t len;
    sn_err *err;
} file_bytes;

static const struct {
    const char *name;
    sn_dtype dtype;
    size_t bytes;
} types[] = {
    {"F32", SN_F32, 4},
    {"F16", SN_F16, 2},
    {"BF16", SN_BF16, 2},
    {"I32", SN_I32, 4},
    {"I64", SN_I64, 8},
    {"F64", SN_DTYPE_COUNT, 8},
    {"U64", SN_DTYPE_COUNT, 8},
    {"U32", SN_DTYPE_COUNT, 4},
    {"U16", SN_DTYPE_COUNT, 2},
    {"I16", SN_DTYPE_COUNT, 2},
    {"U8", SN_DTYPE_COUNT, 1},
    {"I8", SN_DTYPE_COUNT, 1},
    {"BOOL", SN_DTYPE_COUNT, 1},
    {"F8_E4M3", SN_DTYPE_COUNT, 1},
    {"F8_E5M2", SN_DTYPE_COUNT, 1},
    {"F8_E8M0", SN_DTYPE_COUNT, 1},
};

/* ---- one tensor's entry ---- */

static sn_status check_tensor_name(const char *name, sn_err *err) {
    size_t len = strlen(name);
    if (len == 0 || len >= NAME_MAX_BYTES)
        return sn_fail(err, SN_REFUSED, "the name of a tensor is %zu bytes long; 1 to %d are taken", len,
                       NAME_MAX_BYTES - 1);
    for (size_t i = 0; i < len; i++)
        if (name[i] < 0x20 || name[i] > 0x7e)
            return sn_fail(err, SN_REFUSED, "the name of a tensor holds byte 0x%02x, which is no printable ASCII",
                           (unsigned char)name[i]);
    return SN_OK;
}

/* Reads the type. Of an unknown one only the name is kept, and *size is 0. */
static sn_status read_type(const char *name, const char *word, sn_safetensors_tensor *tensor, size_t *size,
                           sn_err *err) {
    if (check_tensor_name(word, NULL) || strlen(word) >= SN_SAFETENSORS_TYPE_SIZE)
        return sn_fail(err, SN_REFUSED, "tensor '%s' has no sensible dtype", name);
    snprintf(tensor->type, sizeof tensor->type, "%s", word);
    tensor->dtype = SN_DTYPE_COUNT;
    *size = 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(word, types[i].name)) {
            tensor->dtype = types[i].dtype;
            *size = types[i].bytes;
        }
    return SN_OK;
}

static sn_status read_shape(const char *name, const json_t *shape, sn_safetensors_tensor *tensor, sn_err *err) {
    size_t n = json_array_size(shape), elements = 1;
    if (n > SN_SAFETENSORS_DIMS_MAX)
        return sn_fail(err, SN_REFUSED, "tensor '%s' has %zu dimensions; at most %d are taken", name, n,
                       SN_SAFETENSORS_DIMS_MAX);
    tensor->n_dims = (int)n;
    for (size_t i = 0; i < SN_SAFETENSORS_DIMS_MAX; i++) {
        const json_t *dim = json_array_get(shape, i);
        json_int_t value = i < n ? json_integer_value(dim) : 1;
        if ((i < n && !json_is_integer(dim)) || value < 0 || (elements && (size_t)value > ELEMENTS_MAX / elements))
            return sn_fail(err, SN_REFUSED, "tensor '%s' has an impossible shape", name);
        tensor->dims[i] = (size_t)value;
        elements *= (size_t)value;
    }
    tensor->elements = elements;
    return SN_OK;
}

static sn_status read_offsets(const file_bytes *file, const char *name, const json_t *offsets,
                              sn_safetensors_tensor *tensor) {
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return sn_fail(file->err, SN_REFUSED, "tensor '%s' has no data_offsets of two whole numbers", name);
    json_int_t from = json_integer_value(begin), to = json_integer_value(end);
    if (from < 0 || to < from) return sn_fail(file->err, SN_REFUSED, "tensor '%s' has impossible data_offsets", name);
    if ((size_t)to > file->len)
        return sn_fail(file->err, SN_REFUSED,
                       "the data of tensor '%s' reaches beyond the end of the file: it is cut off, fetch it again",
                       name);
    tensor->data = file->data + from;
    tensor->bytes = (size_t)(to - from);
    return SN_OK;
}

static sn_status read_entry(const file_bytes *file, const char *name, const json_t *entry,
                            sn_safetensors_tensor *tensor) {
    const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    size_t size = 0;
    sn_status status = check_tensor_name(name, file->err);
    if (status) return status;
    if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(offsets))
        return sn_fail(file->err, SN_REFUSED, "tensor '%s' does not say dtype, shape and data_offsets", name);
    status = read_type(name, json_string_value(dtype), tensor, &size, file->err);
    if (!status) status = read_shape(name, shape, tensor, file->err);
    if (!status) status = read_offsets(file, name, offsets, tensor);
    if (status) return status;
    if (size && tensor->bytes != tensor->elements * size)
        return sn_fail(file->err, SN_REFUSED, "tensor '%s' has %zu bytes where its shape and type %s need %zu", name,
                       tensor->bytes, tensor->type, tensor->elements * size);
    char *own = strdup(name);
    if (!own) return sn_fail(file->err, SN_STOP, "out of memory for the name of a tensor");
    tensor->name = own;
    return SN_OK;
}

/* ---- one file ---- */

static int compare_offsets(const void *a, const void *b) {
    const sn_safetensors_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data > y->data ? 1 : -1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const sn_safetensors_tensor *)a)->name, ((const sn_safetensors_tensor *)b)->name);
}

/* The format allows no gaps: the tensors of a file cover its data from the first byte to the last. */
static sn_status check_offsets(const file_bytes *file, sn_safetensors_tensor *tensors, size_t n) {
    const uint8_t *at = file->data;
    if (n) qsort(tensors, n, sizeof *tensors, compare_offsets);
    for (size_t i = 0; i < n; at += tensors[i++].bytes)
        if (tensors[i].data != at)
            return sn_fail(file->err, SN_REFUSED, "the data of tensor '%s' %s the tensor before it", tensors[i].name,
                           tensors[i].data < at ? "overlaps" : "leaves a gap after");
    if (at != file->data + file->len)
        return sn_fail(file->err, SN_REFUSED, "%zu bytes after the last tensor belong to no tensor",
                       (size_t)(file->data + file->len - at));
    return SN_OK;
}

static sn_status tensors_reserve(sn_safetensors *s, size_t more, sn_err *err) {
    size_t need = s->n_tensors + more;
    if (need > TENSORS_MAX) return sn_fail(err, SN_REFUSED, "more than %d tensors are not taken", TENSORS_MAX);
    if (need <= s->capacity) return SN_OK;
    sn_safetensors_tensor *grown = realloc(s->tensors, need * sizeof *grown);
    if (!grown) return sn_fail(err, SN_STOP, "out of memory for %zu tensors", need);
    memset(grown + s->capacity, 0, (need - s->capacity) * sizeof *grown);
    s->tensors = grown;
    s->capacity = need;
    return SN_OK;
}

static sn_status read_entries(sn_safetensors *s, const file_bytes *file, json_t *header) {
    const char *name;
    json_t *entry;
    size_t first = s->n_tensors;
    if (!json_is_object(header)) return sn_fail(file->err, SN_REFUSED, "the header is not a JSON object");
    sn_status status = tensors_reserve(s, json_object_size(header), file->err);
    if (status) return status;
    json_object_foreach(header, name, entry) {
        if (!strcmp(name, "__metadata__")) continue; /* free text */
        status = read_entry(file, name, entry, &s->tensors[s->n_tensors]);
        if (status) return status;
        s->n_tensors++;
    }
    return check_offsets(file, s->tensors ? s->tensors + first : NULL, s->n_tensors - first);
}

static sn_status read_file_bytes(sn_safetensors *s, const uint8_t *data, size_t len, sn_err *err) {
    uint64_t header_len;
    json_error_t wrong;
    const char *other = sn_not_a_model(data, len);
    if (other) return sn_fail(err, SN_REFUSED, "%s", other);
    if (len < sizeof header_len) return sn_fail(err, SN_REFUSED, "%zu bytes are too few for a safetensors file", len);
    memcpy(&header_len, data, sizeof header_len);
    if (header_len > HEADER_MAX)
        return sn_fail(err, SN_REFUSED,
                       "this is not a safetensors file (it does not begin with the length of its header)");
    if (header_len > len - sizeof header_len)
        return sn_fail(err, SN_REFUSED, "the file ends within its header: it is cut off, fetch it again");
    /* strictly: the format forbids what sn_json_read takes */
    json_t *header = json_loadb((const char *)data + sizeof header_len, header_len, JSON_REJECT_DUPLICATES, &wrong);
    if (!header) return sn_fail(err, SN_REFUSED, "the header is not valid JSON: %s", wrong.text);
    size_t at = sizeof header_len + header_len;
    sn_status status = read_entries(s, &(file_bytes){data + at, len - at, err}, header);
    json_decref(header);
    return status;
}

/* After the last file. */
static sn_status sort_all(sn_safetensors *s, sn_err *err) {
    sn_mapped_files_sort(s->maps, s->n_maps);
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, compare_names);
    for (size_t i = 1; i < s->n_tensors; i++)
        if (!strcmp(s->tensors[i - 1].name, s->tensors[i].name))
            return sn_fail(err, SN_REFUSED, "tensor '%s' is in two of the files", s->tensors[i].name);
    return SN_OK;
}

sn_status sn_safetensors_open_memory(const void *data, size_t len, const char *name, sn_safetensors **out,
                                     sn_err *err) {
    sn_safetensors *s = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (!status) status = read_file_bytes(s, data, len, err);
    if (!status) status = sort_all(s, err);
    if (status) {
        sn_safetensors_close(&s);
        sn_err_context(err, "%s", name);
        return status;
    }
    *out = s;
    return SN_OK;
}

/* ---- files and shards ---- */

static sn_status add_file(sn_safetensors *s, const char *path, sn_err *err) {
    sn_mapped_file *map = &s->maps[s->n_maps];
    sn_status status = sn_mapped_file_open(path, map, err);
    if (status) return status;
    s->n_maps++;
    status = read_file_bytes(s, map->data, map->len, err);
    if (status) sn_err_context(err, "%s", path);
    return status;
}

sn_status sn_safetensors_open(const char *path, sn_safetensors **out, sn_err *err) {
    sn_safetensors *s = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (!status) status = sn_calloc(&s->maps, 1, sizeof *s->maps, err);
    if (!status) status = add_file(s, path, err);
    if (!status) status = sort_all(s, err);
    if (status)
        sn_safetensors_close(&s);
    else
        *out = s;
    return status;
}

/* Whether a name from the index, which becomes part of a path, stays within the folder. */
static bool plain_file_name(const char *name) {
    return *name && strcmp(name, ".") && strcmp(name, "..") && !strchr(name, '/') && strlen(name) < NAME_MAX_BYTES &&
           !check_tensor_name(name, NULL);
}

static sn_status add_shard(sn_safetensors *s, const char *folder, const char *name, sn_err *err) {
    char path[SN_MAPPED_FILE_PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return sn_fail(err, SN_REFUSED, "the path of the folder is too long");
    return add_file(s, path, err);
}

/* Whether the folder lacks the shard. */
static bool shard_is_missing(const char *folder, const char *name) {
    char path[SN_MAPPED_FILE_PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && access(path, F_OK);
}

/* Opens each shard that weight_map (tensor to file) names, once; `seen` collects the names of files, and whether they
 * are missing. */
static sn_status add_shards(sn_safetensors *s, const char *folder, const json_t *weight_map, json_t *seen,
                            sn_err *err) {
    const char *tensor;
    json_t *file;
    sn_status status = SN_OK;
    json_object_foreach((json_t *)weight_map, tensor, file) {
        const char *name = json_string_value(file);
        if (!name || !plain_file_name(name))
            return sn_fail(err, SN_REFUSED, "weight_map gives tensor '%.100s' a file that is not a plain file name",
                           tensor);
        const json_t *is_missing = json_object_get(seen, name);
        if (json_is_true(is_missing) && json_object_set(s->missing, tensor, file))
            return sn_fail(err, SN_STOP, "out of memory for the index of shards");
        if (is_missing) continue;
        if (json_object_size(seen) == SHARDS_MAX)
            return sn_fail(err, SN_REFUSED, "more than %d shards are not taken", SHARDS_MAX);
        bool missing = shard_is_missing(folder, name);
        if (json_object_set_new(seen, name, json_boolean(missing)) ||
            (missing && json_object_set(s->missing, tensor, file)))
            return sn_fail(err, SN_STOP, "out of memory for the index of shards");
        if (!missing) status = add_shard(s, folder, name, err);
        if (status) return status;
    }
    if (!s->n_maps) return sn_fail(err, SN_REFUSED, "none of the shards that it lists is in the folder");
    return SN_OK;
}

static sn_status read_index(sn_safetensors *s, const char *folder, const char *index_path, sn_err *err) {
    sn_buf text = {0};
    json_error_t wrong;
    json_t *index = NULL, *seen = NULL;
    sn_status status = sn_read_file(index_path, INDEX_MAX, &text, err);
    if (status) return status;
    index = sn_json_read((const char *)text.data, text.len, &wrong);
    seen = json_object();
    s->missing = json_object();
    const json_t *weight_map = json_object_get(index, "weight_map");
    if (!seen || !s->missing)
        status = sn_fail(err, SN_STOP, "out of memory for the index of shards");
    else if (!index)
        status = sn_fail(err, SN_REFUSED, "it is not valid JSON: %s", wrong.text);
    else if (!json_is_object(weight_map))
        status = sn_fail(err, SN_REFUSED, "it has no weight_map");
    if (!status) status = sn_calloc(&s->maps, SHARDS_MAX, sizeof *s->maps, err);
    if (!status) status = add_shards(s, folder, weight_map, seen, err);
    json_decref(index);
    json_decref(seen);
    sn_buf_fini(&text);
    if (status) sn_err_context(err, "%s", index_path);
    return status;
}

sn_status sn_safetensors_open_folder(const char *folder, sn_safetensors **out, sn_err *err) {
    char single[SN_MAPPED_FILE_PATH_MAX], index[SN_MAPPED_FILE_PATH_MAX];
    sn_safetensors *s = NULL;
    *out = NULL;
    if (snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder) >= (int)sizeof index)
        return sn_fail(err, SN_REFUSED, "the path of the folder is too long");
    snprintf(single, sizeof single, "%s/model.safetensors", folder);
    if (!access(single, F_OK)) return sn_safetensors_open(single, out, err);
    if (access(index, F_OK))
        return sn_fail(err, SN_REFUSED, "%s has neither model.safetensors nor model.safetensors.index.json", folder);
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (!status) status = read_index(s, folder, index, err);
    if (!status) status = sort_all(s, err);
    if (status)
        sn_safetensors_close(&s);
    else
        *out = s;
    return status;
}

void sn_safetensors_close(sn_safetensors **file) {
    sn_safetensors *s = *file;
    if (!s) return;
    for (size_t i = 0; i < s->n_tensors; i++) free((void *)s->tensors[i].name);
    for (size_t i = 0; i < s->n_maps; i++) sn_mapped_file_close(&s->maps[i]);
    json_decref(s->missing);
    free(s->tensors);
    free(s->maps);
    free(s);
    *file = NULL;
}

bool sn_safetensors_file_of(const sn_safetensors *file, const void *bytes, const char **path, uint64_t *offset) {
    return sn_mapped_files_have(file->maps, file->n_maps, bytes, path, offset);
}

const sn_mapped_file *sn_safetensors_files(const sn_safetensors *file, size_t *n) {
    *n = file->n_maps;
    return file->maps;
}

bool sn_safetensors_lacks(const sn_safetensors *file, const char *name) {
    return json_object_get(file->missing, name) != NULL;
}

const char *sn_safetensors_missing(const sn_safetensors *file, const char *name) {
    const char *tensor;
    json_t *shard;
    size_t n = strlen(name);
    json_object_foreach(file->missing, tensor, shard) {
        size_t len = strlen(tensor);
        if (len >= n && !strcmp(tensor + len - n, name)) return json_string_value(shard);
    }
    return json_string_value(json_object_iter_value(json_object_iter(file->missing)));
}

size_t sn_safetensors_n_tensors(const sn_safetensors *file) { return file->n_tensors; }

const sn_safetensors_tensor *sn_safetensors_tensor_at(const sn_safetensors *file, size_t i) {
    return &file->tensors[i];
}

const sn_safetensors_tensor *sn_safetensors_find(const sn_safetensors *file, const char *name) {
    sn_safetensors_tensor wanted = {.name = name};
    if (!file->n_tensors) return NULL;
    return bsearch(&wanted, file->tensors, file->n_tensors, sizeof wanted, compare_names);
}
