/* Audits: byzantine nodes are detected at the expected step and by the expected auditor; the results are those of
 * honest nodes; honest nodes are never accused. */
#include "base/clock.h"
#include "base/wire.h"
#include "client/audit/audit_private.h" /* private: evidence that was written */
#include "client/audit/evidence.h"
#include "tests/support/byzantine_node.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/fake_node.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <string.h>
#include <unistd.h>

typedef struct fixture {
    testbed *w;
    sn_link *link;
    sn_model *model;
    sn_device *device; /* set if the client computes blocks */
    sn_audit *audit;
    sn_chain *chain;
    byzantine_node *byzantine, *gpu; /* or NULL */
    sn_node_filter node_filter;      /* of the chain */
    /* wire dtype of hidden states between nodes, which are cut at block 2; set by fixture_use_wire_dtype */
    sn_dtype wire;
    float *rounded; /* the reference with rounded rows, for a lossy wire dtype */
    char folder[64];
    float out[TESTBED_TOKENS * 64];
    int step, audit_failures, detected_at; /* steps done; number of failed audits; step of the first one */
    sn_err err;
} fixture;

static void fixture_begin_of(fixture *t, const cluster_options *nodes) {
    *t = (fixture){.w = testbed_new(nodes), .detected_at = -1};
    snprintf(t->folder, sizeof t->folder, "/tmp/swarm-test-evidence-XXXXXX");
    cr_assert(mkdtemp(t->folder));
}

static void fixture_begin_with_kv(fixture *t, sn_kv_dtype kv_dtype) {
    fixture_begin_of(t, &(cluster_options){.kv_memory = 64, .kv_dtype = kv_dtype});
}

static void fixture_begin(fixture *t) { fixture_begin_with_kv(t, SN_KV_F32); }

/* From now on hidden states travel as `wire`; the reference is computed with rounded rows. */
static void fixture_use_wire_dtype(fixture *t, sn_dtype wire) {
    size_t n = TESTBED_TOKENS * (size_t)t->w->n_embd;
    float *rows = malloc(n * sizeof *rows);
    memcpy(rows, t->w->inputs, n * sizeof *rows);
    sn_wire_round(wire, rows, n);
    for (int first = 0; first < 4; first += 2) {
        float *next = testbed_compute(t->w, first, first + 2, TESTBED_TOKENS, rows);
        free(rows);
        rows = next;
        sn_wire_round(wire, rows, n);
    }
    t->wire = wire;
    t->rounded = rows;
}

/* Opens an audited chain over the present nodes, one of which is byzantine. here: the client may compute blocks. */
static void fixture_open(fixture *t, sn_audit_options audit, bool push, bool here) {
    sn_device_options how = {.threads = 1};
    t->link = cluster_link(t->w->cluster);
    REQUIRE(sn_model_open(t->w->path, &t->model, &err));
    if (t->byzantine) byzantine_node_announce_to(t->byzantine, t->link);
    if (t->gpu) byzantine_node_announce_to(t->gpu, t->link);
    if (here) REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &t->device, &err));
    audit.model = t->model;
    audit.link = t->link;
    audit.device = t->device;
    audit.evidence = t->folder;
    audit.max_tokens = TESTBED_TOKENS;
    audit.timeout_ms = 10000;
    REQUIRE(sn_audit_new(&audit, &t->audit, &err));
    sn_chain_options options = sn_chain_options_default();
    options.link = t->link;
    options.max_tokens = TESTBED_TOKENS;
    options.limits.timeout_ms = audit.timeout_ms;
    options.routing.push = push;
    options.routing.node_filter = t->node_filter;
    options.wire.dtype = t->wire;
    options.kv.dtype = t->w->kv_dtype;
    options.verification.verifier = sn_audit_verifier(t->audit);
    REQUIRE(sn_chain_open(t->model, &options, &t->chain, &err));
}

static void fixture_end(fixture *t) {
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
    byzantine_node_free(&t->byzantine);
    byzantine_node_free(&t->gpu);
    free(t->rounded);
    testbed_free(&t->w);
}

/* Feeds [position, end), `chunk` tokens at a time. After a failed audit it continues from the position of the chain,
 * as a generator does. */
static sn_status feed_tokens(fixture *t, int position, int end, int chunk) {
    size_t row = (size_t)t->w->n_embd;
    for (int at = position, n; at < end;) {
        n = chunk < end - at ? chunk : end - at;
        t->step++;
        sn_status status =
            sn_chain_step(t->chain, at, n, t->w->inputs + (size_t)at * row, t->out + (size_t)at * row, &t->err);
        if (status == SN_REBUILD && sn_chain_audit_failed(t->chain)) {
            if (!t->audit_failures++) t->detected_at = t->step;
            at = sn_chain_length(t->chain);
            continue;
        }
        if (status) return status;
        at += n;
    }
    return SN_OK;
}

static bool output_is_right(const fixture *t, int end) {
    return !memcmp(t->out, t->rounded ? t->rounded : t->w->hidden, (size_t)end * (size_t)t->w->n_embd * sizeof(float));
}

/* Checks what swarm verify concludes from the evidence. */
static void expect_evidence(const fixture *t, const uint8_t *culprit) {
    sn_audit_report report = sn_audit_get_report(t->audit);
    sn_evidence e;
    sn_device *device = NULL;
    sn_chain *truth = NULL;
    bool cut_at[8], round_at[8];
    sn_verdict found[SN_STATEMENTS_MAX];
    sn_device_options how = {.threads = 2, .isa = "c"};
    REQUIRE(sn_evidence_load(report.evidence, &e, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &device, &err));
    sn_evidence_cuts(&e, cut_at, t->w->n_blocks);
    sn_chain_options options = {.first = e.first,
                                .end = e.end,
                                .max_tokens = e.n_tokens,
                                .local = {.device = device, .first = e.first, .end = e.end},
                                .kv.dtype = t->w->kv_dtype,
                                .routing.cut_at = cut_at,
                                .wire = {.round_at = round_at}};
    options.wire.dtype = sn_evidence_wire(&e, round_at, t->w->n_blocks);
    cr_expect_eq(options.wire.dtype, t->wire);
    REQUIRE(sn_chain_open(t->model, &options, &truth, &err));
    REQUIRE(sn_evidence_judge(&e, truth, found, &err));
    int lies = 0;
    for (size_t i = 0; i < e.n; i++) {
        sn_announcement a;
        bool is_culprit = !memcmp(e.statements[i].receipt.node, culprit, SN_KEY_SIZE);
        cr_expect_eq(found[i].kind, is_culprit ? SN_VERDICT_WRONG : SN_VERDICT_CORRECT, "statement %zu: %s", i,
                     found[i].why);
        lies += is_culprit;
        const sn_blob *announcement = &e.statements[i].announcement;
        cr_expect_eq(sn_announcement_open(announcement->data, announcement->len, sn_unix_ms(), &a, NULL), SN_OK);
        cr_expect_arr_eq(a.node, e.statements[i].receipt.node, SN_KEY_SIZE);
    }
    cr_expect_geq(lies, 1);
    sn_chain_close(&truth);
    sn_device_close(&device);
    sn_evidence_fini(&e);
}

/* -- detection */

/* Nodes: 0:2, and 2:4 three times, one of which is the byzantine node that the route prefers. */
static void expect_detection_in(fixture *t, byzantine_faults faults, bool push, bool here, bool local, int at_step) {
    cluster_add(t->w->cluster, 0, 2);
    cluster_add(t->w->cluster, 2, 4);
    cluster_add(t->w->cluster, 2, 4);
    cluster_add(t->w->cluster, 0, 2);
    if (push) cluster_add(t->w->cluster, 0, 2); /* an auditor and an arbiter that are neither */
    t->byzantine = byzantine_node_new(t->w, "byzantine:1", 2, 4, faults);
    fixture_open(t, (sn_audit_options){.share = 1, .seed = 7, .local = local}, push, here);
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
    fixture_end(t);
}

static void expect_detection_as(sn_dtype wire, byzantine_faults faults, bool push, bool here, bool local, int at_step) {
    fixture t;
    fixture_begin(&t);
    if (wire != SN_F32) fixture_use_wire_dtype(&t, wire);
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
        fixture t;
        fixture_begin(&t);
        fixture_use_wire_dtype(&t, LOSSY[k / 2]);
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 2, 4);
        cluster_add(t.w->cluster, 0, 3);
        cluster_add(t.w->cluster, 3, 4);
        t.node_filter = (sn_node_filter){.only = only, .n_only = 2};
        fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, k % 2, false);
        cr_assert_eq(feed_tokens(&t, 0, 40, 3), SN_OK, "%s", t.err.text);
        REQUIRE(sn_chain_audit(t.chain, &err));
        sn_audit_report report = sn_audit_get_report(t.audit);
        cr_expect(output_is_right(&t, 40), "%s, push %d: bits differ", sn_dtype_name(t.wire), (int)(k % 2));
        cr_expect_eq(t.audit_failures, 0);
        cr_expect(!report.nodes_banned && !report.unchecked && report.checked >= 14, "%s", report.verdict);
        fixture_end(&t);
    }
}

/* -- keys and values in fewer bits */

Test(audit, detects_stale_results_over_kv_caches_of_every_type) {
    for (int kv = SN_KV_F16; kv <= SN_KV_Q8; kv++)
        for (int local = 0; local < 2; local++) {
            fixture t;
            fixture_begin_with_kv(&t, (sn_kv_dtype)kv);
            expect_detection_in(&t, (byzantine_faults){.stale = true}, local, local, local, 3);
        }
}

/* What the block hashes announce and what the receipt says must be one: otherwise the receipt cannot be verified. */
Test(audit, a_receipt_that_names_another_kv_dtype_is_refused) {
    for (int kv = SN_KV_F32; kv <= SN_KV_Q8; kv++) {
        fixture t;
        fixture_begin_with_kv(&t, (sn_kv_dtype)kv);
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 2, 4);
        t.byzantine = byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.signs_other_kv_dtype = true});
        fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1, .local = true}, false, true);
        cr_assert_eq(feed_tokens(&t, 0, 20, 10), SN_OK, "%s", t.err.text);
        cr_expect_eq(byzantine_node_steps(t.byzantine), 1, "its receipt was accepted");
        cr_expect(output_is_right(&t, 20));
        fixture_end(&t);
    }
}

/* -- the drawn share of steps */

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
static sn_status feed_many_tokens(fixture *t, int steps) {
    for (int left = steps; left > 0 && !t->audit_failures; left -= TESTBED_TOKENS) {
        sn_status status = feed_tokens(t, 0, left < TESTBED_TOKENS ? left : TESTBED_TOKENS, 1);
        if (status) return status;
    }
    return SN_OK;
}

Test(audit, a_share_of_steps_detects_at_the_drawn_step) {
    const uint64_t seeds[] = {1, 2};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        fixture t;
        fixture_begin(&t);
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 2, 4);
        cluster_add(t.w->cluster, 2, 4);
        t.byzantine = byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_every_nth = 1000});
        fixture_open(&t, (sn_audit_options){.share = 0.05, .seed = seeds[i]}, false, false);
        cr_assert_eq(feed_many_tokens(&t, 1200), SN_OK, "%s", t.err.text);
        cr_expect_eq(t.audit_failures, 1, "seed %d: %d failed audits", (int)seeds[i], t.audit_failures);
        int expected = expected_detection_step(seeds[i], 0.05, 1000);
        cr_expect_eq(t.detected_at, expected, "seed %d: at step %d, not %d", (int)seeds[i], t.detected_at, expected);
        expect_evidence(&t, byzantine_node_id(t.byzantine));
        fixture_end(&t);
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
Test(audit, a_node_cannot_foresee_which_steps_are_checked) {
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

/* -- after a wrong result */

/* Results that replaced others after a rewind are dropped with those that followed the wrong one. */
Test(audit, a_wrong_result_before_a_rewind_takes_back_what_came_after_it) {
    fixture t;
    fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 0, 2);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 2, 4);
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_nth_step = 4, .alter_every_nth = 5});
    fixture_open(&t, (sn_audit_options){.share = 1e-9, .seed = 7, .local = true}, false, true);
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
    fixture_end(&t);
}

/* The rows that entered the second of the new nodes are not known: what it does is not checked against others. */
Test(audit, honest_nodes_that_take_over_a_part_of_a_kv_cache_are_not_accused) {
    fixture t;
    fixture_begin_of(&t, &(cluster_options){.kv_memory = 64, .drain_timeout_s = 20});
    cluster_add(t.w->cluster, 0, 4);
    fixture_open(&t, (sn_audit_options){.share = 1e-9, .seed = 7, .local = true}, false, true);
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
    fixture_end(&t);
}

/* -- verdicts */

Test(audit, a_lying_auditor_bans_only_itself) {
    static const char *const deny[] = {"fake"};
    fixture t;
    fixture_begin(&t);
    for (int i = 0; i < 2; i++) {
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 2, 4);
        cluster_add(t.w->cluster, 2, 4);
    }
    t.byzantine = byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_every_nth = 1});
    /* of the chain: only the audit uses the byzantine node */
    t.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1};
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect_eq(t.audit_failures, 0);
    cr_expect(output_is_right(&t, 30));
    cr_expect_geq(byzantine_node_steps(t.byzantine), 1, "it never got an audit step");
    cr_expect(sn_audit_is_banned(t.audit, byzantine_node_id(t.byzantine)));
    cr_expect(report.nodes_banned == 1 && report.checked == 20 && !report.unchecked);
    expect_evidence(&t, byzantine_node_id(t.byzantine));
    fixture_end(&t);
}

static int evidence_files(const fixture *t) {
    int n = 0;
    DIR *folder = opendir(t->folder);
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder)) n += e->d_name[0] != '.';
    if (folder) closedir(folder);
    return n;
}

/* Nothing that it signed is wrong, so it is not banned. */
Test(audit, an_auditor_that_lies_once_is_not_asked_again) {
    static const char *const deny[] = {"fake"};
    fixture t;
    fixture_begin(&t);
    for (int i = 0; i < 2; i++) {
        cluster_add(t.w->cluster, 0, 2);
        cluster_add(t.w->cluster, 2, 4);
        cluster_add(t.w->cluster, 2, 4);
    }
    t.byzantine = byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_once = true});
    t.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1}; /* of the chain, not of the audit */
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(output_is_right(&t, 30) && !t.audit_failures);
    cr_expect_eq(byzantine_node_steps(t.byzantine), 2, "%d steps: a lie, and what it signs in the dispute",
                 byzantine_node_steps(t.byzantine));
    cr_expect(!report.nodes_banned && report.checked == 20 && !report.unchecked, "%d checked", (int)report.checked);
    cr_expect_eq(evidence_files(&t), 0, "there is evidence, but no node is banned");
    fixture_end(&t);
}

Test(audit, an_auditor_that_lies_and_then_fails_is_not_asked_again) {
    static const char *const deny[] = {"fake"};
    fixture t;
    fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 0, 2);
    cluster_add(t.w->cluster, 2, 4);
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_once = true, .fail_repeated = true});
    t.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1};
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, true);
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text); /* the arbiter is this machine */
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(output_is_right(&t, 30) && !t.audit_failures && !report.nodes_banned);
    cr_expect_eq(byzantine_node_steps(t.byzantine), 2, "%d steps", byzantine_node_steps(t.byzantine));
    cr_expect(report.checked == 10 && report.unchecked == 10 && report.unchecked_failed == 10, "%d checked",
              (int)report.checked);
    fixture_end(&t);
}

Test(audit, writes_no_more_than_some_files_of_evidence) {
    fixture t;
    fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 2);
    cluster_add(t.w->cluster, 2, 4);
    t.byzantine = byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_every_nth = 1});
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    for (int i = 0; i < 20; i++) cr_expect_eq(feed_tokens(&t, 0, 3, 3), SN_RETRY, "the answers do not differ");
    cr_expect_eq(evidence_files(&t), 16, "%d files", evidence_files(&t));
    fixture_end(&t);
}

Test(audit, writes_no_more_than_some_bytes_of_evidence) {
    fixture t;
    fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 2);
    cluster_add(t.w->cluster, 2, 4);
    t.byzantine = byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_every_nth = 1});
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    t.audit->evidence_bytes = ((size_t)1 << 30) - 1;
    for (int i = 0; i < 3; i++) cr_expect_eq(feed_tokens(&t, 0, 3, 3), SN_RETRY, "the answers do not differ");
    cr_expect_eq(evidence_files(&t), 1, "%d files", evidence_files(&t));
    fixture_end(&t);
}

/* -- nodes whose device may give other bits, within a group that pushes */

/* The wrong node is banned, or no longer used. */
static void expect_only_the_wrong_node_is_banned(fixture *t, bool used_again) {
    cr_assert_eq(feed_tokens(t, 0, 30, 3), SN_OK, "%s", t->err.text);
    cr_assert_eq(sn_chain_audit(t->chain, &t->err), SN_OK, "%s", t->err.text);
    sn_audit_report report = sn_audit_get_report(t->audit);
    bool wrong_is_banned = sn_audit_is_banned(t->audit, byzantine_node_id(t->byzantine));
    cr_expect(wrong_is_banned || !used_again, "the wrong node is not banned: %s", report.verdict);
    cr_expect_eq(report.nodes_banned, wrong_is_banned, "an honest node is banned: %s", report.verdict);
    cr_expect_geq(t->audit_failures, used_again ? 2 : 1); /* that a node lies, and which */
}

Test(audit, a_wrong_node_that_claims_a_gpu_has_no_other_node_banned_in_its_place) {
    fixture t;
    fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 0, 2);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 2, 4);
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:1", 0, 2,
                           (byzantine_faults){.alter_every_nth = 3, .large_error = true, .signs_approximate = true});
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 7, .local = true}, true, true);
    expect_only_the_wrong_node_is_banned(&t, false);
    cr_expect(output_is_right(&t, 30), "bits differ from those of honest nodes");
    fixture_end(&t);
}

/* The first node gives other bits within what is allowed, so that nothing which follows it is exact. */
Test(audit, a_wrong_node_behind_a_gpu_does_not_have_that_node_banned) {
    fixture t;
    fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 2, 4);
    t.gpu = byzantine_node_new(t.w, "gpu:1", 0, 2, (byzantine_faults){.alter_every_nth = 1, .signs_approximate = true});
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_every_nth = 3, .large_error = true});
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 7, .local = true}, true, true);
    expect_only_the_wrong_node_is_banned(&t, true);
    fixture_end(&t);
}

/* The auditor is proven wrong, so what the group answered is not in doubt, whatever its first node's statement shows.
 */
Test(audit, a_wrong_auditor_of_a_group_with_a_gpu_bans_only_itself) {
    char id[2 * SN_KEY_SIZE + 1];
    const char *const deny[] = {id};
    fixture t;
    fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 2, 4);
    t.gpu = byzantine_node_new(t.w, "gpu:1", 0, 2, (byzantine_faults){.alter_every_nth = 1, .signs_approximate = true});
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:1", 0, 4, (byzantine_faults){.alter_every_nth = 1, .large_error = true});
    sn_hex(byzantine_node_id(t.byzantine), SN_KEY_SIZE, id);
    t.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1}; /* of the chain, not of the audit */
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 7}, true, true);
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
    cr_expect(sn_audit_is_banned(t.audit, byzantine_node_id(t.byzantine)), "it is not banned");
    cr_expect(sn_audit_get_report(t.audit).nodes_banned == 1 && !t.audit_failures);
    fixture_end(&t);
}

/* The last bit of each of its results differs, as on a GPU: there is no third node, so a dispute would be an error. */
Test(audit, honest_nodes_with_and_without_a_gpu_agree_within_the_tolerance) {
    static const char *const deny[] = {"fake"};
    for (int audits = 0; audits < 2; audits++) { /* the node with the GPU serves, or audits */
        fixture t;
        fixture_begin(&t);
        cluster_add(t.w->cluster, 0, 4);
        t.gpu =
            byzantine_node_new(t.w, "gpu:1", 0, 4, (byzantine_faults){.alter_every_nth = 1, .signs_approximate = true});
        if (audits) t.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1};
        fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
        cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
        REQUIRE(sn_chain_audit(t.chain, &err));
        sn_audit_report report = sn_audit_get_report(t.audit);
        cr_expect(report.checked == 10 && !report.unchecked && !report.nodes_banned, "%d checked", (int)report.checked);
        cr_expect_eq(byzantine_node_steps(t.gpu), 10);
        fixture_end(&t);
    }
}

Test(audit, an_undecidable_difference_is_an_error) {
    fixture t;
    fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 2);
    cluster_add(t.w->cluster, 2, 4);
    t.byzantine = byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_nth_step = 3});
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_RETRY);
    cr_expect(strstr(t.err.text, "nodes differ about blocks 2:4 at position 20, and no third node can decide"), "%s",
              t.err.text);
    cr_expect_eq(sn_audit_get_report(t.audit).nodes_banned, 0);
    expect_evidence(&t, byzantine_node_id(t.byzantine)); /* the evidence proves it to anyone who has the model */
    fixture_end(&t);
}

/* Its statements prove nothing to others. */
Test(audit, a_wrong_node_that_claims_kv_pages_from_elsewhere_is_banned) {
    for (int here = 0; here < 2; here++) {
        fixture t;
        fixture_begin(&t);
        for (int i = 0; i < 3; i++) cluster_add(t.w->cluster, 0, 4);
        t.byzantine =
            byzantine_node_new(t.w, "byzantine:1", 0, 4,
                               (byzantine_faults){.alter_every_nth = 3, .large_error = true, .signs_continued = true});
        fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1, .local = here}, false, here);
        cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
        REQUIRE(sn_chain_audit(t.chain, &err));
        cr_expect(sn_audit_is_banned(t.audit, byzantine_node_id(t.byzantine)), "it is not banned");
        cr_expect(sn_audit_get_report(t.audit).nodes_banned == 1 && t.audit_failures == 1);
        cr_expect(output_is_right(&t, 30));
        fixture_end(&t);
    }
}

/* Such keys and values make other bits, where the node that computed them has a GPU. */
Test(audit, honest_nodes_that_go_on_with_a_gpus_kv_pages_are_not_accused) {
    fixture t;
    fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    t.gpu =
        byzantine_node_new(t.w, "honest:1", 0, 4, (byzantine_faults){.alter_every_nth = 1, .signs_continued = true});
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1, .local = true}, false, true);
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(report.checked == 10 && !report.unchecked && !report.nodes_banned, "%s", report.verdict);
    cr_expect_eq(byzantine_node_steps(t.gpu), 10);
    fixture_end(&t);
}

/* One of the three is honest, and nothing shows which. */
Test(audit, no_node_is_banned_where_no_two_of_three_answers_agree) {
    static const char *const deny[] = {"fake"};
    fixture t;
    fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    t.gpu = byzantine_node_new(t.w, "byzantine:1", 0, 4, (byzantine_faults){.alter_every_nth = 1});
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:2", 0, 4, (byzantine_faults){.alter_every_nth = 1, .large_error = true});
    t.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1}; /* of the chain, not of the audit */
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_expect_eq(feed_tokens(&t, 0, 10, 10), SN_RETRY);
    cr_expect(strstr(t.err.text, "nodes differ about blocks 0:4 at position 0"), "%s", t.err.text);
    cr_expect_eq(sn_audit_get_report(t.audit).nodes_banned, 0);
    fixture_end(&t);
}

/* The answers differ, and that is not forgotten when the auditor says no more. */
Test(audit, an_auditor_that_fails_in_a_dispute_leaves_the_answer_undecided) {
    static const char *const deny[] = {"fake"};
    fixture t;
    fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 2);
    cluster_add(t.w->cluster, 2, 4);
    t.byzantine =
        byzantine_node_new(t.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_once = true, .fail_repeated = true});
    t.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1};
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_RETRY);
    cr_expect(strstr(t.err.text, "nodes differ about blocks 2:4 at position 0"), "%s", t.err.text);
    cr_expect_eq(sn_audit_get_report(t.audit).nodes_banned, 0);
    fixture_end(&t);
}

Test(audit, counts_unchecked_steps_without_an_auditor) {
    fixture t;
    fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    cr_expect(output_is_right(&t, 30));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(report.steps == 3 && report.checked == 0 && report.unchecked == 3, "%d of %d unchecked",
              (int)report.unchecked, (int)report.steps);
    cr_expect(!report.unchecked_failed && !sn_chain_audit_is_incomplete(t.chain), "no node has failed");
    fixture_end(&t);
}

/* -- who may audit */

Test(audit, auditors_are_nodes_that_the_user_allows) {
    static const char *const deny[] = {"fake"};
    const sn_node_filter filter = {.deny = deny, .n_deny = 1};
    fixture t;
    fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 0, 4);
    t.byzantine = byzantine_node_new(t.w, "denied:1", 0, 4, (byzantine_faults){0});
    t.node_filter = filter;
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1, .node_filter = filter}, false, false);
    cr_assert_eq(feed_tokens(&t, 0, 30, 3), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    cr_expect_eq(sn_audit_get_report(t.audit).checked, 10);
    cr_expect_eq(byzantine_node_steps(t.byzantine), 0, "a node of --deny is an auditor");
    fixture_end(&t);
}

Test(audit, an_auditor_that_takes_the_blocks_over_does_not_check_itself) {
    fixture t;
    fixture_begin(&t);
    for (int i = 0; i < 2; i++) cluster_add(t.w->cluster, 0, 4);
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_assert_eq(feed_tokens(&t, 0, 9, 3), SN_OK, "%s", t.err.text);
    cr_expect_eq(sn_audit_get_report(t.audit).checked, 3, "the other node is no auditor");
    cluster_cut_off(t.w->cluster, cluster_node_of_block(t.chain, 0));
    cr_assert_eq(feed_tokens(&t, 9, 18, 3), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect_geq(report.unchecked, 3, "%d checked, %d unchecked", (int)report.checked, (int)report.unchecked);
    fixture_end(&t);
}

/* -- auditors that fail or are wrong: strangers that routes prefer */

enum { FAILING = 5 }; /* more than a chain has retries */

static void open_with_auditors(fixture *t, byzantine_faults faults, byzantine_node **auditors) {
    static const char *const deny[] = {"fake"};
    t->node_filter = (sn_node_filter){.deny = deny, .n_deny = 1}; /* of the chain, not of the audit */
    fixture_open(t, (sn_audit_options){.share = 1, .seed = 1}, false, faults.alter_once); /* with an arbiter or not */
    for (int i = 0; i < FAILING; i++) {
        char address[32];
        snprintf(address, sizeof address, "auditor%d:1", i);
        auditors[i] = byzantine_node_new(t->w, address, 0, 4, faults);
        byzantine_node_announce_to(auditors[i], t->link);
    }
}

Test(audit, the_last_check_goes_on_to_other_auditors_when_some_fail) {
    fixture t;
    byzantine_node *failing[FAILING];
    fixture_begin(&t);
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
    fixture_end(&t);
}

Test(audit, the_last_check_asks_an_auditor_again_that_failed_where_there_is_no_other) {
    static const char *const deny[] = {"fake"};
    fixture t;
    fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    t.byzantine = byzantine_node_new(t.w, "busy:1", 0, 4, (byzantine_faults){.fail_steps = 1});
    t.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1}; /* of the chain, not of the audit */
    fixture_open(&t, (sn_audit_options){.share = 1, .seed = 1}, false, false);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_OK, "%s", t.err.text);
    cr_expect_eq(sn_audit_get_report(t.audit).unchecked_failed, 3);
    REQUIRE(sn_chain_audit(t.chain, &err));
    cr_expect_eq(sn_audit_get_report(t.audit).checked, 3);
    cr_expect(!sn_chain_audit_is_incomplete(t.chain));
    fixture_end(&t);
}

/* Each of them costs the client a computation of the whole history. */
Test(audit, a_check_tries_no_more_than_three_auditors) {
    fixture t;
    byzantine_node *wrong[FAILING];
    int asked = 0;
    fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    open_with_auditors(&t, (byzantine_faults){.alter_once = true}, wrong);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_OK, "%s", t.err.text); /* one check: the others are postponed */
    for (int i = 0; i < FAILING; i++) asked += byzantine_node_steps(wrong[i]) > 0;
    cr_expect_eq(asked, 3, "%d auditors were asked", asked);
    cr_expect(output_is_right(&t, 30) && !t.audit_failures);
    for (int i = 0; i < FAILING; i++) byzantine_node_free(&wrong[i]);
    fixture_end(&t);
}

/* Nodes that would be auditors open sessions and answer no step: each try takes the time of a call. */
Test(audit, auditors_after_the_first_share_the_time_of_a_call) {
    enum { SILENT = 16, CALL_US = 10000000 };
    static const char *const deny[] = {"fake"};
    fake_node *silent[SILENT];
    fixture t;
    fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    t.node_filter = (sn_node_filter){.deny = deny, .n_deny = 1}; /* of the chain, not of the audit */
    fixture_open(&t, (sn_audit_options){.share = 1e-9, .seed = 1}, false, false);
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
    fixture_end(&t);
}

Test(audit, is_incomplete_when_every_auditor_fails) {
    fixture t;
    byzantine_node *failing[FAILING];
    fixture_begin(&t);
    cluster_add(t.w->cluster, 0, 4);
    open_with_auditors(&t, (byzantine_faults){.fail_steps = INT_MAX}, failing);
    cr_expect_eq(feed_tokens(&t, 0, 30, 10), SN_OK, "%s", t.err.text);
    REQUIRE(sn_chain_audit(t.chain, &err));
    sn_audit_report report = sn_audit_get_report(t.audit);
    cr_expect(!report.checked && report.unchecked == 3 && report.unchecked_failed == 3,
              "%d unchecked, %d of them failed", (int)report.unchecked, (int)report.unchecked_failed);
    cr_expect(sn_chain_audit_is_incomplete(t.chain));
    for (int i = 0; i < FAILING; i++) byzantine_node_free(&failing[i]);
    fixture_end(&t);
}

Test(audit, honest_nodes_of_any_instruction_set_and_threads_agree) {
    static const char *const isa[] = {"c", TEST_ISA_1, TEST_ISA_2};
    for (uint64_t seed = 0; seed < 6; seed++) {
        fixture t;
        fixture_begin(&t);
        for (int i = 0; i < 3; i++) {
            sn_device *device = NULL;
            sn_device_options how = {.threads = 1, .isa = isa[(seed + (uint64_t)i) % 3]};
            bool runs = !sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &device, NULL);
            sn_device_close(&device);
            cluster_compute_with(t.w->cluster, runs ? how.isa : NULL, 1 + (int)((seed + (uint64_t)i) % 3));
            cluster_add(t.w->cluster, 0, 2 + i % 2);
            cluster_add(t.w->cluster, 2 - i % 2, 4);
        }
        fixture_open(&t, (sn_audit_options){.share = 0.3, .seed = seed}, seed % 2, false);
        cr_assert_eq(feed_tokens(&t, 0, 33, 13), SN_OK, "%s", t.err.text);
        cr_assert_eq(feed_tokens(&t, 33, 60, 1), SN_OK, "%s", t.err.text);
        cr_assert_eq(feed_tokens(&t, 20, 90, 2), SN_OK, "%s", t.err.text); /* rewound */
        REQUIRE(sn_chain_audit(t.chain, &err));
        sn_audit_report report = sn_audit_get_report(t.audit);
        cr_expect_eq(report.nodes_banned, 0, "%s", report.verdict);
        cr_expect(report.checked == report.steps && report.checks > 5 && report.checks < report.steps);
        cr_expect(output_is_right(&t, 90) && !t.audit_failures);
        fixture_end(&t);
    }
}

Test(audit, continues_when_the_audited_node_or_the_auditor_dies) {
    for (int push = 0; push < 2; push++) {
        fixture t;
        fixture_begin(&t);
        for (int i = 0; i < 3; i++) {
            cluster_add(t.w->cluster, 0, 2);
            cluster_add(t.w->cluster, 2, 4);
        }
        fixture_open(&t, (sn_audit_options){.share = 0.5, .seed = 5}, push, false);
        cr_assert_eq(feed_tokens(&t, 0, 20, 5), SN_OK, "%s", t.err.text);
        for (int i = 0; i < 2; i++) { /* one of the first two 2:4 nodes serves or audits or is idle */
            cluster_cut_off(t.w->cluster, 1 + 2 * i);
            cr_assert_eq(feed_tokens(&t, 20 + 10 * i, 30 + 10 * i, 2), SN_OK, "%s", t.err.text);
        }
        cr_expect(output_is_right(&t, 40));
        cr_expect_eq(sn_audit_get_report(t.audit).nodes_banned, 0);
        fixture_end(&t);
    }
}
