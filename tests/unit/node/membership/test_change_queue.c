/* Whose announcements are passed on first (node/membership/change_queue.h). */
#include "base/random.h"
#include "node/membership/change_queue.h"

#include <criterion/criterion.h>

enum { MINE = 10, HONEST_TAG = 1000000 };

static sn_announcement_source dialler(uint8_t network, uint64_t peer) {
    return (sn_announcement_source){.peer = peer, .network = {10, network}};
}

static bool is_honest(uint64_t tag) { return tag >= HONEST_TAG; }

/* Adds the announcements of two honest connections of different networks. */
static void add_honest(sn_change_queue *q) {
    for (uint64_t i = 0; i < MINE; i++) {
        const sn_announcement_source one = dialler(2, 7), other = {.peer = 8, .dialled = true};
        sn_change_queue_add(q, HONEST_TAG + i, i % 2 ? &one : &other, false);
    }
}

static int honest_of(sn_change_queue *q, int n_taken) {
    uint64_t seed = 1, tag;
    int honest = 0;
    for (int i = 0; i < n_taken && sn_change_queue_take(q, sn_rng_next(&seed), &tag); i++) honest += is_honest(tag);
    return honest;
}

Test(change_queue, a_connection_that_brings_much_does_not_delay_what_others_bring) {
    sn_change_queue q = {0};
    const sn_announcement_source flood = dialler(1, 1);
    add_honest(&q);
    for (uint64_t tag = 1; tag < 400; tag++) sn_change_queue_add(&q, tag, &flood, true);
    cr_expect_eq(honest_of(&q, 4 * MINE), MINE);
}

Test(change_queue, many_connections_of_one_network_have_one_share) {
    sn_change_queue q = {0};
    add_honest(&q);
    for (uint64_t tag = 1; tag < 400; tag++) {
        const sn_announcement_source flood = dialler(1, 100 + tag);
        sn_change_queue_add(&q, tag, &flood, true);
    }
    cr_expect_eq(honest_of(&q, 4 * MINE), MINE);
}

Test(change_queue, a_full_queue_drops_what_the_one_brought_who_brought_most) {
    sn_change_queue q = {0};
    add_honest(&q);
    for (uint64_t tag = 1; tag < 5000; tag++) { /* of one network, and of many connections of another */
        const sn_announcement_source flood = dialler(tag % 2 ? 1 : 3, 100 + tag % 50);
        sn_change_queue_add(&q, tag, &flood, true);
    }
    cr_expect_eq(q.n, SN_CHANGE_QUEUE_MAX);
    cr_expect_eq(honest_of(&q, SN_CHANGE_QUEUE_MAX), MINE);
}

Test(change_queue, of_one_connection_changes_of_nodes_come_first_and_newer_ones_before_older_ones) {
    sn_change_queue q = {0};
    const sn_announcement_source source = dialler(1, 1);
    uint64_t tag = 0;
    for (uint64_t i = 1; i <= 4; i++) sn_change_queue_add(&q, i, &source, i <= 2);
    sn_change_queue_add(&q, 3, &source, true); /* it has changed again */
    static const uint64_t order[] = {3, 2, 1, 4};
    for (int i = 0; i < 4; i++) cr_expect(sn_change_queue_take(&q, 5, &tag) && tag == order[i], "%d", (int)tag);
    cr_expect_not(sn_change_queue_take(&q, 5, &tag));
}
