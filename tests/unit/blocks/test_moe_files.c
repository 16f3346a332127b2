/* Mixtures of experts in files: one tensor per expert (safetensors) or one for all (GGUF). Files that cannot be run,
 * and adapters that cannot be trained, are refused with an error. test_golden.c, test_bits.c and test_train.c check
 * what the experts compute. */
#include "blocks/adapter.h"
#include "client/tune/params.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

#define GOLDEN SN_FIXTURES "/golden/"

static sn_model *open_model(const char *path) {
    sn_model *m = NULL;
    REQUIRE(sn_model_open(path, &m, &err));
    return m;
}

static void expect_refused(const char *path, const char *error_part) {
    sn_model *m = NULL;
    sn_err why = {0};
    cr_assert_eq(sn_model_open(path, &m, &why), SN_REFUSED, "%s", error_part);
    cr_assert(strstr(why.text, error_part), "'%s' does not say '%s'", why.text, error_part);
}

/* -- GGUF: the golden model's tensors, with its experts in one tensor */

static const struct {
    sn_role role;
    const char *name;
} GGUF_NAMES[] = {{SN_ROLE_TOKEN_EMBEDDING, "token_embd.weight"},
                  {SN_ROLE_OUTPUT_NORM, "output_norm.weight"},
                  {SN_ROLE_OUTPUT, "output.weight"},
                  {SN_ROLE_ATTN_NORM, "attn_norm.weight"},
                  {SN_ROLE_ATTN_Q, "attn_q.weight"},
                  {SN_ROLE_ATTN_K, "attn_k.weight"},
                  {SN_ROLE_ATTN_V, "attn_v.weight"},
                  {SN_ROLE_ATTN_O, "attn_output.weight"},
                  {SN_ROLE_ATTN_Q_NORM, "attn_q_norm.weight"},
                  {SN_ROLE_ATTN_K_NORM, "attn_k_norm.weight"},
                  {SN_ROLE_FFN_NORM, "ffn_norm.weight"},
                  {SN_ROLE_ROUTER, "ffn_gate_inp.weight"},
                  {SN_ROLE_EXPERTS_GATE, "ffn_gate_exps.weight"},
                  {SN_ROLE_EXPERTS_UP, "ffn_up_exps.weight"},
                  {SN_ROLE_EXPERTS_DOWN, "ffn_down_exps.weight"}};

typedef struct gguf {
    sn_buf directory, data;
    uint64_t n;
} gguf;

static void add_tensor(gguf *g, const sn_model *m, sn_role role, int block, const char *base) {
    char name[64];
    sn_model_tensor t;
    int parts = sn_role_n_matrices(sn_model_hparams(m), role);
    bool vector = sn_role_is_vector(role);
    REQUIRE(sn_model_find(m, role, block, &t, &err));
    if (!t.data) return;
    snprintf(name, sizeof name, role < SN_ROLE_FIRST_OF_BLOCK ? "%s" : "blk.%2$d.%1$s", base, block);
    put_gguf_string(&g->directory, name);
    put_u32(&g->directory, vector ? 1 : parts > 1 ? 3 : 2);
    put_u64(&g->directory, t.cols);
    if (!vector) put_u64(&g->directory, t.rows);
    if (parts > 1) put_u64(&g->directory, (uint64_t)parts);
    put_u32(&g->directory, 30); /* BF16 */
    put_u64(&g->directory, g->data.len);
    for (int i = 0; i < parts; i++) {
        REQUIRE(sn_model_find_expert(m, role, block, i, &t, &err));
        put_bytes(&g->data, t.data, t.bytes);
    }
    pad_to(&g->data, 32);
    g->n++;
}

/* Gate and up as one tensor: of each expert all rows of gate, then those of up. */
static void add_gate_up(gguf *g, const sn_model *m, int block) {
    char name[64];
    sn_model_tensor t;
    int experts = sn_model_hparams(m)->n_experts;
    REQUIRE(sn_model_find(m, SN_ROLE_EXPERTS_UP, block, &t, &err));
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", block);
    put_gguf_string(&g->directory, name);
    put_u32(&g->directory, 3);
    put_u64(&g->directory, t.cols);
    put_u64(&g->directory, 2 * t.rows);
    put_u64(&g->directory, (uint64_t)experts);
    put_u32(&g->directory, 30); /* BF16 */
    put_u64(&g->directory, g->data.len);
    for (int i = 0; i < 2 * experts; i++) {
        REQUIRE(sn_model_find_expert(m, i % 2 ? SN_ROLE_EXPERTS_UP : SN_ROLE_EXPERTS_GATE, block, i / 2, &t, &err));
        put_bytes(&g->data, t.data, t.bytes);
    }
    pad_to(&g->data, 32);
    g->n++;
}

/* With these numbers of experts, and of experts per token; -1: the key is absent. */
static char *write_gguf(const char *folder, const sn_model *m, bool fused, int experts, int used, int width) {
    const sn_hparams *h = sn_model_hparams(m);
    gguf g = {0};
    sn_buf b = {0};
    for (size_t i = 0; i < sizeof GGUF_NAMES / sizeof *GGUF_NAMES; i++)
        for (int block = 0; block < (GGUF_NAMES[i].role < SN_ROLE_FIRST_OF_BLOCK ? 1 : h->n_blocks); block++)
            if (fused && GGUF_NAMES[i].role == SN_ROLE_EXPERTS_GATE)
                add_gate_up(&g, m, block);
            else if (!fused || GGUF_NAMES[i].role != SN_ROLE_EXPERTS_UP)
                add_tensor(&g, m, GGUF_NAMES[i].role, block, GGUF_NAMES[i].name);
    put_gguf_header(&b, 3, g.n, (uint64_t)(11 + (experts >= 0) + (used >= 0) + (width >= 0)));
    put_gguf_text(&b, "general.architecture", "qwen3moe");
    put_gguf_u32(&b, "qwen3moe.block_count", (uint32_t)h->n_blocks);
    put_gguf_u32(&b, "qwen3moe.context_length", (uint32_t)h->n_ctx);
    put_gguf_u32(&b, "qwen3moe.embedding_length", (uint32_t)h->n_embd);
    put_gguf_u32(&b, "qwen3moe.feed_forward_length", 96);
    put_gguf_u32(&b, "qwen3moe.attention.head_count", (uint32_t)h->n_heads);
    put_gguf_u32(&b, "qwen3moe.attention.head_count_kv", (uint32_t)h->n_kv_heads);
    put_gguf_u32(&b, "qwen3moe.attention.key_length", (uint32_t)h->head_dim);
    put_gguf_u32(&b, "qwen3moe.attention.value_length", (uint32_t)h->head_dim);
    put_gguf_f32(&b, "qwen3moe.attention.layer_norm_rms_epsilon", h->norm_eps);
    put_gguf_f32(&b, "qwen3moe.rope.freq_base", 10000);
    if (experts >= 0) put_gguf_u32(&b, "qwen3moe.expert_count", (uint32_t)experts);
    if (used >= 0) put_gguf_u32(&b, "qwen3moe.expert_used_count", (uint32_t)used);
    if (width >= 0) put_gguf_u32(&b, "qwen3moe.expert_feed_forward_length", (uint32_t)width);
    put_bytes(&b, g.directory.data, g.directory.len);
    pad_to(&b, 32);
    put_bytes(&b, g.data.data, g.data.len);
    write_file(folder, "model.gguf", b.data, b.len);
    sn_buf_fini(&b);
    sn_buf_fini(&g.directory);
    sn_buf_fini(&g.data);
    return temp_path(folder, "model.gguf");
}

static void expect_same_blocks(bool fused) {
    char *folder = temp_folder();
    sn_model *m = open_model(GOLDEN "qwen3_moe");
    const sn_hparams *h = sn_model_hparams(m);
    cr_assert(h->n_experts == 6 && h->n_experts_used == 2 && h->n_ff == 48 && h->router_scoring == SN_ROUTER_SOFTMAX);
    char *path = write_gguf(folder, m, fused, 6, 2, 48);
    sn_model *other = open_model(path);
    cr_assert_str_eq(sn_model_hparams(other)->family, "qwen3_moe");
    sn_hash a, b;
    for (int block = 0; block < h->n_blocks; block++) {
        REQUIRE(sn_model_block_hash(m, block, &a, &err));
        REQUIRE(sn_model_block_hash(other, block, &b, &err));
        cr_assert(!memcmp(a.bytes, b.bytes, SN_HASH_SIZE), "block %d", block);
    }
    a = sn_model_id(m), b = sn_model_id(other);
    cr_assert(!memcmp(a.bytes, b.bytes, SN_HASH_SIZE), "the model's id differs");
    sn_model_tensor first, last;
    REQUIRE(sn_model_find_expert(other, SN_ROLE_EXPERTS_DOWN, 3, 0, &first, &err));
    REQUIRE(sn_model_find_expert(other, SN_ROLE_EXPERTS_DOWN, 3, 5, &last, &err));
    cr_assert(first.tie != last.tie && first.rows == 64 && last.cols == 48);
    cr_assert_eq(sn_model_find_expert(other, SN_ROLE_EXPERTS_DOWN, 3, 6, &last, NULL), SN_REFUSED);
    cr_assert_eq(sn_model_find_expert(other, SN_ROLE_ROUTER, 3, 1, &last, NULL), SN_REFUSED);
    sn_model_close(&other);
    sn_model_close(&m);
    free(path);
    temp_folder_remove(&folder);
}

Test(moe_files, gguf_file_and_folder_give_the_same_blocks) { expect_same_blocks(false); }

Test(moe_files, experts_whose_gate_and_up_are_one_tensor_give_the_same_blocks) { expect_same_blocks(true); }

Test(moe_files, refuses_an_inconsistent_gguf_file) {
    static const struct {
        int experts, used, width;
        const char *error_part;
    } wrong[] = {{-1, 2, 48, "expert_count"},
                 {6, -1, 48, "expert_used_count"},
                 {6, 2, -1, "expert_feed_forward_length"},
                 {6, 7, 48, "experts for a token is 7"},
                 {6, 0, 48, "experts for a token is 0"},
                 {2000, 2, 48, "number of experts is 2000"},
                 {5, 2, 48, "ffn_gate_inp.weight"},
                 {6, 2, 24, "ffn_gate_exps.weight"}};
    char *folder = temp_folder();
    sn_model *m = open_model(GOLDEN "qwen3_moe");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *path = write_gguf(folder, m, false, wrong[i].experts, wrong[i].used, wrong[i].width);
        expect_refused(path, wrong[i].error_part);
        free(path);
    }
    sn_model_close(&m);
    temp_folder_remove(&folder);
}

/* -- folders */

/* Writes the golden folder again; the tensor `odd` is left out (type SN_DTYPE_COUNT), or gets this type. */
static char *write_folder(const char *golden, const char *odd, sn_dtype type) {
    char *folder = temp_folder(), *path = temp_path(folder, "model.safetensors"), from[256];
    sn_safetensors *file = NULL;
    snprintf(from, sizeof from, "%s/model.safetensors", golden);
    REQUIRE(sn_safetensors_open(from, &file, &err));
    size_t n = sn_safetensors_n_tensors(file), n_entries = 0;
    sn_safetensors_entry *entries = calloc(n, sizeof *entries);
    for (size_t i = 0; i < n; i++) {
        const sn_safetensors_tensor *t = sn_safetensors_tensor_at(file, i);
        bool is_odd = !strcmp(t->name, odd);
        if (is_odd && type == SN_DTYPE_COUNT) continue;
        entries[n_entries] = (sn_safetensors_entry){t->name, is_odd ? type : t->dtype, t->n_dims, {0}, t->data};
        memcpy(entries[n_entries++].dims, t->dims, (size_t)t->n_dims * sizeof *t->dims);
    }
    REQUIRE(sn_safetensors_write(path, entries, n_entries, &err));
    copy_file(golden, folder, "config.json");
    sn_safetensors_close(&file);
    free(entries);
    free(path);
    return folder;
}

Test(moe_files, a_missing_expert_makes_its_block_missing) {
    static const char name[] = "model.layers.2.block_sparse_moe.experts.3.w2.weight";
    char *folder = write_folder(GOLDEN "mixtral", name, SN_DTYPE_COUNT);
    sn_model *m = open_model(folder);
    sn_model_tensor t;
    sn_err why;
    cr_assert(sn_model_has_block(m, 1) && !sn_model_has_block(m, 2));
    cr_assert_eq(sn_model_find_expert(m, SN_ROLE_EXPERTS_DOWN, 2, 2, &t, &why), SN_OK);
    cr_assert_eq(sn_model_find_expert(m, SN_ROLE_EXPERTS_DOWN, 2, 3, &t, &why), SN_REFUSED);
    cr_assert(strstr(why.text, name), "%s", why.text);
    sn_model_close(&m);
    temp_folder_remove(&folder);
}

Test(moe_files, refuses_experts_of_different_types) {
    char *folder = write_folder(GOLDEN "mixtral", "model.layers.1.block_sparse_moe.experts.2.w3.weight", SN_F16);
    sn_model *m = open_model(folder);
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_err why = {0};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, NULL, &device, &err));
    REQUIRE(sn_span_load(m, device, 0, 1, NULL, NULL, &span, &err));
    sn_span_free(&span);
    cr_assert_eq(sn_span_load(m, device, 0, 2, NULL, NULL, &span, &why), SN_REFUSED);
    cr_assert(strstr(why.text, "block 1, EXPERTS_UP: the experts are of different types, BF16 and F16"), "%s",
              why.text);
    sn_device_close(&device);
    sn_model_close(&m);
    temp_folder_remove(&folder);
}

/* -- memory: every expert is counted */

Test(moe_files, counts_every_expert) {
    sn_model *m = open_model(GOLDEN "mixtral");
    sn_device *device = NULL;
    sn_block_cost cost;
    size_t scratch;
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, NULL, &device, &err));
    sn_span *span = NULL;
    REQUIRE(sn_span_load(m, device, 0, 1, NULL, NULL, &span, &err));
    REQUIRE(sn_span_costs(m, device, &(sn_span_part){0, 1, {0}}, 0, &cost, &scratch,
                          &err));               /* without what the device has for itself by now */
    const size_t experts = 4 * 3 * 96 * 64 * 2; /* experts, matrices, elements, bytes */
    cr_assert(cost.weights > experts && cost.weights < experts + 100000, "%zu bytes", cost.weights);
    cr_assert_eq(sn_span_bytes(span), cost.weights + scratch);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&m);
}

/* -- adapters */

static void expect_adapter(sn_span *span, const char *target, size_t inputs, size_t outputs, const char *refusal) {
    static const float zeros[256];
    char names[2][32];
    sn_err why = {0};
    sn_adapter *adapter = NULL;
    sn_buf image;
    for (int i = 0; i < 2; i++) snprintf(names[i], sizeof names[i], "lora_%c.0.%s", "ab"[i], target);
    const sn_safetensors_entry entries[] = {{names[0], SN_F32, 2, {1, inputs}, zeros},
                                            {names[1], SN_F32, 2, {outputs, 1}, zeros}};
    sn_buf_init(&image, 1 << 20);
    REQUIRE(sn_safetensors_serialize(entries, 2, &image, &err));
    sn_status status = sn_adapter_load(span, image.data, image.len, &adapter, &why);
    cr_assert_eq(status, refusal ? SN_REFUSED : SN_OK, "%s: %s", target, why.text);
    if (refusal) cr_assert(strstr(why.text, refusal), "%s", why.text);
    sn_adapter_free(&adapter);
    sn_buf_fini(&image);
}

Test(moe_files, takes_adapters_of_attention_only) {
    sn_model *m = open_model(GOLDEN "mixtral");
    sn_device *device = NULL;
    sn_span *span = NULL;
    sn_params *params = NULL;
    sn_err why = {0};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, NULL, &device, &err));
    REQUIRE(sn_span_load(m, device, 0, 1, NULL, NULL, &span, &err));
    expect_adapter(span, "q", 64, 64, NULL);
    expect_adapter(span, "o", 64, 64, NULL);
    expect_adapter(span, "gate", 64, 96, "mixture of experts");
    expect_adapter(span, "down", 96, 64, "mixture of experts");
    sn_params_shape shape = {.method = SN_METHOD_LORA, .rank = 2, .alpha = 4, .target[SN_ROLE_ATTN_Q] = true};
    REQUIRE(sn_params_new(sn_model_hparams(m), &shape, &params, &err));
    sn_params_free(&params);
    shape.target[SN_ROLE_FFN_UP] = true;
    cr_assert_eq(sn_params_new(sn_model_hparams(m), &shape, &params, &why), SN_REFUSED);
    cr_assert(strstr(why.text, "--targets of q, k, v and o"), "%s", why.text);
    sn_span_free(&span);
    sn_device_close(&device);
    sn_model_close(&m);
}

/* -- all experts in one tensor, gate and up together */

static const uint8_t *expert_bytes(const sn_safetensors *file, int block, int expert, const char *matrix, size_t *n) {
    char name[128];
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", block, expert, matrix);
    const sn_safetensors_tensor *t = sn_safetensors_find(file, name);
    *n = t->bytes;
    return t->data;
}

/* The golden model's folder with its experts stacked as the hub has them. */
static char *stacked_folder(const char *golden, int n_experts) {
    enum { TENSORS = 256, BLOCKS = 4 };
    char *folder = temp_folder(), *path = temp_path(golden, "model.safetensors");
    sn_safetensors *file = NULL;
    sn_safetensors_entry entries[TENSORS];
    char names[BLOCKS][2][128];
    sn_buf stacks[BLOCKS][2];
    size_t n = 0, bytes;
    REQUIRE(sn_safetensors_open(path, &file, &err));
    for (size_t i = 0; i < sn_safetensors_n_tensors(file); i++) {
        const sn_safetensors_tensor *t = sn_safetensors_tensor_at(file, i);
        if (strstr(t->name, ".experts.")) continue;
        entries[n] = (sn_safetensors_entry){t->name, t->dtype, t->n_dims, {0}, t->data};
        memcpy(entries[n++].dims, t->dims, sizeof t->dims);
    }
    for (int b = 0; b < BLOCKS; b++)
        for (int down = 0; down < 2; down++) {
            sn_buf *stack = &stacks[b][down];
            snprintf(names[b][down], sizeof names[b][down], "model.layers.%d.mlp.experts.%s", b,
                     down ? "down_proj" : "gate_up_proj");
            sn_buf_init(stack, 1 << 20);
            for (int e = 0; e < n_experts; e++)
                for (int part = 0; part < 2 - down; part++) {
                    const char *matrix = down ? "down_proj" : part ? "up_proj" : "gate_proj";
                    const uint8_t *data = expert_bytes(file, b, e, matrix, &bytes);
                    put_bytes(stack, data, bytes);
                }
            size_t rows = down ? 64 : 2 * 48, cols = down ? 48 : 64;
            entries[n++] =
                (sn_safetensors_entry){names[b][down], SN_BF16, 3, {(size_t)n_experts, rows, cols}, stack->data};
        }
    char *out = temp_path(folder, "model.safetensors");
    REQUIRE(sn_safetensors_write(out, entries, n, &err));
    copy_file(golden, folder, "config.json");
    for (int b = 0; b < BLOCKS; b++) sn_buf_fini(&stacks[b][0]), sn_buf_fini(&stacks[b][1]);
    sn_safetensors_close(&file);
    free(path);
    free(out);
    return folder;
}

Test(moe_files, experts_stacked_as_the_hub_has_them_are_the_same_blocks) {
    char *folder = stacked_folder(GOLDEN "qwen3_5_moe", 6);
    sn_model *one = open_model(GOLDEN "qwen3_5_moe"), *other = open_model(folder);
    sn_hash a, b;
    for (int block = 0; block < 4; block++) {
        REQUIRE(sn_model_block_hash(one, block, &a, &err));
        REQUIRE(sn_model_block_hash(other, block, &b, &err));
        cr_expect(!memcmp(&a, &b, sizeof a), "block %d differs", block);
    }
    sn_model_close(&one);
    sn_model_close(&other);
    temp_folder_remove(&folder);
}
