#include "model/peft.h"

#include "model/peft_pattern.h"
#include "model/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_SIZE = 4096, NAME_SIZE = 96, RANK_MAX = 256 };

/* A tuning's matrices, and PEFT's names of them: a model may hold some as one, whose outputs lie one behind the other. Their
 * adapter is one A for all, and of B the rows of each. */
enum { Q, K, V, O, GATE, UP, DOWN, N_TARGETS };
static const char *const targets[N_TARGETS] = {"q", "k", "v", "o", "gate", "up", "down"};
static const struct {
    const char *name;
    int first, n;
} modules[] = {{"self_attn.q_proj", Q, 1}, {"self_attn.k_proj", K, 1},   {"self_attn.v_proj", V, 1},
               {"self_attn.o_proj", O, 1}, {"mlp.gate_proj", GATE, 1},   {"mlp.up_proj", UP, 1},
               {"mlp.down_proj", DOWN, 1}, {"self_attn.qkv_proj", Q, 3}, {"mlp.gate_up_proj", GATE, 2}};
enum { N_MODULES = sizeof modules / sizeof *modules, TOGETHER_MAX = 3 };

typedef struct lora {
    const sn_hparams *hp;
    double alpha;
    sn_peft_pattern *alphas, *ranks; /* of modules that have their own */
    bool root;                       /* the scale is alpha / sqrt(r) */
    const sn_safetensors *file;
    sn_safetensors_entry *entries;
    char (*names)[NAME_SIZE];
    float *values;
    size_t n;
} lora;

/* -- the configuration */

static sn_status read_config(const char *folder, json_t **out, sn_err *err) {
    char path[PATH_SIZE];
    json_error_t error;
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/adapter_config.json", folder) >= (int)sizeof path)
        return sn_fail(err, SN_REFUSED, "the path of an adapter is too long");
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!*out) return sn_fail(err, SN_REFUSED, "%s cannot be read: %.100s", path, error.text);
    if (json_is_object(*out)) return SN_OK;
    json_decref(*out);
    *out = NULL;
    return sn_fail(err, SN_REFUSED, "%s is no JSON object", path);
}

sn_status sn_peft_is_lora(const char *folder, bool *out, sn_err *err) {
    json_t *config;
    sn_status status = read_config(folder, &config, err);
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    *out = type && !strcmp(type, "LORA");
    json_decref(config);
    return status;
}

/* Whether an option is used at all: not null, false, zero or empty. */
static bool is_set(const json_t *value) {
    return json_is_true(value) || (json_is_number(value) && json_number_value(value) != 0) ||
           (json_is_string(value) && *json_string_value(value)) || json_array_size(value) || json_object_size(value);
}

/* What changes more than x A^T B^T of the known matrices, or the weights below them. */
static sn_status check_config(const json_t *config, sn_err *err) {
    static const char *const others[] = {"use_dora", "fan_in_fan_out", "lora_bias", "modules_to_save",
                                         "layer_replication", "target_parameters", "trainable_token_indices", "use_qalora",
                                         "use_bdlora", "alora_invocation_tokens", "arrow_config", "kasa_config",
                                         "velora_config", "monteclora_config"};
    static const char *const starts[] = {"pissa", "loftq", "olora", "corda", "lora_ga"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (is_set(json_object_get(config, others[i])))
            return sn_fail(err, SN_REFUSED, "an adapter with \"%s\" cannot be used: train plain LoRA, or merge it into the model", others[i]);
    const char *bias = json_string_value(json_object_get(config, "bias"));
    if (bias && strcmp(bias, "none"))
        return sn_fail(err, SN_REFUSED, "an adapter with \"bias\": \"%.20s\" cannot be used: train it with \"none\"", bias);
    const char *start = json_string_value(json_object_get(config, "init_lora_weights"));
    for (size_t i = 0; start && i < sizeof starts / sizeof *starts; i++)
        if (!strncmp(start, starts[i], strlen(starts[i])))
            return sn_fail(err, SN_REFUSED,
                           "an adapter begun by \"%.40s\" goes with changed weights: save it with PEFT's "
                           "path_initial_model_for_weight_conversion", start);
    return SN_OK;
}

static sn_status take_config(lora *l, const json_t *config, sn_err *err) {
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    const json_t *alpha = json_object_get(config, "lora_alpha");
    if (!type || strcmp(type, "LORA"))
        return sn_fail(err, SN_REFUSED, "an adapter of the type %.40s is no LoRA", type ? type : "(none)");
    l->root = json_is_true(json_object_get(config, "use_rslora"));
    l->alpha = json_number_value(alpha);
    if (!json_is_number(alpha) || !isfinite(l->alpha)) return sn_fail(err, SN_REFUSED, "\"lora_alpha\" is to be a number");
    sn_status status = check_config(config, err);
    if (!status) status = sn_peft_pattern_new(json_object_get(config, "alpha_pattern"), "alpha_pattern", &l->alphas, err);
    if (!status) status = sn_peft_pattern_new(json_object_get(config, "rank_pattern"), "rank_pattern", &l->ranks, err);
    return status;
}

/* -- the tensors */

static void peft_name(char out[NAME_SIZE], const char *root, int block, int module, char part) {
    snprintf(out, NAME_SIZE, "%slayers.%d.%s.lora_%c.weight", root, block, modules[module].name, part);
}

/* "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"; without the second "model." if it was trained on the model
 * without its head. *root: what stands before "layers". */
static bool parse_name(const char *name, const char **root, int *block, int *module, char *part) {
    static const char *const roots[] = {"base_model.model.model.", "base_model.model."};
    char again[NAME_SIZE];
    for (int i = 0; i < 2; i++) {
        *root = roots[i];
        if (strncmp(name, *root, strlen(*root)) || sscanf(name + strlen(*root), "layers.%6d.", block) != 1) continue;
        for (*module = 0; *module < N_MODULES; ++*module)
            for (int k = 0; k < 2; k++) {
                *part = k ? 'B' : 'A';
                peft_name(again, *root, *block, *module, *part);
                if (*block >= 0 && !strcmp(again, name)) return true;
            }
    }
    return false;
}

/* Outputs and inputs of a matrix of the model. */
static void shape_of(const sn_hparams *hp, int target, size_t *outputs, size_t *inputs) {
    size_t embd = (size_t)hp->n_embd, ff = (size_t)hp->n_ff, dim = (size_t)hp->head_dim;
    size_t q = (size_t)hp->n_heads * dim, kv = (size_t)hp->n_kv_heads * dim;
    const size_t shapes[N_TARGETS][2] = {[Q] = {q, embd},     [K] = {kv, embd},  [V] = {kv, embd}, [O] = {embd, q},
                                         [GATE] = {ff, embd}, [UP] = {ff, embd}, [DOWN] = {embd, ff}};
    *outputs = shapes[target][0];
    *inputs = shapes[target][1];
}

/* GGUF files of the llama architecture hold Q and K with the rows of each head in another order, (2i, 2i + 1) for
 * (i, i + half): our row `row` of B is this one of PEFT's. */
static size_t peft_row(const sn_hparams *hp, int target, size_t row) {
    size_t dim = (size_t)hp->head_dim, at = row % dim;
    bool turned = hp->rope_style == SN_ROPE_PAIRS && (target == Q || target == K);
    return turned ? row - at + at % 2 * (dim / 2) + at / 2 : row;
}

static float number_at(const sn_safetensors_tensor *t, size_t i) {
    float f;
    uint16_t h;
    if (t->dtype == SN_F32) {
        memcpy(&f, t->data + i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&h, t->data + i * sizeof h, sizeof h);
    return t->dtype == SN_F16 ? sn_f16_to_f32(h) : sn_bf16_to_f32(h);
}

static sn_status check_tensor(const sn_safetensors_tensor *t, size_t rows, size_t cols, sn_err *err) {
    if (t->dtype != SN_F32 && t->dtype != SN_F16 && t->dtype != SN_BF16)
        return sn_fail(err, SN_REFUSED, "%.80s is of the type %s: F32, F16 and BF16 can be used", t->name, t->type);
    if (t->n_dims != 2 || t->dims[0] != rows || t->dims[1] != cols)
        return sn_fail(err, SN_REFUSED, "%.80s has another shape than (%zu, %zu): it was trained for another model", t->name,
                       rows, cols);
    return SN_OK;
}

/* By how much the result of a matrix's adapter counts. `root`: of its tensors' names. The tensors say the rank; a pattern that says
 * another one was not written with them. */
static sn_status scale_of(const lora *l, const char *root, int block, int module, size_t rank, float *out, sn_err *err) {
    char name[NAME_SIZE];
    double alpha = l->alpha, expected = (double)rank;
    snprintf(name, sizeof name, "%slayers.%d.%s", root + strlen("base_model.model."), block, modules[module].name);
    sn_status status = sn_peft_pattern_find(l->alphas, name, &alpha, err);
    if (!status) status = sn_peft_pattern_find(l->ranks, name, &expected, err);
    if (!status && expected != (double)rank)
        status = sn_fail(err, SN_REFUSED, "%s is of rank %zu, but \"rank_pattern\" says %g: the two files are not of one adapter",
                         name, rank, expected);
    *out = (float)(l->root ? alpha / sqrt((double)rank) : alpha / (double)rank);
    return status;
}

/* A (rank, inputs) and the rows from `first` on of B, scaled, become the next two entries, of one matrix; *floats: used of
 * l->values. */
static sn_status take_target(lora *l, const sn_safetensors_tensor *a, const sn_safetensors_tensor *b, float scale, size_t first,
                             int block, int target, size_t *floats, sn_err *err) {
    size_t outputs, inputs, rank = a->dims[0];
    shape_of(l->hp, target, &outputs, &inputs);
    float *lower = l->values + *floats, *upper = lower + rank * inputs;
    for (size_t i = 0; i < rank * inputs; i++) lower[i] = number_at(a, i);
    for (size_t row = 0; row < outputs; row++)
        for (size_t k = 0; k < rank; k++)
            upper[row * rank + k] = scale * number_at(b, (first + peft_row(l->hp, target, row)) * rank + k);
    for (size_t i = 0; i < rank * (inputs + outputs); i++)
        if (!isfinite(lower[i])) return sn_fail(err, SN_REFUSED, "%.80s or its other half holds what is no number", a->name);
    *floats += rank * (inputs + outputs);
    for (int k = 0; k < 2; k++) {
        snprintf(l->names[l->n], NAME_SIZE, "lora_%c.%d.%s", k ? 'b' : 'a', block, targets[target]);
        l->entries[l->n] = (sn_safetensors_entry){
            l->names[l->n], SN_F32, 2, {k ? outputs : rank, k ? rank : inputs}, k ? upper : lower};
        l->n++;
    }
    return SN_OK;
}

/* A and B of one of PEFT's matrices. */
static sn_status take_pair(lora *l, const sn_safetensors_tensor *a, const sn_safetensors_tensor *b, const char *root, int block,
                           int module, size_t *floats, sn_err *err) {
    float scale = 0;
    size_t outputs = 0, own = 0, inputs = 0, row = 0, rank = a->n_dims == 2 ? a->dims[0] : 0;
    int first = modules[module].first, end = first + modules[module].n;
    for (int t = first; t < end; t++, outputs += own) shape_of(l->hp, t, &own, &inputs);
    if (block >= l->hp->n_blocks)
        return sn_fail(err, SN_REFUSED, "%.80s is of a layer that this model has not: it was trained for another one", a->name);
    if (rank < 1 || rank > RANK_MAX)
        return sn_fail(err, SN_REFUSED, "%.80s is of rank %zu: 1 to %d can be used", a->name, rank, RANK_MAX);
    sn_status status = check_tensor(a, rank, inputs, err);
    if (!status) status = check_tensor(b, outputs, rank, err);
    if (!status) status = scale_of(l, root, block, module, rank, &scale, err);
    for (int t = first; t < end && !status; t++, row += own) {
        status = take_target(l, a, b, scale, row, block, t, floats, err);
        shape_of(l->hp, t, &own, &inputs);
    }
    return status;
}

static sn_status take_tensors(lora *l, sn_err *err) {
    size_t n = sn_safetensors_n_tensors(l->file), room = 0, floats = 0;
    sn_status status = SN_OK;
    if (!n) return sn_fail(err, SN_REFUSED, "it holds no tensors");
    for (size_t i = 0; i < n; i++) room += sn_safetensors_tensor_at(l->file, i)->elements; /* there are bytes for each */
    status = sn_calloc(&l->entries, n * TOGETHER_MAX, sizeof *l->entries, err);
    if (!status) status = sn_calloc(&l->names, n * TOGETHER_MAX, sizeof *l->names, err);
    if (!status) status = sn_calloc(&l->values, room * TOGETHER_MAX, sizeof *l->values, err);
    for (size_t i = 0; i < n && !status; i++) {
        const sn_safetensors_tensor *t = sn_safetensors_tensor_at(l->file, i);
        char part, other[NAME_SIZE];
        const char *root;
        int block, module;
        if (!parse_name(t->name, &root, &block, &module, &part))
            return sn_fail(err, SN_REFUSED, "the tensor %.80s cannot be used: only LoRA of q, k, v, o, gate, up and down can", t->name);
        peft_name(other, root, block, module, part == 'A' ? 'B' : 'A');
        const sn_safetensors_tensor *pair = sn_safetensors_find(l->file, other);
        if (!pair) return sn_fail(err, SN_REFUSED, "%.80s has no %.80s beside it", t->name, other);
        if (part == 'A') status = take_pair(l, t, pair, root, block, module, &floats, err);
    }
    return status;
}

static sn_status convert(const json_t *config, const sn_safetensors *file, const sn_hparams *hp, sn_buf *image, sn_err *err) {
    lora l = {.hp = hp, .file = file};
    sn_status status = take_config(&l, config, err);
    if (!status) status = take_tensors(&l, err);
    if (!status) status = sn_safetensors_image(l.entries, l.n, image, err);
    sn_peft_pattern_free(&l.alphas);
    sn_peft_pattern_free(&l.ranks);
    free(l.entries);
    free(l.names);
    free(l.values);
    return status;
}

sn_status sn_peft_lora(const char *folder, const sn_hparams *hp, sn_buf *image, sn_err *err) {
    char path[PATH_SIZE];
    json_t *config = NULL;
    sn_safetensors *file = NULL;
    sn_status status = read_config(folder, &config, err);
    if (!status && snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder) >= (int)sizeof path)
        status = sn_fail(err, SN_REFUSED, "the path of an adapter is too long");
    if (!status) status = sn_safetensors_open(path, &file, err);
    if (!status) status = convert(config, file, hp, image, err);
    sn_safetensors_close(&file);
    json_decref(config);
    return status ? sn_err_context(err, "%.200s", folder) : SN_OK;
}

sn_status sn_peft_lora_parse(const char *config, size_t len, const void *tensors, size_t tensors_len, const sn_hparams *hp,
                             sn_buf *image, sn_err *err) {
    sn_safetensors *file = NULL;
    json_t *object = json_loadb(config, len, JSON_REJECT_DUPLICATES, NULL);
    sn_status status = object ? sn_safetensors_open_memory(tensors, tensors_len, "an adapter", &file, err)
                              : sn_fail(err, SN_REFUSED, "an adapter's configuration is no JSON");
    if (!status) status = convert(object, file, hp, image, err);
    sn_safetensors_close(&file);
    json_decref(object);
    return status;
}
