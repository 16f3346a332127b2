/* Keys and values in 16 or 8 bits: other bits than in float32, and the same ones among all who keep them so; nodes that keep
 * them otherwise are other nodes. */
#include "tests/support/cluster.h"
#include "tests/support/far_device.h"
#include "tests/support/need.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { TOKENS = 70, EMBD = 64 };

typedef struct scene {
    char *path;
    sn_model *model;
    sn_device *device;
    float inputs[TOKENS * EMBD];
} scene;

static void begin(scene *s, const char *isa, int threads) {
    sn_device_options options = {.threads = threads, .isa = isa};
    s->path = tiny_make(&(tiny_options){.dtype = SN_Q4_0});
    NEED(sn_model_open(s->path, &s->model, &err));
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &s->device, &err));
    for (int i = 0; i < TOKENS * EMBD; i++) s->inputs[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
}

static void end(scene *s) {
    sn_device_close(&s->device);
    sn_model_close(&s->model);
    tiny_remove(&s->path);
}

/* All tokens through a chain, `chunk` a step. */
static void compute(const scene *s, sn_chain_options options, int chunk, float *out) {
    sn_chain *chain = NULL;
    options.timeout_ms = 10000;
    NEED(sn_chain_open(s->model, &options, &chain, &err));
    for (int at = 0, n; at < TOKENS; at += n) {
        n = TOKENS - at < chunk ? TOKENS - at : chunk;
        NEED(sn_chain_step(chain, at, n, s->inputs + at * EMBD, out + at * EMBD, &err));
    }
    sn_chain_close(&chain);
}

static bool equal(const float *a, const float *b) { return !memcmp(a, b, TOKENS * EMBD * sizeof *a); }

Test(kv_dtype, gives_its_own_bits_whatever_the_chunks_the_threads_and_the_instructions) {
    float first[SN_KV_DTYPE_COUNT][TOKENS * EMBD], out[TOKENS * EMBD];
    static const char *const isas[] = {"c", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        sn_device *there = NULL;
        sn_err none;
        if (sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.isa = isas[i]}, &there, &none)) continue;
        sn_device_close(&there);
        scene s;
        begin(&s, isas[i], 1 + i);
        for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) {
            sn_chain_options options = {.device = s.device, .local_end = 4, .kv_dtype = (sn_kv_dtype)t};
            if (!i) compute(&s, options, TOKENS, first[t]);
            const int chunks[] = {1, 13, TOKENS};
            for (int c = 0; c < 3; c++) {
                compute(&s, options, chunks[c], out);
                cr_expect(equal(out, first[t]), "%s on %s, chunks of %d", sn_kv_dtype_name((sn_kv_dtype)t), isas[i], chunks[c]);
            }
        }
        end(&s);
    }
    cr_expect(!equal(first[0], first[1]) && !equal(first[1], first[2]) && !equal(first[0], first[2]));
    double off[3] = {0};
    for (int t = 1; t < 3; t++)
        for (int i = 0; i < TOKENS * EMBD; i++) off[t] += fabs((double)first[t][i] - (double)first[0][i]) / (TOKENS * EMBD);
    cr_expect(off[1] < off[2] && off[2] < 0.05, "in 16 bits %g off on average, in 8 bits %g", off[1], off[2]);
}

Test(kv_dtype, nodes_that_keep_them_otherwise_take_no_ones_place) {
    scene s;
    float here[TOKENS * EMBD], there[TOKENS * EMBD];
    begin(&s, NULL, 1);
    cluster *c = cluster_new(&(cluster_options){.model = s.path, .kv_dtype = SN_KV_Q8, .prefix_memory = 1 << 20});
    cluster_add(c, 0, 2);
    cluster_add(c, 2, 4);
    cluster_add(c, 2, 4);
    sn_link *link = cluster_link(c);
    sn_chain *chain = NULL;
    sn_err why;
    sn_chain_options options = {.device = s.device, .local_end = 4, .kv_dtype = SN_KV_Q8};
    compute(&s, options, 9, here);
    compute(&s, (sn_chain_options){.link = link, .kv_dtype = SN_KV_Q8}, 20, there);
    cr_expect(equal(here, there));
    compute(&s, (sn_chain_options){.link = link, .kv_dtype = SN_KV_Q8}, 70, there); /* its first pages are known now */
    cr_expect(equal(here, there));
    cr_expect_eq(sn_chain_open(s.model, &(sn_chain_options){.link = link, .timeout_ms = 10000}, &chain, &why), SN_RETRY);
    cr_expect_null(chain);
    cluster_cut_off_at_step(c, 1, 2); /* one of the two dies on the way: the other one goes on with the same bits */
    cluster_cut_off_at_step(c, 2, 20);
    compute(&s, (sn_chain_options){.link = link, .kv_dtype = SN_KV_Q8}, 10, there);
    cr_expect(equal(here, there));
    sn_link_close(&link);
    cluster_free(&c);
    end(&s);
}

Test(kv_dtype, a_hash_says_what_is_kept) {
    sn_hash weights = sn_hash_of("w", 1), hash[SN_KV_DTYPE_COUNT];
    for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) hash[t] = sn_span_hash_of(&weights, (sn_kv_dtype)t);
    cr_expect(!memcmp(&hash[0], &weights, sizeof weights), "float32 is what it always was");
    cr_expect(memcmp(&hash[0], &hash[1], sizeof weights) && memcmp(&hash[1], &hash[2], sizeof weights));
    uint8_t text[] = "w...............................swarm kv q8"; /* as docs/PROTOCOL.md says */
    memcpy(text, &weights, sizeof weights);
    sn_hash q8 = sn_hash_of(text, sizeof text - 1);
    cr_expect(!memcmp(&hash[SN_KV_Q8], &q8, sizeof q8));
}

Test(kv_dtype, a_device_that_keeps_only_float32_says_so) {
    far_device far;
    sn_kv_pool *pool = NULL;
    sn_err why;
    far_device_init(&far, SN_DEVICE_CUDA, 0);
    for (int t = 1; t < SN_KV_DTYPE_COUNT; t++) {
        sn_kv_part part = {&far.base, 2, (sn_kv_dtype)t};
        cr_expect_eq(sn_kv_pool_new(&part, 1, 2, 16, 1 << 20, &pool, &why), SN_REFUSED);
        cr_expect(strstr(why.text, "cuda:0 keeps keys and values as float32 only") && strstr(why.text, "--kv-dtype f32"), "%s", why.text);
    }
    sn_kv_dtype dtype;
    cr_expect_eq(sn_kv_dtype_parse("int4", &dtype, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "f32, f16 or q8"));
    for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) {
        NEED(sn_kv_dtype_parse(sn_kv_dtype_name((sn_kv_dtype)t), &dtype, &err));
        cr_expect_eq((int)dtype, t);
    }
}
