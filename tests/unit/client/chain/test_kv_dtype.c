/* Keys and values in 16 or 8 bits: the bits differ from those of float32, and are the same on all nodes with the
 * same KV dtype. A node with another KV dtype does not replace such a node. */
#include "tests/support/chain_fixture.h"
#include "tests/support/cluster.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/far_device.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { TOKENS = 70, EMBD = 64 };

typedef struct fixture {
    char *path;
    sn_model *model;
    sn_device *device;
    float inputs[TOKENS * EMBD];
} fixture;

static void fixture_begin(fixture *s, const char *isa, int threads) {
    sn_device_options options = {.threads = threads, .isa = isa};
    s->path = tiny_model_make(&(tiny_model_options){.dtype = SN_Q4_0});
    REQUIRE(sn_model_open(s->path, &s->model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &s->device, &err));
    for (int i = 0; i < TOKENS * EMBD; i++) s->inputs[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
}

static void fixture_end(fixture *s) {
    sn_device_close(&s->device);
    sn_model_close(&s->model);
    tiny_model_remove(&s->path);
}

/* Computes all tokens through a chain, `chunk` per step. */
static void compute_hidden(const fixture *s, sn_chain_options options, int chunk, float *out) {
    sn_chain *chain = NULL;
    chain_default_limits(&options);
    REQUIRE(sn_chain_open(s->model, &options, &chain, &err));
    for (int at = 0, n; at < TOKENS; at += n) {
        n = TOKENS - at < chunk ? TOKENS - at : chunk;
        REQUIRE(sn_chain_step(chain, at, n, s->inputs + at * EMBD, out + at * EMBD, &err));
    }
    sn_chain_close(&chain);
}

static bool same_hidden(const float *a, const float *b) { return !memcmp(a, b, TOKENS * EMBD * sizeof *a); }

Test(kv_dtype, has_the_same_bits_for_any_chunks_threads_and_instruction_set) {
    float first[SN_KV_DTYPE_COUNT][TOKENS * EMBD], out[TOKENS * EMBD];
    static const char *const isas[] = {"c", TEST_ISA_1, TEST_ISA_2};
    for (int i = 0; i < 3; i++) {
        sn_device *there = NULL;
        sn_err none;
        if (sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.isa = isas[i]}, &there, &none))
            continue;
        sn_device_close(&there);
        fixture s;
        fixture_begin(&s, isas[i], 1 + i);
        for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) {
            sn_chain_options options = {.local = {.device = s.device, .end = 4}, .kv = {.dtype = (sn_kv_dtype)t}};
            if (!i) compute_hidden(&s, options, TOKENS, first[t]);
            const int chunks[] = {1, 13, TOKENS};
            for (int c = 0; c < 3; c++) {
                compute_hidden(&s, options, chunks[c], out);
                cr_expect(same_hidden(out, first[t]), "%s on %s, chunks of %d", sn_kv_dtype_name((sn_kv_dtype)t),
                          isas[i], chunks[c]);
            }
        }
        fixture_end(&s);
    }
    cr_expect(!same_hidden(first[0], first[1]) && !same_hidden(first[1], first[2]) && !same_hidden(first[0], first[2]));
    double off[3] = {0};
    for (int t = 1; t < 3; t++)
        for (int i = 0; i < TOKENS * EMBD; i++)
            off[t] += fabs((double)first[t][i] - (double)first[0][i]) / (TOKENS * EMBD);
    cr_expect(off[1] < off[2] && off[2] < 0.05, "mean error %g in 16 bits, %g in 8 bits", off[1], off[2]);
}

Test(kv_dtype, nodes_of_another_kv_dtype_are_no_replacement) {
    fixture s;
    float here[TOKENS * EMBD], there[TOKENS * EMBD];
    fixture_begin(&s, NULL, 1);
    cluster *c = cluster_new(&(cluster_options){.model = s.path, .kv_dtype = SN_KV_Q8, .prefix_cache_memory = 1 << 20});
    cluster_add(c, 0, 2);
    cluster_add(c, 2, 4);
    cluster_add(c, 2, 4);
    sn_link *link = cluster_link(c);
    sn_chain *chain = NULL;
    sn_err why;
    sn_chain_options options = {.local = {.device = s.device, .end = 4}, .kv = {.dtype = SN_KV_Q8}};
    compute_hidden(&s, options, 9, here);
    compute_hidden(&s, (sn_chain_options){.link = link, .kv = {.dtype = SN_KV_Q8}}, 20, there);
    cr_expect(same_hidden(here, there));
    compute_hidden(&s, (sn_chain_options){.link = link, .kv = {.dtype = SN_KV_Q8}}, 70,
                   there); /* its first pages are known now */
    cr_expect(same_hidden(here, there));
    options = sn_chain_options_default();
    options.link = link;
    options.limits.timeout_ms = 10000;
    cr_expect_eq(sn_chain_open(s.model, &options, &chain, &why), SN_RETRY);
    cr_expect_null(chain);
    cluster_cut_off_at_step(c, 1, 2); /* one of the two nodes fails: the other one continues with the same bits */
    cluster_cut_off_at_step(c, 2, 20);
    compute_hidden(&s, (sn_chain_options){.link = link, .kv = {.dtype = SN_KV_Q8}}, 10, there);
    cr_expect(same_hidden(here, there));
    sn_link_close(&link);
    cluster_free(&c);
    fixture_end(&s);
}

Test(kv_dtype, the_timeline_depends_on_the_kv_dtype) {
    sn_hash weights = sn_hash_of("w", 1), hash[SN_KV_DTYPE_COUNT];
    for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) hash[t] = sn_block_hash_with_kv_dtype(&weights, (sn_kv_dtype)t);
    cr_expect(!memcmp(&hash[0], &weights, sizeof weights), "the timeline of float32 does not depend on the KV dtype");
    cr_expect(memcmp(&hash[0], &hash[1], sizeof weights) && memcmp(&hash[1], &hash[2], sizeof weights));
    uint8_t text[] = "w...............................swarm kv q8"; /* as docs/PROTOCOL.md says */
    memcpy(text, &weights, sizeof weights);
    sn_hash q8 = sn_hash_of(text, sizeof text - 1);
    cr_expect(!memcmp(&hash[SN_KV_Q8], &q8, sizeof q8));
}

Test(kv_dtype, a_float32_only_device_refuses_others) {
    far_device far;
    sn_kv_pool *pool = NULL;
    sn_err why;
    far_device_init(&far, SN_DEVICE_CUDA, 0);
    for (int t = 1; t < SN_KV_DTYPE_COUNT; t++) {
        const sn_kv_shape shape = {2, 2, 16, SN_KV_PAGE_TOKENS, (sn_kv_dtype)t, 0, 0, {0}, {0}, 0, 0, false};
        sn_kv_part part = {&far.base, shape};
        cr_expect_eq(sn_kv_pool_new(&part, 1, 1 << 20, &pool, &why), SN_REFUSED);
        cr_expect(strstr(why.text, "cuda:0 keeps keys and values as float32 only") &&
                      strstr(why.text, "--kv-dtype f32"),
                  "%s", why.text);
    }
    for (int t = 0; t < SN_KV_DTYPE_COUNT; t++)
        cr_expect_str_eq(sn_word_name(sn_kv_dtype_words, t), sn_kv_dtype_name((sn_kv_dtype)t));
}
