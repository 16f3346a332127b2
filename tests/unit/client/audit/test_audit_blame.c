/* Which of an auditor's nodes are blamed for its wrong answer: one that lies once cannot have honest ones avoided. */
#include "client/audit/audit.h"
#include "tests/support/byzantine_node.h"
#include "tests/support/chain_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 192 };

typedef struct fixture {
    chain_fixture r;
    sn_device *device;
    sn_audit *audit;
    byzantine_node *byzantine, *gpu; /* gpu: or NULL */
} fixture;

/* An audited chain over the nodes of the cluster; the byzantine node is an auditor only, and this machine is the
 * arbiter. */
static void fixture_open(fixture *t, testbed *w) {
    static const char *const deny[] = {"fake"};
    chain_fixture_begin(&t->r, w);
    byzantine_node_announce_to(t->byzantine, t->r.link);
    if (t->gpu) byzantine_node_announce_to(t->gpu, t->r.link);
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &t->device, &err));
    const sn_audit_options options = {.model = t->r.model,
                                      .link = t->r.link,
                                      .device = t->device,
                                      .share = 1,
                                      .max_tokens = TOKENS,
                                      .timeout_ms = 10000};
    REQUIRE(sn_audit_new(&options, &t->audit, &err));
    sn_chain_options chain = sn_chain_options_default();
    chain.max_tokens = TOKENS;
    chain.routing.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1};
    chain.verification.verifier = sn_audit_verifier(t->audit);
    cr_assert_eq(chain_fixture_try_open(&t->r, chain), SN_OK, "%s", t->r.err.text);
}

static void fixture_end(fixture *t) {
    testbed *w = t->r.w;
    sn_chain_close(&t->r.chain);
    sn_audit_free(&t->audit); /* its chains use the link */
    chain_fixture_close(&t->r);
    sn_device_close(&t->device);
    byzantine_node_free(&t->byzantine);
    byzantine_node_free(&t->gpu);
    testbed_free(&w);
}

static void expect_all_checked(const fixture *t, int banned) {
    const sn_audit_report report = sn_audit_get_report(t->audit);
    cr_expect(report.checked == report.steps && !report.unchecked, "%d of %d steps are checked", (int)report.checked,
              (int)report.steps);
    cr_expect_eq((int)report.nodes_banned, banned);
}

/* Runs the chain; the byzantine node audits so many steps, and others check all. */
static void expect_asked(fixture *t, testbed *w, int steps, int banned) {
    fixture_open(t, w);
    chain_fixture_steps(&t->r, 0, 30, 3);
    REQUIRE(sn_chain_audit(t->r.chain, &err));
    cr_expect_eq(byzantine_node_steps(t->byzantine), steps, "%d steps", byzantine_node_steps(t->byzantine));
    expect_all_checked(t, banned);
    fixture_end(t);
}

static void expect_only_it_avoided(byzantine_faults faults, int steps, int banned) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    fixture t = {0};
    cluster_add(w->cluster, 0, 4);
    cluster_add(w->cluster, 0, 2);
    cluster_add(w->cluster, 2, 4); /* without it no node is left to check blocks 2:4 */
    t.byzantine = byzantine_node_new(w, "byzantine:1", 0, 2, faults);
    expect_asked(&t, w, steps, banned);
}

Test(audit_blame, one_that_lies_once_does_not_have_the_others_of_its_chain_avoided) {
    expect_only_it_avoided((byzantine_faults){.alter_once = true}, 2, 0); /* what it signs is the second step */
}

/* Nor does it escape because GPUs need not give the same bits. */
Test(audit_blame, one_that_lies_and_says_that_it_has_a_gpu_does_not_have_the_others_of_its_chain_avoided) {
    expect_only_it_avoided((byzantine_faults){.alter_once = true, .large_error = true, .signs_approximate = true}, 2,
                           0);
    expect_only_it_avoided((byzantine_faults){.alter_every_nth = 1, .large_error = true, .signs_approximate = true}, 2,
                           1);
}

Test(audit_blame, one_that_lies_and_fails_does_not_have_the_one_avoided_that_takes_its_place) {
    static float rows[TOKENS * 64], out[TOKENS * 64];
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    const size_t row = (size_t)w->n_embd;
    fixture t = {0};
    cluster_add(w->cluster, 0, 4);
    cluster_add(w->cluster, 0, 4);
    t.byzantine = byzantine_node_new(w, "byzantine:1", 0, 4, (byzantine_faults){.alter_nth_step = 1, .fail_after = 1});
    fixture_open(&t, w);
    for (size_t i = 0; i < TOKENS; i++) /* in several chunks */
        memcpy(rows + i * row, w->inputs + i % TESTBED_TOKENS * row, row * sizeof *rows);
    REQUIRE(sn_chain_step(t.r.chain, 0, TOKENS, rows, out, &err));
    REQUIRE(sn_chain_audit(t.r.chain, &err));
    cr_expect_geq(byzantine_node_steps(t.byzantine), 2, "it was no auditor");
    expect_all_checked(&t, 0);
    fixture_end(&t);
}

/* What follows a GPU has other input than the arbiter, so that no statement proves it wrong. */
Test(audit_blame, one_that_lies_behind_a_gpu_does_not_have_those_behind_it_avoided) {
    const byzantine_faults gpu = {.alter_every_nth = 1, .signs_approximate = true};
    const byzantine_faults lies = {.alter_every_nth = 1, .large_error = true, .signs_approximate = true};
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    fixture t = {0};
    cluster_add(w->cluster, 0, 4);
    cluster_add(w->cluster, 1, 2);
    cluster_add(w->cluster, 2, 4); /* without it no node is left to check blocks 2:4 */
    t.gpu = byzantine_node_new(w, "gpu:1", 0, 1, gpu);
    t.byzantine = byzantine_node_new(w, "byzantine:1", 1, 2, lies);
    expect_asked(&t, w, 2, 0);
}
