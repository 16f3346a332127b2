/* The promise: the same tokens' keys, values and hidden states are the same bits, however they are computed. Everything here
 * is compared by memcmp with one reference: plain C kernels, one thread, all tokens at once, one span. */
#include "tests/support/cluster.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/families.h"
#include "tests/support/need.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <string.h>

enum { TOKENS = 75 }; /* over two borders of pages, and no multiple of anything */

/* What a computation gave: hidden states behind the last block, and every block's keys and values. */
typedef struct outcome {
    float *hidden, *k, *v;
    size_t n_hidden, n_kv; /* floats of each */
} outcome;

typedef struct how {
    const char *isa;
    int threads;
    int chunk; /* tokens a step; 0: all at once */
    int cuts;  /* spans that the model is cut into */
} how;

static const how REFERENCE = {"c", 1, 0, 1};

static float *make_inputs(int n_embd) {
    float *inputs = malloc((size_t)TOKENS * (size_t)n_embd * sizeof *inputs);
    uint32_t x = 1;
    for (int i = 0; i < TOKENS * n_embd; i++) {
        x = x * 1664525 + 1013904223;
        inputs[i] = (float)(int32_t)x * 0x1p-31f;
    }
    return inputs;
}

static void outcome_free(outcome *o) {
    free(o->hidden);
    free(o->k);
    free(o->v);
}

static bool same(const outcome *a, const outcome *b) {
    return a->n_hidden == b->n_hidden && a->n_kv == b->n_kv && !memcmp(a->hidden, b->hidden, a->n_hidden * sizeof(float)) &&
           !memcmp(a->k, b->k, a->n_kv * sizeof(float)) && !memcmp(a->v, b->v, a->n_kv * sizeof(float));
}

static void forward(sn_span *span, sn_kv *kv, int n, int n_embd, const float *in, float *out) {
    sn_tensor input = {.name = "hidden states", .data = in, .dtype = SN_F32, .rank = 2, .shape = {n, n_embd}};
    sn_span_part part = {kv, &input, 0, n, out};
    NEED(sn_kv_reserve(kv, n, &err));
    NEED(sn_span_forward(span, sn_span_first(span), sn_span_end(span), 1, &part, NULL, &err));
}

static void export_past(sn_span *span, sn_kv *kv, outcome *o, size_t per_block) {
    for (int b = sn_span_first(span); b < sn_span_end(span); b++)
        NEED(sn_span_kv_export(span, kv, b, 0, TOKENS, o->k + (size_t)b * per_block, o->v + (size_t)b * per_block,
                          &err));
}

static outcome compute(const char *path, how way) {
    sn_model *model = NULL;
    sn_device *device = NULL;
    NEED(sn_model_open(path, &model, &err));
    NEED(test_cpu_open(way.isa, way.threads, &device, &err));
    const sn_hparams *hp = sn_model_hparams(model);
    size_t row = (size_t)hp->n_embd, per_block = (size_t)TOKENS * (size_t)hp->n_kv_heads * (size_t)hp->head_dim;
    outcome o = {.n_hidden = TOKENS * row, .n_kv = per_block * (size_t)hp->n_blocks};
    o.hidden = make_inputs(hp->n_embd);
    o.k = calloc(o.n_kv, sizeof(float));
    o.v = calloc(o.n_kv, sizeof(float));
    for (int c = 0; c < way.cuts; c++) { /* each span's outputs are the next one's inputs, in place */
        sn_span *span = NULL;
        sn_kv_pool *pool = NULL;
        sn_kv *kv = NULL;
        NEED(sn_span_load(model, device, hp->n_blocks * c / way.cuts, hp->n_blocks * (c + 1) / way.cuts, NULL, NULL, &span,
                          &err));
        NEED(sn_span_kv_pool(span, 16u << 20, &pool, &err));
        NEED(sn_kv_new(pool, &kv, &err));
        for (int at = 0, n; at < TOKENS; at += n) {
            n = way.chunk && way.chunk < TOKENS - at ? way.chunk : TOKENS - at;
            float *rows = o.hidden + (size_t)at * row;
            forward(span, kv, n, hp->n_embd, rows, rows);
        }
        export_past(span, kv, &o, per_block);
        sn_kv_free(&kv);
        sn_kv_pool_free(&pool);
        sn_span_free(&span);
    }
    sn_device_close(&device);
    sn_model_close(&model);
    return o;
}

static bool isa_runs(const char *isa) {
    sn_device *device = NULL;
    sn_err err;
    bool runs = !test_cpu_open(isa, 1, &device, &err);
    sn_device_close(&device);
    return runs;
}

static const sn_dtype DTYPES[] = {SN_F32,  SN_F16,  SN_BF16, SN_Q4_0, SN_Q4_1, SN_Q5_0,   SN_Q5_1,   SN_Q8_0,
                                  SN_Q2_K, SN_Q3_K, SN_Q4_K, SN_Q5_K, SN_Q6_K, SN_IQ4_NL, SN_IQ4_XS, SN_MXFP4};
enum { N_DTYPES = sizeof DTYPES / sizeof *DTYPES };

static void expect_same(const char *path, const char *what, const how *ways, size_t n_ways) {
    outcome reference = compute(path, REFERENCE);
    for (size_t i = 0; i < n_ways; i++) {
        if (!isa_runs(ways[i].isa)) continue;
        outcome o = compute(path, ways[i]);
        cr_expect(same(&reference, &o), "%s on %s, %d threads, chunks of %d, %d spans gave other bits", what,
                  ways[i].isa, ways[i].threads, ways[i].chunk, ways[i].cuts);
        outcome_free(&o);
    }
    outcome_free(&reference);
}

static void expect_same_in_all(const how *ways, size_t n_ways) {
    for (int t = 0; t < N_DTYPES; t++) {
        char *path = tiny_make(&(tiny_options){.dtype = DTYPES[t]});
        expect_same(path, sn_dtype_name(DTYPES[t]), ways, n_ways);
        tiny_remove(&path);
    }
}

Test(bits, are_the_same_on_every_instruction_set) {
    const how ways[] = {{"avx2", 1, 0, 1}, {"avx512", 1, 0, 1}, {"amx", 1, 0, 1}, {TEST_TILES_AVX512, 1, 0, 1}};
    expect_same_in_all(ways, sizeof ways / sizeof *ways);
}

Test(bits, are_the_same_token_by_token_and_in_chunks) {
    const how ways[] = {{"c", 1, 1, 1},    {"avx2", 1, 1, 1}, {"avx512", 1, 1, 1}, {"c", 1, 7, 1},
                        {"avx2", 1, 7, 1}, {"avx512", 1, 7, 1}, {"avx512", 1, 32, 1}, {"amx", 1, 19, 1},
                        {TEST_TILES_AVX512, 1, 19, 1}};
    expect_same_in_all(ways, sizeof ways / sizeof *ways);
}

Test(bits, are_the_same_on_any_number_of_threads) {
    const how ways[] = {{"c", 2, 0, 1},      {"c", 3, 7, 1},      {"avx2", 2, 7, 1},   {"avx2", 3, 0, 1},
                        {"avx512", 2, 0, 1}, {"avx512", 3, 1, 1}, {"avx512", 3, 7, 1},
                        {"amx", 2, 0, 1},    {"amx", 3, 19, 1},   {TEST_TILES, 3, 19, 1}};
    expect_same_in_all(ways, sizeof ways / sizeof *ways);
}

Test(bits, are_the_same_wherever_the_model_is_cut) {
    const how ways[] = {{"avx2", 2, 7, 2}, {"avx512", 1, 0, 2}, {"avx512", 2, 7, 3}, {"avx512", 2, 1, 4}, {"c", 1, 0, 4},
                        {"amx", 2, 19, 3},  {TEST_TILES, 2, 19, 3}};
    expect_same_in_all(ways, sizeof ways / sizeof *ways);
}

/* Eight sessions at different points of their timelines in every pass; the one in the middle is the one of the reference. */
static outcome compute_among_others(const char *path, const char *isa, int threads) {
    enum { SESSIONS = 8, MINE = 3 };
    sn_model *model = NULL;
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_kv_pool *pool = NULL;
    sn_kv *kv[SESSIONS] = {0};
    sn_device_options options = {.threads = threads, .isa = isa};
    NEED(sn_model_open(path, &model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &device, &err));
    const sn_hparams *hp = sn_model_hparams(model);
    NEED(sn_span_load(model, device, 0, hp->n_blocks, NULL, NULL, &span, &err));
    NEED(sn_span_kv_pool(span, 32u << 20, &pool, &err));
    size_t row = (size_t)hp->n_embd, per_block = (size_t)TOKENS * (size_t)hp->n_kv_heads * (size_t)hp->head_dim;
    outcome o = {.n_hidden = TOKENS * row, .n_kv = per_block * (size_t)hp->n_blocks};
    float *inputs = make_inputs(hp->n_embd), *lost = malloc(TOKENS * row * sizeof *lost);
    o.hidden = malloc(o.n_hidden * sizeof(float));
    o.k = calloc(o.n_kv, sizeof(float));
    o.v = calloc(o.n_kv, sizeof(float));
    sn_tensor all = {.name = "hidden states", .data = inputs, .dtype = SN_F32, .rank = 2, .shape = {TOKENS, hp->n_embd}};
    for (int s = 0; s < SESSIONS; s++) NEED(sn_kv_new(pool, &kv[s], &err));
    for (int s = 0; s < SESSIONS; s++) /* the others begin elsewhere, with other tokens */
        if (s != MINE && s) forward(span, kv[s], 5 * s, hp->n_embd, inputs + (size_t)s * row, lost);
    for (int at = 0; at < TOKENS; at++) {
        sn_span_part parts[SESSIONS];
        for (int s = 0; s < SESSIONS; s++) {
            bool mine = s == MINE;
            parts[s] = (sn_span_part){kv[s], &all, mine ? at : (at * 7 + s) % TOKENS, 1,
                                      mine ? o.hidden + (size_t)at * row : lost + (size_t)s * row};
            NEED(sn_kv_reserve(kv[s], 1, &err));
        }
        NEED(sn_span_forward(span, 0, hp->n_blocks, SESSIONS, parts, NULL, &err));
    }
    export_past(span, kv[MINE], &o, per_block);
    for (int s = 0; s < SESSIONS; s++) sn_kv_free(&kv[s]);
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&model);
    free(inputs);
    free(lost);
    return o;
}

Test(bits, are_the_same_in_a_batch_with_seven_other_sessions) {
    static const char *const isas[] = {"c", "avx2", "avx512"};
    for (int t = 0; t < N_DTYPES; t++) {
        char *path = tiny_make(&(tiny_options){.dtype = DTYPES[t]});
        outcome reference = compute(path, REFERENCE);
        for (int i = 0; i < 3; i++) {
            if (!isa_runs(isas[i])) continue;
            outcome o = compute_among_others(path, isas[i], 1 + i);
            cr_expect(same(&reference, &o), "%s on %s gave other bits in a batch", sn_dtype_name(DTYPES[t]), isas[i]);
            outcome_free(&o);
        }
        outcome_free(&reference);
        tiny_remove(&path);
    }
}

/* Families differ by what they compute, not by how: each in all these ways. */
Test(bits, are_the_same_for_every_family) {
    const how ways[] = {{"c", 1, 7, 1},    {"avx2", 1, 0, 1},   {"avx2", 2, 7, 2},
                        {"avx2", 3, 1, 1}, {"avx512", 1, 0, 4}, {"avx512", 2, 32, 3},
                        {"amx", 2, 32, 3}};
    for (int f = 0; f < N_FAMILIES; f++) {
        char path[256];
        snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, FAMILIES[f]);
        expect_same(path, FAMILIES[f], ways, sizeof ways / sizeof *ways);
        outcome reference = compute(path, REFERENCE), among = compute_among_others(path, "avx2", 2);
        cr_expect(same(&reference, &among), "%s gave other bits in a batch", FAMILIES[f]);
        outcome_free(&reference);
        outcome_free(&among);
    }
}

/* The same weights in another container, under other names and in other pieces. */
Test(bits, are_the_same_from_a_gguf_file_and_from_a_folder) {
    static const char *const both[] = {"phi3", "olmo2", "gemma3", "falcon", "falcon_7b", "bloom"};
    for (int f = 0; f < 6; f++) {
        char path[256];
        snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, both[f]);
        outcome folder = compute(path, REFERENCE);
        snprintf(path, sizeof path, "%s/gguf/%s.gguf", SN_FIXTURES, both[f]);
        outcome file = compute(path, (how){NULL, 2, 7, 2});
        cr_expect(same(&folder, &file), "%s: the GGUF file gives other bits", both[f]);
        outcome_free(&folder);
        outcome_free(&file);
    }
}

/* Hidden states of the reference's tokens through a chain over nodes, `chunk` tokens a step. */
static float *compute_over(sn_link *link, const char *path, int chunk, bool push, uint64_t *failovers) {
    sn_model *model = NULL;
    sn_chain *chain = NULL;
    NEED(sn_model_open(path, &model, &err));
    sn_chain_options options = {.link = link, .timeout_ms = 10000, .push = push};
    NEED(sn_chain_open(model, &options, &chain, &err));
    int n_embd = sn_model_hparams(model)->n_embd;
    float *inputs = make_inputs(n_embd), *out = malloc((size_t)TOKENS * (size_t)n_embd * sizeof *out);
    for (int at = 0, n; at < TOKENS; at += n) {
        n = chunk < TOKENS - at ? chunk : TOKENS - at;
        NEED(sn_chain_step(chain, at, n, inputs + (size_t)at * (size_t)n_embd, out + (size_t)at * (size_t)n_embd, &err));
    }
    *failovers = sn_chain_failovers(chain);
    sn_chain_close(&chain);
    sn_model_close(&model);
    free(inputs);
    return out;
}

static void expect_same_over(cluster *c, const char *path, int chunk, bool push, uint64_t failovers) {
    outcome reference = compute(path, REFERENCE);
    uint64_t happened = 0;
    sn_link *link = cluster_link(c);
    float *hidden = compute_over(link, path, chunk, push, &happened);
    cr_expect(!memcmp(reference.hidden, hidden, reference.n_hidden * sizeof(float)), "other bits over nodes");
    cr_expect_eq(happened, failovers, "%llu failovers where %llu were due", (unsigned long long)happened,
                 (unsigned long long)failovers);
    free(hidden);
    outcome_free(&reference);
    sn_link_close(&link);
}

Test(bits, are_the_same_over_three_nodes) {
    char *path = tiny_make(&(tiny_options){.dtype = SN_Q4_1});
    cluster *c = cluster_new(&(cluster_options){.model = path});
    cluster_add(c, 0, 1);
    cluster_add(c, 1, 3);
    cluster_add(c, 3, 4);
    expect_same_over(c, path, 7, false, 0);
    expect_same_over(c, path, 1, false, 0);
    expect_same_over(c, path, 7, true, 0);
    expect_same_over(c, path, TOKENS, true, 0);
    cluster_free(&c);
    tiny_remove(&path);
}

Test(bits, are_the_same_after_a_node_died_and_its_part_was_replayed) {
    char *path = tiny_make(&(tiny_options){.dtype = SN_Q4_1});
    for (int push = 0; push < 2; push++) {
        cluster *c = cluster_new(&(cluster_options){.model = path});
        cluster_add(c, 0, 2);
        int dies = cluster_add(c, 2, 4);
        cluster_add(c, 2, 3); /* together these can take its place */
        cluster_add(c, 3, 4);
        cluster_cut_off_at_step(c, dies, 5);
        expect_same_over(c, path, 7, push, 1);
        cluster_free(&c);
    }
    tiny_remove(&path);
}

Test(bits, are_the_same_when_the_network_doubles_every_message) {
    char *path = tiny_make(&(tiny_options){.dtype = SN_Q8_0});
    cluster *c = cluster_new(&(cluster_options){.model = path});
    cluster_add(c, 0, 2);
    cluster_double(c, cluster_add(c, 2, 4));
    expect_same_over(c, path, 7, false, 0);
    expect_same_over(c, path, 1, true, 0);
    cluster_free(&c);
    tiny_remove(&path);
}
