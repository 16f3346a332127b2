/* Models whose files hold several matrices as one (Falcon, BLOOM, Phi-3): adapters written by PEFT give the logits
 * that PEFT computes (tests/fixtures/peft/joined); an adapter trained for single matrices is written in PEFT's
 * format and read back unchanged. */
#include "client/tune/loaded_adapter.h"
#include "model/peft/peft.h"
#include "model/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static sn_model *model;
static const sn_hparams *hp;
static char *folder;

static void open_model(const char *format, const char *family) {
    char path[256];
    snprintf(path, sizeof path, format, SN_FIXTURES, family);
    REQUIRE(sn_model_open(path, &model, &err));
    hp = sn_model_hparams(model);
}

/* -- logits */

/* Computes the logits of the tokens with the adapter, through local blocks. */
static float *logits_with(const char *adapter, const sn_safetensors_tensor *ids) {
    sn_device *device = NULL;
    sn_lm_head *head = NULL;
    sn_chain *chain = NULL;
    sn_loaded_adapter loaded;
    int n = (int)ids->elements;
    size_t width = (size_t)hp->n_embd;
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    float *rows = calloc(2 * (size_t)n * width, sizeof *rows),
          *logits = calloc((size_t)n * (size_t)hp->n_vocab, sizeof *logits);
    for (int i = 0; i < n; i++) tokens[i] = (int32_t)((const int64_t *)(const void *)ids->data)[i];
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err));
    REQUIRE(sn_lm_head_load(model, device, &head, &err));
    REQUIRE(sn_loaded_adapter_load(adapter, hp, &loaded, &err));
    const sn_chain_options options = {.max_tokens = n,
                                      .local = {.device = device, .end = hp->n_blocks},
                                      .adapter = sn_loaded_adapter_for_chain(&loaded)};
    REQUIRE(sn_chain_open(model, &options, &chain, &err));
    REQUIRE(sn_lm_head_embed(head, tokens, n, rows, &err));
    REQUIRE(sn_chain_step(chain, 0, n, rows, rows + (size_t)n * width, &err));
    REQUIRE(sn_lm_head_logits(head, rows + (size_t)n * width, n, logits, &err));
    sn_chain_close(&chain);
    sn_loaded_adapter_fini(&loaded);
    sn_lm_head_free(&head);
    sn_device_close(&device);
    free(tokens);
    free(rows);
    return logits;
}

static sn_safetensors *open_tensors(const char *format, const char *family) {
    char path[256];
    sn_safetensors *file = NULL;
    snprintf(path, sizeof path, format, SN_FIXTURES, family);
    REQUIRE(sn_safetensors_open(path, &file, &err));
    return file;
}

Test(peft_fused, adapters_of_peft_give_the_logits_of_peft) {
    static const char *const families[] = {"falcon", "falcon_7b", "bloom", "phi3"};
    static const char *const files[] = {"%s/golden/%s",
                                        "%s/gguf/%s.gguf"}; /* which store q, k and v in different orders */
    for (int f = 0; f < 4; f++) {
        sn_safetensors *golden = open_tensors("%s/golden/%s/golden.safetensors", families[f]),
                       *theirs = open_tensors("%s/peft/joined/%s/logits.safetensors", families[f]);
        char adapter[256];
        snprintf(adapter, sizeof adapter, "%s/peft/joined/%s", SN_FIXTURES, families[f]);
        const sn_safetensors_tensor *want = sn_safetensors_find(theirs, "logits");
        for (int k = 0; k < 2; k++) {
            float largest = 0, furthest = 0, at;
            open_model(files[k], families[f]);
            float *got = logits_with(adapter, sn_safetensors_find(golden, "input_ids"));
            for (size_t i = 0; i < want->elements; i++) {
                memcpy(&at, want->data + i * sizeof at, sizeof at);
                largest = fmaxf(largest, fabsf(at));
                if (!(fabsf(got[i] - at) <= furthest)) furthest = fabsf(got[i] - at);
            }
            cr_expect(furthest <= 1e-4f * largest, "%s, %s: %g of %g", families[f], files[k], (double)furthest,
                      (double)largest);
            free(got);
            sn_model_close(&model);
        }
        sn_safetensors_close(&golden);
        sn_safetensors_close(&theirs);
    }
}

/* -- round trips */

static sn_params *some_params(const char *targets, int rank, double alpha) {
    sn_params *params = NULL;
    sn_params_shape shape = {.method = SN_METHOD_LORA, .rank = rank, .alpha = alpha};
    REQUIRE(sn_targets_parse(targets, shape.target, &err));
    REQUIRE(sn_params_new(hp, &shape, &params, &err));
    for (size_t i = 0; i < params->n_floats; i++) params->values[i] = sinf((float)(i * i % 1009) + 1);
    return params;
}

static void expect_same_image(const sn_params *params, const char *what) {
    sn_buf loaded, read;
    sn_safetensors *want = NULL, *got = NULL;
    sn_buf_init(&loaded, 1 << 24);
    sn_buf_init(&read, 1 << 24);
    REQUIRE(sn_params_image(params, 0, hp->n_blocks, &loaded, &err));
    REQUIRE(sn_peft_lora(folder, hp, &read, &err));
    REQUIRE(sn_safetensors_open_memory(loaded.data, loaded.len, "trained", &want, &err));
    REQUIRE(sn_safetensors_open_memory(read.data, read.len, "read", &got, &err));
    cr_expect_eq(sn_safetensors_n_tensors(got), sn_safetensors_n_tensors(want), "%s", what);
    for (size_t i = 0; i < sn_safetensors_n_tensors(want); i++) {
        const sn_safetensors_tensor *a = sn_safetensors_tensor_at(want, i), *b = sn_safetensors_find(got, a->name);
        cr_expect(b && b->bytes == a->bytes && !memcmp(a->data, b->data, a->bytes), "%s: %s", what, a->name);
    }
    sn_safetensors_close(&want);
    sn_safetensors_close(&got);
    sn_buf_fini(&loaded);
    sn_buf_fini(&read);
}

Test(peft_fused, adapters_of_single_matrices_round_trip) {
    static const char *const families[] = {"llama", "falcon",    "falcon_7b", "falcon_serial",
                                           "bloom", "bloom_odd", "phi3"};
    static const char *const targets[] = {"q,v", "k", "all", "up,down", "o"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        open_model("%s/golden/%s", families[f]);
        for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
            char what[64];
            sn_params *params = some_params(targets[t], 3, 5.3);
            snprintf(what, sizeof what, "%s, %s", families[f], targets[t]);
            folder = temp_folder();
            REQUIRE(sn_adapter_folder_save(folder, params, hp, NULL, NULL, &err));
            expect_same_image(params, what);
            sn_params_free(&params);
            temp_folder_remove(&folder);
        }
        sn_model_close(&model);
    }
}

/* Virtual tokens that follow the embedding norm, which PEFT's do not: they have a type of their own, so that the two
 * are not confused. */
Test(peft_fused, virtual_tokens_behind_an_embedding_norm_round_trip) {
    sn_params *params = NULL;
    sn_params_shape shape = {.method = SN_METHOD_PROMPT, .prompt_tokens = 3};
    sn_loaded_adapter loaded;
    open_model("%s/golden/%s", "bloom");
    folder = temp_folder();
    REQUIRE(sn_params_new(hp, &shape, &params, &err));
    for (size_t i = 0; i < params->n_floats; i++) params->values[i] = (float)i;
    REQUIRE(sn_adapter_folder_save(folder, params, hp, NULL, NULL, &err));
    REQUIRE(sn_loaded_adapter_load(folder, hp, &loaded, &err));
    cr_expect(!memcmp(sn_loaded_adapter_for_chain(&loaded).prompt, params->values, params->n_floats * sizeof(float)));
    sn_loaded_adapter_fini(&loaded);
    sn_model_close(&model);
    open_model("%s/golden/%s", "falcon");
    sn_err why = {0};
    cr_expect_eq(sn_loaded_adapter_load(folder, hp, &loaded, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "SWARM_PROMPT"), "%s", why.text);
    sn_params_free(&params);
    temp_folder_remove(&folder);
    sn_model_close(&model);
}

/* The sum of the ranks exceeds what a node accepts, the rank of each matrix does not. */
Test(peft_fused, each_fused_matrix_may_have_the_largest_rank) {
    open_model("%s/golden/%s", "falcon_7b");
    folder = temp_folder();
    sn_params *params = some_params("q,k,v", 256, 512);
    REQUIRE(sn_adapter_folder_save(folder, params, hp, NULL, NULL, &err));
    expect_same_image(params, "rank 256");
    sn_params_free(&params);
    temp_folder_remove(&folder);
    sn_model_close(&model);
}

Test(peft_fused, names_what_is_of_another_kind_of_model) {
    static const struct {
        const char *model, *adapter, *part;
    } cases[] = {
        {"falcon", "lora/end", "only LoRA of query_key_value, dense, dense_h_to_4h, dense_4h_to_h can"},
        {"llama", "joined/phi3", "only LoRA of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj can"},
        {"mixtral", "joined/bloom", "only LoRA of q_proj, k_proj, v_proj, o_proj can"},
        {"falcon_7b", "joined/falcon", "another model"},
        {"bloom", "prompt/end", "normalises its embeddings"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[256];
        sn_loaded_adapter loaded;
        sn_err why = {0};
        open_model("%s/golden/%s", cases[i].model);
        snprintf(path, sizeof path, "%s/peft/%s", SN_FIXTURES, cases[i].adapter);
        cr_expect_eq(sn_loaded_adapter_load(path, hp, &loaded, &why), SN_REFUSED);
        cr_expect(strstr(why.text, cases[i].part), "%s", why.text);
        sn_model_close(&model);
    }
}
