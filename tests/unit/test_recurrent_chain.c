/* Chains over nodes whose blocks hold recurrent states: the bits of the whole model through rewinds, pushes, dying and
 * draining nodes; and what such sessions cannot do. */
#include "base/clock.h"
#include "client/chain/chain_private.h" /* private: the replica's wait */
#include "client/generate/session_file.h"
#include "tests/support/chain_fixture.h"
#include "tests/support/generator_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
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

Test(recurrent_chain, a_node_that_drains_is_left_by_a_replay) {
    testbed *w = new_testbed((cluster_options){.drain_timeout_s = 10});
    chain_fixture r;
    cluster_add(w->cluster, 0, 4);
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, 50, 20);
    int leaves = cluster_node_of_block(r.chain, 0);
    cluster_drain(w->cluster, leaves);
    int64_t until = sn_now_us() + 20000000;
    for (int at = 50; cluster_node_of_block(r.chain, 0) == leaves && sn_now_us() < until; at = at < 59 ? at + 1 : 50) {
        chain_fixture_steps(&r, at, at + 1, 1);
        sn_sleep_us(10000);
    }
    cr_expect_neq(cluster_node_of_block(r.chain, 0), leaves);
    cr_expect_eq(sn_chain_drains(r.chain), 1);
    while (!cluster_has_left(w->cluster, leaves) && sn_now_us() < until) sn_sleep_us(2000);
    cr_expect(cluster_has_left(w->cluster, leaves), "the node waits for the session");
    chain_fixture_steps(&r, 50, TESTBED_TOKENS, 7);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(recurrent_chain, replicas_are_refused_with_a_sentence) {
    testbed *w = new_testbed((cluster_options){0});
    chain_fixture r;
    cluster_add(w->cluster, 0, 4);
    chain_fixture_begin(&r, w);
    cr_expect_eq(chain_fixture_try_open(&r, (sn_chain_options){.kv.replica = true}), SN_REFUSED);
    cr_expect(strstr(r.err.text, "--kv-replica"), "%s", r.err.text);
    chain_fixture_close(&r);
    testbed_free(&w);
}

/* A client that speaks the protocol by hand. */
Test(recurrent_chain, a_node_refuses_to_read_and_write_states) {
    testbed *w = new_testbed((cluster_options){0});
    cluster_add(w->cluster, 0, 4);
    node_client *client = node_client_new(w, 0);
    node_session p;
    node_session_init(&p, w, client, 0, 4);
    node_session_open(&p);
    sn_msg *msg = node_session_step_message(&p, 0, 8), *reply = node_client_request(client, &msg);
    cr_assert_eq(reply->kind, SN_MSG_STEP_REPLY);
    sn_msg_free(&reply);
    REQUIRE(sn_msg_new(SN_MSG_KV_GET, 0, &msg, &err));
    memcpy(msg->kv_get.session, p.id, sizeof p.id);
    msg->kv_get.tokens = 8;
    reply = node_client_request(client, &msg);
    cr_expect(reply->kind == SN_MSG_ERROR && reply->error.status == SN_REFUSED &&
              strstr(reply->error.text, "recurrent states, which are not copied"));
    sn_msg_free(&reply);
    REQUIRE(sn_msg_new(SN_MSG_KV_SEND, 0, &msg, &err));
    memcpy(msg->kv_send.session, p.id, sizeof p.id);
    msg->kv_send.end_block = 4;
    reply = node_client_request(client, &msg);
    cr_expect(reply->kind == SN_MSG_ERROR && strstr(reply->error.text, "recurrent states, which are not copied"));
    sn_msg_free(&reply);
    node_session_close(&p);
    node_client_free(&client);
    testbed_free(&w);
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
