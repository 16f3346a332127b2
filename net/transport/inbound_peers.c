#include "net/transport/inbound_peers_private.h"

#include <stdlib.h>
#include <string.h>

/* Two hash tables with chains (by routing id, by handle) over one array of slots, and a ring of the slots in the order
 * of their last use. Slots are numbered from 1; slot 0 is the anchor of the ring, and index 0 ends a chain. */
enum { BUCKETS = 2 * SN_INBOUND_PEERS_MAX };

typedef struct slot {
    sn_inbound_peer peer; /* handle 0: free */
    uint16_t next_by_id, next_by_handle, newer, older;
} slot;

struct sn_inbound_peers {
    uint64_t seed; /* secret, so that a peer cannot choose routing ids that share a chain */
    uint16_t by_id[BUCKETS], by_handle[BUCKETS];
    slot slots[SN_INBOUND_PEERS_MAX + 1];
};

/* FNV-1a, which starts with the seed. */
static size_t id_bucket(const sn_inbound_peers *in, const uint8_t *id, size_t len) {
    uint64_t h = in->seed;
    for (size_t i = 0; i < len; i++) h = (h ^ id[i]) * UINT64_C(0x100000001b3);
    return (size_t)(h >> 32) % BUCKETS;
}

static void ring_remove(sn_inbound_peers *in, uint16_t i) {
    in->slots[in->slots[i].newer].older = in->slots[i].older;
    in->slots[in->slots[i].older].newer = in->slots[i].newer;
}

/* The anchor's `older` is the newest slot, its `newer` is the oldest one. */
static void ring_insert_newest(sn_inbound_peers *in, uint16_t i) {
    slot *anchor = &in->slots[0];
    in->slots[i].newer = 0;
    in->slots[i].older = anchor->older;
    in->slots[anchor->older].newer = i;
    anchor->older = i;
}

static void ring_insert_oldest(sn_inbound_peers *in, uint16_t i) {
    slot *anchor = &in->slots[0];
    in->slots[i].older = 0;
    in->slots[i].newer = anchor->newer;
    in->slots[anchor->newer].older = i;
    anchor->newer = i;
}

sn_status sn_inbound_peers_new(sn_inbound_peers **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    sn_random(&(*out)->seed, sizeof(*out)->seed);
    for (int i = 1; i <= SN_INBOUND_PEERS_MAX; i++) ring_insert_oldest(*out, (uint16_t)i);
    return SN_OK;
}

void sn_inbound_peers_free(sn_inbound_peers **inbound) {
    free(*inbound);
    *inbound = NULL;
}

static void slot_clear(sn_inbound_peers *in, uint16_t i) {
    slot *s = &in->slots[i];
    if (!s->peer.handle) return;
    uint16_t *at = &in->by_id[id_bucket(in, s->peer.routing_id, s->peer.routing_id_len)];
    while (*at != i) at = &in->slots[*at].next_by_id;
    *at = s->next_by_id;
    at = &in->by_handle[s->peer.handle % BUCKETS];
    while (*at != i) at = &in->slots[*at].next_by_handle;
    *at = s->next_by_handle;
    s->peer.handle = 0;
}

static uint16_t slot_find_by_id(const sn_inbound_peers *in, const uint8_t *id, size_t len) {
    uint16_t i = in->by_id[id_bucket(in, id, len)];
    while (i && (in->slots[i].peer.routing_id_len != len || memcmp(in->slots[i].peer.routing_id, id, len) != 0))
        i = in->slots[i].next_by_id;
    return i;
}

static uint16_t slot_find_by_handle(const sn_inbound_peers *in, sn_peer handle) {
    uint16_t i = in->by_handle[handle % BUCKETS];
    while (i && in->slots[i].peer.handle != handle) i = in->slots[i].next_by_handle;
    return i;
}

sn_peer sn_inbound_peers_touch(sn_inbound_peers *in, const void *routing_id, size_t len, const uint8_t key[SN_KEY_SIZE],
                               sn_peer *next) {
    uint16_t i = slot_find_by_id(in, routing_id, len);
    bool known = i && !memcmp(in->slots[i].peer.key, key, SN_KEY_SIZE);
    if (!i) i = in->slots[0].newer; /* the oldest slot, or a free one */
    ring_remove(in, i);
    ring_insert_newest(in, i);
    slot *s = &in->slots[i];
    if (known) return s->peer.handle;
    slot_clear(in, i);
    s->peer = (sn_inbound_peer){.handle = (*next)++, .routing_id_len = (uint8_t)len};
    memcpy(s->peer.routing_id, routing_id, len);
    memcpy(s->peer.key, key, SN_KEY_SIZE);
    uint16_t *id_chain = &in->by_id[id_bucket(in, routing_id, len)];
    uint16_t *handle_chain = &in->by_handle[s->peer.handle % BUCKETS];
    s->next_by_id = *id_chain;
    s->next_by_handle = *handle_chain;
    *id_chain = *handle_chain = i;
    return s->peer.handle;
}

const sn_inbound_peer *sn_inbound_peers_find(const sn_inbound_peers *in, sn_peer handle) {
    uint16_t i = handle ? slot_find_by_handle(in, handle) : 0;
    return i ? &in->slots[i].peer : NULL;
}

void sn_inbound_peers_remove(sn_inbound_peers *in, sn_peer handle) {
    uint16_t i = handle ? slot_find_by_handle(in, handle) : 0;
    if (!i) return;
    slot_clear(in, i);
    ring_remove(in, i);
    ring_insert_oldest(in, i);
}
