/* A DHT record: the address and keys of one node that serves a model, as published in a DHT (net/dht.h). It is small,
 * signed by the node that it names, and has an expiry. It is a place to ask for announcements; it does not prove that
 * the node is alive. Logic only, any thread. Errors: SN_REFUSED with the reason. */
#ifndef SN_NET_DHT_RECORD_H
#define SN_NET_DHT_RECORD_H

#include "net/identity.h"

enum {
    SN_DHT_RECORD_LIFE_MS = 600000, /* ten minutes: OpenDHT keeps a value for as long */
    SN_DHT_RECORD_LIFE_MS_MAX =
        720000, /* an expiry further ahead is refused; the margin allows for clocks that differ */
    SN_DHT_RECORD_SIZE_MAX = 1024,
};

typedef struct sn_dht_record {
    uint8_t node[SN_KEY_SIZE], curve_key[SN_KEY_SIZE], model[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
    uint64_t expires_unix_ms;
} sn_dht_record;

/* Appends the sealed record to *out: a msgpack map, then 64 bytes of signature over it. */
sn_status sn_dht_record_seal(const sn_dht_record *record, const sn_identity *identity, sn_buf *out,
                             sn_err *err) SN_MUST_USE;
/* Refuses a record that is forged, has expired or expires too far ahead, is for another model, or has no address. */
sn_status sn_dht_record_open(const void *data, size_t len, const uint8_t model[SN_KEY_SIZE], int64_t now_unix_ms,
                             sn_dht_record *out, sn_err *err) SN_MUST_USE;

#endif
