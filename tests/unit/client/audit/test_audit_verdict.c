/* What an audit concludes where two answers differ: who is banned, who is not, and how much evidence is written. */
#include "client/audit/audit_private.h" /* private: evidence that was written */
#include "tests/support/audit_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <string.h>

/* Each block has several honest nodes. The byzantine one only audits. */
static void begin_with_wrong_auditor(audit_fixture *t, byzantine_faults faults) {
    audit_fixture_begin(t);
    for (int i = 0; i < 2; i++) {
        cluster_add(t->w->cluster, 0, 2);
        cluster_add(t->w->cluster, 2, 4);
        cluster_add(t->w->cluster, 2, 4);
    }
    t->byzantine = byzantine_node_new(t->w, "byzantine:1", 2, 4, faults);
    audit_fixture_fakes_only_audit(t);
    audit_fixture_open(t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
}

/* Where the byzantine node and the only honest one of its blocks differ, there is no third one that decides. */
static void begin_without_third_node(audit_fixture *t, byzantine_faults faults, bool only_audits) {
    audit_fixture_begin(t);
    cluster_add(t->w->cluster, 0, 2);
    cluster_add(t->w->cluster, 2, 4);
    t->byzantine = byzantine_node_new(t->w, "byzantine:1", 2, 4, faults);
    if (only_audits) audit_fixture_fakes_only_audit(t);
    audit_fixture_open(t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
}

Test(audit_verdict, a_lying_auditor_bans_only_itself) {
    audit_fixture t;
    begin_with_wrong_auditor(&t, (byzantine_faults){.alter_every_nth = 1});
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect_eq(t.audit_failures, 0);
    cr_expect(output_is_right(&t, 30));
    cr_expect_geq(byzantine_node_steps(t.byzantine), 1, "it never got an audit step");
    cr_expect(sn_audit_is_banned(t.audit, byzantine_node_id(t.byzantine)));
    cr_expect(report.nodes_banned == 1 && report.checked == 20 && !report.unchecked);
    expect_evidence(&t, byzantine_node_id(t.byzantine));
    audit_fixture_end(&t);
}

static int evidence_files(const audit_fixture *t) {
    int n = 0;
    DIR *folder = opendir(t->folder);
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder)) n += e->d_name[0] != '.';
    if (folder) closedir(folder);
    return n;
}

/* Nothing that it signed is wrong, so it is not banned. */
Test(audit_verdict, an_auditor_that_lies_once_is_not_asked_again) {
    audit_fixture t;
    begin_with_wrong_auditor(&t, (byzantine_faults){.alter_once = true});
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(output_is_right(&t, 30) && !t.audit_failures);
    cr_expect_eq(byzantine_node_steps(t.byzantine), 2, "%d steps: a lie, and what it signs in the dispute",
                 byzantine_node_steps(t.byzantine));
    cr_expect(!report.nodes_banned && report.checked == 20 && !report.unchecked, "%d checked", (int)report.checked);
    cr_expect_eq(evidence_files(&t), 0, "there is evidence, but no node is banned");
    audit_fixture_end(&t);
}

Test(audit_verdict, an_auditor_that_lies_and_then_fails_is_not_asked_again) {
    audit_fixture t;
    audit_fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 0, 2);
    cluster_add(t.w->cluster, 2, 4);
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_once = true, .fail_repeated = true});
    audit_fixture_fakes_only_audit(&t);
    audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, true);
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text); /* the arbiter is this machine */
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(output_is_right(&t, 30) && !t.audit_failures && !report.nodes_banned);
    cr_expect_eq(byzantine_node_steps(t.byzantine), 2, "%d steps", byzantine_node_steps(t.byzantine));
    cr_expect(report.checked == 10 && report.unchecked == 10 && report.unchecked_failed == 10, "%d checked",
              (int)report.checked);
    audit_fixture_end(&t);
}

/* The answers differ, and that is not forgotten when the auditor says no more. */
Test(audit_verdict, an_auditor_that_fails_in_a_dispute_leaves_the_answer_undecided) {
    audit_fixture t;
    begin_without_third_node(&t, (byzantine_faults){.alter_once = true, .fail_repeated = true}, true);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_RETRY);
    cr_expect(strstr(t.err.text, "nodes differ about blocks 2:4 at position 0"), "%s", t.err.text);
    cr_expect_eq(sn_audit_get_report(t.audit).nodes_banned, 0);
    audit_fixture_end(&t);
}

Test(audit_verdict, an_undecidable_difference_is_an_error) {
    audit_fixture t;
    begin_without_third_node(&t, (byzantine_faults){.alter_nth_step = 3}, false);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_RETRY);
    cr_expect(strstr(t.err.text, "nodes differ about blocks 2:4 at position 20, and no third node can decide"), "%s",
              t.err.text);
    cr_expect_eq(sn_audit_get_report(t.audit).nodes_banned, 0);
    expect_evidence(&t, byzantine_node_id(t.byzantine)); /* the evidence proves it to anyone who has the model */
    audit_fixture_end(&t);
}

/* One of the three is honest, and nothing shows which. */
Test(audit_verdict, no_node_is_banned_where_no_two_of_three_answers_agree) {
    audit_fixture t;
    audit_fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    t.gpu = byzantine_node_new(t.w, "byzantine:1", 0, 4, (byzantine_faults){.alter_every_nth = 1});
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:2", 0, 4, (byzantine_faults){.alter_every_nth = 1, .large_error = true});
    audit_fixture_fakes_only_audit(&t);
    audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_expect_eq(feed_tokens(&t, 0, 10, 10), SN_RETRY);
    cr_expect(strstr(t.err.text, "nodes differ about blocks 0:4 at position 0"), "%s", t.err.text);
    cr_expect_eq(sn_audit_get_report(t.audit).nodes_banned, 0);
    audit_fixture_end(&t);
}

Test(audit_verdict, writes_no_more_than_some_files_of_evidence) {
    audit_fixture t;
    begin_without_third_node(&t, (byzantine_faults){.alter_every_nth = 1}, false);
    for (int i = 0; i < 20; i++) cr_expect_eq(feed_tokens(&t, 0, 3, 3), SN_RETRY, "the answers do not differ");
    cr_expect_eq(evidence_files(&t), 16, "%d files", evidence_files(&t));
    audit_fixture_end(&t);
}

Test(audit_verdict, writes_no_more_than_some_bytes_of_evidence) {
    audit_fixture t;
    begin_without_third_node(&t, (byzantine_faults){.alter_every_nth = 1}, false);
    t.audit->evidence_bytes = ((size_t)1 << 30) - 1;
    for (int i = 0; i < 3; i++) cr_expect_eq(feed_tokens(&t, 0, 3, 3), SN_RETRY, "the answers do not differ");
    cr_expect_eq(evidence_files(&t), 1, "%d files", evidence_files(&t));
    audit_fixture_end(&t);
}
