/* The tensors are listed first (list_block), which gives the header of the file; then each is written from a generator
 * that is seeded with its number (write_tensor), a scale or a row of elements at a time. An element of FP8 is a random
 * code, so that all exponents occur; scales make products of the size of their input. */
#include "tests/support/made_model.h"

#include "base/dtype.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const made_shape made_deepseek_v3 = {.embd = 7168,
                                     .heads = 128,
                                     .q_rank = 1536,
                                     .latent = 512,
                                     .rope = 64,
                                     .nope = 128,
                                     .value = 128,
                                     .ff_dense = 18432,
                                     .ff = 2048,
                                     .experts = 256,
                                     .used = 8,
                                     .groups = 8,
                                     .groups_used = 4,
                                     .vocab = 1024,
                                     .ctx = 163840,
                                     .blocks = 2,
                                     .dense = 1};
const made_shape made_small = {.embd = 256,
                               .heads = 8,
                               .q_rank = 128,
                               .latent = 128,
                               .rope = 16,
                               .nope = 48,
                               .value = 32,
                               .ff_dense = 640,
                               .ff = 128,
                               .experts = 16,
                               .used = 4,
                               .groups = 4,
                               .groups_used = 2,
                               .vocab = 320,
                               .ctx = 163840,
                               .blocks = 3,
                               .dense = 1};

typedef enum content { NORM, SMALL, MATRIX, SCALES } content; /* SMALL: not in FP8 */

enum { NAME = 96, BLOCK = 128, TENSORS_MAX = 16384 };

typedef struct tensor {
    char name[NAME];
    content kind;
    size_t rows, cols;
    unsigned seed; /* of scales: that of their matrix */
    bool odd;      /* the tensor that some forms damage, or its scales */
} tensor;

typedef struct writer {
    FILE *file;
    made_form form;
    const made_shape *shape;
    tensor *tensors;
    size_t n, n_seeds;
} writer;

static void stop(const char *what) {
    perror(what);
    abort();
}

static bool is_float(made_form form) { return form == MADE_F32 || form == MADE_F32_SINGLE; }
static bool is_single(made_form form) { return form == MADE_FP8_SINGLE || form == MADE_F32_SINGLE; }

static void add(writer *w, content kind, size_t rows, size_t cols, const char *format, ...) {
    va_list names;
    if (w->n + 3 > TENSORS_MAX) stop("too many tensors");
    tensor *t = &w->tensors[w->n];
    *t = (tensor){.kind = kind, .rows = rows, .cols = cols, .seed = (unsigned)++w->n_seeds};
    w->n++;
    va_start(names, format);
    vsnprintf(t->name, sizeof t->name, format, names);
    va_end(names);
    t->odd = !strcmp(t->name, "model.layers.1.self_attn.o_proj.weight");
    if (kind != MATRIX || is_float(w->form) || (t->odd && w->form == MADE_NO_SCALE)) return;
    tensor *scales = &w->tensors[w->n++];
    *scales = (tensor){
        .kind = SCALES, .rows = (rows + BLOCK - 1) / BLOCK, .cols = cols / BLOCK, .seed = t->seed, .odd = t->odd};
    snprintf(scales->name, sizeof scales->name, "%.*s_scale_inv", NAME - 11, t->name);
    if (is_single(w->form)) {
        scales->rows = scales->cols = 1;
        w->tensors[w->n++] = (tensor){.kind = NORM, .rows = 1, .cols = 1};
        snprintf(scales[1].name, sizeof scales[1].name, "%.*s.activation_scale", (int)strlen(t->name) - 7, t->name);
    }
    if (t->odd && w->form == MADE_FEW_SCALES) scales->rows--;
}

static void list_feed_forward(writer *w, int b, const char *of, size_t ff) {
    size_t embd = (size_t)w->shape->embd;
    add(w, MATRIX, ff, embd, "model.layers.%d.mlp%s.gate_proj.weight", b, of);
    add(w, MATRIX, ff, embd, "model.layers.%d.mlp%s.up_proj.weight", b, of);
    add(w, MATRIX, embd, ff, "model.layers.%d.mlp%s.down_proj.weight", b, of);
}

static void list_block(writer *w, int b) {
    const made_shape *s = w->shape;
    size_t embd = (size_t)s->embd, heads = (size_t)s->heads, q = (size_t)s->q_rank, latent = (size_t)s->latent;
    const content router = s->whole ? MATRIX : SMALL;
    size_t nope = (size_t)s->nope, rope = (size_t)s->rope, value = (size_t)s->value, experts = (size_t)s->experts;
    add(w, NORM, 1, embd, "model.layers.%d.input_layernorm.weight", b);
    add(w, NORM, 1, embd, "model.layers.%d.post_attention_layernorm.weight", b);
    add(w, NORM, 1, q, "model.layers.%d.self_attn.q_a_layernorm.weight", b);
    add(w, NORM, 1, latent, "model.layers.%d.self_attn.kv_a_layernorm.weight", b);
    add(w, MATRIX, q, embd, "model.layers.%d.self_attn.q_a_proj.weight", b);
    add(w, MATRIX, heads * (nope + rope), q, "model.layers.%d.self_attn.q_b_proj.weight", b);
    add(w, MATRIX, latent + rope, embd, "model.layers.%d.self_attn.kv_a_proj_with_mqa.weight", b);
    add(w, MATRIX, heads * (nope + value), latent, "model.layers.%d.self_attn.kv_b_proj.weight", b);
    add(w, MATRIX, embd, heads * value, "model.layers.%d.self_attn.o_proj.weight", b);
    if (b < s->dense) {
        list_feed_forward(w, b, "", (size_t)s->ff_dense);
        return;
    }
    add(w, SMALL, 1, experts, "model.layers.%d.mlp.gate.e_score_correction_bias", b);
    list_feed_forward(w, b, ".shared_experts", (size_t)s->ff);
    for (int e = 0; e < s->experts; e++) {
        char of[32];
        snprintf(of, sizeof of, ".experts.%d", e);
        list_feed_forward(w, b, of, (size_t)s->ff);
    }
    add(w, router, experts, embd, "model.layers.%d.mlp.gate.weight", b);
}

/* -- contents */

static uint64_t next(uint64_t *state) { /* SplitMix64 (Steele, Lea, Flood 2014) */
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static float uniform(uint64_t *state) { return (float)(next(state) >> 40) * 0x1p-23f - 1; }

/* The scale of the block (r, c). Random codes have a root mean square of 112. */
static float scale_of(const tensor *t, size_t r, size_t c, size_t cols) {
    uint64_t state = (uint64_t)t->seed << 40 ^ r << 20 ^ c;
    float scale = (1 + 0.25f * uniform(&state)) / (112 * sqrtf((float)cols));
    return sn_bf16_to_f32(sn_f32_to_bf16(scale)); /* so that both forms of scales hold it */
}

static const char *type_of(const writer *w, const tensor *t) {
    if (t->kind == SCALES)
        return t->odd && w->form == MADE_ODD_SCALES                      ? "F16"
               : w->form == MADE_FP8_SHORT || w->form == MADE_FP8_SINGLE ? "BF16"
                                                                         : "F32";
    return t->kind == MATRIX && !is_float(w->form) ? "F8_E4M3" : "F32";
}

static size_t element_of(const writer *w, const tensor *t) {
    const char *type = type_of(w, t);
    return type[1] == '8' ? 1 : type[1] == '3' ? 4 : 2;
}

static void put(writer *w, const void *data, size_t size, size_t n) {
    if (fwrite(data, size, n, w->file) != n) stop("writing a made model");
}

static void write_scales(writer *w, const tensor *t, const tensor *matrix) {
    for (size_t r = 0; r < t->rows; r++)
        for (size_t c = 0; c < t->cols; c++) {
            float scale = scale_of(t, r, c, matrix->cols);
            uint16_t half = sn_f32_to_bf16(scale);
            if (t->odd && w->form == MADE_ENDLESS && !r && c + 1 == t->cols) scale = INFINITY;
            if (element_of(w, t) == 2)
                put(w, &half, sizeof half, 1);
            else
                put(w, &scale, sizeof scale, 1);
        }
}

static void write_matrix(writer *w, const tensor *t) {
    uint64_t state = (uint64_t)t->seed << 32;
    uint8_t *codes = malloc((t->cols + 7) / 8 * 8);
    float *values = malloc(t->cols * sizeof *values);
    if (!codes || !values) stop("a row");
    for (size_t r = 0; r < t->rows; r++) {
        for (size_t k = 0; k < t->cols; k += 8) {
            uint64_t eight = next(&state);
            memcpy(codes + k, &eight, sizeof eight);
        }
        for (size_t k = 0; k < t->cols; k++) codes[k] = (uint8_t)(codes[k] - ((codes[k] & 0x7f) == 0x7f)); /* no NaN */
        if (t->odd && w->form == MADE_NAN && r == 1) codes[t->cols - 1] = 0xff;
        for (size_t k = 0; k < t->cols && is_float(w->form); k++) {
            float q = 256 * sn_f16_to_f32(sn_f8_to_f16_256th(codes[k]));
            values[k] =
                q * (is_single(w->form) ? scale_of(t, 0, 0, t->cols) : scale_of(t, r / BLOCK, k / BLOCK, t->cols));
        }
        if (is_float(w->form))
            put(w, values, sizeof *values, t->cols);
        else
            put(w, codes, 1, t->cols);
    }
    free(codes);
    free(values);
}

static void write_tensor(writer *w, const tensor *t) {
    uint64_t state = t->seed;
    if (t->kind == SCALES) {
        write_scales(w, t, t - 1);
    } else if (t->kind == MATRIX) {
        write_matrix(w, t);
    } else {
        for (size_t i = 0; i < t->rows * t->cols; i++) {
            float x = t->kind == NORM ? 1 : uniform(&state) * (t->rows > 1 ? 1.7f / sqrtf((float)t->cols) : 0.1f);
            put(w, &x, sizeof x, 1);
        }
    }
}

static FILE *open_in(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file) stop(path);
    return file;
}

static void write_config(const char *folder, const made_shape *s, made_form form) {
    FILE *file = open_in(folder, "config.json");
    fprintf(file,
            "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\",\"hidden_size\":%d,"
            "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"q_lora_rank\":%d,\"kv_lora_rank\":%d,"
            "\"qk_rope_head_dim\":%d,\"qk_nope_head_dim\":%d,\"v_head_dim\":%d,\"intermediate_size\":%d,"
            "\"moe_intermediate_size\":%d,\"n_routed_experts\":%d,\"num_experts_per_tok\":%d,\"n_group\":%d,"
            "\"topk_group\":%d,\"n_shared_experts\":1,\"vocab_size\":%d,\"max_position_embeddings\":%d,"
            "\"num_hidden_layers\":%d,\"first_k_dense_replace\":%d,",
            s->embd, s->heads, s->heads, s->q_rank, s->latent, s->rope, s->nope, s->value, s->ff_dense, s->ff,
            s->experts, s->used, s->groups, s->groups_used, s->vocab, s->ctx, s->blocks, s->dense);
    if (is_single(form) && !is_float(form))
        fprintf(file, "\"quantization_config\":{\"activation_scheme\":\"static\",\"quant_method\":\"fp8\","
                      "\"weight_block_size\":null},");
    else if (!is_float(form))
        fprintf(file,
                "\"quantization_config\":{\"activation_scheme\":\"dynamic\",\"fmt\":\"e4m3\",\"quant_method\":\"fp8\","
                "\"weight_block_size\":[128,128]},");
    fprintf(file,
            "\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
            "\"original_max_position_embeddings\":4096,\"type\":\"yarn\"},\"rope_theta\":10000,\"hidden_act\":\"silu\","
            "\"attention_bias\":false,\"moe_layer_freq\":1,\"norm_topk_prob\":true,\"rms_norm_eps\":1e-06,"
            "\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\",\"tie_word_embeddings\":%s,"
            "\"topk_method\":\"noaux_tc\"}\n",
            s->tied ? "true" : "false");
    if (fclose(file)) stop("config.json");
}

void made_model_write(const char *folder, const made_shape *shape, made_form form) {
    writer w = {open_in(folder, "model.safetensors"), form, shape, calloc(TENSORS_MAX, sizeof(tensor)), 0, 0};
    char *header = NULL;
    size_t len = 0, at = 0, embd = (size_t)shape->embd, vocab = (size_t)shape->vocab;
    if (!w.tensors) stop("a list of tensors");
    const content ends = shape->whole ? MATRIX : SMALL;
    add(&w, ends, vocab, embd, "model.embed_tokens.weight");
    add(&w, NORM, 1, embd, "model.norm.weight");
    if (!shape->tied) add(&w, ends, vocab, embd, "lm_head.weight");
    for (int b = 0; b < shape->blocks; b++) list_block(&w, b);
    FILE *text = open_memstream(&header, &len);
    if (!text) stop("a header");
    for (size_t i = 0; i < w.n; i++) {
        const tensor *t = &w.tensors[i];
        size_t bytes = t->rows * t->cols * element_of(&w, t);
        bool vector = (t->kind == NORM || t->kind == SMALL) && t->rows == 1,
             number = is_single(w.form) && t->rows == 1 && t->cols == 1;
        fprintf(text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{", t->name, type_of(&w, t));
        if (!vector && !number) fprintf(text, "%zu,", t->rows);
        if (!number) fprintf(text, "%zu", t->cols);
        fprintf(text, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    fputc('}', text);
    if (fclose(text)) stop("a header");
    uint64_t header_bytes = len;
    put(&w, &header_bytes, sizeof header_bytes, 1);
    put(&w, header, 1, len);
    for (size_t i = 0; i < w.n; i++) write_tensor(&w, &w.tensors[i]);
    if (fclose(w.file)) stop("model.safetensors");
    write_config(folder, shape, form);
    free(header);
    free(w.tensors);
}
