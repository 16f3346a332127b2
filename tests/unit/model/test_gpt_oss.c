/* gpt-oss as published: experts in MXFP4, in folders (elements and exponents in separate tensors, gate and up
 * interleaved) and in GGUF files. The golden folder, in bfloat16, shows the layout of the experts; here MXFP4
 * experts replace them. test_golden.c checks what they compute, test_experts.c all types of weights. */
#include "device/quant.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "model/source.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define GOLDEN SN_FIXTURES "/golden/gpt_oss"

enum { EXPERTS = 4, EMBD = 64, FF = 96, GATE_UP = EXPERTS * 2 * FF * EMBD, DOWN = EXPERTS * EMBD * FF };

/* Random blocks of one tensor, row after row. */
typedef struct packed {
    uint8_t elements[GATE_UP / 2], exponents[GATE_UP / 32];
} packed;

static packed random_packed(unsigned seed) {
    packed p;
    for (size_t i = 0; i < sizeof p.elements; i++)
        p.elements[i] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
    for (size_t i = 0; i < sizeof p.exponents; i++) p.exponents[i] = (uint8_t)(118 + p.elements[i] % 5);
    return p;
}

/* OCP Microscaling 1.0: element i is the low half of a byte where i is even. Zero has no sign here. */
static float value_of(const packed *p, size_t i) {
    static const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    unsigned code = p->elements[i / 2] >> i % 2 * 4 & 15;
    return (code > 8 ? -1.0f : 1.0f) * ldexpf(values[code & 7], p->exponents[i / 32] - 127);
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* -- folders */

typedef struct file {
    sn_buf header, data;
} file;

static void add_tensor(file *f, const char *name, const char *ending, const char *type, int n_dims, const size_t *dims,
                       const void *data, size_t bytes) {
    char text[400];
    int at = snprintf(text, sizeof text, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", f->header.len ? "," : "{", name,
                      ending, type);
    for (int i = 0; i < n_dims; i++) at += snprintf(text + at, sizeof text - (size_t)at, i ? ",%zu" : "%zu", dims[i]);
    snprintf(text + at, sizeof text - (size_t)at, "],\"data_offsets\":[%zu,%zu]}", f->data.len, f->data.len + bytes);
    put_text(&f->header, text);
    put_bytes(&f->data, data, bytes);
}

typedef enum format {
    AS_PUBLISHED,
    AS_BFLOAT16,    /* the same numbers, as in the golden folder */
    SHORT_SCALES,   /* one block too few */
    SIGNED_SCALES,  /* of another type */
    WITHOUT_SCALES, /* of the down matrix of block 1 */
} format;

/* Matrices of (rows, cols), stacked. */
static void add_experts(file *f, const char *name, size_t rows, size_t cols, const packed *p, format form) {
    const size_t dims[] = {EXPERTS, rows, cols / 32 - (form == SHORT_SCALES), 16}, turned[] = {EXPERTS, cols, rows};
    const size_t blocks[] = {EXPERTS, rows, cols / 32, 16}, n = EXPERTS * rows * cols;
    if (form == AS_BFLOAT16) {
        uint16_t *all = malloc(n * sizeof *all);
        for (size_t e = 0; e < EXPERTS; e++)
            for (size_t r = 0; r < rows; r++)
                for (size_t c = 0; c < cols; c++)
                    all[(e * cols + c) * rows + r] = sn_f32_to_bf16(value_of(p, (e * rows + r) * cols + c));
        add_tensor(f, name, "", "BF16", 3, turned, all, n * sizeof *all);
        free(all);
        return;
    }
    add_tensor(f, name, "_blocks", "U8", 4, blocks, p->elements, n / 2);
    if (form == WITHOUT_SCALES && !strcmp(name, "model.layers.1.mlp.experts.down_proj")) return;
    add_tensor(f, name, "_scales", form == SIGNED_SCALES ? "I8" : "U8", 3, dims, p->exponents,
               EXPERTS * rows * dims[2]);
}

static char *write_folder(format form) {
    static const char quantised[] =
        "{\"quantization_config\":{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[\"lm_head\"]},";
    char *folder = temp_folder(), config[4096] = "";
    sn_safetensors *golden = NULL;
    file f = {0};
    sn_buf whole = {0};
    REQUIRE(sn_safetensors_open(GOLDEN "/model.safetensors", &golden, &err));
    for (size_t i = 0; i < sn_safetensors_n_tensors(golden); i++) {
        const sn_safetensors_tensor *t = sn_safetensors_tensor_at(golden, i);
        packed p = random_packed((unsigned)i);
        if (ends_with(t->name, "gate_up_proj"))
            add_experts(&f, t->name, 2 * FF, EMBD, &p, form);
        else if (ends_with(t->name, "down_proj"))
            add_experts(&f, t->name, EMBD, FF, &p, form);
        else
            add_tensor(&f, t->name, "", t->type, t->n_dims, t->dims, t->data, t->bytes);
    }
    put_text(&f.header, "}");
    put_u64(&whole, f.header.len);
    put_bytes(&whole, f.header.data, f.header.len);
    put_bytes(&whole, f.data.data, f.data.len);
    write_file(folder, "model.safetensors", whole.data, whole.len);
    FILE *from = fopen(GOLDEN "/config.json", "r");
    cr_assert(from);
    size_t n = fread(config, 1, sizeof config - 1, from);
    fclose(from);
    whole.len = 0;
    put_text(&whole, form == AS_BFLOAT16 ? "{" : quantised);
    put_bytes(&whole, config + 1, n - 1);
    write_file(folder, "config.json", whole.data, whole.len);
    sn_buf_fini(&f.header), sn_buf_fini(&f.data), sn_buf_fini(&whole);
    sn_safetensors_close(&golden);
    return folder;
}

static sn_model *open_model(const char *path) {
    sn_model *m = NULL;
    REQUIRE(sn_model_open(path, &m, &err));
    return m;
}

static float *floats_of(const sn_model *m, sn_role role, int block, int part) {
    sn_model_tensor t;
    const void *rows;
    void *copy;
    REQUIRE(sn_model_find_expert(m, role, block, part, &t, &err));
    REQUIRE(sn_model_contiguous(&t, &rows, &copy, &err));
    float *out = malloc(t.rows * t.cols * sizeof *out);
    for (size_t r = 0; r < t.rows; r++)
        sn_dequantize_row(t.dtype, (const char *)rows + r * (t.bytes / t.rows), t.cols, out + r * t.cols);
    free(copy);
    return out;
}

Test(gpt_oss, experts_in_mxfp4_equal_those_in_bfloat16) {
    char *folder = write_folder(AS_PUBLISHED), *plain = write_folder(AS_BFLOAT16);
    sn_model *m = open_model(folder), *same = open_model(plain);
    sn_model_tensor t;
    for (int block = 0; block < sn_model_hparams(m)->n_blocks; block++)
        for (sn_role role = SN_ROLE_EXPERTS_GATE; role <= SN_ROLE_EXPERTS_DOWN; role++)
            for (int e = 0; e < EXPERTS; e++) {
                float *a = floats_of(m, role, block, e), *b = floats_of(same, role, block, e);
                cr_assert(!memcmp(a, b, FF * EMBD * sizeof *a), "block %d, role %d, expert %d", block, (int)role, e);
                free(a), free(b);
            }
    REQUIRE(sn_model_find_expert(m, SN_ROLE_EXPERTS_UP, 3, 3, &t, &err));
    cr_assert(t.dtype == SN_MXFP4 && t.rows == FF && t.cols == EMBD && t.bytes == FF * EMBD / 32 * 17);
    size_t bytes;
    const char *last = sn_model_run(&t, sn_model_n_runs(&t) - 1, &bytes);
    cr_assert_eq(last + bytes - (const char *)t.data, (2 * FF - 1) * EMBD / 2, "a run covers every second row");
    sn_model_release_pages(m, &t);
    cr_assert(sn_model_has_block(m, 0));
    sn_model_close(&m);
    sn_model_close(&same);
    temp_folder_remove(&folder);
    temp_folder_remove(&plain);
}

static sn_status count_wanted(void *context, const char *path, uint64_t from, uint64_t bytes, sn_err *err) {
    (void)path, (void)from, (void)bytes, (void)err;
    ++*(int *)context;
    return SN_OK;
}

static sn_status fetch_nothing(void *context, const char *what, sn_err *err) {
    (void)context, (void)what, (void)err;
    return SN_OK;
}

static void free_nothing(void *context) { (void)context; }

/* Rows of gate and up alternate, and a file may claim a million of them for each of a thousand experts. */
Test(gpt_oss, experts_are_wanted_in_pieces_larger_than_rows) {
    char *folder = write_folder(AS_PUBLISHED);
    sn_model *m = open_model(folder);
    int n = 0;
    sn_model_set_source(m, &(sn_model_source){count_wanted, fetch_nothing, free_nothing, &n});
    REQUIRE(sn_model_need_block(m, 0, &err));
    cr_expect(n >= 2 * 3 * EXPERTS && n < 3 * 3 * EXPERTS + 20, "%d pieces", n);
    sn_model_close(&m);
    temp_folder_remove(&folder);
}

Test(gpt_oss, every_listed_tensor_has_a_type) {
    char *folder = write_folder(AS_PUBLISHED);
    sn_model *m = open_model(folder);
    int blocks = 0, scales = 0;
    for (size_t i = 0; i < sn_model_n_tensors(m); i++) {
        const char *name, *type;
        sn_model_tensor t;
        sn_model_tensor_at(m, i, &name, &type, &t);
        if (ends_with(name, "_blocks")) blocks += !strcmp(type, "MXFP4");
        if (ends_with(name, "_scales")) scales += !strcmp(type, "U8");
        cr_expect_str_neq(type, "?", "%s", name);
    }
    cr_expect(blocks > 0 && blocks == scales, "%d, %d", blocks, scales);
    sn_model_close(&m);
    temp_folder_remove(&folder);
}

Test(gpt_oss, invalid_mxfp4_is_refused) {
    for (format form = SHORT_SCALES; form <= SIGNED_SCALES; form++) {
        char *folder = write_folder(form);
        sn_model *m = NULL;
        sn_err why = {0};
        cr_assert_eq(sn_model_open(folder, &m, &why), SN_REFUSED);
        cr_assert(strstr(why.text, "mlp.experts.gate_up_proj_scales' are not MXFP4"), "%s", why.text);
        temp_folder_remove(&folder);
    }
}

Test(gpt_oss, missing_expert_scales_make_their_block_missing) {
    char *folder = write_folder(WITHOUT_SCALES);
    sn_model *m = open_model(folder);
    cr_assert(sn_model_has_block(m, 0) && !sn_model_has_block(m, 1) && sn_model_has_block(m, 2));
    sn_model_close(&m);
    temp_folder_remove(&folder);
}

/* -- GGUF */

static const struct {
    sn_role role;
    const char *name;
} NAMES[] = {{SN_ROLE_TOKEN_EMBEDDING, "token_embd.weight"},
             {SN_ROLE_OUTPUT_NORM, "output_norm.weight"},
             {SN_ROLE_OUTPUT, "output.weight"},
             {SN_ROLE_ATTN_NORM, "attn_norm.weight"},
             {SN_ROLE_ATTN_Q, "attn_q.weight"},
             {SN_ROLE_ATTN_Q_BIAS, "attn_q.bias"},
             {SN_ROLE_ATTN_K, "attn_k.weight"},
             {SN_ROLE_ATTN_K_BIAS, "attn_k.bias"},
             {SN_ROLE_ATTN_V, "attn_v.weight"},
             {SN_ROLE_ATTN_V_BIAS, "attn_v.bias"},
             {SN_ROLE_ATTN_O, "attn_output.weight"},
             {SN_ROLE_ATTN_O_BIAS, "attn_output.bias"},
             {SN_ROLE_ATTN_SINKS, "attn_sinks.weight"},
             {SN_ROLE_FFN_NORM, "post_attention_norm.weight"},
             {SN_ROLE_ROUTER, "ffn_gate_inp.weight"},
             {SN_ROLE_ROUTER_BIAS, "ffn_gate_inp.bias"},
             {SN_ROLE_EXPERTS_GATE, "ffn_gate_exps.weight"},
             {SN_ROLE_EXPERTS_GATE_BIAS, "ffn_gate_exps.bias"},
             {SN_ROLE_EXPERTS_UP, "ffn_up_exps.weight"},
             {SN_ROLE_EXPERTS_UP_BIAS, "ffn_up_exps.bias"},
             {SN_ROLE_EXPERTS_DOWN, "ffn_down_exps.weight"},
             {SN_ROLE_EXPERTS_DOWN_BIAS, "ffn_down_exps.bias"}};

static void add_gguf(file *f, const sn_model *m, sn_role role, int block, const char *base) {
    char name[64];
    sn_model_tensor t;
    int parts = sn_role_n_matrices(sn_model_hparams(m), role);
    bool stacked = parts > 1, rows_of_experts = role >= SN_ROLE_EXPERTS_GATE_BIAS && role <= SN_ROLE_EXPERTS_DOWN_BIAS;
    REQUIRE(sn_model_find(m, role, block, &t, &err));
    snprintf(name, sizeof name, role < SN_ROLE_FIRST_OF_BLOCK ? "%s" : "blk.%2$d.%1$s", base, block);
    put_gguf_string(&f->header, name);
    put_u32(&f->header, rows_of_experts ? 2 : sn_role_is_vector(role) ? 1 : stacked ? 3 : 2);
    put_u64(&f->header, rows_of_experts ? t.cols / EXPERTS : t.cols);
    if (rows_of_experts) put_u64(&f->header, EXPERTS);
    if (!sn_role_is_vector(role)) put_u64(&f->header, t.rows);
    if (stacked) put_u64(&f->header, (uint64_t)parts);
    put_u32(&f->header, t.dtype == SN_MXFP4 ? 39 : 30 /* BF16 */);
    put_u64(&f->header, f->data.len);
    for (int i = 0; i < parts; i++) {
        const void *rows;
        void *copy;
        REQUIRE(sn_model_find_expert(m, role, block, i, &t, &err));
        REQUIRE(sn_model_contiguous(&t, &rows, &copy, &err));
        put_bytes(&f->data, rows, t.bytes);
        free(copy);
    }
    pad_to(&f->data, 32);
}

/* The golden config.json as llama.cpp's converter writes it. */
static void put_metadata(sn_buf *b, const char *rope, int pattern) {
    static const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"block_count", 4},
                   {"context_length", 256},
                   {"embedding_length", EMBD},
                   {"feed_forward_length", FF},
                   {"attention.head_count", 4},
                   {"attention.head_count_kv", 2},
                   {"attention.key_length", 16},
                   {"attention.value_length", 16},
                   {"attention.sliding_window", 8},
                   {"expert_count", EXPERTS},
                   {"expert_used_count", 2},
                   {"expert_feed_forward_length", FF},
                   {"rope.scaling.original_context_length", 4096}};
    static const struct {
        const char *key;
        float value;
    } floats[] = {{"attention.layer_norm_rms_epsilon", 1e-5f},
                  {"rope.freq_base", 150000},
                  {"rope.scaling.factor", 32},
                  {"rope.scaling.yarn_beta_fast", 32},
                  {"rope.scaling.yarn_beta_slow", 1}};
    enum { N_NUMBERS = sizeof numbers / sizeof *numbers, N_FLOATS = sizeof floats / sizeof *floats };
    char key[80];
    put_gguf_header(b, 3, 3 + 4 * (sizeof NAMES / sizeof *NAMES - 3), N_NUMBERS + N_FLOATS + 2 + (pattern > 0));
    put_gguf_text(b, "general.architecture", "gpt-oss");
    put_gguf_text(b, "gpt-oss.rope.scaling.type", rope);
    for (int i = 0; i < N_NUMBERS; i++) {
        snprintf(key, sizeof key, "gpt-oss.%s", numbers[i].key);
        put_gguf_u32(b, key, numbers[i].value);
    }
    for (int i = 0; i < N_FLOATS; i++) {
        snprintf(key, sizeof key, "gpt-oss.%s", floats[i].key);
        put_gguf_f32(b, key, floats[i].value);
    }
    if (pattern) put_gguf_u32(b, "gpt-oss.attention.sliding_window_pattern", (uint32_t)pattern);
}

static char *write_gguf(const char *folder, const sn_model *m, const char *rope, int pattern) {
    file f = {0};
    sn_buf b = {0};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        for (int block = 0; block < (NAMES[i].role < SN_ROLE_FIRST_OF_BLOCK ? 1 : 4); block++)
            add_gguf(&f, m, NAMES[i].role, block, NAMES[i].name);
    put_metadata(&b, rope, pattern);
    put_bytes(&b, f.header.data, f.header.len);
    pad_to(&b, 32);
    put_bytes(&b, f.data.data, f.data.len);
    write_file(folder, "model.gguf", b.data, b.len);
    sn_buf_fini(&b), sn_buf_fini(&f.header), sn_buf_fini(&f.data);
    return temp_path(folder, "model.gguf");
}

static bool same_block(const sn_model *a, const sn_model *b, int block) {
    sn_hash of[2];
    REQUIRE(sn_model_block_hash(a, block, &of[0], &err));
    REQUIRE(sn_model_block_hash(b, block, &of[1], &err));
    return !memcmp(of[0].bytes, of[1].bytes, SN_HASH_SIZE);
}

/* The hash covers the weights, and what a block computes with them: windows, angles, their scale. */
Test(gpt_oss, gguf_file_and_folder_give_the_same_blocks) {
    for (format form = AS_PUBLISHED; form <= AS_BFLOAT16; form++) {
        char *folder = write_folder(form), *path = NULL;
        sn_model *m = open_model(folder), *other;
        path = write_gguf(folder, m, "yarn", 0);
        other = open_model(path);
        cr_assert_str_eq(sn_model_hparams(other)->family, "gpt_oss");
        for (int block = 0; block < 4; block++) cr_assert(same_block(m, other, block), "block %d", block);
        sn_hash a = sn_model_id(m), b = sn_model_id(other);
        cr_assert(!memcmp(a.bytes, b.bytes, SN_HASH_SIZE), "the model's id");
        sn_model_close(&other);
        free(path);
        path = write_gguf(folder, m, "yarn", 3);
        other = open_model(path);
        cr_assert(same_block(m, other, 0) && !same_block(m, other, 1) && !same_block(m, other, 2) &&
                      !same_block(m, other, 3),
                  "of three blocks two have the window");
        sn_model_close(&other);
        free(path);
        path = write_gguf(folder, m, "linear", 0);
        other = open_model(path);
        cr_assert(!same_block(m, other, 0), "rotated otherwise");
        sn_model_close(&other);
        sn_model_close(&m);
        free(path);
        temp_folder_remove(&folder);
    }
}
