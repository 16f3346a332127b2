/* Reads msgpack that a stranger wrote, header by header. Internal to net/.
 *
 * Why not msgpack-c's decoder: it believes the counts it is told (five bytes make it allocate gigabytes), so a walk
 * over all headers would have to come first anyway. The walk is this file, and once it is there, values can be taken
 * where they lie. Nothing here allocates or recurses; every count is compared with the bytes that are left. Format: the
 * MessagePack specification (github.com/msgpack/msgpack/blob/master/spec.md). */
#ifndef SN_NET_READER_H
#define SN_NET_READER_H

#include "base/err.h"

#include <stdbool.h>

#include <stddef.h>
#include <stdint.h>

enum { SN_DEPTH_MAX = 4 }; /* maps and arrays inside each other */

typedef enum sn_item_type {
    SN_ITEM_OTHER, /* nil, boolean, negative or signed integer, float, extension: read over */
    SN_ITEM_UINT,
    SN_ITEM_STR,
    SN_ITEM_BIN,
    SN_ITEM_ARRAY,
    SN_ITEM_MAP,
} sn_item_type;

typedef struct sn_item {
    sn_item_type type;
    uint64_t n;          /* the value, the bytes, the elements or the pairs */
    const uint8_t *data; /* of STR and BIN, inside the message */
} sn_item;

typedef struct sn_reader {
    const uint8_t *at, *end;
    int depth; /* of the map or array whose elements come next */
} sn_reader;

/* The next header, with the bytes of a string. The elements of an array or map follow: the caller reads them. */
sn_status sn_reader_next(sn_reader *reader, sn_item *out, sn_err *err) SN_MUST_USE;
/* Reads over one whole value. */
sn_status sn_reader_skip(sn_reader *reader, sn_err *err) SN_MUST_USE;

#endif
