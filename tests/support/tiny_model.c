/* How it works: tiny_model_make writes a GGUF file in one pass. Metadata and tensor headers
 * go to one buffer and tensor data to another; the file is their concatenation, padded to ALIGNMENT. Weights are
 * uniform with variance 1 / cols, so that activations keep their size from block to block; quantised weights are
 * random bits whose scales are set to match. */
#include "tests/support/tiny_model.h"

#include "base/mem.h"
#include "tests/support/require.h"

#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENT = 32, FILE_MAX = 256 << 20, TENSORS_MAX = 512 };

typedef struct writer {
    sn_buf head, data;
    uint64_t n_tensors, random;
} writer;

static void put_bytes(sn_buf *buf, const void *bytes, size_t n) { REQUIRE(sn_buf_append(buf, bytes, n, &err)); }
static void put_u32(sn_buf *buf, uint32_t x) { put_bytes(buf, &x, sizeof x); }
static void put_u64(sn_buf *buf, uint64_t x) { put_bytes(buf, &x, sizeof x); }

static void put_text(sn_buf *buf, const char *text) {
    put_u64(buf, strlen(text));
    put_bytes(buf, text, strlen(text));
}

/* SplitMix64 (Steele, Lea and Flood 2014). It is not the one of base/random.h, so that models of old seeds keep
 * their bytes. */
static uint64_t next_random(writer *w) {
    uint64_t z = w->random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static float next_uniform(writer *w) { return (float)(next_random(w) >> 40) * 0x1p-23f - 1.0f; } /* [-1, 1) */

/* ggml's numbers of the types. */
static uint32_t gguf_type(sn_dtype dtype) {
    static const uint32_t types[SN_DTYPE_COUNT] = {
        [SN_F32] = 0,      [SN_F16] = 1,     [SN_BF16] = 30,   [SN_Q4_0] = 2,     [SN_Q4_1] = 3,   [SN_Q5_0] = 6,
        [SN_Q5_1] = 7,     [SN_Q8_0] = 8,    [SN_Q2_K] = 10,   [SN_Q3_K] = 11,    [SN_Q4_K] = 12,  [SN_Q5_K] = 13,
        [SN_Q6_K] = 14,    [SN_IQ4_NL] = 20, [SN_IQ4_XS] = 23, [SN_MXFP4] = 39,   [SN_IQ1_S] = 19, [SN_IQ1_M] = 29,
        [SN_IQ2_XXS] = 16, [SN_IQ2_XS] = 17, [SN_IQ2_S] = 22,  [SN_IQ3_XXS] = 18, [SN_IQ3_S] = 21, [SN_TQ1_0] = 34,
        [SN_TQ2_0] = 35,   [SN_NVFP4] = 40,  [SN_Q1_0] = 41,   [SN_Q2_0] = 42};
    return types[dtype];
}

/* The offsets of the float16 scales in a block (MXFP4 has one byte of exponent, NVFP4 four scales of a byte). */
static int scales_at(sn_dtype dtype, int at[2]) {
    switch (dtype) {
    case SN_Q4_1:
    case SN_Q5_1:
    case SN_Q4_K:
    case SN_Q5_K:
        at[0] = 0, at[1] = 2;
        return 2;
    case SN_Q2_K:
        at[0] = 80, at[1] = 82;
        return 2;
    case SN_Q3_K:
        at[0] = 108;
        return 1;
    case SN_Q6_K:
        at[0] = 208;
        return 1;
    case SN_TQ1_0:
        at[0] = 52;
        return 1;
    case SN_TQ2_0:
        at[0] = 64;
        return 1;
    default:
        at[0] = 0;
        return 1;
    }
}

/* Random bits with scales that keep values near 1/sqrt(cols). */
static void put_quantised(writer *w, sn_dtype dtype, size_t n, float size) {
    size_t bytes = sn_dtype_bytes(dtype), blocks = n / sn_dtype_block(dtype);
    uint8_t block[256];
    int at[2], n_scales = scales_at(dtype, at);
    for (size_t b = 0; b < blocks; b++) {
        for (size_t i = 0; i < bytes; i++) block[i] = (uint8_t)next_random(w);
        for (int s = 0; s < n_scales; s++) {
            float scale = size * (0.6f + 0.4f * next_uniform(w)) * (s ? -6.0f : 1.0f) / (bytes > 100 ? 40.0f : 8.0f);
            if ((dtype == SN_Q4_K || dtype == SN_Q5_K || dtype == SN_Q2_K) && s) scale = -scale;
            uint16_t half = sn_f32_to_f16(scale);
            if (dtype == SN_MXFP4)
                block[0] = 120;
            else if (dtype == SN_NVFP4)
                for (int i = 0; i < 4; i++) block[i] = (uint8_t)(8 + block[i] % 16);
            else if (dtype == SN_IQ1_M) /* a half in the upper bits of four words */
                for (int i = 0; i < 4; i++)
                    block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
            else
                memcpy(block + at[s], &half, 2);
        }
        put_bytes(&w->data, block, bytes);
    }
}

static void put_values(writer *w, sn_dtype dtype, size_t n, float mean, float size) {
    for (size_t i = 0; i < n; i++) {
        float value = mean + size * next_uniform(w);
        uint16_t half = dtype == SN_F16 ? sn_f32_to_f16(value) : sn_f32_to_bf16(value);
        if (dtype == SN_F32)
            put_bytes(&w->data, &value, 4);
        else
            put_bytes(&w->data, &half, 2);
    }
}

/* n matrices (rows, cols); rows 0: a vector; n 0: one matrix, without a dimension that counts it. */
static void put_matrices(writer *w, sn_dtype dtype, const char *name, int n_matrices, int rows, int cols) {
    put_text(&w->head, name);
    put_u32(&w->head, n_matrices ? 3 : rows ? 2 : 1);
    put_u64(&w->head, (uint64_t)cols);
    if (rows) put_u64(&w->head, (uint64_t)rows);
    if (n_matrices) put_u64(&w->head, (uint64_t)n_matrices);
    put_u32(&w->head, gguf_type(dtype));
    put_u64(&w->head, w->data.len);
    size_t n = (size_t)cols * (size_t)(rows ? rows : 1) * (size_t)(n_matrices ? n_matrices : 1);
    float size = 1.0f;
    for (int k = 1; k * k < cols; k++)
        size = 1.7f / (float)k; /* about sqrt(3 / cols): uniform with variance 1 / cols */
    if (!rows)
        put_values(w, dtype, n, strstr(name, "ssm_a") ? -1.0f : 1.0f, 0.3f); /* rates of decay are below 0 */
    else if (sn_dtype_block(dtype) == 1)
        put_values(w, dtype, n, 0.0f, size);
    else
        put_quantised(w, dtype, n, size);
    static const char zeros[ALIGNMENT];
    put_bytes(&w->data, zeros, (ALIGNMENT - w->data.len % ALIGNMENT) % ALIGNMENT);
    w->n_tensors++;
}

static void put_tensor(writer *w, sn_dtype dtype, const char *name, int rows, int cols) {
    put_matrices(w, dtype, name, 0, rows, cols);
}

/* key: behind the architecture's name. */
static void put_number(sn_buf *buf, const tiny_model_options *o, const char *key, uint32_t value) {
    char full[64];
    snprintf(full, sizeof full, "%s.%s", o->recurrent ? "qwen35" : "llama", key);
    put_text(buf, full);
    put_u32(buf, 4); /* type u32 */
    put_u32(buf, value);
}

enum { KEY_DIM = 8, KEY_HEADS = 1, VALUE_HEADS = 2, TAPS = 4, VALUES = VALUE_HEADS * KEY_DIM };

/* A block of qwen35. */
static void put_qwen35_block(writer *w, const tiny_model_options *o, int block) {
    int head_dim = o->n_embd / o->n_heads, kv = o->n_kv_heads * head_dim, width = 2 * KEY_HEADS * KEY_DIM + VALUES;
    const struct {
        const char *name;
        int rows, cols, kind; /* kind 0: of blocks with a state, 1: with attention, 2: of both */
    } parts[] = {{"attn_norm.weight", 0, o->n_embd, 2},
                 {"post_attention_norm.weight", 0, o->n_embd, 2},
                 {"ffn_gate.weight", o->n_ff, o->n_embd, 2},
                 {"ffn_up.weight", o->n_ff, o->n_embd, 2},
                 {"ffn_down.weight", o->n_embd, o->n_ff, 2},
                 {"attn_qkv.weight", width, o->n_embd, 0},
                 {"attn_gate.weight", VALUES, o->n_embd, 0},
                 {"ssm_alpha.weight", VALUE_HEADS, o->n_embd, 0},
                 {"ssm_beta.weight", VALUE_HEADS, o->n_embd, 0},
                 {"ssm_conv1d.weight", width, TAPS, 0},
                 {"ssm_a", 0, VALUE_HEADS, 0},
                 {"ssm_dt.bias", 0, VALUE_HEADS, 0},
                 {"ssm_norm.weight", 0, KEY_DIM, 0},
                 {"ssm_out.weight", o->n_embd, VALUES, 0},
                 {"attn_q.weight", 2 * o->n_embd, o->n_embd, 1},
                 {"attn_k.weight", kv, o->n_embd, 1},
                 {"attn_v.weight", kv, o->n_embd, 1},
                 {"attn_output.weight", o->n_embd, o->n_embd, 1},
                 {"attn_q_norm.weight", 0, head_dim, 1},
                 {"attn_k_norm.weight", 0, head_dim, 1}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", block, parts[i].name);
        if (parts[i].kind == 2 || parts[i].kind == block % 2) put_tensor(w, SN_F32, name, parts[i].rows, parts[i].cols);
    }
}

static void put_tensors(writer *w, const tiny_model_options *o) {
    int head_dim = o->n_embd / o->n_heads, kv = o->n_kv_heads * head_dim;
    const struct {
        const char *name;
        int rows, cols;
    } parts[] = {
        {"attn_norm", 0, o->n_embd},      {"attn_q", o->n_embd, o->n_embd},      {"attn_k", kv, o->n_embd},
        {"attn_v", kv, o->n_embd},        {"attn_output", o->n_embd, o->n_embd}, {"ffn_norm", 0, o->n_embd},
        {"ffn_gate", o->n_ff, o->n_embd}, {"ffn_up", o->n_ff, o->n_embd},        {"ffn_down", o->n_embd, o->n_ff}};
    put_tensor(w, o->dtype, "token_embd.weight", o->n_vocab, o->n_embd);
    put_tensor(w, SN_F32, "output_norm.weight", 0, o->n_embd);
    for (int b = 0; b < o->n_blocks && o->recurrent; b++) put_qwen35_block(w, o, b);
    for (int b = 0; b < o->n_blocks && !o->recurrent; b++)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            char name[64];
            bool experts = o->n_experts && parts[i].rows && !strncmp(parts[i].name, "ffn", 3);
            snprintf(name, sizeof name, "blk.%d.%s%s.weight", b, parts[i].name, experts ? "_exps" : "");
            put_matrices(w, parts[i].rows ? o->dtype : SN_F32, name, experts ? o->n_experts : 0, parts[i].rows,
                         parts[i].cols);
        }
    for (int b = 0; b < o->n_blocks && o->n_experts; b++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", b);
        put_tensor(w, SN_F32, name, o->n_experts, o->n_embd);
    }
}

static void put_metadata(sn_buf *buf, const tiny_model_options *o) {
    put_text(buf, "general.architecture");
    put_u32(buf, 8); /* type string */
    put_text(buf, o->recurrent ? "qwen35" : "llama");
    put_number(buf, o, "block_count", (uint32_t)o->n_blocks);
    put_number(buf, o, "context_length", (uint32_t)o->n_ctx);
    put_number(buf, o, "embedding_length", (uint32_t)o->n_embd);
    put_number(buf, o, "feed_forward_length", (uint32_t)o->n_ff);
    put_number(buf, o, "attention.head_count", (uint32_t)o->n_heads);
    put_number(buf, o, "attention.head_count_kv", (uint32_t)o->n_kv_heads);
    float eps = 1e-5f;
    put_text(buf, o->recurrent ? "qwen35.attention.layer_norm_rms_epsilon" : "llama.attention.layer_norm_rms_epsilon");
    put_u32(buf, 6); /* type float32 */
    put_bytes(buf, &eps, sizeof eps);
    if (o->n_experts) put_number(buf, o, "expert_count", (uint32_t)o->n_experts);
    if (o->n_experts) put_number(buf, o, "expert_used_count", (uint32_t)o->n_experts_used);
    if (!o->recurrent) return;
    put_number(buf, o, "full_attention_interval", 2);
    put_number(buf, o, "ssm.conv_kernel", TAPS);
    put_number(buf, o, "ssm.state_size", KEY_DIM);
    put_number(buf, o, "ssm.group_count", KEY_HEADS);
    put_number(buf, o, "ssm.time_step_rank", VALUE_HEADS);
    put_number(buf, o, "ssm.inner_size", VALUES);
}
enum { N_METADATA = 8, N_EXPERT_METADATA = 2, N_RECURRENT_METADATA = 6 };

char *tiny_model_make(const tiny_model_options *options) {
    tiny_model_options o = *options;
    bool wide = sn_dtype_block(o.dtype) > 32;
    if (!o.n_blocks) o.n_blocks = 4;
    if (!o.n_embd) o.n_embd = wide ? 256 : 64;
    if (!o.n_heads) o.n_heads = 4;
    if (!o.n_kv_heads) o.n_kv_heads = 2;
    if (!o.n_ff) o.n_ff = wide ? 256 : 96;
    if (!o.n_vocab) o.n_vocab = 96;
    if (!o.n_ctx) o.n_ctx = 512;
    if (!o.n_experts_used) o.n_experts_used = 2;
    writer w = {.random = o.seed * 1000003u + (unsigned)o.dtype};
    sn_buf file;
    sn_buf_init(&w.head, FILE_MAX);
    sn_buf_init(&w.data, FILE_MAX);
    sn_buf_init(&file, FILE_MAX);
    put_tensors(&w, &o);
    put_bytes(&file, "GGUF", 4);
    put_u32(&file, 3);
    put_u64(&file, w.n_tensors);
    put_u64(&file, N_METADATA + (o.n_experts ? N_EXPERT_METADATA : 0) + (o.recurrent ? N_RECURRENT_METADATA : 0));
    put_metadata(&file, &o);
    put_bytes(&file, w.head.data, w.head.len);
    static const char zeros[ALIGNMENT];
    put_bytes(&file, zeros, (ALIGNMENT - file.len % ALIGNMENT) % ALIGNMENT);
    put_bytes(&file, w.data.data, w.data.len);

    char *path = strdup("/tmp/swarm-test-XXXXXX.gguf");
    int fd = path ? mkstemps(path, 5) : -1;
    if (fd < 0 || write(fd, file.data, file.len) != (ssize_t)file.len || close(fd)) abort();
    sn_buf_fini(&w.head);
    sn_buf_fini(&w.data);
    sn_buf_fini(&file);
    return path;
}

void tiny_model_remove(char **path) {
    if (*path) unlink(*path);
    free(*path);
    *path = NULL;
}
