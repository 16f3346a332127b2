/* Converts a PEFT folder to the adapter image of blocks/adapter.h. lora_read_config reads alpha and its patterns and
 * refuses options that change what LoRA computes. lora_add_tensors goes over the tensors: each name is matched with the
 * names that this model's modules have in PEFT (parse_tensor_name), each A is paired with its B, and lora_add_pair
 * converts the pair, role by role: the rows of B that belong to the role, in the order of this model's file, times the
 * scale; and A.
 *
 * A module of several roles (query_key_value) has one A for all of them. Each role gets its own copy, reduced to the
 * ranks for which its rows of B are not all zero. */
#include "model/peft/peft.h"

#include "base/file.h"
#include "base/parse.h"
#include "model/json.h"
#include "model/peft/peft_modules.h"
#include "model/peft/peft_pattern.h"
#include "model/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, NAME_SIZE = SN_PEFT_NAME_MAX + 16, RANK_MAX = 256, CONFIG_MAX = 64 << 20 };

/* The names of matrices in the image (blocks/adapter.h). */
static const char *const targets[SN_ROLE_COUNT] = {
    [SN_ROLE_ATTN_Q] = "q",      [SN_ROLE_ATTN_K] = "k",  [SN_ROLE_ATTN_V] = "v",     [SN_ROLE_ATTN_O] = "o",
    [SN_ROLE_FFN_GATE] = "gate", [SN_ROLE_FFN_UP] = "up", [SN_ROLE_FFN_DOWN] = "down"};

typedef struct lora {
    const sn_hparams *hp;
    sn_peft_module modules[SN_PEFT_MODULES_MAX];
    int n_modules;
    double alpha;
    sn_peft_pattern *alphas, *ranks; /* alpha_pattern and rank_pattern */
    bool rslora;                     /* the scale is alpha / sqrt(r), not alpha / r */
    const sn_safetensors *file;
    sn_safetensors_entry *entries;
    char (*names)[NAME_SIZE];
    float *values;
    size_t n;
} lora;

/* ---- the configuration ---- */

static sn_status read_config(const char *folder, json_t **out, sn_err *err) {
    char path[PATH_SIZE];
    json_error_t error;
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/adapter_config.json", folder) >= (int)sizeof path)
        return sn_fail(err, SN_REFUSED, "the path of an adapter is too long");
    if (access(path, F_OK))
        return sn_fail(
            err, SN_REFUSED,
            "%.200s has no adapter_config.json (of a training that is not finished, the newest step-N in the folder is "
            "an adapter)",
            folder);
    sn_buf text = {0};
    sn_status status = sn_read_file(path, CONFIG_MAX, &text, err);
    if (status) return status;
    *out = sn_json_read((const char *)text.data, text.len, &error);
    sn_buf_fini(&text);
    if (!*out) return sn_fail(err, SN_REFUSED, "%s cannot be read: %.100s", path, error.text);
    if (json_is_object(*out)) return SN_OK;
    json_decref(*out);
    *out = NULL;
    return sn_fail(err, SN_REFUSED, "%s is not a JSON object", path);
}

void sn_peft_base_name(const char *folder, char out[SN_PEFT_NAME_SIZE]) {
    json_t *config = NULL;
    sn_err unused; /* the adapter is loaded as well, and that reports errors */
    const char *name = read_config(folder, &config, &unused)
                           ? NULL
                           : json_string_value(json_object_get(config, "base_model_name_or_path"));
    snprintf(out, SN_PEFT_NAME_SIZE, "%s", name ? name : "");
    json_decref(config);
}

sn_status sn_peft_is_lora(const char *folder, bool *out, sn_err *err) {
    json_t *config;
    sn_status status = read_config(folder, &config, err);
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    *out = type && !strcmp(type, "LORA");
    json_decref(config);
    return status;
}

/* Whether an option is in use: not absent, null, false, zero or empty. */
static bool is_set(const json_t *value) {
    return json_is_true(value) || (json_is_number(value) && json_number_value(value) != 0) ||
           (json_is_string(value) && *json_string_value(value)) || json_array_size(value) || json_object_size(value);
}

/* Refuses options by which the adapter is more than x A^T B^T of the known matrices, or changes the frozen weights. */
static sn_status check_config(const json_t *config, sn_err *err) {
    static const char *const others[] = {"use_dora",
                                         "fan_in_fan_out",
                                         "lora_bias",
                                         "modules_to_save",
                                         "layer_replication",
                                         "target_parameters",
                                         "trainable_token_indices",
                                         "use_qalora",
                                         "use_bdlora",
                                         "alora_invocation_tokens",
                                         "arrow_config",
                                         "kasa_config",
                                         "velora_config",
                                         "monteclora_config"};
    static const char *const starts[] = {"pissa", "loftq", "olora", "corda", "lora_ga"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (is_set(json_object_get(config, others[i])))
            return sn_fail(err, SN_REFUSED,
                           "an adapter with \"%s\" cannot be used: train plain LoRA, or merge it into the model",
                           others[i]);
    const char *bias = json_string_value(json_object_get(config, "bias"));
    if (bias && strcmp(bias, "none"))
        return sn_fail(err, SN_REFUSED, "an adapter with \"bias\": \"%.20s\" cannot be used: train it with \"none\"",
                       bias);
    const char *method = json_string_value(json_object_get(config, "init_lora_weights"));
    for (size_t i = 0; method && i < sizeof starts / sizeof *starts; i++)
        if (!strncmp(method, starts[i], strlen(starts[i])))
            return sn_fail(err, SN_REFUSED,
                           "an adapter initialised by \"%.40s\" needs changed weights: save it with PEFT's "
                           "path_initial_model_for_weight_conversion",
                           method);
    return SN_OK;
}

static sn_status lora_read_config(lora *l, const json_t *config, sn_err *err) {
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    const json_t *alpha = json_object_get(config, "lora_alpha");
    if (!type || strcmp(type, "LORA"))
        return sn_fail(err, SN_REFUSED, "an adapter of the type %.40s is not LoRA", type ? type : "(none)");
    l->rslora = json_is_true(json_object_get(config, "use_rslora"));
    l->alpha = json_number_value(alpha);
    if (!json_is_number(alpha) || !isfinite(l->alpha))
        return sn_fail(err, SN_REFUSED, "\"lora_alpha\" must be a number");
    sn_status status = check_config(config, err);
    if (!status)
        status = sn_peft_pattern_new(json_object_get(config, "alpha_pattern"), "alpha_pattern", &l->alphas, err);
    if (!status) status = sn_peft_pattern_new(json_object_get(config, "rank_pattern"), "rank_pattern", &l->ranks, err);
    return status;
}

/* ---- the tensors ---- */

/* What the name of a tensor means: A or B of a module of a block. */
typedef struct tensor_ref {
    const sn_peft_module *module;
    int block;
    bool bare;
    char part; /* 'A', 'B' */
} tensor_ref;

static void format_tensor_name(const lora *l, const tensor_ref *p, char part, char out[NAME_SIZE]) {
    char module[SN_PEFT_NAME_MAX];
    sn_peft_module_name(l->hp, p->module, p->block, p->bare, module);
    snprintf(out, NAME_SIZE, "%s.lora_%c.weight", module, part);
}

/* Parses a tensor's name. Only the canonical spelling is accepted, so that no two names mean one tensor. */
static bool parse_tensor_name(const lora *l, const char *name, tensor_ref *out) {
    char canonical[NAME_SIZE], digits[8];
    const char *number = strpbrk(name, "0123456789"), *end = strrchr(name, '.');
    size_t len = number ? strspn(number, "0123456789") : 0;
    int64_t block;
    if (!len || len >= sizeof digits || !end || end == name) return false;
    snprintf(digits, sizeof digits, "%.*s", (int)len, number);
    if (sn_parse_int(digits, 0, 999999, &block, NULL)) return false;
    for (int i = 0; i < 2 * l->n_modules; i++) {
        *out = (tensor_ref){&l->modules[i / 2], (int)block, i % 2, end[-1]};
        format_tensor_name(l, out, out->part, canonical);
        if (!strcmp(canonical, name)) return out->part == 'A' || out->part == 'B';
    }
    return false;
}

static float element_at(const sn_safetensors_tensor *t, size_t i) {
    float f;
    uint16_t h;
    if (t->dtype == SN_F32) {
        memcpy(&f, t->data + i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&h, t->data + i * sizeof h, sizeof h);
    return t->dtype == SN_F16 ? sn_f16_to_f32(h) : sn_bf16_to_f32(h);
}

/* Then the file has the bytes of all of its elements (safetensors.h). */
static bool has_floats(const sn_safetensors_tensor *t) {
    return t->dtype == SN_F32 || t->dtype == SN_F16 || t->dtype == SN_BF16;
}

static sn_status check_tensor(const sn_safetensors_tensor *t, size_t rows, size_t cols, sn_err *err) {
    if (!has_floats(t))
        return sn_fail(err, SN_REFUSED, "%.80s is of the type %s: F32, F16 and BF16 are supported", t->name, t->type);
    if (t->n_dims != 2 || t->dims[0] != rows || t->dims[1] != cols)
        return sn_fail(err, SN_REFUSED, "%.80s has another shape than (%zu, %zu): it was trained for another model",
                       t->name, rows, cols);
    return SN_OK;
}

/* The scale of a module's LoRA. The rank is that of the tensors; a rank_pattern that says another one belongs to other
 * tensors and is refused. */
static sn_status lora_scale(const lora *l, const tensor_ref *p, size_t rank, float *out, sn_err *err) {
    char whole[SN_PEFT_NAME_MAX], *name = whole + strlen("base_model.model.");
    double alpha = l->alpha, expected = (double)rank;
    sn_peft_module_name(l->hp, p->module, p->block, p->bare, whole);
    sn_status status = sn_peft_pattern_find(l->alphas, name, &alpha, err);
    if (!status) status = sn_peft_pattern_find(l->ranks, name, &expected, err);
    if (!status && expected != (double)rank)
        status = sn_fail(err, SN_REFUSED,
                         "%s has rank %zu, but \"rank_pattern\" says %g: the two files belong to different adapters",
                         name, rank, expected);
    *out = (float)(l->rslora ? alpha / sqrt((double)rank) : alpha / (double)rank);
    return status;
}

/* Which ranks of a pair a role uses: all of them, or, in a module of several roles, those for which the role's rows of
 * B are not all zero. So adapters of `swarm tune`, which trains each role by itself, come back as they were. Returns
 * their number. */
static size_t lora_used_ranks(const lora *l, const tensor_ref *p, const sn_safetensors_tensor *b, sn_role role,
                              size_t rows, bool *used) {
    size_t rank = b->dims[1], n = 0;
    bool single = p->module->n_roles == 1;
    for (size_t k = 0; k < rank; k++) used[k] = single;
    for (size_t row = 0; row < rows && !single; row++)
        for (size_t k = 0, from = sn_peft_row(l->hp, role, row) * rank; k < rank; k++)
            used[k] |= element_at(b, from + k) != 0;
    for (size_t k = 0; k < rank; k++) n += used[k];
    return n;
}

/* Adds two entries for a role: A (rank, inputs), and the role's rows of B, scaled. *floats: how many of l->values are
 * used. */
static sn_status lora_add_role(lora *l, const tensor_ref *p, const sn_safetensors_tensor *a,
                               const sn_safetensors_tensor *b, float scale, sn_role role, size_t *floats, sn_err *err) {
    bool used[SN_PEFT_ROLES_MAX * RANK_MAX];
    size_t outputs, inputs, rank = a->dims[0];
    sn_role_shape(l->hp, role, p->block, &outputs, &inputs);
    size_t n = lora_used_ranks(l, p, b, role, outputs, used);
    if (!n) return SN_OK;
    if (n > RANK_MAX)
        return sn_fail(err, SN_REFUSED, "%.80s has rank %zu: 1 to %d are supported", a->name, n, RANK_MAX);
    float *lower = l->values + *floats, *upper = lower + n * inputs, *to = lower;
    for (size_t k = 0; k < rank; k++)
        for (size_t i = 0; i < inputs && used[k]; i++) *to++ = element_at(a, k * inputs + i);
    for (size_t row = 0; row < outputs; row++)
        for (size_t k = 0, from = sn_peft_row(l->hp, role, row) * rank; k < rank; k++)
            if (used[k]) *to++ = scale * element_at(b, from + k);
    for (const float *at = lower; at < to; at++)
        if (!isfinite(*at))
            return sn_fail(err, SN_REFUSED, "%.80s or its pair contains a value that is not finite", a->name);
    *floats += n * (inputs + outputs);
    for (int k = 0; k < 2; k++) {
        snprintf(l->names[l->n], NAME_SIZE, "lora_%c.%d.%s", k ? 'b' : 'a', p->block, targets[role]);
        l->entries[l->n] =
            (sn_safetensors_entry){l->names[l->n], SN_F32, 2, {k ? outputs : n, k ? n : inputs}, k ? upper : lower};
        l->n++;
    }
    return SN_OK;
}

/* Adds all roles of a module, given its A and B. */
static sn_status lora_add_pair(lora *l, const tensor_ref *p, const sn_safetensors_tensor *a,
                               const sn_safetensors_tensor *b, size_t *floats, sn_err *err) {
    const sn_peft_module *m = p->module;
    float scale = 0;
    size_t rank = a->n_dims == 2 ? a->dims[0] : 0, most = (size_t)m->n_roles * RANK_MAX;
    if (p->block >= l->hp->n_blocks)
        return sn_fail(err, SN_REFUSED,
                       "%.80s is of a layer that this model does not have: the adapter was trained for another model",
                       a->name);
    if (rank < 1 || rank > most)
        return sn_fail(err, SN_REFUSED, "%.80s has rank %zu: 1 to %zu are supported", a->name, rank, most);
    sn_status status = check_tensor(a, rank, m->inputs, err);
    if (!status) status = check_tensor(b, m->outputs, rank, err);
    if (!status) status = lora_scale(l, p, rank, &scale, err);
    for (int i = 0; i < m->n_roles && !status; i++) status = lora_add_role(l, p, a, b, scale, m->role[i], floats, err);
    return status;
}

/* "q_proj, k_proj, v_proj" */
static void lora_list_modules(const lora *l, char out[256]) {
    size_t at = 0;
    for (int i = 0; i < l->n_modules && at < 256; i++)
        at += (size_t)snprintf(out + at, 256 - at, "%s%s", i ? ", " : "", sn_peft_module_end(&l->modules[i]));
}

static sn_status lora_add_tensors(lora *l, sn_err *err) {
    size_t n = sn_safetensors_n_tensors(l->file), capacity = 0, floats = 0;
    sn_status status = SN_OK;
    if (!n) return sn_fail(err, SN_REFUSED, "it has no tensors");
    for (size_t i = 0; i < n; i++) {
        const sn_safetensors_tensor *t = sn_safetensors_tensor_at(l->file, i);
        if (has_floats(t)) capacity += t->elements; /* of another type any number, without bytes in the file */
    }
    status = sn_calloc(&l->entries, n * SN_PEFT_ROLES_MAX, sizeof *l->entries, err);
    if (!status) status = sn_calloc(&l->names, n * SN_PEFT_ROLES_MAX, sizeof *l->names, err);
    if (!status) status = sn_calloc(&l->values, capacity, SN_PEFT_ROLES_MAX * sizeof *l->values, err);
    for (size_t i = 0; i < n && !status; i++) {
        const sn_safetensors_tensor *t = sn_safetensors_tensor_at(l->file, i);
        char other[NAME_SIZE], known[256];
        tensor_ref p;
        if (!parse_tensor_name(l, t->name, &p)) {
            lora_list_modules(l, known);
            return sn_fail(err, SN_REFUSED,
                           "the tensor %.100s cannot be used: in models of this family only LoRA of %s can", t->name,
                           known);
        }
        format_tensor_name(l, &p, p.part == 'A' ? 'B' : 'A', other);
        const sn_safetensors_tensor *pair = sn_safetensors_find(l->file, other);
        if (!pair) return sn_fail(err, SN_REFUSED, "%.80s has no matching %.80s", t->name, other);
        if (p.part == 'A') status = lora_add_pair(l, &p, t, pair, &floats, err);
    }
    return status;
}

static sn_status lora_convert(const json_t *config, const sn_safetensors *file, const sn_hparams *hp, sn_buf *image,
                              sn_err *err) {
    lora l = {.hp = hp, .file = file};
    l.n_modules = sn_peft_modules(hp, l.modules);
    if (!l.n_modules) return sn_fail(err, SN_REFUSED, "adapters of the %s family cannot be used", hp->family);
    sn_status status = lora_read_config(&l, config, err);
    if (!status) status = lora_add_tensors(&l, err);
    if (!status) status = sn_safetensors_serialize(l.entries, l.n, image, err);
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
    if (!status) status = lora_convert(config, file, hp, image, err);
    sn_safetensors_close(&file);
    json_decref(config);
    return status ? sn_err_context(err, "%.200s", folder) : SN_OK;
}
