/* Who audits: nodes that the user allows, other ones where some fail or are wrong, and what remains unchecked. */
#include "base/clock.h"
#include "tests/support/audit_fixture.h"
#include "tests/support/fake_node.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>

/* -- who may audit */

Test(audit_auditors, counts_unchecked_steps_without_an_auditor) {
    audit_fixture t;
    audit_fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    cr_expect(output_is_right(&t, 30));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(report.steps == 3 && report.checked == 0 && report.unchecked == 3, "%d of %d unchecked",
              (int)report.unchecked, (int)report.steps);
    cr_expect(!report.unchecked_failed && !sn_chain_audit_is_incomplete(t.chain), "no node has failed");
    audit_fixture_end(&t);
}

Test(audit_auditors, auditors_are_nodes_that_the_user_allows) {
    static const char *const deny[] = {"fake"};
    const sn_node_filter filter = {.deny = deny, .n_deny = 1};
    audit_fixture t;
    audit_fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 0, 4);
    t.byzantine = byzantine_node_new(t.w, "denied:1", 0, 4, (byzantine_faults){0});
    t.node_filter = filter;
    audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1, .node_filter = filter}, false, false);
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    cr_expect_eq(sn_audit_get_report(t.audit).checked, 10);
    cr_expect_eq(byzantine_node_steps(t.byzantine), 0, "a node of --deny is an auditor");
    audit_fixture_end(&t);
}

Test(audit_auditors, an_auditor_that_takes_the_blocks_over_does_not_check_itself) {
    audit_fixture t;
    audit_fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 0, 4);
    audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_assert_eq(feed_tokens(&t, 0, 9, 3), SN_OK, "%s", t.err.text);
    cr_expect_eq(sn_audit_get_report(t.audit).checked, 3, "the other node is no auditor");
    cluster_cut_off(t.w->cluster, cluster_node_of_block(t.chain, 0));
    cr_assert_eq(feed_tokens(&t, 9, 18, 3), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect_geq(report.unchecked, 3, "%d checked, %d unchecked", (int)report.checked, (int)report.unchecked);
    audit_fixture_end(&t);
}

/* -- auditors that fail or are wrong: strangers that routes prefer */

enum { FAILING = 18 }; /* more than a chain has retries */

static void open_with_auditors(audit_fixture *t, byzantine_faults faults, byzantine_node **auditors) {
    const bool arbiter = faults.alter_once; /* this machine */
    audit_fixture_fakes_only_audit(t);
    audit_fixture_open(t, (sn_audit_options){.share = 1, .seed = 1}, false, arbiter);
    for (int i = 0; i < FAILING; i++) {
        char address[32];
        snprintf(address, sizeof address, "auditor%d:1", i);
        auditors[i] = byzantine_node_new(t->w, address, 0, 4, faults);
        byzantine_node_announce_to(auditors[i], t->link);
    }
}

Test(audit_auditors, the_last_check_goes_on_to_other_auditors_when_some_fail) {
    audit_fixture t;
    byzantine_node *failing[FAILING];
    audit_fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    cluster_add(t.w->cluster, 0, 4);
    open_with_auditors(&t, (byzantine_faults){.fail_steps = INT_MAX}, failing);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_OK, "%s", t.err.text);
    sn_audit_report before = sn_audit_get_report(t.audit);
    cr_assert_eq(before.unchecked, 3, "they did not use up the retries of a check");
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(report.checked == 3 && !report.unchecked && !report.unchecked_failed, "%d checked", (int)report.checked);
    cr_expect(!sn_chain_audit_is_incomplete(t.chain));
    for (int i = 0; i < FAILING; i++) byzantine_node_free(&failing[i]);
    audit_fixture_end(&t);
}

Test(audit_auditors, the_last_check_asks_an_auditor_again_that_failed_where_there_is_no_other) {
    audit_fixture t;
    audit_fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    t.byzantine = byzantine_node_new(t.w, "busy:1", 0, 4, (byzantine_faults){.fail_steps = 1});
    audit_fixture_fakes_only_audit(&t);
    audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_OK, "%s", t.err.text);
    cr_expect_eq(sn_audit_get_report(t.audit).unchecked_failed, 3);
    REQUIRE(sn_chain_audit(t.chain, &err));
    cr_expect_eq(sn_audit_get_report(t.audit).checked, 3);
    cr_expect(!sn_chain_audit_is_incomplete(t.chain));
    audit_fixture_end(&t);
}

/* Each of them costs the client a computation of the whole history. */
Test(audit_auditors, a_check_tries_no_more_than_three_auditors) {
    audit_fixture t;
    byzantine_node *wrong[FAILING];
    int asked = 0;
    audit_fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    open_with_auditors(&t, (byzantine_faults){.alter_once = true}, wrong);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_OK, "%s", t.err.text); /* one check: the others are postponed */
    for (int i = 0; i < FAILING; i++) asked += byzantine_node_steps(wrong[i]) > 0;
    cr_expect_eq(asked, 3, "%d auditors were asked", asked);
    cr_expect(output_is_right(&t, 30) && !t.audit_failures);
    for (int i = 0; i < FAILING; i++) byzantine_node_free(&wrong[i]);
    audit_fixture_end(&t);
}

/* Nodes that would be auditors open sessions and answer no step: each try takes the time of a call. */
Test(audit_auditors, auditors_after_the_first_share_the_time_of_a_call) {
    enum { SILENT = 16, CALL_US = 10000000 };
    fake_node *silent[SILENT];
    audit_fixture t;
    audit_fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    audit_fixture_fakes_only_audit(&t);
    audit_fixture_open(&t, (sn_audit_options){.share = 1e-9, .seed = 1}, false, false);
    for (int i = 0; i < SILENT; i++) {
        char address[32];
        snprintf(address, sizeof address, "silent%d:1", i);
        silent[i] = fake_node_new(t.w, address, 0, 4, FAKE_SILENT);
        fake_node_announce_to(silent[i], t.link);
    }
    cr_assert_eq(feed_tokens(&t, 0, 30, 10), SN_OK, "%s", t.err.text);
    int64_t began_us = sn_now_us();
    REQUIRE(sn_chain_audit(t.chain, &err));
    int64_t took_us = sn_now_us() - began_us;
    cr_expect(took_us > CALL_US && took_us < CALL_US * 5 / 2, "%lld us", (long long)took_us);
    cr_expect_eq(sn_audit_get_report(t.audit).unchecked_failed, 3);
    for (int i = 0; i < SILENT; i++) fake_node_free(&silent[i]);
    audit_fixture_end(&t);
}

Test(audit_auditors, is_incomplete_when_every_auditor_fails) {
    audit_fixture t;
    byzantine_node *failing[FAILING];
    audit_fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    open_with_auditors(&t, (byzantine_faults){.fail_steps = INT_MAX}, failing);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(!report.checked && report.unchecked == 3 && report.unchecked_failed == 3,
              "%d unchecked, %d of them failed", (int)report.unchecked, (int)report.unchecked_failed);
    cr_expect(sn_chain_audit_is_incomplete(t.chain));
    for (int i = 0; i < FAILING; i++) byzantine_node_free(&failing[i]);
    audit_fixture_end(&t);
}
