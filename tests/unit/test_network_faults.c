/* A network that drops, doubles and reorders, while nodes leave and die and come back: the bits stay. What happens to which message
 * is drawn from a seed. */
#include "base/clock.h"
#include "client/chain.h"
#include "tests/support/need.h"
#include "tests/support/run.h"

#include <criterion/criterion.h>
#include <string.h>

typedef struct weather {
    uint32_t x;
    int moved, lost, doubled, late;
} weather;

static bool moves_a_past(sn_msg_kind kind) {
    return kind == SN_MSG_KV_PUT || kind == SN_MSG_KV_TAKEN;
}

/* Under the hub's lock. Parts of a past and their answers get lost, doubled and out of order; steps and results are doubled. */
static sn_fate blow(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    weather *w = ctx;
    bool moves = moves_a_past(msg->kind);
    (void)from, (void)to;
    if (!moves && msg->kind != SN_MSG_STEP && msg->kind != SN_MSG_RESULT) return SN_DELIVER;
    w->x = w->x * 1664525 + 1013904223;
    uint32_t chance = w->x >> 16 & 15;
    w->moved += moves;
    if (moves && chance == 0) return w->lost++, SN_DROP;
    if (moves && chance < 4) return w->late++, SN_LATE;
    if (chance < 8) return w->doubled++, SN_DUPLICATE;
    return SN_DELIVER;
}

static weather expect_calm(uint32_t seed, bool push) {
    world *w = world_new(&(cluster_options){.kv_memory = 64, .drain_timeout_s = 10});
    weather bad = {.x = seed};
    for (int i = 0; i < 3; i++) cluster_add(w->cluster, 0, 2), cluster_add(w->cluster, 2, 4);
    sn_hub_set_filter(cluster_hub(w->cluster), blow, &bad);
    run r;
    run_open(&r, w, (sn_chain_options){.push = push, .replica = true});
    run_on(&r, 0, 60, 9);
    for (int leaves = 0; leaves < 2; leaves++) { /* whether in use, a spare or neither */
        cluster_drain(w->cluster, leaves);
        for (int i = 0; i < 12; i++) {
            run_on(&r, 60 + i, 61 + i, 1);
            sn_sleep_us(2000);
        }
        run_on(&r, 50, 60, 1);
    }
    run_on(&r, 60, WORLD_TOKENS, 7);
    run_close(&r);
    sn_hub_set_filter(cluster_hub(w->cluster), NULL, NULL);
    world_free(&w);
    return bad;
}

Test(network_faults, parts_of_a_past_lost_doubled_and_out_of_order_change_no_bit) {
    weather all = {0};
    for (uint32_t seed = 1; seed <= 4; seed++) {
        weather bad = expect_calm(seed, seed % 2);
        all.moved += bad.moved, all.lost += bad.lost, all.doubled += bad.doubled, all.late += bad.late;
    }
    cr_expect(all.moved > 8 && all.doubled && all.lost + all.late, "the weather was too good: of %d messages %d lost, %d late",
              all.moved, all.lost, all.late);
}

Test(network_faults, a_node_that_comes_back_under_its_name_is_told_everything_again) {
    for (int push = 0; push < 2; push++) {
        world *w = world_new(&(cluster_options){.kv_memory = 64});
        cluster_add(w->cluster, 0, 2);
        cluster_add(w->cluster, 2, 4);
        run r;
        run_open(&r, w, (sn_chain_options){.push = push});
        run_on(&r, 0, 50, 20);
        for (int node = 0; node < 2; node++) {
            cluster_restart(w->cluster, node);
            run_on(&r, 50 + 10 * node, 60 + 10 * node, 3);
        }
        cr_expect_geq(sn_chain_replayed(r.chain), 50);
        run_close(&r);
        world_free(&w);
    }
}
