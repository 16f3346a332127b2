#include "net/gate.h"

#include "base/hash.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { PROBES = 16, SECOND_US = 1000000 };

/* Fills with time, by 1,000,000 drops a handshake so that nothing is lost in rounding. */
typedef struct visitor {
    sn_hash address; /* its hash: one size for IPv4, IPv6 and what else there is */
    int64_t drops, seen_us; /* seen_us 0: free */
} visitor;

struct sn_gate {
    visitor visitors[SN_GATE_ADDRESSES];
    uint8_t secret[SN_HASH_SIZE]; /* nobody chooses addresses that push another one out */
};

sn_status sn_gate_new(sn_gate **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (!status) sn_random((*out)->secret, sizeof (*out)->secret);
    return status;
}

void sn_gate_free(sn_gate **gate) {
    free(*gate);
    *gate = NULL;
}

static visitor *find(sn_gate *g, const void *address, size_t len, int64_t now_us) {
    uint8_t text[SN_HASH_SIZE + 64] = {0};
    memcpy(text, g->secret, SN_HASH_SIZE);
    memcpy(text + SN_HASH_SIZE, address, sn_min_size(len, sizeof text - SN_HASH_SIZE));
    sn_hash name = sn_hash_of(text, sizeof text);
    uint64_t at;
    memcpy(&at, name.bytes, sizeof at);
    visitor *oldest = &g->visitors[at % SN_GATE_ADDRESSES];
    for (size_t i = 0; i < PROBES; i++) {
        visitor *v = &g->visitors[(at + i) % SN_GATE_ADDRESSES];
        if (v->seen_us && !memcmp(&v->address, &name, sizeof name)) return v;
        if (v->seen_us < oldest->seen_us) oldest = v;
    }
    *oldest = (visitor){name, (int64_t)SN_GATE_AT_ONCE * SECOND_US, now_us};
    return oldest;
}

bool sn_gate_admits(sn_gate *g, const void *address, size_t len, int64_t now_us) {
    const int64_t full = (int64_t)SN_GATE_AT_ONCE * SECOND_US;
    if (now_us < 1) now_us = 1;
    visitor *v = find(g, address, len, now_us);
    int64_t passed = now_us - v->seen_us;
    if (passed > SN_GATE_AT_ONCE / SN_GATE_PER_S * (int64_t)SECOND_US) passed = full / SN_GATE_PER_S; /* fills it */
    if (passed > 0) {
        v->drops = v->drops + passed * SN_GATE_PER_S < full ? v->drops + passed * SN_GATE_PER_S : full;
        v->seen_us = now_us;
    }
    if (v->drops < SECOND_US) return false;
    v->drops -= SECOND_US;
    return true;
}
