/* A signpost: "ask here for this model", as it stands in a public directory (dht.h). Small, signed by the node that it names,
 * with an expiry of its own; it says where to begin to ask and nothing about who is alive. */
#ifndef SN_NET_SIGNPOST_H
#define SN_NET_SIGNPOST_H

#include "net/identity.h"

enum {
    SN_SIGNPOST_LIFE_MS = 600000,      /* ten minutes: OpenDHT keeps a value as long */
    SN_SIGNPOST_LIFE_MS_MAX = 720000,  /* an expiry further ahead is refused (allows for clocks that differ) */
    SN_SIGNPOST_SIZE_MAX = 1024,
};

typedef struct sn_signpost {
    uint8_t node[SN_KEY_SIZE], curve_key[SN_KEY_SIZE], model[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
    uint64_t expires_unix_ms;
} sn_signpost;

/* Encodes and signs: msgpack map, then 64 bytes of signature over it. */
sn_status sn_signpost_seal(const sn_signpost *post, const sn_identity *identity, sn_buf *out, sn_err *err) SN_MUST_USE;
/* SN_REFUSED with the reason for one that is forged, expired, too far ahead, of another model, or no address. */
sn_status sn_signpost_open(const void *data, size_t len, const uint8_t model[SN_KEY_SIZE], int64_t now_unix_ms,
                           sn_signpost *out, sn_err *err) SN_MUST_USE;

#endif
