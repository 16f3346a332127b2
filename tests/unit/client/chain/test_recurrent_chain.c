/* Chains over nodes whose blocks hold recurrent states: the bits of the whole model through rewinds, pushes, dying and
 * draining nodes; and what such sessions cannot do. */
#include "base/clock.h"
#include "client/chain/chain_private.h" /* private: the replica's wait */
#include "client/generate/session_file.h"
#include "tests/support/chain_fixture.h"
#include "tests/support/generator_fixture.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define MODEL SN_FIXTURES "/golden/qwen3_5"

static testbed *new_testbed(cluster_options options) {
    options.model = MODEL;
    options.kv_memory = 400;
    return testbed_new(&options);
}

Test(recurrent_chain, steps_and_rewinds_have_the_bits_of_the_whole_model) {
    for (int push = 0; push < 2; push++) {
        testbed *w = new_testbed((cluster_options){0});
        chain_fixture r;
        cluster_add(w->cluster, 0, 1);
        cluster_add(w->cluster, 1, 4);
        chain_fixture_open(&r, w, (sn_chain_options){.routing.push = push});
        chain_fixture_steps(&r, 0, 80, 33);
        chain_fixture_steps(&r, 80, TESTBED_TOKENS, 1);
        chain_fixture_steps(&r, 70, 90, 5); /* rewinds */
        chain_fixture_steps(&r, 3, TESTBED_TOKENS, 16);
        cr_expect_eq(sn_chain_replayed(r.chain), 0);
        chain_fixture_close(&r);
        testbed_free(&w);
    }
}

Test(recurrent_chain, sessions_share_their_prefix_up_to_a_state) {
    testbed *w = new_testbed((cluster_options){.prefix_cache_memory = 1 << 20, .prefix_cache_shared = true});
    chain_fixture r, q;
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, TESTBED_TOKENS, 64);
    chain_fixture_open(&q, w, (sn_chain_options){0});
    chain_fixture_steps(&q, 0, TESTBED_TOKENS, 96);
    node_client *client = node_client_new(w, 0);
    cr_expect_eq(node_client_status(client).prefix_cached_tokens, 64);
    node_client_free(&client);
    chain_fixture_steps(&q, 50, 90, 7);
    chain_fixture_steps(&r, 50, 90, 1);
    chain_fixture_close(&q);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(recurrent_chain, a_node_that_dies_is_replaced_by_a_replay) {
    testbed *w = new_testbed((cluster_options){0});
    chain_fixture r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    cluster_add(w->cluster, 2, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, 60, 20);
    cluster_stop(w->cluster, cluster_node_of_block(r.chain, 3));
    chain_fixture_steps(&r, 60, TESTBED_TOKENS, 4);
    cr_expect_eq(sn_chain_failovers(r.chain), 1);
    cr_expect_eq(sn_chain_replayed(r.chain), 60);
    chain_fixture_steps(&r, 30, 70, 8);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* ---- copies at other nodes ---- */

static atomic_int pieces, pieces_before_reply; /* of snapshots, on the wire; before the first KV_SEND_REPLY */

static sn_hub_action count_pieces(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    (void)ctx, (void)from, (void)to;
    pieces += msg->kind == SN_MSG_STATE_PUT;
    if (msg->kind == SN_MSG_KV_SEND_REPLY && pieces_before_reply < 0) pieces_before_reply = pieces;
    return SN_DELIVER;
}

/* Steps of one token back and forth between positions 80 and 90 until the chain has left the node. */
static void step_until_left(chain_fixture *r, int node) {
    int64_t until = sn_now_us() + 20000000;
    for (int at = 80; cluster_node_of_block(r->chain, 0) == node && sn_now_us() < until; at = at < 89 ? at + 1 : 80) {
        chain_fixture_steps(r, at, at + 1, 1);
        sn_sleep_us(10000);
    }
    cr_assert_neq(cluster_node_of_block(r->chain, 0), node);
    while (!cluster_has_left(r->w->cluster, node) && sn_now_us() < until) sn_sleep_us(2000);
    cr_expect(cluster_has_left(r->w->cluster, node), "the node waits for the session");
}

Test(recurrent_chain, a_node_that_drains_hands_over_pages_and_a_snapshot) {
    testbed *w = new_testbed((cluster_options){.drain_timeout_s = 10});
    chain_fixture r;
    cluster_add(w->cluster, 0, 4);
    cluster_add(w->cluster, 0, 4);
    pieces_before_reply = -1;
    sn_hub_set_filter(cluster_hub(w->cluster), count_pieces, NULL);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, 90, 20);
    int first = cluster_node_of_block(r.chain, 0);
    cluster_drain(w->cluster, first);
    step_until_left(&r, first);
    cr_expect_eq(sn_chain_drains(r.chain), 1);
    cr_expect_eq(sn_chain_replicas_promoted(r.chain), 1);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    cr_expect_geq(pieces_before_reply, 1, "the session changed over before a snapshot was there");
    chain_fixture_steps(&r, 80, TESTBED_TOKENS, 7);
    chain_fixture_steps(&r, 30, TESTBED_TOKENS, 9); /* a rewind to before the snapshot */
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(recurrent_chain, a_node_that_joins_while_the_only_one_drains_is_handed_the_session) {
    testbed *w = new_testbed((cluster_options){.drain_timeout_s = 20});
    chain_fixture r;
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, 90, 20);
    cluster_drain(w->cluster, 0);
    for (int64_t until = sn_now_us() + 20000000; !r.chain->hops[0].remote.draining && sn_now_us() < until;) {
        sn_chain_poll(r.chain); /* it looks for another node, too, and finds none */
        sn_sleep_us(2000);
    }
    cluster_add(w->cluster, 0, 4);
    step_until_left(&r, 0);
    cr_expect_eq(sn_chain_drains(r.chain), 1);
    cr_expect_eq(sn_chain_replicas_promoted(r.chain), 1);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* What enters block 2 is kept nowhere but in the drained node's computation. */
Test(recurrent_chain, a_node_that_only_several_can_replace_is_left_by_a_replay) {
    testbed *w = new_testbed((cluster_options){.drain_timeout_s = 10});
    chain_fixture r;
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, 90, 20);
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    cluster_drain(w->cluster, 0);
    step_until_left(&r, 0);
    cr_expect_eq(sn_chain_drains(r.chain), 1);
    cr_expect_eq(sn_chain_replicas_promoted(r.chain), 0);
    chain_fixture_steps(&r, 80, TESTBED_TOKENS, 7);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(recurrent_chain, a_replica_goes_on_without_a_replay) {
    for (int push = 0; push < 2; push++) {
        testbed *w = new_testbed((cluster_options){0});
        chain_fixture r;
        for (int twice = 0; twice < 2; twice++) {
            cluster_add(w->cluster, 0, 2);
            cluster_add(w->cluster, 2, 4);
        }
        chain_fixture_open(&r, w, (sn_chain_options){.routing.push = push, .kv.replica = true});
        chain_fixture_steps(&r, 0, 50, 25);
        for (size_t k = 0; k < 2; k++)
            cr_assert_eq(sn_chain_await_replica(r.chain, k, 10000, &r.err), SN_OK, "%s", r.err.text);
        chain_fixture_steps(&r, 50, 80, 3); /* the copy follows */
        chain_fixture_steps(&r, 70, 75, 5);
        for (size_t k = 0; k < 2; k++)
            cr_assert_eq(sn_chain_await_replica(r.chain, k, 10000, &r.err), SN_OK, "%s", r.err.text);
        cluster_cut_off(w->cluster, cluster_node_of_block(r.chain, push ? 0 : 3));
        chain_fixture_steps(&r, 75, TESTBED_TOKENS, 3);
        cr_expect_eq(sn_chain_replicas_promoted(r.chain), 1);
        cr_expect_eq(sn_chain_replayed(r.chain), 0);
        chain_fixture_steps(&r, 30, 70, 8);
        chain_fixture_close(&r);
        testbed_free(&w);
    }
}

/* ---- a client that speaks the protocol by hand ---- */

typedef struct by_hand {
    testbed *w;
    node_client *client;
    node_session session; /* with the first 70 rows */
} by_hand;

static by_hand by_hand_new(int steps_per_s) {
    by_hand h = {.w = new_testbed((cluster_options){.quota = {.steps_per_s = steps_per_s}})};
    cluster_add(h.w->cluster, 0, 4);
    h.client = node_client_new(h.w, 0);
    node_session_init(&h.session, h.w, h.client, 0, 4);
    node_session_open(&h.session);
    return h;
}

static void by_hand_free(by_hand *h) {
    node_session_close(&h->session);
    node_client_free(&h->client);
    testbed_free(&h->w);
}

Test(recurrent_chain, states_are_not_read_by_clients_and_copied_from_the_first_block_on) {
    by_hand h = by_hand_new(0);
    sn_msg *msg = NULL;
    cr_assert(node_session_step_ok(&h.session, 0, 8));
    REQUIRE(sn_msg_new(SN_MSG_KV_GET, 0, &msg, &err));
    memcpy(msg->kv_get.session, h.session.id, SN_SESSION_ID_SIZE);
    msg->kv_get.tokens = 8;
    cr_expect(is_refusal(node_client_request(h.client, &msg), SN_REFUSED, "which a client does not read"));
    REQUIRE(sn_msg_new(SN_MSG_KV_SEND, 0, &msg, &err));
    memcpy(msg->kv_send.session, h.session.id, SN_SESSION_ID_SIZE);
    msg->kv_send.first_block = 1;
    msg->kv_send.end_block = 4;
    cr_expect(is_refusal(node_client_request(h.client, &msg), SN_REFUSED, "from its first one on"));
    by_hand_free(&h);
}

static sn_msg *state_message(const by_hand *h, uint64_t position, uint64_t offset, uint64_t n) {
    sn_msg *msg = NULL;
    void *data = NULL;
    REQUIRE(sn_msg_new(SN_MSG_STATE_PUT, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){1, n}, &data, &err));
    memset(data, 0, n * sizeof(float));
    sn_hash hash = sn_hash_of(data, n * sizeof(float));
    memcpy(msg->state_put.session, h->session.id, SN_SESSION_ID_SIZE);
    memcpy(msg->state_put.origin, h->session.timeline[0].bytes, SN_HASH_SIZE);
    memcpy(msg->state_put.tensor_hash, hash.bytes, SN_HASH_SIZE);
    if (position <= TESTBED_TOKENS) memcpy(msg->state_put.timeline, h->session.timeline[position].bytes, SN_HASH_SIZE);
    msg->state_put.position = position;
    msg->state_put.offset = offset;
    return msg;
}

/* The reply to a STATE_PUT. Consumes msg. */
static void expect_floats(by_hand *h, sn_msg *msg, uint64_t floats) {
    sn_msg *reply = node_client_request(h->client, &msg);
    cr_assert_eq(reply->kind, SN_MSG_STATE_PUT_REPLY, "%s", reply->kind == SN_MSG_ERROR ? reply->error.text : "?");
    cr_expect_eq(reply->state_put_reply.floats, floats);
    sn_msg_free(&reply);
}

static bool is_refused(by_hand *h, uint64_t position, uint64_t offset, uint64_t n, const char *part) {
    sn_msg *msg = state_message(h, position, offset, n);
    return is_refusal(node_client_request(h->client, &msg), SN_REFUSED, part);
}

/* KV pages of n tokens, all zero: of block 3, which has attention, and the rows that entered block 0. */
static void put_rows(by_hand *h, int n) {
    sn_msg *msg = NULL;
    void *data = NULL;
    const uint64_t floats = 2 * 2 * 16 + (uint64_t)h->w->n_embd; /* keys and values of two heads of 16 */
    REQUIRE(sn_msg_new(SN_MSG_KV_PUT, 0, &msg, &err));
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, (uint64_t[]){(uint64_t)n, floats}, &data, &err));
    memset(data, 0, (size_t)n * floats * sizeof(float));
    sn_hash hash = sn_hash_of(data, (size_t)n * floats * sizeof(float));
    REQUIRE(sn_list_new((size_t)n, (size_t)n, sizeof *msg->kv_put.token_timelines, &msg->kv_put.token_timelines, &err));
    msg->kv_put.n_token_timelines = (size_t)n;
    for (int i = 0; i < n; i++)
        memcpy(msg->kv_put.token_timelines[i].timeline, h->session.timeline[i + 1].bytes, SN_HASH_SIZE);
    memcpy(msg->kv_put.session, h->session.id, SN_SESSION_ID_SIZE);
    memcpy(msg->kv_put.origin, h->session.timeline[0].bytes, SN_HASH_SIZE);
    memcpy(msg->kv_put.tensor_hash, hash.bytes, SN_HASH_SIZE);
    sn_msg *reply = node_client_request(h->client, &msg);
    cr_assert_eq(reply->kind, SN_MSG_KV_PUT_REPLY, "%s", reply->kind == SN_MSG_ERROR ? reply->error.text : "?");
    cr_expect_eq(reply->kv_put_reply.length, n);
    sn_msg_free(&reply);
}

static void resume_at(by_hand *h, int position) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_RESUME, 0, &msg, &err));
    memcpy(msg->resume.session, h->session.id, SN_SESSION_ID_SIZE);
    msg->resume.position = (uint64_t)position;
    sn_msg *reply = node_client_request(h->client, &msg);
    cr_assert_eq(reply->kind, SN_MSG_RESUME_REPLY);
    sn_msg_free(&reply);
}

enum { STATE = 3 * 752 }; /* floats of the states of blocks 0, 1 and 2 */

Test(recurrent_chain, pieces_of_states_are_checked_before_they_are_taken) {
    by_hand h = by_hand_new(0);
    cr_expect(is_refused(&h, 64, 0, STATE + 1, "n at most 2256"));
    cr_expect(is_refused(&h, 64, STATE - 6, 7, "exceed the states of this session"));
    cr_expect(is_refused(&h, 64, (uint64_t)(INT64_MAX >> 8), 7, "exceed the states of this session"));
    cr_expect(is_refused(&h, 65, 0, 7, "multiples of 64 tokens, not at 65"));
    cr_expect(is_refused(&h, 0, 0, 7, "multiples of 64 tokens"));
    expect_floats(&h, state_message(&h, 64, 0, STATE), 0); /* no KV pages are there */
    expect_floats(&h, state_message(&h, 1 << 30, 0, STATE), 0);
    put_rows(&h, 70);
    sn_msg *msg = state_message(&h, 64, 0, STATE);
    msg->state_put.timeline[3] ^= 1;
    expect_floats(&h, msg, 0);
    msg = state_message(&h, 64, 0, STATE);
    msg->state_put.tensor_hash[3] ^= 1;
    cr_expect(is_refusal(node_client_request(h.client, &msg), SN_RETRY, "damaged in transit"));
    expect_floats(&h, state_message(&h, 64, 0, 2000), 2000);
    expect_floats(&h, state_message(&h, 64, 1000, STATE - 1000), 0);
    expect_floats(&h, state_message(&h, 64, 2000, STATE - 2000), STATE);
    by_hand_free(&h);
}

Test(recurrent_chain, states_are_put_by_the_owner_until_it_goes_on) {
    by_hand h = by_hand_new(0);
    node_client *stranger = node_client_new(h.w, 0);
    put_rows(&h, 70);
    sn_msg *msg = state_message(&h, 64, 0, STATE);
    cr_expect(is_refusal(node_client_request(stranger, &msg), SN_REFUSED, "only the session's owner"));
    resume_at(&h, 70);
    msg = state_message(&h, 64, 0, STATE);
    cr_expect(is_refusal(node_client_request(h.client, &msg), SN_REFUSED, "has been resumed"));
    node_client_free(&stranger);
    by_hand_free(&h);
}

/* Rows behind a state that did not come are computed again, before the first step. */
Test(recurrent_chain, the_first_step_behind_pages_from_elsewhere_counts_as_several) {
    by_hand h = by_hand_new(3);
    put_rows(&h, 70); /* counts as one */
    resume_at(&h, 70);
    sn_msg *msg = node_session_step_message(&h.session, 70, 1), *reply = node_client_request(h.client, &msg);
    cr_assert_eq(reply->kind, SN_MSG_STEP_REPLY, "%s", reply->kind == SN_MSG_ERROR ? reply->error.text : "?");
    sn_msg_free(&reply);
    h.session.step++;
    msg = node_session_step_message(&h.session, 71, 1);
    cr_expect(is_refusal(node_client_request(h.client, &msg), SN_RETRY, "3 steps per second"));
    by_hand_free(&h);
}

Test(recurrent_chain, pieces_of_states_count_in_the_quota_of_steps) {
    virtual_clock_begin_still(); /* no credit returns meanwhile */
    by_hand h = by_hand_new(3);
    put_rows(&h, 70);
    for (int i = 0; i < 2; i++) expect_floats(&h, state_message(&h, 64, 0, STATE), STATE);
    sn_msg *msg = state_message(&h, 64, 0, STATE);
    cr_expect(is_refusal(node_client_request(h.client, &msg), SN_RETRY, "3 steps per second"));
    by_hand_free(&h);
}

Test(recurrent_chain, a_session_without_states_takes_none) {
    testbed *w = new_testbed((cluster_options){0});
    cluster_add(w->cluster, 0, 4);
    by_hand h = {.w = w, .client = node_client_new(w, 0)};
    node_session_init(&h.session, w, h.client, 3, 4);
    node_session_open(&h.session);
    cr_expect(is_refused(&h, 64, 0, 7, "have no recurrent states"));
    by_hand_free(&h);
}

/* ---- texts ---- */

enum { CONTEXT = 120, PROMPT = 9 };
static const int32_t prompt[PROMPT] = {5, 17, 3, 80, 41, 4, 66, 9, 30};
static const sn_sampling sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 7};

static sn_generator *new_generator(const generator_fixture *d, sn_chain *chain, sn_draft *draft) {
    sn_generator_parts parts = {sn_model_hparams(d->model), d->head, chain, d->tokenizer, d->context, draft};
    sn_generator *generator = NULL;
    REQUIRE(sn_generator_new(&parts, &sampling, &generator, &err));
    return generator;
}

/* Continues with n tokens. */
static void run(sn_generator *generator, int n) {
    sn_generation out = {0};
    sn_generate_options options = {.max_tokens = n, .ignore_eos = true};
    size_t n_ids;
    const int32_t *ids = sn_generator_ids(generator, &n_ids);
    int32_t all[CONTEXT];
    memcpy(all, n_ids ? ids : prompt, (n_ids ? n_ids : PROMPT) * sizeof *all);
    REQUIRE(sn_generator_run(generator, all, n_ids ? n_ids : PROMPT, &options, &out, &err));
    sn_generation_fini(&out);
}

Test(recurrent_chain, a_saved_session_goes_on_with_the_same_tokens) {
    generator_fixture d = generator_fixture_begin_with(MODEL, 400, CONTEXT);
    sn_chain *chain = generator_fixture_local_chain(&d), *other = generator_fixture_local_chain(&d);
    sn_generator *generator = new_generator(&d, chain, NULL), *restored = new_generator(&d, other, NULL);
    const sn_file_key key = {(uint8_t[16]){1, 2, 3}, 16};
    char path[] = "/tmp/swarm-test-session-XXXXXX";
    sn_session_file *file = NULL;
    size_t n, m;
    cr_assert(mkdtemp(path));
    char name[64];
    snprintf(name, sizeof name, "%s/s", path);
    run(generator, 40);
    REQUIRE(sn_session_file_write(name, &key, d.model, chain, generator, NULL, &err));
    REQUIRE(sn_session_file_open(name, &key, d.model, &file, &err));
    REQUIRE(sn_session_file_restore(file, d.head, other, restored, &err));
    cr_expect_eq(sn_chain_length(other), sn_chain_length(chain));
    run(generator, 40);
    run(restored, 40);
    const int32_t *a = sn_generator_ids(generator, &n), *b = sn_generator_ids(restored, &m);
    cr_expect(n == m && n > 80 && !memcmp(a, b, n * sizeof *a), "other tokens after the break");
    sn_session_file_close(&file);
    remove(name);
    remove(path);
    sn_generator_free(&generator);
    sn_generator_free(&restored);
    sn_chain_close(&chain);
    sn_chain_close(&other);
    generator_fixture_end(&d);
}

/* Every other draft is wrong: most of what a step computes is undone. */
static sn_status draft_badly(void *ctx, const int32_t *ids, size_t n, const sn_rng_state *rng_state, size_t most,
                             int32_t *out, size_t *n_out, sn_err *err) {
    const int32_t *right = ctx;
    (void)ids, (void)rng_state, (void)err;
    for (*n_out = 0; *n_out < most && *n_out < 4; ++*n_out)
        out[*n_out] = n + *n_out < PROMPT + 80 ? (right[n + *n_out] + (int)((n + *n_out) % 3 == 0)) % 300 : 1;
    return SN_OK;
}

Test(recurrent_chain, a_text_with_wrong_drafts_is_the_text_without_drafts) {
    generator_fixture d = generator_fixture_begin_with(MODEL, 400, CONTEXT);
    sn_chain *chain = generator_fixture_local_chain(&d), *other = generator_fixture_local_chain(&d);
    sn_generator *plain = new_generator(&d, chain, NULL);
    size_t n, m;
    run(plain, 80);
    const int32_t *a = sn_generator_ids(plain, &n);
    sn_draft draft = sn_draft_make(draft_badly, (void *)(uintptr_t)a, 4);
    sn_generator *drafting = new_generator(&d, other, &draft);
    run(drafting, 80);
    const int32_t *b = sn_generator_ids(drafting, &m);
    cr_expect(n == m && n == PROMPT + 80 && !memcmp(a, b, n * sizeof *a), "other tokens with drafts");
    sn_generator_free(&plain);
    sn_generator_free(&drafting);
    sn_chain_close(&chain);
    sn_chain_close(&other);
    generator_fixture_end(&d);
}
