/* Reads msgpack from untrusted bytes, one header at a time. Private to net/.
 *
 * The central type is sn_msgpack_reader, a position in a message; its owner keeps the bytes alive. Nothing here
 * allocates or recurses, and every count is compared with the bytes that are left. msgpack-c's decoder is not used,
 * because it trusts the counts that it reads: five bytes make it allocate gigabytes. A walk over all headers would have
 * to come first; this file is that walk, and callers take the values from it where they lie. Format: the MessagePack
 * specification (github.com/msgpack/msgpack/blob/master/spec.md). */
#ifndef SN_NET_MSGPACK_READER_PRIVATE_H
#define SN_NET_MSGPACK_READER_PRIVATE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SN_MSGPACK_DEPTH_MAX = 4 }; /* nested maps and arrays */

typedef enum sn_msgpack_type {
    SN_MSGPACK_OTHER, /* nil, boolean, signed integer, float, extension: no field uses it */
    SN_MSGPACK_UINT,
    SN_MSGPACK_STR,
    SN_MSGPACK_BIN,
    SN_MSGPACK_ARRAY,
    SN_MSGPACK_MAP,
} sn_msgpack_type;

typedef struct sn_msgpack_item {
    sn_msgpack_type type;
    uint64_t n;          /* the value of UINT; the number of bytes, elements or pairs of the others */
    const uint8_t *data; /* of STR and BIN: inside the message */
} sn_msgpack_item;

typedef struct sn_msgpack_reader {
    const uint8_t *at, *end;
    int depth; /* nesting of the map or array whose elements come next */
} sn_msgpack_reader;

/* Reads the next header, with the bytes of a string. The elements of an array or map follow; the caller reads them. */
sn_status sn_msgpack_next(sn_msgpack_reader *reader, sn_msgpack_item *out, sn_err *err) SN_MUST_USE;
/* Skips one whole value. */
sn_status sn_msgpack_skip(sn_msgpack_reader *reader, sn_err *err) SN_MUST_USE;

#endif
