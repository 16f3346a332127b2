/* What a client keeps of a conversation for replays: nothing that tokens give again, and the rest within a limit. */
#include "client/chain/chain.h"
#include "tests/support/chain_fixture.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { N_BLOCKS = 3, EMBD = 32, TOKENS = 6000 };

static int heads = 1; /* of queries; there is one of keys and values */

static sn_status rows_again(void *ctx, int position, int n, float *out, sn_err *err) {
    (void)err;
    memcpy(out, (const float *)ctx + (size_t)position * EMBD, (size_t)n * EMBD * sizeof *out);
    return SN_OK;
}

typedef struct fixture {
    char *path;
    chain_fixture c;
    float *rows, *out;
} fixture;

static void fixture_begin(fixture *r, sn_chain_options options, bool source) {
    uint32_t random = 4711;
    *r = (fixture){.path = tiny_model_make(&(tiny_model_options){.n_blocks = N_BLOCKS,
                                                                 .n_embd = EMBD,
                                                                 .n_heads = heads,
                                                                 .n_kv_heads = 1,
                                                                 .n_ff = EMBD,
                                                                 .n_ctx = 8192,
                                                                 .seed = 5}),
                   .rows = calloc((size_t)TOKENS * EMBD, sizeof(float)),
                   .out = calloc((size_t)TOKENS * EMBD, sizeof(float))};
    testbed *w = testbed_new(&(cluster_options){.model = r->path, .kv_memory = 512});
    for (int b = 0; b < N_BLOCKS; b++) cluster_add(w->cluster, b, b + 1);
    for (size_t i = 0; i < (size_t)TOKENS * EMBD; i++) {
        random = random * 1664525u + 1013904223u;
        r->rows[i] = (float)(random >> 8) / (float)(1 << 23) - 1;
    }
    chain_fixture_open(&r->c, w, options);
    if (source) sn_chain_set_source(r->c.chain, &(sn_row_source){rows_again, r->rows});
}

static void fixture_end(fixture *r) {
    testbed *w = r->c.w;
    chain_fixture_close(&r->c);
    testbed_free(&w);
    tiny_model_remove(&r->path);
    free(r->rows), free(r->out);
}

static void run(fixture *r, int from, int end) {
    REQUIRE(
        sn_chain_step(r->c.chain, from, end - from, r->rows + (size_t)from * EMBD, r->out + (size_t)from * EMBD, &err));
}

static size_t bytes_kept(const fixture *r, int hop) {
    size_t n;
    const sn_kept_rows *kept = &sn_chain_route_hops(r->c.chain, &n)[hop].remote.inputs;
    return (size_t)kept->capacity * kept->row_bytes;
}

/* The output of the last rows is what a whole model gives. */
static void expect_end(const fixture *r, int rows) {
    float *want = testbed_compute(r->c.w, 0, N_BLOCKS, TOKENS, r->rows);
    const size_t at = (size_t)(TOKENS - rows) * EMBD;
    cr_expect(!memcmp(want + at, r->out + at, (size_t)rows * EMBD * sizeof *want), "other bits");
    free(want);
}

Test(replay_memory, of_the_first_node_nothing_is_kept_that_tokens_give_again) {
    fixture r;
    fixture_begin(&r, (sn_chain_options){0}, true);
    run(&r, 0, TOKENS);
    cr_expect_eq(bytes_kept(&r, 0), 0);
    cr_expect_geq(bytes_kept(&r, 1), (size_t)TOKENS * EMBD * sizeof(float), "within the limit all is kept");
    fixture_end(&r);
}

Test(replay_memory, without_tokens_all_is_kept_of_the_first_node) {
    fixture r;
    fixture_begin(&r, (sn_chain_options){.limits = {.timeout_ms = 10000, .replay_memory = 1}}, false);
    run(&r, 0, TOKENS);
    cr_expect_geq(bytes_kept(&r, 0), (size_t)TOKENS * EMBD * sizeof(float));
    fixture_end(&r);
}

Test(replay_memory, keeps_rows_as_they_travel) {
    fixture r;
    fixture_begin(&r, (sn_chain_options){.wire.dtype = SN_Q8}, true);
    run(&r, 0, TOKENS);
    cr_expect_lt(bytes_kept(&r, 1), (size_t)TOKENS * EMBD * sizeof(float) / 2);
    fixture_end(&r);
}

Test(replay_memory, stays_within_its_limit) {
    fixture r;
    const size_t limit = (size_t)2500 * EMBD * sizeof(float);
    fixture_begin(&r, (sn_chain_options){.limits = {.timeout_ms = 10000, .replay_memory = limit}}, true);
    for (int at = 0; at < TOKENS; at += 500) run(&r, at, at + 500);
    for (int hop = 1; hop < N_BLOCKS; hop++)
        cr_expect_leq(bytes_kept(&r, hop), (size_t)(2 * 2048 + 500) * EMBD * sizeof(float) * 5 / 4);
    fixture_end(&r);
}

Test(replay_memory, stays_below_keys_and_values) {
    fixture r;
    heads = 4; /* keys and values of a token take half of a row */
    fixture_begin(&r, (sn_chain_options){0}, true);
    for (int at = 0; at < TOKENS; at += 500) run(&r, at, at + 500);
    for (int hop = 1; hop < N_BLOCKS; hop++)
        cr_expect_leq(bytes_kept(&r, hop), (size_t)(2 * 2048 + 500) * EMBD * sizeof(float) * 5 / 4);
    fixture_end(&r);
}

/* The node of block `dies` starts again, and has lost its session. */
static void expect_replay(int dies, size_t limit, uint64_t replayed) {
    fixture r;
    fixture_begin(&r, (sn_chain_options){.limits = {.timeout_ms = 10000, .replay_memory = limit}}, true);
    run(&r, 0, TOKENS - 50);
    cluster_restart(r.c.w->cluster, dies);
    run(&r, TOKENS - 50, TOKENS);
    cr_expect_eq(sn_chain_failovers(r.c.chain), 1);
    cr_expect_eq(sn_chain_replayed(r.c.chain), replayed, "%llu tokens were replayed",
                 (unsigned long long)sn_chain_replayed(r.c.chain));
    expect_end(&r, 50);
    fixture_end(&r);
}

Test(replay_memory, a_node_is_replaced_from_what_is_kept) { expect_replay(2, 0, TOKENS - 50); }
Test(replay_memory, the_first_node_is_replaced_from_tokens) { expect_replay(0, 0, TOKENS - 50); }
Test(replay_memory, beyond_its_limit_a_node_is_replaced_from_the_first_one_on) {
    expect_replay(2, 1, TOKENS - 50 + 50); /* the nodes before it had done the step */
}
