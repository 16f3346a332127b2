/* The buffers of a device are one allocation for whole sequences; the KV pages at its end hold one block, because each
 * block overwrites those of the block before. */
#include "blocks/train_device.h"

#include "base/mem.h"
#include "blocks/moe.h"

#include <stdlib.h>

static size_t count_pages(int tokens) { return ((size_t)tokens + SN_KV_PAGE_TOKENS - 1) / SN_KV_PAGE_TOKENS; }
sn_kv_shape sn_train_kv_shape(const sn_hparams *hp) { return sn_kv_shape_of(hp, 0, 1, SN_KV_F32); }

size_t sn_train_buffers(const sn_hparams *hp, sn_grad_scratch *s, float **buffer[SN_TRAIN_BUFFERS],
                        size_t width[SN_TRAIN_BUFFERS]) {
    size_t embd = (size_t)hp->n_embd, ff = sn_ff_width(hp), q = (size_t)hp->n_heads * (size_t)hp->head_dim;
    size_t kv = (size_t)hp->n_kv_heads * (size_t)hp->head_dim, rope = (size_t)hp->rope_dim;
    size_t widest = sn_widest_row(hp), post_norm = hp->post_norm ? embd : 0, rope2 = hp->n_ropes > 1 ? rope : 0;
    size_t used = (size_t)hp->n_experts_used, expert_out = used * embd;
    size_t shared = hp->n_ff_shared ? embd : 0;
    const struct {
        float **at;
        size_t width;
    } all[SN_TRAIN_BUFFERS] = {{&s->x, embd},
                               {&s->mid, embd},
                               {&s->h1, embd},
                               {&s->h2, embd},
                               {&s->dy, embd},
                               {&s->dh, embd},
                               {&s->q0, q},
                               {&s->q, q},
                               {&s->attn, q},
                               {&s->dq, q},
                               {&s->dattn, q},
                               {&s->k0, kv},
                               {&s->k, kv},
                               {&s->v, kv},
                               {&s->dk, kv},
                               {&s->dv, kv},
                               {&s->gate, ff},
                               {&s->up, ff},
                               {&s->act, ff},
                               {&s->dgate, ff},
                               {&s->dup, ff},
                               {&s->lora_mid, SN_LORA_RANK_MAX},
                               {&s->dlora_mid, SN_LORA_RANK_MAX},
                               {&s->lora_out, widest},
                               {&s->o1, post_norm},
                               {&s->o2, post_norm},
                               {&s->cos_sin[0], rope},
                               {&s->cos_sin_inverse[0], rope},
                               {&s->cos_sin[1], rope2},
                               {&s->cos_sin_inverse[1], rope2},
                               {&s->logits, (size_t)hp->n_experts},
                               {&s->expert_weights, used},
                               {&s->expert_ids, used},
                               {&s->dexpert_weights, used},
                               {&s->expert_out, expert_out},
                               {&s->shared_out, shared},
                               {&s->shared_weight, shared ? 1 : 0},
                               {&s->q_factors, hp->q_growth > 0 ? 1 : 0}};
    for (int i = 0; i < SN_TRAIN_BUFFERS; i++) {
        buffer[i] = all[i].at;
        width[i] = all[i].width;
    }
    return widest;
}

static size_t buffer_bytes(size_t width, int tokens) { return sn_round_up(width * (size_t)tokens * sizeof(float), 64); }

size_t sn_train_device_bytes(const sn_hparams *hp, const sn_device *device, int tokens) {
    sn_grad_scratch none;
    float **buffer[SN_TRAIN_BUFFERS];
    size_t width[SN_TRAIN_BUFFERS], bytes = 0;
    const sn_kv_shape shape = sn_train_kv_shape(hp);
    sn_train_buffers(hp, &none, buffer, width);
    for (int i = 0; i < SN_TRAIN_BUFFERS; i++) bytes += buffer_bytes(width[i], tokens);
    return bytes + count_pages(tokens) * device->ops->kv_page_bytes(device, &shape);
}

static sn_device_limits train_limits(const sn_hparams *hp, int tokens, size_t widest) {
    return (sn_device_limits){.rows = tokens,
                              .width = (int)widest,
                              .context = tokens,
                              .sequences = 1,
                              .heads = hp->n_heads,
                              .head_dim = hp->head_dim,
                              .experts = hp->n_experts,
                              .experts_used = hp->n_experts_used,
                              .expert_width = hp->n_ff,
                              .grad_tokens = tokens};
}

sn_status sn_train_device_init(const sn_hparams *hp, sn_device *device, int tokens, sn_train_device *h, sn_err *err) {
    float **buffer[SN_TRAIN_BUFFERS];
    size_t width[SN_TRAIN_BUFFERS], widest = sn_train_buffers(hp, &h->scratch, buffer, width),
                                    n_pages = count_pages(tokens);
    const sn_kv_shape shape = sn_train_kv_shape(hp);
    const sn_device_limits limits = train_limits(hp, tokens, widest);
    h->device = device;
    h->bytes = sn_train_device_bytes(hp, device, tokens);
    sn_status status = sn_calloc(&h->pages, n_pages, sizeof *h->pages, err);
    if (!status) status = device->ops->prepare(device, &limits, err);
    if (!status) status = device->ops->alloc(device, h->bytes, &h->memory, err);
    if (status) return status;
    char *at = h->memory;
    for (int i = 0; i < SN_TRAIN_BUFFERS; at += buffer_bytes(width[i++], tokens)) *buffer[i] = (float *)(void *)at;
    h->scratch.dlogits = h->scratch.logits;
    h->scratch.dexpert_out = h->scratch.expert_out;
    for (size_t p = 0; p < n_pages; p++, at += device->ops->kv_page_bytes(device, &shape)) h->pages[p] = at;
    return SN_OK;
}

void sn_train_device_fini(sn_train_device *h) {
    if (h->device) h->device->ops->free(h->device, h->memory, h->bytes);
    if (h->device) h->device->ops->free(h->device, h->grads, h->grads_bytes);
    free(h->pages);
}

/* Bytes of LoRA gradients: those of the block on this device that has most. */
static size_t adapter_grads_bytes(const sn_span *span, const sn_device *device, const sn_adapter *adapter) {
    size_t most = 0;
    for (int b = span->first, i = 0; b < span->end; b++) {
        while (b >= span->segments[i].end) i++;
        size_t n = span->segments[i].device == device ? sn_adapter_n_params(adapter, b, b + 1) : 0;
        if (n > most) most = n;
    }
    return most * sizeof(float);
}

sn_status sn_train_check_memory(const sn_span *span, int tokens_max, const sn_adapter *adapter, sn_err *err) {
    sn_grad_scratch none;
    float **buffer[SN_TRAIN_BUFFERS];
    size_t width[SN_TRAIN_BUFFERS];
    char name[32], needed[32], there[32];
    const sn_device_limits limits =
        train_limits(&span->hp, tokens_max, sn_train_buffers(&span->hp, &none, buffer, width));
    for (int i = 0; i < span->n_devices; i++) {
        const sn_device *d = span->devices[i].device;
        size_t bytes = sn_train_device_bytes(&span->hp, d, tokens_max), left = sn_device_memory_left(d);
        if (adapter) bytes += adapter_grads_bytes(span, d, adapter);
        if (sn_add(bytes, d->ops->prepare_bytes(d, &limits), &bytes) && bytes <= left) continue;
        return sn_fail(err, SN_RETRY,
                       "training on a sequence of %d tokens takes %s of %s, where %s are left within --device-memory",
                       tokens_max, sn_format_size(bytes, needed), sn_device_id_name(d->id, name),
                       sn_format_size(left, there));
    }
    return SN_OK;
}
