#include "client/tune/adapter.h"

#include "base/mem.h"
#include "blocks/tuning.h"
#include "device/guard.h"
#include "model/safetensors.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, NAME_SIZE = 160 };

/* PEFT's names of the methods, and of the matrices. */
static const char *const types[SN_METHOD_COUNT] = {"PROMPT_TUNING", "SWARM_DEEP_PROMPT", "LORA", "SWARM_HEAD"};
static const struct {
    sn_role role;
    const char *name, *module;
} modules[] = {{SN_ROLE_ATTN_Q, "q_proj", "self_attn"}, {SN_ROLE_ATTN_K, "k_proj", "self_attn"},
               {SN_ROLE_ATTN_V, "v_proj", "self_attn"}, {SN_ROLE_ATTN_O, "o_proj", "self_attn"},
               {SN_ROLE_FFN_GATE, "gate_proj", "mlp"},  {SN_ROLE_FFN_UP, "up_proj", "mlp"},
               {SN_ROLE_FFN_DOWN, "down_proj", "mlp"}};
enum { N_MODULES = sizeof modules / sizeof *modules };

static void peft_name(const sn_param *p, char out[NAME_SIZE]) {
    if (!strcmp(p->name, "prompt"))
        snprintf(out, NAME_SIZE, "prompt_embeddings");
    else if (!strcmp(p->name, "score"))
        snprintf(out, NAME_SIZE, "score.weight");
    else if (p->role == SN_ROLE_COUNT)
        snprintf(out, NAME_SIZE, "deep_%s", p->name);
    for (int i = 0; i < N_MODULES; i++)
        if (modules[i].role == p->role)
            snprintf(out, NAME_SIZE, "base_model.model.model.layers.%d.%s.%s.lora_%c.weight", p->block,
                     modules[i].module, modules[i].name, p->b ? 'B' : 'A');
}

/* GGUF files of the llama architecture hold Q and K with the rows of each head in another order, (2i, 2i + 1) for
 * (i, i + half): so are the rows of the adapters' second matrices. Row `row` of ours is this one of PEFT's. */
static size_t peft_row(const sn_hparams *hp, const sn_param *p, size_t row) {
    bool turned = hp->rope_style == SN_ROPE_PAIRS && p->b && (p->role == SN_ROLE_ATTN_Q || p->role == SN_ROLE_ATTN_K);
    size_t dim = (size_t)hp->head_dim, at = row % dim;
    return turned ? row - at + at % 2 * (dim / 2) + at / 2 : row;
}

/* -- saving */

static json_t *config_of(const sn_params *p, const sn_hparams *hp, char *const *labels) {
    const sn_params_shape *s = &p->shape;
    json_t *config = json_pack("{ss ss ss sb}", "peft_type", types[s->method], "task_type",
                               s->method == SN_METHOD_HEAD ? "SEQ_CLS" : "CAUSAL_LM", "base_model_name_or_path",
                               hp->name, "inference_mode", 1);
    if (s->method == SN_METHOD_PROMPT || s->method == SN_METHOD_DEEP_PROMPT) {
        json_object_set_new(config, "num_virtual_tokens", json_integer(s->prompt_tokens));
        json_object_set_new(config, "token_dim", json_integer(hp->n_embd));
        json_object_set_new(config, "num_transformer_submodules", json_integer(1));
        json_object_set_new(config, "num_attention_heads", json_integer(hp->n_heads));
        json_object_set_new(config, "num_layers", json_integer(hp->n_blocks));
        json_object_set_new(config, "prompt_tuning_init", json_string("RANDOM"));
    } else if (s->method == SN_METHOD_LORA) {
        json_t *list = json_array();
        for (int i = 0; i < N_MODULES; i++)
            if (s->target[modules[i].role]) json_array_append_new(list, json_string(modules[i].name));
        json_object_set_new(config, "r", json_integer(s->rank));
        json_object_set_new(config, "lora_alpha",
                            s->alpha == (double)(int)s->alpha ? json_integer((int)s->alpha) : json_real(s->alpha));
        json_object_set_new(config, "lora_dropout", json_real(0));
        json_object_set_new(config, "bias", json_string("none"));
        json_object_set_new(config, "fan_in_fan_out", json_false());
        json_object_set_new(config, "target_modules", list);
    } else {
        json_t *list = json_array();
        for (int i = 0; i < s->n_labels; i++) json_array_append_new(list, json_string(labels[i]));
        json_object_set_new(config, "labels", list);
    }
    return config;
}

static sn_status save_config(const char *folder, json_t *config, sn_err *err) {
    char path[PATH_SIZE], unfinished[PATH_SIZE + 8];
    if (snprintf(path, sizeof path, "%s/adapter_config.json", folder) >= (int)sizeof path)
        return sn_fail(err, SN_REFUSED, "the path is too long");
    snprintf(unfinished, sizeof unfinished, "%s.part", path);
    if (!config || json_dump_file(config, unfinished, JSON_INDENT(2) | JSON_PRESERVE_ORDER) || rename(unfinished, path))
        return sn_fail(err, SN_REFUSED, "%s cannot be written: is there room, and may you write there?", path);
    return SN_OK;
}

static sn_status save_tensors(const char *folder, const sn_params *p, const sn_hparams *hp, sn_err *err) {
    char path[PATH_SIZE], (*names)[NAME_SIZE] = NULL;
    sn_safetensors_entry *entries = NULL;
    float *values = NULL;
    if (snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder) >= (int)sizeof path)
        return sn_fail(err, SN_REFUSED, "the path is too long");
    sn_status status = sn_calloc(&names, p->n, sizeof *names, err);
    if (!status) status = sn_calloc(&entries, p->n, sizeof *entries, err);
    if (!status) status = sn_calloc(&values, p->n_floats, sizeof *values, err);
    for (size_t i = 0; i < p->n && !status; i++) {
        const sn_param *param = &p->list[i];
        peft_name(param, names[i]);
        for (size_t r = 0; r < param->rows; r++)
            memcpy(values + param->at + peft_row(hp, param, r) * param->cols, p->values + param->at + r * param->cols,
                   param->cols * sizeof *values);
        entries[i] = (sn_safetensors_entry){names[i], SN_F32, 2, {param->rows, param->cols}, values + param->at};
    }
    if (!status) status = sn_safetensors_write(path, entries, p->n, err);
    free(names);
    free(entries);
    free(values);
    return status;
}

sn_status sn_adapter_save(const char *folder, const sn_params *params, const sn_hparams *hp, char *const *labels,
                          sn_err *err) {
    json_t *config = config_of(params, hp, labels);
    sn_status status = save_tensors(folder, params, hp, err);
    if (!status) status = save_config(folder, config, err);
    json_decref(config);
    return status;
}

/* -- loading */

static sn_status read_labels(const json_t *config, sn_adapter *out, sn_params_shape *shape, sn_err *err) {
    const json_t *labels = json_object_get(config, "labels");
    size_t n = json_array_size(labels);
    if (n < 2 || n > SN_LABELS_MAX)
        return sn_fail(err, SN_REFUSED, "\"labels\" is a list of 2 to %d names", SN_LABELS_MAX);
    sn_status status = sn_calloc(&out->labels, n, sizeof *out->labels, err);
    for (size_t i = 0; i < n && !status; i++) {
        const char *label = json_string_value(json_array_get(labels, i));
        if (!label) return sn_fail(err, SN_REFUSED, "\"labels\" is a list of names");
        out->labels[i] = strdup(label);
        if (!out->labels[i]) return sn_fail(err, SN_STOP, "out of memory");
        shape->n_labels = (int)i + 1;
    }
    return status;
}

static sn_status read_shape(const json_t *config, sn_adapter *out, sn_params_shape *shape, sn_err *err) {
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    int method = 0;
    while (method < SN_METHOD_COUNT && (!type || strcmp(type, types[method]))) method++;
    if (method == SN_METHOD_COUNT)
        return sn_fail(err, SN_REFUSED,
                       "adapters of the type %.40s cannot be used: these can: LORA, PROMPT_TUNING, and swarm's own",
                       type ? type : "(none)");
    shape->method = (sn_method)method;
    shape->prompt_tokens = (int)json_integer_value(json_object_get(config, "num_virtual_tokens"));
    shape->rank = (int)json_integer_value(json_object_get(config, "r"));
    shape->alpha = json_number_value(json_object_get(config, "lora_alpha"));
    if (json_is_true(json_object_get(config, "use_rslora")) || json_is_true(json_object_get(config, "use_dora")) ||
        json_object_size(json_object_get(config, "rank_pattern")) ||
        json_object_size(json_object_get(config, "alpha_pattern")))
        return sn_fail(
            err, SN_REFUSED,
            "adapters with use_rslora, use_dora, rank_pattern or alpha_pattern cannot be used: train plain LoRA");
    return method == SN_METHOD_HEAD ? read_labels(config, out, shape, err) : SN_OK;
}

/* A matrix gets an adapter if block 0 has one. */
static void find_targets(const sn_safetensors *file, sn_params_shape *shape) {
    char name[NAME_SIZE];
    for (int i = 0; i < N_MODULES; i++) {
        const sn_param param = {.role = modules[i].role};
        peft_name(&param, name);
        shape->target[modules[i].role] = sn_safetensors_find(file, name) != NULL;
    }
}

static sn_status read_tensors(const sn_safetensors *file, const sn_hparams *hp, sn_params *p, sn_err *err) {
    sn_status status = SN_OK;
    if (sn_safetensors_n_tensors(file) != p->n)
        return sn_fail(
            err, SN_REFUSED,
            "it holds %zu tensors where %zu are due: it was made for another model, or in a way that is not known",
            sn_safetensors_n_tensors(file), p->n);
    for (size_t i = 0; i < p->n && !status; i++) {
        const sn_param *param = &p->list[i];
        char name[NAME_SIZE];
        float *plain = NULL;
        peft_name(param, name);
        const sn_safetensors_tensor *t = sn_safetensors_find(file, name);
        const int64_t shape[] = {(int64_t)param->rows, (int64_t)param->cols};
        if (!t || t->n_dims != 2 || t->dims[0] != param->rows || t->dims[1] != param->cols)
            return sn_fail(err, SN_REFUSED,
                           "%s is missing, or has another shape than (%zu, %zu): it was made for another model", name,
                           param->rows, param->cols);
        sn_tensor outside = {
            .name = t->name, .data = t->data, .dtype = t->dtype, .rank = 2, .shape = {shape[0], shape[1]}};
        status = sn_calloc(&plain, param->rows * param->cols, sizeof *plain, err);
        if (!status) status = sn_guard(&outside, NULL, 2, shape, plain, NULL, err);
        for (size_t r = 0; r < param->rows && !status; r++)
            memcpy(p->values + param->at + r * param->cols, plain + peft_row(hp, param, r) * param->cols,
                   param->cols * sizeof *plain);
        free(plain);
    }
    return status;
}

sn_status sn_adapter_load(const char *folder, const sn_hparams *hp, sn_adapter *out, sn_err *err) {
    char path[PATH_SIZE];
    json_error_t error;
    sn_params_shape shape = {0};
    sn_safetensors *file = NULL;
    *out = (sn_adapter){0};
    if (snprintf(path, sizeof path, "%s/adapter_config.json", folder) >= (int)sizeof path)
        return sn_fail(err, SN_REFUSED, "the path is too long");
    json_t *config = json_load_file(path, 0, &error);
    if (!config) return sn_fail(err, SN_REFUSED, "%s cannot be read: %.100s", path, error.text);
    sn_status status = read_shape(config, out, &shape, err);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    if (!status) status = sn_safetensors_open(path, &file, err);
    if (!status && shape.method == SN_METHOD_LORA) find_targets(file, &shape);
    if (!status) status = sn_params_new(hp, &shape, &out->params, err);
    if (!status) status = read_tensors(file, hp, out->params, err);
    sn_safetensors_close(&file);
    json_decref(config);
    if (!status) return SN_OK;
    for (int i = 0; i < shape.n_labels && out->labels; i++) free(out->labels[i]);
    free(out->labels);
    sn_params_free(&out->params);
    *out = (sn_adapter){0};
    return sn_err_context(err, "%s", folder);
}

void sn_adapter_fini(sn_adapter *a) {
    for (int i = 0; a->labels && i < a->params->shape.n_labels; i++) free(a->labels[i]);
    free(a->labels);
    sn_params_free(&a->params);
    *a = (sn_adapter){0};
}
