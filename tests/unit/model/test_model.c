#include "model/model.h"
#include "model/safetensors.h"
#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/mman.h>
#include <fcntl.h>

#define GOLDEN SN_FIXTURES "/golden/"

static sn_model *open_model(const char *path) {
    sn_model *m = NULL;
    sn_err err = {0};
    cr_assert_eq(sn_model_open(path, &m, &err), SN_OK, "%s", err.text);
    return m;
}

static void expect_path_refused(const char *path, const char *error_part) {
    sn_model *m = NULL;
    sn_err err = {0};
    cr_assert_eq(sn_model_open(path, &m, &err), SN_REFUSED, "%s", path);
    cr_assert(strstr(err.text, error_part), "'%s' does not say '%s'", err.text, error_part);
    cr_assert_null(m);
}

/* -- a GGUF model built by hand: one block, n_embd 32, 2 heads over 1, n_ff 32, n_vocab 8, tied embeddings */

typedef struct gguf_options {
    const char *architecture; /* NULL: llama */
    const char *without;      /* a tensor to leave out */
    const char *wide;         /* a tensor with twice the columns */
    const char *more;         /* an additional tensor, F32 of 8 elements */
    const char *typed;        /* a tensor of `type`, a number of GGUF */
    uint32_t type;
    uint32_t n_blocks;       /* 0: 1 */
    const char *key;         /* an additional metadata key, prefixed with the architecture */
    uint32_t value;          /* its value, or */
    const char *text;        /* its text, or */
    float number;            /* its number, if not 0 */
    const float *rope_freqs; /* [8] */
    bool bias, o_bias;
    bool yarn; /* yarn rope scaling with factor 4; `key` must be its type */
} gguf_options;

typedef struct gguf_directory {
    sn_buf entries;
    uint64_t n, at;
    const gguf_options *options;
} gguf_directory;

static void add_tensor(gguf_directory *d, const char *name, uint64_t cols, uint64_t rows) {
    if (d->options->without && !strcmp(d->options->without, name)) return;
    if (d->options->wide && !strcmp(d->options->wide, name)) cols *= 2;
    const bool typed = d->options->typed && !strcmp(d->options->typed, name);
    put_gguf_tensor(&d->entries, name, cols, rows, typed ? d->options->type : 0, d->at);
    d->n++;
    d->at += sn_round_up(cols * (rows ? rows : 1) * (typed ? 8 : 4), 32);
}

static void add_tensors(gguf_directory *d) {
    /* the first tensor, so that its data is at the beginning */
    if (d->options->rope_freqs) add_tensor(d, "rope_freqs.weight", 8, 0);
    add_tensor(d, "token_embd.weight", 32, 8);
    add_tensor(d, "output_norm.weight", 32, 0);
    add_tensor(d, "blk.0.attn_norm.weight", 32, 0);
    add_tensor(d, "blk.0.attn_q.weight", 32, 32);
    add_tensor(d, "blk.0.attn_k.weight", 32, 16);
    add_tensor(d, "blk.0.attn_v.weight", 32, 16);
    add_tensor(d, "blk.0.attn_output.weight", 32, 32);
    add_tensor(d, "blk.0.ffn_norm.weight", 32, 0);
    add_tensor(d, "blk.0.ffn_gate.weight", 32, 32);
    add_tensor(d, "blk.0.ffn_up.weight", 32, 32);
    add_tensor(d, "blk.0.ffn_down.weight", 32, 32);
    if (d->options->bias) {
        add_tensor(d, "blk.0.attn_q.bias", 32, 0);
        add_tensor(d, "blk.0.attn_k.bias", 16, 0);
        add_tensor(d, "blk.0.attn_v.bias", 16, 0);
    }
    if (d->options->o_bias) add_tensor(d, "blk.0.attn_output.bias", 32, 0);
    if (d->options->more) add_tensor(d, d->options->more, 8, 0);
}

static char *key_of(const char *architecture, const char *key, char out[128]) {
    snprintf(out, 128, "%s.%s", architecture, key);
    return out;
}

/* 9 values, and the optional ones. */
static void put_values(sn_buf *b, const gguf_options *o) {
    const char *arch = o->architecture ? o->architecture : "llama";
    char key[128];
    put_gguf_text(b, "general.architecture", arch);
    put_gguf_u32(b, key_of(arch, "block_count", key), o->n_blocks ? o->n_blocks : 1);
    put_gguf_u32(b, key_of(arch, "context_length", key), 64);
    put_gguf_u32(b, key_of(arch, "embedding_length", key), 32);
    put_gguf_u32(b, key_of(arch, "feed_forward_length", key), 32);
    put_gguf_u32(b, key_of(arch, "attention.head_count", key), 2);
    put_gguf_u32(b, key_of(arch, "attention.head_count_kv", key), 1);
    put_gguf_f32(b, key_of(arch, "attention.layer_norm_rms_epsilon", key), 1e-5f);
    put_gguf_f32(b, key_of(arch, "rope.freq_base", key), 10000);
    if (!o->key) return;
    if (o->yarn) put_gguf_f32(b, key_of(arch, "rope.scaling.factor", key), 4);
    if (o->text)
        put_gguf_text(b, key_of(arch, o->key, key), o->text);
    else if (o->number != 0)
        put_gguf_f32(b, key_of(arch, o->key, key), o->number);
    else
        put_gguf_u32(b, key_of(arch, o->key, key), o->value);
}

/* Writes "model.gguf" to the folder and returns its path. */
static char *gguf_model(const char *folder, const gguf_options *o) {
    gguf_directory d = {.options = o};
    sn_buf b = {0};
    add_tensors(&d);
    put_gguf_header(&b, 3, d.n, o->yarn ? 11 : o->key ? 10 : 9);
    put_values(&b, o);
    put_bytes(&b, d.entries.data, d.entries.len);
    pad_to(&b, 32);
    if (o->rope_freqs) put_bytes(&b, o->rope_freqs, 32);
    put_zeros(&b, d.at - (o->rope_freqs ? 32 : 0));
    write_file(folder, "model.gguf", b.data, b.len);
    sn_buf_fini(&b);
    sn_buf_fini(&d.entries);
    return temp_path(folder, "model.gguf");
}

static sn_hparams expect_gguf_accepted(gguf_options options) {
    char *folder = temp_folder(), *path = gguf_model(folder, &options);
    sn_model *m = open_model(path);
    sn_hparams h = *sn_model_hparams(m);
    sn_model_close(&m);
    free(path);
    temp_folder_remove(&folder);
    return h;
}

static void expect_gguf_refused(gguf_options options, const char *error_part) {
    char *folder = temp_folder(), *path = gguf_model(folder, &options);
    expect_path_refused(path, error_part);
    free(path);
    temp_folder_remove(&folder);
}

Test(model, opens_a_gguf_file) {
    gguf_options none = {0};
    char *folder = temp_folder(), *path = gguf_model(folder, &none);
    sn_model *m = open_model(path);
    const sn_hparams *h = sn_model_hparams(m);
    sn_model_tensor output, embedding;
    cr_assert_str_eq(sn_model_container(m), "GGUF v3");
    cr_assert_str_eq(h->family, "llama");
    cr_assert_str_eq(h->name, "model", "named after the file");
    cr_assert(h->n_blocks == 1 && h->n_embd == 32 && h->n_heads == 2 && h->n_kv_heads == 1 && h->head_dim == 16);
    cr_assert(h->n_ff == 32 && h->n_vocab == 8 && h->n_ctx == 64 && h->rope_dim == 16);
    cr_assert(h->rope_style == SN_ROPE_INTERLEAVED && h->tied_output && !h->qkv_bias && !h->qk_norm);
    cr_assert_eq(sn_model_find(m, SN_ROLE_OUTPUT, 0, &output, NULL), SN_OK);
    cr_assert_eq(sn_model_find(m, SN_ROLE_TOKEN_EMBEDDING, 0, &embedding, NULL), SN_OK);
    cr_assert(output.data && output.data == embedding.data && output.rows == 8 && output.cols == 32);
    cr_assert(sn_model_has_block(m, 0) && !sn_model_has_block(m, 1) && !sn_model_has_block(m, -1));
    sn_model_close(&m);
    sn_model_close(&m);
    free(path);
    temp_folder_remove(&folder);
}

Test(model, sets_the_traits_of_each_gguf_architecture) {
    sn_hparams h = expect_gguf_accepted((gguf_options){.bias = true});
    cr_assert(h.qkv_bias && !h.o_bias && h.rope_style == SN_ROPE_INTERLEAVED);
    cr_assert(expect_gguf_accepted((gguf_options){.bias = true, .o_bias = true}).o_bias);
    h = expect_gguf_accepted((gguf_options){.architecture = "qwen2", .bias = true});
    cr_assert(h.qkv_bias && h.rope_style == SN_ROPE_NEOX);
    h = expect_gguf_accepted((gguf_options){.architecture = "qwen3"});
    cr_assert(h.qk_norm && !h.qkv_bias && h.rope_style == SN_ROPE_NEOX);
    expect_gguf_refused((gguf_options){.architecture = "qwen3", .bias = true, .key = "expert_count", .value = 8},
                        "experts");
    expect_gguf_refused((gguf_options){.architecture = "gpt2"}, "'gpt2' cannot be run; these can: llama, qwen2, qwen3");
}

/* F64 and integers: the file opens, and what they stand for is said where weights must be. NVFP4 has scales beside some
 * matrices, which are no part of what is known. */
Test(model, refuses_types_that_are_no_weights_where_weights_must_be) {
    for (uint32_t type = 24; type <= 28; type++) {
        expect_gguf_refused((gguf_options){.typed = "blk.0.attn_q.weight", .type = type},
                            "'blk.0.attn_q.weight' is of a type that its part of the model cannot have");
        expect_gguf_refused((gguf_options){.typed = "output_norm.weight", .type = type}, "cannot have");
    }
    expect_gguf_refused((gguf_options){.more = "blk.0.attn_q.scale"}, "'blk.0.attn_q.scale'");
}

Test(model, reads_gguf_metadata_that_has_a_default) {
    cr_assert_eq(expect_gguf_accepted((gguf_options){.key = "attention.sliding_window", .value = 16}).window, 16);
    cr_assert_eq(expect_gguf_accepted((gguf_options){.key = "rope.dimension_count", .value = 8}).rope_dim, 8);
    cr_assert_eq(expect_gguf_accepted((gguf_options){.key = "rope.scaling.type", .text = "none"}).rope_freq[0], 1);
    cr_assert_eq(expect_gguf_accepted((gguf_options){.key = "rope.scale_linear", .number = 4}).rope_freq[0], 0.25f);
}

Test(model, divides_rope_frequencies_by_the_files_factors) {
    const float factors[8] = {1, 1, 2, 4, 8, 8, 8, 8};
    sn_hparams plain = expect_gguf_accepted((gguf_options){0}),
               divided = expect_gguf_accepted((gguf_options){.rope_freqs = factors});
    for (int i = 0; i < 8; i++) cr_assert_eq(divided.rope_freq[i], plain.rope_freq[i] / factors[i]);
    const float wrong[8] = {1, 1, 0, 4, 8, 8, 8, 8}, endless[8] = {1, 1, 1, INFINITY, 1, 1, 1, 1};
    expect_gguf_refused((gguf_options){.rope_freqs = wrong}, "rope factor 2 is 0");
    expect_gguf_refused((gguf_options){.rope_freqs = endless}, "rope factor 3 is inf");
    expect_gguf_refused((gguf_options){.rope_freqs = factors, .key = "rope.dimension_count", .value = 8},
                        "must be 4 numbers");
}

/* The numbers are those of test_config.c, with the same context. */
Test(model, rotates_by_yarn_in_a_gguf_file) {
    const double want[] = {1.0, 0.237170825, 0.05, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05};
    sn_hparams h = expect_gguf_accepted((gguf_options){.key = "rope.scaling.type", .text = "yarn", .yarn = true});
    cr_assert_float_eq((double)h.rope_scale[0], 1.138629436111989, 1e-7, "%.9g", (double)h.rope_scale[0]);
    for (int i = 0; i < 8; i++) cr_assert_float_eq((double)h.rope_freq[i], want[i], want[i] * 1e-6, "%d", i);
    expect_gguf_refused((gguf_options){.key = "rope.scaling.yarn_attn_factor", .number = 2},
                        "is not known and may change");
}

/* Before it reads what a file says of each block. */
Test(model, refuses_gguf_files_of_more_blocks_than_it_has_room_for) {
    static const char *const architectures[] = {"llama", "gemma4", "glm-dsa", "nemotron_h"};
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        expect_gguf_refused((gguf_options){.architecture = architectures[i], .n_blocks = SN_BLOCKS_MAX + 1},
                            "number of blocks is 1025; it must lie from 1 to 1024");
        expect_gguf_refused((gguf_options){.architecture = architectures[i], .n_blocks = 1u << 30},
                            "number of blocks is 1073741824");
    }
}

Test(model, refuses_gguf_metadata_that_changes_the_mathematics) {
    expect_gguf_refused((gguf_options){.key = "rope.scaling.type", .text = "longrope"},
                        "rope scaling of type 'longrope'");
    expect_gguf_refused((gguf_options){.key = "logit_scale", .number = 0.5f}, "'llama.logit_scale' is not known");
    expect_gguf_refused((gguf_options){.key = "attention.value_length", .value = 8}, "keys of 16 and values of 8");
    expect_gguf_refused((gguf_options){.key = "attention.sliding_window", .text = "wide"},
                        "a string where a whole number");
    expect_gguf_refused((gguf_options){.key = "attention.key_length", .value = 0x7ffffffe}, "width of a head");
    expect_gguf_refused((gguf_options){.key = "expert_count", .value = 8}, "expert_used_count");
    expect_gguf_refused((gguf_options){.architecture = "qwen2", .key = "expert_used_count", .value = 2, .bias = true},
                        "mixtures of experts");
    expect_gguf_refused((gguf_options){.key = "attention.sliding_window_pattern", .value = 6},
                        "is not known and may change");
    expect_gguf_refused((gguf_options){.architecture = "phi3", .key = "rope.freq_base_swa", .number = 1e4f},
                        "is not known and may");
    expect_gguf_refused((gguf_options){.architecture = "gemma3", .key = "attention.sliding_window_pattern", .value = 0},
                        "is 0");
    expect_gguf_refused((gguf_options){.architecture = "gemma3", .key = "final_logit_softcapping", .number = 30},
                        "is not known and may");
    expect_gguf_refused((gguf_options){.architecture = "granite", .key = "attention.scale", .number = NAN},
                        "its scores of attention by nan");
    expect_gguf_refused((gguf_options){.architecture = "granite", .key = "embedding_scale", .number = INFINITY},
                        "its embeddings by inf");
}

Test(model, refuses_tensors_that_contradict_the_hyperparameters) {
    expect_gguf_refused((gguf_options){.wide = "blk.0.attn_q.weight"},
                        "'blk.0.attn_q.weight' has 2 dimensions, (32, 64), where");
    expect_gguf_refused((gguf_options){.wide = "output_norm.weight"}, "'output_norm.weight'");
    expect_gguf_refused((gguf_options){.key = "vocab_size", .value = 9}, "'token_embd.weight'");
    expect_gguf_refused((gguf_options){.architecture = "qwen2", .bias = true, .more = "blk.0.attn_output.bias"},
                        "'blk.0.attn_output.bias' has no part");
    expect_gguf_refused((gguf_options){.more = "blk.1.attn_norm.weight"}, "'blk.1.attn_norm.weight' has no part");
}

Test(model, names_the_missing_tensor_of_a_block) {
    gguf_options options = {.without = "blk.0.ffn_up.weight"};
    char *folder = temp_folder(), *path = gguf_model(folder, &options);
    sn_model *m = open_model(path);
    sn_model_tensor tensor;
    sn_hash hash;
    sn_err err;
    cr_assert(!sn_model_has_block(m, 0));
    cr_assert_eq(sn_model_find(m, SN_ROLE_FFN_UP, 0, &tensor, &err), SN_REFUSED);
    cr_assert_str_eq(err.text, "tensor 'blk.0.ffn_up.weight' is not in the model's files");
    cr_assert_null(tensor.data);
    cr_assert_eq(sn_model_block_hash(m, 0, &hash, &err), SN_REFUSED);
    cr_assert_eq(sn_model_find(m, SN_ROLE_FFN_DOWN, 1, &tensor, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "none of number 1"));
    cr_assert_eq(sn_model_find(m, SN_ROLE_ATTN_Q_NORM, 0, &tensor, &err), SN_OK, "the family has no such tensor");
    cr_assert_null(tensor.data);
    sn_model_close(&m);
    free(path);
    temp_folder_remove(&folder);
}

/* -- folders */

Test(model, opens_folders_of_each_family) {
    const struct {
        const char *path, *family;
        bool tied, bias, norm;
        int window, head_dim;
        sn_dtype dtype;
    } models[] = {{GOLDEN "llama", "llama", true, false, false, 0, 16, SN_F32},
                  {GOLDEN "llama3_rope", "llama", false, false, false, 0, 16, SN_F16},
                  {GOLDEN "mistral", "mistral", false, false, false, 8, 16, SN_BF16},
                  {GOLDEN "qwen2", "qwen2", true, true, false, 0, 16, SN_BF16},
                  {GOLDEN "qwen3", "qwen3", false, false, true, 0, 24, SN_BF16},
                  {GOLDEN "phi3", "phi3", false, false, false, 0, 16, SN_BF16},
                  {GOLDEN "olmo2", "olmo2", false, false, true, 0, 16, SN_BF16},
                  {GOLDEN "gemma3", "gemma3_text", true, false, true, 8, 16, SN_BF16}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        sn_model *m = open_model(models[i].path);
        const sn_hparams *h = sn_model_hparams(m);
        sn_model_tensor t;
        cr_assert_str_eq(h->family, models[i].family);
        cr_assert_str_eq(sn_model_container(m), "safetensors");
        cr_assert(h->n_blocks == 4 && h->n_embd == 64 && h->n_vocab == 320 && h->rope_style == SN_ROPE_NEOX);
        cr_assert(h->tied_output == models[i].tied && h->qkv_bias == models[i].bias && h->qk_norm == models[i].norm);
        cr_assert(h->window == models[i].window && h->head_dim == models[i].head_dim);
        for (int block = 0; block < 4; block++) cr_assert(sn_model_has_block(m, block));
        const sn_role ends[] = {SN_ROLE_TOKEN_EMBEDDING, SN_ROLE_OUTPUT_NORM, SN_ROLE_OUTPUT};
        for (int role = 0; role < 3; role++) {
            cr_assert_eq(sn_model_find(m, ends[role], 0, &t, NULL), SN_OK);
            cr_assert(t.data && t.dtype == models[i].dtype);
        }
        cr_assert_eq(sn_model_find(m, SN_ROLE_ATTN_O, 3, &t, NULL), SN_OK);
        cr_assert(t.rows == 64 && t.cols == (size_t)(4 * h->head_dim));
        cr_assert_eq(sn_model_find(m, SN_ROLE_ATTN_K_BIAS, 3, &t, NULL), SN_OK);
        cr_assert_eq(t.data != NULL, models[i].bias);
        sn_model_close(&m);
    }
}

Test(model, refuses_paths_without_a_model) {
    char *folder = temp_folder(), *path = temp_path(folder, "file");
    expect_path_refused(SN_FIXTURES "/nothing", "nothing cannot be opened");
    expect_path_refused(folder, "has no config.json");
    write_file(folder, "file", "", 0);
    expect_path_refused(path, "file is empty");
    write_file(folder, "file", "a text as bytes", 15);
    expect_path_refused(path, "not a GGUF file");
    write_file(folder, "config.json", "{", 1);
    expect_path_refused(folder, "config.json: it is not valid JSON");
    copy_file(GOLDEN "llama", folder, "config.json");
    expect_path_refused(folder, "has neither model.safetensors");
    write_file(folder, "model.safetensors", "", 0);
    expect_path_refused(folder, "model.safetensors is empty");
    expect_path_refused(GOLDEN "llama/model.safetensors", "give the folder");
    copy_file(GOLDEN "qwen3", folder, "model.safetensors");
    expect_path_refused(folder, "tensor '");
    free(path);
    temp_folder_remove(&folder);
}

Test(model, opens_some_shards_and_reports_what_is_missing) {
    char *folder = temp_folder();
    copy_file(GOLDEN "qwen2", folder, "config.json");
    copy_file(GOLDEN "qwen2", folder, "model.safetensors.index.json");
    copy_file(GOLDEN "qwen2", folder, "model-00001-of-00003.safetensors");
    sn_model *m = open_model(folder);
    sn_model_tensor t;
    cr_assert(!sn_model_has_block(m, 0));
    cr_assert_eq(sn_model_find(m, SN_ROLE_TOKEN_EMBEDDING, 0, &t, NULL), SN_OK);
    sn_err err = {0};
    cr_assert_eq(sn_model_find(m, SN_ROLE_OUTPUT_NORM, 0, &t, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "the folder lacks model-00003-of-00003.safetensors"), "%s", err.text);
    cr_assert_eq(sn_model_find(m, SN_ROLE_FFN_DOWN, 0, &t, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "the folder lacks model-00002-of-00003.safetensors"), "%s", err.text);
    sn_model_close(&m);
    temp_folder_remove(&folder);
}

/* tie_word_embeddings beside a head of its own, as the reference has it. */
Test(model, takes_a_head_that_the_files_have) {
    char *folder = temp_folder();
    json_error_t wrong;
    json_t *config = json_load_file(GOLDEN "mistral/config.json", 0, &wrong);
    cr_assert_not_null(config);
    json_object_set_new(config, "tie_word_embeddings", json_true());
    char *text = json_dumps(config, 0);
    write_file(folder, "config.json", text, strlen(text));
    copy_file(GOLDEN "mistral", folder, "model.safetensors");
    sn_model *m = open_model(folder), *own = open_model(GOLDEN "mistral");
    sn_model_tensor a, b;
    cr_assert(!sn_model_hparams(m)->tied_output);
    cr_assert(!sn_model_find(m, SN_ROLE_OUTPUT, 0, &a, NULL) && !sn_model_find(own, SN_ROLE_OUTPUT, 0, &b, NULL));
    cr_assert(a.bytes == b.bytes && !memcmp(a.data, b.data, a.bytes));
    cr_assert(!sn_model_find(m, SN_ROLE_TOKEN_EMBEDDING, 0, &a, NULL) && memcmp(a.data, b.data, a.bytes));
    sn_model_close(&m);
    sn_model_close(&own);
    free(text);
    json_decref(config);
    temp_folder_remove(&folder);
}

Test(model, names_pointers_and_pages_that_are_no_model) {
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n",
                      page[] = "\n<!DOCTYPE html><html><head><title>Log in</title></head></html>";
    for (int i = 0; i < 2; i++) {
        const char *text = i ? page : lfs, *sentence = i ? "a page of a website" : "git LFS's pointer";
        char *folder = temp_folder(), *path = temp_path(folder, "model.gguf");
        write_file(folder, "model.gguf", text, strlen(text));
        expect_path_refused(path, sentence);
        write_file(folder, "config.json", text, strlen(text));
        expect_path_refused(folder, sentence);
        copy_file(GOLDEN "llama", folder, "config.json");
        write_file(folder, "model.safetensors", text, strlen(text));
        expect_path_refused(folder, sentence);
        free(path);
        temp_folder_remove(&folder);
    }
}

/* -- ids and hashes */

static sn_hash hash_of_block(const char *path, int block) {
    sn_model *m = open_model(path);
    sn_hash hash;
    sn_err err = {0};
    cr_assert_eq(sn_model_block_hash(m, block, &hash, &err), SN_OK, "%s", err.text);
    sn_model_close(&m);
    return hash;
}

/* A file that changes under the model shows which hash is read from it. */
Test(model, keeps_the_hash_of_a_block_for_clients_with_many_sessions) {
    char *folder = temp_folder(), *path = gguf_model(folder, &(gguf_options){0});
    sn_model *m = open_model(path);
    sn_model_tensor t;
    sn_hash kept, again, read;
    sn_err err;
    cr_assert_eq(sn_model_known_block_hash(m, 0, NULL, &kept, &err), SN_OK, "%s", err.text);
    cr_assert_eq(sn_model_block_hash(m, 0, &read, &err), SN_OK);
    cr_assert_arr_eq(&kept, &read, sizeof kept);
    cr_assert_eq(sn_model_find(m, SN_ROLE_FFN_UP, 0, &t, &err), SN_OK);
    int fd = open(path, O_RDWR);
    struct stat st;
    cr_assert(fd >= 0 && !fstat(fd, &st));
    char *file = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert(file != MAP_FAILED);
    char *weights = memmem(file, (size_t)st.st_size, t.data, t.bytes);
    cr_assert_not_null(weights);
    weights[0] ^= 1;
    cr_assert_eq(sn_model_known_block_hash(m, 0, NULL, &again, &err), SN_OK);
    cr_assert_arr_eq(&kept, &again, sizeof kept);
    munmap(file, (size_t)st.st_size);
    close(fd);
    sn_model_close(&m);
    free(path);
    temp_folder_remove(&folder);
}

static sn_hash id_of(const char *path) {
    sn_model *m = open_model(path);
    sn_hash id = sn_model_id(m);
    sn_model_close(&m);
    return id;
}

static bool same_hash(sn_hash a, sn_hash b) { return !memcmp(a.bytes, b.bytes, SN_HASH_SIZE); }

Test(model, hashes_blocks_by_their_weights) {
    cr_assert(same_hash(hash_of_block(GOLDEN "llama", 0), hash_of_block(GOLDEN "llama", 0)));
    cr_assert(!same_hash(hash_of_block(GOLDEN "llama", 0), hash_of_block(GOLDEN "llama", 1)));
    cr_assert(same_hash(id_of(GOLDEN "llama"), id_of(GOLDEN "llama")));
    cr_assert(!same_hash(id_of(GOLDEN "llama"), id_of(GOLDEN "llama3_rope")));
}

/* The last byte of the file belongs to a tensor of the block. */
Test(model, one_changed_bit_of_a_weight_changes_the_hash_of_its_block) {
    char *folder = temp_folder(), *path = temp_path(folder, "model.gguf");
    gguf_options none = {0};
    free(gguf_model(folder, &none));
    sn_hash block = hash_of_block(path, 0), id = id_of(path);
    FILE *file = fopen(path, "r+b");
    fseek(file, -1, SEEK_END);
    fputc(1, file);
    fclose(file);
    cr_assert(!same_hash(block, hash_of_block(path, 0)));
    cr_assert(same_hash(id, id_of(path)));
    free(path);
    temp_folder_remove(&folder);
}

Test(model, hashes_differ_where_a_hyperparameter_differs) {
    char *folder = temp_folder();
    gguf_options none = {0}, window = {.key = "attention.sliding_window", .value = 16},
                 name = {.key = "vocab_size", .value = 8};
    char *path = gguf_model(folder, &none);
    sn_hash block = hash_of_block(path, 0), id = id_of(path);
    free(path);
    path = gguf_model(folder, &window);
    cr_assert(!same_hash(block, hash_of_block(path, 0)) && !same_hash(id, id_of(path)));
    free(path);
    path = gguf_model(folder, &name);
    cr_assert(same_hash(block, hash_of_block(path, 0)) && same_hash(id, id_of(path)),
              "an explicit default changes the hash");
    free(path);
    temp_folder_remove(&folder);
}

Test(model, forgotten_data_stays_readable) {
    sn_model *m = open_model(GOLDEN "llama");
    sn_model_tensor t, none = {0};
    cr_assert_eq(sn_model_find(m, SN_ROLE_TOKEN_EMBEDDING, 0, &t, NULL), SN_OK);
    sn_hash before = sn_hash_of(t.data, t.bytes);
    sn_model_release_pages(m, &t);
    sn_model_release_pages(m, &none);
    cr_assert(same_hash(before, sn_hash_of(t.data, t.bytes)));
    sn_model_close(&m);
}

/* Files of the bare model, as those of BLOOM on the hub: tensor names without the prefix of the whole model. */
Test(model, opens_files_of_the_bare_model) {
    enum { BEFORE = sizeof "transformer." - 1, MOST = 128 };
    char *folder = temp_folder(), *weights = temp_path(folder, "model.safetensors");
    sn_err err = {0};
    sn_safetensors *file = NULL;
    sn_safetensors_entry entries[MOST] = {0};
    cr_assert_eq(sn_safetensors_open(GOLDEN "bloom/model.safetensors", &file, &err), SN_OK, "%s", err.text);
    size_t n = sn_safetensors_n_tensors(file);
    cr_assert_leq(n, (size_t)MOST);
    for (size_t i = 0; i < n; i++) {
        const sn_safetensors_tensor *t = sn_safetensors_tensor_at(file, i);
        cr_assert(!strncmp(t->name, "transformer.", BEFORE));
        entries[i] =
            (sn_safetensors_entry){.name = t->name + BEFORE, .dtype = t->dtype, .n_dims = t->n_dims, .data = t->data};
        for (int d = 0; d < t->n_dims; d++) entries[i].dims[d] = t->dims[d];
    }
    cr_assert_eq(sn_safetensors_write(weights, entries, n, &err), SN_OK, "%s", err.text);
    copy_file(GOLDEN "bloom", folder, "config.json");
    cr_assert(same_hash(hash_of_block(folder, 2), hash_of_block(GOLDEN "bloom", 2)));
    sn_safetensors_close(&file);
    free(weights);
    temp_folder_remove(&folder);
}

/* ALiBi: 2^(-8 (i + 1) / n) if n is a power of two; beyond it, every other slope of twice as many heads. */
Test(model, computes_alibi_slopes) {
    const double want[2][4] = {{0x1p-2, 0x1p-4, 0x1p-6, 0x1p-8}, {0x1p-4, 0x1p-8, 0x1p-2}};
    for (int odd = 0; odd < 2; odd++) {
        sn_model *m = open_model(odd ? GOLDEN "bloom_odd" : GOLDEN "bloom");
        sn_model_tensor t;
        float slopes[4];
        cr_assert_eq(sn_model_find(m, SN_ROLE_ATTN_SLOPES, 1, &t, NULL), SN_OK);
        cr_assert(t.cols == (odd ? 3u : 4u) && t.dtype == SN_F32);
        sn_model_release_pages(m, &t);
        memcpy(slopes, t.data, t.bytes);
        for (size_t h = 0; h < t.cols; h++) cr_assert_eq((double)slopes[h], want[odd][h]);
        sn_model_close(&m);
    }
}

Test(model, lists_every_tensor) {
    sn_model *m = open_model(GOLDEN "qwen2");
    const char *name, *type;
    sn_model_tensor t;
    size_t bytes = 0;
    cr_assert_eq(sn_model_n_tensors(m), 2 + 4 * 12);
    for (size_t i = 0; i < sn_model_n_tensors(m); i++) {
        sn_model_tensor_at(m, i, &name, &type, &t);
        cr_assert(name[0] && !strcmp(type, "BF16") && t.data && t.dtype == SN_BF16 && t.bytes == 2 * t.rows * t.cols);
        bytes += t.bytes;
    }
    cr_assert_eq(bytes, 288896, "differs from total_size in the index");
    sn_model_close(&m);
}

/* Finds the biases of each expert, one after the other, whatever lies between them in the file. */
Test(model, splits_the_biases_of_experts) {
    sn_model *m = open_model(GOLDEN "gpt_oss");
    sn_model_tensor gate, up, down;
    cr_assert_eq(sn_model_find(m, SN_ROLE_EXPERTS_GATE_BIAS, 1, &gate, NULL), SN_OK);
    cr_assert_eq(sn_model_find(m, SN_ROLE_EXPERTS_UP_BIAS, 1, &up, NULL), SN_OK);
    cr_assert_eq(sn_model_find(m, SN_ROLE_EXPERTS_DOWN_BIAS, 1, &down, NULL), SN_OK);
    cr_assert(gate.rows == 1 && gate.cols == 4 * 96 && up.cols == gate.cols && down.cols == 4 * 64);
    cr_assert_eq((const uint16_t *)up.data - (const uint16_t *)gate.data, 1, "gate and up are interleaved");
    cr_assert_eq(sn_model_n_runs(&gate), 4u * 96u);
    cr_assert_eq(sn_model_n_runs(&down), 1u);
    sn_model_close(&m);
}
