/* The encoder and the decoder of schemas (net/codec_private.h).
 *
 * Encoding goes over the fields of a schema in order and packs each with msgpack-c into the caller's buffer; a field
 * that is longer than its limit ends it. Decoding reads untrusted bytes with our own reader (msgpack_reader.c): for
 * each name of the map the field of the schema is looked up and its value is read into the struct at the field's
 * offset. A bit for each field says that it was read, so duplicates and missing fields are found. Memory is allocated
 * for an array only when its count is within the field's limit and the bytes left can hold that many elements. The
 * recursion follows the schemas, which nest three deep, and not the bytes. */
#include "net/codec_private.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#define AT(structure, offset)  ((uint8_t *)(structure) + (offset))
#define CAT(structure, offset) ((const uint8_t *)(structure) + (offset))

enum { MAP_FIELDS_MAX = 64, STR_SIZE_MAX = SN_TEXT_SIZE_MAX };

/* -- text -- */

/* Bytes of the character at the beginning of `text`; 0 if it is no UTF-8 or is not printable. */
static size_t printable_char(const uint8_t *text, size_t len) {
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000}; /* overlong forms are not UTF-8 */
    uint8_t first = text[0];
    size_t n = first < 0x80 ? 1 : first >= 0xf8 ? 0 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 0;
    if (!n || n > len) return 0;
    uint32_t c = n == 1 ? first : first & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (text[i] & 0x3f);
    }
    if (n > 1 && c < smallest[n]) return 0;
    if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return 0;
    if ((c >= 0xd800 && c < 0xe000) || c > 0x10ffff) return 0;
    if ((c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069))
        return 0; /* line separators, changes of direction */
    return n;
}

bool sn_is_printable(const char *text, size_t len) {
    for (size_t i = 0, n; i < len; i += n)
        if (!(n = printable_char((const uint8_t *)text + i, len - i))) return false;
    return true;
}

/* -- encoding -- */

typedef struct sink {
    sn_buf *out;
    sn_err *err;
    sn_status status;
} sink;

static int sink_write(void *ctx, const char *data, size_t len) {
    sink *s = ctx;
    if (!s->status) s->status = sn_buf_append(s->out, data, len, s->err);
    return s->status ? -1 : 0;
}

static void pack_text(msgpack_packer *packer, const char *text, size_t len) {
    char clean[STR_SIZE_MAX];
    for (size_t i = 0, n; i < len; i += n) {
        n = printable_char((const uint8_t *)text + i, len - i);
        if (n)
            memcpy(clean + i, text + i, n);
        else
            clean[i] = '?', n = 1;
    }
    msgpack_pack_str_with_body(packer, clean, len);
}

static sn_status pack_fields(msgpack_packer *packer, const sn_schema *schema, const void *from, sn_err *err);

static size_t count_fields(const sn_schema *schema, const void *from) {
    size_t n = 0;
    for (const sn_field *f = schema->fields; f < schema->fields + schema->n_fields; f++)
        n += f->type != SN_FIELD_OPTIONAL || *(const size_t *)CAT(from, f->n_offset);
    return n;
}

static sn_status pack_map(msgpack_packer *packer, const sn_schema *schema, const void *from, sn_err *err) {
    msgpack_pack_map(packer, count_fields(schema, from));
    return pack_fields(packer, schema, from, err);
}

/* What is not sent is not taken: the same checks for both directions. */
static sn_status check_number(const sn_field *f, uint64_t n, sn_err *err) {
    if (!f->range.most || (n >= f->range.least && n <= f->range.most)) return SN_OK;
    return sn_fail(err, SN_REFUSED, "it is %llu and must be %llu to %llu", (unsigned long long)n,
                   (unsigned long long)f->range.least, (unsigned long long)f->range.most);
}

static sn_status check_blob_size(const sn_field *f, uint64_t n, sn_err *err) {
    if (n >= f->range.least && n <= f->range.most) return SN_OK;
    return sn_fail(err, SN_REFUSED, "one of its elements has %llu bytes and must have %llu to %llu",
                   (unsigned long long)n, (unsigned long long)f->range.least, (unsigned long long)f->range.most);
}

static sn_status pack_u64(msgpack_packer *packer, const sn_field *f, uint64_t n, sn_err *err) {
    sn_status status = check_number(f, n, err);
    if (!status) msgpack_pack_uint64(packer, n);
    return status;
}

static sn_status pack_blob(msgpack_packer *packer, const sn_field *f, const sn_blob *blob, sn_err *err) {
    sn_status status = check_blob_size(f, blob->len, err);
    if (!status) msgpack_pack_bin_with_body(packer, blob->data, blob->len);
    return status;
}

/* Packs an array field of any type; `from` is the struct that has the field. */
static sn_status pack_array(msgpack_packer *packer, const sn_field *f, const void *from, sn_err *err) {
    size_t n = *(const size_t *)CAT(from, f->n_offset);
    if (n > f->max) return sn_fail(err, SN_REFUSED, "it has %zu elements, at most %zu may be sent", n, f->max);
    const uint8_t *elements = CAT(from, f->offset); /* in the struct itself, or where a pointer there leads */
    if (f->type == SN_FIELD_LIST || f->type == SN_FIELD_BLOBS) memcpy(&elements, CAT(from, f->offset), sizeof(void *));
    msgpack_pack_array(packer, n);
    for (size_t i = 0; i < n; i++) {
        sn_status status = SN_OK;
        if (f->type == SN_FIELD_LIST)
            status = pack_map(packer, f->schema(), elements + i * f->schema()->size, err);
        else if (f->type == SN_FIELD_BLOBS)
            status = pack_blob(packer, f, (const sn_blob *)elements + i, err);
        else if (f->type == SN_FIELD_KEYS)
            msgpack_pack_bin_with_body(packer, elements + i * SN_KEY_SIZE, SN_KEY_SIZE);
        else
            status = pack_u64(packer, f, ((const uint64_t *)elements)[i], err);
        if (status) return status;
    }
    return SN_OK;
}

static sn_status pack_field(msgpack_packer *packer, const sn_field *f, const void *from, sn_err *err) {
    const uint8_t *value = CAT(from, f->offset);
    switch (f->type) {
    case SN_FIELD_U64:
        return pack_u64(packer, f, *(const uint64_t *)value, err);
    case SN_FIELD_BIN:
        msgpack_pack_bin_with_body(packer, value, f->max);
        return SN_OK;
    case SN_FIELD_OPTIONAL:
        return pack_map(packer, f->schema(), value, err);
    case SN_FIELD_STR: {
        size_t len = strnlen((const char *)value, f->max + 1);
        if (len > f->max) return sn_fail(err, SN_REFUSED, "it is longer than the %zu bytes that may be sent", f->max);
        pack_text(packer, (const char *)value, len);
        return SN_OK;
    }
    default:
        return pack_array(packer, f, from, err);
    }
}

static sn_status pack_fields(msgpack_packer *packer, const sn_schema *schema, const void *from, sn_err *err) {
    for (const sn_field *f = schema->fields; f < schema->fields + schema->n_fields; f++) {
        if (f->type == SN_FIELD_OPTIONAL && !*(const size_t *)CAT(from, f->n_offset)) continue;
        msgpack_pack_str_with_body(packer, f->name, strlen(f->name));
        if (pack_field(packer, f, from, err)) return sn_err_context(err, "field '%s'", f->name);
    }
    return SN_OK;
}

sn_status sn_schemas_encode(const sn_schema *const *schemas, const void *const *structs, size_t n, sn_buf *out,
                            sn_err *err) {
    sn_err own = {0};
    if (!err) err = &own; /* sn_err_context returns the status in *err */
    size_t fields = 0, before = out->len;
    for (size_t i = 0; i < n; i++) fields += count_fields(schemas[i], structs[i]);
    sink s = {.out = out, .err = err};
    msgpack_packer packer;
    msgpack_packer_init(&packer, &s, sink_write);
    msgpack_pack_map(&packer, fields);
    sn_status status = SN_OK;
    for (size_t i = 0; i < n && !status; i++) status = pack_fields(&packer, schemas[i], structs[i], err);
    if (!status) status = s.status;
    if (status) out->len = before;
    return status;
}

/* -- decoding -- */

static sn_status fail_wrong_type(const char *wanted, sn_err *err) {
    return sn_fail(err, SN_REFUSED, "it must be %s, and is of another type", wanted);
}

static sn_status read_u64(sn_msgpack_reader *reader, const sn_field *f, uint64_t *out, sn_err *err) {
    sn_msgpack_item item;
    sn_status status = sn_msgpack_next(reader, &item, err);
    if (status) return status;
    if (item.type != SN_MSGPACK_UINT) return fail_wrong_type("an unsigned integer", err);
    *out = item.n;
    return check_number(f, item.n, err);
}

static sn_status read_bin(sn_msgpack_reader *reader, void *out, size_t size, sn_err *err) {
    sn_msgpack_item item;
    sn_status status = sn_msgpack_next(reader, &item, err);
    if (status) return status;
    if (item.type != SN_MSGPACK_BIN) return fail_wrong_type("a byte string", err);
    if (item.n != size) return sn_fail(err, SN_REFUSED, "it has %zu bytes and must have %zu", (size_t)item.n, size);
    memcpy(out, item.data, size);
    return SN_OK;
}

static sn_status read_str(sn_msgpack_reader *reader, char *out, size_t max, sn_err *err) {
    sn_msgpack_item item;
    sn_status status = sn_msgpack_next(reader, &item, err);
    if (status) return status;
    if (item.type != SN_MSGPACK_STR) return fail_wrong_type("a text", err);
    if (item.n > max) return sn_fail(err, SN_REFUSED, "it has %zu bytes, at most %zu are allowed", (size_t)item.n, max);
    if (!sn_is_printable((const char *)item.data, (size_t)item.n))
        return sn_fail(err, SN_REFUSED, "it holds bytes that are not printable UTF-8");
    memcpy(out, item.data, (size_t)item.n);
    out[item.n] = 0;
    return SN_OK;
}

static sn_status read_blob(sn_msgpack_reader *reader, const sn_field *f, sn_blob *out, sn_err *err) {
    sn_msgpack_item item;
    sn_status status = sn_msgpack_next(reader, &item, err);
    if (status) return status;
    if (item.type != SN_MSGPACK_BIN) return fail_wrong_type("an array of byte strings", err);
    if ((status = check_blob_size(f, item.n, err))) return status;
    if ((status = sn_calloc(&out->data, (size_t)item.n, 1, err))) return status;
    out->len = (size_t)item.n;
    memcpy(out->data, item.data, out->len);
    return SN_OK;
}

/* Sets *elements to where the elements of an array field go: the struct itself, or memory allocated for a LIST or BLOBS
 * field. */
static sn_status allocate_elements(const sn_field *f, size_t n, void *into, uint8_t **elements, sn_err *err) {
    *elements = AT(into, f->offset);
    if (f->type == SN_FIELD_LIST || f->type == SN_FIELD_BLOBS) {
        sn_status status =
            sn_list_new(n, f->max, f->type == SN_FIELD_LIST ? f->schema()->size : sizeof(sn_blob), elements, err);
        if (status) return status;
        memcpy(AT(into, f->offset), elements, sizeof *elements);
    }
    *(size_t *)AT(into, f->n_offset) = n;
    return SN_OK;
}

static sn_status read_array(sn_msgpack_reader *reader, const sn_field *f, void *into, sn_err *err) {
    sn_msgpack_item item;
    sn_status status = sn_msgpack_next(reader, &item, err);
    if (status) return status;
    if (item.type != SN_MSGPACK_ARRAY) return fail_wrong_type("an array", err);
    if (item.n > f->max)
        return sn_fail(err, SN_REFUSED, "it has %zu elements, at most %zu are allowed", (size_t)item.n, f->max);
    uint8_t *elements = NULL;
    if ((status = allocate_elements(f, (size_t)item.n, into, &elements, err))) return status;
    reader->depth++;
    for (size_t i = 0; i < item.n && !status; i++) {
        if (f->type == SN_FIELD_LIST) {
            status = sn_schema_decode(reader, f->schema(), elements + i * f->schema()->size, err);
        } else if (f->type == SN_FIELD_BLOBS)
            status = read_blob(reader, f, (sn_blob *)elements + i, err);
        else if (f->type == SN_FIELD_KEYS)
            status = read_bin(reader, elements + i * SN_KEY_SIZE, SN_KEY_SIZE, err);
        else
            status = read_u64(reader, f, (uint64_t *)elements + i, err);
    }
    reader->depth--;
    return status;
}

static sn_status read_field(sn_msgpack_reader *reader, const sn_field *f, void *into, sn_err *err) {
    uint8_t *value = AT(into, f->offset);
    switch (f->type) {
    case SN_FIELD_U64:
        return read_u64(reader, f, (uint64_t *)value, err);
    case SN_FIELD_BIN:
        return read_bin(reader, value, f->max, err);
    case SN_FIELD_STR:
        return read_str(reader, (char *)value, f->max, err);
    case SN_FIELD_OPTIONAL:
        *(size_t *)AT(into, f->n_offset) = 1;
        return sn_schema_decode(reader, f->schema(), value, err);
    default:
        return read_array(reader, f, into, err);
    }
}

static const sn_field *find_field(const sn_schema *schema, const sn_msgpack_item *name) {
    for (const sn_field *f = schema->fields; f < schema->fields + schema->n_fields; f++)
        if (strlen(f->name) == name->n && !memcmp(f->name, name->data, (size_t)name->n)) return f;
    return NULL;
}

static sn_status check_missing_fields(const sn_schema *schema, uint64_t seen, sn_err *err) {
    for (size_t i = 0; i < schema->n_fields; i++)
        if (schema->fields[i].type != SN_FIELD_OPTIONAL && !(seen >> i & 1))
            return sn_fail(err, SN_REFUSED, "the field '%s' is missing", schema->fields[i].name);
    return SN_OK;
}

sn_status sn_schema_decode(sn_msgpack_reader *reader, const sn_schema *schema, void *out, sn_err *err) {
    sn_err own = {0};
    if (!err) err = &own;
    sn_msgpack_item item;
    sn_status status = sn_msgpack_next(reader, &item, err);
    if (status) return status;
    if (item.type != SN_MSGPACK_MAP) return fail_wrong_type("a map", err);
    if (item.n > MAP_FIELDS_MAX)
        return sn_fail(err, SN_REFUSED, "it has %zu fields, at most %d are allowed", (size_t)item.n, MAP_FIELDS_MAX);
    uint64_t seen = 0;
    reader->depth++;
    for (size_t i = 0; i < item.n && !status; i++) {
        sn_msgpack_item name;
        if ((status = sn_msgpack_next(reader, &name, err))) break;
        if (name.type != SN_MSGPACK_STR) {
            status = sn_fail(err, SN_REFUSED, "the name of a field must be a text, and is of another type");
            break;
        }
        const sn_field *f = find_field(schema, &name);
        if (!f) {
            status = sn_msgpack_skip(reader, err);
            continue;
        }
        uint64_t bit = UINT64_C(1) << (f - schema->fields);
        if (seen & bit)
            status = sn_fail(err, SN_REFUSED, "the field '%s' occurs twice", f->name);
        else if (read_field(reader, f, out, err))
            status = sn_err_context(err, "field '%s'", f->name);
        seen |= bit;
    }
    reader->depth--;
    return status ? status : check_missing_fields(schema, seen, err);
}

void sn_schema_fini(const sn_schema *schema, void *structure) {
    for (const sn_field *f = schema->fields; f < schema->fields + schema->n_fields; f++) {
        if (f->type != SN_FIELD_LIST && f->type != SN_FIELD_BLOBS) continue;
        void *elements;
        memcpy(&elements, AT(structure, f->offset), sizeof elements);
        size_t n = elements ? *(size_t *)AT(structure, f->n_offset) : 0;
        if (f->type == SN_FIELD_BLOBS)
            for (size_t i = 0; i < n; i++) free(((sn_blob *)elements)[i].data);
        free(elements); /* the structs in a list have no lists of their own */
    }
}
