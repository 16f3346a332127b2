/* A network that drops, duplicates and reorders messages, while nodes drain, fail and restart: the bits stay the
 * same. A seed decides what happens to each message. */
#include "base/clock.h"
#include "client/chain/chain.h"
#include "tests/support/require.h"
#include "tests/support/chain_fixture.h"

#include <criterion/criterion.h>
#include <string.h>

typedef struct fault_counts {
    uint32_t x;
    int moved, lost, doubled, late;
} fault_counts;

static bool is_kv_transfer(sn_msg_kind kind) { return kind == SN_MSG_KV_PUT || kind == SN_MSG_KV_PUT_REPLY; }

/* Runs under the hub's lock. KV chunks and their replies are lost, duplicated and reordered; steps and their replies
 * are duplicated. */
static sn_hub_action inject_faults(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    fault_counts *w = ctx;
    bool moves = is_kv_transfer(msg->kind);
    (void)from, (void)to;
    if (!moves && msg->kind != SN_MSG_STEP && msg->kind != SN_MSG_STEP_REPLY) return SN_DELIVER;
    w->x = w->x * 1664525 + 1013904223;
    uint32_t draw = w->x >> 16 & 15;
    w->moved += moves;
    if (moves && draw == 0) return w->lost++, SN_DROP;
    if (moves && draw < 4) return w->late++, SN_REORDER;
    if (draw < 8) return w->doubled++, SN_DUPLICATE;
    return SN_DELIVER;
}

static fault_counts expect_same_bits(uint32_t seed, bool push) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .drain_timeout_s = 10});
    fault_counts bad = {.x = seed};
    for (int i = 0; i < 3; i++) cluster_add(w->cluster, 0, 2), cluster_add(w->cluster, 2, 4);
    sn_hub_set_filter(cluster_hub(w->cluster), inject_faults, &bad);
    chain_fixture r;
    chain_fixture_open(&r, w, (sn_chain_options){.routing.push = push, .kv.replica = true});
    chain_fixture_steps(&r, 0, 60, 9);
    for (int leaves = 0; leaves < 2; leaves++) { /* a node in use, one that holds a replica, or neither */
        cluster_drain(w->cluster, leaves);
        for (int i = 0; i < 12; i++) {
            chain_fixture_steps(&r, 60 + i, 61 + i, 1);
            sn_sleep_us(2000);
        }
        chain_fixture_steps(&r, 50, 60, 1);
    }
    chain_fixture_steps(&r, 60, TESTBED_TOKENS, 7);
    chain_fixture_close(&r);
    sn_hub_set_filter(cluster_hub(w->cluster), NULL, NULL);
    testbed_free(&w);
    return bad;
}

Test(network_faults, lost_duplicated_and_reordered_kv_chunks_change_no_bit) {
    fault_counts all = {0};
    for (uint32_t seed = 1; seed <= 4; seed++) {
        fault_counts bad = expect_same_bits(seed, seed % 2);
        all.moved += bad.moved, all.lost += bad.lost, all.doubled += bad.doubled, all.late += bad.late;
    }
    cr_expect(all.moved > 8 && all.doubled && all.lost + all.late, "too few faults: of %d messages %d lost, %d late",
              all.moved, all.lost, all.late);
}

Test(network_faults, a_restarted_node_gets_its_sessions_replayed) {
    for (int push = 0; push < 2; push++) {
        testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
        cluster_add(w->cluster, 0, 2);
        cluster_add(w->cluster, 2, 4);
        chain_fixture r;
        chain_fixture_open(&r, w, (sn_chain_options){.routing.push = push});
        chain_fixture_steps(&r, 0, 50, 20);
        for (int node = 0; node < 2; node++) {
            cluster_restart(w->cluster, node);
            chain_fixture_steps(&r, 50 + 10 * node, 60 + 10 * node, 3);
        }
        cr_expect_geq(sn_chain_replayed(r.chain), 50);
        chain_fixture_close(&r);
        testbed_free(&w);
    }
}
