/* Quotas and priorities: how much of a node one client may use, and whose work comes first. */
#include "base/clock.h"
#include "node/protocol/quota.h"
#include "tests/support/require.h"
#include "tests/support/chain_fixture.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SECOND = 1000000 };

static sn_quota *quota_of(sn_quota_limits limits) {
    sn_quota *q = NULL;
    REQUIRE(sn_quota_new(&limits, &q, &err));
    return q;
}

Test(quota, of_steps_allows_a_burst_of_a_second_then_the_rate) {
    sn_quota *q = quota_of((sn_quota_limits){.steps_per_s = 10});
    uint8_t one[SN_KEY_SIZE] = {1}, two[SN_KEY_SIZE] = {2};
    sn_err err;
    int64_t now = 5 * SECOND;
    for (int i = 0; i < 10; i++) cr_expect_eq(sn_quota_step(q, one, now, &err), SN_OK, "step %d", i);
    cr_expect_eq(sn_quota_step(q, one, now, &err), SN_RETRY);
    cr_expect(strstr(err.text, "10 steps per second"), "%s", err.text);
    cr_expect_eq(err.retry_after_ms, 101, "%d ms", err.retry_after_ms);
    cr_expect_eq(sn_quota_step(q, two, now, &err), SN_OK, "clients share a quota");
    cr_expect_eq(sn_quota_step(q, one, now + 99999, &err), SN_RETRY);
    cr_expect_eq(sn_quota_step(q, one, now + 100000, &err), SN_OK);
    cr_expect_eq(sn_quota_step(q, one, now + 100000, &err), SN_RETRY);
    int done = 0; /* a client that asks all the time gets its ten per second, no more and no less */
    for (int64_t t = now + 100000; t < now + 100000 + 7 * SECOND; t += 1234) done += !sn_quota_step(q, one, t, &err);
    cr_expect(done == 69 || done == 70, "%d", done);
    done = 0; /* unused steps are not accumulated */
    for (int i = 0; i < 50; i++) done += !sn_quota_step(q, one, now + 1000 * SECOND, &err);
    cr_expect_eq(done, 10);
    cr_expect_gt(sn_quota_refusals(q, SN_QUOTA_STEPS), 40);
    sn_quota_free(&q);
}

Test(quota, of_steps_counts_larger_work_as_many_steps) {
    sn_quota *q = quota_of((sn_quota_limits){.steps_per_s = 10});
    uint8_t one[SN_KEY_SIZE] = {1}, two[SN_KEY_SIZE] = {2};
    sn_err err;
    int64_t now = 5 * SECOND;
    cr_expect_eq(sn_quota_steps(q, one, 35, now, &err), SN_OK); /* more than the bucket holds: it has to refill */
    cr_expect_eq(sn_quota_step(q, one, now, &err), SN_RETRY);
    cr_expect_eq(err.retry_after_ms, 2601, "%d ms", err.retry_after_ms);
    cr_expect_eq(sn_quota_step(q, two, now, &err), SN_OK);
    cr_expect_eq(sn_quota_step(q, one, now + 2599999, &err), SN_RETRY);
    cr_expect_eq(sn_quota_step(q, one, now + 2600000, &err), SN_OK);
    cr_expect_eq(sn_quota_steps(q, one, 1000000, now + 1000 * SECOND, &err), SN_OK);
    cr_expect_eq(sn_quota_step(q, one, now + 2000 * SECOND, &err), SN_RETRY);
    sn_quota_free(&q);
}

Test(quota, of_steps_keeps_a_bounded_table_of_recent_clients) {
    sn_quota *q = quota_of((sn_quota_limits){.steps_per_s = 1});
    sn_err err;
    uint8_t key[SN_KEY_SIZE], busy[SN_KEY_SIZE] = {0xff, 7};
    for (int i = 0; i < 100000; i++) {
        sn_random(key, sizeof key);
        cr_assert_eq(sn_quota_step(q, key, SECOND + i, &err), SN_OK);
        if (i % 10 == 0 && sn_quota_step(q, busy, SECOND + i, &err)) {}
    }
    cr_expect_eq(sn_quota_step(q, busy, SECOND + 100000, &err), SN_RETRY, "many other keys evicted its entry");
    sn_quota_free(&q);
}

Test(quota, counts_refusals_by_kind) {
    sn_quota *q = quota_of((sn_quota_limits){.sessions = 2, .kv_bytes = 100, .steps_per_s = 5});
    uint8_t key[SN_KEY_SIZE] = {1};
    sn_err err;
    int refused[SN_QUOTA_KINDS] = {0};
    for (int i = 0; i < 4; i++) refused[SN_QUOTA_SESSIONS] += sn_quota_session(q, (size_t)i, &err) != SN_OK;
    for (int i = 0; i < 3; i++) refused[SN_QUOTA_KV] += sn_quota_kv(q, (size_t)(100 + i / 2), &err) != SN_OK;
    for (int i = 0; i < 9; i++) refused[SN_QUOTA_STEPS] += sn_quota_step(q, key, SECOND, &err) != SN_OK;
    for (int i = 0; i < SN_QUOTA_KINDS; i++) cr_expect_eq(sn_quota_refusals(q, (sn_quota_kind)i), refused[i], "%d", i);
    cr_expect(refused[0] == 2 && refused[1] == 1 && refused[2] == 4);
    sn_quota_free(&q);
}

Test(quota, without_limits_refuses_nothing) {
    sn_quota *q = quota_of((sn_quota_limits){0});
    uint8_t key[SN_KEY_SIZE] = {1};
    sn_err err;
    for (int i = 0; i < 1000; i++) cr_assert_eq(sn_quota_step(q, key, 1, &err), SN_OK);
    cr_expect_eq(sn_quota_session(q, 1 << 30, &err), SN_OK);
    cr_expect_eq(sn_quota_kv(q, SIZE_MAX, &err), SN_OK);
    cr_expect_eq(sn_quota_priority(q, key), 0);
    for (int i = 0; i < SN_QUOTA_KINDS; i++) cr_expect_eq(sn_quota_refusals(q, (sn_quota_kind)i), 0);
    sn_quota_free(&q);
}

Test(quota, priorities_are_parsed_or_refused) {
    sn_priority p;
    sn_err err;
    char text[80];
    uint8_t key[SN_KEY_SIZE] = {0xab, 0xcd};
    char hex[2 * SN_KEY_SIZE + 1];
    snprintf(text, sizeof text, "%s=-7", sn_hex(key, sizeof key, hex));
    cr_expect_eq(sn_priority_parse(text, &p, &err), SN_OK, "%s", err.text);
    cr_expect(p.value == -7 && !memcmp(p.key, key, sizeof key));
    sn_quota *q = quota_of((sn_quota_limits){.priorities = &p, .n_priorities = 1});
    cr_expect_eq(sn_quota_priority(q, key), -7);
    sn_quota_free(&q);
    const char *wrong[] = {"abcd=1", "", "=3", hex};
    for (int i = 0; i < 4; i++) {
        cr_expect_eq(sn_priority_parse(wrong[i], &p, &err), SN_REFUSED);
        cr_expect(strstr(err.text, "KEY=N"), "%s", err.text);
    }
    snprintf(text, sizeof text, "%s=101", hex);
    cr_expect_eq(sn_priority_parse(text, &p, &err), SN_REFUSED);
}

/* -- at a node */

Test(quota, of_sessions_is_per_client_and_freed_by_closing) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .quota = {.sessions = 2}});
    cluster_add(w->cluster, 0, 0);
    node_client *one = node_client_new(w, 0), *two = node_client_new(w, 0);
    node_session p[3], other;
    for (int i = 0; i < 3; i++) node_session_init(&p[i], w, one, 0, 4);
    node_session_init(&other, w, two, 0, 4);
    node_session_open(&p[0]);
    node_session_open(&p[1]);
    node_session_open(&p[1]); /* a repeated OPEN of the same session */
    sn_msg *msg = node_session_open_message(&p[2]);
    cr_expect(is_refusal(node_client_request(one, &msg), SN_RETRY, "2 sessions per client"));
    node_session_open(&other);
    node_session_close(&p[0]);
    node_session_open(&p[2]);
    cr_expect(node_session_step_ok(&p[2], 0, 4));
    node_session_close(&p[1]);
    node_session_close(&p[2]);
    node_session_close(&other);
    node_client_free(&one);
    node_client_free(&two);
    testbed_free(&w);
}

Test(quota, of_kv_cache_counts_all_sessions_of_a_client) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .quota = {.kv_bytes = 3}}); /* pages */
    cluster_add(w->cluster, 0, 0);
    node_client *one = node_client_new(w, 0), *two = node_client_new(w, 0);
    node_session a, b, other;
    node_session_init(&a, w, one, 0, 4);
    node_session_init(&b, w, one, 0, 4);
    node_session_init(&other, w, two, 0, 4);
    node_session_open(&a);
    node_session_open(&b);
    node_session_open(&other);
    cr_expect(node_session_step_ok(&a, 0, 64)); /* two pages of 32 tokens */
    cr_expect(node_session_step_ok(&b, 0, 32));
    sn_msg *msg = node_session_step_message(&b, 32, 1);
    cr_expect(is_refusal(node_client_request(one, &msg), SN_RETRY, "of KV pages per client"));
    cr_expect(node_session_step_ok(&other, 0, 96));
    cr_expect(node_session_step_ok(&a, 30, 2)); /* a rewind frees pages */
    cr_expect(node_session_step_ok(&b, 32, 1));
    node_session_close(&a);
    node_session_close(&b);
    node_session_close(&other);
    node_client_free(&one);
    node_client_free(&two);
    testbed_free(&w);
}

/* The client writes KV pages of n tokens of zeros. The answer. */
static sn_msg *put(node_session *p, int position, int n) {
    sn_msg *msg = node_session_kv_put_message(p, position, n);
    return node_client_request(p->client, &msg);
}

static bool put_ok(node_session *p, int position, int n) {
    sn_msg *answer = put(p, position, n);
    bool ok = answer->kind == SN_MSG_KV_PUT_REPLY && answer->kv_put_reply.length == (uint64_t)(position + n);
    sn_msg_free(&answer);
    return ok;
}

Test(quota, of_kv_cache_counts_pages_that_are_written_into_sessions) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .quota = {.kv_bytes = 3}}); /* pages */
    cluster_add(w->cluster, 0, 0);
    node_client *one = node_client_new(w, 0), *two = node_client_new(w, 0);
    node_session a, b, other;
    node_session_init(&a, w, one, 0, 4);
    node_session_init(&b, w, one, 0, 4);
    node_session_init(&other, w, two, 0, 4);
    node_session_open(&a);
    node_session_open(&b);
    node_session_open(&other);
    cr_expect(put_ok(&a, 0, 64)); /* two pages of 32 tokens */
    cr_expect(put_ok(&b, 0, 32));
    cr_expect(is_refusal(put(&b, 32, 1), SN_RETRY, "of KV pages per client"));
    cr_expect(put_ok(&other, 0, 96));
    cr_expect(put_ok(&a, 0, 32), "a rewind frees pages");
    cr_expect(put_ok(&b, 32, 1));
    node_session_close(&a);
    node_session_close(&b);
    node_session_close(&other);
    node_client_free(&one);
    node_client_free(&two);
    testbed_free(&w);
}

Test(quota, of_steps_counts_parts_of_kv_pages) {
    virtual_clock_begin_still(); /* no credit returns meanwhile */
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .quota = {.steps_per_s = 2}});
    cluster_add(w->cluster, 0, 0);
    node_client *one = node_client_new(w, 0), *two = node_client_new(w, 0);
    node_session a, other;
    node_session_init(&a, w, one, 0, 4);
    node_session_init(&other, w, two, 0, 4);
    node_session_open(&a);
    node_session_open(&other);
    cr_expect(put_ok(&a, 0, 1));
    sn_msg *early = put(&a, 5, 1); /* nothing is written: the part before it is missing */
    cr_expect(early->kind == SN_MSG_KV_PUT_REPLY && early->kv_put_reply.length == 1);
    sn_msg_free(&early);
    cr_expect(put_ok(&a, 1, 1));
    cr_expect(is_refusal(put(&a, 2, 1), SN_RETRY, "2 steps per second"));
    cr_expect(put_ok(&other, 0, 1));
    node_session_close(&a);
    node_session_close(&other);
    node_client_free(&one);
    node_client_free(&two);
    testbed_free(&w);
}

Test(quota, of_steps_counts_repeated_steps) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .quota = {.steps_per_s = 3}});
    cluster_add(w->cluster, 0, 0);
    node_client *one = node_client_new(w, 0);
    node_session a;
    node_session_init(&a, w, one, 0, 4);
    node_session_open(&a);
    for (int i = 0; i < 4; i++) { /* the same step four times: the first is computed, the second and third answered */
        a.step = 0;
        sn_msg *msg = node_session_step_message(&a, 0, 4), *answer = node_client_request(one, &msg);
        if (i < 3)
            cr_expect(node_session_reply_ok(&a, answer, 0, 4));
        else
            cr_expect(is_refusal(answer, SN_RETRY, "3 steps per second"));
    }
    node_session_close(&a);
    node_client_free(&one);
    testbed_free(&w);
}

/* Rows behind the last state are computed again: a client that rewinds all the time pays for them. */
Test(quota, of_steps_counts_what_a_rewind_of_recurrent_states_computes_again) {
    testbed *w = testbed_new(
        &(cluster_options){.model = SN_FIXTURES "/golden/qwen3_5", .kv_memory = 400, .quota = {.steps_per_s = 4}});
    cluster_add(w->cluster, 0, 0);
    node_client *one = node_client_new(w, 0);
    node_session a;
    node_session_init(&a, w, one, 0, 4);
    node_session_open(&a);
    cr_expect(node_session_step_ok(&a, 0, 30) && node_session_step_ok(&a, 30, 4));
    cr_expect(node_session_step_ok(&a, 10, 4), "counts as two");
    sn_msg *msg = node_session_step_message(&a, 14, 1);
    cr_expect(is_refusal(node_client_request(one, &msg), SN_RETRY, "4 steps per second"));
    node_session_close(&a);
    node_client_free(&one);
    testbed_free(&w);
}

/* Where a node takes more rows in a step, a client gets no more of its time by them. */
Test(quota, of_steps_counts_long_steps_by_their_rows) {
    virtual_clock_begin_still(); /* no credit returns meanwhile */
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .batch_rows = 2048, .quota = {.steps_per_s = 2}});
    cluster_add(w->cluster, 0, 0);
    node_client *one = node_client_new(w, 0);
    node_session a;
    void *rows;
    node_session_init(&a, w, one, 0, 4);
    node_session_open(&a);
    sn_msg *msg = node_session_step_message(&a, 0, 1);
    const uint64_t shape[] = {4 * SN_SPAN_ROWS, (uint64_t)w->n_embd};
    REQUIRE(sn_msg_new_tensor(msg, SN_F32, 2, shape, &rows, &err));
    cr_expect(is_refusal(node_client_request(one, &msg), SN_REFUSED, "exceed the session's limit"));
    msg = node_session_step_message(&a, 0, 1);
    cr_expect(is_refusal(node_client_request(one, &msg), SN_RETRY, "2 steps per second"));
    node_session_close(&a);
    node_client_free(&one);
    testbed_free(&w);
}

Test(quota, of_steps_limits_one_client_and_not_the_others) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .quota = {.steps_per_s = 3}});
    cluster_add(w->cluster, 0, 0);
    node_client *one = node_client_new(w, 0), *two = node_client_new(w, 0);
    node_session a, other;
    node_session_init(&a, w, one, 0, 4);
    node_session_init(&other, w, two, 0, 4);
    node_session_open(&a);
    node_session_open(&other);
    int refused = 0, done = 0;
    for (int i = 0; i < 60 && !refused; i++) { /* faster than three per second, however slow this machine is */
        sn_msg *msg = node_session_step_message(&a, a.length, 1), *answer = node_client_request(one, &msg);
        refused += answer->kind == SN_MSG_ERROR;
        if (answer->kind == SN_MSG_ERROR)
            cr_expect(is_refusal(answer, SN_RETRY, "3 steps per second"));
        else
            done += node_session_reply_ok(&a, answer, a.length, 1);
    }
    cr_expect(refused == 1 && done >= 3, "%d refused, %d done", refused, done);
    cr_expect(node_session_step_ok(&other, 0, 1));
    sn_sleep_us(400000);
    cr_expect(node_session_step_ok(&a, a.length, 1), "a refused step cannot be repeated");
    node_session_close(&a);
    node_session_close(&other);
    node_client_free(&one);
    node_client_free(&two);
    testbed_free(&w);
}

/* 25 steps where 20 are allowed per second: the last ones are delayed, and no node is replaced because of it. */
static void expect_delay_without_failover(bool push) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64, .quota = {.steps_per_s = 20}});
    chain_fixture r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    chain_fixture_open(&r, w,
                       (sn_chain_options){.limits = {.timeout_ms = 10000, .prefill_depth = SN_PREFILL_DEPTH_MAX},
                                          .routing.push = push});
    chain_fixture_steps(&r, 0, 25, 1);
    cr_expect_eq(sn_chain_failovers(r.chain), 0, "push %d", push);
    chain_fixture_close(&r);
    testbed_free(&w);
}

Test(quota, of_steps_delays_a_client_without_failover) {
    for (int push = 0; push < 2; push++) expect_delay_without_failover(push);
}
