/* A loader opens the image as safetensors and loads tensor by tensor, some rows of one in a piece: parse_tensor_name
 * tells block, matrix and part; adapter_load_prompt and adapter_load_matrix check the shape and copy rows, as float32,
 * to the device on which the block computes. At the end every A must have a B of the same rank. sn_adapter_block then
 * hands the views of a block to its forward and backward pass (block.c, block_grad.c). */
#include "blocks/adapter.h"

#include "base/mem.h"
#include "base/parse.h"
#include "blocks/span_private.h"
#include "device/weight.h"
#include "model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS_MULTIPLE = 16,  /* images of float32 matrices can be cut there (device.h: weight_pack) */
    HEADER_MAX = 1 << 20 /* bytes of the image's header, which is read in one piece: 3840 tensors take 400 KB */
};

/* The device memory of a block's prompt; LoRA matrices own theirs. */
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

/* What a tensor of the image belongs to. */
typedef struct tensor_place {
    int block;
    sn_role role; /* of a LoRA matrix; SN_ROLE_COUNT: it is a prompt */
    bool b;       /* the second matrix */
} tensor_place;

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

/* Rows [row, row + n) of a tensor of the image, which may lie at any alignment. */
static sn_tensor tensor_rows(const sn_safetensors_tensor *t, size_t row, size_t n) {
    return (sn_tensor){.name = t->name,
                       .data = (const char *)t->data + row * t->dims[1] * sn_dtype_bytes(t->dtype),
                       .dtype = t->dtype,
                       .rank = 2,
                       .shape = {(int64_t)n, (int64_t)t->dims[1]}};
}

static sn_status prompt_check(const sn_adapter *t, const sn_safetensors_tensor *from, sn_err *err) {
    const sn_hparams *hp = &t->span->hp;
    bool fits = from->dims[1] == (size_t)hp->n_embd && from->dims[0] && from->dims[0] <= (size_t)hp->n_ctx;
    return fits ? SN_OK : adapter_refuse_shape(from, err);
}

/* Loads rows [row, row + n) of a prompt; with the first ones it gets its memory. */
static sn_status adapter_load_prompt(sn_adapter *t, int block, const sn_safetensors_tensor *from, size_t row, size_t n,
                                     sn_err *err) {
    sn_device *device = adapter_device(t, block);
    int i = block - t->span->first;
    sn_status status = prompt_check(t, from, err);
    if (status) return status;
    if (!row) {
        size_t bytes = from->elements * sizeof(float);
        status = device->ops->alloc(device, bytes, &t->prompts[i].memory, err);
        if (status) return status;
        t->prompts[i].bytes = bytes;
        t->blocks[i].prompt = t->prompts[i].memory;
        t->blocks[i].n_prompt = (int)from->dims[0];
        t->bytes += bytes;
    }
    const sn_tensor part = tensor_rows(from, row, n);
    return sn_guard(&part, device, 2, part.shape, (float *)t->prompts[i].memory + row * from->dims[1], NULL, err);
}

static sn_status matrix_check(const sn_adapter *t, int block, const tensor_place *place,
                              const sn_safetensors_tensor *from, sn_err *err) {
    const sn_role role = place->role;
    const bool b = place->b;
    size_t rows, cols, rank = from->dims[b ? 1 : 0];
    if (t->span->hp.latent)
        return sn_fail(err, SN_REFUSED,
                       "'%.64s' adapts a matrix of a model with latent attention, which is not supported", from->name);
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
    sn_role_shape(&t->span->hp, role, block, &rows, &cols);
    if (from->dims[b ? 0 : 1] != (b ? rows : cols) || !rank || rank > SN_LORA_RANK_MAX)
        return adapter_refuse_shape(from, err);
    return SN_OK;
}

/* Loads rows [row, row + n) of a matrix, row a multiple of ROWS_MULTIPLE; with the first ones it gets its memory. */
static sn_status adapter_load_matrix(sn_adapter *t, int block, const tensor_place *place,
                                     const sn_safetensors_tensor *from, size_t row, size_t n, sn_err *err) {
    float *host = NULL;
    size_t before = 0;
    sn_device *device = adapter_device(t, block);
    sn_block_adapter *own = &t->blocks[block - t->span->first];
    sn_weight *to = place->b ? &own->lora[place->role].b : &own->lora[place->role].a, part;
    sn_status status = matrix_check(t, block, place, from, err);
    if (!status && !row) {
        void *memory = NULL;
        sn_weight all = {.dtype = SN_F32, .rows = from->dims[0], .cols = from->dims[1]};
        status = device->ops->weight_size(device, SN_F32, all.rows, all.cols, &all.bytes, err);
        if (!status) status = device->ops->alloc(device, all.bytes, &memory, err);
        if (status) return status;
        all.device = memory;
        *to = all;
        t->bytes += all.bytes;
    }
    if (!status && row) status = device->ops->weight_size(device, SN_F32, row, to->cols, &before, err);
    const sn_tensor rows = tensor_rows(from, row, n);
    if (!status) status = sn_calloc(&host, n * from->dims[1], sizeof *host, err);
    if (!status) status = sn_guard(&rows, NULL, 2, rows.shape, host, NULL, err);
    if (!status)
        status = sn_weight_upload(device, SN_F32, n, from->dims[1], host, (char *)(uintptr_t)to->device + before, &part,
                                  err);
    free(host);
    return status;
}

static sn_status tensor_find_place(const sn_adapter *t, const sn_safetensors_tensor *from, tensor_place *out,
                                   sn_err *err) {
    char part = 0;
    if (!parse_tensor_name(from->name, &part, &out->block, &out->role))
        return sn_fail(err, SN_REFUSED,
                       "'%.64s' is no tensor of an adapter: these are called prompt.B, lora_a.B.T and lora_b.B.T",
                       from->name);
    if (from->n_dims != 2 || (from->dtype != SN_F32 && from->dtype != SN_F16 && from->dtype != SN_BF16) ||
        out->block >= t->span->hp.n_blocks)
        return adapter_refuse_shape(from, err);
    out->b = part == 'b';
    return SN_OK;
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

struct sn_adapter_loader {
    sn_adapter *adapter;
    sn_safetensors *file;
    size_t tensor, row; /* the next piece begins with this row of this tensor */
};

sn_status sn_adapter_load_start(sn_span *span, const void *image, size_t len, sn_adapter_loader **out, sn_err *err) {
    sn_adapter_loader *l = NULL;
    size_t n = (size_t)(span->end - span->first);
    uint64_t header = 0;
    *out = NULL;
    if (len >= sizeof header) memcpy(&header, image, sizeof header); /* its length comes first, little-endian */
    if (sn_n_recurrent(&span->hp, span->first, span->end))
        return sn_fail(err, SN_REFUSED, "blocks %d:%d hold recurrent states, and adapters of such models are not taken",
                       span->first, span->end);
    if (header > HEADER_MAX)
        return sn_fail(err, SN_REFUSED, "the names of the adapter's tensors take more than %d bytes", HEADER_MAX);
    sn_status status = sn_calloc(&l, 1, sizeof *l, err);
    if (!status) status = sn_calloc(&l->adapter, 1, sizeof *l->adapter, err);
    if (!status) l->adapter->span = span;
    if (!status) status = sn_calloc(&l->adapter->blocks, n, sizeof *l->adapter->blocks, err);
    if (!status) status = sn_calloc(&l->adapter->prompts, n, sizeof *l->adapter->prompts, err);
    if (!status) status = sn_safetensors_open_memory(image, len, "the adapter", &l->file, err);
    if (status) sn_adapter_loader_free(&l);
    *out = l;
    return status;
}

void sn_adapter_loader_free(sn_adapter_loader **loader) {
    if (!*loader) return;
    sn_safetensors_close(&(*loader)->file);
    sn_adapter_free(&(*loader)->adapter);
    free(*loader);
    *loader = NULL;
}

size_t sn_adapter_loader_bytes(const sn_adapter_loader *l) { return l->adapter->bytes; }

/* Loads as many rows of the present tensor as `bytes` allow. *spent: their bytes in the image. */
static sn_status loader_run_tensor(sn_adapter_loader *l, size_t bytes, size_t *spent, sn_err *err) {
    const sn_safetensors_tensor *from = sn_safetensors_tensor_at(l->file, l->tensor);
    const sn_span *span = l->adapter->span;
    tensor_place place = {0};
    *spent = 0;
    sn_status status = tensor_find_place(l->adapter, from, &place, err);
    if (status) return status;
    size_t row_bytes = from->dims[1] * sn_dtype_bytes(from->dtype), left = from->dims[0] - l->row;
    size_t n = row_bytes ? bytes / row_bytes / ROWS_MULTIPLE * ROWS_MULTIPLE : left;
    n = sn_min_size(n ? n : ROWS_MULTIPLE, left);
    if (place.block < span->first || place.block >= span->end)
        n = left; /* of another node */
    else if (place.role == SN_ROLE_COUNT)
        status = adapter_load_prompt(l->adapter, place.block, from, l->row, n, err);
    else
        status = adapter_load_matrix(l->adapter, place.block, &place, from, l->row, n, err);
    *spent = n * row_bytes;
    l->row += n;
    if (l->row < from->dims[0]) return status;
    l->row = 0;
    l->tensor++;
    return status;
}

sn_status sn_adapter_load_run(sn_adapter_loader *l, size_t bytes, bool *done, sn_adapter **out, sn_err *err) {
    sn_status status = SN_OK;
    size_t spent = 0, sum = 0;
    while (!status && l->tensor < sn_safetensors_n_tensors(l->file) && sum < bytes) {
        status = loader_run_tensor(l, bytes - sum, &spent, err);
        sum += spent;
    }
    *done = status || l->tensor == sn_safetensors_n_tensors(l->file);
    if (!*done || status) return status;
    status = adapter_check_pairs(l->adapter, err);
    if (status) return status;
    *out = l->adapter;
    l->adapter = NULL;
    return SN_OK;
}

sn_status sn_adapter_load(sn_span *span, const void *image, size_t len, sn_adapter **out, sn_err *err) {
    sn_adapter_loader *loader = NULL;
    bool done = false;
    *out = NULL;
    sn_status status = sn_adapter_load_start(span, image, len, &loader, err);
    if (!status) status = sn_adapter_load_run(loader, SIZE_MAX, &done, out, err);
    sn_adapter_loader_free(&loader);
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
