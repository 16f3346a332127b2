/* sn_adapter_load opens the image as safetensors and loads tensor by tensor: parse_tensor_name tells block, matrix and
 * part; adapter_load_prompt and adapter_load_matrix check the shape and copy the values, as float32, to the device on
 * which the block computes. At the end every A must have a B of the same rank. sn_adapter_block then hands the views of
 * a block to its forward and backward pass (block.c, block_grad.c). */
#include "blocks/adapter.h"

#include "base/mem.h"
#include "base/text.h"
#include "blocks/span_private.h"
#include "device/weight.h"
#include "model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The device memory of a block's prompt; LoRA matrices own theirs (sn_weight_load). */
typedef struct prompt_memory {
    void *memory;
    size_t bytes;
} prompt_memory;

struct sn_adapter {
    sn_span *span;
    sn_block_adapter *blocks; /* one for each block of the span, as prompts */
    prompt_memory *prompts;
    size_t bytes;
};

static const struct {
    sn_role role;
    const char *name;
} targets[] = {{SN_ROLE_ATTN_Q, "q"},      {SN_ROLE_ATTN_K, "k"},  {SN_ROLE_ATTN_V, "v"},     {SN_ROLE_ATTN_O, "o"},
               {SN_ROLE_FFN_GATE, "gate"}, {SN_ROLE_FFN_UP, "up"}, {SN_ROLE_FFN_DOWN, "down"}};
enum { N_TARGETS = sizeof targets / sizeof *targets };

const char *sn_adapter_target(sn_role role) {
    for (int i = 0; i < N_TARGETS; i++)
        if (targets[i].role == role) return targets[i].name;
    return NULL;
}

static sn_device *adapter_device(const sn_adapter *t, int block) {
    int i = 0;
    while (block >= t->span->segments[i].end) i++;
    return t->span->segments[i].device;
}

static sn_status adapter_refuse_shape(const sn_safetensors_tensor *t, sn_err *err) {
    return sn_fail(err, SN_REFUSED,
                   "the adapter's tensor %.64s of shape (%zu, %zu) and type %s does not fit this model: use an adapter "
                   "that was trained for it",
                   t->name, t->dims[0], t->dims[1], t->type);
}

/* Copies a tensor of the image, which may lie at any alignment, to float32 on the heap. */
static sn_status tensor_to_f32(const sn_safetensors_tensor *t, float **out, sn_err *err) {
    const int64_t shape[] = {(int64_t)t->dims[0], (int64_t)t->dims[1]};
    sn_tensor outside = {.name = t->name, .data = t->data, .dtype = t->dtype, .rank = 2, .shape = {shape[0], shape[1]}};
    sn_status status = sn_calloc(out, t->elements, sizeof **out, err);
    return status ? status : sn_guard(&outside, NULL, 2, shape, *out, NULL, err);
}

static sn_status adapter_load_prompt(sn_adapter *t, int block, const sn_safetensors_tensor *from, sn_err *err) {
    const sn_hparams *hp = &t->span->hp;
    sn_device *device = adapter_device(t, block);
    int i = block - t->span->first;
    if (from->dims[1] != (size_t)hp->n_embd || !from->dims[0] || from->dims[0] > (size_t)hp->n_ctx)
        return adapter_refuse_shape(from, err);
    const int64_t shape[] = {(int64_t)from->dims[0], (int64_t)from->dims[1]};
    sn_tensor outside = {
        .name = from->name, .data = from->data, .dtype = from->dtype, .rank = 2, .shape = {shape[0], shape[1]}};
    size_t bytes = from->elements * sizeof(float);
    sn_status status = device->ops->alloc(device, bytes, &t->prompts[i].memory, err);
    if (status) return status;
    t->prompts[i].bytes = bytes;
    t->blocks[i].prompt = t->prompts[i].memory;
    t->blocks[i].n_prompt = (int)from->dims[0];
    t->bytes += bytes;
    return sn_guard(&outside, device, 2, shape, t->prompts[i].memory, NULL, err);
}

static sn_status adapter_load_matrix(sn_adapter *t, int block, sn_role role, bool b, const sn_safetensors_tensor *from,
                                     sn_err *err) {
    size_t rows, cols;
    float *host = NULL;
    sn_block_adapter *own = &t->blocks[block - t->span->first];
    sn_weight *to = b ? &own->lora[role].b : &own->lora[role].a;
    if (t->span->hp.n_experts && role != SN_ROLE_ATTN_Q && role != SN_ROLE_ATTN_K && role != SN_ROLE_ATTN_V &&
        role != SN_ROLE_ATTN_O)
        return sn_fail(
            err, SN_REFUSED,
            "'%.64s' adapts the feed-forward, but this model's is a mixture of experts: only q, k, v and o can be "
            "adapted",
            from->name);
    if (role == SN_ROLE_FFN_GATE && !t->span->hp.gated)
        return sn_fail(err, SN_REFUSED, "the adapter's tensor %.64s is of a gate, and this model has no gates",
                       from->name);
    sn_role_shape(&t->span->hp, role, &rows, &cols);
    size_t rank = from->dims[b ? 1 : 0];
    if (from->dims[b ? 0 : 1] != (b ? rows : cols) || !rank || rank > SN_LORA_RANK_MAX)
        return adapter_refuse_shape(from, err);
    sn_status status = tensor_to_f32(from, &host, err);
    if (!status) status = sn_weight_load(adapter_device(t, block), SN_F32, from->dims[0], from->dims[1], host, to, err);
    free(host);
    t->bytes += to->bytes;
    return status;
}

/* Parses "prompt.12" (*role is then SN_ROLE_COUNT) or "lora_a.12.gate" (*part: 'a' or 'b'). Only the canonical spelling
 * is accepted, so that no two names mean one tensor. */
static bool parse_tensor_name(const char *name, char *part, int *block, sn_role *role) {
    char number[8], canonical[32];
    int64_t value;
    const char *dot = strchr(name, '.'), *target = dot ? strchr(dot + 1, '.') : NULL;
    if (!dot) return false;
    size_t len = target ? (size_t)(target - dot) - 1 : strlen(dot + 1);
    if (len >= sizeof number) return false;
    snprintf(number, sizeof number, "%.*s", (int)len, dot + 1);
    if (sn_parse_int(number, 0, 999999, &value, NULL)) return false;
    *block = (int)value;
    *role = SN_ROLE_COUNT;
    if (!target) {
        snprintf(canonical, sizeof canonical, "prompt.%d", *block);
        return !strcmp(canonical, name);
    }
    for (int i = 0; i < N_TARGETS; i++)
        if (!strcmp(targets[i].name, target + 1)) *role = targets[i].role;
    if (*role == SN_ROLE_COUNT || dot == name) return false;
    *part = dot[-1];
    snprintf(canonical, sizeof canonical, "lora_%c.%d.%s", *part, *block, target + 1);
    return (*part == 'a' || *part == 'b') && !strcmp(canonical, name);
}

static sn_status adapter_load_tensor(sn_adapter *t, const sn_safetensors_tensor *from, sn_err *err) {
    char part = 0;
    int block;
    sn_role role;
    if (!parse_tensor_name(from->name, &part, &block, &role))
        return sn_fail(err, SN_REFUSED,
                       "'%.64s' is no tensor of an adapter: these are called prompt.B, lora_a.B.T and lora_b.B.T",
                       from->name);
    if (from->n_dims != 2 || (from->dtype != SN_F32 && from->dtype != SN_F16 && from->dtype != SN_BF16) ||
        block >= t->span->hp.n_blocks)
        return adapter_refuse_shape(from, err);
    if (block < t->span->first || block >= t->span->end) return SN_OK;
    return role == SN_ROLE_COUNT ? adapter_load_prompt(t, block, from, err)
                                 : adapter_load_matrix(t, block, role, part == 'b', from, err);
}

/* Every A needs a B of the same rank, and every B an A. */
static sn_status adapter_check_pairs(const sn_adapter *t, sn_err *err) {
    for (int b = 0; b < t->span->end - t->span->first; b++)
        for (int i = 0; i < N_TARGETS; i++) {
            const sn_weight *lower = &t->blocks[b].lora[targets[i].role].a,
                            *upper = &t->blocks[b].lora[targets[i].role].b;
            if (lower->rows != upper->cols)
                return sn_fail(err, SN_REFUSED,
                               "lora_a.%d.%s and lora_b.%d.%s do not go together: give both, of one rank",
                               b + t->span->first, targets[i].name, b + t->span->first, targets[i].name);
        }
    return SN_OK;
}

sn_status sn_adapter_load(sn_span *span, const void *image, size_t len, sn_adapter **out, sn_err *err) {
    sn_adapter *t = NULL;
    sn_safetensors *file = NULL;
    size_t n = (size_t)(span->end - span->first);
    *out = NULL;
    sn_status status = sn_calloc(&t, 1, sizeof *t, err);
    if (status) return status;
    t->span = span;
    status = sn_calloc(&t->blocks, n, sizeof *t->blocks, err);
    if (!status) status = sn_calloc(&t->prompts, n, sizeof *t->prompts, err);
    if (!status) status = sn_safetensors_open_memory(image, len, "the adapter", &file, err);
    for (size_t i = 0; !status && i < sn_safetensors_n_tensors(file); i++)
        status = adapter_load_tensor(t, sn_safetensors_tensor_at(file, i), err);
    if (!status) status = adapter_check_pairs(t, err);
    sn_safetensors_close(&file);
    if (status) sn_adapter_free(&t);
    *out = t;
    return status;
}

void sn_adapter_free(sn_adapter **adapter) {
    sn_adapter *t = *adapter;
    if (!t) return;
    for (int b = t->span->first; t->prompts && b < t->span->end; b++) {
        sn_device *device = adapter_device(t, b);
        int i = b - t->span->first;
        device->ops->free(device, t->prompts[i].memory, t->prompts[i].bytes);
        for (int k = 0; k < N_TARGETS; k++) {
            sn_weight_unload(device, &t->blocks[i].lora[targets[k].role].a);
            sn_weight_unload(device, &t->blocks[i].lora[targets[k].role].b);
        }
    }
    free(t->blocks);
    free(t->prompts);
    free(t);
    *adapter = NULL;
}

size_t sn_adapter_bytes(const sn_adapter *adapter) { return adapter->bytes; }
const sn_block_adapter *sn_adapter_block(const sn_adapter *adapter, int block) {
    return &adapter->blocks[block - adapter->span->first];
}

size_t sn_adapter_n_params(const sn_adapter *adapter, int first, int end) {
    size_t n = 0;
    for (int b = first; b < end; b++) {
        const sn_block_adapter *own = sn_adapter_block(adapter, b);
        n += (size_t)own->n_prompt * (size_t)adapter->span->hp.n_embd;
        for (int i = 0; i < N_TARGETS; i++) {
            const sn_weight *lower = &own->lora[targets[i].role].a, *upper = &own->lora[targets[i].role].b;
            n += lower->rows * lower->cols + upper->rows * upper->cols;
        }
    }
    return n;
}
