/* What an audit keeps of ranges of blocks that a session has left, because its nodes failed one after the other. */
#include "client/audit/audit_private.h" /* private: counts the logs */
#include "tests/support/chain_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { RANGES = 3 * SN_AUDIT_LOGS_MAX };

enum { PROMPTS = 40, PROMPT_ROWS = 128, ROWS_MAX = 2500, LEFT_ROWS_MAX = 5000 };

/* Has the audit note a step of n tokens at a position over blocks [0, end). */
static sn_status note_step_at(sn_audit *audit, int position, int end, int n, int n_embd) {
    const sn_verifier verifier = sn_audit_verifier(audit);
    static float row[PROMPT_ROWS * 64];
    sn_err err = {0};
    sn_hop *hop = calloc(1, sizeof *hop);
    cr_assert(hop);
    hop->end = end;
    const sn_step step = {position, n, n_embd, row, row};
    sn_status status = verifier.note_step(verifier.ctx, hop, 1, &step, &err);
    free(hop);
    return status;
}

static sn_status note_step(sn_audit *audit, int end, int n, int n_embd) {
    return note_step_at(audit, 0, end, n, n_embd);
}

Test(audit_logs, nodes_that_fail_do_not_use_up_the_places_of_those_that_follow) {
    testbed *w = testbed_new(&(cluster_options){0});
    sn_model *model = NULL;
    sn_audit *audit = NULL;
    REQUIRE(sn_model_open(w->path, &model, &err));
    REQUIRE(sn_audit_new(&(sn_audit_options){.model = model}, &audit, &err));
    for (int end = 1; end <= RANGES; end++) {
        cr_assert_eq(note_step(audit, end, 1, w->n_embd), SN_OK);
        const sn_audit_log *newest = &audit->logs[audit->n_logs - 1];
        cr_assert(newest->end == end && newest->n == 1, "the step over 0:%d is not kept for a check", end);
        cr_assert_not(newest->due);
        if (end > 1) cr_assert(newest[-1].due, "what waits of the range before is checked soon");
    }
    const sn_audit_report report = sn_audit_get_report(audit);
    cr_expect_eq(report.steps, RANGES);
    cr_expect_eq(report.unchecked, RANGES, "those that were given up count, and those that wait");
    sn_audit_free(&audit);
    sn_model_close(&model);
    testbed_free(&w);
}

Test(audit_logs, a_range_that_was_left_and_checked_takes_no_memory) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    const int whole = cluster_add(w->cluster, 0, 4);
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4);
    chain_fixture r;
    sn_device *device = NULL;
    sn_audit *audit = NULL;
    chain_fixture_begin(&r, w);
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    const sn_audit_options options = {.model = r.model,
                                      .link = r.link,
                                      .device = device,
                                      .local = true,
                                      .share = 1,
                                      .max_tokens = TESTBED_TOKENS,
                                      .timeout_ms = 10000};
    REQUIRE(sn_audit_new(&options, &audit, &err));
    cr_assert_eq(chain_fixture_try_open(&r, (sn_chain_options){.max_tokens = TESTBED_TOKENS,
                                                               .verification.verifier = sn_audit_verifier(audit)}),
                 SN_OK, "%s", r.err.text);
    chain_fixture_steps(&r, 0, 20, 5);
    cr_assert_eq(audit->n_logs, 1);
    cluster_cut_off(w->cluster, whole);
    chain_fixture_steps(&r, 20, 30, 5);
    cr_expect_eq(audit->n_logs, 2, "the history of blocks 0:4 is kept");
    const sn_audit_report report = sn_audit_get_report(audit);
    cr_expect(report.checked == report.steps && !report.unchecked);
    chain_fixture_close(&r);
    sn_audit_free(&audit);
    sn_device_close(&device);
    testbed_free(&w);
}

/* A server's session without an auditor gets one prompt after the other. */
Test(audit_logs, prompts_that_wait_for_an_auditor_take_a_bounded_memory) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 0, 4);
    chain_fixture r;
    sn_audit *audit = NULL;
    chain_fixture_begin(&r, w);
    const sn_audit_options options = {
        .model = r.model, .link = r.link, .share = 1, .max_tokens = TESTBED_TOKENS, .timeout_ms = 10000};
    REQUIRE(sn_audit_new(&options, &audit, &err));
    cr_assert_eq(chain_fixture_try_open(&r, (sn_chain_options){.max_tokens = TESTBED_TOKENS,
                                                               .verification.verifier = sn_audit_verifier(audit)}),
                 SN_OK, "%s", r.err.text);
    size_t most = 0, steps = 0;
    for (int i = 0; i < PROMPTS; i++, steps++) {
        chain_fixture_steps(&r, 0, TESTBED_TOKENS, TESTBED_TOKENS);
        const sn_audit_log *l = &audit->logs[0];
        if (most < l->rows) most = l->rows;
        cr_expect_geq(l->rows, TESTBED_TOKENS, "the newest prompt waits on");
    }
    cr_expect_leq(most, ROWS_MAX, "%zu rows wait", most);
    cr_expect_eq(sn_audit_get_report(audit).unchecked, steps);
    chain_fixture_close(&r);
    sn_audit_free(&audit);
    testbed_free(&w);
}

Test(audit_logs, ranges_that_were_left_take_a_bounded_memory) {
    testbed *w = testbed_new(&(cluster_options){0});
    sn_model *model = NULL;
    sn_audit *audit = NULL;
    sn_finding finding;
    sn_err none;
    size_t rows = 0;
    REQUIRE(sn_model_open(w->path, &model, &err));
    REQUIRE(sn_audit_new(&(sn_audit_options){.model = model}, &audit, &err));
    const sn_verifier verifier = sn_audit_verifier(audit);
    for (int end = 1; end <= SN_AUDIT_LOGS_MAX; end++) {
        cr_assert_eq(note_step(audit, end, PROMPT_ROWS, w->n_embd), SN_OK);
        audit->logs[audit->n_logs - 1].retry_us = INT64_MAX; /* no auditor was found */
    }
    cr_assert_eq(verifier.check(verifier.ctx, NULL, false, &finding, &none), SN_OK);
    for (size_t i = 0; i < audit->n_logs; i++) rows += audit->logs[i].rows;
    cr_expect(rows >= PROMPT_ROWS && rows <= LEFT_ROWS_MAX, "%zu rows wait", rows);
    cr_expect_eq(audit->logs[audit->n_logs - 1].end, SN_AUDIT_LOGS_MAX, "the newest range is not kept");
    cr_expect_eq(sn_audit_get_report(audit).unchecked, SN_AUDIT_LOGS_MAX);
    sn_audit_free(&audit);
    sn_model_close(&model);
    testbed_free(&w);
}

/* Later steps have their keys and values from it. */
Test(audit_logs, a_step_that_was_given_up_counts_until_the_session_goes_back_to_before_it) {
    enum { KEPT = PROMPT_ROWS / 2, TIMES = 40 };
    testbed *w = testbed_new(&(cluster_options){0});
    sn_model *model = NULL;
    sn_audit *audit = NULL;
    sn_finding finding;
    sn_err none;
    REQUIRE(sn_model_open(w->path, &model, &err));
    REQUIRE(sn_audit_new(&(sn_audit_options){.model = model}, &audit, &err));
    const sn_verifier verifier = sn_audit_verifier(audit);
    cr_expect(sn_audit_timeline_is_checked(audit));
    cr_assert_eq(note_step(audit, 4, PROMPT_ROWS, w->n_embd), SN_OK);
    cr_expect_not(sn_audit_timeline_is_checked(audit), "it waits");
    audit->logs[0].retry_us = INT64_MAX;
    for (int i = 0; i < TIMES; i++) {
        verifier.rewind(verifier.ctx, KEPT);
        cr_assert_eq(note_step_at(audit, KEPT, 4, KEPT, w->n_embd), SN_OK);
    }
    cr_assert_eq(verifier.check(verifier.ctx, NULL, false, &finding, &none), SN_OK);
    cr_assert(audit->logs[0].n && audit->logs[0].entries[0].position == KEPT, "the first step is not given up");
    verifier.rewind(verifier.ctx, KEPT); /* what waits is left */
    cr_expect_not(sn_audit_timeline_is_checked(audit));
    verifier.rewind(verifier.ctx, 0);
    cr_expect(sn_audit_timeline_is_checked(audit));
    cr_expect_eq(sn_audit_get_report(audit).unchecked, TIMES + 1, "the report counts all steps");
    sn_audit_free(&audit);
    sn_model_close(&model);
    testbed_free(&w);
}

/* Else a session that holds its text back until it is checked would show none any more. */
Test(audit_logs, auditors_that_failed_count_until_the_session_goes_back_to_before_their_steps) {
    testbed *w = testbed_new(&(cluster_options){0});
    sn_model *model = NULL;
    sn_audit *audit = NULL;
    REQUIRE(sn_model_open(w->path, &model, &err));
    REQUIRE(sn_audit_new(&(sn_audit_options){.model = model}, &audit, &err));
    const sn_verifier verifier = sn_audit_verifier(audit);
    for (int end = 1; end <= SN_AUDIT_LOGS_MAX + 1; end++) { /* the first one is given up */
        cr_assert_eq(note_step(audit, end, 1, w->n_embd), SN_OK);
        audit->logs[0].auditor_failed = end <= SN_AUDIT_LOGS_MAX;
    }
    cr_expect(verifier.is_incomplete(verifier.ctx), "the step that was given up is forgotten");
    audit->logs[1].auditor_failed = true;
    verifier.rewind(verifier.ctx, 0);
    cr_expect_not(verifier.is_incomplete(verifier.ctx));
    cr_expect_eq(sn_audit_get_report(audit).unchecked_failed, 2, "the report counts all steps");
    sn_audit_free(&audit);
    sn_model_close(&model);
    testbed_free(&w);
}

Test(audit_logs, prompts_that_were_given_up_do_not_count_for_the_ones_after_them) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 0, 4);
    chain_fixture r;
    sn_device *device = NULL;
    sn_audit *audit = NULL;
    chain_fixture_begin(&r, w);
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    const sn_audit_options options = {
        .model = r.model, .link = r.link, .share = 1, .max_tokens = TESTBED_TOKENS, .timeout_ms = 10000};
    REQUIRE(sn_audit_new(&options, &audit, &err));
    cr_assert_eq(chain_fixture_try_open(&r, (sn_chain_options){.max_tokens = TESTBED_TOKENS,
                                                               .verification.verifier = sn_audit_verifier(audit)}),
                 SN_OK, "%s", r.err.text);
    for (int i = 0; i < PROMPTS; i++) chain_fixture_steps(&r, 0, TESTBED_TOKENS, TESTBED_TOKENS);
    cr_expect_not(sn_audit_timeline_is_checked(audit));
    audit->options.device = device; /* from now on there is an auditor */
    audit->options.local = true;
    chain_fixture_steps(&r, 0, TESTBED_TOKENS, TESTBED_TOKENS);
    REQUIRE(sn_chain_audit(r.chain, &err));
    const sn_audit_report report = sn_audit_get_report(audit);
    cr_expect(report.checked && report.unchecked, "%d checked, %d unchecked", (int)report.checked,
              (int)report.unchecked);
    cr_expect(sn_audit_timeline_is_checked(audit));
    chain_fixture_close(&r);
    sn_audit_free(&audit);
    sn_device_close(&device);
    testbed_free(&w);
}

/* A check of ranges whose auditors fall silent takes up to the time of a call for each, and longer than a minute. */
Test(audit_logs, ranges_that_are_checked_in_vain_leave_most_of_the_time_to_the_session) {
    enum { SECOND_US = 1000000, CALL_US = 30 * SECOND_US };
    cr_expect_eq(sn_audit_pause_us(1, SECOND_US), 60 * SECOND_US);
    for (size_t n = 1; n <= SN_AUDIT_LOGS_MAX; n *= 2) /* each is checked once in the time of its check and its pause */
        cr_expect_geq(CALL_US + sn_audit_pause_us(n, CALL_US), 3 * (int64_t)n * CALL_US, "of %zu ranges", n);
}
