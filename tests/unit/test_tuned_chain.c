/* A chain with what was trained: an adapter, deep prompts and virtual tokens give the bits of computing it all in one place,
 * whatever the cut and whoever dies, leaves or lies on the way. */
#include "base/clock.h"
#include "client/audit.h"
#include "client/evidence.h"
#include "tests/support/files.h"
#include "tests/support/liar.h"
#include "tests/support/need.h"
#include "tests/support/talk.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

enum { VIRTUAL = 5, TIMEOUT_MS = 10000 };

typedef struct run {
    world *w;
    sn_buf image;
    float *prompt; /* (VIRTUAL, n_embd) */
    float *want;   /* (WORLD_TOKENS, n_embd) */
    sn_link *link;
    sn_model *model;
    sn_device *device;
    sn_chain *chain;
    float out[WORLD_TOKENS * 64];
    sn_err err;
} run;

static void run_begin(run *r) {
    *r = (run){.w = world_new(&(cluster_options){.kv_memory = 64, .drain_timeout_s = 10, .tune_memory = 64 << 20})};
    size_t row = (size_t)r->w->n_embd, n = VIRTUAL + WORLD_TOKENS;
    float *rows = calloc(n * row, sizeof *rows);
    r->image = world_tuning(r->w, 0.5f);
    r->prompt = calloc(VIRTUAL * row, sizeof *r->prompt);
    r->want = calloc(WORLD_TOKENS * row, sizeof *r->want);
    for (size_t i = 0; i < VIRTUAL * row; i++) r->prompt[i] = (float)(i % 13) / 13;
    memcpy(rows, r->prompt, VIRTUAL * row * sizeof *rows);
    memcpy(rows + VIRTUAL * row, r->w->inputs, WORLD_TOKENS * row * sizeof *rows);
    float *all = world_compute_tuned(r->w, &r->image, 0, r->w->n_blocks, (int)n, rows);
    memcpy(r->want, all + VIRTUAL * row, WORLD_TOKENS * row * sizeof *all);
    NEED(sn_model_open(r->w->path, &r->model, &err));
    free(all);
    free(rows);
}

static sn_chain_options tuned_options(const run *r) {
    return (sn_chain_options){.link = r->link,
                              .device = r->device,
                              .max_tokens = WORLD_TOKENS,
                              .timeout_ms = TIMEOUT_MS,
                              .tuned = {.hash = sn_hash_of(r->image.data, r->image.len),
                                        .image = r->image.data,
                                        .bytes = r->image.len,
                                        .prompt = r->prompt,
                                        .n_prompt = VIRTUAL}};
}

static void run_open(run *r, sn_chain_options options) {
    cr_assert_eq(sn_chain_open(r->model, &options, &r->chain, &r->err), SN_OK, "%s", r->err.text);
}

static void run_steps(run *r, int position, int end, int chunk) {
    size_t row = (size_t)r->w->n_embd;
    for (int at = position, n; at < end; at += n) {
        n = chunk < end - at ? chunk : end - at;
        sn_status status = sn_chain_step(r->chain, at, n, r->w->inputs + (size_t)at * row, r->out + (size_t)at * row, &r->err);
        cr_assert_eq(status, SN_OK, "at %d: %s", at, r->err.text);
        cr_assert_eq(sn_chain_length(r->chain), at + n);
        cr_assert(!memcmp(r->out + (size_t)at * row, r->want + (size_t)at * row, (size_t)n * row * sizeof(float)), "other bits at %d", at);
    }
}

static void run_close(run *r) {
    sn_chain_close(&r->chain);
    sn_link_close(&r->link);
    sn_device_close(&r->device);
}

static void run_end(run *r) {
    run_close(r);
    sn_model_close(&r->model);
    sn_buf_fini(&r->image);
    free(r->prompt);
    free(r->want);
    world_free(&r->w);
}

Test(tuned_chain, has_the_same_bits_over_every_cut) {
    run r;
    run_begin(&r);
    cr_assert(memcmp(r.want, r.w->hidden, (size_t)r.w->n_embd * sizeof(float)));
    cluster_add(r.w->cluster, 0, 1), cluster_add(r.w->cluster, 1, 3), cluster_add(r.w->cluster, 3, 4);
    for (int how = 0; how < 4; how++) { /* local; nodes; nodes that push; blocks 0:2 here */
        if (how) r.link = cluster_link(r.w->cluster);
        if (how == 0 || how == 3)
            NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 2}, &r.device, &err));
        sn_chain_options options = tuned_options(&r);
        options.push = how == 2;
        options.local_end = how == 0 ? 4 : how == 3 ? 2 : 0;
        run_open(&r, options);
        cr_expect_eq(sn_chain_length(r.chain), 0);
        run_steps(&r, 0, 50, 17);
        run_steps(&r, 0, 30, 30); /* from the beginning again: what stands before it stays */
        run_steps(&r, 20, WORLD_TOKENS, 9);
        cr_expect_eq(sn_chain_step(r.chain, WORLD_TOKENS, 1, r.w->inputs, r.out, &r.err), SN_REFUSED, "the context is full");
        run_close(&r);
    }
    run_end(&r);
}

Test(tuned_chain, whoever_takes_a_dead_nodes_place_gets_the_tuning) {
    for (int push = 0; push < 2; push++) {
        run r;
        run_begin(&r);
        cluster_add(r.w->cluster, 0, 2), cluster_add(r.w->cluster, 2, 4);
        cluster_add(r.w->cluster, 2, 3), cluster_add(r.w->cluster, 3, 4);
        cluster_cut_off_at_step(r.w->cluster, 1, 12);
        r.link = cluster_link(r.w->cluster);
        sn_chain_options options = tuned_options(&r);
        options.push = push;
        run_open(&r, options);
        run_steps(&r, 0, WORLD_TOKENS, 6);
        cr_expect_geq(sn_chain_failovers(r.chain), 1);
        run_end(&r);
    }
}

Test(tuned_chain, a_node_that_leaves_hands_the_past_to_one_that_gets_the_tuning) {
    run r;
    run_begin(&r);
    for (int i = 0; i < 2; i++) cluster_add(r.w->cluster, 0, 2), cluster_add(r.w->cluster, 2, 4);
    r.link = cluster_link(r.w->cluster);
    run_open(&r, tuned_options(&r));
    run_steps(&r, 0, 50, 20);
    int leaves = cluster_holder(r.chain, 2);
    cluster_drain(r.w->cluster, leaves);
    int64_t until = sn_now_us() + 10000000;
    for (int at = 50; !sn_chain_taken_over(r.chain) && sn_now_us() < until; at = at < 59 ? at + 1 : 50) {
        run_steps(&r, at, at + 1, 1);
        sn_sleep_us(10000);
    }
    cr_expect_eq(sn_chain_taken_over(r.chain), 1);
    cr_expect_neq(cluster_holder(r.chain, 2), leaves);
    run_steps(&r, 40, WORLD_TOKENS, 7);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    run_end(&r);
}

Test(tuned_chain, a_sudden_death_costs_no_replay_where_a_copy_is_kept) {
    run r;
    run_begin(&r);
    for (int i = 0; i < 2; i++) cluster_add(r.w->cluster, 0, 2), cluster_add(r.w->cluster, 2, 4);
    r.link = cluster_link(r.w->cluster);
    sn_chain_options options = tuned_options(&r);
    options.replica = true;
    run_open(&r, options);
    run_steps(&r, 0, 50, 25);
    for (size_t k = 0; k < sn_chain_hops(r.chain, NULL, 0); k++) NEED(sn_chain_await_copy(r.chain, k, 20000, &err));
    int dies = cluster_holder(r.chain, 2);
    cluster_cut_off_at_step(r.w->cluster, dies, 2);
    run_steps(&r, 50, 60, 1);
    cr_expect_eq(sn_chain_taken_over(r.chain), 1);
    cr_expect_neq(cluster_holder(r.chain, 2), dies);
    cr_expect_leq(sn_chain_replayed(r.chain), 2);
    run_steps(&r, 33, WORLD_TOKENS, 5);
    run_end(&r);
}

Test(tuned_chain, a_past_that_was_dropped_at_rest_is_made_again_with_the_tuning) {
    run r;
    run_begin(&r);
    world *plain = r.w;
    r.w = world_new(&(cluster_options){.kv_memory = 64, .tune_memory = 64 << 20, .idle_to = "disk", .idle_dir = "/tmp",
                                       .idle_memory = 1 << 20, .idle_after_s = 1});
    cluster_add(r.w->cluster, 0, 4);
    r.link = cluster_link(r.w->cluster);
    run_open(&r, tuned_options(&r));
    talk *t = talk_new(r.w, 0);
    run_steps(&r, 0, 50, 25);
    for (int damaged = 0; damaged < 2; damaged++) { /* first they come back as they were */
        int64_t until = sn_now_us() + 20000000;
        uint64_t pages = (VIRTUAL + 50 + 31) / 32;
        while (talk_status(t).idle_bytes != pages * r.w->page_bytes && sn_now_us() < until) sn_sleep_us(20000);
        cr_assert_eq(talk_status(t).idle_bytes, pages * r.w->page_bytes);
        uint8_t zeros[64] = {0};
        for (uint64_t page = 0; page < pages && damaged; page++)
            cr_assert_eq(pwrite(unnamed_file(), zeros, sizeof zeros, (off_t)(page * r.w->page_bytes + 128)), 64);
        run_steps(&r, 50, 53, 1);
        cr_expect_eq(sn_chain_replayed(r.chain) > 0, damaged);
        run_steps(&r, 49, 50, 1); /* back to two pages */
    }
    talk_free(&t);
    run_steps(&r, 50, WORLD_TOKENS, 9);
    world_free(&plain);
    run_end(&r);
}

Test(tuned_chain, a_past_is_gathered_with_its_virtual_tokens_and_goes_on_over_another_cut) {
    run r;
    run_begin(&r);
    size_t row = (size_t)r.w->n_embd, n = VIRTUAL + 50;
    cluster_add(r.w->cluster, 0, 2), cluster_add(r.w->cluster, 2, 4);
    r.link = cluster_link(r.w->cluster);
    run_open(&r, tuned_options(&r));
    run_steps(&r, 0, 50, 13);
    float *kept = calloc(n * (size_t)r.w->n_blocks * 2 * 64 * 64, sizeof *kept), *inputs = calloc(n * row, sizeof *inputs);
    memcpy(inputs, r.prompt, VIRTUAL * row * sizeof *inputs);
    memcpy(inputs + VIRTUAL * row, r.w->inputs, 50 * row * sizeof *inputs);
    NEED(sn_chain_get_past(r.chain, 0, (int)n, kept, &err));
    run_close(&r);
    for (int i = 0; i < 3; i++) cluster_add(r.w->cluster, (int[]){0, 1, 3}[i], (int[]){1, 3, 4}[i]);
    const char *only[] = {"node2", "node3", "node4"};
    r.link = cluster_link(r.w->cluster);
    sn_chain_options options = tuned_options(&r);
    options.pick = (sn_pick){only, 3, NULL, 0};
    run_open(&r, options);
    sn_hash marks[VIRTUAL + 51];
    for (int i = 0; i <= (int)n; i++) marks[i] = sn_hash_of(&i, sizeof i);
    NEED(sn_chain_put_past(r.chain, 0, (int)n, kept, marks, &err));
    NEED(sn_chain_go_on(r.chain, (int)n, marks, inputs, &err));
    run_steps(&r, 50, 70, 6);
    run_steps(&r, 33, WORLD_TOKENS, 5);
    cr_expect_eq(sn_chain_replayed(r.chain), 0);
    free(kept);
    free(inputs);
    run_end(&r);
}

Test(tuned_chain, an_adapter_that_is_not_here_needs_nodes_that_hold_it) {
    run r;
    run_begin(&r);
    cluster_add(r.w->cluster, 0, 4);
    r.link = cluster_link(r.w->cluster);
    sn_chain_options options = tuned_options(&r);
    options.tuned.image = NULL;
    options.tuned.bytes = 0;
    options.max_retries = -1;
    cr_expect_eq(sn_chain_open(r.model, &options, &r.chain, &r.err), SN_RETRY);
    cr_expect(strstr(r.err.text, "hold the adapter"), "%s", r.err.text);
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &r.device, &err));
    options.device = r.device;
    options.local_end = 1;
    cr_expect_eq(sn_chain_open(r.model, &options, &r.chain, &r.err), SN_REFUSED);
    cr_expect(strstr(r.err.text, "folder"), "%s", r.err.text);
    run_end(&r);
}

/* Steps as a generator does: again from where the chain was misled. */
static int run_misled(run *r, int end, int chunk) {
    size_t row = (size_t)r->w->n_embd;
    int misled = 0;
    for (int at = 0, n; at < end;) {
        n = chunk < end - at ? chunk : end - at;
        sn_status status = sn_chain_step(r->chain, at, n, r->w->inputs + (size_t)at * row, r->out + (size_t)at * row, &r->err);
        bool again = status == SN_REBUILD && sn_chain_misled(r->chain);
        cr_assert(!status || again, "at %d: %s", at, r->err.text);
        misled += again;
        at = again ? sn_chain_length(r->chain) : at + n;
    }
    return misled;
}

/* What the evidence shows to whoever has the adapter, and to whoever has not. */
static void expect_evidence(run *r, const char *path) {
    sn_evidence e;
    bool cut_at[8];
    sn_judgement found[SN_STATEMENTS_MAX];
    sn_hash hash = sn_hash_of(r->image.data, r->image.len);
    NEED(sn_evidence_load(path, &e, &err));
    cr_expect(!memcmp(&e.tuned, &hash, sizeof hash), "the file does not name the adapter");
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &r->device, &err));
    sn_evidence_cuts(&e, cut_at, r->w->n_blocks);
    for (int tuned = 0; tuned < 2; tuned++) {
        sn_chain *truth = NULL;
        sn_chain_options options = tuned_options(r);
        options = (sn_chain_options){.device = r->device, .first = e.first, .end = e.end, .local_first = e.first,
                                     .local_end = e.end, .cut_at = cut_at, .max_tokens = e.n_tokens, .tuned = options.tuned};
        options.tuned.n_prompt = 0;
        if (!tuned) options.tuned = (sn_chain_tuned){0};
        NEED(sn_chain_open(r->model, &options, &truth, &err));
        NEED(sn_evidence_judge(&e, truth, found, &err));
        int lies = 0, truths = 0;
        for (size_t i = 0; i < e.n; i++) lies += found[i].finding == SN_FOUND_LIE, truths += found[i].finding == SN_FOUND_TRUE;
        if (tuned) cr_expect(lies == 1 && truths == (int)e.n - 1, "%d lies, %d truths of %zu", lies, truths, e.n);
        sn_chain_close(&truth);
    }
    sn_evidence_fini(&e);
}

Test(tuned_chain, audits_compare_what_was_computed_with_the_tuning) {
    for (int lies = 0; lies < 2; lies++) {
        run r;
        char folder[] = "/tmp/swarm-test-evidence-XXXXXX";
        liar *l = NULL;
        cr_assert(mkdtemp(folder));
        run_begin(&r);
        cluster_add(r.w->cluster, 0, 2);
        for (int i = lies; i < 3; i++) cluster_add(r.w->cluster, 2, 4);
        cluster_add(r.w->cluster, 0, 2);
        if (lies) l = liar_new(r.w, "mem://liar", 2, 4, (liar_ways){.alters_step = 9});
        r.link = cluster_link(r.w->cluster);
        if (lies) liar_tell(l, r.link);
        sn_chain_options options = tuned_options(&r);
        sn_audit_options how = {.model = r.model, .link = r.link, .share = 1, .evidence = folder,
                                .max_tokens = VIRTUAL + WORLD_TOKENS, .timeout_ms = TIMEOUT_MS};
        NEED(sn_audit_new(&how, &options.audit, &err));
        run_open(&r, options);
        int misled = run_misled(&r, 60, 5);
        sn_audit_report report = sn_audit_read(options.audit);
        cr_expect_eq(misled, lies);
        cr_expect_eq(report.lies, (uint64_t)lies, "%s", report.verdict);
        cr_expect_geq(report.checked, 10);
        cr_expect(!memcmp(r.out, r.want, 60 * (size_t)r.w->n_embd * sizeof(float)));
        if (lies) expect_evidence(&r, report.evidence);
        sn_chain_close(&r.chain);
        sn_audit_free(&options.audit);
        liar_free(&l);
        run_end(&r);
        remove_tree(folder);
    }
}
