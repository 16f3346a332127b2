/* A chain whose hidden states travel with fewer bits: its results are those of the blocks with the rows rounded at
 * the cuts with which the chain began, bit by bit, whatever happens to the nodes and however the prompt is split
 * into chunks. */
#include "base/clock.h"
#include "base/wire.h"
#include "tests/support/chain_fixture.h"
#include "tests/support/require.h"
#include "tests/support/node_client.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 20000 };

static const sn_dtype LOSSY[] = {SN_F16, SN_BF16, SN_Q8};
#define EACH_LOSSY(k) for (size_t k = 0; k < sizeof LOSSY / sizeof *LOSSY; k++)

typedef struct fixture {
    testbed *w;
    sn_link *link;
    sn_model *model;
    sn_device *device;
    sn_chain *chain;
    sn_dtype wire;
    float *expected; /* (TESTBED_TOKENS, n_embd) */
    float out[TESTBED_TOKENS * 64];
    sn_err err;
} fixture;

/* Computes the reference: blocks between cuts (the last cut is 4), with the rows rounded at each of them. */
static float *compute_rounded(const testbed *w, sn_dtype wire, const int *cuts) {
    size_t n = TESTBED_TOKENS * (size_t)w->n_embd;
    float *rows = malloc(n * sizeof *rows);
    memcpy(rows, w->inputs, n * sizeof *rows);
    sn_wire_round(wire, rows, n);
    for (int i = 0; cuts[i] < 4; i++) {
        float *next = testbed_compute(w, cuts[i], cuts[i + 1], TESTBED_TOKENS, rows);
        free(rows);
        rows = next;
        sn_wire_round(wire, rows, n);
    }
    return rows;
}

static void fixture_begin(fixture *r, sn_dtype wire, const int *cuts) {
    *r = (fixture){.w = testbed_new(&(cluster_options){.kv_memory = 64, .drain_timeout_s = 10}), .wire = wire};
    r->expected = compute_rounded(r->w, wire, cuts);
    for (int i = 0; cuts[i] < 4; i++) cluster_add(r->w->cluster, cuts[i], cuts[i + 1]);
}

static void fixture_open(fixture *r, sn_chain_options options) {
    sn_device_options how = {.threads = 1};
    r->link = cluster_link(r->w->cluster);
    REQUIRE(sn_model_open(r->w->path, &r->model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &r->device, &err));
    options.link = r->link;
    options.local.device = r->device;
    options.wire.dtype = r->wire;
    chain_default_limits(&options);
    cr_assert_eq(sn_chain_open(r->model, &options, &r->chain, &r->err), SN_OK, "%s", r->err.text);
}

static void fixture_steps(fixture *r, int position, int end, int chunk) {
    size_t row = (size_t)r->w->n_embd;
    for (int at = position, n; at < end; at += n) {
        n = chunk < end - at ? chunk : end - at;
        const float *in = r->w->inputs + (size_t)at * row;
        sn_status status = sn_chain_step(r->chain, at, n, in, r->out + (size_t)at * row, &r->err);
        cr_assert_eq(status, SN_OK, "%s at %d: %s", sn_dtype_name(r->wire), at, r->err.text);
        cr_assert_arr_eq(r->out + (size_t)at * row, r->expected + (size_t)at * row, (size_t)n * row * sizeof(float),
                         "%s: bits differ at %d", sn_dtype_name(r->wire), at);
    }
}

static void fixture_end(fixture *r) {
    sn_chain_close(&r->chain);
    sn_model_close(&r->model);
    sn_device_close(&r->device);
    sn_link_close(&r->link);
    free(r->expected);
    testbed_free(&r->w);
}

/* -- without failures */

Test(chain_wire_dtype, rows_are_rounded_at_the_cuts_only) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) {
            fixture r;
            fixture_begin(&r, LOSSY[k], (int[]){0, 1, 3, 4});
            cr_expect(memcmp(r.expected, r.w->hidden, sizeof(float) * TESTBED_TOKENS * (size_t)r.w->n_embd),
                      "nothing is rounded");
            fixture_open(&r, (sn_chain_options){.routing.push = push});
            fixture_steps(&r, 0, TESTBED_TOKENS, TESTBED_TOKENS); /* in chunks, several of them in flight */
            fixture_steps(&r, 0, 60, 7);
            fixture_steps(&r, 35, 50, 1);
            fixture_end(&r);
        }
}

Test(chain_wire_dtype, local_blocks_give_the_same_bits) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) {
            fixture r;
            fixture_begin(&r, LOSSY[k], (int[]){0, 1, 2, 4});
            fixture_open(&r, (sn_chain_options){.routing.push = push, .local.first = 1, .local.end = 2});
            fixture_steps(&r, 0, TESTBED_TOKENS, 40);
            fixture_steps(&r, 50, 60, 1);
            fixture_end(&r);
        }
}

Test(chain_wire_dtype, float32_is_exact) {
    fixture r;
    fixture_begin(&r, SN_F32, (int[]){0, 2, 4});
    cr_expect_arr_eq(r.expected, r.w->hidden, sizeof(float) * TESTBED_TOKENS * (size_t)r.w->n_embd);
    fixture_open(&r, (sn_chain_options){0});
    fixture_steps(&r, 0, 20, 20);
    fixture_end(&r);
}

Test(chain_wire_dtype, refuses_rows_that_are_not_whole_quant_blocks) {
    char *path =
        tiny_model_make(&(tiny_model_options){.dtype = SN_F32, .n_embd = 48, .n_heads = 3, .n_kv_heads = 1, .seed = 3});
    cluster *c = cluster_new(&(cluster_options){.model = path});
    sn_model *model = NULL;
    sn_chain *chain = NULL;
    sn_err refusal;
    cluster_add(c, 0, 0);
    sn_link *link = cluster_link(c);
    REQUIRE(sn_model_open(path, &model, &err));
    sn_chain_options options = sn_chain_options_default();
    options.link = link;
    options.wire.dtype = SN_Q8;
    cr_expect_eq(sn_chain_open(model, &options, &chain, &refusal), SN_REFUSED);
    cr_expect(strstr(refusal.text, "not whole blocks of Q8"), "%s", refusal.text);
    options.wire.dtype = SN_BF16;
    REQUIRE(sn_chain_open(model, &options, &chain, &err));
    cr_expect_eq(sn_directory_at(sn_link_directory(link), 0)->n_wire_dtype, 3); /* not announced either */
    sn_chain_close(&chain);
    sn_model_close(&model);
    sn_link_close(&link);
    cluster_free(&c);
    tiny_model_remove(&path);
}

/* -- nodes fail and drain */

/* Node 1, which serves 2:4, falls silent at a step; the nodes of `others` (first, end, ..., 0) can replace it. */
static void expect_survival(sn_dtype wire, bool push, int chunk, int at_step, const int *others) {
    fixture r;
    fixture_begin(&r, wire, (int[]){0, 2, 4});
    fixture_open(&r, (sn_chain_options){.routing.push = push});
    for (; others[1]; others += 2) cluster_add(r.w->cluster, others[0], others[1]);
    cluster_cut_off_at_step(r.w->cluster, 1, at_step);
    fixture_steps(&r, 0, TESTBED_TOKENS, chunk);
    cr_expect_geq(sn_chain_failovers(r.chain), 1);
    fixture_steps(&r, 30, 50, 5);
    fixture_end(&r);
}

Test(chain_wire_dtype, a_failed_node_changes_no_bit) {
    for (int push = 0; push < 2; push++)
        EACH_LOSSY(k) expect_survival(LOSSY[k], push, 24, 2, (int[]){2, 4, 0, 2, 0, 0});
}

Test(chain_wire_dtype, a_failed_node_changes_no_bit_with_smaller_spans) {
    for (int push = 0; push < 2; push++)
        EACH_LOSSY(k) expect_survival(LOSSY[k], push, 24, 3, (int[]){2, 3, 3, 4, 0, 1, 1, 2, 0, 0});
}

/* The only remaining node serves the blocks of both nodes: it gets two sessions, so that the rows between them are
 * still rounded. */
Test(chain_wire_dtype, a_failed_node_changes_no_bit_with_one_larger_span) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) {
            fixture r;
            fixture_begin(&r, LOSSY[k], (int[]){0, 2, 4});
            fixture_open(&r, (sn_chain_options){.routing.push = push});
            fixture_steps(&r, 0, 30, 30);
            cluster_add(r.w->cluster, 0, 4);
            for (int64_t until = sn_now_us() + 10000000;
                 sn_directory_count(sn_link_directory(r.link)) < 3 && sn_now_us() < until;) {
                REQUIRE(sn_link_discover(r.link, NULL, TIMEOUT_MS, &err));
                sn_sleep_us(50000); /* a node lists only so much a second for one program */
            }
            cluster_cut_off(r.w->cluster, 0);
            cluster_cut_off(r.w->cluster, 1);
            fixture_steps(&r, 30, 60, 8);
            fixture_steps(&r, 60, 66, 1);
            fixture_end(&r);
        }
}

Test(chain_wire_dtype, kv_migration_changes_no_bit) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) {
            fixture r;
            fixture_begin(&r, LOSSY[k], (int[]){0, 2, 4});
            fixture_open(&r, (sn_chain_options){.routing.push = push});
            fixture_steps(&r, 0, 50, 20);
            cluster_add(r.w->cluster, 2, 3);
            cluster_add(r.w->cluster, 3, 4);
            cluster_drain(r.w->cluster, 1);
            int64_t until = sn_now_us() + 10000000;
            for (int at = 50; !sn_chain_replicas_promoted(r.chain) && sn_now_us() < until; at = at < 59 ? at + 1 : 50) {
                fixture_steps(&r, at, at + 1, 1);
                sn_sleep_us(10000);
            }
            cr_assert_eq(sn_chain_replicas_promoted(r.chain), 1);
            fixture_steps(&r, 50, 60, 1);
            fixture_steps(&r, 60, 70, 4);
            cr_expect_eq(sn_chain_replayed(r.chain), 0);
            fixture_end(&r);
        }
}

Test(chain_wire_dtype, a_promoted_replica_changes_no_bit) {
    for (int push = 0; push < 2; push++) EACH_LOSSY(k) {
            sn_hop_report hops[SN_HOPS_MAX];
            fixture r;
            fixture_begin(&r, LOSSY[k], (int[]){0, 2, 4});
            cluster_add(r.w->cluster, 0, 2);
            cluster_add(r.w->cluster, 2, 4);
            fixture_open(&r, (sn_chain_options){.routing.push = push, .kv.replica = true});
            fixture_steps(&r, 0, 50, 25);
            size_t copied = 0;
            for (int64_t until = sn_now_us() + 10000000; copied < 2 && sn_now_us() < until; sn_sleep_us(2000)) {
                sn_chain_poll(r.chain);
                cr_assert_eq(sn_chain_hops(r.chain, hops, SN_HOPS_MAX), 2);
                copied = (size_t)hops[0].replicated + (size_t)hops[1].replicated;
            }
            cr_assert_eq(copied, 2);
            cluster_cut_off_at_step(r.w->cluster, cluster_node_of_block(r.chain, 2), 2);
            fixture_steps(&r, 50, 70, 3);
            cr_expect_eq(sn_chain_replicas_promoted(r.chain), 1);
            fixture_end(&r);
        }
}
