/* Audits of nodes whose device may give other bits, as a GPU does, or that say so. */
#include "tests/support/audit_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>

/* -- within a group that pushes */

/* The wrong node is banned, or no longer used. */
static void expect_only_the_wrong_node_is_banned(audit_fixture *t, bool used_again) {
    cr_assert_eq(feed_tokens(t, 0, 30, 3), SN_OK, "%s", t->err.text);
    cr_assert_eq(sn_chain_audit(t->chain, &t->err), SN_OK, "%s", t->err.text);
    sn_audit_report report = sn_audit_get_report(t->audit);
    bool wrong_is_banned = sn_audit_is_banned(t->audit, byzantine_node_id(t->byzantine));
    cr_expect(wrong_is_banned || !used_again, "the wrong node is not banned: %s", report.verdict);
    cr_expect_eq(report.nodes_banned, wrong_is_banned, "an honest node is banned: %s", report.verdict);
    cr_expect_geq(t->audit_failures, used_again ? 2 : 1); /* that a node lies, and which */
}

Test(audit_gpu, a_wrong_node_that_claims_a_gpu_has_no_other_node_banned_in_its_place) {
    audit_fixture t;
    audit_fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 0, 2);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 2, 4);
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:1", 0, 2,
                           (byzantine_faults){.alter_every_nth = 3, .large_error = true, .signs_approximate = true});
    audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 7, .local = true}, true, true);
    expect_only_the_wrong_node_is_banned(&t, false);
    cr_expect(output_is_right(&t, 30), "bits differ from those of honest nodes");
    audit_fixture_end(&t);
}

static void begin_with_gpu_first(audit_fixture *t) {
    const byzantine_faults gpu = {.alter_every_nth = 1, .signs_approximate = true};
    audit_fixture_begin(t);
    for (int i = 0; i < 2; i++) cluster_add(t->w->cluster, 2, 4);
    t->gpu = byzantine_node_new(t->w, "gpu:1", 0, 2, gpu);
}

/* The first node gives other bits within what is allowed, so that nothing which follows it is exact. */
Test(audit_gpu, a_wrong_node_behind_a_gpu_does_not_have_that_node_banned) {
    audit_fixture t;
    begin_with_gpu_first(&t);
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_every_nth = 3, .large_error = true});
    audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 7, .local = true}, true, true);
    expect_only_the_wrong_node_is_banned(&t, true);
    audit_fixture_end(&t);
}

/* The auditor is proven wrong, so what the group answered is not in doubt, whatever its first node's statement shows.
 */
Test(audit_gpu, a_wrong_auditor_of_a_group_with_a_gpu_bans_only_itself) {
    char id[2 * SN_KEY_SIZE + 1];
    const char *const deny[] = {id};
    audit_fixture t;
    begin_with_gpu_first(&t);
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:1", 0, 4, (byzantine_faults){.alter_every_nth = 1, .large_error = true});
    sn_hex(byzantine_node_id(t.byzantine), SN_KEY_SIZE, id);
    t.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1}; /* of the chain, not of the audit */
    audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 7}, true, true);
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
    cr_expect(sn_audit_is_banned(t.audit, byzantine_node_id(t.byzantine)), "it is not banned");
    cr_expect(sn_audit_get_report(t.audit).nodes_banned == 1 && !t.audit_failures);
    audit_fixture_end(&t);
}

/* -- alone */

/* The last bit of each of its results differs, as on a GPU: there is no third node, so a dispute would be an error. */
Test(audit_gpu, honest_nodes_with_and_without_a_gpu_agree_within_the_tolerance) {
    for (int audits = 0; audits < 2; audits++) { /* the node with the GPU serves, or audits */
        audit_fixture t;
        audit_fixture_begin(&t);
        cluster_add(t.w->cluster, 0, 4);
        t.gpu =
            byzantine_node_new(t.w, "gpu:1", 0, 4, (byzantine_faults){.alter_every_nth = 1, .signs_approximate = true});
        if (audits) audit_fixture_fakes_only_audit(&t);
        audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
        cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
        REQUIRE(sn_chain_audit(t.chain, &err));
        sn_audit_report report = sn_audit_get_report(t.audit);
        cr_expect(report.checked == 10 && !report.unchecked && !report.nodes_banned, "%d checked", (int)report.checked);
        cr_expect_eq(byzantine_node_steps(t.gpu), 10);
        audit_fixture_end(&t);
    }
}

/* -- with keys and values that another node computed */

/* Such keys and values make other bits, where the node that computed them has a GPU. */
Test(audit_gpu, honest_nodes_that_go_on_with_a_gpus_kv_pages_are_not_accused) {
    audit_fixture t;
    audit_fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    t.gpu =
        byzantine_node_new(t.w, "honest:1", 0, 4, (byzantine_faults){.alter_every_nth = 1, .signs_continued = true});
    audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1, .local = true}, false, true);
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(report.checked == 10 && !report.unchecked && !report.nodes_banned, "%s", report.verdict);
    cr_expect_eq(byzantine_node_steps(t.gpu), 10);
    audit_fixture_end(&t);
}

/* Its statements prove nothing to others. */
Test(audit_gpu, a_wrong_node_that_claims_kv_pages_from_elsewhere_is_banned) {
    for (int here = 0; here < 2; here++) {
        audit_fixture t;
        audit_fixture_begin(&t);
        for (int i = 0; i < 3; i++) cluster_add(t.w->cluster, 0, 4);
        t.byzantine =
            byzantine_node_new(t.w, "byzantine:1", 0, 4,
                               (byzantine_faults){.alter_every_nth = 3, .large_error = true, .signs_continued = true});
        audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1, .local = here}, false, here);
        cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
        REQUIRE(sn_chain_audit(t.chain, &err));
        cr_expect(sn_audit_is_banned(t.audit, byzantine_node_id(t.byzantine)), "it is not banned");
        cr_expect(sn_audit_get_report(t.audit).nodes_banned == 1 && t.audit_failures == 1);
        cr_expect(output_is_right(&t, 30));
        audit_fixture_end(&t);
    }
}
