/* KV pages that a client takes by their hashes: what travels, and that the outputs have the bits of rows that were
 * sent. */
#include "client/chain/chain.h"
#include "client/chain/known_prefixes.h"
#include "net/transport/transport.h"
#include "tests/support/node_client.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { N_BLOCKS = 3, EMBD = 32, CONTEXT = 24576, VOCAB = 97 };

/* -- a transport that counts bytes -- */

typedef struct counting_transport {
    sn_transport base;
    sn_transport *inner;
    size_t *bytes;
} counting_transport;
static counting_transport *count_of(sn_transport *t) { return (counting_transport *)t; }

static void count(counting_transport *c, const sn_msg *msg) {
    sn_buf frame;
    sn_buf_init(&frame, 1 << 24);
    REQUIRE(sn_msg_encode(msg, &frame, &err));
    *c->bytes += frame.len + msg->tensor.bytes;
    sn_buf_fini(&frame);
}

static sn_status count_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                            sn_err *err) {
    return sn_transport_dial(count_of(t)->inner, address, key, out, err);
}
static sn_status count_send(sn_transport *t, sn_peer peer, sn_msg **msg, sn_err *err) {
    count(count_of(t), *msg);
    return sn_transport_send(count_of(t)->inner, peer, msg, err);
}
static sn_status count_recv(sn_transport *t, int64_t deadline_us, sn_event *out, sn_err *err) {
    sn_status status = sn_transport_recv(count_of(t)->inner, deadline_us, out, err);
    if (!status && out->msg) count(count_of(t), out->msg);
    return status;
}
static void count_hang_up(sn_transport *t, sn_peer peer) { sn_transport_hang_up(count_of(t)->inner, peer); }
static void count_wake(sn_transport *t) { sn_transport_wake(count_of(t)->inner); }
static void count_free(sn_transport *t) {
    sn_transport_free(&count_of(t)->inner);
    free(t);
}
static const sn_transport_ops count_ops = {NULL,       count_dial, count_send, count_recv, count_hang_up, count_wake,
                                           count_free, NULL,       NULL,       NULL,       NULL};

/* -- a swarm of three nodes and a client -- */

typedef struct fixture {
    char *path;
    testbed *w;
    sn_identity identity;
    sn_known_prefixes *prefixes;
    size_t bytes; /* of the client's messages */
    sn_link *link;
    sn_model *model;
    sn_chain *chain;
    int32_t tokens[CONTEXT];
    const char *scope;
    bool push;
    uint64_t seed; /* of the choice among equal routes */
} fixture;

static fixture *fixture_begin(size_t pages, size_t outputs) {
    fixture *r = calloc(1, sizeof *r);
    r->path = tiny_model_make(&(tiny_model_options){.n_blocks = N_BLOCKS,
                                                    .n_embd = EMBD,
                                                    .n_heads = 1,
                                                    .n_kv_heads = 1,
                                                    .n_ff = EMBD,
                                                    .n_ctx = CONTEXT,
                                                    .seed = 5});
    r->w = testbed_new(&(cluster_options){.model = r->path,
                                          .kv_memory = pages,
                                          .prefix_cache_memory = outputs * SN_KV_PAGE_TOKENS * EMBD * sizeof(float)});
    for (int b = 0; b < N_BLOCKS; b++) cluster_add(r->w->cluster, b, b + 1);
    REQUIRE(sn_identity_new(&r->identity, &err));
    REQUIRE(sn_known_prefixes_new(SN_KNOWN_PREFIXES_BYTES, NULL, &r->prefixes, &err));
    REQUIRE(sn_model_open(r->path, &r->model, &err));
    for (int i = 0; i < CONTEXT; i++) r->tokens[i] = i * 31 % VOCAB;
    return r;
}

static void fixture_end(fixture **r) {
    sn_known_prefixes_free(&(*r)->prefixes);
    sn_model_close(&(*r)->model);
    testbed_free(&(*r)->w);
    tiny_model_remove(&(*r)->path);
    free(*r);
    *r = NULL;
}

static sn_status embed(void *ctx, int position, int n, float *out, sn_err *err) {
    const fixture *r = ctx;
    (void)err;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < EMBD; k++)
            out[i * EMBD + k] = (float)((r->tokens[position + i] * 7919 + k * 104729) % 1000) / 500 - 1;
    return SN_OK;
}

/* A session of the client, as after a restart or a pause: another link, the same identity. */
static void open_session(fixture *r) {
    sn_seed seeds[8];
    const int n = cluster_count(r->w->cluster);
    for (int i = 0; i < n; i++) {
        snprintf(seeds[i].address, sizeof seeds[i].address, "%s", sn_node_address(cluster_node(r->w->cluster, i)));
        memcpy(seeds[i].curve_key, sn_node_curve_key(cluster_node(r->w->cluster, i)), SN_KEY_SIZE);
    }
    counting_transport *t = calloc(1, sizeof *t);
    *t = (counting_transport){
        .base.ops = &count_ops, .inner = cluster_transport_as(r->w->cluster, &r->identity), .bytes = &r->bytes};
    t->base.dials_names = t->inner->dials_names;
    sn_transport *base = &t->base;
    REQUIRE(sn_link_open_transport(&base, seeds, (size_t)n, &r->link, &err));
    sn_chain_options options = sn_chain_options_default();
    options.link = r->link;
    options.prefixes = r->prefixes;
    options.routing.push = r->push;
    options.routing.seed = r->seed;
    REQUIRE(sn_chain_open(r->model, &options, &r->chain, &err));
    sn_chain_set_source(r->chain, &(sn_row_source){embed, r});
}

static void close_session(fixture *r) {
    sn_chain_close(&r->chain);
    sn_link_close(&r->link);
}

/* Runs the first n tokens, of which those that are attached count as `attached`; the output of the last `wanted` ones
 * is given back, to be freed. */
static float *run_turn(fixture *r, int n, int wanted, int *attached) {
    float *in = calloc((size_t)n * EMBD, sizeof *in), *out = calloc((size_t)n * EMBD, sizeof *out);
    REQUIRE(sn_chain_attach_prefix(r->chain, r->tokens, (size_t)n, r->scope, &err));
    const int from = *attached = sn_chain_length(r->chain);
    REQUIRE(embed(r, 0, n, in, &err));
    cr_assert_leq(wanted, n - from, "%d of %d tokens were attached", from, n);
    REQUIRE(sn_chain_step(r->chain, from, n - from, in + from * EMBD, out + from * EMBD, &err));
    sn_chain_note_prefix(r->chain, r->tokens, r->scope);
    memmove(out, out + (n - wanted) * EMBD, (size_t)wanted * EMBD * sizeof *out);
    free(in);
    return out;
}

/* A session of its own for the first n tokens. */
static void run_session(fixture *r, int n) {
    int attached;
    open_session(r);
    free(run_turn(r, n, 1, &attached));
    cr_expect_eq(attached, 0);
    close_session(r);
}

/* What another client gets, for whom everything is computed. */
static void expect_bits(fixture *r, int n, int wanted, const float *got) {
    const sn_identity own = r->identity;
    sn_known_prefixes *prefixes = r->prefixes;
    int attached;
    r->prefixes = NULL;
    REQUIRE(sn_identity_new(&r->identity, &err));
    open_session(r);
    float *want = run_turn(r, n, wanted, &attached);
    close_session(r);
    cr_expect_eq(attached, 0);
    cr_expect(!memcmp(want, got, (size_t)wanted * EMBD * sizeof *want), "other bits");
    free(want);
    r->identity = own;
    r->prefixes = prefixes;
}

Test(known_prefix, a_conversation_that_goes_on_after_a_pause_moves_few_bytes, .timeout = 300) {
    enum { FIRST = 20000, SECOND = FIRST + 200, PAGES = 2 * (SECOND / SN_KV_PAGE_TOKENS + 1) };
    fixture *r = fixture_begin(PAGES, 64); /* outputs of a tenth of the turn are kept */
    int attached;
    run_session(r, FIRST);
    const size_t first = r->bytes;
    open_session(r);
    float *got = run_turn(r, SECOND, 100, &attached);
    close_session(r);
    const size_t second = r->bytes - first;
    cr_log_info("turn 1: %zu bytes, turn 2: %zu bytes, %d tokens attached", first, second, attached);
    cr_expect_geq(attached, FIRST - SN_KV_PAGE_TOKENS);
    cr_expect_lt(second * 100, first * 3, "turn 2 moved %zu bytes, turn 1 %zu", second, first);
    fixture_end(&r);
    free(got);
}

static void expect_attached(bool push) {
    fixture *r = fixture_begin(512, 16);
    int attached;
    r->push = push;
    run_session(r, 900);
    for (int n = 1000; n <= 1200; n += 100) { /* each turn goes on behind the one before it */
        open_session(r);
        float *got = run_turn(r, n, 90, &attached);
        cr_expect_geq(attached, n - 100 - 128 - SN_KV_PAGE_TOKENS, "of %d tokens %d were attached", n, attached);
        cr_expect_eq(sn_chain_failovers(r->chain), 0);
        close_session(r);
        expect_bits(r, n, 90, got);
        free(got);
    }
    fixture_end(&r);
}

Test(known_prefix, gives_the_bits_of_rows_that_were_sent) { expect_attached(false); }
Test(known_prefix, gives_the_bits_of_rows_that_were_pushed) { expect_attached(true); }

Test(known_prefix, of_other_tokens_or_another_scope_is_not_taken) {
    fixture *r = fixture_begin(256, 16);
    int attached;
    r->scope = "a";
    run_session(r, 320);
    r->scope = "b"; /* has none of these */
    run_session(r, 320);
    r->scope = "a";
    r->tokens[100]++;
    open_session(r);
    float *got = run_turn(r, 320, 100, &attached);
    cr_expect_eq(attached, 96, "the tokens before the one that differs");
    close_session(r);
    expect_bits(r, 320, 100, got);
    free(got);
    fixture_end(&r);
}

Test(known_prefix, is_taken_into_a_session_that_holds_other_tokens) {
    fixture *r = fixture_begin(256, 16);
    int attached;
    run_session(r, 320);
    open_session(r);
    r->tokens[40] += 3;
    free(run_turn(r, 200, 1, &attached));
    r->tokens[40] -= 3;
    sn_chain_rewind(r->chain, 40);
    float *got = run_turn(r, 330, 9, &attached);
    cr_expect_geq(attached, 288);
    cr_expect_eq(sn_chain_failovers(r->chain), 0);
    sn_chain_rewind(r->chain, 150); /* a question that is asked in another way */
    r->tokens[150] += 3;
    float *again = run_turn(r, 330, 180, &attached);
    cr_expect_geq(attached, 128);
    cr_expect_eq(sn_chain_failovers(r->chain), 0);
    close_session(r);
    expect_bits(r, 330, 180, again);
    r->tokens[150] -= 3;
    expect_bits(r, 330, 9, got);
    free(got), free(again);
    fixture_end(&r);
}

Test(known_prefix, is_as_long_as_all_nodes_have_it) {
    fixture *r = fixture_begin(256, 16);
    int attached;
    run_session(r, 320);
    cluster_restart(r->w->cluster, 1); /* it has lost everything */
    open_session(r);
    float *got = run_turn(r, 330, 200, &attached);
    cr_expect_eq(attached, 0);
    close_session(r);
    expect_bits(r, 330, 200, got);
    free(got);
    fixture_end(&r);
}

/* Another client takes all pages of one node that no session holds. */
static void fill_node(fixture *r, int number, int n) {
    sn_chain_options options = sn_chain_options_default();
    sn_link *link = cluster_link(r->w->cluster);
    sn_chain *chain = NULL;
    float *rows = calloc((size_t)n * EMBD, sizeof *rows);
    options.link = link;
    options.first = number;
    options.end = number + 1;
    REQUIRE(sn_chain_open(r->model, &options, &chain, &err));
    REQUIRE(sn_chain_step(chain, 0, n, rows, rows, &err));
    sn_chain_close(&chain);
    sn_link_close(&link);
    free(rows);
}

Test(known_prefix, a_node_that_has_less_does_not_go_on_with_what_it_held) {
    enum { PAGES = 64, HELD = 330 / SN_KV_PAGE_TOKENS + 1 }; /* a node with one block has room for more of them */
    fixture *r = fixture_begin(PAGES, 16);
    int attached;
    run_session(r, 320);
    open_session(r);
    r->tokens[5] += 3;
    free(run_turn(r, 330, 1, &attached));
    r->tokens[5] -= 3;
    fill_node(r, 1, (N_BLOCKS * PAGES - HELD) * SN_KV_PAGE_TOKENS);
    sn_chain_rewind(r->chain, 5);
    float *got = run_turn(r, 330, 200, &attached);
    cr_expect_leq(attached, 5);
    cr_expect_eq(sn_chain_failovers(r->chain), 0, "no node was asked for what it does not have");
    close_session(r);
    expect_bits(r, 330, 200, got);
    free(got);
    fixture_end(&r);
}

Test(known_prefix, is_computed_again_where_a_node_dies_behind_it) {
    for (int dies = 0; dies < N_BLOCKS; dies++) {
        fixture *r = fixture_begin(256, 16);
        int attached;
        run_session(r, 320);
        open_session(r);
        REQUIRE(sn_chain_attach_prefix(r->chain, r->tokens, 330, NULL, &err));
        cr_expect_geq(sn_chain_length(r->chain), 288);
        cluster_restart(r->w->cluster, dies);
        float *got = run_turn(r, 330, 9, &attached);
        cr_expect_eq(sn_chain_failovers(r->chain), 1);
        close_session(r);
        expect_bits(r, 330, 9, got);
        free(got);
        fixture_end(&r);
    }
}

Test(known_prefix, is_looked_for_where_the_conversation_was) {
    fixture *r = fixture_begin(256, 16);
    int attached;
    for (int b = 0; b < N_BLOCKS; b++) cluster_add(r->w->cluster, b, b + 1); /* routes that are as good */
    run_session(r, 320);
    for (r->seed = 1; r->seed < 8; r->seed++) {
        open_session(r);
        float *got = run_turn(r, 330, 9, &attached);
        cr_expect_geq(attached, 288, "seed %d", (int)r->seed);
        close_session(r);
        if (r->seed == 7) expect_bits(r, 330, 9, got);
        free(got);
    }
    fixture_end(&r);
}

/* -- the node's side -- */

static sn_msg *attach_message(const node_session *p, const int *positions, size_t n) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_ATTACH, 0, &msg, &err));
    memcpy(msg->attach.session, p->id, SN_SESSION_ID_SIZE);
    REQUIRE(sn_list_new(n, SN_ATTACH_POINTS_MAX, sizeof *msg->attach.points, &msg->attach.points, &err));
    for (msg->attach.n_points = 0; msg->attach.n_points < n; msg->attach.n_points++) {
        sn_attach_point *point = &msg->attach.points[msg->attach.n_points];
        point->position = (uint64_t)positions[msg->attach.n_points];
        memcpy(point->timeline, p->timeline[point->position % TESTBED_TOKENS].bytes, SN_HASH_SIZE);
    }
    return msg;
}

static int attached_by(node_client *client, sn_msg *msg) {
    sn_msg *reply = node_client_request(client, &msg);
    const int length = reply->kind == SN_MSG_ATTACH_REPLY ? (int)reply->attach_reply.length : -1;
    sn_msg_free(&reply);
    return length;
}

static sn_msg *refused_by(node_client *client, sn_msg *msg) { return node_client_request(client, &msg); }

Test(known_prefix, a_node_gives_pages_to_the_client_that_led_to_them_only) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .prefix_cache_memory = 1 << 20});
    cluster_add(w->cluster, 0, 0);
    node_client *a = node_client_new(w, 0), *b = node_client_new(w, 0);
    node_session first, second, foreign;
    node_session_init(&first, w, a, 0, w->n_blocks);
    node_session_open(&first);
    cr_expect(node_session_step_ok(&first, 0, 90));
    node_session_close(&first);
    node_session_init(&foreign, w, b, 0, w->n_blocks);
    node_session_open(&foreign);
    cr_expect_eq(attached_by(b, attach_message(&foreign, (int[]){64, 32}, 2)), 0, "pages of another client");
    node_session_init(&second, w, a, 0, w->n_blocks);
    node_session_open(&second);
    cr_expect(is_refusal(refused_by(b, attach_message(&second, (int[]){64}, 1)), SN_REFUSED, "another client"));
    cr_expect_eq(attached_by(a, attach_message(&second, (int[]){64, 32}, 2)), 64);
    second.length = 64;
    cr_expect(node_session_step_ok(&second, 64, 20), "goes on behind attached pages");
    node_session_close(&second);
    node_session_close(&foreign);
    node_client_free(&a);
    node_client_free(&b);
    testbed_free(&w);
}

Test(known_prefix, a_node_refuses_points_that_are_none) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .prefix_cache_memory = 1 << 20});
    cluster_add(w->cluster, 0, 0);
    node_client *a = node_client_new(w, 0);
    node_session p;
    node_session_init(&p, w, a, 0, w->n_blocks);
    node_session_open(&p);
    cr_expect(is_refusal(refused_by(a, attach_message(&p, NULL, 0)), SN_REFUSED, "at least one"));
    cr_expect(is_refusal(refused_by(a, attach_message(&p, (int[]){33}, 1)), SN_REFUSED, "multiples of 32"));
    cr_expect(is_refusal(refused_by(a, attach_message(&p, (int[]){32, 64}, 2)), SN_REFUSED, "from later to earlier"));
    cr_expect(is_refusal(refused_by(a, attach_message(&p, (int[]){64, 64}, 2)), SN_REFUSED, "from later to earlier"));
    cr_expect(is_refusal(refused_by(a, attach_message(&p, (int[]){1 << 20}, 1)), SN_REFUSED, "limit"));
    cr_expect(node_session_step_ok(&p, 0, 40), "the session is as it was");
    cr_expect_eq(attached_by(a, attach_message(&p, (int[]){64}, 1)), 0);
    cr_expect(node_session_step_ok(&p, 40, 10), "a point that is not known leaves the session as it is");
    node_session_close(&p);
    node_client_free(&a);
    testbed_free(&w);
}
