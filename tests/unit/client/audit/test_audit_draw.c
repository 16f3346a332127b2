/* Which steps an audit checks: the share that is drawn at random. */
#include "client/audit/audit.h"
#include "tests/support/audit_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>

/* Draws as the audit does, with SplitMix64: after each step, once for each of two hops. Returns the first step at or
 * after `lie` for which the second hop is drawn. */
static int expected_detection_step(uint64_t seed, double share, int lie) {
    for (int step = 1;; step++)
        for (int hop = 0; hop < 2; hop++) {
            uint64_t z = seed += 0x9e3779b97f4a7c15u;
            z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
            z = (z ^ z >> 27) * 0x94d049bb133111ebu;
            if ((double)((z ^ z >> 31) >> 11) * 0x1p-53 < share && hop && step >= lie) return step;
        }
}

/* Feeds steps of one token over the same positions again and again, because the test needs more steps than the
 * timeline has positions. */
static sn_status feed_many_tokens(audit_fixture *t, int steps) {
    for (int left = steps; left > 0 && !t->audit_failures; left -= TESTBED_TOKENS) {
        sn_status status = feed_tokens(t, 0, left < TESTBED_TOKENS ? left : TESTBED_TOKENS, 1);
        if (status) return status;
    }
    return SN_OK;
}

Test(audit_draw, a_share_of_steps_detects_at_the_drawn_step) {
    const uint64_t seeds[] = {1, 2};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        audit_fixture t;
        audit_fixture_begin(&t);
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 2, 4);
        cluster_add(t.w->cluster, 2, 4);
        t.byzantine = byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_every_nth = 1000});
        audit_fixture_open(&t, (sn_audit_options){.share = 0.05, .seed = seeds[i]}, false, false);
        cr_assert_eq(feed_many_tokens(&t, 1200), SN_OK, "%s", t.err.text);
        cr_expect_eq(t.audit_failures, 1, "seed %d: %d failed audits", (int)seeds[i], t.audit_failures);
        int expected = expected_detection_step(seeds[i], 0.05, 1000);
        cr_expect_eq(t.detected_at, expected, "seed %d: at step %d, not %d", (int)seeds[i], t.detected_at, expected);
        expect_evidence(&t, byzantine_node_id(t.byzantine));
        audit_fixture_end(&t);
    }
}

/* Has an audit of this share note n steps of one hop. checked: whether a check follows each of them. */
static void note_steps(const testbed *w, double share, uint64_t seed, int n, bool *checked) {
    float row[64] = {0};
    sn_hop hop = {.end = w->n_blocks};
    sn_step step = {.n = 1, .n_embd = w->n_embd, .in = row, .out = row};
    sn_model *model = NULL;
    sn_audit *audit = NULL;
    REQUIRE(sn_model_open(w->path, &model, &err));
    REQUIRE(sn_audit_new(&(sn_audit_options){.model = model, .share = share, .seed = seed}, &audit, &err));
    sn_verifier verifier = sn_audit_verifier(audit);
    for (int i = 0; i < n; i++) {
        uint64_t before = sn_audit_get_report(audit).checks;
        REQUIRE(verifier.note_step(verifier.ctx, &hop, 1, &step, &err));
        checked[i] = sn_audit_get_report(audit).checks > before;
    }
    sn_audit_free(&audit);
    sn_model_close(&model);
}

/* The steps between two checks are as many as those between two heads of a coin that shows heads with the share's
 * probability: in the mean 1 / share, and often far fewer or more, so that no step is safe to lie in. */
Test(audit_draw, a_node_cannot_foresee_which_steps_are_checked) {
    enum { STEPS = 4000, SEEDS = 5 };
    static bool checked[SEEDS * STEPS];
    int checks = 0, gap = 0, short_gaps = 0, long_gaps = 0, same = 0;
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 8});
    for (int seed = 0; seed < SEEDS; seed++) note_steps(w, 0.05, (uint64_t)seed, STEPS, checked + seed * STEPS);
    for (int i = 0; i < SEEDS * STEPS; i++) {
        gap++;
        if (!checked[i]) continue;
        checks++;
        same += i >= STEPS && checked[i % STEPS];
        short_gaps += gap <= 10;
        long_gaps += gap > 40;
        gap = 0;
    }
    cr_expect(checks > 900 && checks < 1100, "%d checks of %d steps", checks, SEEDS * STEPS); /* 1000; deviation 31 */
    cr_expect(short_gaps > checks / 3 && short_gaps < checks / 2, "%d of %d", short_gaps,
              checks); /* 1 - 0.95^10 = 0.40 */
    cr_expect(long_gaps > checks / 12 && long_gaps < checks / 5, "%d of %d", long_gaps, checks); /* 0.95^40 = 0.13 */
    cr_expect(same < checks / 8, "another seed checks %d of the same steps", same);
    testbed_free(&w);
}
