#include "client/tune/params.h"

#include "base/mem.h"
#include "blocks/tuning.h"
#include "model/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const method_names[SN_METHOD_COUNT] = {"prompt", "deep-prompt", "lora", "head"};
const char *sn_method_name(sn_method method) { return method_names[method]; }

sn_status sn_method_parse(const char *name, sn_method *out, sn_err *err) {
    for (int i = 0; i < SN_METHOD_COUNT; i++)
        if (!strcmp(name, method_names[i])) {
            *out = (sn_method)i;
            return SN_OK;
        }
    return sn_fail(err, SN_REFUSED, "--method %.40s is unknown: use prompt, deep-prompt, lora or head", name);
}

sn_status sn_targets_parse(const char *list, bool target[SN_ROLE_COUNT], sn_err *err) {
    bool all = !strcmp(list, "all");
    for (int role = 0; role < SN_ROLE_COUNT; role++) target[role] = all && sn_tuning_target((sn_role)role);
    for (const char *at = list; !all;) {
        size_t len = strcspn(at, ",");
        int found = SN_ROLE_COUNT;
        for (int role = 0; role < SN_ROLE_COUNT; role++) {
            const char *name = sn_tuning_target((sn_role)role);
            if (name && strlen(name) == len && !memcmp(name, at, len)) found = role;
        }
        if (found == SN_ROLE_COUNT)
            return sn_fail(err, SN_REFUSED, "--targets %.60s: name them as in q,v: q, k, v, o, gate, up, down, or all",
                           list);
        target[found] = true;
        if (!at[len]) break;
        at += len + 1;
    }
    return SN_OK;
}

/* -- shapes */

static void matrix_shape(const sn_hparams *hp, sn_role role, size_t *outputs, size_t *inputs) {
    size_t embd = (size_t)hp->n_embd, ff = (size_t)hp->n_ff, q = (size_t)(hp->n_heads * hp->head_dim);
    size_t kv = (size_t)(hp->n_kv_heads * hp->head_dim);
    *inputs = role == SN_ROLE_FFN_DOWN ? ff : role == SN_ROLE_ATTN_O ? q : embd;
    *outputs = role == SN_ROLE_FFN_DOWN || role == SN_ROLE_ATTN_O ? embd
               : role == SN_ROLE_ATTN_Q                           ? q
               : role == SN_ROLE_ATTN_K || role == SN_ROLE_ATTN_V ? kv
                                                                  : ff;
}

static void add(sn_params *p, int block, sn_role role, bool b, size_t rows, size_t cols, const char *format,
                const char *target) {
    if (p->list) {
        sn_param *param = &p->list[p->n];
        *param = (sn_param){.block = block, .role = role, .b = b, .rows = rows, .cols = cols, .at = p->n_floats};
        if (block < 0)
            snprintf(param->name, sizeof param->name, "%s", format);
        else
            snprintf(param->name, sizeof param->name, "%s.%d%s%s", format, block, target ? "." : "",
                     target ? target : "");
    }
    p->n++;
    p->n_floats += rows * cols;
}

/* Counts them, or fills the list once it is there. */
static void lay_out(sn_params *p, const sn_hparams *hp) {
    const sn_params_shape *s = &p->shape;
    size_t embd = (size_t)hp->n_embd, rank = (size_t)s->rank, prompt = (size_t)s->prompt_tokens;
    bool prompts = s->method == SN_METHOD_PROMPT || s->method == SN_METHOD_DEEP_PROMPT;
    p->n = p->n_floats = 0;
    if (prompts) add(p, -1, SN_ROLE_COUNT, false, prompt, embd, "prompt", NULL);
    if (s->method == SN_METHOD_HEAD) add(p, -1, SN_ROLE_COUNT, false, (size_t)s->n_labels, embd, "score", NULL);
    for (int b = 0; b < hp->n_blocks; b++) {
        if (s->method == SN_METHOD_DEEP_PROMPT && b) add(p, b, SN_ROLE_COUNT, false, prompt, embd, "prompt", NULL);
        for (int role = 0; role < SN_ROLE_COUNT && s->method == SN_METHOD_LORA; role++) {
            size_t outputs, inputs;
            if (!s->target[role] || (role == SN_ROLE_FFN_GATE && !hp->gated)) continue;
            matrix_shape(hp, (sn_role)role, &outputs, &inputs);
            add(p, b, (sn_role)role, false, rank, inputs, "lora_a", sn_tuning_target((sn_role)role));
            add(p, b, (sn_role)role, true, outputs, rank, "lora_b", sn_tuning_target((sn_role)role));
        }
    }
}

static sn_status check_shape(const sn_hparams *hp, const sn_params_shape *s, sn_err *err) {
    bool any = false, all = true;
    bool feed_forward = s->target[SN_ROLE_FFN_GATE] || s->target[SN_ROLE_FFN_UP] || s->target[SN_ROLE_FFN_DOWN];
    for (int role = 0; role < SN_ROLE_COUNT; role++) {
        any |= s->target[role];
        all &= s->target[role] || !sn_tuning_target((sn_role)role);
    }
    if (s->method == SN_METHOD_LORA && hp->n_experts && feed_forward)
        return sn_fail(err, SN_REFUSED, "the feed-forward of this model is a mixture of experts, which cannot be adapted: give "
                                        "--targets of q, k, v and o only");
    if (s->method == SN_METHOD_LORA && s->target[SN_ROLE_FFN_GATE] && !hp->gated && !all)
        return sn_fail(err, SN_REFUSED, "--targets gate: this model's feed-forward has no gates; its matrices are up and down");
    bool prompts = s->method == SN_METHOD_PROMPT || s->method == SN_METHOD_DEEP_PROMPT;
    if (prompts && (s->prompt_tokens < 1 || s->prompt_tokens > SN_PROMPT_TOKENS_MAX))
        return sn_fail(err, SN_REFUSED, "--prompt-tokens is 1 to %d", SN_PROMPT_TOKENS_MAX);
    if (s->method == SN_METHOD_LORA && (s->rank < 1 || s->rank > SN_LORA_RANK_MAX || !(s->alpha > 0)))
        return sn_fail(err, SN_REFUSED, "--rank is 1 to %d, and --alpha above 0", SN_LORA_RANK_MAX);
    if (s->method == SN_METHOD_LORA && !any) return sn_fail(err, SN_REFUSED, "--targets names no matrix: try q,v");
    if (s->method == SN_METHOD_HEAD && (s->n_labels < 2 || s->n_labels > SN_LABELS_MAX))
        return sn_fail(err, SN_REFUSED, "a classifier needs 2 to %d different labels in the data, not %d",
                       SN_LABELS_MAX, s->n_labels);
    return SN_OK;
}

sn_status sn_params_new(const sn_hparams *hp, const sn_params_shape *shape, sn_params **out, sn_err *err) {
    sn_params *p = NULL;
    *out = NULL;
    sn_status status = check_shape(hp, shape, err);
    if (!status) status = sn_calloc(&p, 1, sizeof *p, err);
    if (status) return status;
    p->shape = *shape;
    p->n_blocks = hp->n_blocks;
    p->n_embd = hp->n_embd;
    lay_out(p, hp);
    status = sn_calloc(&p->list, p->n, sizeof *p->list, err);
    if (!status) lay_out(p, hp);
    if (!status) status = sn_calloc(&p->values, p->n_floats, sizeof *p->values, err);
    if (status) sn_params_free(&p);
    *out = p;
    return status;
}

void sn_params_free(sn_params **params) {
    if (!*params) return;
    free((*params)->list);
    free((*params)->values);
    free(*params);
    *params = NULL;
}

sn_status sn_params_begin(sn_params *p, sn_head *head, int n_vocab, sn_random_state *random, sn_err *err) {
    for (size_t i = 0; i < p->n; i++) {
        const sn_param *param = &p->list[i];
        float *values = p->values + param->at;
        size_t n = param->rows * param->cols;
        double most = 1 / sqrt((double)param->cols);
        if (param->role != SN_ROLE_COUNT && !param->b)
            for (size_t k = 0; k < n; k++) values[k] = (float)(most * (2 * sn_random_uniform(random) - 1));
        if (!strcmp(param->name, "score"))
            for (size_t k = 0; k < n; k++) values[k] = (float)(0.02 * sn_random_normal(random));
        for (size_t row = 0; !strcmp(param->name, "prompt") && row < param->rows; row++) {
            int32_t id = (int32_t)(sn_random_uniform(random) * n_vocab);
            sn_status status = sn_head_embed(head, &id, 1, values + row * param->cols, err);
            if (status) return status;
        }
    }
    return SN_OK;
}

/* -- parts */

int sn_params_prompt(const sn_params *p, const float **rows) {
    bool has = p->n && !strcmp(p->list[0].name, "prompt");
    *rows = has ? p->values : NULL;
    return has ? (int)p->list[0].rows : 0;
}

void sn_params_of_blocks(const sn_params *p, int first, int end, size_t *at, size_t *n) {
    *at = *n = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (p->list[i].block < 0 || p->list[i].block < first || p->list[i].block >= end) continue;
        if (!*n) *at = p->list[i].at;
        *n += p->list[i].rows * p->list[i].cols;
    }
}

float sn_param_scale(const sn_params *p, const sn_param *param) {
    return param->b ? (float)(p->shape.alpha / p->shape.rank) : 1;
}

sn_status sn_params_image(const sn_params *p, int first, int end, sn_buf *out, sn_err *err) {
    size_t at, floats, n = 0;
    sn_safetensors_entry *entries = NULL;
    float *scaled = NULL;
    sn_params_of_blocks(p, first, end, &at, &floats);
    if (!floats) return SN_OK;
    sn_status status = sn_calloc(&entries, p->n, sizeof *entries, err);
    if (!status) status = sn_calloc(&scaled, floats, sizeof *scaled, err);
    for (size_t i = 0; i < p->n && !status; i++) {
        const sn_param *param = &p->list[i];
        if (param->block < 0 || param->block < first || param->block >= end) continue;
        float *to = scaled + (param->at - at), scale = sn_param_scale(p, param);
        for (size_t k = 0; k < param->rows * param->cols; k++) to[k] = p->values[param->at + k] * scale;
        entries[n++] = (sn_safetensors_entry){param->name, SN_F32, 2, {param->rows, param->cols}, to};
    }
    if (!status) status = sn_safetensors_image(entries, n, out, err);
    free(entries);
    free(scaled);
    return status;
}
