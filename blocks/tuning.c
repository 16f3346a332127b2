#include "blocks/tuning.h"

#include "base/mem.h"
#include "blocks/span_private.h"
#include "device/weight.h"
#include "model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One block's, and the device memory that it lies in. */
typedef struct tuned {
    void *prompt;
    size_t prompt_bytes;
} tuned;

struct sn_tuning {
    sn_span *span;
    sn_block_tuning *blocks; /* of the span's blocks */
    tuned *memory;           /* likewise */
    size_t bytes;
};

static const struct {
    sn_role role;
    const char *name;
} targets[] = {{SN_ROLE_ATTN_Q, "q"},      {SN_ROLE_ATTN_K, "k"},  {SN_ROLE_ATTN_V, "v"},     {SN_ROLE_ATTN_O, "o"},
               {SN_ROLE_FFN_GATE, "gate"}, {SN_ROLE_FFN_UP, "up"}, {SN_ROLE_FFN_DOWN, "down"}};
enum { N_TARGETS = sizeof targets / sizeof *targets };

const char *sn_tuning_target(sn_role role) {
    for (int i = 0; i < N_TARGETS; i++)
        if (targets[i].role == role) return targets[i].name;
    return NULL;
}

static sn_device *device_of(const sn_tuning *t, int block) {
    int i = 0;
    while (block >= t->span->segments[i].end) i++;
    return t->span->segments[i].device;
}

/* Inputs and outputs of a matrix of the model. */
static void shape_of(const sn_hparams *hp, sn_role role, size_t *rows, size_t *cols) {
    size_t embd = (size_t)hp->n_embd, ff = (size_t)hp->n_ff, dim = (size_t)hp->head_dim;
    bool down = role == SN_ROLE_FFN_DOWN, o = role == SN_ROLE_ATTN_O;
    *rows = down || o                                          ? embd
            : role == SN_ROLE_ATTN_Q                           ? (size_t)hp->n_heads * dim
            : role == SN_ROLE_ATTN_K || role == SN_ROLE_ATTN_V ? (size_t)hp->n_kv_heads * dim
                                                               : ff;
    *cols = down ? ff : o ? (size_t)hp->n_heads * dim : embd;
}

static sn_status refuse_shape(const sn_safetensors_tensor *t, sn_err *err) {
    return sn_fail(err, SN_REFUSED,
                   "the trained tensor %.64s of shape (%zu, %zu) and type %s does not fit this model: use one that was "
                   "trained with it",
                   t->name, t->dims[0], t->dims[1], t->type);
}

/* Floats as they lie in the image, at any alignment, in a piece of their own; the guard makes them float32. */
static sn_status plain(const sn_safetensors_tensor *t, float **out, sn_err *err) {
    const int64_t shape[] = {(int64_t)t->dims[0], (int64_t)t->dims[1]};
    sn_tensor outside = {.name = t->name, .data = t->data, .dtype = t->dtype, .rank = 2, .shape = {shape[0], shape[1]}};
    sn_status status = sn_calloc(out, t->elements, sizeof **out, err);
    return status ? status : sn_guard(&outside, NULL, 2, shape, *out, NULL, err);
}

static sn_status take_prompt(sn_tuning *t, int block, const sn_safetensors_tensor *from, sn_err *err) {
    const sn_hparams *hp = &t->span->hp;
    sn_device *device = device_of(t, block);
    int i = block - t->span->first;
    if (from->dims[1] != (size_t)hp->n_embd || !from->dims[0] || from->dims[0] > (size_t)hp->n_ctx)
        return refuse_shape(from, err);
    const int64_t shape[] = {(int64_t)from->dims[0], (int64_t)from->dims[1]};
    sn_tensor outside = {
        .name = from->name, .data = from->data, .dtype = from->dtype, .rank = 2, .shape = {shape[0], shape[1]}};
    size_t bytes = from->elements * sizeof(float);
    sn_status status = device->ops->alloc(device, bytes, &t->memory[i].prompt, err);
    if (status) return status;
    t->memory[i].prompt_bytes = bytes;
    t->blocks[i].prompt = t->memory[i].prompt;
    t->blocks[i].n_prompt = (int)from->dims[0];
    t->bytes += bytes;
    return sn_guard(&outside, device, 2, shape, t->memory[i].prompt, NULL, err);
}

static sn_status take_matrix(sn_tuning *t, int block, sn_role role, bool b, const sn_safetensors_tensor *from,
                             sn_err *err) {
    size_t rows, cols;
    float *host = NULL;
    sn_block_tuning *own = &t->blocks[block - t->span->first];
    sn_weight *to = b ? &own->lora[role].b : &own->lora[role].a;
    if (t->span->hp.n_experts && role != SN_ROLE_ATTN_Q && role != SN_ROLE_ATTN_K && role != SN_ROLE_ATTN_V && role != SN_ROLE_ATTN_O)
        return sn_fail(err, SN_REFUSED,
                       "'%.64s' would adapt the feed-forward, which here is a mixture of experts: only q, k, v and o can be", from->name);
    if (role == SN_ROLE_FFN_GATE && !t->span->hp.gated)
        return sn_fail(err, SN_REFUSED, "the trained tensor %.64s is of a gate, and this model has none", from->name);
    shape_of(&t->span->hp, role, &rows, &cols);
    size_t rank = from->dims[b ? 1 : 0];
    if (from->dims[b ? 0 : 1] != (b ? rows : cols) || !rank || rank > SN_LORA_RANK_MAX) return refuse_shape(from, err);
    sn_status status = plain(from, &host, err);
    if (!status) status = sn_weight_load(device_of(t, block), SN_F32, from->dims[0], from->dims[1], host, to, err);
    free(host);
    t->bytes += to->bytes;
    return status;
}

/* "lora_a.12.gate"; only as it is written here, so that no two names mean one tensor. */
static bool parse_name(const char *name, char kind[8], int *block, sn_role *role) {
    char target[8] = "", again[32];
    *role = SN_ROLE_COUNT;
    if (sscanf(name, "prompt.%6d", block) == 1) {
        snprintf(kind, 8, "prompt");
        snprintf(again, sizeof again, "prompt.%d", *block);
        return *block >= 0 && !strcmp(again, name);
    }
    if (sscanf(name, "%7[a-z_].%6d.%7[a-z]", kind, block, target) != 3 || *block < 0) return false;
    for (int i = 0; i < N_TARGETS; i++)
        if (!strcmp(targets[i].name, target)) *role = targets[i].role;
    snprintf(again, sizeof again, "%s.%d.%s", kind, *block, target);
    return *role != SN_ROLE_COUNT && (!strcmp(kind, "lora_a") || !strcmp(kind, "lora_b")) && !strcmp(again, name);
}

static sn_status take(sn_tuning *t, const sn_safetensors_tensor *from, sn_err *err) {
    char kind[8];
    int block;
    sn_role role;
    if (!parse_name(from->name, kind, &block, &role))
        return sn_fail(err, SN_REFUSED,
                       "'%.64s' is no trained tensor: they are called prompt.B, lora_a.B.T and lora_b.B.T", from->name);
    if (from->n_dims != 2 || (from->dtype != SN_F32 && from->dtype != SN_F16 && from->dtype != SN_BF16) ||
        block >= t->span->hp.n_blocks)
        return refuse_shape(from, err);
    if (block < t->span->first || block >= t->span->end) return SN_OK;
    return role == SN_ROLE_COUNT ? take_prompt(t, block, from, err)
                                 : take_matrix(t, block, role, kind[5] == 'b', from, err);
}

/* A and B of a matrix go together. */
static sn_status check_pairs(const sn_tuning *t, sn_err *err) {
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

sn_status sn_tuning_load(sn_span *span, const void *image, size_t len, sn_tuning **out, sn_err *err) {
    sn_tuning *t = NULL;
    sn_safetensors *file = NULL;
    size_t n = (size_t)(span->end - span->first);
    *out = NULL;
    sn_status status = sn_calloc(&t, 1, sizeof *t, err);
    if (status) return status;
    t->span = span;
    status = sn_calloc(&t->blocks, n, sizeof *t->blocks, err);
    if (!status) status = sn_calloc(&t->memory, n, sizeof *t->memory, err);
    if (!status) status = sn_safetensors_open_memory(image, len, "what was trained", &file, err);
    for (size_t i = 0; !status && i < sn_safetensors_n_tensors(file); i++)
        status = take(t, sn_safetensors_tensor_at(file, i), err);
    if (!status) status = check_pairs(t, err);
    sn_safetensors_close(&file);
    if (status) sn_tuning_free(&t);
    *out = t;
    return status;
}

void sn_tuning_free(sn_tuning **tuning) {
    sn_tuning *t = *tuning;
    if (!t) return;
    for (int b = t->span->first; t->memory && b < t->span->end; b++) {
        sn_device *device = device_of(t, b);
        int i = b - t->span->first;
        device->ops->free(device, t->memory[i].prompt, t->memory[i].prompt_bytes);
        for (int k = 0; k < N_TARGETS; k++) {
            sn_weight_unload(device, &t->blocks[i].lora[targets[k].role].a);
            sn_weight_unload(device, &t->blocks[i].lora[targets[k].role].b);
        }
    }
    free(t->blocks);
    free(t->memory);
    free(t);
    *tuning = NULL;
}

size_t sn_tuning_bytes(const sn_tuning *tuning) { return tuning->bytes; }
const sn_block_tuning *sn_tuning_of(const sn_tuning *tuning, int block) {
    return &tuning->blocks[block - tuning->span->first];
}

size_t sn_tuning_floats(const sn_tuning *tuning, int first, int end) {
    size_t n = 0;
    for (int b = first; b < end; b++) {
        const sn_block_tuning *own = sn_tuning_of(tuning, b);
        n += (size_t)own->n_prompt * (size_t)tuning->span->hp.n_embd;
        for (int i = 0; i < N_TARGETS; i++) {
            const sn_weight *lower = &own->lora[targets[i].role].a, *upper = &own->lora[targets[i].role].b;
            n += lower->rows * lower->cols + upper->rows * upper->cols;
        }
    }
    return n;
}
