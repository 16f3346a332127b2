/* A chain with an adapter: LoRA matrices, deep prompts and virtual tokens give the same bits as computing everything
 * in one process, for every cut, and when nodes fail, drain or lie. */
#include "base/clock.h"
#include "client/audit/audit.h"
#include "client/audit/evidence.h"
#include "tests/support/files.h"
#include "tests/support/byzantine_node.h"
#include "tests/support/require.h"
#include "tests/support/node_client.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

enum { VIRTUAL = 5, TIMEOUT_MS = 10000 };

typedef struct fixture {
    testbed *w;
    sn_buf image;
    float *prompt; /* (VIRTUAL, n_embd) */
    float *want;   /* (TESTBED_TOKENS, n_embd) */
    sn_link *link;
    sn_model *model;
    sn_device *device;
    sn_chain *chain;
    float out[TESTBED_TOKENS * 64];
    sn_err err;
} fixture;

static void fixture_begin(fixture *r) {
    *r = (fixture){
        .w = testbed_new(&(cluster_options){.kv_memory = 64, .drain_timeout_s = 10, .tune_memory = 64 << 20})};
    size_t row = (size_t)r->w->n_embd, n = VIRTUAL + TESTBED_TOKENS;
    float *rows = calloc(n * row, sizeof *rows);
    r->image = testbed_adapter_image(r->w, 0.5f);
    r->prompt = calloc(VIRTUAL * row, sizeof *r->prompt);
    r->want = calloc(TESTBED_TOKENS * row, sizeof *r->want);
    for (size_t i = 0; i < VIRTUAL * row; i++) r->prompt[i] = (float)(i % 13) / 13;
    memcpy(rows, r->prompt, VIRTUAL * row * sizeof *rows);
    memcpy(rows + VIRTUAL * row, r->w->inputs, TESTBED_TOKENS * row * sizeof *rows);
    float *all = testbed_compute_with_adapter(r->w, &r->image, 0, r->w->n_blocks, (int)n, rows);
    memcpy(r->want, all + VIRTUAL * row, TESTBED_TOKENS * row * sizeof *all);
    REQUIRE(sn_model_open(r->w->path, &r->model, &err));
    free(all);
    free(rows);
}

static sn_chain_options adapter_options(const fixture *r) {
    sn_chain_options options = sn_chain_options_default();
    options.link = r->link;
    options.max_tokens = TESTBED_TOKENS;
    options.limits.timeout_ms = TIMEOUT_MS;
    options.local.device = r->device;
    options.adapter = (sn_chain_adapter){.hash = sn_hash_of(r->image.data, r->image.len),
                                         .image = r->image.data,
                                         .bytes = r->image.len,
                                         .prompt = r->prompt,
                                         .n_prompt = VIRTUAL};
    return options;
}

static void fixture_open(fixture *r, sn_chain_options options) {
    cr_assert_eq(sn_chain_open(r->model, &options, &r->chain, &r->err), SN_OK, "%s", r->err.text);
}

static void fixture_steps(fixture *r, int position, int end, int chunk) {
    size_t row = (size_t)r->w->n_embd;
    for (int at = position, n; at < end; at += n) {
        n = chunk < end - at ? chunk : end - at;
        sn_status status =
            sn_chain_step(r->chain, at, n, r->w->inputs + (size_t)at * row, r->out + (size_t)at * row, &r->err);
        cr_assert_eq(status, SN_OK, "at %d: %s", at, r->err.text);
        cr_assert_eq(sn_chain_length(r->chain), at + n);
        cr_assert(!memcmp(r->out + (size_t)at * row, r->want + (size_t)at * row, (size_t)n * row * sizeof(float)),
                  "bits differ at %d", at);
    }
}

static void fixture_close(fixture *r) {
    sn_chain_close(&r->chain);
    sn_link_close(&r->link);
    sn_device_close(&r->device);
}

static void fixture_end(fixture *r) {
    fixture_close(r);
    sn_model_close(&r->model);
    sn_buf_fini(&r->image);
    free(r->prompt);
    free(r->want);
    testbed_free(&r->w);
}

Test(chain_adapter, same_bits_over_every_cut) {
    fixture r;
    fixture_begin(&r);
    cr_assert(memcmp(r.want, r.w->hidden, (size_t)r.w->n_embd * sizeof(float)));
    cluster_add(r.w->cluster, 0, 1), cluster_add(r.w->cluster, 1, 3), cluster_add(r.w->cluster, 3, 4);
    for (int mode = 0; mode < 4; mode++) { /* local; over nodes; over nodes that push; blocks 0:2 local */
        if (mode) r.link = cluster_link(r.w->cluster);
        if (mode == 0 || mode == 3)
            REQUIRE(
                sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 2}, &r.device, &err));
        sn_chain_options options = adapter_options(&r);
        options.routing.push = mode == 2;
        options.local.end = mode == 0 ? 4 : mode == 3 ? 2 : 0;
        fixture_open(&r, options);
        cr_expect_eq(sn_chain_length(r.chain), 0);
        fixture_steps(&r, 0, 50, 17);
        fixture_steps(&r, 0, 30, 30); /* from position 0 again: the virtual tokens before it stay */
        fixture_steps(&r, 20, TESTBED_TOKENS, 9);
        cr_expect_eq(sn_chain_step(r.chain, TESTBED_TOKENS, 1, r.w->inputs, r.out, &r.err), SN_REFUSED,
                     "the context is full");
        fixture_close(&r);
    }
    fixture_end(&r);
}

Test(chain_adapter, a_replacement_node_gets_the_adapter) {
    for (int push = 0; push < 2; push++) {
        fixture r;
        fixture_begin(&r);
        cluster_add(r.w->cluster, 0, 2), cluster_add(r.w->cluster, 2, 4);
        cluster_add(r.w->cluster, 2, 3), cluster_add(r.w->cluster, 3, 4);
        cluster_cut_off_at_step(r.w->cluster, 1, 12);
        r.link = cluster_link(r.w->cluster);
        sn_chain_options options = adapter_options(&r);
        options.routing.push = push;
        fixture_open(&r, options);
        fixture_steps(&r, 0, TESTBED_TOKENS, 6);
        cr_expect_geq(sn_chain_failovers(r.chain), 1);
        fixture_end(&r);
    }
}

Test(chain_adapter, kv_migration_goes_to_a_node_that_gets_the_adapter) {
    fixture r;
    fixture_begin(&r);
    for (int i = 0; i < 2; i++) cluster_add(r.w->cluster, 0, 2), cluster_add(r.w->cluster, 2, 4);
    r.link = cluster_link(r.w->cluster);
    fixture_open(&r, adapter_options(&r));
    fixture_steps(&r, 0, 50, 20);
    int leaves = cluster_node_of_block(r.chain, 2);
    cluster_drain(r.w->cluster, leaves);
    int64_t until = sn_now_us() + 10000000;
    for (int at = 50; !sn_chain_replicas_promoted(r.chain) && sn_now_us() < until; at = at < 59 ? at + 1 : 50) {
        fixture_steps(&r, at, at + 1, 1);
        sn_sleep_us(10000);
    }
    cr_expect_eq(sn_chain_replicas_promoted(r.chain), 1);
    cr_expect_neq(cluster_node_of_block(r.chain, 2), leaves);
    fixture_steps(&r, 40, TESTBED_TOKENS, 7);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    fixture_end(&r);
}

Test(chain_adapter, a_replica_saves_the_replay_after_a_node_death) {
    fixture r;
    fixture_begin(&r);
    for (int i = 0; i < 2; i++) cluster_add(r.w->cluster, 0, 2), cluster_add(r.w->cluster, 2, 4);
    r.link = cluster_link(r.w->cluster);
    sn_chain_options options = adapter_options(&r);
    options.kv.replica = true;
    fixture_open(&r, options);
    fixture_steps(&r, 0, 50, 25);
    for (size_t k = 0; k < sn_chain_hops(r.chain, NULL, 0); k++)
        REQUIRE(sn_chain_await_replica(r.chain, k, 20000, &err));
    int failing = cluster_node_of_block(r.chain, 2);
    cluster_cut_off_at_step(r.w->cluster, failing, 2);
    fixture_steps(&r, 50, 60, 1);
    cr_expect_eq(sn_chain_replicas_promoted(r.chain), 1);
    cr_expect_neq(cluster_node_of_block(r.chain, 2), failing);
    cr_expect_leq(sn_chain_replayed(r.chain), 2);
    fixture_steps(&r, 33, TESTBED_TOKENS, 5);
    fixture_end(&r);
}

Test(chain_adapter, kv_pages_damaged_in_swap_are_recomputed_with_the_adapter) {
    fixture r;
    fixture_begin(&r);
    testbed *plain = r.w;
    r.w = testbed_new(&(cluster_options){.kv_memory = 64,
                                         .tune_memory = 64 << 20,
                                         .swap_to = SN_ON_DISK,
                                         .swap_dir = "/tmp",
                                         .swap_memory = 1 << 20,
                                         .swap_after_s = 1});
    cluster_add(r.w->cluster, 0, 4);
    r.link = cluster_link(r.w->cluster);
    fixture_open(&r, adapter_options(&r));
    node_client *t = node_client_new(r.w, 0);
    fixture_steps(&r, 0, 50, 25);
    for (int damaged = 0; damaged < 2; damaged++) { /* the first time the pages are intact */
        int64_t until = sn_now_us() + 20000000;
        uint64_t pages = (VIRTUAL + 50 + 31) / 32;
        while (node_client_status(t).swapped_bytes != pages * r.w->page_bytes && sn_now_us() < until)
            sn_sleep_us(20000);
        cr_assert_eq(node_client_status(t).swapped_bytes, pages * r.w->page_bytes);
        uint8_t zeros[64] = {0};
        for (uint64_t page = 0; page < pages && damaged; page++)
            cr_assert_eq(pwrite(unnamed_file(), zeros, sizeof zeros, (off_t)(page * r.w->page_bytes + 128)), 64);
        fixture_steps(&r, 50, 53, 1);
        cr_expect_eq(sn_chain_replayed(r.chain) > 0, damaged);
        fixture_steps(&r, 49, 50, 1); /* rewound to two pages */
    }
    node_client_free(&t);
    fixture_steps(&r, 50, TESTBED_TOKENS, 9);
    testbed_free(&plain);
    fixture_end(&r);
}

Test(chain_adapter, exported_kv_with_virtual_tokens_resumes_over_another_cut) {
    fixture r;
    fixture_begin(&r);
    size_t row = (size_t)r.w->n_embd, n = VIRTUAL + 50;
    cluster_add(r.w->cluster, 0, 2), cluster_add(r.w->cluster, 2, 4);
    r.link = cluster_link(r.w->cluster);
    fixture_open(&r, adapter_options(&r));
    fixture_steps(&r, 0, 50, 13);
    float *exported = calloc(n * (size_t)r.w->n_blocks * 2 * 64 * 64, sizeof *exported),
          *inputs = calloc(n * row, sizeof *inputs);
    memcpy(inputs, r.prompt, VIRTUAL * row * sizeof *inputs);
    memcpy(inputs + VIRTUAL * row, r.w->inputs, 50 * row * sizeof *inputs);
    REQUIRE(sn_chain_get_kv(r.chain, 0, (int)n, exported, &err));
    fixture_close(&r);
    for (int i = 0; i < 3; i++) cluster_add(r.w->cluster, (int[]){0, 1, 3}[i], (int[]){1, 3, 4}[i]);
    const char *only[] = {"node2", "node3", "node4"};
    r.link = cluster_link(r.w->cluster);
    sn_chain_options options = adapter_options(&r);
    options.routing.node_filter = (sn_node_filter){only, 3, NULL, 0};
    fixture_open(&r, options);
    sn_hash marks[VIRTUAL + 51];
    for (int i = 0; i <= (int)n; i++) marks[i] = sn_hash_of(&i, sizeof i);
    REQUIRE(sn_chain_put_kv(r.chain, 0, (int)n, exported, marks, &err));
    REQUIRE(sn_chain_resume(r.chain, (int)n, marks, inputs, &err));
    fixture_steps(&r, 50, 70, 6);
    fixture_steps(&r, 33, TESTBED_TOKENS, 5);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    free(exported);
    free(inputs);
    fixture_end(&r);
}

Test(chain_adapter, an_adapter_without_local_file_needs_nodes_that_hold_it) {
    fixture r;
    fixture_begin(&r);
    cluster_add(r.w->cluster, 0, 4);
    r.link = cluster_link(r.w->cluster);
    sn_chain_options options = adapter_options(&r);
    options.adapter.image = NULL;
    options.adapter.bytes = 0;
    options.limits.max_retries = 0;
    cr_expect_eq(sn_chain_open(r.model, &options, &r.chain, &r.err), SN_RETRY);
    cr_expect(strstr(r.err.text, "hold the adapter"), "%s", r.err.text);
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &r.device, &err));
    options.local.device = r.device;
    options.local.end = 1;
    cr_expect_eq(sn_chain_open(r.model, &options, &r.chain, &r.err), SN_REFUSED);
    cr_expect(strstr(r.err.text, "folder"), "%s", r.err.text);
    fixture_end(&r);
}

/* Steps as a generator does: after a failed audit it continues from the position of the chain. */
static int fixture_audited_steps(fixture *r, int end, int chunk) {
    size_t row = (size_t)r->w->n_embd;
    int audit_failures = 0;
    for (int at = 0, n; at < end;) {
        n = chunk < end - at ? chunk : end - at;
        sn_status status =
            sn_chain_step(r->chain, at, n, r->w->inputs + (size_t)at * row, r->out + (size_t)at * row, &r->err);
        bool again = status == SN_REBUILD && sn_chain_audit_failed(r->chain);
        cr_assert(!status || again, "at %d: %s", at, r->err.text);
        audit_failures += again;
        at = again ? sn_chain_length(r->chain) : at + n;
    }
    return audit_failures;
}

/* Checks what the evidence proves with the adapter, and without it. */
static void expect_evidence(fixture *r, const char *path) {
    sn_evidence e;
    bool cut_at[8];
    sn_verdict found[SN_STATEMENTS_MAX];
    sn_hash hash = sn_hash_of(r->image.data, r->image.len);
    REQUIRE(sn_evidence_load(path, &e, &err));
    cr_expect(!memcmp(&e.adapter_hash, &hash, sizeof hash), "the file does not name the adapter");
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &r->device, &err));
    sn_evidence_cuts(&e, cut_at, r->w->n_blocks);
    for (int with_adapter = 0; with_adapter < 2; with_adapter++) {
        sn_chain *truth = NULL;
        sn_chain_options options = adapter_options(r);
        options = (sn_chain_options){.first = e.first,
                                     .end = e.end,
                                     .max_tokens = e.n_tokens,
                                     .local = {.device = r->device, .first = e.first, .end = e.end},
                                     .routing.cut_at = cut_at,
                                     .adapter = options.adapter};
        options.adapter.n_prompt = 0;
        if (!with_adapter) options.adapter = (sn_chain_adapter){0};
        REQUIRE(sn_chain_open(r->model, &options, &truth, &err));
        REQUIRE(sn_evidence_judge(&e, truth, found, &err));
        int n_wrong = 0, n_correct = 0;
        for (size_t i = 0; i < e.n; i++)
            n_wrong += found[i].kind == SN_VERDICT_WRONG, n_correct += found[i].kind == SN_VERDICT_CORRECT;
        if (with_adapter)
            cr_expect(n_wrong == 1 && n_correct == (int)e.n - 1, "%d wrong, %d correct of %zu", n_wrong, n_correct,
                      e.n);
        sn_chain_close(&truth);
    }
    sn_evidence_fini(&e);
}

Test(chain_adapter, audits_compare_results_with_the_adapter) {
    for (int byzantine = 0; byzantine < 2; byzantine++) {
        fixture r;
        char folder[] = "/tmp/swarm-test-evidence-XXXXXX";
        byzantine_node *l = NULL;
        cr_assert(mkdtemp(folder));
        fixture_begin(&r);
        cluster_add(r.w->cluster, 0, 2);
        for (int i = byzantine; i < 3; i++) cluster_add(r.w->cluster, 2, 4);
        cluster_add(r.w->cluster, 0, 2);
        if (byzantine) l = byzantine_node_new(r.w, "byzantine:1", 2, 4, (byzantine_faults){.alter_nth_step = 9});
        r.link = cluster_link(r.w->cluster);
        if (byzantine) byzantine_node_announce_to(l, r.link);
        sn_chain_options options = adapter_options(&r);
        sn_audit_options audit_options = {.model = r.model,
                                          .link = r.link,
                                          .share = 1,
                                          .evidence = folder,
                                          .max_tokens = options.max_tokens,
                                          .timeout_ms = TIMEOUT_MS};
        sn_audit *audit = NULL;
        REQUIRE(sn_audit_new(&audit_options, &audit, &err));
        options.verification.verifier = sn_audit_verifier(audit);
        fixture_open(&r, options);
        int end = byzantine ? 60 : TESTBED_TOKENS; /* the whole context */
        int audit_failures = fixture_audited_steps(&r, end, 5);
        sn_audit_report report = sn_audit_get_report(audit);
        cr_expect_eq(audit_failures, byzantine);
        cr_expect_eq(report.nodes_banned, (uint64_t)byzantine, "%s", report.verdict);
        cr_expect(report.checked >= 10 && !report.unchecked, "%d unchecked", (int)report.unchecked);
        cr_expect(!memcmp(r.out, r.want, (size_t)end * (size_t)r.w->n_embd * sizeof(float)));
        if (byzantine) expect_evidence(&r, report.evidence);
        sn_chain_close(&r.chain);
        sn_audit_free(&audit);
        byzantine_node_free(&l);
        fixture_end(&r);
        remove_tree(folder);
    }
}
