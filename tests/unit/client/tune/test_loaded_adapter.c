/* Folders of adapters: PEFT's own format (tests/fixtures/peft was written by PEFT) and that of `swarm tune`. An
 * adapter that cannot be applied as PEFT applies it is refused with an error. */
#include "blocks/train.h"
#include "client/tune/loaded_adapter.h"
#include "model/peft/peft.h"
#include "model/peft/peft_modules.h"
#include "model/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

static const char LORA[] = SN_FIXTURES "/peft/lora/end", PROMPT[] = SN_FIXTURES "/peft/prompt/end";

static sn_model *model;
static sn_hparams hp;
static char folder[64];

static void set_up(void) {
    REQUIRE(sn_model_open(SN_FIXTURES "/golden/llama", &model, &err));
    hp = *sn_model_hparams(model);
    snprintf(folder, sizeof folder, "/tmp/swarm-test-adapter-XXXXXX");
    cr_assert(mkdtemp(folder));
}

static void tear_down(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/swarm.json", folder);
    unlink(path);
    rmdir(folder);
    sn_model_close(&model);
}

TestSuite(loaded_adapter, .init = set_up, .fini = tear_down);

/* -- folders made from the fixture */

static json_t *config_of(const char *from) {
    char path[256];
    snprintf(path, sizeof path, "%s/adapter_config.json", from);
    json_t *config = json_load_file(path, 0, NULL);
    cr_assert(config);
    return config;
}

static void write_config(json_t *config) { /* consumes it */
    char path[256];
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    cr_assert_eq(json_dump_file(config, path, 0), 0);
    json_decref(config);
}

enum { TENSORS_MAX = 64 };
typedef struct tensors {
    sn_safetensors *file;
    sn_safetensors_entry list[TENSORS_MAX];
    size_t n;
} tensors;

static tensors read_tensors(void) {
    tensors t = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", LORA);
    REQUIRE(sn_safetensors_open(path, &t.file, &err));
    for (; t.n < sn_safetensors_n_tensors(t.file); t.n++) {
        const sn_safetensors_tensor *from = sn_safetensors_tensor_at(t.file, t.n);
        cr_assert(t.n < TENSORS_MAX && from->dtype == SN_F32 && from->n_dims == 2);
        t.list[t.n] = (sn_safetensors_entry){from->name, SN_F32, 2, {from->dims[0], from->dims[1]}, from->data};
    }
    return t;
}

static void write_tensors(tensors *t) { /* closes it */
    char path[256];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    REQUIRE(sn_safetensors_write(path, t->list, t->n, &err));
    sn_safetensors_close(&t->file);
}

static void copy_fixture(void) {
    tensors t = read_tensors();
    write_tensors(&t);
    write_config(config_of(LORA));
}

static const sn_safetensors_entry *find_entry(const tensors *t, const char *part) {
    for (size_t i = 0; i < t->n; i++)
        if (strstr(t->list[i].name, part)) return &t->list[i];
    cr_assert_fail("no tensor %s", part);
    return NULL;
}

/* -- reading an image */

typedef struct image {
    sn_buf bytes;
    sn_safetensors *file;
} image;

static image image_of(const char *from) {
    image i;
    sn_buf_init(&i.bytes, 1 << 20);
    REQUIRE(sn_peft_lora(from, &hp, &i.bytes, &err));
    REQUIRE(sn_safetensors_open_memory(i.bytes.data, i.bytes.len, "image", &i.file, &err));
    return i;
}

static void image_fini(image *i) {
    sn_safetensors_close(&i->file);
    sn_buf_fini(&i->bytes);
}

static const float *values_of(const image *i, const char *name) {
    const sn_safetensors_tensor *t = sn_safetensors_find(i->file, name);
    cr_assert(t, "the image lacks %s", name);
    return (const float *)(const void *)t->data;
}

/* -- tests */

Test(loaded_adapter, a_lora_of_peft_has_the_values_that_training_continues_from) {
    static const sn_rope_style styles[] = {SN_ROPE_NEOX, SN_ROPE_INTERLEAVED};
    for (int k = 0; k < 2; k++) {
        sn_adapter_folder adapter;
        sn_buf expected;
        sn_safetensors *want = NULL;
        hp.rope_style = styles[k]; /* as in a Hugging Face folder, and as in a GGUF file */
        REQUIRE(sn_adapter_folder_load(LORA, &hp, &adapter, &err));
        sn_buf_init(&expected, 1 << 20);
        REQUIRE(sn_params_image(adapter.params, 0, hp.n_blocks, &expected, &err));
        REQUIRE(sn_safetensors_open_memory(expected.data, expected.len, "trained", &want, &err));
        image got = image_of(LORA);
        cr_expect_eq(sn_safetensors_n_tensors(got.file), sn_safetensors_n_tensors(want));
        for (size_t i = 0; i < sn_safetensors_n_tensors(want); i++) {
            const sn_safetensors_tensor *t = sn_safetensors_tensor_at(want, i);
            cr_expect(!memcmp(values_of(&got, t->name), t->data, t->bytes), "%s", t->name);
        }
        image_fini(&got);
        sn_safetensors_close(&want);
        sn_buf_fini(&expected);
        sn_adapter_folder_fini(&adapter);
    }
}

Test(loaded_adapter, rows_of_q_and_k_are_permuted_and_b_is_scaled) {
    hp.rope_style = SN_ROPE_INTERLEAVED;
    tensors t = read_tensors();
    const sn_safetensors_entry *b = find_entry(&t, "layers.1.self_attn.k_proj.lora_B"),
                               *v = find_entry(&t, "layers.1.self_attn.v_proj.lora_B");
    image got = image_of(LORA);
    size_t rank = b->dims[1], dim = (size_t)hp.head_dim;
    float scale = 10.0f / (float)rank;            /* lora_alpha of the fixture */
    for (size_t row = 0; row < b->dims[0]; row++) /* pair (2i, 2i + 1) is (i, i + dim / 2) in PEFT */
        for (size_t c = 0; c < rank; c++) {
            size_t there = row / dim * dim + (row % 2 ? dim / 2 : 0) + row % dim / 2;
            cr_assert_eq(values_of(&got, "lora_b.1.k")[row * rank + c],
                         ((const float *)b->data)[there * rank + c] * scale);
            cr_assert_eq(values_of(&got, "lora_b.1.v")[row * rank + c],
                         ((const float *)v->data)[row * rank + c] * scale);
        }
    image_fini(&got);
    sn_safetensors_close(&t.file);
}

Test(loaded_adapter, half_precision_is_read_exactly_and_rslora_scales_by_the_root) {
    static uint16_t halves[TENSORS_MAX][1 << 13];
    static const sn_dtype types[] = {SN_F16, SN_BF16};
    for (int k = 0; k < 2; k++) {
        tensors t = read_tensors();
        for (size_t i = 0; i < t.n; i++) {
            const float *from = t.list[i].data;
            size_t n = t.list[i].dims[0] * t.list[i].dims[1];
            cr_assert_leq(n, 1u << 13);
            for (size_t j = 0; j < n; j++) halves[i][j] = k ? sn_f32_to_bf16(from[j]) : sn_f32_to_f16(from[j]);
            t.list[i].data = halves[i];
            t.list[i].dtype = types[k];
        }
        json_t *config = config_of(LORA);
        json_object_set_new(config, "use_rslora", json_true());
        const sn_safetensors_entry b = *find_entry(&t, "layers.0.self_attn.o_proj.lora_B");
        write_tensors(&t);
        write_config(config);
        image got = image_of(folder);
        float scale = (float)(10.0 / sqrt((double)b.dims[1]));
        for (size_t j = 0; j < b.dims[0] * b.dims[1]; j++) {
            uint16_t h = ((const uint16_t *)b.data)[j];
            cr_assert_eq(values_of(&got, "lora_b.0.o")[j], scale * (k ? sn_bf16_to_f32(h) : sn_f16_to_f32(h)));
        }
        image_fini(&got);
    }
}

/* Layers may differ, and the model's LM head need not be present. */
Test(loaded_adapter, rank_and_alpha_per_module_match_peft) {
    static const char from[] = SN_FIXTURES "/peft/patterns";
    static const char *const modules[][2] = {
        {"self_attn.q_proj", "q"}, {"self_attn.v_proj", "v"}, {"mlp.down_proj", "down"}};
    char path[256], name[160];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", from);
    sn_safetensors *plain = NULL;
    REQUIRE(sn_safetensors_open(path, &plain, &err));
    snprintf(path, sizeof path, "%s/scaling.json", from);
    json_t *scaling = json_load_file(path, 0, NULL);
    cr_assert_eq(json_object_size(scaling), (size_t)(3 * hp.n_blocks));
    hp.rope_style = SN_ROPE_NEOX; /* rows in their original order */
    image got = image_of(from);
    for (int block = 0; block < hp.n_blocks; block++)
        for (int m = 0; m < 3; m++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", block, modules[m][0]);
            const json_t *scale = json_object_get(scaling, name);
            cr_assert(json_is_number(scale), "%s", name);
            snprintf(name, sizeof name, "base_model.model.model.layers.%d.%s.lora_B.weight", block, modules[m][0]);
            const sn_safetensors_tensor *b = sn_safetensors_find(plain, name);
            cr_assert(b);
            snprintf(name, sizeof name, "lora_b.%d.%s", block, modules[m][1]);
            const float *want = (const float *)(const void *)b->data, *have = values_of(&got, name);
            for (size_t i = 0; i < b->elements; i++)
                cr_assert_eq(have[i], (float)json_number_value(scale) * want[i], "%s[%zu]", name, i);
        }
    image_fini(&got);
    json_decref(scaling);
    sn_safetensors_close(&plain);
}

/* The base weights of a model, with the hashes of all its blocks from its file. */
static sn_base_weights base_of(const sn_model *of) {
    sn_base_weights base;
    sn_hash blocks[64];
    for (int i = 0; i < sn_model_hparams(of)->n_blocks; i++) REQUIRE(sn_model_block_hash(of, i, &blocks[i], &err));
    REQUIRE(sn_base_weights_init(&base, of, blocks, &err));
    return base;
}

Test(loaded_adapter, names_all_weights_that_it_was_trained_for) {
    sn_base_weights base = base_of(model), read;
    sn_loaded_adapter loaded;
    char name[SN_PEFT_NAME_SIZE];
    sn_err why = {0};
    copy_fixture();
    /* PEFT's configuration contains only a name */
    REQUIRE(sn_base_weights_load(folder, &read, &err));
    cr_expect_eq(read.n_blocks, 0);
    REQUIRE(sn_base_weights_check_client(&read, model, &err));
    sn_peft_base_name(folder, name);
    cr_expect_str_eq(name, "golden/llama");
    REQUIRE(sn_base_weights_save(&base, folder, &err));
    REQUIRE(sn_loaded_adapter_load(folder, &hp, &loaded, &err));
    cr_assert_eq(loaded.base.n_blocks, hp.n_blocks);
    cr_expect(!memcmp(loaded.base.blocks, base.blocks, (size_t)hp.n_blocks * sizeof *base.blocks));
    cr_expect(sn_loaded_adapter_for_chain(&loaded).base == &loaded.base);
    REQUIRE(sn_base_weights_check_client(&loaded.base, model, &err));
    loaded.base.client.bytes[7] ^= 1;
    cr_expect_eq(sn_base_weights_check_client(&loaded.base, model, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "trained for other weights") && strstr(why.text, "LM head"), "%s", why.text);
    sn_loaded_adapter_fini(&loaded);
    write_file(folder, "swarm.json", "{\"weights\": \"00\"}", 17);
    cr_expect_eq(sn_loaded_adapter_load(folder, &hp, &loaded, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "does not name weights"), "%s", why.text);
    sn_base_weights_fini(&base);
}

Test(loaded_adapter, may_name_the_weights_of_some_blocks) {
    sn_base_weights base, read;
    sn_hash hashes[2];
    copy_fixture();
    for (int i = 0; i < 2; i++) REQUIRE(sn_model_block_hash(model, 1 + i, &hashes[i], &err));
    REQUIRE(sn_base_weights_of_blocks(&base, &hp, 1, 3, hashes, &err));
    REQUIRE(sn_base_weights_add_client(&base, model, &err));
    REQUIRE(sn_base_weights_save(&base, folder, &err));
    REQUIRE(sn_base_weights_load(folder, &read, &err));
    REQUIRE(sn_base_weights_check_client(&read, model, &err));
    cr_assert_eq(read.n_blocks, hp.n_blocks);
    for (int b = 0; b <= hp.n_blocks; b++) {
        const sn_hash *hash = sn_base_weights_block(&read, b);
        cr_expect(b == 1 || b == 2 ? hash && !memcmp(hash, &hashes[b - 1], sizeof *hash) : !hash, "block %d", b);
    }
    cr_expect(!sn_base_weights_block(NULL, 0));
    sn_base_weights_fini(&base);
    sn_base_weights_fini(&read);
}

/* Changes one bit of a tensor in model.safetensors. */
static void flip_bit_of(const char *in, const char *tensor) {
    char *path = temp_path(in, "model.safetensors");
    uint64_t n;
    FILE *file = fopen(path, "r+b");
    cr_assert(file && fread(&n, sizeof n, 1, file) == 1);
    char *header = malloc(n);
    cr_assert_eq(fread(header, 1, n, file), n);
    json_t *all = json_loadb(header, n, 0, NULL);
    json_t *offsets = json_object_get(json_object_get(all, tensor), "data_offsets");
    cr_assert(offsets, "%s", tensor);
    long at = (long)(8 + n) + (long)json_integer_value(json_array_get(offsets, 0));
    cr_assert(!fseek(file, at, SEEK_SET));
    int byte = fgetc(file);
    cr_assert(!fseek(file, at, SEEK_SET) && fputc(byte ^ 1, file) != EOF && !fclose(file));
    json_decref(all);
    free(header);
    free(path);
}

/* golden/llama ties its LM head to the embedding; golden/qwen3 has one of its own. */
Test(loaded_adapter, every_weight_of_the_client_counts) {
    static const char *const changes[][2] = {{"llama", "model.embed_tokens.weight"},
                                             {"llama", "model.norm.weight"},
                                             {"qwen3", "lm_head.weight"},
                                             {"qwen3", "model.norm.weight"}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char from[256], *copy = temp_folder();
        sn_model *of = NULL;
        sn_hash hash[2];
        snprintf(from, sizeof from, SN_FIXTURES "/golden/%s", changes[i][0]);
        copy_file(from, copy, "config.json");
        copy_file(from, copy, "model.safetensors");
        for (int changed = 0; changed < 2; changed++) {
            if (changed) flip_bit_of(copy, changes[i][1]);
            REQUIRE(sn_model_open(copy, &of, &err));
            REQUIRE(sn_model_client_hash(of, &hash[changed], &err));
            sn_model_close(&of);
        }
        cr_expect(memcmp(&hash[0], &hash[1], sizeof *hash), "%s does not count", changes[i][1]);
        remove_tree(copy);
        free(copy);
    }
}

Test(loaded_adapter, layers_without_adapters_are_left_as_they_are) {
    tensors t = read_tensors();
    static char names[TENSORS_MAX][128];
    size_t n_kept = 0;
    for (size_t i = 0; i < t.n; i++) {
        if (strstr(t.list[i].name, "layers.0.")) continue;
        snprintf(names[n_kept], sizeof names[n_kept], "base_model.model.%s",
                 t.list[i].name + strlen("base_model.model.model."));
        t.list[n_kept] = t.list[i];
        t.list[n_kept].name = names[n_kept];
        n_kept++;
    }
    cr_assert(n_kept && n_kept < t.n);
    t.n = n_kept;
    write_tensors(&t);
    write_config(config_of(LORA));
    image got = image_of(folder);
    cr_expect_eq(sn_safetensors_n_tensors(got.file), n_kept);
    cr_expect_null(sn_safetensors_find(got.file, "lora_a.0.q"));
    image_fini(&got);
}

static void expect_refused(const char *part, const char *what) {
    sn_loaded_adapter expected;
    sn_err why = {0};
    cr_expect_eq(sn_loaded_adapter_load(folder, &hp, &expected, &why), SN_REFUSED, "%s is taken", what);
    cr_expect(strstr(why.text, part), "%s: %s", what, why.text);
}

Test(loaded_adapter, names_what_cannot_be_used) {
    static const struct {
        const char *key, *json, *part;
    } configs[] = {{"use_dora", "true", "use_dora"},
                   {"bias", "\"all\"", "bias"},
                   {"modules_to_save", "[\"lm_head\"]", "modules_to_save"},
                   {"alpha_pattern", "{\"q_proj\": \"3\"}", "must be a number"},
                   {"alpha_pattern", "[3]", "must be an object"},
                   {"alpha_pattern", "{\"(q_proj\": 3}", "not a regular expression"},
                   {"alpha_pattern", "{\"(([a-z.0-9_]+)*)*[!?]\": 3}", "too long to match"},
                   {"rank_pattern", "{\"q_proj\": 3}", "has rank 4"},
                   {"fan_in_fan_out", "true", "fan_in_fan_out"},
                   {"init_lora_weights", "\"pissa_niter_4\"", "changed weights"},
                   {"lora_alpha", "null", "lora_alpha"},
                   {"peft_type", "\"IA3\"", "IA3"}};
    copy_fixture();
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        json_t *config = config_of(LORA);
        json_object_set_new(config, configs[i].key, json_loads(configs[i].json, JSON_DECODE_ANY, NULL));
        write_config(config);
        expect_refused(configs[i].part, configs[i].key);
    }
    write_config(json_array());
    expect_refused("not a JSON object", "a list");
    char path[128];
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    cr_assert_eq(unlink(path), 0);
    expect_refused("the newest step-N in the folder is an adapter", "a folder without");
    hp.n_embd *= 2;
    copy_fixture();
    expect_refused("another shape", "a wider model");
    hp.n_embd /= 2;
    hp.n_blocks = 2;
    expect_refused("a layer that this model does not have", "a shorter model");
}

/* Each takes few steps, and all of them on all modules take minutes. */
Test(loaded_adapter, patterns_are_bounded_together) {
    enum { PATTERNS = 1000 };
    json_t *config = config_of(LORA), *patterns = json_object();
    char pattern[80];
    for (int i = 0; i < PATTERNS; i++) {
        snprintf(pattern, sizeof pattern, "(?:[a-z0-9_.]|[a-z0-9_.]){12}!%d", i);
        json_object_set_new(patterns, pattern, json_integer(3));
    }
    json_object_set_new(config, "alpha_pattern", patterns);
    copy_fixture();
    write_config(config);
    expect_refused("too long to match", "1000 patterns");
}

Test(loaded_adapter, names_tensors_that_do_not_go_together) {
    static float broken[1 << 13];
    copy_fixture();
    tensors t = read_tensors();
    t.list[0].name = "base_model.model.model.embed_tokens.lora_embedding_A";
    write_tensors(&t);
    expect_refused("embed_tokens", "an embedding");
    t = read_tensors();
    t.n--;
    write_tensors(&t);
    expect_refused("has no matching", "half a pair");
    t = read_tensors();
    memcpy(broken, t.list[2].data, t.list[2].dims[0] * t.list[2].dims[1] * sizeof(float));
    broken[5] = NAN;
    t.list[2].data = broken;
    write_tensors(&t);
    expect_refused("not finite", "a NaN");
    t = read_tensors();
    t.list[3].name = "base_model.model.model.layers.01.self_attn.q_proj.lora_B.weight";
    write_tensors(&t);
    expect_refused("has no matching", "a name written otherwise");
    snprintf(hp.family, sizeof hp.family, "mixtral");
    hp.n_experts = 4;
    t = read_tensors();
    t.list[0].name = "base_model.model.model.layers.0.block_sparse_moe.experts.3.w1.lora_A.weight";
    write_tensors(&t);
    expect_refused("only LoRA of q_proj, k_proj, v_proj, o_proj can", "an expert's matrix");
}

/* Elements of a type that is not read have no bytes in the file: as many as a file likes. Enough such tensors would
 * let a product of sizes wrap. */
Test(loaded_adapter, elements_without_bytes_take_no_memory) {
    static const char header[] = "{\"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight\":"
                                 "{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                                 "\"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight\":"
                                 "{\"dtype\":\"C64\",\"shape\":[281474976710656,1],\"data_offsets\":[8,8]}}";
    sn_buf file = {0};
    put_safetensors(&file, header, 8);
    write_file(folder, "adapter_model.safetensors", file.data, file.len);
    write_config(config_of(LORA));
    expect_refused("has another shape", "a type without bytes");
    sn_buf_fini(&file);
}

static void expect_no_adapters(const char *family, const char *why_not) {
    sn_peft_module modules[SN_PEFT_MODULES_MAX];
    sn_params *params = NULL;
    sn_err why = {0};
    sn_params_shape shape = {.method = SN_METHOD_LORA, .rank = 4, .alpha = 8, .target = {[SN_ROLE_ATTN_Q] = true}};
    char path[300];
    snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, family);
    sn_model_close(&model);
    REQUIRE(sn_model_open(path, &model, &err));
    hp = *sn_model_hparams(model);
    memset(hp.recurrent, 0, sizeof hp.recurrent);
    cr_expect_eq(sn_peft_modules(&hp, modules), 0, "%s", family);
    expect_refused("family cannot be used", family);
    cr_expect_eq(sn_params_new(&hp, &shape, &params, &why), SN_REFUSED, "%s is trained", family);
    cr_expect(strstr(why.text, why_not), "%s", why.text);
    sn_params_free(&params);
}

/* Their Q, or K and V, do not lie in the modules of PEFT as those of other families do. A configuration may say of a
 * family with recurrent blocks that it has none of them. */
Test(loaded_adapter, latent_and_gated_attention_take_none) {
    copy_fixture();
    expect_no_adapters("deepseek_v3", "latent attention has no backward pass");
    expect_no_adapters("deepseek_v2", "latent attention has no backward pass");
    expect_no_adapters("qwen3_5", "gated attention has no backward pass");
    expect_no_adapters("qwen3_5_moe", "gated attention has no backward pass");
}

Test(loaded_adapter, loads_virtual_tokens_deep_prompts_and_classifiers) {
    sn_loaded_adapter expected;
    REQUIRE(sn_loaded_adapter_load(PROMPT, &hp, &expected, &err));
    sn_chain_adapter use = sn_loaded_adapter_for_chain(&expected);
    static const sn_hash none;
    cr_expect(use.n_prompt == 6 && !use.bytes && !memcmp(&use.hash, &none, sizeof none));
    sn_loaded_adapter_fini(&expected);

    sn_params *params = NULL;
    char *labels[] = {"bad", "good", "fair"};
    sn_params_shape shape = {.method = SN_METHOD_DEEP_PROMPT, .prompt_tokens = 3};
    REQUIRE(sn_params_new(&hp, &shape, &params, &err));
    for (size_t i = 0; i < params->n_floats; i++) params->values[i] = (float)i;
    REQUIRE(sn_adapter_folder_save(folder, params, &hp, NULL, NULL, &err));
    REQUIRE(sn_loaded_adapter_load(folder, &hp, &expected, &err));
    use = sn_loaded_adapter_for_chain(&expected);
    cr_expect_eq(use.n_prompt, 3);
    cr_expect(!memcmp(use.prompt, params->values, 3 * (size_t)hp.n_embd * sizeof(float)));
    image got = {.bytes = {0}};
    REQUIRE(sn_safetensors_open_memory(use.image, use.bytes, "image", &got.file, &err));
    cr_expect_eq(sn_safetensors_n_tensors(got.file), (size_t)hp.n_blocks - 1);
    cr_expect_eq(values_of(&got, "prompt.1")[1], (float)(3 * hp.n_embd + 1));
    image_fini(&got);
    sn_loaded_adapter_fini(&expected);
    sn_params_free(&params);

    shape = (sn_params_shape){.method = SN_METHOD_HEAD, .n_labels = 3};
    REQUIRE(sn_params_new(&hp, &shape, &params, &err));
    REQUIRE(sn_adapter_folder_save(folder, params, &hp, NULL, labels, &err));
    REQUIRE(sn_loaded_adapter_load(folder, &hp, &expected, &err));
    use = sn_loaded_adapter_for_chain(&expected);
    cr_expect(expected.method == SN_METHOD_HEAD && !use.n_prompt && !use.bytes);
    cr_expect_str_eq(expected.folder.labels[2], "fair");
    sn_loaded_adapter_fini(&expected);
    sn_params_free(&params);
}

/* Matrices that a model holds as one (Phi-3): PEFT's adapter has one A and one B for them. */
Test(loaded_adapter, a_lora_of_fused_matrices_equals_that_of_their_parts) {
    enum { RANK = 3 };
    const size_t embd = (size_t)hp.n_embd, ff = (size_t)hp.n_ff, q = (size_t)(hp.n_heads * hp.head_dim),
                 kv = (size_t)(hp.n_kv_heads * hp.head_dim), outputs[] = {q, kv, kv, ff, ff};
    static const char *const parts[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj",
                                        "mlp.up_proj"};
    static const char *const targets[] = {"q", "k", "v", "gate", "up"};
    float *values = malloc((RANK * embd + RANK * (q + 2 * kv + 2 * ff)) * sizeof *values), *a = values,
          *b = a + RANK * embd;
    for (size_t i = 0; i < RANK * (embd + q + 2 * kv + 2 * ff); i++) values[i] = sinf((float)i);
    image images[2];
    for (int joined = 0; joined < 2; joined++) {
        tensors t = {0};
        char names[10][80];
        const float *at = b;
        for (int i = 0; i < 5; i++) {
            const char *module = !joined ? parts[i] : i < 3 ? "self_attn.qkv_proj" : "mlp.gate_up_proj";
            size_t rows = !joined ? outputs[i] : i < 3 ? q + 2 * kv : 2 * ff;
            for (int k = 0; k < 2 && !(joined && i % 3); k++, t.n++) { /* joined: once, at the first of its parts */
                snprintf(names[t.n], sizeof names[0], "base_model.model.model.layers.2.%s.lora_%c.weight", module,
                         k ? 'B' : 'A');
                t.list[t.n] =
                    (sn_safetensors_entry){names[t.n], SN_F32, 2, {k ? rows : RANK, k ? RANK : embd}, k ? at : a};
            }
            at += outputs[i] * RANK;
        }
        write_tensors(&t);
        write_config(config_of(LORA));
        snprintf(hp.family, sizeof hp.family, joined ? "phi3" : "llama");
        images[joined] = image_of(folder);
        cr_assert_eq(sn_safetensors_n_tensors(images[joined].file), 10);
    }
    for (int i = 0; i < 5; i++) {
        char lower[32], upper[32];
        snprintf(lower, sizeof lower, "lora_a.2.%s", targets[i]);
        snprintf(upper, sizeof upper, "lora_b.2.%s", targets[i]);
        cr_expect(!memcmp(values_of(&images[0], lower), values_of(&images[1], lower), RANK * embd * sizeof(float)));
        cr_expect(
            !memcmp(values_of(&images[0], upper), values_of(&images[1], upper), RANK * outputs[i] * sizeof(float)),
            "%s: rows of B differ", targets[i]);
    }
    for (int i = 0; i < 2; i++) image_fini(&images[i]);
    free(values);
}
