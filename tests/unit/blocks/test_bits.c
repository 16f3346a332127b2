/* The central promise: keys, values and hidden states of the same tokens are the same bits however they are
 * computed. Everything here is compared by memcmp with one reference: plain C kernels, one thread, all tokens in one
 * batch, one span. */
#include "tests/support/cluster.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/families.h"
#include "tests/support/files.h"
#include "tests/support/made_model.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <string.h>

enum { TOKENS = 75 }; /* crosses two page borders, and is not a multiple of a batch size */

/* The result of a computation: the hidden states after the last block, and the keys and values of every block. */
typedef struct outcome {
    float *hidden, *k, *v;
    size_t n_hidden, n_kv; /* number of floats in each */
} outcome;

typedef struct variant {
    const char *isa;
    int threads;
    int chunk; /* tokens per step; 0: all in one step */
    int cuts;  /* number of spans into which the model is cut */
} variant;

static const variant REFERENCE = {"c", 1, 0, 1};

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

static bool same_outcome(const outcome *a, const outcome *b) {
    return a->n_hidden == b->n_hidden && a->n_kv == b->n_kv &&
           !memcmp(a->hidden, b->hidden, a->n_hidden * sizeof(float)) && !memcmp(a->k, b->k, a->n_kv * sizeof(float)) &&
           !memcmp(a->v, b->v, a->n_kv * sizeof(float));
}

static void forward_rows(sn_span *span, sn_kv_cache *kv, int n, int n_embd, const float *in, float *out) {
    sn_tensor input = {.name = "hidden states", .data = in, .dtype = SN_F32, .rank = 2, .shape = {n, n_embd}};
    sn_span_sequence part = {kv, &input, 0, n, out};
    REQUIRE(sn_kv_cache_reserve(kv, n, &err));
    REQUIRE(sn_span_forward(span, sn_span_first(span), sn_span_end(span), 1, &part, NULL, &err));
}

static void export_kv(sn_span *span, sn_kv_cache *kv, outcome *o, size_t per_block) {
    for (int b = sn_span_first(span); b < sn_span_end(span); b++)
        if (!sn_span_hparams(span)->recurrent[b]) /* else it has none */
            REQUIRE(sn_span_kv_export(span, kv, b, 0, TOKENS, o->k + (size_t)b * per_block,
                                      o->v + (size_t)b * per_block, &err));
}

/* The first block of the span of this number. */
static int span_first(const sn_hparams *hp, int number, int cuts) {
    int b = hp->n_blocks * number / cuts;
    while (!sn_may_cut(hp, b)) b--;
    return b;
}

static outcome compute_outcome(const char *path, variant v) {
    sn_model *model = NULL;
    sn_device *device = NULL;
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(test_cpu_open(v.isa, v.threads, &device, &err));
    const sn_hparams *hp = sn_model_hparams(model);
    const sn_heads most = sn_most_heads(hp);
    size_t row = (size_t)hp->n_embd, per_block = (size_t)TOKENS * (size_t)most.n_kv * (size_t)most.key_dim;
    outcome o = {.n_hidden = TOKENS * row, .n_kv = per_block * (size_t)hp->n_blocks};
    o.hidden = make_inputs(hp->n_embd);
    o.k = calloc(o.n_kv, sizeof(float));
    o.v = calloc(o.n_kv, sizeof(float));
    for (int c = 0; c < v.cuts; c++) { /* each span's output is the next one's input, in place */
        const int first = span_first(hp, c, v.cuts), end = span_first(hp, c + 1, v.cuts);
        if (first == end) continue; /* the model cannot be cut there */
        sn_span *span = NULL;
        sn_kv_pool *pool = NULL;
        sn_kv_cache *kv = NULL;
        REQUIRE(sn_span_load(model, device, first, end, NULL, NULL, &span, &err));
        REQUIRE(sn_span_kv_pool(span, 16u << 20, &pool, &err));
        REQUIRE(sn_kv_cache_new(pool, &kv, &err));
        for (int at = 0, n; at < TOKENS; at += n) {
            n = v.chunk && v.chunk < TOKENS - at ? v.chunk : TOKENS - at;
            float *rows = o.hidden + (size_t)at * row;
            forward_rows(span, kv, n, hp->n_embd, rows, rows);
        }
        export_kv(span, kv, &o, per_block);
        sn_kv_cache_free(&kv);
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

static const sn_dtype DTYPES[] = {SN_F32,     SN_F16,   SN_BF16,  SN_Q4_0,  SN_Q4_1,    SN_Q5_0,   SN_Q5_1,
                                  SN_Q8_0,    SN_Q2_K,  SN_Q3_K,  SN_Q4_K,  SN_Q5_K,    SN_Q6_K,   SN_IQ4_NL,
                                  SN_IQ4_XS,  SN_MXFP4, SN_IQ1_S, SN_IQ1_M, SN_IQ2_XXS, SN_IQ2_XS, SN_IQ2_S,
                                  SN_IQ3_XXS, SN_IQ3_S, SN_TQ1_0, SN_TQ2_0, SN_NVFP4,   SN_Q1_0,   SN_Q2_0};
enum { N_DTYPES = sizeof DTYPES / sizeof *DTYPES };

static void expect_same(const char *path, const char *what, const variant *variants, size_t n_variants) {
    outcome reference = compute_outcome(path, REFERENCE);
    for (size_t i = 0; i < n_variants; i++) {
        if (!isa_runs(variants[i].isa)) continue;
        outcome o = compute_outcome(path, variants[i]);
        cr_expect(same_outcome(&reference, &o), "%s on %s, %d threads, chunks of %d, %d spans: bits differ", what,
                  variants[i].isa, variants[i].threads, variants[i].chunk, variants[i].cuts);
        outcome_free(&o);
    }
    outcome_free(&reference);
}

static void expect_same_for(sn_dtype dtype, const variant *variants, size_t n_variants) {
    char *path = tiny_model_make(&(tiny_model_options){.dtype = dtype});
    expect_same(path, sn_dtype_name(dtype), variants, n_variants);
    tiny_model_remove(&path);
}

static void expect_same_in_all(const variant *variants, size_t n_variants) {
    for (int t = 0; t < N_DTYPES; t++) expect_same_for(DTYPES[t], variants, n_variants);
}

Test(bits, same_bits_on_every_instruction_set) {
    const variant variants[] = {
        {TEST_ISA_1, 1, 0, 1}, {TEST_ISA_2, 1, 0, 1}, {TEST_ISA_3, 1, 0, 1}, {TEST_TILES_AVX512, 1, 0, 1}};
    expect_same_in_all(variants, sizeof variants / sizeof *variants);
}

Test(bits, same_bits_token_by_token_and_in_chunks) {
    const variant variants[] = {
        {"c", 1, 7, 1},         {TEST_ISA_1, 1, 1, 1},  {TEST_ISA_1, 1, 7, 1},        {TEST_ISA_2, 1, 1, 1},
        {TEST_ISA_2, 1, 32, 1}, {TEST_ISA_3, 1, 19, 1}, {TEST_TILES_AVX512, 1, 19, 1}};
    expect_same_in_all(variants, sizeof variants / sizeof *variants);
}

Test(bits, same_bits_on_any_number_of_threads) {
    const variant variants[] = {{"c", 3, 7, 1},        {TEST_ISA_1, 2, 7, 1},  {TEST_ISA_2, 2, 0, 1},
                                {TEST_ISA_2, 3, 1, 1}, {TEST_ISA_3, 3, 19, 1}, {TEST_TILES, 3, 19, 1}};
    expect_same_in_all(variants, sizeof variants / sizeof *variants);
}

Test(bits, same_bits_wherever_the_model_is_cut) {
    const variant variants[] = {{TEST_ISA_1, 2, 7, 2}, {TEST_ISA_2, 1, 0, 2}, {TEST_ISA_2, 2, 7, 3},
                                {TEST_ISA_2, 2, 1, 4}, {"c", 1, 0, 4},        {TEST_ISA_3, 2, 19, 3},
                                {TEST_TILES, 2, 19, 3}};
    static const sn_dtype dtypes[] = {SN_F16, SN_Q4_1, SN_Q6_K, SN_IQ2_S}; /* a cut is the same for all of a form */
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        expect_same_for(dtypes[t], variants, sizeof variants / sizeof *variants);
}

enum { MANY = 30 }; /* blocks of a deep model, each of which is a span of its own */

Test(bits, same_bits_when_each_of_thirty_blocks_is_a_span) {
    const variant variants[] = {
        {"c", 1, 7, MANY}, {TEST_ISA_1, 2, 0, MANY}, {TEST_ISA_2, 1, 1, MANY}, {TEST_ISA_3, 2, 19, MANY}};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1, .n_blocks = MANY});
    expect_same(path, "30 blocks", variants, sizeof variants / sizeof *variants);
    tiny_model_remove(&path);
}

/* Eight sessions at different positions of their timelines in every batch; the middle one is that of the reference. */
static outcome compute_among_others(const char *path, const char *isa, int threads) {
    enum { SESSIONS = 8, MINE = 3 };
    sn_model *model = NULL;
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_kv_pool *pool = NULL;
    sn_kv_cache *kv[SESSIONS] = {0};
    sn_device_options options = {.threads = threads, .isa = isa};
    REQUIRE(sn_model_open(path, &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &device, &err));
    const sn_hparams *hp = sn_model_hparams(model);
    REQUIRE(sn_span_load(model, device, 0, hp->n_blocks, NULL, NULL, &span, &err));
    REQUIRE(sn_span_kv_pool(span, 32u << 20, &pool, &err));
    const sn_heads most = sn_most_heads(hp);
    size_t row = (size_t)hp->n_embd, per_block = (size_t)TOKENS * (size_t)most.n_kv * (size_t)most.key_dim;
    outcome o = {.n_hidden = TOKENS * row, .n_kv = per_block * (size_t)hp->n_blocks};
    float *inputs = make_inputs(hp->n_embd), *lost = malloc(TOKENS * row * sizeof *lost);
    o.hidden = malloc(o.n_hidden * sizeof(float));
    o.k = calloc(o.n_kv, sizeof(float));
    o.v = calloc(o.n_kv, sizeof(float));
    sn_tensor all = {
        .name = "hidden states", .data = inputs, .dtype = SN_F32, .rank = 2, .shape = {TOKENS, hp->n_embd}};
    for (int s = 0; s < SESSIONS; s++) REQUIRE(sn_kv_cache_new(pool, &kv[s], &err));
    for (int s = 0; s < SESSIONS; s++) /* the others begin at other positions, with other tokens */
        if (s != MINE && s) forward_rows(span, kv[s], 5 * s, hp->n_embd, inputs + (size_t)s * row, lost);
    for (int at = 0; at < TOKENS; at++) {
        sn_span_sequence parts[SESSIONS];
        for (int s = 0; s < SESSIONS; s++) {
            bool mine = s == MINE;
            parts[s] = (sn_span_sequence){kv[s], &all, mine ? at : (at * 7 + s) % TOKENS, 1,
                                          mine ? o.hidden + (size_t)at * row : lost + (size_t)s * row};
            REQUIRE(sn_kv_cache_reserve(kv[s], 1, &err));
        }
        REQUIRE(sn_span_forward(span, 0, hp->n_blocks, SESSIONS, parts, NULL, &err));
    }
    export_kv(span, kv[MINE], &o, per_block);
    for (int s = 0; s < SESSIONS; s++) sn_kv_cache_free(&kv[s]);
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&model);
    free(inputs);
    free(lost);
    return o;
}

Test(bits, same_bits_in_a_batch_with_seven_other_sessions) {
    static const char *const isas[] = {"c", TEST_ISA_1, TEST_ISA_2};
    for (int t = 0; t < N_DTYPES; t++) {
        char *path = tiny_model_make(&(tiny_model_options){.dtype = DTYPES[t]});
        outcome reference = compute_outcome(path, REFERENCE);
        for (int i = t % 4 ? 1 : 0; i < 3; i++) { /* plain C has one loop over rows for all types, and is slow */
            if (!isa_runs(isas[i])) continue;
            outcome o = compute_among_others(path, isas[i], 1 + i);
            cr_expect(same_outcome(&reference, &o), "%s on %s: bits differ in a batch", sn_dtype_name(DTYPES[t]),
                      isas[i]);
            outcome_free(&o);
        }
        outcome_free(&reference);
        tiny_model_remove(&path);
    }
}

/* Model families differ in what they compute: each of them is tested in all these ways. */
Test(bits, same_bits_for_every_family) {
    const variant variants[] = {{"c", 1, 7, 1},        {TEST_ISA_1, 1, 0, 1}, {TEST_ISA_1, 2, 7, 2},
                                {TEST_ISA_1, 3, 1, 1}, {TEST_ISA_2, 1, 0, 4}, {TEST_ISA_2, 2, 32, 3},
                                {TEST_ISA_3, 2, 32, 3}};
    for (int f = 0; f < N_FAMILIES; f++) {
        char path[256];
        snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, FAMILIES[f]);
        expect_same(path, FAMILIES[f], variants, sizeof variants / sizeof *variants);
        outcome reference = compute_outcome(path, REFERENCE), among = compute_among_others(path, TEST_ISA_1, 2);
        cr_expect(same_outcome(&reference, &among), "%s: bits differ in a batch", FAMILIES[f]);
        outcome_free(&reference);
        outcome_free(&among);
    }
}

/* Each type that only folders have. */
Test(bits, same_bits_for_quantised_folders) {
    const variant variants[] = {{"c", 1, 7, 1},         {TEST_ISA_1, 1, 0, 1},       {TEST_ISA_1, 2, 7, 2},
                                {TEST_ISA_1, 3, 1, 1},  {TEST_ISA_2, 1, 0, 2},       {TEST_ISA_2, 2, 32, 2},
                                {TEST_ISA_3, 2, 32, 2}, {TEST_TILES_AVX512, 1, 0, 1}};
    static const char *const folders[] = {"kimi_k25_int4", "ct_int4_128",  "ct_int4_64_zeros", "ct_int4_32_zeros",
                                          "ct_int8_zeros", "gptq4_128",    "awq_128",          "ct_nvfp4",
                                          "ct_mxfp4",      "modelopt_fp8", "bnb_nf4_double"};
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        char path[256];
        snprintf(path, sizeof path, "%s/packed/%s", SN_FIXTURES, folders[f]);
        expect_same(path, folders[f], variants, sizeof variants / sizeof *variants);
        outcome reference = compute_outcome(path, REFERENCE), among = compute_among_others(path, TEST_ISA_1, 2);
        cr_expect(same_outcome(&reference, &among), "%s: bits differ in a batch", folders[f]);
        outcome_free(&reference);
        outcome_free(&among);
    }
}

/* The same weights in another container, with other names and split into other tensors. */
Test(bits, same_bits_from_a_gguf_file_and_from_a_folder) {
    static const char *const both[] = {"phi3",  "olmo2", "gemma3",   "falcon",     "falcon_7b",
                                       "bloom", "olmo3", "glm4_moe", "minimax_m2", "qwen2_moe"};
    for (size_t f = 0; f < sizeof both / sizeof *both; f++) {
        char path[256];
        snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, both[f]);
        outcome folder = compute_outcome(path, REFERENCE);
        snprintf(path, sizeof path, "%s/gguf/%s.gguf", SN_FIXTURES, both[f]);
        outcome file = compute_outcome(path, (variant){NULL, 2, 7, 2});
        cr_expect(same_outcome(&folder, &file), "%s: bits of the GGUF file differ", both[f]);
        outcome_free(&folder);
        outcome_free(&file);
    }
}

/* Hidden states of the reference's tokens through a chain over nodes, `chunk` tokens per step. */
static float *compute_over(sn_link *link, const char *path, int chunk, bool push, uint64_t *failovers) {
    sn_model *model = NULL;
    sn_chain *chain = NULL;
    REQUIRE(sn_model_open(path, &model, &err));
    sn_chain_options options = sn_chain_options_default();
    options.link = link;
    options.limits.timeout_ms = 10000;
    options.routing.push = push;
    REQUIRE(sn_chain_open(model, &options, &chain, &err));
    int n_embd = sn_model_hparams(model)->n_embd;
    float *inputs = make_inputs(n_embd), *out = malloc((size_t)TOKENS * (size_t)n_embd * sizeof *out);
    for (int at = 0, n; at < TOKENS; at += n) {
        n = chunk < TOKENS - at ? chunk : TOKENS - at;
        REQUIRE(
            sn_chain_step(chain, at, n, inputs + (size_t)at * (size_t)n_embd, out + (size_t)at * (size_t)n_embd, &err));
    }
    *failovers = sn_chain_failovers(chain);
    sn_chain_close(&chain);
    sn_model_close(&model);
    free(inputs);
    return out;
}

static void expect_same_over(cluster *c, const char *path, int chunk, bool push, uint64_t failovers) {
    outcome reference = compute_outcome(path, REFERENCE);
    uint64_t n_failovers = 0;
    sn_link *link = cluster_link(c);
    float *hidden = compute_over(link, path, chunk, push, &n_failovers);
    cr_expect(!memcmp(reference.hidden, hidden, reference.n_hidden * sizeof(float)), "bits differ over nodes");
    cr_expect_eq(n_failovers, failovers, "%llu failovers instead of %llu", (unsigned long long)n_failovers,
                 (unsigned long long)failovers);
    free(hidden);
    outcome_free(&reference);
    sn_link_close(&link);
}

Test(bits, same_bits_over_three_nodes) {
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1});
    cluster *c = cluster_new(&(cluster_options){.model = path});
    cluster_add(c, 0, 1);
    cluster_add(c, 1, 3);
    cluster_add(c, 3, 4);
    expect_same_over(c, path, 7, false, 0);
    expect_same_over(c, path, 1, false, 0);
    expect_same_over(c, path, 7, true, 0);
    expect_same_over(c, path, TOKENS, true, 0);
    cluster_free(&c);
    tiny_model_remove(&path);
}

/* FP8 weights are multiplied by their scales in float32, and nothing else is rounded: a model that holds the products
 * has the same bits. */
Test(bits, fp8_has_the_bits_of_its_numbers_in_float32) {
    const variant variants[] = {{"c", 1, 0, 1},        {TEST_ISA_1, 2, 0, 1},       {TEST_ISA_2, 1, 0, 3},
                                {TEST_ISA_3, 1, 1, 1}, {TEST_ISA_2, 1, 7, 2},       {TEST_ISA_1, 1, 19, 1},
                                {"c", 3, 32, 1},       {TEST_TILES_AVX512, 1, 0, 1}};
    char *folder = temp_folder(), *plain = temp_folder();
    made_model_write(folder, &made_small, MADE_FP8);
    made_model_write(plain, &made_small, MADE_F32);
    outcome reference = compute_outcome(plain, REFERENCE);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        if (!isa_runs(variants[i].isa)) continue;
        outcome o = compute_outcome(folder, variants[i]);
        cr_expect(same_outcome(&reference, &o), "%s, chunks of %d: bits differ", variants[i].isa, variants[i].chunk);
        outcome_free(&o);
    }
    for (size_t i = 0; i < reference.n_hidden; i++) cr_assert(reference.hidden[i] - reference.hidden[i] == 0.0f);
    outcome_free(&reference);
    temp_folder_remove(&folder);
    temp_folder_remove(&plain);
}

Test(bits, same_bits_over_thirty_nodes) {
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1, .n_blocks = MANY});
    cluster *c = cluster_new(&(cluster_options){.model = path});
    for (int b = 0; b < MANY; b++) cluster_add(c, b, b + 1);
    expect_same_over(c, path, 32, false, 0);
    expect_same_over(c, path, 7, true, 0);
    cluster_free(&c);
    tiny_model_remove(&path);
}

Test(bits, same_bits_after_a_failover_with_replay) {
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_1});
    for (int push = 0; push < 2; push++) {
        cluster *c = cluster_new(&(cluster_options){.model = path});
        cluster_add(c, 0, 2);
        int failing = cluster_add(c, 2, 4);
        cluster_add(c, 2, 3); /* together these two can replace it */
        cluster_add(c, 3, 4);
        cluster_cut_off_at_step(c, failing, 5);
        expect_same_over(c, path, 7, push, 1);
        cluster_free(&c);
    }
    tiny_model_remove(&path);
}

Test(bits, same_bits_when_the_network_duplicates_every_message) {
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q8_0});
    cluster *c = cluster_new(&(cluster_options){.model = path});
    cluster_add(c, 0, 2);
    cluster_duplicate_messages(c, cluster_add(c, 2, 4));
    expect_same_over(c, path, 7, false, 0);
    expect_same_over(c, path, 1, true, 0);
    cluster_free(&c);
    tiny_model_remove(&path);
}
