/* Long inputs flow down the chain in pieces, several at work at once: the same bits, whatever fails on the way. */
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include <criterion/criterion.h>
#include <string.h>

enum { TOKENS = 400 };

/* -- a transport that counts the steps that are under way -- */

typedef struct counting {
    sn_transport base;
    sn_transport *inner;
    int under_way, most;
    sn_peer first; /* whom the first step went to */
    int to_others, spoil_at; /* the step to others of this number (1: the first) gets a number that its node refuses; 0: none */
} counting;
static counting *count_of(sn_transport *t) { return (counting *)t; }

static sn_status count_listen(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    return sn_transport_listen(count_of(t)->inner, address, bound, err);
}
static sn_status count_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                            sn_err *err) {
    return sn_transport_dial(count_of(t)->inner, address, key, out, err);
}
static sn_status count_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    counting *c = count_of(t);
    if ((*msg)->kind == SN_MSG_STEP) {
        if (!c->first) c->first = peer;
        if (peer != c->first && ++c->to_others == c->spoil_at) (*msg)->step.step += 1000;
        if (++c->under_way > c->most) c->most = c->under_way;
    }
    return sn_transport_send(c->inner, peer, msg, err);
}
static sn_status count_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    counting *c = count_of(t);
    sn_status status = sn_transport_recv(c->inner, deadline_us, out, err);
    if (!status && out->msg && (out->msg->kind == SN_MSG_RESULT || out->msg->kind == SN_MSG_ERROR)) c->under_way--;
    return status;
}
static void count_hang_up(sn_transport *t, sn_peer peer) { sn_transport_hang_up(count_of(t)->inner, peer); }
static void count_wake(sn_transport *t) { sn_transport_wake(count_of(t)->inner); }
static void count_free(sn_transport *t) { sn_transport_free(&count_of(t)->inner); }
static const sn_transport_ops count_ops = {count_listen,  count_dial, count_send, count_recv,
                                           count_hang_up, count_wake, count_free};

/* -- a chain over nodes, and what it should give -- */

typedef struct run {
    world *w;
    counting counting;
    sn_link *link;
    sn_model *model;
    sn_device *device;
    sn_chain *chain;
    float *rows, *expected, *out; /* (TOKENS, n_embd) */
    sn_err err;
} run;

static void make_rows(run *r) {
    size_t n = (size_t)TOKENS * (size_t)r->w->n_embd;
    uint32_t chance = 4711;
    NEED(sn_calloc(&r->rows, n, sizeof(float), &err));
    NEED(sn_calloc(&r->out, n, sizeof(float), &err));
    for (size_t i = 0; i < n; i++) {
        chance = chance * 1664525u + 1013904223u;
        r->rows[i] = (float)(chance >> 8) / (float)(1 << 23) - 1;
    }
    r->expected = world_compute(r->w, 0, 4, TOKENS, r->rows);
}

static void begin(run *r) {
    *r = (run){.w = world_new(&(cluster_options){.kv_memory = 4096})};
    make_rows(r);
}

static void open_chain(run *r, sn_chain_options options, int n_nodes) {
    sn_identity identity;
    sn_seed seeds[8];
    for (int i = 0; i < n_nodes; i++) {
        snprintf(seeds[i].address, sizeof seeds[i].address, "%s", sn_node_address(cluster_node(r->w->cluster, i)));
        memcpy(seeds[i].curve_key, sn_node_curve_key(cluster_node(r->w->cluster, i)), SN_KEY_SIZE);
    }
    r->counting = (counting){.base.ops = &count_ops, .inner = cluster_transport(r->w->cluster, &identity)};
    sn_transport *t = &r->counting.base;
    sn_device_options device_options = {.threads = 1};
    NEED(sn_link_over(&t, seeds, (size_t)n_nodes, &r->link, &err));
    NEED(sn_model_open(r->w->path, &r->model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &device_options, &r->device, &err));
    options.link = r->link;
    options.device = r->device;
    options.kv_memory = 1 << 20;
    if (!options.timeout_ms) options.timeout_ms = 10000;
    cr_assert_eq(sn_chain_open(r->model, &options, &r->chain, &r->err), SN_OK, "%s", r->err.text);
}

static sn_status step(run *r, int position, int n) {
    size_t at = (size_t)position * (size_t)r->w->n_embd;
    return sn_chain_step(r->chain, position, n, r->rows + at, r->out + at, &r->err);
}

static bool right(const run *r, int position, int n) {
    size_t row = (size_t)r->w->n_embd, at = (size_t)position * row;
    return !memcmp(r->out + at, r->expected + at, (size_t)n * row * sizeof(float));
}

static void end(run *r) {
    sn_chain_close(&r->chain);
    sn_device_close(&r->device);
    sn_model_close(&r->model);
    sn_link_close(&r->link);
    free(r->rows), free(r->expected), free(r->out);
    world_free(&r->w);
}

/* -- nothing fails -- */

static int expect_same(sn_chain_options options) {
    run r;
    begin(&r);
    cluster_add(r.w->cluster, 0, 2);
    cluster_add(r.w->cluster, 2, 3);
    cluster_add(r.w->cluster, 3, 4);
    open_chain(&r, options, 3);
    cr_expect_eq(step(&r, 0, TOKENS), SN_OK, "%s", r.err.text);
    cr_expect(right(&r, 0, TOKENS), "other bits");
    memset(r.out, 0, sizeof(float));
    cr_expect_eq(step(&r, 77, 300), SN_OK, "%s", r.err.text); /* a rewind */
    cr_expect(right(&r, 77, 300), "other bits after a rewind");
    cr_expect_eq(step(&r, 377, 1), SN_OK, "%s", r.err.text);
    cr_expect(right(&r, 377, 1), "other bits of a token behind it");
    cr_expect_eq(sn_chain_length(r.chain), 378);
    /* A pushed chain does not know the hash in the middle of a piece: what went in since the piece's beginning goes in again. */
    cr_expect_eq(sn_chain_failovers(r.chain), 0);
    int most = r.counting.most;
    end(&r);
    return most;
}

Test(ahead, pieces_flow_by_the_client_with_the_same_bits) { cr_expect_gt(expect_same((sn_chain_options){0}), 3); }
Test(ahead, pieces_flow_from_node_to_node_with_the_same_bits) {
    cr_expect_gt(expect_same((sn_chain_options){.push = true}), 3);
}
Test(ahead, pieces_flow_through_local_blocks_with_the_same_bits) {
    cr_expect_gt(expect_same((sn_chain_options){.local_first = 2, .local_end = 3}), 2);
}
Test(ahead, one_after_the_other_when_so_asked) {
    cr_expect_eq(expect_same((sn_chain_options){.steps_ahead = -1}), 1);
    cr_expect_leq(expect_same((sn_chain_options){.steps_ahead = 1, .push = true}), 2);
}

Test(ahead, in_place) {
    run r;
    begin(&r);
    cluster_add(r.w->cluster, 0, 2);
    cluster_add(r.w->cluster, 2, 4);
    open_chain(&r, (sn_chain_options){0}, 2);
    memcpy(r.out, r.rows, (size_t)TOKENS * (size_t)r.w->n_embd * sizeof *r.out);
    cr_expect_eq(sn_chain_step(r.chain, 0, TOKENS, r.out, r.out, &r.err), SN_OK, "%s", r.err.text);
    cr_expect(right(&r, 0, TOKENS), "other bits");
    end(&r);
}

/* -- a node is lost with pieces in it -- */

static void expect_survival(int victim, int at_step, bool push) {
    static const int cuts[][2] = {{0, 2}, {2, 4}, {0, 2}, {2, 3}, {3, 4}};
    run r;
    begin(&r);
    for (int i = 0; i < 5; i++) cluster_add(r.w->cluster, cuts[i][0], cuts[i][1]);
    open_chain(&r, (sn_chain_options){.push = push}, 5);
    sn_hop_report hops[2];
    cr_assert_eq(sn_chain_hops(r.chain, hops, 2), 2);
    int node = hops[victim].node[strlen("node")] - '0'; /* "node2@..." */
    cluster_cut_off_at_step(r.w->cluster, node, at_step);
    cr_expect_eq(step(&r, 0, TOKENS), SN_OK, "%s", r.err.text);
    cr_expect(right(&r, 0, TOKENS), "other bits: victim %d, step %d, push %d", victim, at_step, push);
    cr_expect_eq(sn_chain_failovers(r.chain), 1, "%d nodes were replaced", (int)sn_chain_failovers(r.chain));
    cr_expect_eq(step(&r, 399, 1), SN_OK, "%s", r.err.text);
    cr_expect(right(&r, 399, 1));
    end(&r);
}

Test(ahead, survives_the_loss_of_the_first_node_with_pieces_in_it) {
    expect_survival(0, 1, false);
    expect_survival(0, 4, false);
    expect_survival(0, 3, true);
}
Test(ahead, survives_the_loss_of_the_last_node_with_pieces_in_it) {
    expect_survival(1, 1, false);
    expect_survival(1, 4, false);
    expect_survival(1, 3, true);
}

/* What other nodes are at work on then is taken in, so that they can be rewound. */
Test(ahead, a_node_that_refuses_a_piece_costs_its_own_session_at_most) {
    run r;
    begin(&r);
    cluster_add(r.w->cluster, 0, 2);
    cluster_add(r.w->cluster, 2, 3);
    cluster_add(r.w->cluster, 3, 4);
    open_chain(&r, (sn_chain_options){0}, 3);
    r.counting.spoil_at = 3;
    cr_expect_eq(step(&r, 0, TOKENS), SN_OK, "%s", r.err.text);
    cr_expect(right(&r, 0, TOKENS), "other bits");
    cr_expect_leq(sn_chain_failovers(r.chain), 1, "%d sessions were begun again", (int)sn_chain_failovers(r.chain));
    end(&r);
}

Test(ahead, messages_that_come_twice_change_nothing) {
    for (int push = 0; push < 2; push++) {
        run r;
        begin(&r);
        cluster_add(r.w->cluster, 0, 2);
        cluster_add(r.w->cluster, 2, 4);
        open_chain(&r, (sn_chain_options){.push = push}, 2);
        cluster_double(r.w->cluster, 0);
        cluster_double(r.w->cluster, 1);
        cr_expect_eq(step(&r, 0, TOKENS), SN_OK, "%s", r.err.text);
        cr_expect(right(&r, 0, TOKENS), "other bits");
        end(&r);
    }
}

Test(ahead, says_which_blocks_are_missing_when_nobody_can_take_over) {
    run r;
    begin(&r);
    cluster_add(r.w->cluster, 0, 2);
    cluster_add(r.w->cluster, 2, 4);
    open_chain(&r, (sn_chain_options){0}, 2);
    cr_assert_eq(step(&r, 0, 200), SN_OK, "%s", r.err.text);
    cluster_cut_off_at_step(r.w->cluster, 1, 2);
    cr_expect_eq(step(&r, 200, 200), SN_RETRY);
    cr_expect(strstr(r.err.text, "2:4"), "%s", r.err.text);
    cr_expect_eq(sn_chain_length(r.chain), 200);
    end(&r);
}
