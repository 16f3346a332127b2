#include "node/membership/change_queue.h"

#include "base/random.h"

#include <string.h>

enum { HASHES = 1024 };

static uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t state = a ^ b * UINT64_C(0xd6e8feb86659fd93);
    return sn_rng_next(&state);
}

/* A peer that this node dialled is a network of its own: it was chosen at random. */
static sn_change change_from(uint64_t tag, const sn_announcement_source *source, bool of_node) {
    uint64_t network = source->peer;
    if (!source->dialled) memcpy(&network, source->network, sizeof network);
    return (sn_change){.tag = tag,
                       .network = (uint16_t)(mixed(network, source->dialled) % HASHES),
                       .peer = (uint16_t)(mixed(source->peer, 0) % HASHES),
                       .of_node = of_node};
}

static void change_remove(sn_change_queue *q, size_t at) {
    memmove(q->changes + at, q->changes + at + 1, (--q->n - at) * sizeof *q->changes);
}

static void drop_one(sn_change_queue *q) {
    uint16_t of_network[HASHES] = {0}, of_peer[HASHES] = {0};
    size_t first = 0;
    for (size_t i = 0; i < q->n; i++) {
        of_network[q->changes[i].network]++;
        of_peer[q->changes[i].peer]++;
    }
    for (size_t i = 1; i < q->n; i++) {
        const sn_change *a = &q->changes[i], *b = &q->changes[first];
        bool more = of_network[a->network] != of_network[b->network] ? of_network[a->network] > of_network[b->network]
                                                                     : of_peer[a->peer] > of_peer[b->peer];
        if (more) first = i;
    }
    change_remove(q, first);
}

void sn_change_queue_add(sn_change_queue *q, uint64_t tag, const sn_announcement_source *source, bool of_node) {
    for (size_t i = 0; i < q->n; i++) {
        if (q->changes[i].tag != tag) continue;
        q->changes[i].of_node |= of_node; /* the newest announcement of this node will be sent */
        return;
    }
    if (q->n == SN_CHANGE_QUEUE_MAX) drop_one(q);
    q->changes[q->n++] = change_from(tag, source, of_node);
}

/* Whether a goes before b, which is older. Every other turn is fair: there the random number gives networks and
 * connections a random order. The other turns spread what is news soonest, which is best while there is no flood. */
static bool goes_before(const sn_change *a, const sn_change *b, uint64_t random) {
    if (random % 2) return a->of_node >= b->of_node;
    uint64_t x = mixed(random, a->network), y = mixed(random, b->network);
    if (x == y) x = mixed(random, HASHES + a->peer), y = mixed(random, HASHES + b->peer);
    if (x != y) return x < y;
    return a->of_node >= b->of_node;
}

bool sn_change_queue_take(sn_change_queue *q, uint64_t random, uint64_t *tag) {
    size_t first = 0;
    for (size_t i = 1; i < q->n; i++)
        if (goes_before(&q->changes[i], &q->changes[first], random)) first = i;
    if (!q->n) return false;
    *tag = q->changes[first].tag;
    change_remove(q, first);
    return true;
}

bool sn_change_queue_has_of_node(const sn_change_queue *q) {
    for (size_t i = 0; i < q->n; i++)
        if (q->changes[i].of_node) return true;
    return false;
}
