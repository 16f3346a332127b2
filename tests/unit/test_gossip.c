/* How announcements go round: many cores without blocks behind them, over the in-memory transport, in time that the test makes. */
#include "node/core_private.h"
#include "tests/support/need.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = 80, N_BLOCKS = 8, STEP_US = 50000, SECOND = 1000000 };

typedef struct member {
    sn_identity identity;
    sn_transport *transport;
    sn_core *core;
    int64_t due_us, skew_ms;
    bool gone;
} member;

typedef struct crowd {
    sn_hub *hub;
    sn_hparams hp;
    sn_hash block_hash[N_BLOCKS];
    member nodes[NODES_MAX];
    int n, cut; /* cut: nodes below it and the others do not reach each other; 0: all do */
    size_t bytes_per_s;
    int64_t now_us, unix_ms;
} crowd;

static bool submit(void *ctx, sn_job *job) {
    (void)ctx, (void)job;
    return false;
}
static sn_engine_figures read_figures(void *ctx) {
    (void)ctx;
    return (sn_engine_figures){.decode_us = 1000};
}

static int number_of(const char *address) { return atoi(address + strlen("mem://")); }

static sn_fate deliver(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    const crowd *c = ctx;
    (void)msg;
    return c->cut && (number_of(from) < c->cut) != (number_of(to) < c->cut) ? SN_DROP : SN_DELIVER;
}

static crowd *crowd_new(size_t bytes_per_s) {
    crowd *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->hp.n_blocks = N_BLOCKS;
    c->hp.n_embd = 64;
    c->bytes_per_s = bytes_per_s;
    c->now_us = 1000 * (int64_t)SECOND;
    c->unix_ms = 1800000000000;
    NEED(sn_hub_new(&c->hub, &err));
    sn_hub_set_filter(c->hub, deliver, c);
    return c;
}

static void crowd_free(crowd *c) {
    for (int i = 0; i < c->n; i++) {
        sn_core_free(&c->nodes[i].core);
        sn_transport_free(&c->nodes[i].transport);
    }
    sn_hub_free(&c->hub);
    free(c);
}

/* Adds a node that joins `joins` (-1: nobody). */
static int add(crowd *c, int joins) {
    member *m = &c->nodes[c->n];
    char address[32], bound[SN_ADDRESS_MAX + 1];
    snprintf(address, sizeof address, "mem://%d", c->n);
    NEED(sn_identity_new(&m->identity, &err));
    NEED(sn_transport_memory_new(c->hub, &m->identity, &m->transport, &err));
    NEED(sn_transport_listen(m->transport, address, bound, &err));
    const sn_core_setup setup = {
        .transport = m->transport,
        .identity = &m->identity,
        .address = address,
        .name = "",
        .span = {.hp = &c->hp, .first = c->n % N_BLOCKS, .end = c->n % N_BLOCKS + 1, .block_hash = c->block_hash},
        .sessions_max = 1,
        .gossip_bytes_per_s = c->bytes_per_s,
        .submit = submit,
        .read = read_figures};
    NEED(sn_core_new(&setup, c->now_us, &m->core, &err));
    m->core->gossip.seed = (uint64_t)c->n + 1; /* the same run every time, but for the order of ids */
    if (joins >= 0) {
        char to[32];
        snprintf(to, sizeof to, "mem://%d", joins);
        sn_core_join(m->core, to, c->nodes[joins].identity.curve_key);
    }
    return c->n++;
}

static bool hear(crowd *c, member *m) {
    sn_event event;
    bool any = false;
    for (;;) {
        NEED(sn_transport_recv(m->transport, 0, &event, &err));
        if (!event.peer) return any;
        any = true;
        if (m->gone) sn_msg_free(&event.msg);
        else sn_core_handle(m->core, &event, c->now_us, c->unix_ms + m->skew_ms);
    }
}

static void run(crowd *c, double seconds) {
    for (int64_t until = c->now_us + (int64_t)(seconds * SECOND); c->now_us < until;) {
        c->now_us += STEP_US;
        c->unix_ms += STEP_US / 1000;
        for (int i = 0; i < c->n; i++) {
            member *m = &c->nodes[i];
            bool heard = hear(c, m);
            if (!m->gone && (heard || c->now_us >= m->due_us))
                m->due_us = sn_core_tick(m->core, c->now_us, c->unix_ms + m->skew_ms);
        }
    }
}

static size_t known(const crowd *c, int i) { return sn_directory_count(c->nodes[i].core->directory); }

static size_t least_known(const crowd *c) {
    size_t least = SIZE_MAX;
    for (int i = 0; i < c->n; i++)
        if (!c->nodes[i].gone && known(c, i) < least) least = known(c, i);
    return least;
}

/* Ends it without a word. */
static void kill_node(crowd *c, int i) { c->nodes[i].gone = true; }

Test(gossip, everybody_learns_of_everybody_and_goes_on_knowing, .timeout = 60) {
    crowd *c = crowd_new(0);
    add(c, -1);
    for (int i = 1; i < 40; i++) add(c, i % 7 ? 0 : i - 1); /* some know another door */
    run(c, 4);
    cr_expect_gt(least_known(c), 20, "%zu after four seconds", least_known(c));
    run(c, 30);
    for (int i = 0; i < 8; i++) {
        run(c, 15);
        cr_expect_eq(least_known(c), 40, "%zu later", least_known(c));
    }
    add(c, 3);
    run(c, 30);
    cr_expect_eq(least_known(c), 41);
    for (int i = 0; i < c->n; i++) cr_expect_gt(c->nodes[i].core->distance.n_known, 5);
    crowd_free(c);
}

Test(gossip, a_last_word_goes_everywhere_and_a_sudden_death_within_the_life_of_an_announcement, .timeout = 60) {
    crowd *c = crowd_new(0);
    add(c, -1);
    for (int i = 1; i < 30; i++) add(c, 0);
    run(c, 30);
    sn_core_leave(c->nodes[7].core, c->unix_ms);
    run(c, 0.1);
    kill_node(c, 7);
    run(c, 30);
    for (int i = 0; i < c->n; i++)
        if (i != 7) cr_expect_eq(known(c, i), 29, "node %d still knows %zu", i, known(c, i));
    kill_node(c, 8);
    run(c, 76); /* what it said last lives for 60 s, and is swept with the next announcement */
    cr_expect_eq(known(c, 0), 28);
    cr_expect_eq(least_known(c), 28);
    crowd_free(c);
}

/* The node that all had joined is dead when the halves find each other again. */
static void falls_apart_and_heals(bool door_dies) {
    crowd *c = crowd_new(0);
    add(c, -1);
    for (int i = 1; i < 24; i++) add(c, 0);
    run(c, 40);
    cr_expect_eq(least_known(c), 24);
    c->cut = 12;
    run(c, 120);
    size_t alive = door_dies ? 23 : 24;
    for (int i = 0; i < 24; i++) cr_expect_eq(known(c, i), 12, "the parts do not forget each other");
    if (door_dies) kill_node(c, 0);
    c->cut = 0;
    run(c, 100);
    cr_expect_eq(least_known(c), alive, "%zu of %zu are known again", least_known(c), alive);
    crowd_free(c);
}

Test(gossip, a_swarm_that_fell_apart_heals, .timeout = 60) { falls_apart_and_heals(false); }
Test(gossip, a_swarm_that_fell_apart_heals_without_the_node_that_all_had_joined, .timeout = 60) {
    falls_apart_and_heals(true);
}

/* With 2 KiB a second a node cannot hear of all 80 in the life of an announcement: it knows a part, and spends no more. */
Test(gossip, spends_no_more_than_its_allowance_however_many_there_are, .timeout = 60) {
    crowd *c = crowd_new(2048);
    uint64_t before[NODES_MAX];
    add(c, -1);
    for (int i = 1; i < NODES_MAX; i++) add(c, i / 2);
    run(c, 30);
    for (int i = 0; i < c->n; i++) before[i] = c->nodes[i].core->gossip.bytes_sent;
    run(c, 60);
    for (int i = 0; i < c->n; i++) {
        uint64_t spent = c->nodes[i].core->gossip.bytes_sent - before[i];
        cr_expect_leq(spent, (60 + 6) * 2048, "node %d spent %llu bytes a second", i, (unsigned long long)spent / 60);
    }
    cr_expect_gt(least_known(c), 20, "only %zu are known", least_known(c));
    crowd_free(c);
}

Test(gossip, clocks_that_differ_by_half_a_minute_do_no_harm, .timeout = 60) {
    crowd *c = crowd_new(0);
    add(c, -1);
    for (int i = 1; i < 12; i++) {
        add(c, 0);
        c->nodes[i].skew_ms = i % 3 ? (i % 2 ? 15000 : -15000) : 0;
    }
    run(c, 30);
    for (int i = 0; i < 6; i++) {
        run(c, 15);
        cr_expect_eq(least_known(c), 12, "%zu", least_known(c));
    }
    crowd_free(c);
}

/* A client asks page by page, and for the blocks that it lacks. */
Test(gossip, answers_in_pages_and_for_blocks, .timeout = 60) {
    crowd *c = crowd_new(0);
    add(c, -1);
    for (int i = 1; i < 20; i++) add(c, 0);
    run(c, 30);
    sn_identity identity;
    sn_transport *transport = NULL;
    sn_peer peer;
    NEED(sn_identity_new(&identity, &err));
    NEED(sn_transport_memory_new(c->hub, &identity, &transport, &err));
    NEED(sn_transport_dial(transport, "mem://5", c->nodes[5].identity.curve_key, &peer, &err));
    size_t told = 0, of_block = 0;
    uint64_t from = 0, pages = 0;
    do { /* each page from the tag where the last one ended; here we ask for the lower and the upper half by hand */
        sn_msg *msg = NULL;
        sn_event event = {0};
        NEED(sn_msg_new(SN_MSG_PEERS, 1, &msg, &err));
        msg->peers.protocol = SN_PROTOCOL;
        msg->peers.from_tag = from;
        msg->peers.to_tag = from ? 0 : UINT64_MAX / 2;
        NEED(sn_transport_send(transport, peer, &msg, &err));
        run(c, 0.1);
        NEED(sn_transport_recv(transport, 0, &event, &err));
        cr_assert(event.msg && event.msg->kind == SN_MSG_PEERS_ARE);
        told += event.msg->peers_are.n_announcements;
        cr_expect_eq(event.msg->peers_are.next, 0);
        from = from ? 0 : UINT64_MAX / 2 + 1;
        sn_msg_free(&event.msg);
    } while (++pages < 2);
    cr_expect_eq(told, 20);
    sn_msg *msg = NULL;
    sn_event event = {0};
    NEED(sn_msg_new(SN_MSG_PEERS, 1, &msg, &err));
    msg->peers.protocol = SN_PROTOCOL;
    msg->peers.first_block = 2;
    msg->peers.end_block = 4;
    NEED(sn_transport_send(transport, peer, &msg, &err));
    run(c, 0.1);
    NEED(sn_transport_recv(transport, 0, &event, &err));
    of_block = event.msg->peers_are.n_announcements;
    cr_expect_eq(of_block, 6, "%zu nodes serve block 2 or 3", of_block); /* 2 3 10 11 18 19 */
    sn_msg_free(&event.msg);
    sn_transport_free(&transport);
    crowd_free(c);
}
