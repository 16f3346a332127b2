/* Structs to msgpack maps and back, driven by tables. Private to net/: messages, announcements and DHT records use it.
 *
 * The central type is sn_schema: the fields of a C struct with their types, offsets and limits. The schemas of messages
 * are made from the lists in net/message.h. One encoder and one decoder hold every limit, because each stands in a
 * schema. No state, no thread of its own. Errors: SN_REFUSED for values beyond a limit and for bytes that do not fit
 * the schema, SN_STOP when memory is out. */
#ifndef SN_NET_CODEC_PRIVATE_H
#define SN_NET_CODEC_PRIVATE_H

#include "net/message.h"
#include "net/msgpack_reader_private.h"

typedef struct sn_schema sn_schema;

typedef enum sn_field_type {
    SN_FIELD_U64,
    SN_FIELD_BIN,      /* exactly max bytes: a key, hash or session id */
    SN_FIELD_STR,      /* at most max bytes of printable UTF-8, and a NUL in the struct */
    SN_FIELD_LIST,     /* a size_t at n_offset; at offset a pointer to that many structs of `schema` */
    SN_FIELD_BLOBS,    /* as LIST, of sn_blob */
    SN_FIELD_KEYS,     /* at most max keys in the struct itself; their number is a size_t at n_offset */
    SN_FIELD_U64S,     /* as KEYS, of uint64_t */
    SN_FIELD_OPTIONAL, /* a struct of `schema` in the struct itself; the size_t at n_offset is 1 if the map has it, else
                          0 */
} sn_field_type;

typedef struct sn_field {
    const char *name;
    sn_field_type type;
    size_t offset, n_offset, max;
    struct {
        uint64_t least, most; /* of U64, U64S: the number; of BLOBS: bytes of an element; most 0: any */
    } range;
    const sn_schema *(*schema)(void);
} sn_field;

struct sn_schema {
    const sn_field *fields;
    size_t n_fields; /* at most 64 */
    size_t size;     /* bytes of the struct */
};

/* Appends one map with the fields of `n` schemas, each taken from its own struct. Bytes of text that are not printable
 * become question marks. On failure *out is as before. */
sn_status sn_schemas_encode(const sn_schema *const *schemas, const void *const *structs, size_t n, sn_buf *out,
                            sn_err *err) SN_MUST_USE;
/* Reads one map into a zeroed struct and ignores fields that the schema does not have. The struct owns what the decoder
 * allocated, also after an error: free it with sn_schema_fini. */
sn_status sn_schema_decode(sn_msgpack_reader *reader, const sn_schema *schema, void *out, sn_err *err) SN_MUST_USE;
void sn_schema_fini(const sn_schema *schema, void *structure);

/* True for UTF-8 that is safe on a terminal: no control characters, line separators or changes of direction. */
bool sn_is_printable(const char *text, size_t len);

#endif
