/* KV pages travel in parts of a bounded size, into a node as out of it, so that no part delays the steps of others for
 * long. Here a part is PART_TOKENS tokens: the linker puts __wrap_sn_kv_transfer_tokens in the place of the function
 * that says so. */
#include "base/clock.h"
#include "tests/support/chain_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { PART_TOKENS = 8, TOKENS = 50 };

static bool small_parts; /* in these tests */
static void setup(void) { small_parts = true; }
TestSuite(kv_parts, .init = setup);

int __real_sn_kv_transfer_tokens(size_t token_bytes); /* the linker's names */
int __wrap_sn_kv_transfer_tokens(size_t token_bytes);
int __wrap_sn_kv_transfer_tokens(size_t token_bytes) {
    cr_assert(token_bytes);
    return small_parts ? PART_TOKENS : __real_sn_kv_transfer_tokens(token_bytes);
}

static atomic_int parts, largest; /* of the KV_PUTs and KV_GET_REPLYs on the wire */

static sn_hub_action count_parts(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    (void)ctx, (void)from, (void)to;
    if (msg->kind != SN_MSG_KV_PUT && msg->kind != SN_MSG_KV_GET_REPLY) return SN_DELIVER;
    int tokens = (int)msg->tensor.shape[2];
    parts++;
    if (tokens > largest) largest = tokens;
    return SN_DELIVER;
}

static void expect_parts(int n) {
    cr_expect_eq(parts, n, "there were %d parts", parts);
    cr_expect_eq(largest, PART_TOKENS, "a part had %d tokens", largest);
    parts = largest = 0;
}

/* A saved session: read from a node, and written to the nodes of another cut. */
Test(kv_parts, a_client_reads_and_writes_a_session_in_parts) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    chain_fixture r;
    sn_hash marks[TOKENS + 1];
    float *rows = malloc(sizeof(float) * TOKENS * (size_t)w->n_blocks * 2 * 64 * 64);
    cluster_add(w->cluster, 0, 4);
    sn_hub_set_filter(cluster_hub(w->cluster), count_parts, NULL);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, TOKENS, 13);
    REQUIRE(sn_chain_get_kv(r.chain, 0, TOKENS, rows, &err));
    expect_parts(7); /* of one node */
    chain_fixture_close(&r);
    for (int i = 0; i <= TOKENS; i++) marks[i] = sn_hash_of(&i, sizeof i);
    cluster_add(w->cluster, 0, 1);
    cluster_add(w->cluster, 1, 4);
    const char *only[] = {"node1", "node2"};
    chain_fixture_open(&r, w, (sn_chain_options){.routing.node_filter = {only, 2, NULL, 0}});
    REQUIRE(sn_chain_put_kv(r.chain, 0, TOKENS, rows, marks, &err));
    expect_parts(14); /* of two */
    REQUIRE(sn_chain_resume(r.chain, TOKENS, marks, w->inputs, &err));
    chain_fixture_steps(&r, TOKENS, TESTBED_TOKENS, 9);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    chain_fixture_close(&r);
    sn_hub_set_filter(cluster_hub(w->cluster), NULL, NULL);
    free(rows);
    testbed_free(&w);
}

/* Seven parts where two are allowed per second: the last ones are delayed. */
Test(kv_parts, a_client_that_restores_a_session_waits_for_nodes_that_limit_steps) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .quota = {.steps_per_s = 2}});
    chain_fixture r;
    sn_hash marks[TOKENS + 1];
    float *rows = calloc(TOKENS * (size_t)w->n_blocks * 2 * 64 * 64, sizeof *rows);
    for (int i = 0; i <= TOKENS; i++) marks[i] = sn_hash_of(&i, sizeof i);
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    REQUIRE(sn_chain_put_kv(r.chain, 0, TOKENS, rows, marks, &err));
    chain_fixture_close(&r);
    free(rows);
    testbed_free(&w);
}

/* Seven parts that are read: each counts as a step. */
Test(kv_parts, a_client_that_reads_a_session_waits_for_nodes_that_limit_steps) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .quota = {.steps_per_s = 2}});
    chain_fixture r;
    float *rows = calloc(TOKENS * (size_t)w->n_blocks * 2 * 64 * 64, sizeof *rows);
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, TOKENS, 25);
    int64_t began_us = sn_now_us();
    REQUIRE(sn_chain_get_kv(r.chain, 0, TOKENS, rows, &err));
    cr_expect_geq(sn_now_us() - began_us, 2000000);
    chain_fixture_close(&r);
    free(rows);
    testbed_free(&w);
}

/* -- replies of a node that lies about the KV pages that a client reads: one of their fields is changed on the way */

enum {
    NOTHING,
    FEWER,
    MORE,
    OTHER_BLOCKS,
    OTHER_HALVES,
    OTHER_WIDTH,
    OTHER_TIMELINES,
    OTHER_POSITION,
    OTHER_HASH,
    CHANGES
};
static atomic_int change;

static sn_hub_action change_reply(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    (void)ctx, (void)from, (void)to;
    sn_msg *m = (sn_msg *)(uintptr_t)msg;
    sn_msg_kv_get_reply *reply = &m->kv_get_reply;
    if (m->kind != SN_MSG_KV_GET_REPLY) return SN_DELIVER;
    if (change == FEWER) m->tensor.shape[2] = reply->n_token_timelines = 1;
    if (change == MORE) m->tensor.shape[2]++;
    if (change == OTHER_BLOCKS) m->tensor.shape[0]--;
    if (change == OTHER_HALVES) m->tensor.shape[1]--;
    if (change == OTHER_WIDTH) m->tensor.shape[3]--;
    if (change == OTHER_TIMELINES) reply->n_token_timelines--;
    if (change == OTHER_POSITION) reply->position++;
    if (change == OTHER_HASH) reply->token_timelines[reply->n_token_timelines - 1].timeline[0] ^= 1;
    return SN_DELIVER;
}

Test(kv_parts, a_client_takes_no_other_kv_pages_than_it_has_asked_for) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    chain_fixture r;
    float *rows = calloc(PART_TOKENS * (size_t)w->n_blocks * 2 * 64 * 64, sizeof *rows);
    cluster_add(w->cluster, 0, 4);
    chain_fixture_open(&r, w, (sn_chain_options){0});
    chain_fixture_steps(&r, 0, PART_TOKENS, PART_TOKENS);
    sn_hub_set_filter(cluster_hub(w->cluster), change_reply, NULL);
    for (change = NOTHING; change < CHANGES; change++) {
        sn_status status = sn_chain_get_kv(r.chain, 0, PART_TOKENS, rows, &r.err);
        cr_expect_eq(status, change == NOTHING ? SN_OK : SN_RETRY, "change %d: %s", (int)change, r.err.text);
        const char *why = change == FEWER        ? "fewer KV pages"
                          : change == OTHER_HASH ? "another timeline"
                                                 : "another shape";
        if (change != NOTHING) cr_expect(strstr(r.err.text, why), "change %d: %s", (int)change, r.err.text);
    }
    chain_fixture_close(&r);
    sn_hub_set_filter(cluster_hub(w->cluster), NULL, NULL);
    free(rows);
    testbed_free(&w);
}

static _Atomic int64_t second_part_us;

/* The second part is put off; when it comes again, the node does not hear of it. */
static sn_hub_action lose_what_was_put_off(void *ctx, const char *from, const char *to, const sn_msg *msg) {
    (void)ctx, (void)from, (void)to;
    if (msg->kind != SN_MSG_KV_PUT) return SN_DELIVER;
    if (++parts == 2) second_part_us = sn_now_us();
    return parts > 2 ? SN_DROP : SN_DELIVER;
}

Test(kv_parts, a_part_that_is_put_off_and_then_lost_has_one_timeout) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .quota = {.steps_per_s = 1}});
    chain_fixture r;
    sn_hash marks[2 * PART_TOKENS + 1] = {0};
    float *rows = calloc(2 * PART_TOKENS * (size_t)w->n_blocks * 2 * 64 * 64, sizeof *rows);
    sn_chain_options options = {0};
    chain_default_limits(&options);
    options.limits.timeout_ms = 2000;
    cluster_add(w->cluster, 0, 4);
    sn_hub_set_filter(cluster_hub(w->cluster), lose_what_was_put_off, NULL);
    chain_fixture_open(&r, w, options);
    cr_expect_eq(sn_chain_put_kv(r.chain, 0, 2 * PART_TOKENS, rows, marks, &r.err), SN_RETRY);
    int64_t took_us = sn_now_us() - second_part_us;
    cr_expect(parts > 2 && took_us > 1900000 && took_us < 2600000, "%d parts, %lld us", parts, (long long)took_us);
    chain_fixture_close(&r);
    sn_hub_set_filter(cluster_hub(w->cluster), NULL, NULL);
    free(rows);
    testbed_free(&w);
}

/* Seven parts as well: the node that they come from repeats those that are put off. */
Test(kv_parts, a_kv_migration_waits_for_a_node_that_limits_the_steps_of_its_owner) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .quota = {.steps_per_s = 2}});
    node_session from, to;
    cluster_add(w->cluster, 0, 0);
    cluster_add(w->cluster, 0, 0);
    const sn_node *second = cluster_node(w->cluster, 1);
    node_client *t = node_client_new(w, 0), u = {.identity = t->identity};
    u.transport = cluster_transport_as(w->cluster, &u.identity);
    REQUIRE(sn_transport_dial(u.transport, sn_node_address(second), sn_node_curve_key(second), &u.node, &err));
    node_session_init(&from, w, t, 0, 4);
    node_session_init(&to, w, &u, 0, 4);
    node_session_open(&from);
    cr_assert(node_session_step_ok(&from, 0, TOKENS));
    sn_msg *msg = node_session_open_message(&to);
    memcpy(msg->open.kv_source, sn_node_curve_key(cluster_node(w->cluster, 0)), SN_KEY_SIZE);
    sn_msg *answer = node_client_request(&u, &msg);
    cr_assert_eq(answer->kind, SN_MSG_OPEN_REPLY);
    sn_msg_free(&answer);
    REQUIRE(sn_msg_new(SN_MSG_KV_SEND, 0, &msg, &err));
    memcpy(msg->kv_send.session, from.id, SN_SESSION_ID_SIZE);
    memcpy(msg->kv_send.target, to.id, SN_SESSION_ID_SIZE);
    msg->kv_send.end_block = 4;
    node_client_announcement(w, 1, &msg->kv_send.node, &msg->kv_send.n_node);
    answer = node_client_request(t, &msg);
    cr_assert_eq(answer->kind, SN_MSG_KV_SEND_REPLY, "%s", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
    cr_expect_eq(answer->kv_send_reply.length, TOKENS);
    sn_msg_free(&answer);
    node_session_close(&from);
    node_session_close(&to);
    sn_transport_free(&u.transport);
    node_client_free(&t);
    testbed_free(&w);
}

Test(kv_parts, a_node_refuses_a_larger_part) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    node_session p;
    cluster_add(w->cluster, 0, 0);
    node_client *t = node_client_new(w, 0);
    node_session_init(&p, w, t, 0, 4);
    node_session_open(&p);
    for (int tokens = PART_TOKENS; tokens <= PART_TOKENS + 1; tokens++) {
        sn_msg *msg = node_session_kv_put_message(&p, 0, tokens), *answer = node_client_request(t, &msg);
        if (tokens > PART_TOKENS) {
            cr_expect(is_refusal(answer, SN_REFUSED, "send those of at most 8 tokens at once"));
            continue;
        }
        cr_expect_eq(answer->kind, SN_MSG_KV_PUT_REPLY, "%s", answer->kind == SN_MSG_ERROR ? answer->error.text : "?");
        sn_msg_free(&answer);
    }
    node_session_close(&p);
    node_client_free(&t);
    testbed_free(&w);
}
