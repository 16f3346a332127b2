/* Audits: byzantine nodes are detected at the expected step and by the expected auditor; the results are those of
 * honest nodes; honest nodes are never accused. */
#include "base/clock.h"
#include "tests/support/audit_fixture.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>

/* -- detection */

/* Nodes: 0:2, and 2:4 three times, one of which is the byzantine node that the route prefers. */
static void expect_detection_in(audit_fixture *t, byzantine_faults faults, bool push, bool here, bool local,
                                int at_step) {
    cluster_add(t->w->cluster, 0, 2);
    cluster_add(t->w->cluster, 2, 4);
    cluster_add(t->w->cluster, 2, 4);
    cluster_add(t->w->cluster, 0, 2);
    if (push) cluster_add(t->w->cluster, 0, 2); /* an auditor and an arbiter that are neither */
    t->byzantine = byzantine_node_new(t->w, "byzantine:1", 2, 4, faults);
    audit_fixture_open(t, (sn_audit_options){.share = 1, .seed = 7, .local = local}, push, here);
    cr_assert_eq(feed_tokens(t, 0, 20, 20), SN_OK, "%s", t->err.text);
    cr_assert_eq(feed_tokens(t, 20, 60, 1), SN_OK, "%s", t->err.text);
    REQUIRE(sn_chain_audit(t->chain, &err));
    sn_audit_report report = sn_audit_get_report(t->audit);
    cr_expect_eq(t->audit_failures, 1);
    cr_expect_eq(t->detected_at, at_step, "detected at step %d", t->detected_at);
    cr_expect_eq(byzantine_node_steps(t->byzantine), at_step, "a banned node got another step");
    cr_expect(output_is_right(t, 60), "bits differ from those of honest nodes");
    cr_expect_eq(report.nodes_banned, 1, "%s", report.verdict);
    cr_expect(sn_audit_is_banned(t->audit, byzantine_node_id(t->byzantine)));
    cr_expect_eq(report.unchecked, 0);
    expect_evidence(t, byzantine_node_id(t->byzantine));
    audit_fixture_end(t);
}

static void expect_detection_as(sn_dtype wire, byzantine_faults faults, bool push, bool here, bool local, int at_step) {
    audit_fixture t;
    audit_fixture_begin(&t);
    if (wire != SN_F32) audit_fixture_use_wire_dtype(&t, wire);
    expect_detection_in(&t, faults, push, here, local, at_step);
}

static void expect_detection(byzantine_faults faults, bool push, bool here, bool local, int at_step) {
    expect_detection_as(SN_F32, faults, push, here, local, at_step);
}

Test(audit, detects_one_altered_bit_of_one_step) {
    for (int push = 0; push < 2; push++)
        expect_detection((byzantine_faults){.alter_nth_step = 17}, push, false, false, 17);
}

Test(audit, detects_an_altered_bit_by_local_computation) {
    expect_detection((byzantine_faults){.alter_nth_step = 17}, false, true, false, 17);
    expect_detection((byzantine_faults){.alter_nth_step = 17}, true, true, true, 17);
    expect_detection((byzantine_faults){.alter_nth_step = 1}, false, true, true, 1);
}

Test(audit, detects_stale_results) {
    for (int push = 0; push < 2; push++) expect_detection((byzantine_faults){.stale = true}, push, false, false, 3);
}

Test(audit, detects_other_weights_under_the_same_name_and_hashes) {
    char *other = tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .seed = 2});
    expect_detection((byzantine_faults){.model = other}, false, false, false, 1);
    expect_detection((byzantine_faults){.model = other}, false, true, true, 1);
    tiny_model_remove(&other);
}

/* Results that replaced others after a rewind are dropped with those that followed the wrong one. */
Test(audit, a_wrong_result_before_a_rewind_takes_back_what_came_after_it) {
    audit_fixture t;
    audit_fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 0, 2);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 2, 4);
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_nth_step = 4, .alter_every_nth = 5});
    audit_fixture_open(&t, (sn_audit_options){.share = 1e-9, .seed = 7, .local = true}, false, true);
    cr_assert_eq(feed_tokens(&t, 0, 40, 10), SN_OK, "%s", t.err.text);  /* wrong from position 30 on, */
    cr_assert_eq(feed_tokens(&t, 10, 20, 10), SN_OK, "%s", t.err.text); /* and from position 10 on */
    cr_assert(!output_is_right(&t, 20));
    cr_assert_eq(sn_chain_audit(t.chain, &t.err), SN_REBUILD, "%s", t.err.text);
    cr_assert(sn_chain_audit_failed(t.chain));
    cr_assert_eq(sn_chain_length(t.chain), 10, "%d", sn_chain_length(t.chain));
    cr_assert_eq(feed_tokens(&t, 10, 40, 10), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    cr_expect(output_is_right(&t, 40), "bits differ from those of honest nodes");
    cr_expect_eq(sn_audit_get_report(t.audit).nodes_banned, 1);
    audit_fixture_end(&t);
}

/* -- rounded hidden states */

static const sn_dtype LOSSY[] = {SN_F16, SN_BF16, SN_Q8};

Test(audit, detects_stale_results_where_hidden_states_are_rounded) {
    for (size_t k = 0; k < 3; k++) {
        expect_detection_as(LOSSY[k], (byzantine_faults){.stale = true}, k % 2, false, false, 3);
        expect_detection_as(LOSSY[k], (byzantine_faults){.stale = true}, true, true, true, 3);
    }
}

/* The auditors' spans are cut elsewhere; they round at the boundaries of the audited nodes. */
Test(audit, rounded_hidden_states_of_honest_nodes_match_bit_by_bit) {
    static const char *const only[] = {"node0", "node1"};
    for (size_t k = 0; k < 6; k++) {
        audit_fixture t;
        audit_fixture_begin(&t);
        audit_fixture_use_wire_dtype(&t, LOSSY[k / 2]);
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 2, 4);
        cluster_add(t.w->cluster, 0, 3);
        cluster_add(t.w->cluster, 3, 4);
        t.node_filter = (sn_node_filter){.only = only, .n_only = 2};
        audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, k % 2, false);
        cr_assert_eq(feed_tokens(&t, 0, 40, 3), SN_OK, "%s", t.err.text);
        REQUIRE(sn_chain_audit(t.chain, &err));
        sn_audit_report report = sn_audit_get_report(t.audit);
        cr_expect(output_is_right(&t, 40), "%s, push %d: bits differ", sn_dtype_name(t.wire), (int)(k % 2));
        cr_expect_eq(t.audit_failures, 0);
        cr_expect(!report.nodes_banned && !report.unchecked && report.checked >= 14, "%s", report.verdict);
        audit_fixture_end(&t);
    }
}

/* -- keys and values in fewer bits */

Test(audit, detects_stale_results_over_kv_caches_of_every_type) {
    for (int kv = SN_KV_F16; kv <= SN_KV_Q8; kv++)
        for (int local = 0; local < 2; local++) {
            audit_fixture t;
            audit_fixture_begin_with_kv(&t, (sn_kv_dtype)kv);
            expect_detection_in(&t, (byzantine_faults){.stale = true}, local, local, local, 3);
        }
}

/* What the block hashes announce and what the receipt says must be one: otherwise the receipt cannot be verified. */
Test(audit, a_receipt_that_names_another_kv_dtype_is_refused) {
    for (int kv = SN_KV_F16; kv <= SN_KV_Q8; kv++) {
        audit_fixture t;
        audit_fixture_begin_with_kv(&t, (sn_kv_dtype)kv);
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 2, 4);
        t.byzantine = byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.signs_float32 = true});
        audit_fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1, .local = true}, false, true);
        cr_assert_eq(feed_tokens(&t, 0, 20, 10), SN_OK, "%s", t.err.text);
        cr_expect_eq(byzantine_node_steps(t.byzantine), 1, "its receipt was accepted");
        cr_expect(output_is_right(&t, 20));
        audit_fixture_end(&t);
    }
}

/* -- honest nodes */

Test(audit, honest_nodes_of_any_instruction_set_and_threads_agree) {
    static const char *const isa[] = {"c", TEST_ISA_1, TEST_ISA_2};
    for (uint64_t seed = 0; seed < 6; seed++) {
        audit_fixture t;
        audit_fixture_begin(&t);
        for (int i = 0; i < 3; i++) {
            sn_device *device = NULL;
            sn_device_options how = {.threads = 1, .isa = isa[(seed + (uint64_t)i) % 3]};
            bool runs = !sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &device, NULL);
            sn_device_close(&device);
            cluster_compute_with(t.w->cluster, runs ? how.isa : NULL, 1 + (int)((seed + (uint64_t)i) % 3));
            cluster_add(t.w->cluster, 0, 2 + i % 2);
            cluster_add(t.w->cluster, 2 - i % 2, 4);
        }
        audit_fixture_open(&t, (sn_audit_options){.share = 0.3, .seed = seed}, seed % 2, false);
        cr_assert_eq(feed_tokens(&t, 0, 33, 13), SN_OK, "%s", t.err.text);
        cr_assert_eq(feed_tokens(&t, 33, 60, 1), SN_OK, "%s", t.err.text);
        cr_assert_eq(feed_tokens(&t, 20, 90, 2), SN_OK, "%s", t.err.text); /* rewound */
        REQUIRE(sn_chain_audit(t.chain, &err));
        sn_audit_report report = sn_audit_get_report(t.audit);
        cr_expect_eq(report.nodes_banned, 0, "%s", report.verdict);
        cr_expect(report.checked == report.steps && report.checks > 5 && report.checks < report.steps);
        cr_expect(output_is_right(&t, 90) && !t.audit_failures);
        audit_fixture_end(&t);
    }
}

/* The rows that entered the second of the new nodes are not known: what it does is not checked against others. */
Test(audit, honest_nodes_that_take_over_a_part_of_a_kv_cache_are_not_accused) {
    audit_fixture t;
    audit_fixture_begin_of(&t, &(cluster_options){.kv_memory = 64, .drain_timeout_s = 20});
    cluster_add(t.w->cluster, 0, 4);
    audit_fixture_open(&t, (sn_audit_options){.share = 1e-9, .seed = 7, .local = true}, false, true);
    cr_assert_eq(feed_tokens(&t, 0, 20, 10), SN_OK, "%s", t.err.text);
    cluster_add(t.w->cluster, 0, 2);
    cluster_add(t.w->cluster, 2, 4);
    cluster_drain(t.w->cluster, 0);
    for (int i = 0; i < 2000 && !sn_chain_replicas_promoted(t.chain); i++) {
        sn_chain_poll(t.chain);
        sn_sleep_us(10000);
    }
    cr_assert_eq(sn_chain_replicas_promoted(t.chain), 1, "the session has not moved");
    cr_assert_eq(feed_tokens(&t, 20, 40, 5), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(!t.audit_failures && !report.nodes_banned, "%s", report.verdict);
    cr_expect_eq(report.unchecked, 4, "%d", (int)report.unchecked); /* steps of blocks 2:4 */
    cr_expect_eq(report.checked, report.steps - 4);
    cr_expect(output_is_right(&t, 40));
    audit_fixture_end(&t);
}

Test(audit, continues_when_the_audited_node_or_the_auditor_dies) {
    for (int push = 0; push < 2; push++) {
        audit_fixture t;
        audit_fixture_begin(&t);
        for (int i = 0; i < 3; i++) {
            cluster_add(t.w->cluster, 0, 2);
            cluster_add(t.w->cluster, 2, 4);
        }
        audit_fixture_open(&t, (sn_audit_options){.share = 0.5, .seed = 5}, push, false);
        cr_assert_eq(feed_tokens(&t, 0, 20, 5), SN_OK, "%s", t.err.text);
        for (int i = 0; i < 2; i++) { /* one of the first two 2:4 nodes serves or audits or is idle */
            cluster_cut_off(t.w->cluster, 1 + 2 * i);
            cr_assert_eq(feed_tokens(&t, 20 + 10 * i, 30 + 10 * i, 2), SN_OK, "%s", t.err.text);
        }
        cr_expect(output_is_right(&t, 40));
        cr_expect_eq(sn_audit_get_report(t.audit).nodes_banned, 0);
        audit_fixture_end(&t);
    }
}
