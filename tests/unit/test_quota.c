/* Quotas and priorities: what one client may take of a node, and whose work comes first. */
#include "base/clock.h"
#include "node/quota.h"
#include "tests/support/need.h"
#include "tests/support/run.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SECOND = 1000000 };

static sn_quota *quota_of(sn_quota_limits limits) {
    sn_quota *q = NULL;
    NEED(sn_quota_new(&limits, &q, &err));
    return q;
}

Test(quota, of_steps_lets_a_second_s_worth_through_at_once_and_the_rest_as_time_goes_by) {
    sn_quota *q = quota_of((sn_quota_limits){.steps_per_s = 10});
    uint8_t one[SN_KEY_SIZE] = {1}, two[SN_KEY_SIZE] = {2};
    sn_err err;
    int64_t now = 5 * SECOND;
    for (int i = 0; i < 10; i++) cr_expect_eq(sn_quota_step(q, one, now, &err), SN_OK, "step %d", i);
    cr_expect_eq(sn_quota_step(q, one, now, &err), SN_RETRY);
    cr_expect(strstr(err.text, "10 steps a second"), "%s", err.text);
    cr_expect_eq(err.wait_ms, 101, "%d ms", err.wait_ms);
    cr_expect_eq(sn_quota_step(q, two, now, &err), SN_OK, "the other one's are his own");
    cr_expect_eq(sn_quota_step(q, one, now + 99999, &err), SN_RETRY);
    cr_expect_eq(sn_quota_step(q, one, now + 100000, &err), SN_OK);
    cr_expect_eq(sn_quota_step(q, one, now + 100000, &err), SN_RETRY);
    int done = 0; /* a client that asks all the time gets its ten a second, no more and no less */
    for (int64_t t = now + 100000; t < now + 100000 + 7 * SECOND; t += 1234) done += !sn_quota_step(q, one, t, &err);
    cr_expect(done == 69 || done == 70, "%d", done);
    done = 0; /* silence is not saved up */
    for (int i = 0; i < 50; i++) done += !sn_quota_step(q, one, now + 1000 * SECOND, &err);
    cr_expect_eq(done, 10);
    cr_expect_gt(sn_quota_refusals(q, SN_QUOTA_STEPS), 40);
    sn_quota_free(&q);
}

Test(quota, of_steps_forgets_who_was_silent_for_longest_and_never_grows) {
    sn_quota *q = quota_of((sn_quota_limits){.steps_per_s = 1});
    sn_err err;
    uint8_t key[SN_KEY_SIZE], busy[SN_KEY_SIZE] = {0xff, 7};
    for (int i = 0; i < 100000; i++) {
        sn_random(key, sizeof key);
        cr_assert_eq(sn_quota_step(q, key, SECOND + i, &err), SN_OK);
        if (i % 10 == 0 && sn_quota_step(q, busy, SECOND + i, &err)) {}
    }
    cr_expect_eq(sn_quota_step(q, busy, SECOND + 100000, &err), SN_RETRY, "a crowd of keys washed it out");
    sn_quota_free(&q);
}

Test(quota, what_is_refused_is_counted_each_by_itself) {
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

Test(quota, without_limits_limits_nothing) {
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

Test(quota, priorities_are_read_or_refused_with_a_sentence) {
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

/* -- at a node ------------------------------------------------------------------------------------------------------- */

Test(quota, of_sessions_is_a_client_s_own_and_closing_gives_it_back) {
    world *w = world_new(&(cluster_options){.kv_memory = 64, .quota = {.sessions = 2}});
    cluster_add(w->cluster, 0, 0);
    talk *one = talk_new(w, 0), *two = talk_new(w, 0);
    past p[3], other;
    for (int i = 0; i < 3; i++) past_init(&p[i], w, one, 0, 4);
    past_init(&other, w, two, 0, 4);
    past_open(&p[0]);
    past_open(&p[1]);
    past_open(&p[1]); /* again: the same one */
    sn_msg *msg = past_open_message(&p[2]);
    cr_expect(is_refusal(talk_ask(one, &msg), SN_RETRY, "2 sessions to a client"));
    past_open(&other);
    past_close(&p[0]);
    past_open(&p[2]);
    cr_expect(past_goes_on(&p[2], 0, 4));
    past_close(&p[1]);
    past_close(&p[2]);
    past_close(&other);
    talk_free(&one);
    talk_free(&two);
    world_free(&w);
}

Test(quota, of_keys_and_values_counts_all_sessions_of_a_client) {
    world *w = world_new(&(cluster_options){.kv_memory = 64, .quota = {.kv_bytes = 3}}); /* pages */
    cluster_add(w->cluster, 0, 0);
    talk *one = talk_new(w, 0), *two = talk_new(w, 0);
    past a, b, other;
    past_init(&a, w, one, 0, 4);
    past_init(&b, w, one, 0, 4);
    past_init(&other, w, two, 0, 4);
    past_open(&a);
    past_open(&b);
    past_open(&other);
    cr_expect(past_goes_on(&a, 0, 64)); /* two pages of 32 */
    cr_expect(past_goes_on(&b, 0, 32));
    sn_msg *msg = past_step_message(&b, 32, 1);
    cr_expect(is_refusal(talk_ask(one, &msg), SN_RETRY, "of keys and values for a client"));
    cr_expect(past_goes_on(&other, 0, 96));
    cr_expect(past_goes_on(&a, 30, 2)); /* a rewind gives back */
    cr_expect(past_goes_on(&b, 32, 1));
    past_close(&a);
    past_close(&b);
    past_close(&other);
    talk_free(&one);
    talk_free(&two);
    world_free(&w);
}

Test(quota, of_steps_stops_one_client_and_not_the_others) {
    world *w = world_new(&(cluster_options){.kv_memory = 64, .quota = {.steps_per_s = 3}});
    cluster_add(w->cluster, 0, 0);
    talk *one = talk_new(w, 0), *two = talk_new(w, 0);
    past a, other;
    past_init(&a, w, one, 0, 4);
    past_init(&other, w, two, 0, 4);
    past_open(&a);
    past_open(&other);
    int refused = 0, done = 0;
    for (int i = 0; i < 60 && !refused; i++) { /* faster than three a second, however slow this machine is */
        sn_msg *msg = past_step_message(&a, a.length, 1), *answer = talk_ask(one, &msg);
        refused += answer->kind == SN_MSG_ERROR;
        if (answer->kind == SN_MSG_ERROR)
            cr_expect(is_refusal(answer, SN_RETRY, "3 steps a second"));
        else
            done += past_took(&a, answer, a.length, 1);
    }
    cr_expect(refused == 1 && done >= 3, "%d refused, %d done", refused, done);
    cr_expect(past_goes_on(&other, 0, 1));
    sn_sleep_us(400000);
    cr_expect(past_goes_on(&a, a.length, 1), "what was refused can be asked again");
    past_close(&a);
    past_close(&other);
    talk_free(&one);
    talk_free(&two);
    world_free(&w);
}

/* 25 steps where 20 are a second's worth: the last ones wait for their turn, and no node is given up for it. */
static void expect_patience(bool push) {
    world *w = world_new(&(cluster_options){.kv_memory = 64, .quota = {.steps_per_s = 20}});
    run r;
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    run_open(&r, w, (sn_chain_options){.push = push, .max_retries = -1});
    run_on(&r, 0, 25, 1);
    cr_expect_eq(sn_chain_failovers(r.chain), 0, "push %d", push);
    run_close(&r);
    world_free(&w);
}

Test(quota, of_steps_makes_a_client_wait_and_does_not_cost_it_the_node) {
    for (int push = 0; push < 2; push++) expect_patience(push);
}
