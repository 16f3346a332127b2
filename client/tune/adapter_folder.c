/* How it works. A folder consists of a JSON file that names the method and the shape, and a safetensors file.
 *
 * Saving first builds the list of tensors in memory (struct tensors), then writes both files under a temporary name and
 * renames them. For prompt tuning, deep prompts and classifiers, each parameter is one tensor. For LoRA, PEFT names the
 * tensors after modules of the Hugging Face model, and one such module can hold several of our matrices (a fused
 * q, k and v, for example; model/peft/peft_modules.h). The adapters of these matrices become one adapter of a higher
 * rank: the As are stacked, and each B fills its own rows and columns of a B that is zero elsewhere. The product is
 * exactly the product of each matrix's own adapter.
 *
 * Loading reads the method and the shape, allocates parameters of that shape and copies each tensor in. It derives the
 * LoRA targets from the tensors of block 0. It refuses fused modules, because their ranks cannot be separated again.
 * Data from the file passes through sn_guard, which checks its shape and its values. */
#include "client/tune/adapter_folder.h"

#include "base/file.h"
#include "base/mem.h"
#include "blocks/adapter.h"
#include "device/guard.h"
#include "model/json.h"
#include "model/peft/peft_modules.h"
#include "model/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_SIZE = SN_PEFT_NAME_MAX + 16, CONFIG_MAX = 64 << 20 };

/* The method's name in the config file. A model that normalises its embeddings needs a name of its own for prompt
 * tuning, because PEFT applies that norm to virtual tokens and this project does not. */
static const char *peft_type(sn_method method, const sn_hparams *hp) {
    static const char *const types[SN_METHOD_COUNT] = {"PROMPT_TUNING", "SWARM_DEEP_PROMPT", "LORA", "SWARM_HEAD"};
    return method == SN_METHOD_PROMPT && sn_peft_norms_embeddings(hp) ? "SWARM_PROMPT" : types[method];
}

/* The tensor name of a parameter that is not LoRA. */
static void param_own_name(const sn_param *p, char out[NAME_SIZE]) {
    if (!strcmp(p->name, "prompt"))
        snprintf(out, NAME_SIZE, "prompt_embeddings");
    else if (!strcmp(p->name, "score"))
        snprintf(out, NAME_SIZE, "score.weight");
    else
        snprintf(out, NAME_SIZE, "deep_%s", p->name);
}

/* The number of a module's matrices that LoRA adapts. */
static int module_count_targets(const sn_params_shape *s, const sn_peft_module *m) {
    int n = 0;
    for (int i = 0; i < m->n_roles; i++) n += s->target[m->role[i]];
    return n;
}

static void lora_name(const sn_hparams *hp, const sn_peft_module *m, int block, char part, char out[NAME_SIZE]) {
    char module[SN_PEFT_NAME_MAX];
    sn_peft_module_name(hp, m, block, false, module);
    snprintf(out, NAME_SIZE, "%s.lora_%c.weight", module, part);
}

static const sn_param *find_param(const sn_params *p, int block, sn_role role, bool b) {
    for (size_t i = 0; i < p->n; i++)
        if (p->list[i].block == block && p->list[i].role == role && p->list[i].b == b) return &p->list[i];
    return NULL;
}

/* -- saving */

static json_t *number_json(double x) { return x == (double)(int)x ? json_integer((int)x) : json_real(x); }

/* The layers that have LoRA, for PEFT, unless all have. */
static void config_add_layers(json_t *config, const sn_params *p) {
    json_t *layers = json_array();
    for (int b = p->first; b < p->end; b++) json_array_append_new(layers, json_integer(b));
    if (p->end - p->first < p->n_blocks)
        json_object_set_new(config, "layers_to_transform", layers);
    else
        json_decref(layers);
}

/* The adapter of a fused module has the sum of the ranks of its matrices. Its alpha grows equally, so the scale
 * alpha / rank stays the same. */
static void config_add_lora(json_t *config, const sn_params_shape *s, const sn_hparams *hp) {
    sn_peft_module modules[SN_PEFT_MODULES_MAX];
    int n = sn_peft_modules(hp, modules);
    json_t *list = json_array(), *ranks = json_object(), *alphas = json_object();
    for (int i = 0; i < n; i++) {
        int n_targets = module_count_targets(s, &modules[i]);
        const char *name = sn_peft_module_end(&modules[i]);
        if (n_targets) json_array_append_new(list, json_string(name));
        if (n_targets > 1) json_object_set_new(ranks, name, json_integer(n_targets * s->rank));
        if (n_targets > 1) json_object_set_new(alphas, name, number_json(n_targets * s->alpha));
    }
    json_object_set_new(config, "r", json_integer(s->rank));
    json_object_set_new(config, "lora_alpha", number_json(s->alpha));
    json_object_set_new(config, "rank_pattern", ranks);
    json_object_set_new(config, "alpha_pattern", alphas);
    json_object_set_new(config, "lora_dropout", json_real(0));
    json_object_set_new(config, "bias", json_string("none"));
    json_object_set_new(config, "fan_in_fan_out", json_false());
    json_object_set_new(config, "target_modules", list);
}

static json_t *config_json(const sn_params *p, const sn_hparams *hp, char *const *labels) {
    const sn_params_shape *s = &p->shape;
    json_t *config = json_pack("{ss ss ss sb}", "peft_type", peft_type(s->method, hp), "task_type",
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
        config_add_lora(config, s, hp);
        config_add_layers(config, p);
    } else {
        json_t *list = json_array();
        for (int i = 0; i < s->n_labels; i++) json_array_append_new(list, json_string(labels[i]));
        json_object_set_new(config, "labels", list);
    }
    return config;
}

static sn_status save_config(const char *folder, const json_t *config, sn_err *err) {
    char path[SN_PATH_SIZE];
    char *text = config ? json_dumps(config, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    sn_status status = sn_path_join(path, folder, "adapter_config.json", err);
    if (!status)
        status = text ? sn_file_replace(path, text, strlen(text), err) : sn_fail(err, SN_STOP, "out of memory");
    free(text);
    return status;
}

/* The content of the safetensors file. `free` is the unused part of `values`. */
typedef struct tensors {
    char (*names)[NAME_SIZE];
    sn_safetensors_entry *entries;
    size_t n;
    float *values, *free;
} tensors;

static float *tensors_add(tensors *t, size_t rows, size_t cols) {
    float *values = t->free;
    t->entries[t->n] = (sn_safetensors_entry){t->names[t->n], SN_F32, 2, {rows, cols}, values};
    t->n++;
    t->free += rows * cols;
    return values;
}

/* Adds the adapter of one module. The As of its matrices are stacked by rows. The Bs are placed side by side, each in
 * the rows of its matrix, and the rest of the array stays zero. */
static void tensors_add_module(tensors *t, const sn_params *p, const sn_hparams *hp, const sn_peft_module *m,
                               int block) {
    size_t rank = (size_t)p->shape.rank, all = rank * (size_t)module_count_targets(&p->shape, m), rank_at = 0;
    if (!all) return;
    lora_name(hp, m, block, 'A', t->names[t->n]);
    lora_name(hp, m, block, 'B', t->names[t->n + 1]);
    float *a_values = tensors_add(t, all, m->inputs), *b_values = tensors_add(t, m->outputs, all); /* zeroed */
    for (int i = 0; i < m->n_roles; i++) {
        if (!p->shape.target[m->role[i]]) continue;
        const sn_param *a = find_param(p, block, m->role[i], false), *b = find_param(p, block, m->role[i], true);
        memcpy(a_values + rank_at * m->inputs, p->values + a->at, rank * m->inputs * sizeof *a_values);
        for (size_t r = 0; r < b->rows; r++)
            memcpy(b_values + sn_peft_row(hp, m->role[i], r) * all + rank_at, p->values + b->at + r * rank,
                   rank * sizeof *b_values);
        rank_at += rank;
    }
}

static void tensors_add_all(tensors *t, const sn_params *p, const sn_hparams *hp) {
    sn_peft_module modules[SN_PEFT_MODULES_MAX];
    int n_modules = sn_peft_modules(hp, modules);
    for (int b = p->first; b < p->end && p->shape.method == SN_METHOD_LORA; b++)
        for (int m = 0; m < n_modules; m++) tensors_add_module(t, p, hp, &modules[m], b);
    for (size_t i = 0; i < p->n && p->shape.method != SN_METHOD_LORA; i++) {
        const sn_param *param = &p->list[i];
        param_own_name(param, t->names[t->n]);
        memcpy(tensors_add(t, param->rows, param->cols), p->values + param->at,
               param->rows * param->cols * sizeof *t->values);
    }
}

static size_t count_floats(const sn_params *p, const sn_hparams *hp) {
    sn_peft_module modules[SN_PEFT_MODULES_MAX];
    int n_modules = p->shape.method == SN_METHOD_LORA ? sn_peft_modules(hp, modules) : 0;
    size_t n = n_modules ? 0 : p->n_floats;
    for (int m = 0; m < n_modules; m++)
        n += (size_t)module_count_targets(&p->shape, &modules[m]) * (modules[m].inputs + modules[m].outputs);
    return n_modules ? n * (size_t)p->shape.rank * (size_t)(p->end - p->first) : n;
}

static sn_status save_tensors(const char *folder, const sn_params *p, const sn_hparams *hp, sn_err *err) {
    char path[SN_PATH_SIZE];
    tensors t = {0};
    sn_status status = sn_path_join(path, folder, "adapter_model.safetensors", err);
    if (status) return status;
    status = sn_calloc(&t.names, p->n, sizeof *t.names, err);
    if (!status) status = sn_calloc(&t.entries, p->n, sizeof *t.entries, err);
    if (!status) status = sn_calloc(&t.values, count_floats(p, hp), sizeof *t.values, err);
    t.free = t.values;
    if (!status) tensors_add_all(&t, p, hp);
    if (!status) status = sn_safetensors_write(path, t.entries, t.n, err);
    free(t.names);
    free(t.entries);
    free(t.values);
    return status;
}

/* Removes the file that makes the folder an adapter, and brings that to the disk before others change. */
static sn_status remove_config(const char *folder, sn_err *err) {
    char path[SN_PATH_SIZE];
    sn_status status = sn_path_join(path, folder, "adapter_config.json", err);
    if (status || access(path, F_OK)) return status;
    if (unlink(path)) return sn_fail(err, SN_REFUSED, "%s cannot be replaced: %s", path, strerror(errno));
    return sn_folder_sync(folder, err);
}

sn_status sn_adapter_folder_save(const char *folder, const sn_params *params, const sn_hparams *hp,
                                 const sn_base_weights *base, char *const *labels, sn_err *err) {
    json_t *config = config_json(params, hp, labels);
    sn_status status = remove_config(folder, err);
    if (!status) status = save_tensors(folder, params, hp, err);
    if (!status && base) status = sn_base_weights_save(base, folder, err);
    if (!status) status = sn_folder_sync(folder, err);
    if (!status) status = save_config(folder, config, err);
    if (!status) status = sn_folder_sync(folder, err);
    json_decref(config);
    return status;
}

/* -- loading */

static sn_status read_labels(const json_t *config, sn_adapter_folder *out, sn_params_shape *shape, sn_err *err) {
    const json_t *labels = json_object_get(config, "labels");
    size_t n = json_array_size(labels);
    if (n < 2 || n > SN_LABELS_MAX)
        return sn_fail(err, SN_REFUSED, "\"labels\" must be a list of 2 to %d names", SN_LABELS_MAX);
    sn_status status = sn_calloc(&out->labels, n, sizeof *out->labels, err);
    for (size_t i = 0; i < n && !status; i++) {
        const char *label = json_string_value(json_array_get(labels, i));
        if (!label) return sn_fail(err, SN_REFUSED, "\"labels\" must be a list of names");
        out->labels[i] = strdup(label);
        if (!out->labels[i]) return sn_fail(err, SN_STOP, "out of memory");
        shape->n_labels = (int)i + 1;
    }
    return status;
}

static sn_status read_shape(const json_t *config, const sn_hparams *hp, sn_adapter_folder *out, sn_params_shape *shape,
                            sn_err *err) {
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    int method = 0;
    while (method < SN_METHOD_COUNT && (!type || strcmp(type, peft_type((sn_method)method, hp)))) method++;
    if (type && method == SN_METHOD_COUNT && !strcmp(type, "PROMPT_TUNING"))
        return sn_fail(
            err, SN_REFUSED,
            "PEFT's prompt tuning cannot be used with this model, which normalises its embeddings: train the prompt "
            "with swarm tune");
    if (method == SN_METHOD_COUNT)
        return sn_fail(err, SN_REFUSED,
                       "adapters of type %.40s cannot be used: use LORA, PROMPT_TUNING or an adapter of swarm tune",
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

/* A matrix is a LoRA target if the file has an adapter of it in block 0. */
static void find_targets(const sn_safetensors *file, const sn_hparams *hp, sn_params_shape *shape) {
    sn_peft_module modules[SN_PEFT_MODULES_MAX];
    int n = sn_peft_modules(hp, modules);
    for (int i = 0; i < n; i++) {
        char name[NAME_SIZE];
        lora_name(hp, &modules[i], 0, 'A', name);
        shape->target[modules[i].role[0]] = modules[i].n_roles == 1 && sn_safetensors_find(file, name);
    }
}

/* The name of a parameter's tensor in the file. */
static void param_name(const sn_hparams *hp, const sn_param *p, char name[NAME_SIZE]) {
    sn_peft_module modules[SN_PEFT_MODULES_MAX];
    int n = sn_peft_modules(hp, modules);
    param_own_name(p, name);
    for (int i = 0; i < n; i++)
        if (modules[i].role[0] == p->role) lora_name(hp, &modules[i], p->block, p->b ? 'B' : 'A', name);
}

static sn_status read_tensors(const sn_safetensors *file, const sn_hparams *hp, sn_params *p, sn_err *err) {
    sn_status status = SN_OK;
    if (sn_safetensors_n_tensors(file) != p->n)
        return sn_fail(
            err, SN_REFUSED,
            "it holds %zu tensors where %zu are expected: it was made for another model or by an unknown method",
            sn_safetensors_n_tensors(file), p->n);
    for (size_t i = 0; i < p->n && !status; i++) {
        const sn_param *param = &p->list[i];
        char name[NAME_SIZE];
        float *values = NULL;
        param_name(hp, param, name);
        const sn_safetensors_tensor *t = sn_safetensors_find(file, name);
        const int64_t shape[] = {(int64_t)param->rows, (int64_t)param->cols};
        if (!t || t->n_dims != 2 || t->dims[0] != param->rows || t->dims[1] != param->cols)
            return sn_fail(err, SN_REFUSED,
                           "%s is missing or does not have the shape (%zu, %zu): it was made for another model", name,
                           param->rows, param->cols);
        sn_tensor outside = {
            .name = t->name, .data = t->data, .dtype = t->dtype, .rank = 2, .shape = {shape[0], shape[1]}};
        status = sn_calloc(&values, param->rows * param->cols, sizeof *values, err);
        if (!status) status = sn_guard(&outside, NULL, 2, shape, values, NULL, err);
        for (size_t r = 0; r < param->rows && !status; r++) {
            size_t file_row = param->b ? sn_peft_row(hp, param->role, r) : r;
            memcpy(p->values + param->at + r * param->cols, values + file_row * param->cols,
                   param->cols * sizeof *values);
        }
        free(values);
    }
    return status;
}

sn_status sn_adapter_folder_load(const char *folder, const sn_hparams *hp, sn_adapter_folder *out, sn_err *err) {
    char path[SN_PATH_SIZE];
    json_error_t error;
    sn_params_shape shape = {0};
    sn_safetensors *file = NULL;
    *out = (sn_adapter_folder){0};
    sn_status status = sn_path_join(path, folder, "adapter_config.json", err);
    if (status) return status;
    sn_buf text = {0};
    status = sn_read_file(path, CONFIG_MAX, &text, err);
    if (status) return status;
    json_t *config = sn_json_read((const char *)text.data, text.len, &error);
    sn_buf_fini(&text);
    if (!config) return sn_fail(err, SN_REFUSED, "%s cannot be read: %.100s", path, error.text);
    status = read_shape(config, hp, out, &shape, err);
    if (!status) status = sn_path_join(path, folder, "adapter_model.safetensors", err);
    if (!status) status = sn_safetensors_open(path, &file, err);
    if (!status && shape.method == SN_METHOD_LORA) find_targets(file, hp, &shape);
    if (!status) status = sn_params_new(hp, &shape, &out->params, err);
    if (!status) status = read_tensors(file, hp, out->params, err);
    sn_safetensors_close(&file);
    json_decref(config);
    if (!status) return SN_OK;
    for (int i = 0; i < shape.n_labels && out->labels; i++) free(out->labels[i]);
    free(out->labels);
    sn_params_free(&out->params);
    *out = (sn_adapter_folder){0};
    return sn_err_context(err, "%s", folder);
}

void sn_adapter_folder_fini(sn_adapter_folder *a) {
    for (int i = 0; a->labels && i < a->params->shape.n_labels; i++) free(a->labels[i]);
    free(a->labels);
    sn_params_free(&a->params);
    *a = (sn_adapter_folder){0};
}
