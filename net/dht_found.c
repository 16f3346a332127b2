#include "net/dht_found.h"

#include "base/random.h"
#include "net/address.h"
#include "net/address_limit.h"

#include <string.h>

enum { OF_FOUR = 3, OF_SIX = 6 }; /* bytes of an address that name its network */

/* 0: the address has none. */
static uint64_t network_of(const char *address) {
    struct sockaddr_storage at;
    socklen_t len;
    uint8_t prefix[SN_ADDRESS_PREFIX];
    uint64_t network = 0;
    if (sn_address_read(address, &at, &len, NULL)) return 0;
    sn_address_prefix(&at, prefix);
    int n = at.ss_family == AF_INET ? OF_FOUR : OF_SIX;
    for (int i = 0; i < n; i++) network = network << 8 | prefix[i];
    return network << 8 | (uint64_t)n;
}

static size_t count_of(const sn_dht_found *f, uint64_t network) {
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++) n += f->nodes[i].network == network;
    return n;
}

static bool is_worse(const struct sn_dht_node *x, const struct sn_dht_node *y) {
    return x->asked != y->asked ? x->asked > y->asked : x->rank > y->rank;
}

/* Which node makes room for a new one: of the networks that have most, the new one included, a node that was asked, or
 * one by its rank, which is random. NULL: the new one does not fit. */
static struct sn_dht_node *choose_victim(sn_dht_found *f, const struct sn_dht_node *added) {
    const struct sn_dht_node *worst = added;
    size_t most = count_of(f, added->network) + 1;
    for (struct sn_dht_node *node = f->nodes; node < f->nodes + f->n; node++) {
        size_t n = count_of(f, node->network) + (node->network == added->network);
        if (n > most || (n == most && is_worse(node, worst))) worst = node;
        if (n > most) most = n;
    }
    return worst == added ? NULL : &f->nodes[worst - f->nodes];
}

void sn_dht_found_add(sn_dht_found *f, const sn_dht_record *record) {
    struct sn_dht_node added = {.record = *record, .network = network_of(record->address)}, *node = f->nodes;
    while (node < f->nodes + f->n && memcmp(node->record.node, record->node, SN_KEY_SIZE)) node++;
    if (node < f->nodes + f->n) { /* it is known */
        if (record->expires_unix_ms <= node->record.expires_unix_ms) return;
        added.asked = node->asked;
        added.rank = node->rank;
    } else {
        added.rank = sn_rng_next(&f->seed);
        node = f->n < SN_DHT_FOUND_MAX ? &f->nodes[f->n++] : choose_victim(f, &added);
    }
    if (node) *node = added;
}

static void drop_expired(sn_dht_found *f, int64_t now_unix_ms) {
    for (size_t i = f->n; i-- > 0;)
        if ((int64_t)f->nodes[i].record.expires_unix_ms <= now_unix_ms) f->nodes[i] = f->nodes[--f->n];
}

static uint64_t asked_of(const sn_dht_found *f, uint64_t network) {
    uint64_t n = 0;
    for (size_t i = 0; i < f->n; i++) n += f->nodes[i].network == network ? f->nodes[i].asked : 0;
    return n;
}

const sn_dht_record *sn_dht_found_next(sn_dht_found *f, bool new_only, int64_t now_unix_ms) {
    struct sn_dht_node *best = NULL;
    uint64_t best_of_network = 0, equal = 0;
    drop_expired(f, now_unix_ms);
    for (struct sn_dht_node *node = f->nodes; node < f->nodes + f->n; node++) {
        uint64_t of_network = asked_of(f, node->network);
        if (new_only && node->asked) continue;
        bool same = best && node->asked == best->asked && of_network == best_of_network;
        bool better =
            !best || node->asked < best->asked || (node->asked == best->asked && of_network < best_of_network);
        if (!same && !better) continue;
        equal = same ? equal + 1 : 1;
        if (sn_rng_below(&f->seed, equal)) continue;
        best = node;
        best_of_network = of_network;
    }
    if (!best) return NULL;
    best->asked++;
    return &best->record;
}
