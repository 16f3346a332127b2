/* Long inputs pass through the chain in chunks, several of them in flight: the same bits, whatever fails meanwhile. */
#include "base/clock.h"
#include "client/chain/chain_private.h" /* private: the length of chunks for any route, and the hops */
#include "tests/support/chain_fixture.h"
#include "tests/support/require.h"
#include "tests/support/node_client.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <string.h>

enum { TOKENS = 400 };

/* -- a transport that counts the steps in flight */

typedef struct counting_transport {
    sn_transport base;
    sn_transport *inner;
    int in_flight, most_in_flight;
    int most_rows;             /* of a step */
    int refused;               /* steps */
    int lose_nth;              /* the n-th step (1: the first) is lost on its way; 0: none */
    int n_replies, lose_reply; /* the same of the replies */
    int64_t reply_us, due_us;  /* each comes so much later than the one before it; 0: at once */
    sn_event held[16];
    int n_held;
    int n_steps, n_behind, rows_behind[64]; /* all steps; those behind the first reply or error after the lost one */
    bool lost;
    sn_peer first; /* receiver of the first step */
    int to_others,
        corrupt_nth; /* the n-th step to other nodes (1: the first) gets a step number that the node refuses; 0: none */
} counting_transport;
static counting_transport *count_of(sn_transport *t) { return (counting_transport *)t; }

static sn_status count_listen(sn_transport *t, const char *address, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    return sn_transport_listen(count_of(t)->inner, address, bound, err);
}
static sn_status count_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                            sn_err *err) {
    return sn_transport_dial(count_of(t)->inner, address, key, out, err);
}
static sn_status count_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    counting_transport *c = count_of(t);
    if ((*msg)->kind == SN_MSG_STEP) {
        if (!c->first) c->first = peer;
        if ((int)(*msg)->tensor.shape[0] > c->most_rows) c->most_rows = (int)(*msg)->tensor.shape[0];
        if (peer != c->first && ++c->to_others == c->corrupt_nth) (*msg)->step.step += 1000;
        if (++c->in_flight > c->most_in_flight) c->most_in_flight = c->in_flight;
        if (c->lost && c->n_behind < 64) c->rows_behind[c->n_behind++] = (int)(*msg)->tensor.shape[0];
        if (++c->n_steps == c->lose_nth) {
            sn_msg_free(msg);
            return SN_OK;
        }
    }
    return sn_transport_send(c->inner, peer, msg, err);
}
/* Receives what has come, but holds replies to steps until they are due. */
static sn_status count_take(counting_transport *c, int64_t deadline_us, sn_event *out, sn_err *err) {
    if (c->n_held && sn_now_us() >= c->due_us) {
        *out = c->held[0];
        memmove(c->held, c->held + 1, (size_t)--c->n_held * sizeof *c->held);
        c->due_us += c->reply_us;
        return SN_OK;
    }
    if (c->n_held && c->due_us < deadline_us) deadline_us = c->due_us;
    sn_status status = sn_transport_recv(c->inner, deadline_us, out, err);
    if (status || !c->reply_us || !out->msg || out->msg->kind != SN_MSG_STEP_REPLY) return status;
    if (!c->n_held) c->due_us = sn_now_us() + c->reply_us;
    c->held[c->n_held++] = *out;
    *out = (sn_event){0};
    return SN_OK;
}
static sn_status count_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    counting_transport *c = count_of(t);
    sn_status status = count_take(c, deadline_us, out, err);
    if (!status && out->msg && out->msg->kind == SN_MSG_STEP_REPLY && ++c->n_replies == c->lose_reply) {
        sn_msg_free(&out->msg);
        *out = (sn_event){0};
    }
    if (!status && out->msg && (out->msg->kind == SN_MSG_STEP_REPLY || out->msg->kind == SN_MSG_ERROR)) c->in_flight--;
    if (!status && out->msg && out->msg->kind == SN_MSG_ERROR) c->refused++;
    if (!status && out->msg && out->msg->kind == SN_MSG_ERROR && c->lose_nth && c->n_steps >= c->lose_nth)
        c->lost = true;
    return status;
}
static void count_hang_up(sn_transport *t, sn_peer peer) { sn_transport_hang_up(count_of(t)->inner, peer); }
static void count_wake(sn_transport *t) { sn_transport_wake(count_of(t)->inner); }
static void count_free(sn_transport *t) { sn_transport_free(&count_of(t)->inner); }
static const sn_transport_ops count_ops = {count_listen, count_dial, count_send, count_recv, count_hang_up, count_wake,
                                           count_free,   NULL,       NULL,       NULL,       NULL};

/* -- a chain over nodes, and its expected output */

typedef struct fixture {
    testbed *w;
    counting_transport counting_transport;
    sn_link *link;
    sn_model *model;
    sn_device *device;
    sn_chain *chain;
    float *rows, *expected, *out; /* (tokens, n_embd) */
    sn_err err;
} fixture;

static void fixture_make_rows(fixture *r, int tokens) {
    size_t n = (size_t)tokens * (size_t)r->w->n_embd;
    uint32_t random = 4711;
    REQUIRE(sn_calloc(&r->rows, n, sizeof(float), &err));
    REQUIRE(sn_calloc(&r->out, n, sizeof(float), &err));
    for (size_t i = 0; i < n; i++) {
        random = random * 1664525u + 1013904223u;
        r->rows[i] = (float)(random >> 8) / (float)(1 << 23) - 1;
    }
    r->expected = testbed_compute(r->w, 0, r->w->n_blocks, tokens, r->rows);
}

static void fixture_begin(fixture *r) {
    *r = (fixture){.w = testbed_new(&(cluster_options){.kv_memory = 4096})};
    fixture_make_rows(r, TOKENS);
}

static void fixture_open_chain(fixture *r, sn_chain_options options, int n_nodes) {
    sn_identity identity;
    sn_seed seeds[8];
    for (int i = 0; i < n_nodes; i++) {
        snprintf(seeds[i].address, sizeof seeds[i].address, "%s", sn_node_address(cluster_node(r->w->cluster, i)));
        memcpy(seeds[i].curve_key, sn_node_curve_key(cluster_node(r->w->cluster, i)), SN_KEY_SIZE);
    }
    r->counting_transport =
        (counting_transport){.base.ops = &count_ops, .inner = cluster_transport(r->w->cluster, &identity)};
    sn_transport *t = &r->counting_transport.base;
    t->dials_names = r->counting_transport.inner->dials_names;
    sn_device_options device_options = {.threads = 1};
    REQUIRE(sn_link_open_transport(&t, seeds, (size_t)n_nodes, &r->link, &err));
    REQUIRE(sn_model_open(r->w->path, &r->model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &device_options, &r->device, &err));
    options.link = r->link;
    options.local.device = r->device;
    options.local.kv_memory = 1 << 20;
    chain_default_limits(&options);
    cr_assert_eq(sn_chain_open(r->model, &options, &r->chain, &r->err), SN_OK, "%s", r->err.text);
}

static sn_status fixture_step(fixture *r, int position, int n) {
    size_t at = (size_t)position * (size_t)r->w->n_embd;
    return sn_chain_step(r->chain, position, n, r->rows + at, r->out + at, &r->err);
}

static bool output_is_right(const fixture *r, int position, int n) {
    size_t row = (size_t)r->w->n_embd, at = (size_t)position * row;
    return !memcmp(r->out + at, r->expected + at, (size_t)n * row * sizeof(float));
}

static void fixture_end(fixture *r) {
    sn_chain_close(&r->chain);
    sn_device_close(&r->device);
    sn_model_close(&r->model);
    sn_link_close(&r->link);
    free(r->rows), free(r->expected), free(r->out);
    testbed_free(&r->w);
}

/* -- without failures */

static int expect_same(sn_chain_options options) {
    fixture r;
    fixture_begin(&r);
    cluster_add(r.w->cluster, 0, 2);
    cluster_add(r.w->cluster, 2, 3);
    cluster_add(r.w->cluster, 3, 4);
    fixture_open_chain(&r, options, 3);
    cr_expect_eq(fixture_step(&r, 0, TOKENS), SN_OK, "%s", r.err.text);
    cr_expect(output_is_right(&r, 0, TOKENS), "other bits");
    memset(r.out, 0, sizeof(float));
    cr_expect_eq(fixture_step(&r, 77, 300), SN_OK, "%s", r.err.text); /* a rewind */
    cr_expect(output_is_right(&r, 77, 300), "bits differ after a rewind");
    cr_expect_eq(fixture_step(&r, 377, 1), SN_OK, "%s", r.err.text);
    cr_expect(output_is_right(&r, 377, 1), "bits of the next token differ");
    cr_expect_eq(sn_chain_length(r.chain), 378);
    /* A pushed chain does not know the timeline hash within a chunk: the tokens since the chunk's beginning are sent
     * again. */
    cr_expect_eq(sn_chain_failovers(r.chain), 0);
    int most_in_flight = r.counting_transport.most_in_flight;
    fixture_end(&r);
    return most_in_flight;
}

Test(prefill, same_bits_through_the_client) { cr_expect_gt(expect_same((sn_chain_options){0}), 3); }
Test(prefill, same_bits_with_pushing_nodes) { cr_expect_gt(expect_same((sn_chain_options){.routing.push = true}), 3); }
Test(prefill, same_bits_with_local_blocks) {
    cr_expect_gt(expect_same((sn_chain_options){.local.first = 2, .local.end = 3}), 2);
}
Test(prefill, depth_limits_the_steps_in_flight) {
    cr_expect_eq(expect_same((sn_chain_options){.limits = {.timeout_ms = 10000}}), 1);
    cr_expect_leq(
        expect_same((sn_chain_options){.limits = {.timeout_ms = 10000, .prefill_depth = 1}, .routing.push = true}), 2);
}

Test(prefill, works_in_place) {
    fixture r;
    fixture_begin(&r);
    cluster_add(r.w->cluster, 0, 2);
    cluster_add(r.w->cluster, 2, 4);
    fixture_open_chain(&r, (sn_chain_options){0}, 2);
    memcpy(r.out, r.rows, (size_t)TOKENS * (size_t)r.w->n_embd * sizeof *r.out);
    cr_expect_eq(sn_chain_step(r.chain, 0, TOKENS, r.out, r.out, &r.err), SN_OK, "%s", r.err.text);
    cr_expect(output_is_right(&r, 0, TOKENS), "other bits");
    fixture_end(&r);
}

/* -- a node is lost with chunks in flight */

static void expect_survival(int failing, int at_step, bool push) {
    static const int cuts[][2] = {{0, 2}, {2, 4}, {0, 2}, {2, 3}, {3, 4}};
    fixture r;
    fixture_begin(&r);
    for (int i = 0; i < 5; i++) cluster_add(r.w->cluster, cuts[i][0], cuts[i][1]);
    fixture_open_chain(&r, (sn_chain_options){.routing.push = push}, 5);
    sn_hop_report hops[2];
    cr_assert_eq(sn_chain_hops(r.chain, hops, 2), 2);
    int node = hops[failing].node[strlen("node")] - '0'; /* "node2@..." */
    cluster_cut_off_at_step(r.w->cluster, node, at_step);
    cr_expect_eq(fixture_step(&r, 0, TOKENS), SN_OK, "%s", r.err.text);
    cr_expect(output_is_right(&r, 0, TOKENS), "bits differ: failed node %d, step %d, push %d", failing, at_step, push);
    cr_expect_eq(sn_chain_failovers(r.chain), 1, "%d failovers", (int)sn_chain_failovers(r.chain));
    cr_expect_eq(fixture_step(&r, 399, 1), SN_OK, "%s", r.err.text);
    cr_expect(output_is_right(&r, 399, 1));
    fixture_end(&r);
}

Test(prefill, survives_losing_the_first_node_with_chunks_in_flight) {
    expect_survival(0, 1, false);
    expect_survival(0, 4, false);
    expect_survival(0, 3, true);
}
Test(prefill, survives_losing_the_last_node_with_chunks_in_flight) {
    expect_survival(1, 1, false);
    expect_survival(1, 4, false);
    expect_survival(1, 3, true);
}

/* The steps in flight at other nodes are completed, so that those nodes can be rewound. */
Test(prefill, a_refused_chunk_costs_one_session_at_most) {
    fixture r;
    fixture_begin(&r);
    cluster_add(r.w->cluster, 0, 2);
    cluster_add(r.w->cluster, 2, 3);
    cluster_add(r.w->cluster, 3, 4);
    fixture_open_chain(&r, (sn_chain_options){0}, 3);
    r.counting_transport.corrupt_nth = 3;
    cr_expect_eq(fixture_step(&r, 0, TOKENS), SN_OK, "%s", r.err.text);
    cr_expect(output_is_right(&r, 0, TOKENS), "other bits");
    cr_expect_leq(sn_chain_failovers(r.chain), 1, "%d failovers", (int)sn_chain_failovers(r.chain));
    fixture_end(&r);
}

/* The nodes have done steps behind the one whose reply was lost. */
static void expect_same_sessions(int n_nodes, bool push) {
    fixture r;
    fixture_begin(&r);
    for (int i = 0; i < n_nodes; i++) cluster_add(r.w->cluster, 4 * i / n_nodes, 4 * (i + 1) / n_nodes);
    fixture_open_chain(&r, (sn_chain_options){.routing.push = push}, n_nodes);
    r.counting_transport.lose_reply = 2;
    cr_expect_eq(fixture_step(&r, 0, TOKENS), SN_OK, "%d nodes: %s", n_nodes, r.err.text);
    cr_expect(output_is_right(&r, 0, TOKENS), "other bits");
    cr_expect_gt(r.counting_transport.most_in_flight, 2);
    cr_expect_eq(sn_chain_failovers(r.chain), 0, "%d failovers", (int)sn_chain_failovers(r.chain));
    fixture_end(&r);
}
Test(prefill, a_lost_reply_costs_no_session) {
    expect_same_sessions(1, false);
    expect_same_sessions(2, false);
    expect_same_sessions(2, true);
}

/* When the first chunk has passed; the node does those behind it. */
static void lose_connection(void *ctx, int rows) {
    fixture *r = ctx;
    if (rows > 128) return;
    sn_sleep_us(1000000);
    r->chain->hops[0].remote.peer = 1 << 20; /* no connection */
}
Test(prefill, a_lost_connection_with_chunks_in_flight_costs_no_session) {
    fixture r;
    fixture_begin(&r);
    cluster_add(r.w->cluster, 0, 4);
    fixture_open_chain(&r, (sn_chain_options){.limits = {.timeout_ms = 10000, .prefill_depth = 2}}, 1);
    sn_chain_watch(r.chain, lose_connection, &r);
    cr_expect_eq(fixture_step(&r, 0, TOKENS), SN_OK, "%s", r.err.text);
    cr_expect(output_is_right(&r, 0, TOKENS), "other bits");
    cr_expect_eq(sn_chain_failovers(r.chain), 0, "%d failovers", (int)sn_chain_failovers(r.chain));
    fixture_end(&r);
}

/* The steps in flight take longer together than a step may take. */
Test(prefill, a_chunk_has_its_time_when_those_before_it_are_done) {
    fixture r;
    fixture_begin(&r);
    cluster_add(r.w->cluster, 0, 4);
    fixture_open_chain(&r, (sn_chain_options){.limits = {.timeout_ms = 4000, .prefill_depth = 8, .max_retries = 1}}, 1);
    counting_transport *c = &r.counting_transport;
    c->reply_us = 1000000;
    cr_expect_eq(fixture_step(&r, 0, TOKENS), SN_OK, "%s", r.err.text);
    cr_expect(output_is_right(&r, 0, TOKENS), "other bits");
    cr_expect_gt(c->most_in_flight, 3);
    cr_expect_eq(c->n_steps, c->n_replies, "%d steps, %d replies", c->n_steps, c->n_replies);
    cr_expect_eq(c->n_steps, 5, "%d steps", c->n_steps);
    fixture_end(&r);
}

Test(prefill, duplicated_messages_change_nothing) {
    for (int push = 0; push < 2; push++) {
        fixture r;
        fixture_begin(&r);
        cluster_add(r.w->cluster, 0, 2);
        cluster_add(r.w->cluster, 2, 4);
        fixture_open_chain(&r, (sn_chain_options){.routing.push = push}, 2);
        cluster_duplicate_messages(r.w->cluster, 0);
        cluster_duplicate_messages(r.w->cluster, 1);
        cr_expect_eq(fixture_step(&r, 0, TOKENS), SN_OK, "%s", r.err.text);
        cr_expect(output_is_right(&r, 0, TOKENS), "other bits");
        fixture_end(&r);
    }
}

Test(prefill, a_prompt_that_goes_on_within_a_page_finds_every_whole_page_in_the_prefix_cache) {
    fixture r = {.w = testbed_new(&(cluster_options){.kv_memory = 4096, .prefix_cache_memory = 1 << 20})};
    fixture_make_rows(&r, TOKENS);
    cluster_add(r.w->cluster, 0, 4);
    fixture_open_chain(&r, (sn_chain_options){0}, 1);
    cr_assert_eq(fixture_step(&r, 0, 400), SN_OK, "%s", r.err.text);
    node_client *t = node_client_new(r.w, 0);
    cr_expect_eq(node_client_status(t).prefix_cached_tokens, 0);
    cr_assert_eq(fixture_step(&r, 50, 350), SN_OK, "%s", r.err.text); /* the same rows, after a cut */
    cr_expect(output_is_right(&r, 50, 350), "other bits");
    cr_expect_eq(node_client_status(t).prefix_cached_tokens, 384 - 64);
    node_client_free(&t);
    fixture_end(&r);
}

Test(prefill, reports_missing_blocks_when_no_node_can_take_over) {
    fixture r;
    fixture_begin(&r);
    cluster_add(r.w->cluster, 0, 2);
    cluster_add(r.w->cluster, 2, 4);
    fixture_open_chain(&r, (sn_chain_options){0}, 2);
    cr_assert_eq(fixture_step(&r, 0, 200), SN_OK, "%s", r.err.text);
    cluster_cut_off_at_step(r.w->cluster, 1, 2);
    cr_expect_eq(fixture_step(&r, 200, 200), SN_RETRY);
    cr_expect(strstr(r.err.text, "2:4"), "%s", r.err.text);
    cr_expect_eq(sn_chain_length(r.chain), 200);
    fixture_end(&r);
}

/* -- nodes that take more rows in a step, as GPUs do */

enum { LONG = 2400 };

static char *long_model(void) { return tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .n_ctx = 2 * LONG}); }

static void fixture_begin_long(fixture *r, const char *model, int batch_rows) {
    *r = (fixture){.w = testbed_new(&(cluster_options){.model = model, .kv_memory = 4096, .batch_rows = batch_rows})};
    fixture_make_rows(r, LONG);
}

/* The rows of the longest step of n tokens in a swarm of one node, whose device gains by batches of so many. */
static int longest_step(const char *model, int batch_rows, int n, bool push) {
    fixture r;
    fixture_begin_long(&r, model, batch_rows);
    cluster_add(r.w->cluster, 0, push ? 2 : 4);
    if (push) cluster_add(r.w->cluster, 2, 4);
    fixture_open_chain(&r, (sn_chain_options){.routing.push = push}, 1 + push);
    cr_expect_eq(fixture_step(&r, 0, n), SN_OK, "%s", r.err.text);
    cr_expect(output_is_right(&r, 0, n), "other bits with batches of %d rows", batch_rows);
    cr_expect_eq(sn_chain_failovers(r.chain), 0);
    int rows = r.counting_transport.most_rows;
    if (!push && batch_rows) cr_expect_eq(r.counting_transport.most_in_flight, 2 * rows > 512 ? 2 : 512 / rows + 1);
    fixture_end(&r);
    return rows;
}

Test(prefill, chunks_are_longer_where_the_nodes_take_longer_steps) {
    char *model = long_model();
    cr_expect_eq(longest_step(model, 0, LONG, false), 128);
    cr_expect_eq(longest_step(model, 1024, LONG, false), 576); /* four, of whole pages */
    cr_expect_eq(longest_step(model, 2048, LONG, true), 288);  /* for each of two nodes */
    cr_expect_eq(longest_step(model, 2048, 700, false), 160);
    tiny_model_remove(&model);
}

/* Rows of n_embd numbers in f32 over so many nodes, of which each takes 2,048 in a step. */
static int chunk_over_gpus(int n, size_t n_hops, size_t n_embd) { return sn_chunk_rows(n, n_hops, 2048, 4 * n_embd); }

Test(prefill, a_long_chunk_has_as_many_bytes_as_a_slow_link_carries) {
    cr_expect_eq(chunk_over_gpus(4096, 1, 1024), 1024);
    cr_expect_eq(chunk_over_gpus(4096, 1, 2048), 512);
    cr_expect_eq(chunk_over_gpus(4096, 1, 4096), 256);
    cr_expect_eq(chunk_over_gpus(4096, 1, 8192), 128);
    cr_expect_eq(chunk_over_gpus(4096, 1, 100000), 128, "as short as chunks for other nodes, and no shorter");
    cr_expect_eq(sn_chunk_rows(4096, 1, 512, 4 * 1024), 128);
    cr_expect_eq(sn_chunk_rows(4096, 1, 100, 4 * 1024), 100);
}

Test(prefill, a_prompt_for_many_gpus_is_cut_for_all_of_them) {
    cr_expect_eq(chunk_over_gpus(600, 5, 1024), 64, "ten chunks");
    cr_expect_eq(chunk_over_gpus(4096, 5, 1024), 204);
    cr_expect_eq(chunk_over_gpus(4096, 2, 1024), 512);
}

static int n_entered, entered[TOKENS]; /* rows of the chunks that have entered the chain */
static void note_chunk(void *ctx, int block, int position, int n, const float *rows) {
    (void)ctx, (void)position, (void)rows;
    if (!block) entered[n_entered++] = n;
}

/* Over a slow link a node begins with the first rows when they have come, and sends them on: those that TCP brings with
 * the first round trip, or some more where it computes for longer than that. */
Test(prefill, chunks_for_nodes_that_are_far_begin_small) {
    enum { FAR_PROMPT = 64, TEN_SEGMENTS = 10 * 1448 };
    for (int far = 0; far < 3; far++) {
        fixture r;
        size_t n_hops;
        fixture_begin(&r);
        for (int i = 0; i < 2; i++) cluster_add(r.w->cluster, 2 * i, 2 * i + 2);
        fixture_open_chain(&r, (sn_chain_options){0}, 2);
        sn_hop *hops = (sn_hop *)(uintptr_t)sn_chain_route_hops(r.chain, &n_hops);
        for (size_t i = 0; i < n_hops; i++) {
            hops[i].remote.answer_us = far ? 100000 : 100;
            hops[i].remote.pass_us = far == 1 && i ? 60000 : 40000; /* one that is slow is enough */
        }
        sn_chain_observe(r.chain, note_chunk, NULL);
        n_entered = 0;
        cr_assert_eq(fixture_step(&r, 0, FAR_PROMPT), SN_OK, "%s", r.err.text);
        cr_expect(output_is_right(&r, 0, FAR_PROMPT));
        const int bytes = entered[0] * r.w->n_embd * (int)sizeof(float);
        cr_expect_eq(n_entered > 1, far > 0, "%d chunks", n_entered);
        if (!far) cr_expect_eq(entered[0], FAR_PROMPT);
        if (far == 1) cr_expect(entered[0] == 8 && entered[1] == 16, "%d, %d", entered[0], entered[1]);
        if (far == 2) cr_expect(entered[0] > 8 && bytes <= TEN_SEGMENTS, "%d rows, %d bytes", entered[0], bytes);
        fixture_end(&r);
    }
}

/* A row has as many bytes as in the type in which it travels. */
Test(prefill, a_long_chunk_is_longer_where_rows_travel_in_fewer_bits) {
    char *model = tiny_model_make(&(tiny_model_options){
        .dtype = SN_F32, .n_ctx = 2 * LONG, .n_blocks = 1, .n_embd = 2048, .n_heads = 16, .n_kv_heads = 1});
    for (int bf16 = 0; bf16 < 2; bf16++) {
        fixture r;
        fixture_begin_long(&r, model, 2048);
        cluster_add(r.w->cluster, 0, 1);
        fixture_open_chain(&r, (sn_chain_options){.wire.dtype = bf16 ? SN_BF16 : SN_F32}, 1);
        cr_expect_eq(sn_chain_chunk_rows(r.chain, LONG), bf16 ? 600 : 512);
        fixture_end(&r);
    }
    tiny_model_remove(&model);
}

/* The chunk that did not pass is sent again as it was, since the node may have it; then they are as short as for a CPU.
 */
Test(prefill, long_chunks_that_fail_are_the_last_ones_of_their_chain) {
    char *model = long_model();
    fixture r;
    fixture_begin_long(&r, model, 1024);
    cluster_add(r.w->cluster, 0, 4);
    fixture_open_chain(&r, (sn_chain_options){0}, 1);
    counting_transport *c = &r.counting_transport;
    c->lose_nth = 2;
    cr_expect_eq(fixture_step(&r, 0, LONG), SN_OK, "%s", r.err.text);
    cr_expect(output_is_right(&r, 0, LONG), "other bits");
    cr_expect_eq(sn_chain_failovers(r.chain), 0, "%d failovers", (int)sn_chain_failovers(r.chain));
    cr_assert(c->n_behind > 2, "%d steps behind the lost one", c->n_behind);
    cr_expect_eq(c->rows_behind[0], 576);
    for (int i = 1; i < c->n_behind; i++) cr_expect_leq(c->rows_behind[i], 128, "step %d", i);
    c->most_rows = 0;
    cr_expect_eq(fixture_step(&r, 0, LONG), SN_OK, "%s", r.err.text);
    cr_expect_eq(c->most_rows, 128);
    fixture_end(&r);
    tiny_model_remove(&model);
}

static bool avoid_at_first(void *ctx, const uint8_t node[SN_KEY_SIZE]) {
    const uint8_t **avoided = ctx;
    return *avoided && !memcmp(*avoided, node, SN_KEY_SIZE);
}

/* Chunks that the lost node took are longer than the steps that its successor takes. */
Test(prefill, chunks_become_shorter_where_another_node_takes_over) {
    char *model = long_model();
    fixture r;
    fixture_begin_long(&r, model, 1024);
    cluster_add(r.w->cluster, 0, 4);
    cluster_batch_rows(r.w->cluster, 0);
    cluster_add(r.w->cluster, 0, 4);
    const uint8_t *second = sn_node_id(cluster_node(r.w->cluster, 1));
    fixture_open_chain(&r, (sn_chain_options){.routing.avoid = avoid_at_first, .routing.avoid_ctx = &second}, 2);
    second = NULL;
    cluster_cut_off_at_step(r.w->cluster, 0, 2);
    cr_expect_eq(fixture_step(&r, 0, LONG), SN_OK, "%s", r.err.text);
    cr_expect(output_is_right(&r, 0, LONG), "other bits");
    cr_expect_eq(sn_chain_failovers(r.chain), 1, "%d failovers", (int)sn_chain_failovers(r.chain));
    cr_expect_eq(r.counting_transport.refused, 0, "%d steps were refused", r.counting_transport.refused);
    fixture_end(&r);
    tiny_model_remove(&model);
}

/* A node that limits its clients refuses a chunk behind others that it has taken: it is waited for, and those that it
 * has taken are not sent again. */
static void expect_patience(int n_nodes, bool push, int most_steps) {
    fixture r = {.w = testbed_new(&(cluster_options){.kv_memory = 4096, .quota = {.steps_per_s = 3}})};
    fixture_make_rows(&r, TOKENS);
    for (int i = 0; i < n_nodes; i++) cluster_add(r.w->cluster, 4 * i / n_nodes, 4 * (i + 1) / n_nodes);
    fixture_open_chain(&r, (sn_chain_options){.routing.push = push}, n_nodes);
    cr_expect_eq(fixture_step(&r, 0, TOKENS), SN_OK, "%d nodes: %s", n_nodes, r.err.text);
    cr_expect(output_is_right(&r, 0, TOKENS), "other bits");
    cr_expect_gt(r.counting_transport.refused, 0);
    cr_expect_leq(r.counting_transport.n_steps, most_steps, "%d steps", r.counting_transport.n_steps);
    cr_expect_eq(sn_chain_failovers(r.chain), 0, "%d failovers", (int)sn_chain_failovers(r.chain));
    fixture_end(&r);
}
Test(prefill, a_node_that_limits_its_clients_is_waited_for) { expect_patience(1, false, 12); }
Test(prefill, nodes_that_limit_their_clients_are_waited_for) { expect_patience(2, false, 60); }
Test(prefill, pushing_nodes_that_limit_their_clients_are_waited_for) { expect_patience(2, true, 30); }
