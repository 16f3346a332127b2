/* Quantised weights of folders (model/packed.h): what the tools that people use write (tests/fixtures/packed has their
 * own numbers beside it), and what damaged and unknown ones are answered. */
#include "base/file.h"
#include "client/api/describe.h"
#include "device/quant.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/packed.h"
#include "model/safetensors.h"
#include "model/source.h"
#include "tests/support/cluster.h"
#include "tests/support/files.h"
#include "tests/support/require.h"
#include "client/generate/lm_head.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#define PACKED SN_FIXTURES "/packed/"

/* Each folder, the type that holds its numbers, and how far hidden states and logits may be from the reference's, which
 * does not round activations to 8 bits as products with integers do. */
static const struct {
    const char *name;
    sn_dtype type;
    float near;
} folders[] = {
    {"ct_int4_128", SN_I4_128, 0.05f},       {"ct_int4_64_zeros", SN_I4_64, 0.05f},
    {"ct_int4_32_zeros", SN_I4_32, 0.05f},   {"ct_int8_channel", SN_I8_128, 0.05f},
    {"ct_int8_zeros", SN_I8_128, 0.05f},     {"ct_w8a8", SN_I8_128, 0.05f},
    {"ct_fp8_channel", SN_F8_E4M3, 1e-4f},   {"ct_fp8_tensor", SN_F8_E4M3, 1e-4f},
    {"ct_nvfp4", SN_NVFP4_256, 0.05f},       {"ct_mxfp4", SN_MXFP4, 0.05f},
    {"gptq4_128", SN_I4_128, 0.05f},         {"gptq4_32", SN_Q4_0, 0.05f},
    {"gptq4_64_zeros", SN_I4_64, 0.05f},     {"gptq4_v2", SN_I4_128, 0.05f},
    {"gptq4_whole", SN_I4_128, 0.05f},       {"gptq8_128", SN_I8_128, 0.05f},
    {"awq_128", SN_I4_128, 0.05f},           {"modelopt_fp8", SN_F8_E4M3, 1e-4f},
    {"modelopt_nvfp4", SN_NVFP4_256, 0.05f}, {"bnb_nf4", SN_NF4, 1e-4f},
    {"bnb_nf4_double", SN_NF4, 1e-4f},       {"bnb_fp4", SN_FP4, 1e-4f},
    {"bnb_int8", SN_I8_128F, 0.05f},         {"fp8_e5m2", SN_F8_E5M2, 1e-4f},
    {"gptq2_128", SN_I2_128, 0.05f},         {"gptq3_128", SN_I3_128, 0.05f},
    {"gptq4_order", SN_I4_64, 0.05f},
};
enum { N_FOLDERS = sizeof folders / sizeof *folders };

static sn_model *open_model(const char *path) {
    sn_model *m = NULL;
    REQUIRE(sn_model_open(path, &m, &err));
    return m;
}

static sn_safetensors *open_golden(const char *name) {
    char path[512];
    sn_safetensors *golden;
    snprintf(path, sizeof path, PACKED "%s/golden.safetensors", name);
    REQUIRE(sn_safetensors_open(path, &golden, &err));
    return golden;
}

static void expect_numbers(const sn_model *m, sn_role role, int block, int expert, const sn_safetensors *golden,
                           const char *name, sn_dtype type) {
    const sn_safetensors_tensor *want = sn_safetensors_find(golden, name);
    const char *folder = sn_model_hparams(m)->name;
    sn_model_tensor t;
    const void *rows;
    void *copy;
    if (!want) return; /* it is left out of the quantisation */
    REQUIRE(sn_model_find_expert(m, role, block, expert, &t, &err));
    cr_assert_eq(t.dtype, type, "%s: %s is %s", folder, name, sn_dtype_name(t.dtype));
    REQUIRE(sn_model_contiguous(&t, &rows, &copy, &err));
    float *row = malloc(t.cols * sizeof *row);
    int32_t *order = calloc(t.cols, sizeof *order);
    for (size_t c = 0; c < t.cols; c++) order[c] = (int32_t)c;
    if (sn_model_is_ordered(&t)) REQUIRE(sn_model_order(&t, order, &err));
    cr_assert(want->dims[1] == t.cols && want->dims[0] <= t.rows);
    for (size_t r = 0; r < want->dims[0]; r++) {
        sn_dequantize_row(t.dtype, (const char *)rows + r * (t.bytes / t.rows), t.cols, row);
        for (size_t c = 0; c < t.cols; c++) {
            float number;
            memcpy(&number, want->data + (r * t.cols + (size_t)order[c]) * sizeof number, sizeof number);
            cr_assert_eq(row[c], number, "%s: %s (%zu, %zu) is %a, not %a", folder, name, r, c, (double)row[c],
                         (double)number);
        }
    }
    free(row);
    free(order);
    free(copy);
}

Test(packed, weights_have_the_references_numbers) {
    for (int i = 0; i < N_FOLDERS; i++) {
        char path[512];
        snprintf(path, sizeof path, PACKED "%s", folders[i].name);
        sn_model *m = open_model(path);
        sn_safetensors *golden = open_golden(folders[i].name);
        cr_assert(sn_safetensors_find(golden, "model.layers.0.mlp.down_proj.weight"));
        expect_numbers(m, SN_ROLE_ATTN_K, 0, 0, golden, "model.layers.0.self_attn.k_proj.weight", folders[i].type);
        sn_dtype wide = folders[i].type; /* of rows that have whole blocks of 256 */
        if (!strcmp(folders[i].name, "bnb_nf4_double")) wide = SN_NF4_256;
        if (!strcmp(folders[i].name, "bnb_fp4")) wide = SN_FP4_256;
        expect_numbers(m, SN_ROLE_FFN_DOWN, 0, 0, golden, "model.layers.0.mlp.down_proj.weight", wide);
        sn_model_tensor left_out;
        REQUIRE(sn_model_find(m, SN_ROLE_ATTN_O, 1, &left_out, &err));
        cr_assert_eq(left_out.dtype, SN_BF16);
        sn_safetensors_close(&golden);
        sn_model_close(&m);
    }
}

static float furthest(const sn_safetensors *golden, const char *name, const float *got) {
    const sn_safetensors_tensor *t = sn_safetensors_find(golden, name);
    float largest = 0, away = 0, want;
    for (size_t i = 0; i < t->elements; i++) {
        memcpy(&want, t->data + i * sizeof want, sizeof want);
        largest = fmaxf(largest, fabsf(want));
        if (!(fabsf(got[i] - want) <= away)) away = fabsf(got[i] - want);
    }
    return away / largest;
}

/* Over two nodes and a client. */
static void expect_near(const char *name, float near) {
    char path[512], last[32];
    snprintf(path, sizeof path, PACKED "%s", name);
    sn_model *m = open_model(path);
    const sn_hparams *hp = sn_model_hparams(m);
    sn_safetensors *golden = open_golden(name);
    const sn_safetensors_tensor *ids = sn_safetensors_find(golden, "input_ids");
    size_t n = ids->elements, embd = (size_t)hp->n_embd;
    float *hidden = malloc(2 * n * embd * sizeof *hidden), *logits = malloc(n * (size_t)hp->n_vocab * sizeof *logits);
    int32_t *tokens = malloc(n * sizeof *tokens);
    for (size_t t = 0; t < n; t++) {
        int64_t id;
        memcpy(&id, ids->data + t * sizeof id, sizeof id);
        tokens[t] = (int32_t)id;
    }
    cluster *c = cluster_new(&(cluster_options){.model = path});
    cluster_add(c, 0, 1);
    cluster_add(c, 1, hp->n_blocks);
    sn_device *device;
    sn_lm_head *head;
    sn_chain *chain;
    sn_link *link = cluster_link(c);
    sn_chain_options options = sn_chain_options_default();
    options.link = link;
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    REQUIRE(sn_lm_head_load(m, device, &head, &err));
    REQUIRE(sn_chain_open(m, &options, &chain, &err));
    REQUIRE(sn_lm_head_embed(head, tokens, (int)n, hidden, &err));
    REQUIRE(sn_chain_step(chain, 0, (int)n, hidden, hidden + n * embd, &err));
    REQUIRE(sn_lm_head_logits(head, hidden + n * embd, (int)n, logits, &err));
    snprintf(last, sizeof last, "hidden.%d", hp->n_blocks);
    float states = furthest(golden, last, hidden + n * embd), end = furthest(golden, "logits", logits);
    cr_expect(states <= near && end <= near, "%s: %g, logits %g", name, (double)states, (double)end);
    sn_chain_close(&chain);
    sn_link_close(&link);
    sn_lm_head_free(&head);
    sn_device_close(&device);
    sn_safetensors_close(&golden);
    cluster_free(&c);
    sn_model_close(&m);
    free(hidden), free(logits), free(tokens);
}

Test(packed, hidden_states_and_logits_are_near_the_references) {
    for (int i = 0; i < N_FOLDERS; i++) expect_near(folders[i].name, folders[i].near);
}

/* A picture model whose routed experts are packed, and nothing else. */
Test(packed, kimi_has_its_experts_in_four_bits) {
    sn_model *m = open_model(PACKED "kimi_k25_int4");
    sn_safetensors *golden = open_golden("kimi_k25_int4");
    sn_model_tensor t;
    expect_numbers(m, SN_ROLE_EXPERTS_DOWN, 1, 5, golden, "model.layers.1.mlp.experts.5.down_proj.weight", SN_I4_B32);
    expect_numbers(m, SN_ROLE_EXPERTS_GATE, 2, 0, golden, "model.layers.2.mlp.experts.0.gate_proj.weight", SN_I4_B32);
    REQUIRE(sn_model_find(m, SN_ROLE_SHARED_UP, 1, &t, &err));
    cr_assert_eq(t.dtype, SN_BF16);
    sn_safetensors_close(&golden);
    sn_model_close(&m);
    expect_near("kimi_k25_int4", 0.02f);
}

/* llama.cpp's own converter made the file of modelopt_nvfp4: blocks, and each matrix's scale in a tensor beside them.
 */
Test(packed, nvfp4_of_a_gguf_file_is_multiplied_by_the_scale_beside_it) {
    sn_model *m = open_model(SN_FIXTURES "/gguf/nvfp4_scale.gguf");
    sn_safetensors *golden = open_golden("modelopt_nvfp4");
    expect_numbers(m, SN_ROLE_FFN_DOWN, 0, 0, golden, "model.layers.0.mlp.down_proj.weight", SN_NVFP4_256);
    sn_safetensors_close(&golden);
    sn_model_close(&m);
}

static void expect_scaled(sn_model_tensor blocks, const float *scales, size_t n, const char *refusal) {
    const sn_model_tensor beside = {.dtype = SN_F32, .rows = 1, .cols = n, .data = scales, .bytes = n * sizeof *scales};
    sn_model_tensor out = blocks;
    sn_packed packed;
    float plain[256], scaled[256];
    uint8_t made[3 * 148];
    sn_err err = {0};
    sn_status status = sn_packed_join_gguf(&blocks, &beside, &packed, &out.dtype, &err);
    out.packed = &packed;
    out.bytes = status ? 0 : sn_packed_bytes(&packed, out.dtype);
    if (!status) status = sn_packed_unpack(&out, made, &err);
    if (refusal) {
        cr_expect(status == SN_REFUSED && strstr(err.text, refusal), "%s", err.text);
        return;
    }
    cr_assert_eq(status, SN_OK, "%s", err.text);
    for (size_t r = 0; r < blocks.rows; r++) {
        sn_dequantize_row(SN_NVFP4, (const char *)blocks.data + r * 144, 256, plain);
        sn_dequantize_row(out.dtype, made + r * 148, 256, scaled);
        for (int k = 0; k < 256; k++) cr_assert_eq(scaled[k], plain[k] * scales[r / (blocks.rows / n)]);
    }
}

/* Of experts in one tensor each has its own. */
Test(packed, nvfp4_scales_of_a_gguf_file_are_of_equal_parts_of_the_rows) {
    uint8_t bytes[3 * 144];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i % 36 < 4 ? 40 + i % 30 : i * 37);
    bytes[1] = 0x7f; /* 0 in a GGUF file */
    const sn_model_tensor blocks = {.dtype = SN_NVFP4,
                                    .rows = 3,
                                    .cols = 256,
                                    .data = bytes,
                                    .bytes = sizeof bytes,
                                    .group_rows = 3,
                                    .group_stride = 3};
    sn_model_tensor narrow = blocks;
    narrow.cols = 192;
    expect_scaled(blocks, (float[]){0.5f}, 1, NULL);
    expect_scaled(blocks, (float[]){2, 0.25f, 4}, 3, NULL);
    expect_scaled(blocks, (float[]){2, 1}, 2, "for 2 of 3 rows");
    expect_scaled(blocks, (float[]){NAN}, 1, "scales that are no numbers");
    expect_scaled(narrow, (float[]){1}, 1, "in rows of a multiple of 256, not of 192");
}

/* ---- changed folders ---- */

/* Where a change is in the bytes of a tensor. */
typedef struct patch {
    size_t at;
    const void *bytes;
    size_t n;
} patch;

static char *read_text(const char *folder, const char *name, size_t *len) {
    char path[512];
    sn_buf text = {0};
    snprintf(path, sizeof path, PACKED "%s/%s", folder, name);
    REQUIRE(sn_read_file(path, 1 << 22, &text, &err));
    *len = text.len;
    return (char *)text.data;
}

/* Sets config.json's quantization_config[field], or takes it out (value NULL). field NULL: nothing changes. */
static void write_config(const char *to, const char *from, const char *field, const char *value) {
    size_t len;
    char *text = read_text(from, "config.json", &len);
    json_t *config = json_loadb(text, len, 0, NULL), *about = json_object_get(config, "quantization_config");
    cr_assert(about);
    if (field && value)
        json_object_set_new(about, field, json_loads(value, JSON_DECODE_ANY, NULL));
    else if (field)
        json_object_del(about, field);
    char *changed = json_dumps(config, 0);
    write_file(to, "config.json", changed, strlen(changed));
    json_decref(config);
    free(changed);
    free(text);
}

/* Writes the folder's tensors with the header's entry of one of them changed: its `field`, or its name (field "name").
 */
static void write_tensors(const char *to, const char *from, const char *tensor, const char *field, const char *value,
                          const patch *p) {
    size_t len, at = 0;
    uint64_t header_len;
    char *file = read_text(from, "model.safetensors", &len);
    memcpy(&header_len, file, sizeof header_len);
    json_t *header = json_loadb(file + sizeof header_len, header_len, 0, NULL),
           *entry = json_object_get(header, tensor);
    cr_assert(!tensor || entry, "%s", tensor);
    if (p) {
        at = (size_t)json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0)) + p->at;
        memcpy(file + sizeof header_len + header_len + at, p->bytes, p->n);
    } else if (tensor && !strcmp(field, "name")) {
        json_object_set(header, value, entry);
        json_object_del(header, tensor);
    } else if (tensor) {
        json_object_set_new(entry, field, json_loads(value, JSON_DECODE_ANY, NULL));
    }
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t text_len = strlen(text);
    sn_buf whole;
    sn_buf_init(&whole, 1 << 22);
    REQUIRE(sn_buf_append(&whole, &text_len, sizeof text_len, &err));
    REQUIRE(sn_buf_append(&whole, text, text_len, &err));
    REQUIRE(sn_buf_append(&whole, file + sizeof header_len + header_len, len - sizeof header_len - header_len, &err));
    write_file(to, "model.safetensors", (const char *)whole.data, whole.len);
    sn_buf_fini(&whole);
    json_decref(header);
    free(text);
    free(file);
}

/* Opens the folder and reads the down and k matrices of its first block. */
static sn_status read_all(const char *folder, sn_err *err) {
    sn_model *m = NULL;
    sn_status status = sn_model_open(folder, &m, err);
    for (int i = 0; i < 2 && !status; i++) {
        sn_model_tensor t;
        const void *rows;
        void *copy = NULL;
        status = sn_model_find(m, i ? SN_ROLE_ATTN_K : SN_ROLE_FFN_DOWN, 0, &t, err);
        if (!status) status = sn_model_contiguous(&t, &rows, &copy, err);
        free(copy);
    }
    sn_model_close(&m);
    return status;
}

static void expect_answer(const char *folder, const char *what, const char *refusal) {
    sn_err err = {0};
    sn_status status = read_all(folder, &err);
    if (refusal)
        cr_expect(status == SN_REFUSED && strstr(err.text, refusal), "%s: %s", what, err.text);
    else
        cr_expect_eq(status, SN_OK, "%s: %s", what, err.text);
}

static void expect_tensors(const char *from, const char *tensor, const char *field, const char *value,
                           const char *refusal) {
    char *folder = temp_folder(), name[128];
    snprintf(name, sizeof name, "model.layers.0.mlp.down_proj.%s", tensor);
    write_config(folder, from, NULL, NULL);
    write_tensors(folder, from, name, field, value, NULL);
    expect_answer(folder, value, refusal);
    temp_folder_remove(&folder);
}

static void expect_without(const char *from, const char *tensor, const char *refusal) {
    expect_tensors(from, tensor, "name", "x.rotary_emb.inv_freq", refusal);
}

Test(packed, tensors_that_do_not_fit_each_other_are_refused) {
    expect_without("gptq4_128", "scales", "is not in the model's files");
    expect_without("gptq4_128", "qzeros", "has no zeros beside it");
    expect_without("gptq4_128", "qweight", "down_proj.bias' has no part in a llama model");
    expect_without("gptq4_32", "qweight", "is not in the model's files");
    expect_without("ct_int4_128", "weight_scale", "is not in the model's files");
    expect_without("ct_int4_128", "weight_shape", NULL);
    expect_without("ct_nvfp4", "weight_global_scale", "is not supported");
    expect_without("gptq4_128", "g_idx", NULL);
    expect_tensors("gptq4_128", "qweight", "shape", "[64,64]", "does not have the codes of 128 rows of 256 columns");
    expect_tensors("gptq4_128", "qweight", "dtype", "\"F32\"", "of type F32 does not have the codes");
    expect_tensors("gptq4_128", "scales", "shape", "[1,256]", "has no scale for each group");
    expect_tensors("gptq4_128", "scales", "shape", "[4,64]", "has no scale for each group");
    expect_tensors("gptq4_128", "scales", "shape", "[256]", "has no scale for each group");
    expect_tensors("gptq4_128", "qzeros", "shape", "[16,2]", "does not fit the codes and scales");
    expect_tensors("gptq4_128", "g_idx", "dtype", "\"F32\"", "there must be 256 in I32");
    expect_tensors("gptq4_128", "g_idx", "shape", "[16,16]", "there must be 256 in I32");
    expect_tensors("gptq4_128", "bias", "dtype", "\"I16\"", "there must be 128 floats");
    expect_tensors("awq_128", "qweight", "shape", "[16,256]", "does not have the codes");
    expect_tensors("ct_int4_64_zeros", "weight_zero_point", "shape", "[4,16]", "does not fit the codes and scales");
    expect_tensors("ct_int4_128", "weight_scale", "dtype", "\"I16\"", "which is not supported");
    expect_tensors("ct_int4_32_zeros", "weight_scale", "shape", "[1024]", "has no scale for each group");
    expect_tensors("ct_w8a8", "weight_scale", "shape", "[64,2]", "is of a type that its part of the model cannot have");
    expect_tensors("ct_fp8_channel", "weight", "dtype", "\"F8_E8M0\"", "of type F8_E8M0 does not have the codes");
    expect_tensors("ct_nvfp4", "weight_scale", "dtype", "\"U8\"", "which is not supported");
    expect_tensors("ct_mxfp4", "weight_scale", "dtype", "\"I8\"", "which is not supported");
    expect_without("bnb_nf4", "weight.absmax", "has 2 dimensions, (16384, 1)");
    expect_without("bnb_nf4", "weight.quant_map", "are not NF4 or FP4 of bitsandbytes");
    expect_without("bnb_nf4", "weight.quant_state.bitsandbytes__nf4", "are not NF4 or FP4 of bitsandbytes");
    expect_without("bnb_nf4_double", "weight.nested_absmax", "are not NF4 or FP4 of bitsandbytes");
    expect_without("bnb_nf4_double", "weight.nested_quant_map", "are not NF4 or FP4 of bitsandbytes");
    expect_tensors("bnb_nf4", "weight", "dtype", "\"I8\"", "are not NF4 or FP4 of bitsandbytes");
    expect_without("bnb_fp4", "weight.quant_state.bitsandbytes__fp4", "are not NF4 or FP4 of bitsandbytes");
    expect_without("bnb_int8", "SCB", "is of a type that its part of the model cannot have");
    expect_tensors("bnb_int8", "weight_format", "dtype", "\"I8\"", "is not one byte");
    expect_tensors("bnb_int8", "SCB", "shape", "[64,2]", "is of a type that its part of the model cannot have");
    expect_tensors("gptq3_128", "qweight", "shape", "[16,192]", "in 2, 3, 4 or 8 bits");
    expect_tensors("gptq3_128", "qzeros", "shape", "[3,8]", "does not fit the codes and scales");
    expect_tensors("modelopt_nvfp4", "weight_scale_2", "dtype", "\"I32\"", "is not one number in F32");
}

static void expect_patched(const char *from, const char *tensor, size_t at, uint32_t value, size_t bytes,
                           const char *refusal) {
    char *folder = temp_folder(), name[128];
    snprintf(name, sizeof name, "model.layers.0.mlp.down_proj.%s", tensor);
    write_config(folder, from, NULL, NULL);
    write_tensors(folder, from, name, NULL, NULL, &(patch){at, &value, bytes});
    expect_answer(folder, tensor, refusal);
    temp_folder_remove(&folder);
}

Test(packed, numbers_that_cannot_be_computed_with_are_refused) {
    expect_patched("gptq4_128", "g_idx", 0, 2, 4, "column 0 belongs to group 2 of 2");
    expect_patched("gptq4_128", "g_idx", 0, 0xffffffff, 4, "belongs to group 4294967295 of 2");
    expect_patched("gptq4_128", "g_idx", 0, 1, 4, "in the order of their activations");
    expect_patched("gptq4_order", "g_idx", 0, 4, 4, "column 0 belongs to group 4 of 4");
    expect_patched("gptq4_order", "g_idx", 0, 2, 4, "which is full");
    expect_patched("bnb_int8", "weight_format", 0, 1, 1, "its weight_format is 1");
    expect_patched("bnb_int8", "SCB", 0, 0x7f800000, 4, "no number up to 2^100");
    expect_patched("fp8_e5m2", "weight", 3, 0x7c, 1, "holds NaN");
    expect_patched("bnb_fp4", "weight.quant_map", 4, 0, 4, "what its quant_state says");
    expect_patched("gptq4_128", "bias", 2, 0x3c00, 2, "a bias that is not 0");
    expect_patched("gptq4_128", "bias", 2, 0x8000, 2, NULL); /* -0 */
    expect_patched("gptq4_128", "scales", 0, 0x7c00, 2, "no number up to 2^100");
    expect_patched("gptq4_32", "qzeros", 0, 0x77777770, 4, "where 'sym' says that it is 8");
    expect_patched("gptq4_128", "qzeros", 0, 0xffffffff, 4, NULL); /* 16: as auto-gptq reads it */
    expect_patched("gptq8_128", "qzeros", 0, 0xffffffff, 4, "256 for the code of 0");
    expect_patched("ct_fp8_channel", "weight", 3, 0x7f, 1, "holds NaN");
    expect_patched("ct_fp8_channel", "weight_scale", 0, 0x7fc0, 2, "no number up to 2^100");
    expect_patched("ct_nvfp4", "weight_scale", 5, 0xff, 1, "scales that are no numbers");
    expect_patched("ct_nvfp4", "weight_global_scale", 0, 0, 4, "scales that are no numbers");
    expect_patched("modelopt_nvfp4", "weight_scale_2", 0, 0x7fc00000, 4, "scales that are no numbers");
    expect_patched("bnb_nf4", "weight.absmax", 4, 0x7f800000, 4, "no number up to 2^100");
    expect_patched("bnb_nf4", "weight.quant_map", 4, 0, 4, "what its quant_state says");
    expect_patched("bnb_nf4", "weight.quant_state.bitsandbytes__nf4", 0, 0, 1, "what its quant_state says");
    expect_patched("bnb_nf4_double", "weight.nested_absmax", 0, 0x7fc00000, 4, "no number up to 2^100");
    expect_patched("ct_mxfp4", "weight_scale", 0, 0xff, 1, "a scale that is no number");
}

/* The down matrix with one number for all codes of its scales. */
static void expect_map(float one, sn_dtype type, const char *refusal) {
    static const char name[] = "model.layers.0.mlp.down_proj.weight.nested_quant_map";
    float map[256], scales[2];
    char *folder = temp_folder();
    sn_model_tensor t;
    const void *rows;
    void *copy = NULL;
    for (int i = 0; i < 256; i++) map[i] = one;
    write_config(folder, "bnb_nf4_double", NULL, NULL);
    write_tensors(folder, "bnb_nf4_double", name, NULL, NULL, &(patch){0, map, sizeof map});
    sn_model *m = open_model(folder);
    REQUIRE(sn_model_find(m, SN_ROLE_FFN_DOWN, 0, &t, &err));
    cr_expect_eq(t.dtype, type);
    if (refusal) {
        sn_err why = {0};
        cr_expect_eq(sn_model_contiguous(&t, &rows, &copy, &why), SN_REFUSED);
        cr_expect(strstr(why.text, refusal), "%s", why.text);
    } else {
        REQUIRE(sn_model_contiguous(&t, &rows, &copy, &err));
        for (size_t i = 0; i < 2; i++)
            memcpy(&scales[i], (const char *)rows + i * sn_dtype_bytes(type), sizeof scales[i]);
        cr_expect_eq(scales[0], scales[1]); /* of the same 256 */
    }
    free(copy);
    sn_model_close(&m);
    temp_folder_remove(&folder);
}

/* Scales keep their codes only where the file's map is the one that kernels know, or was not fetched yet. */
Test(packed, scales_of_another_map_are_its_numbers) {
    expect_map(0.5f, SN_NF4, NULL);
    expect_map(0, SN_NF4_256, "start again");
}

static void expect_config(const char *from, const char *field, const char *value, const char *refusal) {
    char *folder = temp_folder();
    write_config(folder, from, field, value);
    write_tensors(folder, from, NULL, NULL, NULL, NULL);
    expect_answer(folder, value, refusal);
    temp_folder_remove(&folder);
}

Test(packed, what_a_configuration_says_is_read_or_refused) {
    expect_config("gptq4_128", "quant_method", "\"hqq\"", "with hqq: the weights are quantised");
    expect_config("gptq4_128", "quant_method", NULL, "no quant_method");
    expect_config("gptq4_128", "bits", "5", "for 'bits'");
    expect_config("gptq4_128", "bits", "\"4\"", "for 'bits'");
    expect_config("gptq4_128", "group_size", "100", "'group_size'");
    expect_config("gptq4_128", "desc_act", "true", NULL);
    expect_config("gptq4_order", "desc_act", "false", "does not say so (desc_act)");
    expect_config("gptq4_order", "static_groups", "true", "does not say so (desc_act)");
    expect_config("gptq4_whole", "desc_act", "true", NULL);
    expect_config("gptq4_128", "checkpoint_format", "\"marlin\"", "'checkpoint_format' 'marlin'");
    expect_config("gptq4_128", "checkpoint_format", "\"gptq\"", NULL);
    expect_config("gptq4_128", "dynamic", "{\"-:.*\":{}}", "sets 'dynamic'");
    expect_config("gptq4_128", "rotation", "\"hadamard\"", "sets 'rotation', which is not known");
    expect_config("gptq4_128", "rotation", "null", NULL);
    expect_config("awq_128", "version", "\"gemv\"", "'version' 'gemv'");
    expect_config("awq_128", "zero_point", "false", "no 'zero_point'");
    expect_config("ct_int4_128", "format", "\"marlin-24\"", "'format' 'marlin-24'");
    expect_config("ct_int4_128", "transform_config", "{\"r\":1}", "sets 'transform_config'");
    expect_config("ct_int4_128", "config_groups", "{\"g\":{\"weights\":{\"num_bits\":3}}}", "for 'num_bits'");
    expect_config("ct_int4_128", "config_groups", "{\"g\":{\"weights\":{\"num_bits\":4,\"actorder\":\"group\"}}}",
                  NULL);
    expect_config("ct_int4_128", "config_groups", "{\"g\":{\"weights\":{\"num_bits\":4,\"actorder\":\"weight\"}}}",
                  NULL);
    expect_config("bnb_nf4", "load_in_4bit", "false", "sets not one of 'load_in_4bit'");
    expect_config("bnb_nf4", "bnb_4bit_quant_type", "\"fp8\"", "'bnb_4bit_quant_type' 'fp8'");
    expect_config("fp8_e5m2", "fmt", "\"e3m4\"", "in another form than e4m3 or e5m2");
    expect_config("modelopt_fp8", "quant_algo", "\"W4A8_AWQ\"", "'quant_algo' 'W4A8_AWQ'");
}

/* Resident and fetched bytes are counted of all parts, and each of them changes the block's hash. */
Test(packed, every_part_belongs_to_the_block) {
    char *folder = temp_folder();
    sn_hash before, after;
    sn_model_tensor t;
    size_t bytes;
    sn_model *m = open_model(PACKED "gptq4_64_zeros");
    REQUIRE(sn_model_block_hash(m, 0, &before, &err));
    REQUIRE(sn_model_find(m, SN_ROLE_FFN_DOWN, 0, &t, &err));
    cr_assert(sn_model_n_runs(&t) == 1 && sn_model_run(&t, 0, &bytes) == t.data && bytes == 128 * 256 / 2);
    size_t parts = 0, all = bytes;
    for (; sn_model_packed_part(&t, (int)parts, &bytes); parts++) all += bytes;
    cr_assert(parts == 4 && all == 128 * 256 / 2 + 4 * 128 * 2 + 4 * 128 / 2 + 256 * 4 + 128 * 2);
    cr_assert(t.bytes * 100 <= 105 * (128 * 256 / 2 + 4 * 128 * 2 + 4 * 128 / 2));
    sn_model_close(&m);
    write_config(folder, "gptq4_64_zeros", NULL, NULL);
    write_tensors(folder, "gptq4_64_zeros", "model.layers.0.mlp.down_proj.qzeros", NULL, NULL, &(patch){0, "\1", 1});
    m = open_model(folder);
    REQUIRE(sn_model_block_hash(m, 0, &after, &err));
    cr_assert(memcmp(&before, &after, sizeof before));
    sn_model_close(&m);
    temp_folder_remove(&folder);
}

static sn_hash hash_of(const char *folder) {
    sn_hash hash;
    sn_model *m = open_model(folder);
    REQUIRE(sn_model_block_hash(m, 0, &hash, &err));
    sn_model_close(&m);
    return hash;
}

/* Columns 0 and 1, each the first of a group, change places: the same blocks, in another order. */
Test(packed, the_order_of_columns_belongs_to_the_block) {
    char *folder = temp_folder();
    const char *path;
    sn_model_tensor t;
    size_t len, bytes;
    uint64_t codes, groups;
    sn_model *m = open_model(PACKED "gptq4_order");
    REQUIRE(sn_model_find(m, SN_ROLE_FFN_DOWN, 0, &t, &err));
    const void *part = NULL;
    for (int i = 0; sn_model_packed_part(&t, i, &bytes); i++) /* the scales, which come before, have as many bytes */
        if (bytes == t.cols * 4) part = sn_model_packed_part(&t, i, &bytes);
    cr_assert(sn_model_file_of(m, t.data, &path, &codes) && sn_model_file_of(m, part, &path, &groups));
    const size_t rows = t.rows;
    sn_model_close(&m);
    char *file = read_text("gptq4_order", "model.safetensors", &len);
    for (size_t i = 0; i < 2; i++)
        cr_assert(file[groups + 4 * i] < 4 && !file[groups + 4 * i + 1], "no number of a group");
    cr_assert(memcmp(file + groups, file + groups + 4, 4), "both are of one group");
    for (size_t r = 0; r < rows; r++)
        file[codes + 4 * r] = (char)((file[codes + 4 * r] & 15) << 4 | (file[codes + 4 * r] >> 4 & 15));
    for (size_t i = 0; i < 4; i++) {
        char first = file[groups + i];
        file[groups + i] = file[groups + 4 + i];
        file[groups + 4 + i] = first;
    }
    write_config(folder, "gptq4_order", NULL, NULL);
    write_file(folder, "model.safetensors", file, len);
    const sn_hash before = hash_of(PACKED "gptq4_order"), after = hash_of(folder);
    cr_assert(memcmp(&before, &after, sizeof before));
    free(file);
    temp_folder_remove(&folder);
}

/* ---- fetching ---- */

enum { RANGES_MAX = 256 };
typedef struct wanted {
    uint64_t from[RANGES_MAX], end[RANGES_MAX];
    int n;
} wanted;

static sn_status want(void *context, const char *path, uint64_t from, uint64_t bytes, sn_err *err) {
    wanted *w = context;
    (void)path;
    if (w->n == RANGES_MAX) return sn_fail(err, SN_STOP, "too many ranges");
    w->from[w->n] = from;
    w->end[w->n++] = from + bytes;
    return SN_OK;
}

static sn_status fetch(void *context, const char *what, sn_err *err) {
    (void)context, (void)what, (void)err;
    return SN_OK;
}

static bool covers(const wanted *w, uint64_t from, uint64_t end) {
    for (int i = 0; i < w->n; i++)
        if (w->from[i] <= from && end <= w->end[i]) return true;
    return false;
}

Test(packed, a_block_that_is_fetched_comes_with_all_parts) {
    static const char *const names[] = {"gptq4_64_zeros", "ct_int4_64_zeros", "bnb_nf4_double", "modelopt_nvfp4"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        char folder[512];
        wanted w = {.n = 0};
        snprintf(folder, sizeof folder, PACKED "%s", names[f]);
        sn_model *m = open_model(folder);
        sn_model_set_source(m, &(sn_model_source){.context = &w, .want = want, .fetch = fetch});
        REQUIRE(sn_model_need_block(m, 0, &err));
        for (size_t i = 0; i < sn_model_n_tensors(m); i++) {
            const char *name, *type, *path;
            sn_model_tensor t;
            uint64_t from;
            sn_model_tensor_at(m, i, &name, &type, &t);
            cr_assert(sn_model_file_of(m, t.data, &path, &from));
            bool own = !strncmp(name, "model.layers.0.", 15) && !strstr(name, ".weight_shape") &&
                       !strstr(name, ".input_scale");
            cr_expect_eq(covers(&w, from, from + t.bytes), own, "%s of %s", name, names[f]);
        }
        sn_model_close(&m);
    }
}
