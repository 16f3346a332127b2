/* How it works. params_lay_out is the only place that knows which tensors a method has and in which order. It runs
 * twice over the same code: first without a list, to count tensors and elements, then with the allocated list, to fill
 * in names, shapes and positions. The order is: tensors that belong to no block (virtual tokens or the classifier),
 * then block after block, and within a block by role with A before B. This is the order of a node's gradients
 * (blocks/adapter.h), so the gradients of a span can be copied into one range of the array.
 *
 * Nodes know nothing of alpha and rank: an adapter image holds B already scaled by alpha / rank. A node's gradient of B
 * is therefore that of the scaled B and is multiplied by the same factor (param_scale). */
#include "client/tune/params.h"

#include "base/mem.h"
#include "base/random.h"
#include "blocks/train.h"
#include "model/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const sn_word sn_method_words[] = {{"prompt", SN_METHOD_PROMPT},
                                   {"deep-prompt", SN_METHOD_DEEP_PROMPT},
                                   {"lora", SN_METHOD_LORA},
                                   {"head", SN_METHOD_HEAD},
                                   {NULL, 0}};
const char *sn_method_name(sn_method method) { return sn_method_words[method].name; }

sn_status sn_targets_parse(const char *list, bool target[SN_ROLE_COUNT], sn_err *err) {
    bool all = !strcmp(list, "all");
    for (int role = 0; role < SN_ROLE_COUNT; role++) target[role] = all && sn_adapter_target((sn_role)role);
    for (const char *at = list; !all;) {
        size_t len = strcspn(at, ",");
        int found = SN_ROLE_COUNT;
        for (int role = 0; role < SN_ROLE_COUNT; role++) {
            const char *name = sn_adapter_target((sn_role)role);
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

/* Appends a tensor. `param` gives block, role, b, rows and cols; name and position are set here. The name is `kind`,
 * followed by the block and the adapted matrix if there are any: "prompt", "prompt.3", "lora_a.3.q". */
static void params_add(sn_params *p, sn_param param, const char *kind) {
    if (p->list) {
        const char *target = param.role == SN_ROLE_COUNT ? NULL : sn_adapter_target(param.role);
        if (param.block < 0)
            snprintf(param.name, sizeof param.name, "%s", kind);
        else
            snprintf(param.name, sizeof param.name, "%s.%d%s%s", kind, param.block, target ? "." : "",
                     target ? target : "");
        param.at = p->n_floats;
        p->list[p->n] = param;
    }
    p->n++;
    p->n_floats += param.rows * param.cols;
}

/* Counts the tensors, and fills the list if it is allocated. */
static void params_lay_out(sn_params *p, const sn_hparams *hp) {
    const sn_params_shape *s = &p->shape;
    size_t embd = (size_t)hp->n_embd, rank = (size_t)s->rank, prompt = (size_t)s->prompt_tokens;
    bool prompts = s->method == SN_METHOD_PROMPT || s->method == SN_METHOD_DEEP_PROMPT;
    p->n = p->n_floats = 0;
    if (prompts) params_add(p, (sn_param){.block = -1, .role = SN_ROLE_COUNT, .rows = prompt, .cols = embd}, "prompt");
    if (s->method == SN_METHOD_HEAD)
        params_add(p, (sn_param){.block = -1, .role = SN_ROLE_COUNT, .rows = (size_t)s->n_labels, .cols = embd},
                   "score");
    for (int b = 0; b < hp->n_blocks; b++) {
        if (s->method == SN_METHOD_DEEP_PROMPT && b)
            params_add(p, (sn_param){.block = b, .role = SN_ROLE_COUNT, .rows = prompt, .cols = embd}, "prompt");
        for (int role = 0; role < SN_ROLE_COUNT && s->method == SN_METHOD_LORA; role++) {
            size_t outputs, inputs;
            if (!s->target[role] || (role == SN_ROLE_FFN_GATE && !hp->gated)) continue;
            matrix_shape(hp, (sn_role)role, &outputs, &inputs);
            params_add(p, (sn_param){.block = b, .role = (sn_role)role, .rows = rank, .cols = inputs}, "lora_a");
            params_add(p, (sn_param){.block = b, .role = (sn_role)role, .b = true, .rows = outputs, .cols = rank},
                       "lora_b");
        }
    }
}

static sn_status check_shape(const sn_hparams *hp, const sn_params_shape *s, sn_err *err) {
    bool any = false, all = true;
    bool feed_forward = s->target[SN_ROLE_FFN_GATE] || s->target[SN_ROLE_FFN_UP] || s->target[SN_ROLE_FFN_DOWN];
    for (int role = 0; role < SN_ROLE_COUNT; role++) {
        any |= s->target[role];
        all &= s->target[role] || !sn_adapter_target((sn_role)role);
    }
    sn_status status = sn_train_check_model(hp, 0, hp->n_blocks, err);
    if (status) return status;
    if (s->method == SN_METHOD_LORA && hp->n_experts && feed_forward)
        return sn_fail(err, SN_REFUSED,
                       "the feed-forward of this model is a mixture of experts, which LoRA cannot adapt: give "
                       "--targets of q, k, v and o only");
    if (s->method == SN_METHOD_LORA && s->target[SN_ROLE_FFN_GATE] && !hp->gated && !all)
        return sn_fail(err, SN_REFUSED, "--targets gate: the feed-forward of this model has no gate; use up and down");
    bool prompts = s->method == SN_METHOD_PROMPT || s->method == SN_METHOD_DEEP_PROMPT;
    if (prompts && (s->prompt_tokens < 1 || s->prompt_tokens > SN_PROMPT_TOKENS_MAX))
        return sn_fail(err, SN_REFUSED, "--virtual-tokens must be 1 to %d", SN_PROMPT_TOKENS_MAX);
    if (s->method == SN_METHOD_LORA && (s->rank < 1 || s->rank > SN_LORA_RANK_MAX || !(s->alpha > 0)))
        return sn_fail(err, SN_REFUSED, "--rank must be 1 to %d, and --alpha above 0", SN_LORA_RANK_MAX);
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
    p->n_blocks = p->end = hp->n_blocks;
    p->n_embd = hp->n_embd;
    params_lay_out(p, hp);
    status = sn_calloc(&p->list, p->n, sizeof *p->list, err);
    if (!status) params_lay_out(p, hp);
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

sn_status sn_params_init_values(sn_params *p, sn_lm_head *head, int n_vocab, uint64_t *rng, sn_err *err) {
    for (size_t i = 0; i < p->n; i++) {
        const sn_param *param = &p->list[i];
        float *values = p->values + param->at;
        size_t n = param->rows * param->cols;
        double bound = 1 / sqrt((double)param->cols);
        if (param->role != SN_ROLE_COUNT && !param->b)
            for (size_t k = 0; k < n; k++) values[k] = (float)(bound * (2 * sn_rng_uniform(rng) - 1));
        if (!strcmp(param->name, "score"))
            for (size_t k = 0; k < n; k++) values[k] = (float)(0.02 * sn_rng_normal(rng));
        for (size_t row = 0; !strcmp(param->name, "prompt") && row < param->rows; row++) {
            int32_t id = (int32_t)(sn_rng_uniform(rng) * n_vocab);
            sn_status status = sn_lm_head_embed(head, &id, 1, values + row * param->cols, err);
            if (status) return status;
        }
    }
    return SN_OK;
}

/* -- ranges and images */

int sn_params_prompt(const sn_params *p, const float **rows) {
    bool has = p->n && !strcmp(p->list[0].name, "prompt");
    *rows = has ? p->values : NULL;
    return has ? (int)p->list[0].rows : 0;
}

void sn_params_block_range(const sn_params *p, int first, int end, size_t *at, size_t *n) {
    *at = *n = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (p->list[i].block < 0 || p->list[i].block < first || p->list[i].block >= end) continue;
        if (!*n) *at = p->list[i].at;
        *n += p->list[i].rows * p->list[i].cols;
    }
}

/* The factor for a node's gradient of this tensor. It is alpha / rank for B, because the node received the scaled B,
 * and 1 for all others. */
static float param_scale(const sn_params *p, const sn_param *param) {
    return param->b ? (float)(p->shape.alpha / p->shape.rank) : 1;
}

void sn_params_sum_gradients(const sn_params *p, int first, int end, size_t n, const float *grads, float *sum) {
    size_t at, floats;
    sn_params_block_range(p, first, end, &at, &floats);
    for (size_t k = 0; k < floats; k++) sum[k] = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < floats; k++) sum[k] += grads[i * floats + k];
    for (size_t i = 0; i < p->n; i++) {
        const sn_param *param = &p->list[i];
        if (!param->b || param->block < first || param->block >= end) continue;
        for (size_t k = 0; k < param->rows * param->cols; k++) sum[param->at - at + k] *= param_scale(p, param);
    }
}

sn_status sn_params_image(const sn_params *p, int first, int end, sn_buf *out, sn_err *err) {
    size_t at, floats, n = 0;
    sn_safetensors_entry *entries = NULL;
    float *scaled = NULL;
    sn_params_block_range(p, first, end, &at, &floats);
    if (!floats) return SN_OK;
    sn_status status = sn_calloc(&entries, p->n, sizeof *entries, err);
    if (!status) status = sn_calloc(&scaled, floats, sizeof *scaled, err);
    for (size_t i = 0; i < p->n && !status; i++) {
        const sn_param *param = &p->list[i];
        if (param->block < 0 || param->block < first || param->block >= end) continue;
        float *to = scaled + (param->at - at), scale = param_scale(p, param);
        for (size_t k = 0; k < param->rows * param->cols; k++) to[k] = p->values[param->at + k] * scale;
        entries[n++] = (sn_safetensors_entry){param->name, SN_F32, 2, {param->rows, param->cols}, to};
    }
    if (!status) status = sn_safetensors_serialize(entries, n, out, err);
    free(entries);
    free(scaled);
    return status;
}
