/* Audits: nodes that lie are found, by whom and when one expects; the results are those of honest nodes; and honest ones
 * are never accused. */
#include "base/clock.h"
#include "base/wire.h"
#include "client/audit.h"
#include "client/chain_private.h"
#include "client/evidence.h"
#include "tests/support/liar.h"
#include "tests/support/need.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <string.h>
#include <unistd.h>

typedef struct trial {
    world *w;
    sn_link *link;
    sn_model *model;
    sn_device *device; /* when blocks may be computed here */
    sn_audit *audit;
    sn_chain *chain;
    liar *liar;     /* or NULL */
    sn_pick pick;   /* of the chain */
    sn_dtype wire;  /* hidden states travel as this, between nodes cut at 2; set by trial_round */
    float *rounded; /* then: what is right */
    char folder[64];
    float out[WORLD_TOKENS * 64];
    int step, misled, found_at; /* steps done; how often misled; at which step first */
    sn_err err;
} trial;

static void trial_begin(trial *t) {
    *t = (trial){.w = world_new(&(cluster_options){.kv_memory = 64}), .found_at = -1};
    snprintf(t->folder, sizeof t->folder, "/tmp/swarm-test-evidence-XXXXXX");
    cr_assert(mkdtemp(t->folder));
}

/* From now on hidden states travel as `wire`: what is right is computed by hand. */
static void trial_round(trial *t, sn_dtype wire) {
    size_t n = WORLD_TOKENS * (size_t)t->w->n_embd;
    float *rows = malloc(n * sizeof *rows);
    memcpy(rows, t->w->inputs, n * sizeof *rows);
    sn_wire_round(wire, rows, n);
    for (int first = 0; first < 4; first += 2) {
        float *next = world_compute(t->w, first, first + 2, WORLD_TOKENS, rows);
        free(rows);
        rows = next;
        sn_wire_round(wire, rows, n);
    }
    t->wire = wire;
    t->rounded = rows;
}

/* Opens an audited chain over the nodes there are and a liar. here: the client may compute blocks. */
static void trial_open(trial *t, sn_audit_options audit, bool push, bool here) {
    sn_device_options how = {.threads = 1};
    t->link = cluster_link(t->w->cluster);
    NEED(sn_model_open(t->w->path, &t->model, &err));
    if (t->liar) liar_tell(t->liar, t->link);
    if (here) NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &t->device, &err));
    audit.model = t->model;
    audit.link = t->link;
    audit.device = t->device;
    audit.evidence = t->folder;
    audit.max_tokens = WORLD_TOKENS;
    audit.timeout_ms = 10000;
    NEED(sn_audit_new(&audit, &t->audit, &err));
    sn_chain_options options = {.link = t->link,
                                .max_tokens = WORLD_TOKENS,
                                .timeout_ms = audit.timeout_ms,
                                .push = push,
                                .wire = t->wire,
                                .pick = t->pick,
                                .audit = t->audit};
    NEED(sn_chain_open(t->model, &options, &t->chain, &err));
}

static void trial_end(trial *t) {
    sn_chain_close(&t->chain);
    sn_audit_free(&t->audit);
    sn_link_close(&t->link);
    sn_device_close(&t->device);
    sn_model_close(&t->model);
    DIR *folder = opendir(t->folder);
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder)) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", t->folder, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (folder) closedir(folder);
    rmdir(t->folder);
    liar_free(&t->liar);
    free(t->rounded);
    world_free(&t->w);
}

/* Feeds [position, end), `chunk` tokens at a time, as a generator does: again from where the chain was misled. */
static sn_status feed(trial *t, int position, int end, int chunk) {
    size_t row = (size_t)t->w->n_embd;
    for (int at = position, n; at < end;) {
        n = chunk < end - at ? chunk : end - at;
        t->step++;
        sn_status status = sn_chain_step(t->chain, at, n, t->w->inputs + (size_t)at * row, t->out + (size_t)at * row, &t->err);
        if (status == SN_REBUILD && sn_chain_misled(t->chain)) {
            if (!t->misled++) t->found_at = t->step;
            at = sn_chain_length(t->chain);
            continue;
        }
        if (status) return status;
        at += n;
    }
    return SN_OK;
}

static bool right(const trial *t, int end) {
    return !memcmp(t->out, t->rounded ? t->rounded : t->w->hidden, (size_t)end * (size_t)t->w->n_embd * sizeof(float));
}

/* What anybody with the file finds in the evidence. */
static void expect_evidence(const trial *t, const uint8_t *guilty) {
    sn_audit_report report = sn_audit_read(t->audit);
    sn_evidence e;
    sn_device *device = NULL;
    sn_chain *truth = NULL;
    bool cut_at[8], round_at[8];
    sn_judgement found[SN_STATEMENTS_MAX];
    sn_device_options how = {.threads = 2, .isa = "c"};
    NEED(sn_evidence_load(report.evidence, &e, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &device, &err));
    sn_evidence_cuts(&e, cut_at, t->w->n_blocks);
    sn_chain_options options = {.device = device, .first = e.first, .end = e.end, .local_first = e.first,
                                .local_end = e.end, .cut_at = cut_at, .round_at = round_at, .max_tokens = e.n_tokens};
    options.wire = sn_evidence_wire(&e, round_at, t->w->n_blocks);
    cr_expect_eq(options.wire, t->wire);
    NEED(sn_chain_open(t->model, &options, &truth, &err));
    NEED(sn_evidence_judge(&e, truth, found, &err));
    int lies = 0;
    for (size_t i = 0; i < e.n; i++) {
        sn_announcement a;
        bool is_guilty = !memcmp(e.statements[i].receipt.node, guilty, SN_KEY_SIZE);
        cr_expect_eq(found[i].finding, is_guilty ? SN_FOUND_LIE : SN_FOUND_TRUE, "statement %zu: %s", i, found[i].why);
        lies += is_guilty;
        const sn_blob *told = &e.statements[i].announcement;
        cr_expect_eq(sn_announcement_open(told->data, told->len, sn_unix_ms(), &a, NULL), SN_OK);
        cr_expect_arr_eq(a.node, e.statements[i].receipt.node, SN_KEY_SIZE);
    }
    cr_expect_geq(lies, 1);
    sn_chain_close(&truth);
    sn_device_close(&device);
    sn_evidence_fini(&e);
}

/* -- lies ------------------------------------------------------------------------------------------------------------ */

/* Nodes: 0:2, and 2:4 three times, one of which is the liar that the route prefers. */
static void expect_detection_as(sn_dtype wire, liar_ways ways, bool push, bool here, bool local, int at_step) {
    trial t;
    trial_begin(&t);
    if (wire != SN_F32) trial_round(&t, wire);
    cluster_add(t.w->cluster, 0, 2);
    cluster_add(t.w->cluster, 2, 4);
    cluster_add(t.w->cluster, 2, 4);
    cluster_add(t.w->cluster, 0, 2);
    if (push) cluster_add(t.w->cluster, 0, 2); /* an auditor and a third that are neither */
    t.liar = liar_new(t.w, "mem://liar", 2, 4, ways);
    trial_open(&t, (sn_audit_options){.share = 1, .seed = 7, .local = local}, push, here);
    cr_assert_eq(feed(&t, 0, 20, 20), SN_OK, "%s", t.err.text);
    cr_assert_eq(feed(&t, 20, 60, 1), SN_OK, "%s", t.err.text);
    NEED(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_read(t.audit);
    cr_expect_eq(t.misled, 1);
    cr_expect_eq(t.found_at, at_step, "found at step %d", t.found_at);
    cr_expect_eq(liar_steps(t.liar), at_step, "it was asked again");
    cr_expect(right(&t, 60), "other bits than of honest nodes");
    cr_expect_eq(report.lies, 1, "%s", report.verdict);
    cr_expect(sn_audit_caught(t.audit, liar_id(t.liar)));
    cr_expect_eq(report.unchecked, 0);
    expect_evidence(&t, liar_id(t.liar));
    trial_end(&t);
}

static void expect_detection(liar_ways ways, bool push, bool here, bool local, int at_step) {
    expect_detection_as(SN_F32, ways, push, here, local, at_step);
}

Test(audit, finds_a_last_bit_that_was_altered_in_one_step) {
    for (int push = 0; push < 2; push++) expect_detection((liar_ways){.alters_step = 17}, push, false, false, 17);
}

Test(audit, finds_it_where_this_machine_decides_or_checks_itself) {
    expect_detection((liar_ways){.alters_step = 17}, false, true, false, 17);
    expect_detection((liar_ways){.alters_step = 17}, true, true, true, 17);
    expect_detection((liar_ways){.alters_step = 1}, false, true, true, 1);
}

Test(audit, finds_stale_results) {
    for (int push = 0; push < 2; push++) expect_detection((liar_ways){.stale = true}, push, false, false, 3);
}

Test(audit, finds_other_weights_under_the_same_name_and_hashes) {
    char *other = tiny_make(&(tiny_options){.dtype = SN_F32, .seed = 2});
    expect_detection((liar_ways){.model = other}, false, false, false, 1);
    expect_detection((liar_ways){.model = other}, false, true, true, 1);
    tiny_remove(&other);
}

/* -- rounded hidden states ------------------------------------------------------------------------------------------- */

static const sn_dtype LOSSY[] = {SN_F16, SN_BF16, SN_Q8};

Test(audit, finds_stale_results_where_hidden_states_are_rounded) {
    for (size_t k = 0; k < 3; k++) {
        expect_detection_as(LOSSY[k], (liar_ways){.stale = true}, k % 2, false, false, 3);
        expect_detection_as(LOSSY[k], (liar_ways){.stale = true}, true, true, true, 3);
    }
}

/* Those who check are cut elsewhere, and round at the boundaries of those who are checked. */
Test(audit, compares_rounded_hidden_states_bit_by_bit_and_accuses_nobody) {
    static const char *const only[] = {"node0", "node1"};
    for (size_t k = 0; k < 6; k++) {
        trial t;
        trial_begin(&t);
        trial_round(&t, LOSSY[k / 2]);
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 2, 4);
        cluster_add(t.w->cluster, 0, 3);
        cluster_add(t.w->cluster, 3, 4);
        t.pick = (sn_pick){.only = only, .n_only = 2};
        trial_open(&t, (sn_audit_options){.share = 1, .seed = 1}, k % 2, false);
        cr_assert_eq(feed(&t, 0, 40, 3), SN_OK, "%s", t.err.text);
        NEED(sn_chain_audit(t.chain, &err));
        sn_audit_report report = sn_audit_read(t.audit);
        cr_expect(right(&t, 40), "%s, push %d: other bits", sn_dtype_name(t.wire), (int)(k % 2));
        cr_expect_eq(t.misled, 0);
        cr_expect(!report.lies && !report.unchecked && report.checked >= 14, "%s", report.verdict);
        trial_end(&t);
    }
}

/* -- the coin -------------------------------------------------------------------------------------------------------- */

/* splitmix64, as the audit throws it: after each step at each of two hops; the first throw for the second hop at or behind its
 * step `lie`. */
static int expected_find(uint64_t seed, double share, int lie) {
    for (int step = 1;; step++)
        for (int hop = 0; hop < 2; hop++) {
            uint64_t z = seed += 0x9e3779b97f4a7c15u;
            z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
            z = (z ^ z >> 27) * 0x94d049bb133111ebu;
            if ((double)((z ^ z >> 31) >> 11) * 0x1p-53 < share && hop && step >= lie) return step;
        }
}

/* Steps of one token over and over the same positions, since the timeline is shorter than what is asked of it. */
static sn_status feed_long(trial *t, int steps) {
    for (int left = steps; left > 0 && !t->misled; left -= WORLD_TOKENS) {
        sn_status status = feed(t, 0, left < WORLD_TOKENS ? left : WORLD_TOKENS, 1);
        if (status) return status;
    }
    return SN_OK;
}

Test(audit, of_one_step_in_twenty_finds_one_lie_in_a_thousand_when_the_coin_says_so) {
    const uint64_t seeds[] = {1, 2};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        trial t;
        trial_begin(&t);
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 2, 4);
        cluster_add(t.w->cluster, 2, 4);
        t.liar = liar_new(t.w, "mem://liar", 2, 4, (liar_ways){.alters_every = 1000});
        trial_open(&t, (sn_audit_options){.share = 0.05, .seed = seeds[i]}, false, false);
        cr_assert_eq(feed_long(&t, 1200), SN_OK, "%s", t.err.text);
        cr_expect_eq(t.misled, 1, "seed %d: misled %d times", (int)seeds[i], t.misled);
        int expected = expected_find(seeds[i], 0.05, 1000);
        cr_expect_eq(t.found_at, expected, "seed %d: at step %d, not %d", (int)seeds[i], t.found_at, expected);
        expect_evidence(&t, liar_id(t.liar));
        trial_end(&t);
    }
}

Test(audit, of_a_share_finds_a_lie_after_as_many_steps_as_one_expects) {
    enum { SEEDS = 20000 };
    double sum = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) sum += expected_find(seed * 77777, 0.05, 30) - 30;
    cr_expect(sum / SEEDS > 18.4 && sum / SEEDS < 19.6, "%g steps", sum / SEEDS); /* 1 / 0.05 - 1 = 19, deviation 0.14 */
}

/* -- who is believed ------------------------------------------------------------------------------------------------- */

Test(audit, by_a_liar_harms_nobody_but_the_liar) {
    static const char *const deny[] = {"fake"};
    trial t;
    trial_begin(&t);
    for (int i = 0; i < 2; i++) {
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 2, 4);
        cluster_add(t.w->cluster, 2, 4);
    }
    t.liar = liar_new(t.w, "mem://liar", 2, 4, (liar_ways){.alters_every = 1});
    t.pick = (sn_pick){.deny = deny, .n_deny = 1}; /* of the chain: only the audit comes by the liar */
    trial_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_assert_eq(feed(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
    sn_audit_report report = sn_audit_read(t.audit);
    cr_expect_eq(t.misled, 0);
    cr_expect(right(&t, 30));
    cr_expect_geq(liar_steps(t.liar), 1, "it was never asked to check");
    cr_expect(sn_audit_caught(t.audit, liar_id(t.liar)));
    cr_expect(report.lies == 1 && report.checked == 20 && !report.unchecked);
    expect_evidence(&t, liar_id(t.liar));
    trial_end(&t);
}

Test(audit, where_two_differ_and_nobody_can_decide_ends_with_a_sentence) {
    trial t;
    trial_begin(&t);
    cluster_add(t.w->cluster, 0, 2);
    cluster_add(t.w->cluster, 2, 4);
    t.liar = liar_new(t.w, "mem://liar", 2, 4, (liar_ways){.alters_step = 3});
    trial_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_expect_eq(feed(&t, 0, 30, 10), SN_RETRY);
    cr_expect(strstr(t.err.text, "nodes differ about blocks 2:4 at position 20, and nobody can say who is right"), "%s",
              t.err.text);
    cr_expect_eq(sn_audit_read(t.audit).lies, 0);
    expect_evidence(&t, liar_id(t.liar)); /* whoever has the file can say */
    trial_end(&t);
}

Test(audit, without_others_who_could_check_counts_what_it_did_not_see) {
    trial t;
    trial_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    trial_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_expect_eq(feed(&t, 0, 30, 10), SN_OK, "%s", t.err.text);
    NEED(sn_chain_audit(t.chain, &err));
    cr_expect(right(&t, 30));
    sn_audit_report report = sn_audit_read(t.audit);
    cr_expect(report.steps == 3 && report.checked == 0 && report.unchecked == 3, "%d of %d unchecked",
              (int)report.unchecked, (int)report.steps);
    trial_end(&t);
}

Test(audit, honest_nodes_of_any_instruction_set_and_threads_never_accuse_each_other) {
    static const char *const isa[] = {"c", "avx2", "avx512"};
    for (uint64_t seed = 0; seed < 6; seed++) {
        trial t;
        trial_begin(&t);
        for (int i = 0; i < 3; i++) {
            sn_device *device = NULL;
            sn_device_options how = {.threads = 1, .isa = isa[(seed + (uint64_t)i) % 3]};
            bool runs = !sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &device, NULL);
            sn_device_close(&device);
            cluster_compute_with(t.w->cluster, runs ? how.isa : NULL, 1 + (int)((seed + (uint64_t)i) % 3));
            cluster_add(t.w->cluster, 0, 2 + i % 2);
            cluster_add(t.w->cluster, 2 - i % 2, 4);
        }
        trial_open(&t, (sn_audit_options){.share = 0.3, .seed = seed}, seed % 2, false);
        cr_assert_eq(feed(&t, 0, 33, 13), SN_OK, "%s", t.err.text);
        cr_assert_eq(feed(&t, 33, 60, 1), SN_OK, "%s", t.err.text);
        cr_assert_eq(feed(&t, 20, 90, 2), SN_OK, "%s", t.err.text); /* rewound */
        NEED(sn_chain_audit(t.chain, &err));
        sn_audit_report report = sn_audit_read(t.audit);
        cr_expect_eq(report.lies, 0, "%s", report.verdict);
        cr_expect(report.checked == report.steps && report.checks > 5 && report.checks < report.steps);
        cr_expect(right(&t, 90) && !t.misled);
        trial_end(&t);
    }
}

Test(audit, goes_on_when_the_audited_node_or_the_auditor_dies) {
    for (int push = 0; push < 2; push++) {
        trial t;
        trial_begin(&t);
        for (int i = 0; i < 3; i++) {
            cluster_add(t.w->cluster, 0, 2);
            cluster_add(t.w->cluster, 2, 4);
        }
        trial_open(&t, (sn_audit_options){.share = 0.5, .seed = 5}, push, false);
        cr_assert_eq(feed(&t, 0, 20, 5), SN_OK, "%s", t.err.text);
        for (int i = 0; i < 2; i++) { /* of the first 2:4 nodes one serves, or checks, or idles */
            cluster_cut_off(t.w->cluster, 1 + 2 * i);
            cr_assert_eq(feed(&t, 20 + 10 * i, 30 + 10 * i, 2), SN_OK, "%s", t.err.text);
        }
        cr_expect(right(&t, 40));
        cr_expect_eq(sn_audit_read(t.audit).lies, 0);
        trial_end(&t);
    }
}
