/* Opening reads the header once, with a cursor that knows the end of the file. Each count in the file is checked
 * against the bytes that are left before memory of its size is allocated, so a file cannot make the reader allocate
 * more than a few times the file's length. Values are then sorted by key, tensors by offset (to find overlaps) and by
 * name. Duplicates are neighbours then, and lookups are binary searches. */
#include "model/gguf_private.h"

#include "base/mem.h"
#include "model/not_a_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "model files are read in place: only little-endian machines"
#endif

enum {
    VALUES_MAX = 1 << 16,
    TENSORS_MAX = 1 << 20,
    KEY_MAX = 1 << 16,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MAX = 1 << 16,
    VALUE_BYTES_MIN = 8 + 4 + 1,     /* length of the key, type, one byte of value */
    TENSOR_BYTES_MIN = 8 + 4 + 4 + 8 /* length of the name, number of dimensions, type, offset */
};
static const uint64_t ELEMENTS_MAX = 1ull << 48; /* of a tensor: far below an overflow of any size */

typedef struct cursor {
    const uint8_t *data;
    size_t len, pos;
    sn_err *err;
    bool ended; /* the bytes ended before what they hold: a longer beginning of the file may be read */
} cursor;

static const struct {
    const char *name;
    size_t bytes; /* 0: the size varies */
} value_types[SN_GGUF_TYPE_COUNT] = {
    [SN_GGUF_U8] = {"u8", 1},          [SN_GGUF_I8] = {"i8", 1},       [SN_GGUF_U16] = {"u16", 2},
    [SN_GGUF_I16] = {"i16", 2},        [SN_GGUF_U32] = {"u32", 4},     [SN_GGUF_I32] = {"i32", 4},
    [SN_GGUF_F32] = {"f32", 4},        [SN_GGUF_BOOL] = {"a bool", 1}, [SN_GGUF_STRING] = {"a string", 0},
    [SN_GGUF_ARRAY] = {"an array", 0}, [SN_GGUF_U64] = {"u64", 8},     [SN_GGUF_I64] = {"i64", 8},
    [SN_GGUF_F64] = {"f64", 8},
};

/* The numbers of ggml's tensor types. Types that are not supported have a name, too, for the error message. */
static const struct {
    const char *name;
    int dtype; /* -1: not supported */
} tensor_types[] = {
    [0] = {"F32", SN_F32},
    [1] = {"F16", SN_F16},
    [2] = {"Q4_0", SN_Q4_0},
    [3] = {"Q4_1", SN_Q4_1},
    [4] = {"Q4_2", -1},
    [5] = {"Q4_3", -1},
    [6] = {"Q5_0", SN_Q5_0},
    [7] = {"Q5_1", SN_Q5_1},
    [8] = {"Q8_0", SN_Q8_0},
    [9] = {"Q8_1", -1},
    [10] = {"Q2_K", SN_Q2_K},
    [11] = {"Q3_K", SN_Q3_K},
    [12] = {"Q4_K", SN_Q4_K},
    [13] = {"Q5_K", SN_Q5_K},
    [14] = {"Q6_K", SN_Q6_K},
    [15] = {"Q8_K", -1},
    [16] = {"IQ2_XXS", SN_IQ2_XXS},
    [17] = {"IQ2_XS", SN_IQ2_XS},
    [18] = {"IQ3_XXS", SN_IQ3_XXS},
    [19] = {"IQ1_S", SN_IQ1_S},
    [20] = {"IQ4_NL", SN_IQ4_NL},
    [21] = {"IQ3_S", SN_IQ3_S},
    [22] = {"IQ2_S", SN_IQ2_S},
    [23] = {"IQ4_XS", SN_IQ4_XS},
    [24] = {"I8", SN_I8},
    [25] = {"I16", SN_I16},
    [26] = {"I32", SN_I32},
    [27] = {"I64", SN_I64},
    [28] = {"F64", SN_F64},
    [29] = {"IQ1_M", SN_IQ1_M},
    [30] = {"BF16", SN_BF16},
    [34] = {"TQ1_0", SN_TQ1_0},
    [35] = {"TQ2_0", SN_TQ2_0},
    [39] = {"MXFP4", SN_MXFP4},
    [40] = {"NVFP4", SN_NVFP4},
    [41] = {"Q1_0", SN_Q1_0},
    [42] = {"Q2_0", SN_Q2_0},
};

/* ---- the cursor ---- */

static size_t cursor_left(const cursor *c) { return c->len - c->pos; }

static sn_status cursor_take(cursor *c, size_t n, const char *what, const uint8_t **out) {
    c->ended = n > cursor_left(c);
    if (c->ended)
        return sn_fail(c->err, SN_REFUSED, "the file ends within %s, at byte %zu: it is cut off, fetch it again", what,
                       c->len);
    *out = c->data + c->pos;
    c->pos += n;
    return SN_OK;
}

static sn_status cursor_take_u32(cursor *c, const char *what, uint32_t *out) {
    const uint8_t *at = NULL;
    sn_status status = cursor_take(c, sizeof *out, what, &at);
    if (!status) memcpy(out, at, sizeof *out);
    return status;
}

static sn_status cursor_take_u64(cursor *c, const char *what, uint64_t *out) {
    const uint8_t *at = NULL;
    sn_status status = cursor_take(c, sizeof *out, what, &at);
    if (!status) memcpy(out, at, sizeof *out);
    return status;
}

static sn_status cursor_take_string(cursor *c, const char *what, sn_gguf_str *out) {
    uint64_t len;
    const uint8_t *at = NULL;
    sn_status status = cursor_take_u64(c, what, &len);
    if (!status) status = cursor_take(c, len, what, &at);
    if (!status) *out = (sn_gguf_str){(const char *)at, len};
    return status;
}

/* Reads a key or a name: printable ASCII, because it is printed in errors and compared as text. */
static sn_status cursor_take_name(cursor *c, const char *what, size_t limit, sn_gguf_str *out) {
    sn_status status = cursor_take_string(c, what, out);
    if (status) return status;
    if (out->len == 0 || out->len >= limit)
        return sn_fail(c->err, SN_REFUSED, "%s is %zu bytes long; 1 to %zu are taken", what, out->len, limit - 1);
    for (size_t i = 0; i < out->len; i++)
        if (out->data[i] < 0x20 || out->data[i] > 0x7e)
            return sn_fail(c->err, SN_REFUSED, "%s holds byte 0x%02x, which is no printable ASCII", what,
                           (unsigned char)out->data[i]);
    return SN_OK;
}

/* ---- metadata ---- */

static int compare_str(sn_gguf_str a, sn_gguf_str b) {
    int order = memcmp(a.data, b.data, sn_min_size(a.len, b.len));
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static int compare_values(const void *a, const void *b) {
    return compare_str(((const sn_gguf_value *)a)->key, ((const sn_gguf_value *)b)->key);
}

static sn_status read_strings(cursor *c, sn_gguf_value *value, const char *what) {
    uint64_t *places = NULL;
    sn_gguf_str ignored;
    sn_status status = sn_calloc(&places, value->n, sizeof *places, c->err);
    value->strings = places;
    for (size_t i = 0; !status && i < value->n; i++) {
        places[i] = (uint64_t)(c->data + c->pos - value->data);
        status = cursor_take_string(c, what, &ignored);
    }
    return status;
}

static sn_status check_bools(const sn_gguf_value *value, sn_err *err) {
    for (size_t i = 0; i < value->n; i++)
        if (value->data[i] > 1)
            return sn_fail(err, SN_REFUSED, "metadata key '%.*s' holds %d where a bool must be 0 or 1",
                           (int)value->key.len, value->key.data, value->data[i]);
    return SN_OK;
}

static sn_status read_array(cursor *c, sn_gguf_value *value, const char *what) {
    uint32_t element;
    uint64_t n;
    sn_status status = cursor_take_u32(c, what, &element);
    if (!status) status = cursor_take_u64(c, what, &n);
    if (status) return status;
    if (element == SN_GGUF_ARRAY)
        return sn_fail(c->err, SN_REFUSED, "metadata key '%.*s' is an array of arrays, which is not supported",
                       (int)value->key.len, value->key.data);
    if (element >= SN_GGUF_TYPE_COUNT)
        return sn_fail(c->err, SN_REFUSED, "metadata key '%.*s' is an array of unknown type %u", (int)value->key.len,
                       value->key.data, element);
    size_t each = value_types[element].bytes ? value_types[element].bytes : sizeof(uint64_t); /* a string: its length */
    c->ended = n > cursor_left(c) / each;
    if (c->ended)
        return sn_fail(c->err, SN_REFUSED, "metadata key '%.*s' claims %llu elements; the file is too short for them",
                       (int)value->key.len, value->key.data, (unsigned long long)n);
    value->element = (sn_gguf_type)element;
    value->n = n;
    value->data = c->data + c->pos;
    if (element == SN_GGUF_STRING) return read_strings(c, value, what);
    return cursor_take(c, n * each, what, &value->data);
}

static sn_status read_value(cursor *c, sn_gguf_value *value) {
    uint32_t type;
    sn_gguf_str ignored;
    char what[128];
    sn_status status = cursor_take_name(c, "a metadata key", KEY_MAX, &value->key);
    if (!status) status = cursor_take_u32(c, "the type of a metadata value", &type);
    if (status) return status;
    snprintf(what, sizeof what, "metadata key '%.*s'", (int)sn_min_size(value->key.len, 80), value->key.data);
    if (type >= SN_GGUF_TYPE_COUNT) return sn_fail(c->err, SN_REFUSED, "%s is of unknown type %u", what, type);
    value->type = value->element = (sn_gguf_type)type;
    value->n = 1;
    value->data = c->data + c->pos;
    if (type == SN_GGUF_ARRAY)
        status = read_array(c, value, what);
    else if (type == SN_GGUF_STRING)
        status = cursor_take_string(c, what, &ignored);
    else
        status = cursor_take(c, value_types[type].bytes, what, &value->data);
    if (!status && value->element == SN_GGUF_BOOL) status = check_bools(value, c->err);
    return status;
}

static sn_status read_values(cursor *c, sn_gguf *g, uint64_t n) {
    c->ended = n <= VALUES_MAX && n > cursor_left(c) / VALUE_BYTES_MIN;
    if (c->ended || n > VALUES_MAX)
        return sn_fail(c->err, SN_REFUSED, "the file claims %llu metadata keys; it is too short for them, or damaged",
                       (unsigned long long)n);
    sn_status status = sn_calloc(&g->values, n, sizeof *g->values, c->err);
    for (; !status && g->n_values < n; g->n_values++) status = read_value(c, &g->values[g->n_values]);
    if (status) return status;
    if (n) qsort(g->values, n, sizeof *g->values, compare_values);
    for (size_t i = 1; i < n; i++)
        if (!compare_values(&g->values[i - 1], &g->values[i]))
            return sn_fail(c->err, SN_REFUSED, "metadata key '%.*s' is given twice", (int)g->values[i].key.len,
                           g->values[i].key.data);
    uint32_t alignment = ALIGNMENT_DEFAULT;
    status = sn_gguf_u32(g, "general.alignment", false, &alignment, c->err);
    if (status) return status;
    if (alignment < 8 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
        return sn_fail(c->err, SN_REFUSED, "general.alignment is %u; it must be a power of two from 8 to %d", alignment,
                       ALIGNMENT_MAX);
    g->alignment = alignment;
    return SN_OK;
}

/* ---- tensors ---- */

static sn_status read_type(cursor *c, sn_gguf_tensor *tensor) {
    uint32_t type;
    sn_status status = cursor_take_u32(c, "the directory of tensors", &type);
    if (status) return status;
    size_t known = sizeof tensor_types / sizeof *tensor_types;
    char name[24];
    snprintf(name, sizeof name, "the unknown type %u", type);
    bool named = type < known && tensor_types[type].name;
    if (!named || tensor_types[type].dtype < 0)
        return sn_fail(c->err, SN_REFUSED,
                       "tensor '%s' is of %s%s, which is not supported: use a Q4_0 to Q8_0, Q*_K, "
                       "IQ4_NL, IQ4_XS, MXFP4, F16, BF16 or F32 file of the model",
                       tensor->name, named ? "type " : "", named ? tensor_types[type].name : name);
    tensor->dtype = (sn_dtype)tensor_types[type].dtype;
    return SN_OK;
}

static sn_status read_dims(cursor *c, sn_gguf_tensor *tensor) {
    uint32_t n_dims;
    uint64_t dim, elements = 1;
    sn_status status = cursor_take_u32(c, "the directory of tensors", &n_dims);
    if (status) return status;
    if (n_dims < 1 || n_dims > SN_GGUF_DIMS_MAX)
        return sn_fail(c->err, SN_REFUSED, "tensor '%s' has %u dimensions; 1 to %d are taken", tensor->name, n_dims,
                       SN_GGUF_DIMS_MAX);
    tensor->n_dims = (int)n_dims;
    for (uint32_t i = 0; i < SN_GGUF_DIMS_MAX; i++) {
        dim = 1;
        if (i < n_dims) status = cursor_take_u64(c, "the directory of tensors", &dim);
        if (status) return status;
        if (dim == 0 || dim > ELEMENTS_MAX / elements)
            return sn_fail(c->err, SN_REFUSED, "tensor '%s' has an impossible shape: dimension %u is %llu",
                           tensor->name, i, (unsigned long long)dim);
        elements *= dim;
        tensor->dims[i] = dim;
    }
    return SN_OK;
}

/* Reads one entry of the directory. *offset is relative to the data, which begins after the directory. */
static sn_status read_tensor(cursor *c, sn_gguf_tensor *tensor, uint64_t *offset) {
    sn_gguf_str name;
    size_t row_bytes;
    sn_status status = cursor_take_name(c, "the name of a tensor", SN_GGUF_NAME_SIZE, &name);
    if (status) return status;
    memcpy(tensor->name, name.data, name.len);
    status = read_dims(c, tensor);
    if (!status) status = read_type(c, tensor);
    if (!status) status = cursor_take_u64(c, "the directory of tensors", offset);
    if (status) return status;
    status = sn_dtype_row_bytes(tensor->dtype, tensor->dims[0], &row_bytes, c->err);
    if (status) sn_err_context(c->err, "tensor '%s'", tensor->name);
    if (status) return status;
    tensor->bytes = row_bytes * (tensor->dims[1] * tensor->dims[2] * tensor->dims[3]); /* <= 8 * ELEMENTS_MAX */
    return SN_OK;
}

static sn_status locate_tensor(const cursor *c, sn_gguf_tensor *tensor, uint64_t offset, size_t alignment) {
    if (offset % alignment)
        return sn_fail(c->err, SN_REFUSED, "the data of tensor '%s' begins at %llu, which is not aligned to %zu",
                       tensor->name, (unsigned long long)offset, alignment);
    if (offset > cursor_left(c) || tensor->bytes > cursor_left(c) - offset)
        return sn_fail(c->err, SN_REFUSED,
                       "the data of tensor '%s' reaches beyond the end of the file: it is cut off, "
                       "fetch it again",
                       tensor->name);
    tensor->data = c->data + c->pos + offset;
    return SN_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const sn_gguf_tensor *const *)a)->name, (*(const sn_gguf_tensor *const *)b)->name);
}

static int compare_offsets(const void *a, const void *b) {
    const uint8_t *x = (*(const sn_gguf_tensor *const *)a)->data, *y = (*(const sn_gguf_tensor *const *)b)->data;
    return (x > y) - (x < y);
}

static sn_status check_tensors(sn_gguf *g, sn_err *err) {
    sn_status status = sn_calloc(&g->by_name, g->n_tensors, sizeof *g->by_name, err);
    if (status) return status;
    const sn_gguf_tensor **sorted = g->by_name;
    for (size_t i = 0; i < g->n_tensors; i++) sorted[i] = &g->tensors[i];
    qsort(sorted, g->n_tensors, sizeof *sorted, compare_offsets);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (sorted[i - 1]->data + sorted[i - 1]->bytes > sorted[i]->data)
            return sn_fail(err, SN_REFUSED, "the data of tensors '%s' and '%s' overlap", sorted[i - 1]->name,
                           sorted[i]->name);
    return sn_gguf_sort_names(g, err);
}

sn_status sn_gguf_sort_names(sn_gguf *g, sn_err *err) {
    for (size_t i = 0; i < g->n_tensors; i++) g->by_name[i] = &g->tensors[i];
    qsort(g->by_name, g->n_tensors, sizeof *g->by_name, compare_names);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (!strcmp(g->by_name[i - 1]->name, g->by_name[i]->name))
            return sn_fail(err, SN_REFUSED, "tensor '%s' is in the file twice", g->by_name[i]->name);
    return SN_OK;
}

/* Reads the directory, which ends the header; *offsets (freed by the caller) are relative to the data behind it. */
static sn_status read_directory(cursor *c, sn_gguf *g, uint64_t n, uint64_t **offsets) {
    c->ended = n <= TENSORS_MAX && n > cursor_left(c) / TENSOR_BYTES_MIN;
    if (c->ended || n > TENSORS_MAX)
        return sn_fail(c->err, SN_REFUSED, "the file claims %llu tensors; it is too short for them, or damaged",
                       (unsigned long long)n);
    sn_status status = sn_calloc(&g->tensors, n, sizeof *g->tensors, c->err);
    if (!status) status = sn_calloc(offsets, n, sizeof **offsets, c->err);
    for (size_t i = 0; !status && i < n; i++) status = read_tensor(c, &g->tensors[i], &(*offsets)[i]);
    if (!status) g->n_tensors = n;
    return status;
}

static sn_status locate_tensors(cursor *c, sn_gguf *g, const uint64_t *offsets) {
    sn_status status = SN_OK;
    c->pos = sn_min_size(sn_round_up(c->pos, g->alignment), c->len);
    for (size_t i = 0; !status && i < g->n_tensors; i++)
        status = locate_tensor(c, &g->tensors[i], offsets[i], g->alignment);
    return status ? status : check_tensors(g, c->err);
}

/* ---- the file ---- */

static sn_status read_header(cursor *c, sn_gguf *g, uint64_t **offsets) {
    uint32_t magic, version;
    uint64_t n_tensors, n_values;
    const char *other = sn_not_a_model(c->data, c->len);
    if (other) return sn_fail(c->err, SN_REFUSED, "%s", other);
    sn_status status = cursor_take_u32(c, "the header", &magic);
    if (!status) status = cursor_take_u32(c, "the header", &version);
    if (status) return status;
    if (magic != 0x46554747) /* "GGUF" */
        return sn_fail(c->err, SN_REFUSED, "this is not a GGUF file (it does not begin with \"GGUF\")");
    if (version > 0xffff)
        return sn_fail(c->err, SN_REFUSED, "this is a big-endian GGUF file; only little-endian ones are supported");
    if (version != 2 && version != 3)
        return sn_fail(c->err, SN_REFUSED, "this is GGUF version %u; versions 2 and 3 are supported", version);
    g->version = (int)version;
    status = cursor_take_u64(c, "the header", &n_tensors);
    if (!status) status = cursor_take_u64(c, "the header", &n_values);
    if (!status) status = read_values(c, g, n_values);
    if (!status) status = read_directory(c, g, n_tensors, offsets);
    return status;
}

sn_status sn_gguf_header_bytes(const void *prefix, size_t len, size_t *header_bytes, sn_err *err) {
    sn_gguf *g = NULL;
    uint64_t *offsets = NULL;
    cursor c = {.data = prefix, .len = len, .err = err};
    *header_bytes = 0;
    sn_status status = sn_calloc(&g, 1, sizeof *g, err);
    if (status) return status;
    status = read_header(&c, g, &offsets);
    if (!status) *header_bytes = c.pos;
    free(offsets);
    sn_gguf_close(&g);
    return c.ended ? SN_OK : status;
}

sn_status sn_gguf_open_memory(const void *data, size_t len, const char *name, sn_gguf **out, sn_err *err) {
    sn_gguf *g = NULL;
    uint64_t *offsets = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&g, 1, sizeof *g, err);
    if (status) return status;
    cursor c = {.data = data, .len = len, .err = err};
    status = read_header(&c, g, &offsets);
    if (!status) status = locate_tensors(&c, g, offsets);
    free(offsets);
    if (status) {
        sn_gguf_close(&g);
        sn_err_context(err, "%s", name);
        return status;
    }
    *out = g;
    return SN_OK;
}

sn_status sn_gguf_open_file(const char *path, sn_gguf **out, sn_err *err) {
    sn_mapped_file *map = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&map, 1, sizeof *map, err);
    if (!status) status = sn_mapped_file_open(path, map, err);
    if (!status) status = sn_gguf_open_memory(map->data, map->len, path, out, err);
    if (!status) {
        (*out)->maps = map;
        (*out)->n_maps = 1;
        return SN_OK;
    }
    if (map) sn_mapped_file_close(map);
    free(map);
    return status;
}

void sn_gguf_close(sn_gguf **gguf) {
    sn_gguf *g = *gguf;
    if (!g) return;
    for (size_t i = 0; i < g->n_values; i++) free((void *)g->values[i].strings);
    free(g->values);
    free(g->tensors);
    free(g->by_name);
    for (size_t i = 0; i < g->n_maps; i++) sn_mapped_file_close(&g->maps[i]);
    free(g->maps);
    free(g);
    *gguf = NULL;
}

bool sn_gguf_file_of(const sn_gguf *gguf, const void *bytes, const char **path, uint64_t *offset) {
    return sn_mapped_files_have(gguf->maps, gguf->n_maps, bytes, path, offset);
}

const sn_mapped_file *sn_gguf_files(const sn_gguf *gguf, size_t *n) {
    *n = gguf->n_maps;
    return gguf->maps;
}

int sn_gguf_version(const sn_gguf *gguf) { return gguf->version; }

/* ---- lookups ---- */

bool sn_gguf_str_equals(sn_gguf_str text, const char *word) {
    return text.len == strlen(word) && !memcmp(text.data, word, text.len);
}

const sn_gguf_value *sn_gguf_find(const sn_gguf *gguf, const char *key) {
    sn_gguf_value wanted = {.key = {key, strlen(key)}};
    if (!gguf->n_values) return NULL;
    return bsearch(&wanted, gguf->values, gguf->n_values, sizeof wanted, compare_values);
}

size_t sn_gguf_n_values(const sn_gguf *gguf) { return gguf->n_values; }

const sn_gguf_value *sn_gguf_value_at(const sn_gguf *gguf, size_t i) { return &gguf->values[i]; }

/* *value is NULL with SN_OK for an absent key that is not required. */
static sn_status find_value(const sn_gguf *gguf, const char *key, bool required, const sn_gguf_value **value,
                            sn_err *err) {
    *value = sn_gguf_find(gguf, key);
    if (!*value && required) return sn_fail(err, SN_REFUSED, "metadata key '%s' is missing", key);
    return SN_OK;
}

static sn_status wrong_type(const sn_gguf_value *value, const char *wanted, sn_err *err) {
    bool array = value->type == SN_GGUF_ARRAY;
    return sn_fail(err, SN_REFUSED, "metadata key '%.*s' is %s%s where %s is expected", (int)value->key.len,
                   value->key.data, array ? "an array of " : "", value_types[value->element].name, wanted);
}

static sn_status value_to_integer(const sn_gguf_value *value, int64_t low, int64_t high, int64_t *out, sn_err *err) {
    union {
        uint8_t u8; /* of I8, too */
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } x = {0};
    bool fits = true;
    if (value->type != SN_GGUF_ARRAY && value_types[value->type].bytes)
        memcpy(&x, value->data, value_types[value->type].bytes);
    switch (value->type) {
    case SN_GGUF_U8:
        *out = x.u8;
        break;
    case SN_GGUF_I8:
        *out = x.u8 < 0x80 ? x.u8 : x.u8 - 0x100;
        break;
    case SN_GGUF_U16:
        *out = x.u16;
        break;
    case SN_GGUF_I16:
        *out = x.i16;
        break;
    case SN_GGUF_U32:
        *out = x.u32;
        break;
    case SN_GGUF_I32:
        *out = x.i32;
        break;
    case SN_GGUF_I64:
        *out = x.i64;
        break;
    case SN_GGUF_U64:
        fits = x.u64 <= INT64_MAX;
        *out = fits ? x.i64 : 0;
        break;
    default:
        return wrong_type(value, "a whole number", err);
    }
    if (!fits || *out < low || *out > high)
        return sn_fail(err, SN_REFUSED, "metadata key '%.*s' is not between %lld and %lld", (int)value->key.len,
                       value->key.data, (long long)low, (long long)high);
    return SN_OK;
}

sn_status sn_gguf_u32(const sn_gguf *gguf, const char *key, bool required, uint32_t *out, sn_err *err) {
    const sn_gguf_value *value;
    int64_t wide = 0;
    sn_status status = find_value(gguf, key, required, &value, err);
    if (status || !value) return status;
    status = value_to_integer(value, 0, UINT32_MAX, &wide, err);
    if (!status) *out = (uint32_t)wide;
    return status;
}

sn_status sn_gguf_i32(const sn_gguf *gguf, const char *key, bool required, int32_t *out, sn_err *err) {
    const sn_gguf_value *value;
    int64_t wide = 0;
    sn_status status = find_value(gguf, key, required, &value, err);
    if (status || !value) return status;
    status = value_to_integer(value, INT32_MIN, INT32_MAX, &wide, err);
    if (!status) *out = (int32_t)wide;
    return status;
}

sn_status sn_gguf_f32(const sn_gguf *gguf, const char *key, bool required, float *out, sn_err *err) {
    const sn_gguf_value *value;
    double wide;
    sn_status status = find_value(gguf, key, required, &value, err);
    if (status || !value) return status;
    if (value->type == SN_GGUF_F32) {
        memcpy(out, value->data, sizeof *out);
    } else if (value->type == SN_GGUF_F64) {
        memcpy(&wide, value->data, sizeof wide);
        *out = (float)wide;
    } else {
        return wrong_type(value, "f32", err);
    }
    return SN_OK;
}

sn_status sn_gguf_bool(const sn_gguf *gguf, const char *key, bool required, bool *out, sn_err *err) {
    const sn_gguf_value *value;
    sn_status status = find_value(gguf, key, required, &value, err);
    if (status || !value) return status;
    if (value->type != SN_GGUF_BOOL) return wrong_type(value, "a bool", err);
    *out = *value->data;
    return SN_OK;
}

static sn_gguf_str string_at(const uint8_t *at) {
    uint64_t len;
    memcpy(&len, at, sizeof len);
    return (sn_gguf_str){(const char *)at + sizeof len, len};
}

sn_status sn_gguf_string(const sn_gguf *gguf, const char *key, bool required, sn_gguf_str *out, sn_err *err) {
    const sn_gguf_value *value;
    sn_status status = find_value(gguf, key, required, &value, err);
    if (status || !value) return status;
    if (value->type != SN_GGUF_STRING) return wrong_type(value, "a string", err);
    *out = string_at(value->data);
    return SN_OK;
}

sn_status sn_gguf_array(const sn_gguf *gguf, const char *key, sn_gguf_type element, bool required,
                        const sn_gguf_value **out, sn_err *err) {
    const sn_gguf_value *value;
    char wanted[64];
    sn_status status = find_value(gguf, key, required, &value, err);
    if (status || !value) return status;
    if (value->type != SN_GGUF_ARRAY || value->element != element) {
        snprintf(wanted, sizeof wanted, "an array of %s", value_types[element].name);
        return wrong_type(value, wanted, err);
    }
    *out = value;
    return SN_OK;
}

sn_gguf_str sn_gguf_string_at(const sn_gguf_value *value, size_t i) {
    return string_at(value->data + value->strings[i]);
}

int32_t sn_gguf_i32_at(const sn_gguf_value *value, size_t i) {
    int32_t x;
    memcpy(&x, value->data + i * sizeof x, sizeof x);
    return x;
}

float sn_gguf_f32_at(const sn_gguf_value *value, size_t i) {
    float x;
    memcpy(&x, value->data + i * sizeof x, sizeof x);
    return x;
}

size_t sn_gguf_n_tensors(const sn_gguf *gguf) { return gguf->n_tensors; }

const sn_gguf_tensor *sn_gguf_tensor_at(const sn_gguf *gguf, size_t i) { return &gguf->tensors[i]; }

const sn_gguf_tensor *sn_gguf_tensor_find(const sn_gguf *gguf, const char *name) {
    size_t low = 0, high = gguf->n_tensors;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(gguf->by_name[mid]->name, name);
        if (order == 0) return gguf->by_name[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}
