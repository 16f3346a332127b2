/* Models with recurrent blocks in the files that are published: GGUF files of llama.cpp's architecture qwen35moe, and
 * folders that hold an image encoder and blocks that predict further tokens beside the text model. */
#include "blocks/span.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define GOLDEN SN_FIXTURES "/golden/"
enum { BLOCKS = 4, EMBD = 64, EXPERTS = 6, KEY_HEADS = 2, VALUE_HEADS = 4, KEY = 12, VALUE = 10, TOKENS = 70 };

static sn_model *open_model(const char *path) {
    sn_model *m = NULL;
    REQUIRE(sn_model_open(path, &m, &err));
    return m;
}

static sn_safetensors *open_golden(const char *family) {
    char path[300];
    sn_safetensors *file = NULL;
    snprintf(path, sizeof path, GOLDEN "%s/model.safetensors", family);
    REQUIRE(sn_safetensors_open(path, &file, &err));
    return file;
}

/* -- GGUF */

/* hub's name and GGUF's, behind the block's prefix */
static const char *const names[][2] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight"},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight"},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight"},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.norm.weight", "ssm_norm.weight"},
    {"linear_attn.out_proj.weight", "ssm_out.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
};
enum { N_NAMES = sizeof names / sizeof *names };

typedef struct gguf {
    sn_buf directory, data;
    uint64_t n;
} gguf;

/* dims: the fastest first. */
static void add_tensor(gguf *g, const char *name, int n_dims, const size_t *dims, const float *data, size_t n) {
    put_gguf_string(&g->directory, name);
    put_u32(&g->directory, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++) put_u64(&g->directory, dims[i]);
    put_u32(&g->directory, 0); /* F32 */
    put_u64(&g->directory, g->data.len);
    put_bytes(&g->data, data, n * sizeof *data);
    pad_to(&g->data, 32);
    g->n++;
}

static float *floats_of(const sn_safetensors_tensor *t) {
    float *out = malloc(t->elements * sizeof *out);
    for (size_t i = 0; i < t->elements; i++) {
        uint16_t half;
        memcpy(&half, t->data + 2 * i, sizeof half);
        if (t->dtype == SN_BF16)
            out[i] = sn_bf16_to_f32(half);
        else
            memcpy(&out[i], t->data + 4 * i, sizeof *out);
    }
    return out;
}

/* llama.cpp's order of value heads: head g * (value heads of a key head) + r of the hub is r * (key heads) + g. A head
 * has `width` rows of `row` elements; the rows of x lie `stride` elements apart. */
static void reorder(float *x, size_t width, size_t row, size_t stride) {
    enum { EACH = VALUE_HEADS / KEY_HEADS };
    float *copy = malloc(VALUE_HEADS * width * row * sizeof *copy);
    for (size_t i = 0; i < VALUE_HEADS * width; i++) memcpy(copy + i * row, x + i * stride, row * sizeof *copy);
    for (size_t h = 0; h < VALUE_HEADS; h++)
        for (size_t i = 0; i < width; i++)
            memcpy(x + ((h % EACH * KEY_HEADS + h / EACH) * width + i) * stride, copy + (h * width + i) * row,
                   row * sizeof *copy);
    free(copy);
}

static void convert(const char *name, float *x, size_t n) {
    const size_t keys = 2 * KEY_HEADS * KEY;
    if (strstr(name, "norm.weight") && !strstr(name, "linear_attn"))
        for (size_t i = 0; i < n; i++) x[i] += 1;
    if (strstr(name, "in_proj_qkv")) reorder(x + keys * EMBD, VALUE, EMBD, EMBD);
    if (strstr(name, "conv1d")) reorder(x + keys * 4, VALUE, 4, 4);
    if (strstr(name, "in_proj_z")) reorder(x, VALUE, EMBD, EMBD);
    if (strstr(name, "in_proj_a.") || strstr(name, "in_proj_b.")) reorder(x, 1, EMBD, EMBD);
    if (strstr(name, "A_log"))
        for (size_t i = 0; i < n; i++) x[i] = -expf(x[i]);
    if (strstr(name, "A_log") || strstr(name, "dt_bias")) reorder(x, 1, 1, 1);
    if (strstr(name, "out_proj"))
        for (size_t r = 0; r < EMBD; r++) reorder(x + r * VALUE_HEADS * VALUE, 1, VALUE, VALUE);
}

static void add_converted(gguf *g, const sn_safetensors *file, const char *from, const char *to) {
    const sn_safetensors_tensor *t = sn_safetensors_find(file, from);
    if (!t) return;
    float *x = floats_of(t);
    size_t cols = t->dims[t->n_dims - 1], dims[] = {cols, t->elements / cols};
    bool vector = t->n_dims == 1 || strstr(to, "inp_shexp"); /* llama.cpp: a vector */
    convert(from, x, t->elements);
    add_tensor(g, to, vector ? 1 : 2, dims, x, t->elements);
    free(x);
}

static void add_experts(gguf *g, const sn_safetensors *file, int block, const char *matrix, const char *to) {
    char name[128];
    sn_buf all = {0};
    size_t dims[3] = {0, 0, EXPERTS};
    for (int e = 0; e < EXPERTS; e++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", block, e, matrix);
        const sn_safetensors_tensor *t = sn_safetensors_find(file, name);
        float *x = floats_of(t);
        put_bytes(&all, x, t->elements * sizeof *x);
        dims[0] = t->dims[1], dims[1] = t->dims[0];
        free(x);
    }
    snprintf(name, sizeof name, "blk.%d.%s", block, to);
    add_tensor(g, name, 3, dims, (const float *)(const void *)all.data, all.len / sizeof(float));
    sn_buf_fini(&all);
}

/* One further block, which is not used, if `further`. `n_more` keys follow. */
static void put_keys(sn_buf *b, uint64_t n_tensors, bool further, uint64_t n_more) {
    put_gguf_header(b, 3, n_tensors, 21 + n_more);
    put_gguf_text(b, "general.architecture", "qwen35moe");
    put_gguf_u32(b, "qwen35moe.block_count", BLOCKS + further);
    put_gguf_u32(b, "qwen35moe.nextn_predict_layers", further);
    put_gguf_u32(b, "qwen35moe.context_length", 256);
    put_gguf_u32(b, "qwen35moe.embedding_length", EMBD);
    put_gguf_u32(b, "qwen35moe.attention.head_count", 4);
    put_gguf_u32(b, "qwen35moe.attention.head_count_kv", 2);
    put_gguf_u32(b, "qwen35moe.attention.key_length", 16);
    put_gguf_u32(b, "qwen35moe.attention.value_length", 16);
    put_gguf_f32(b, "qwen35moe.attention.layer_norm_rms_epsilon", 1e-5f);
    put_gguf_f32(b, "qwen35moe.rope.freq_base", 10000);
    put_gguf_u32(b, "qwen35moe.rope.dimension_count", 4);
    put_gguf_u32(b, "qwen35moe.expert_count", EXPERTS);
    put_gguf_u32(b, "qwen35moe.expert_used_count", 2);
    put_gguf_u32(b, "qwen35moe.expert_feed_forward_length", 48);
    put_gguf_u32(b, "qwen35moe.expert_shared_feed_forward_length", 40);
    put_gguf_u32(b, "qwen35moe.ssm.conv_kernel", 4);
    put_gguf_u32(b, "qwen35moe.ssm.state_size", KEY);
    put_gguf_u32(b, "qwen35moe.ssm.group_count", KEY_HEADS);
    put_gguf_u32(b, "qwen35moe.ssm.time_step_rank", VALUE_HEADS);
    put_gguf_u32(b, "qwen35moe.ssm.inner_size", VALUE_HEADS * VALUE);
}

static char *write_gguf(const char *folder, bool further) {
    sn_safetensors *file = open_golden("qwen3_5_moe");
    gguf g = {0};
    sn_buf b = {0};
    float none[EMBD] = {0};
    add_converted(&g, file, "model.embed_tokens.weight", "token_embd.weight");
    add_converted(&g, file, "model.norm.weight", "output_norm.weight");
    add_converted(&g, file, "lm_head.weight", "output.weight");
    for (int block = 0; block < BLOCKS; block++) {
        char from[128], to[128];
        for (int i = 0; i < N_NAMES; i++) {
            snprintf(from, sizeof from, "model.layers.%d.%s", block, names[i][0]);
            snprintf(to, sizeof to, "blk.%d.%s", block, names[i][1]);
            add_converted(&g, file, from, to);
        }
        add_experts(&g, file, block, "gate_proj", "ffn_gate_exps.weight");
        add_experts(&g, file, block, "up_proj", "ffn_up_exps.weight");
        add_experts(&g, file, block, "down_proj", "ffn_down_exps.weight");
    }
    if (further) add_tensor(&g, "blk.4.nextn.enorm.weight", 1, (size_t[]){EMBD}, none, EMBD);
    put_keys(&b, g.n, further, 0);
    put_bytes(&b, g.directory.data, g.directory.len);
    pad_to(&b, 32);
    put_bytes(&b, g.data.data, g.data.len);
    write_file(folder, "model.gguf", b.data, b.len);
    sn_buf_fini(&b);
    sn_buf_fini(&g.directory);
    sn_buf_fini(&g.data);
    sn_safetensors_close(&file);
    return temp_path(folder, "model.gguf");
}

static float *compute(const char *path, const float *inputs) {
    sn_model *m = open_model(path);
    sn_device *d = NULL;
    sn_span *span = NULL;
    sn_kv_pool *pool = NULL;
    sn_kv_cache *kv = NULL;
    float *out = malloc(TOKENS * EMBD * sizeof *out);
    REQUIRE(test_cpu_open("c", 1, &d, &err));
    REQUIRE(sn_span_load(m, d, 0, BLOCKS, NULL, NULL, &span, &err));
    REQUIRE(sn_span_kv_pool(span, 16u << 20, &pool, &err));
    REQUIRE(sn_kv_cache_new(pool, &kv, &err));
    REQUIRE(sn_kv_cache_reserve(kv, TOKENS, &err));
    const sn_tensor rows = {.name = "rows", .data = inputs, .dtype = SN_F32, .rank = 2, .shape = {TOKENS, EMBD}};
    sn_span_sequence part = {kv, &rows, 0, TOKENS, out};
    REQUIRE(sn_span_forward(span, 0, BLOCKS, 1, &part, NULL, &err));
    sn_kv_cache_free(&kv);
    sn_kv_pool_free(&pool);
    sn_span_free(&span);
    sn_device_close(&d);
    sn_model_close(&m);
    return out;
}

Test(recurrent_files, a_gguf_mixture_gives_what_the_folder_gives) {
    char *folder = temp_folder();
    float *x = test_random_floats(TOKENS * EMBD, 9), *want = compute(GOLDEN "qwen3_5_moe", x);
    for (int further = 0; further < 2; further++) {
        char *path = write_gguf(folder, further);
        float *got = compute(path, x), largest = 0, furthest = 0;
        for (int i = 0; i < TOKENS * EMBD; i++) {
            largest = fmaxf(largest, fabsf(want[i]));
            if (!(fabsf(want[i] - got[i]) <= furthest)) furthest = fabsf(want[i] - got[i]);
        }
        cr_expect(furthest <= 1e-5f * largest, "%g of %g", (double)furthest, (double)largest);
        free(got), free(path);
    }
    free(x), free(want);
    temp_folder_remove(&folder);
}

/* A file may say which blocks are recurrent, by a list or an interval. */
static void expect_blocks_refused(int every, sn_gguf_type element, uint64_t n, const char *part) {
    sn_buf b = {0};
    char *folder = temp_folder();
    sn_model *m = NULL;
    sn_err why = {0};
    put_keys(&b, 0, false, 2);
    put_gguf_u32(&b, "qwen35moe.vocab_size", 320);
    if (n) {
        put_gguf_key(&b, "qwen35moe.attention.recurrent_layers", SN_GGUF_ARRAY);
        put_u32(&b, element);
        put_u64(&b, n);
        for (uint64_t i = 0; i < n; i++) put_bytes(&b, "\1", 1);
    } else {
        put_gguf_u32(&b, "qwen35moe.full_attention_interval", (uint32_t)every);
    }
    pad_to(&b, 32);
    write_file(folder, "model.gguf", b.data, b.len);
    char *path = temp_path(folder, "model.gguf");
    cr_expect_eq(sn_model_open(path, &m, &why), SN_REFUSED);
    cr_expect(strstr(why.text, part), "%s", why.text);
    free(path);
    sn_buf_fini(&b);
    temp_folder_remove(&folder);
}

Test(recurrent_files, a_gguf_that_says_nonsense_of_its_recurrent_blocks_is_refused) {
    expect_blocks_refused(0, SN_GGUF_BOOL, 0, "'full_attention_interval' is 0");
    expect_blocks_refused(-4, SN_GGUF_BOOL, 0, "full_attention_interval' is");
    expect_blocks_refused(0, SN_GGUF_BOOL, BLOCKS - 1, "must be 4 bools");
    expect_blocks_refused(0, SN_GGUF_BOOL, BLOCKS + 1, "must be 4 bools");
    expect_blocks_refused(0, SN_GGUF_U8, BLOCKS, "must be 4 bools");
}

/* -- folders with pictures */

static char *write_wrapper(const char *family, const char *odd) {
    char *folder = temp_folder(), config[4096] = "", path[300];
    sn_safetensors *file = open_golden(family);
    size_t n = sn_safetensors_n_tensors(file);
    sn_safetensors_entry *entries = calloc(n + 3, sizeof *entries);
    char(*wrapped)[128] = calloc(n, sizeof *wrapped);
    uint16_t none[4] = {0};
    for (size_t i = 0; i < n; i++) {
        const sn_safetensors_tensor *t = sn_safetensors_tensor_at(file, i);
        bool inner = !strncmp(t->name, "model.", 6);
        snprintf(wrapped[i], sizeof *wrapped, "%s%s", inner ? "model.language_model." : "", t->name + (inner ? 6 : 0));
        entries[i] = (sn_safetensors_entry){wrapped[i], t->dtype, t->n_dims, {0}, t->data};
        memcpy(entries[i].dims, t->dims, (size_t)t->n_dims * sizeof *t->dims);
    }
    entries[n] = (sn_safetensors_entry){"model.visual.patch_embed.proj.weight", SN_BF16, 1, {4}, none};
    entries[n + 1] = (sn_safetensors_entry){"mtp.layers.0.input_layernorm.weight", SN_BF16, 1, {4}, none};
    entries[n + 2] = (sn_safetensors_entry){odd, SN_BF16, 1, {4}, none};
    char *out = temp_path(folder, "model.safetensors");
    REQUIRE(sn_safetensors_write(out, entries, n + (odd ? 3 : 2), &err));
    snprintf(path, sizeof path, GOLDEN "%s/config.json", family);
    FILE *from = fopen(path, "r");
    cr_assert(from && fread(config, 1, sizeof config - 1, from));
    fclose(from);
    sn_buf text = {0};
    put_text(&text, "{\"model_type\":\"qwen3_5\",\"tie_word_embeddings\":false,\"vision_config\":{},\"text_config\":");
    put_text(&text, config);
    put_text(&text, "}");
    write_file(folder, "config.json", text.data, text.len);
    sn_buf_fini(&text);
    sn_safetensors_close(&file);
    free(entries), free(wrapped), free(out);
    return folder;
}

Test(recurrent_files, folders_with_pictures_have_the_blocks_of_their_text_model) {
    static const char *const families[] = {"qwen3_5", "qwen3_5_moe"};
    for (int f = 0; f < 2; f++) {
        char *folder = write_wrapper(families[f], NULL), path[300];
        snprintf(path, sizeof path, GOLDEN "%s", families[f]);
        sn_model *one = open_model(path), *other = open_model(folder);
        sn_hash a, b;
        for (int block = -1; block < BLOCKS; block++) {
            if (block < 0) {
                REQUIRE(sn_model_client_hash(one, &a, &err));
                REQUIRE(sn_model_client_hash(other, &b, &err));
            } else {
                REQUIRE(sn_model_block_hash(one, block, &a, &err));
                REQUIRE(sn_model_block_hash(other, block, &b, &err));
            }
            cr_expect(!memcmp(&a, &b, sizeof a), "%s: block %d differs", families[f], block);
        }
        sn_model_close(&one);
        sn_model_close(&other);
        temp_folder_remove(&folder);
    }
}

Test(recurrent_files, a_tensor_without_a_part_is_refused) {
    char *folder = write_wrapper("qwen3_5", "model.language_model.layers.0.linear_attn.other.weight");
    sn_model *m = NULL;
    sn_err why = {0};
    cr_assert_eq(sn_model_open(folder, &m, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "other.weight' has no part"), "%s", why.text);
    temp_folder_remove(&folder);
}

/* -- the block that predicts a further token -- */

enum { NEXT = 3 }; /* its number in qwen3_5_moe_mtp */

/* Of all experts of a block, the matrices `first` and (or NULL) `second`, one expert after the other. */
static void stack(const sn_safetensors *file, int block, const char *first, const char *second, sn_buf *out) {
    char name[128];
    for (int i = 0; i < 2 * EXPERTS; i++) {
        const char *matrix = i % 2 ? second : first;
        if (!matrix) continue;
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", block, i / 2, matrix);
        const sn_safetensors_tensor *t = sn_safetensors_find(file, name);
        put_bytes(out, t->data, t->elements * sizeof(uint16_t));
    }
}

/* The golden folder as the hub has such models: all experts of a block in one tensor, those of the block that predicts
 * a further token apart. input_rows: of its input matrix. */
static char *write_mixed(size_t input_rows) {
    char *folder = temp_folder(), config[8192] = "";
    sn_safetensors *file = open_golden("qwen3_5_moe_mtp");
    sn_safetensors_entry *entries = calloc(sn_safetensors_n_tensors(file) + 2 * (size_t)NEXT, sizeof *entries);
    sn_buf stacked[2 * NEXT] = {0};
    char stacked_names[2 * NEXT][64];
    size_t n = 0;
    for (size_t i = 0; i < sn_safetensors_n_tensors(file); i++) {
        const sn_safetensors_tensor *t = sn_safetensors_tensor_at(file, i);
        if (!strncmp(t->name, "model.", 6) && strstr(t->name, ".experts.")) continue;
        entries[n] = (sn_safetensors_entry){t->name, t->dtype, t->n_dims, {0}, t->data};
        memcpy(entries[n].dims, t->dims, (size_t)t->n_dims * sizeof *t->dims);
        if (!strcmp(t->name, "mtp.fc.weight"))
            entries[n].dims[0] = input_rows, entries[n].dims[1] = t->elements / input_rows;
        n++;
    }
    for (int i = 0; i < 2 * NEXT; i++) {
        const bool down = i % 2;
        stack(file, i / 2, down ? "down_proj" : "gate_proj", down ? NULL : "up_proj", &stacked[i]);
        snprintf(stacked_names[i], sizeof stacked_names[i], "model.layers.%d.mlp.experts.%s", i / 2,
                 down ? "down_proj" : "gate_up_proj");
        entries[n++] = (sn_safetensors_entry){
            stacked_names[i], SN_BF16, 3, {EXPERTS, down ? EMBD : 96, down ? 48 : EMBD}, stacked[i].data};
    }
    char *out = temp_path(folder, "model.safetensors");
    REQUIRE(sn_safetensors_write(out, entries, n, &err));
    FILE *from = fopen(GOLDEN "qwen3_5_moe_mtp/config.json", "r");
    cr_assert(from && fread(config, 1, sizeof config - 1, from));
    fclose(from);
    write_file(folder, "config.json", config, strlen(config));
    for (int i = 0; i < 2 * NEXT; i++) sn_buf_fini(&stacked[i]);
    sn_safetensors_close(&file);
    free(entries), free(out);
    return folder;
}

Test(recurrent_files, the_block_that_predicts_a_further_token_has_its_experts_in_its_own_way) {
    char *folder = write_mixed(EMBD);
    sn_model *one = open_model(GOLDEN "qwen3_5_moe_mtp"), *other = open_model(folder);
    sn_hash a, b;
    cr_assert_eq(sn_model_hparams(other)->n_next, 1);
    cr_expect(sn_model_has_block(other, NEXT));
    for (int block = 0; block <= NEXT; block++) {
        REQUIRE(sn_model_block_hash(one, block, &a, &err));
        REQUIRE(sn_model_block_hash(other, block, &b, &err));
        cr_expect(!memcmp(&a, &b, sizeof a), "block %d differs", block);
    }
    sn_model_close(&one);
    sn_model_close(&other);
    temp_folder_remove(&folder);
}

Test(recurrent_files, a_block_that_predicts_a_further_token_and_cannot_be_used_is_left_out) {
    char *folder = write_mixed(2 * EMBD);
    sn_model *m = open_model(folder);
    sn_model_tensor t;
    cr_expect_eq(sn_model_hparams(m)->n_next, 0);
    cr_expect_eq(sn_model_find(m, SN_ROLE_NEXT_INPUT, NEXT, &t, NULL), SN_REFUSED);
    cr_expect(sn_model_has_block(m, NEXT - 1) && !sn_model_has_block(m, NEXT));
    sn_model_close(&m);
    temp_folder_remove(&folder);
}
