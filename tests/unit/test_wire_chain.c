/* A chain whose hidden states travel in fewer bits: its results are the blocks' with the rows rounded at the cuts that it began
 * with, bit by bit, whatever becomes of the nodes, the pieces and the way. */
#include "base/clock.h"
#include "base/wire.h"
#include "tests/support/need.h"
#include "tests/support/talk.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENT_MS = 20000 };

static const sn_dtype LOSSY[] = {SN_F16, SN_BF16, SN_Q8};
#define EACH_LOSSY(k) for (size_t k = 0; k < sizeof LOSSY / sizeof *LOSSY; k++)

typedef struct run {
    world *w;
    sn_link *link;
    sn_model *model;
    sn_device *device;
    sn_chain *chain;
    sn_dtype wire;
    float *expected; /* (WORLD_TOKENS, n_embd) */
    float out[WORLD_TOKENS * 64];
    sn_err err;
} run;

/* By hand: blocks between cuts (ending with 4), the rows rounded at each of them. */
static float *compute(const world *w, sn_dtype wire, const int *cuts) {
    size_t n = WORLD_TOKENS * (size_t)w->n_embd;
    float *rows = malloc(n * sizeof *rows);
    memcpy(rows, w->inputs, n * sizeof *rows);
    sn_wire_round(wire, rows, n);
    for (int i = 0; cuts[i] < 4; i++) {
        float *next = world_compute(w, cuts[i], cuts[i + 1], WORLD_TOKENS, rows);
        free(rows);
        rows = next;
        sn_wire_round(wire, rows, n);
    }
    return rows;
}

static void run_begin(run *r, sn_dtype wire, const int *cuts) {
    *r = (run){.w = world_new(&(cluster_options){.kv_memory = 64, .drain_timeout_s = 10}), .wire = wire};
    r->expected = compute(r->w, wire, cuts);
    for (int i = 0; cuts[i] < 4; i++) cluster_add(r->w->cluster, cuts[i], cuts[i + 1]);
}

static void run_open(run *r, sn_chain_options options) {
    sn_device_options how = {.threads = 1};
    r->link = cluster_link(r->w->cluster);
    NEED(sn_model_open(r->w->path, &r->model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &r->device, &err));
    options.link = r->link;
    options.device = r->device;
    options.wire = r->wire;
    if (!options.timeout_ms) options.timeout_ms = PATIENT_MS;
    cr_assert_eq(sn_chain_open(r->model, &options, &r->chain, &r->err), SN_OK, "%s", r->err.text);
}

static void run_steps(run *r, int position, int end, int chunk) {
    size_t row = (size_t)r->w->n_embd;
    for (int at = position, n; at < end; at += n) {
        n = chunk < end - at ? chunk : end - at;
        const float *in = r->w->inputs + (size_t)at * row;
        sn_status status = sn_chain_step(r->chain, at, n, in, r->out + (size_t)at * row, &r->err);
        cr_assert_eq(status, SN_OK, "%s at %d: %s", sn_dtype_name(r->wire), at, r->err.text);
        cr_assert_arr_eq(r->out + (size_t)at * row, r->expected + (size_t)at * row, (size_t)n * row * sizeof(float),
                         "%s: other bits at %d", sn_dtype_name(r->wire), at);
    }
}

static void run_end(run *r) {
    sn_chain_close(&r->chain);
    sn_model_close(&r->model);
    sn_device_close(&r->device);
    sn_link_close(&r->link);
    free(r->expected);
    world_free(&r->w);
}

/* -- nothing fails ------------------------------------------------------------------------------------------------- */

Test(wire_chain, rows_are_rounded_where_the_chain_is_cut_and_nowhere_else) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) {
        run r;
        run_begin(&r, LOSSY[k], (int[]){0, 1, 3, 4});
        cr_expect(memcmp(r.expected, r.w->hidden, sizeof(float) * WORLD_TOKENS * (size_t)r.w->n_embd), "nothing is rounded");
        run_open(&r, (sn_chain_options){.push = push});
        run_steps(&r, 0, WORLD_TOKENS, WORLD_TOKENS); /* in pieces that are under way at once */
        run_steps(&r, 0, 60, 7);
        run_steps(&r, 35, 50, 1);
        run_end(&r);
    }
}

Test(wire_chain, blocks_that_the_client_holds_give_the_same_bits) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) {
        run r;
        run_begin(&r, LOSSY[k], (int[]){0, 1, 2, 4});
        run_open(&r, (sn_chain_options){.push = push, .local_first = 1, .local_end = 2});
        run_steps(&r, 0, WORLD_TOKENS, 40);
        run_steps(&r, 50, 60, 1);
        run_end(&r);
    }
}

Test(wire_chain, float32_is_exact) {
    run r;
    run_begin(&r, SN_F32, (int[]){0, 2, 4});
    cr_expect_arr_eq(r.expected, r.w->hidden, sizeof(float) * WORLD_TOKENS * (size_t)r.w->n_embd);
    run_open(&r, (sn_chain_options){0});
    run_steps(&r, 0, 20, 20);
    run_end(&r);
}

Test(wire_chain, is_refused_where_rows_are_no_whole_blocks) {
    char *path = tiny_make(&(tiny_options){.dtype = SN_F32, .n_embd = 48, .n_heads = 3, .n_kv_heads = 1, .seed = 3});
    cluster *c = cluster_new(&(cluster_options){.model = path});
    sn_model *model = NULL;
    sn_chain *chain = NULL;
    sn_err why;
    cluster_add(c, 0, 0);
    sn_link *link = cluster_link(c);
    NEED(sn_model_open(path, &model, &err));
    cr_expect_eq(sn_chain_open(model, &(sn_chain_options){.link = link, .wire = SN_Q8}, &chain, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "no whole blocks of Q8"), "%s", why.text);
    NEED(sn_chain_open(model, &(sn_chain_options){.link = link, .wire = SN_BF16}, &chain, &err));
    cr_expect_eq(sn_directory_at(sn_link_directory(link), 0)->n_wire_dtype, 3); /* not announced either */
    sn_chain_close(&chain);
    sn_model_close(&model);
    sn_link_close(&link);
    cluster_free(&c);
    tiny_remove(&path);
}

/* -- nodes die and leave ------------------------------------------------------------------------------------------- */

/* Node 1, which has 2:4, falls silent at a step; the nodes of `others` (first, end, ... ,0) can take its place. */
static void expect_survival(sn_dtype wire, bool push, int chunk, int at_step, const int *others) {
    run r;
    run_begin(&r, wire, (int[]){0, 2, 4});
    run_open(&r, (sn_chain_options){.push = push});
    for (; others[1]; others += 2) cluster_add(r.w->cluster, others[0], others[1]);
    cluster_cut_off_at_step(r.w->cluster, 1, at_step);
    run_steps(&r, 0, WORLD_TOKENS, chunk);
    cr_expect_geq(sn_chain_failovers(r.chain), 1);
    run_steps(&r, 30, 50, 5);
    run_end(&r);
}

Test(wire_chain, a_death_is_survived_with_the_same_bits) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) expect_survival(LOSSY[k], push, 24, 2, (int[]){2, 4, 0, 2, 0, 0});
}

Test(wire_chain, and_where_others_are_cut_finer) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) expect_survival(LOSSY[k], push, 24, 3, (int[]){2, 3, 3, 4, 0, 1, 1, 2, 0, 0});
}

/* The only one left has both nodes' blocks: it gets two sessions, so that the rows between them are still rounded. */
Test(wire_chain, and_where_one_node_has_all_of_it) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) {
        run r;
        run_begin(&r, LOSSY[k], (int[]){0, 2, 4});
        run_open(&r, (sn_chain_options){.push = push});
        run_steps(&r, 0, 30, 30);
        cluster_add(r.w->cluster, 0, 4);
        for (int64_t until = sn_now_us() + 10000000; sn_directory_count(sn_link_directory(r.link)) < 3 && sn_now_us() < until;)
            NEED(sn_link_discover(r.link, NULL, PATIENT_MS, &err));
        cluster_cut_off(r.w->cluster, 0);
        cluster_cut_off(r.w->cluster, 1);
        run_steps(&r, 30, 60, 8);
        run_steps(&r, 60, 66, 1);
        run_end(&r);
    }
}

Test(wire_chain, a_node_that_leaves_hands_its_past_over_and_the_bits_stay) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) {
        run r;
        run_begin(&r, LOSSY[k], (int[]){0, 2, 4});
        run_open(&r, (sn_chain_options){.push = push});
        run_steps(&r, 0, 50, 20);
        cluster_add(r.w->cluster, 2, 3);
        cluster_add(r.w->cluster, 3, 4);
        cluster_drain(r.w->cluster, 1);
        int64_t until = sn_now_us() + 10000000;
        for (int at = 50; !sn_chain_taken_over(r.chain) && sn_now_us() < until; at = at < 59 ? at + 1 : 50) {
            run_steps(&r, at, at + 1, 1);
            sn_sleep_us(10000);
        }
        cr_assert_eq(sn_chain_taken_over(r.chain), 1);
        run_steps(&r, 50, 60, 1);
        run_steps(&r, 60, 70, 4);
        cr_expect_eq(sn_chain_replayed(r.chain), 0);
        run_end(&r);
    }
}

Test(wire_chain, a_copy_takes_over_and_the_bits_stay) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) {
        sn_hop_report hops[SN_HOPS_MAX];
        run r;
        run_begin(&r, LOSSY[k], (int[]){0, 2, 4});
        cluster_add(r.w->cluster, 0, 2);
        cluster_add(r.w->cluster, 2, 4);
        run_open(&r, (sn_chain_options){.push = push, .replica = true});
        run_steps(&r, 0, 50, 25);
        size_t copied = 0;
        for (int64_t until = sn_now_us() + 10000000; copied < 2 && sn_now_us() < until; sn_sleep_us(2000)) {
            sn_chain_attend(r.chain);
            cr_assert_eq(sn_chain_hops(r.chain, hops, SN_HOPS_MAX), 2);
            copied = (size_t)hops[0].copied + (size_t)hops[1].copied;
        }
        cr_assert_eq(copied, 2);
        cluster_cut_off_at_step(r.w->cluster, cluster_holder(r.chain, 2), 2);
        run_steps(&r, 50, 70, 3);
        cr_expect_eq(sn_chain_taken_over(r.chain), 1);
        run_end(&r);
    }
}
