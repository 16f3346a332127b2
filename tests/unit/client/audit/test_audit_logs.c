/* What an audit keeps of ranges of blocks that a session has left, because its nodes failed one after the other. */
#include "client/audit/audit_private.h" /* private: counts the logs */
#include "tests/support/chain_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { RANGES = 3 * SN_AUDIT_LOGS_MAX };

enum { PROMPTS = 40, PROMPT_ROWS = 128, ROWS_MAX = 2500, LEFT_ROWS_MAX = 5000 };

/* An audit without nodes, which a test has note steps. */
typedef struct noted {
    testbed *w;
    sn_model *model;
    sn_audit *audit;
    sn_verifier verifier;
} noted;

static noted noted_begin(void) {
    noted t = {.w = testbed_new(&(cluster_options){0})};
    REQUIRE(sn_model_open(t.w->path, &t.model, &err));
    REQUIRE(sn_audit_new(&(sn_audit_options){.model = t.model}, &t.audit, &err));
    t.verifier = sn_audit_verifier(t.audit);
    return t;
}

static void noted_end(noted *t) {
    sn_audit_free(&t->audit);
    sn_model_close(&t->model);
    testbed_free(&t->w);
}

/* A step of n tokens at a position over blocks [0, end). */
static void note_step_at(const noted *t, int position, int end, int n) {
    static float row[PROMPT_ROWS * 64];
    sn_hop *hop = calloc(1, sizeof *hop);
    cr_assert(hop);
    hop->end = end;
    const sn_step step = {position, n, t->w->n_embd, row, row};
    REQUIRE(t->verifier.note_step(t->verifier.ctx, hop, 1, &step, &err));
    free(hop);
}

static void note_step(const noted *t, int end, int n) { note_step_at(t, 0, end, n); }

static void check_what_is_due(const noted *t) {
    sn_finding finding;
    REQUIRE(t->verifier.check(t->verifier.ctx, NULL, false, &finding, &err));
}

/* A chain that is audited by the device, if there is one, or by other nodes. */
static void open_audited(chain_fixture *r, sn_device *device, sn_audit **audit) {
    const sn_audit_options options = {.model = r->model,
                                      .link = r->link,
                                      .device = device,
                                      .local = device != NULL,
                                      .share = 1,
                                      .max_tokens = TESTBED_TOKENS,
                                      .timeout_ms = 10000};
    REQUIRE(sn_audit_new(&options, audit, &err));
    cr_assert_eq(chain_fixture_try_open(r, (sn_chain_options){.max_tokens = TESTBED_TOKENS,
                                                              .verification.verifier = sn_audit_verifier(*audit)}),
                 SN_OK, "%s", r->err.text);
}

Test(audit_logs, nodes_that_fail_do_not_use_up_the_places_of_those_that_follow) {
    noted t = noted_begin();
    sn_audit *audit = t.audit;
    for (int end = 1; end <= RANGES; end++) {
        note_step(&t, end, 1);
        const sn_audit_log *newest = &audit->logs[audit->n_logs - 1];
        cr_assert(newest->end == end && newest->n == 1, "the step over 0:%d is not kept for a check", end);
        cr_assert_not(newest->due);
        if (end > 1) cr_assert(newest[-1].due, "what waits of the range before is checked soon");
    }
    const sn_audit_report report = sn_audit_get_report(audit);
    cr_expect_eq(report.steps, RANGES);
    cr_expect_eq(report.unchecked, RANGES, "those that were given up count, and those that wait");
    noted_end(&t);
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
    open_audited(&r, device, &audit);
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
    open_audited(&r, NULL, &audit);
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
    size_t rows = 0;
    noted t = noted_begin();
    sn_audit *audit = t.audit;
    for (int end = 1; end <= SN_AUDIT_LOGS_MAX; end++) {
        note_step(&t, end, PROMPT_ROWS);
        audit->logs[audit->n_logs - 1].retry_us = INT64_MAX; /* no auditor was found */
    }
    check_what_is_due(&t);
    for (size_t i = 0; i < audit->n_logs; i++) rows += audit->logs[i].rows;
    cr_expect(rows >= PROMPT_ROWS && rows <= LEFT_ROWS_MAX, "%zu rows wait", rows);
    cr_expect_eq(audit->logs[audit->n_logs - 1].end, SN_AUDIT_LOGS_MAX, "the newest range is not kept");
    cr_expect_eq(sn_audit_get_report(audit).unchecked, SN_AUDIT_LOGS_MAX);
    noted_end(&t);
}

/* Later steps have their keys and values from it. */
Test(audit_logs, a_step_that_was_given_up_counts_until_the_session_goes_back_to_before_it) {
    enum { KEPT = PROMPT_ROWS / 2, TIMES = 40 };
    noted t = noted_begin();
    sn_audit *audit = t.audit;
    cr_expect(sn_audit_timeline_is_checked(audit));
    note_step(&t, 4, PROMPT_ROWS);
    cr_expect_not(sn_audit_timeline_is_checked(audit), "it waits");
    audit->logs[0].retry_us = INT64_MAX;
    for (int i = 0; i < TIMES; i++) {
        t.verifier.rewind(t.verifier.ctx, KEPT);
        note_step_at(&t, KEPT, 4, KEPT);
    }
    check_what_is_due(&t);
    cr_assert(audit->logs[0].n && audit->logs[0].entries[0].position == KEPT, "the first step is not given up");
    t.verifier.rewind(t.verifier.ctx, KEPT); /* what waits is left */
    cr_expect_not(sn_audit_timeline_is_checked(audit));
    t.verifier.rewind(t.verifier.ctx, 0);
    cr_expect(sn_audit_timeline_is_checked(audit));
    cr_expect_eq(sn_audit_get_report(audit).unchecked, TIMES + 1, "the report counts all steps");
    noted_end(&t);
}

/* Else a session that holds its text back until it is checked would show none any more. */
Test(audit_logs, auditors_that_failed_count_until_the_session_goes_back_to_before_their_steps) {
    noted t = noted_begin();
    sn_audit *audit = t.audit;
    for (int end = 1; end <= SN_AUDIT_LOGS_MAX + 1; end++) { /* the first one is given up */
        note_step(&t, end, 1);
        audit->logs[0].auditor_failed = end <= SN_AUDIT_LOGS_MAX;
    }
    cr_expect(t.verifier.is_incomplete(t.verifier.ctx), "the step that was given up is forgotten");
    audit->logs[1].auditor_failed = true;
    t.verifier.rewind(t.verifier.ctx, 0);
    cr_expect_not(t.verifier.is_incomplete(t.verifier.ctx));
    cr_expect_eq(sn_audit_get_report(audit).unchecked_failed, 2, "the report counts all steps");
    noted_end(&t);
}

Test(audit_logs, prompts_that_were_given_up_do_not_count_for_the_ones_after_them) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 0, 4);
    chain_fixture r;
    sn_device *device = NULL;
    sn_audit *audit = NULL;
    chain_fixture_begin(&r, w);
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    open_audited(&r, NULL, &audit);
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
