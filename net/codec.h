/* Records to msgpack maps and back, after tables. Internal to net/: messages and announcements are built on it.
 *
 * A record is a C struct described by a table of fields. The tables of messages come from the lists in net/message.h.
 * Every limit stands in the table, so one encoder and one decoder hold them all. */
#ifndef SN_NET_CODEC_H
#define SN_NET_CODEC_H

#include "net/directory.h"
#include "net/reader.h"

typedef struct sn_record sn_record;

typedef enum sn_field_type {
    SN_FIELD_U64,
    SN_FIELD_BIN,    /* exactly max bytes: a key, hash or session id */
    SN_FIELD_STR,    /* at most max bytes of printable UTF-8, and a NUL in the struct */
    SN_FIELD_LIST,   /* size_t at n_offset, pointer at offset to that many structs of `record` */
    SN_FIELD_BLOBS,  /* the same with sn_blob */
    SN_FIELD_KEYS,   /* at most max keys in the struct itself, their number a size_t at n_offset */
    SN_FIELD_U64S,   /* the same with uint64_t */
    SN_FIELD_OPTION, /* a map after `record` in the struct itself, that may be missing; n_offset: 1 if it is there */
} sn_field_type;

typedef struct sn_field {
    const char *name;
    sn_field_type type;
    size_t offset, n_offset, max;
    const sn_record *(*record)(void);
} sn_field;

struct sn_record {
    const sn_field *fields;
    size_t n_fields; /* at most 64 */
    size_t size;     /* of the struct */
};

/* Appends one map with the fields of `n` records, each taken from its own struct. Text that is not printable is sent
 * with question marks. */
sn_status sn_records_encode(const sn_record *const *records, const void *const *structs, size_t n, sn_buf *out,
                            sn_err *err) SN_MUST_USE;
/* Reads one map into a zeroed struct; ignores fields that the record does not have. Lists are the struct's, also after
 * an error: sn_record_fini. */
sn_status sn_record_decode(sn_reader *reader, const sn_record *record, void *out, sn_err *err) SN_MUST_USE;
void sn_record_fini(const sn_record *record, void *structure);

/* UTF-8 that cannot move a terminal's cursor: no control characters, no change of direction. */
bool sn_is_printable(const char *text, size_t len);

/* "tcp://host:port": a name, an IPv4 address or an IPv6 address in brackets; port 0 and the host * only to listen. */
sn_status sn_address_check(const char *address, bool to_listen, sn_err *err) SN_MUST_USE;

/* The map of an announcement, checked for form only: neither signature nor meaning. For sn_announcement_open and the
 * fuzz target. */
sn_status sn_announcement_parse(const void *map, size_t len, sn_announcement *out, sn_err *err) SN_MUST_USE;

#endif
