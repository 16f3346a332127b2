/* The mathematics of a block. A family differs by what its descriptor says it has (biases, q/k norms, a window, the
 * style of its rope), not by code of its own. */
#include "blocks/block.h"

#include "base/mem.h"
#include "device/guard.h"

#include <math.h>
#include <string.h>

static bool is_vector(sn_role role) {
    switch (role) {
    case SN_ROLE_ATTN_NORM:
    case SN_ROLE_ATTN_Q_BIAS:
    case SN_ROLE_ATTN_K_BIAS:
    case SN_ROLE_ATTN_V_BIAS:
    case SN_ROLE_ATTN_Q_NORM:
    case SN_ROLE_ATTN_K_NORM:
    case SN_ROLE_FFN_NORM:
        return true;
    default:
        return false;
    }
}

static sn_status load_vector(const sn_model_tensor *t, const char *name, sn_device *device, sn_block *block,
                             sn_role role, sn_err *err) {
    void *memory = NULL;
    sn_status status = device->ops->alloc(device, t->cols * sizeof(float), &memory, err);
    if (status) return status;
    block->vector[role] = memory;
    block->vector_len[role] = t->cols;
    sn_tensor outside = {.name = name, .data = t->data, .dtype = t->dtype, .rank = 1, .shape = {(int64_t)t->cols}};
    return sn_guard(&outside, device, 1, outside.shape, memory, NULL, err);
}

static const char *role_name(sn_role role) {
    static const char *const names[] = {
#define X(name) #name,
        SN_ROLES(X)
#undef X
    };
    return names[role];
}

static sn_status load_role(const sn_model *model, sn_device *device, int number, sn_role role, sn_block *block,
                           sn_err *err) {
    sn_model_tensor t;
    sn_status status = sn_model_find(model, role, number, &t, err);
    if (status || !t.data) return status;
    if (is_vector(role))
        status = load_vector(&t, role_name(role), device, block, role, err);
    else
        status = device->ops->weight_new(device, t.dtype, t.rows, t.cols, t.data, &block->matrix[role], err);
    sn_model_forget(model, &t);
    if (status) return sn_err_context(err, "block %d, %s", number, role_name(role));
    block->bytes += block->matrix[role] ? block->matrix[role]->bytes : block->vector_len[role] * sizeof(float);
    return SN_OK;
}

sn_status sn_block_load(const sn_model *model, sn_device *device, int number, sn_block *out, sn_err *err) {
    *out = (sn_block){0};
    sn_status status = SN_OK;
    for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT && !status; role++)
        status = load_role(model, device, number, (sn_role)role, out, err);
    if (status) sn_block_unload(out, device);
    return status;
}

void sn_block_unload(sn_block *block, sn_device *device) {
    for (int role = 0; role < SN_ROLE_COUNT; role++) {
        device->ops->weight_free(device, &block->matrix[role]);
        device->ops->free(device, block->vector[role], block->vector_len[role] * sizeof(float));
    }
    *block = (sn_block){0};
}

/* Each step of the mathematics is one operation of the device; the first that fails ends the pass. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        sn_status status_ = (call);                                                                                    \
        if (status_) return status_;                                                                                   \
    } while (0)

/* h = attention(norm(x)): (rows, n_embd) */
static sn_status attend(const sn_block *b, int index, const sn_block_pass *p, sn_err *err) {
    sn_device *d = p->device;
    const sn_device_ops *ops = d->ops;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    int n = p->n_rows, heads = hp->n_heads, kv_heads = hp->n_kv_heads, dim = hp->head_dim;
    const sn_rope rope = {hp->rope_style == SN_ROPE_HALVES, hp->rope_dim, s->cos_sin};

    /* h = x / rms(x) * w */
    TRY(ops->rms_norm(d, n, hp->n_embd, s->x, b->vector[SN_ROLE_ATTN_NORM], hp->norm_eps, s->h, err));
    /* q, k, v = h Wq^T, h Wk^T, h Wv^T (+ biases) */
    const sn_linear qkv[] = {{b->matrix[SN_ROLE_ATTN_Q], b->vector[SN_ROLE_ATTN_Q_BIAS], s->q},
                             {b->matrix[SN_ROLE_ATTN_K], b->vector[SN_ROLE_ATTN_K_BIAS], s->k},
                             {b->matrix[SN_ROLE_ATTN_V], b->vector[SN_ROLE_ATTN_V_BIAS], s->v}};
    TRY(ops->linear(d, n, s->h, 3, qkv, err));
    /* each head of q and k normed by itself, where the family has such norms */
    if (b->vector[SN_ROLE_ATTN_Q_NORM])
        TRY(ops->rms_norm(d, n * heads, dim, s->q, b->vector[SN_ROLE_ATTN_Q_NORM], hp->norm_eps, s->q, err));
    if (b->vector[SN_ROLE_ATTN_K_NORM])
        TRY(ops->rms_norm(d, n * kv_heads, dim, s->k, b->vector[SN_ROLE_ATTN_K_NORM], hp->norm_eps, s->k, err));
    /* q, k rotated by their positions */
    TRY(ops->rope(d, n, heads, dim, s->q, &rope, err));
    TRY(ops->rope(d, n, kv_heads, dim, s->k, &rope, err));
    /* past and present join in the cache; each query looks back over both */
    TRY(ops->kv_store(d, p->kv_shape, index, p->n_sequences, p->sequences, s->k, s->v, err));
    float scale = 1.0f / sqrtf((float)dim);
    TRY(ops->attention(d, p->kv_shape, index, p->n_sequences, p->sequences, heads, hp->window, scale, s->q, s->attn,
                       err));
    /* h = attn Wo^T */
    const sn_linear o = {b->matrix[SN_ROLE_ATTN_O], NULL, s->h};
    return ops->linear(d, n, s->attn, 1, &o, err);
}

/* h = (silu(norm(x) Wgate^T) * (norm(x) Wup^T)) Wdown^T: (rows, n_embd) */
static sn_status feed_forward(const sn_block *b, const sn_block_pass *p, sn_err *err) {
    sn_device *d = p->device;
    const sn_hparams *hp = p->hp;
    const sn_scratch *s = p->scratch;
    TRY(d->ops->rms_norm(d, p->n_rows, hp->n_embd, s->x, b->vector[SN_ROLE_FFN_NORM], hp->norm_eps, s->h, err));
    const sn_linear gate_up[] = {{b->matrix[SN_ROLE_FFN_GATE], NULL, s->gate},
                                 {b->matrix[SN_ROLE_FFN_UP], NULL, s->up}};
    TRY(d->ops->linear(d, p->n_rows, s->h, 2, gate_up, err));
    TRY(d->ops->silu_mul(d, (size_t)p->n_rows * (size_t)hp->n_ff, s->gate, s->up, s->gate, err));
    const sn_linear down = {b->matrix[SN_ROLE_FFN_DOWN], NULL, s->h};
    return d->ops->linear(d, p->n_rows, s->gate, 1, &down, err);
}

sn_status sn_block_forward(const sn_block *block, int index, const sn_block_pass *pass, sn_err *err) {
    const sn_scratch *s = pass->scratch;
    size_t n = (size_t)pass->n_rows * (size_t)pass->hp->n_embd;
    /* x += attention(norm(x)) */
    TRY(attend(block, index, pass, err));
    TRY(pass->device->ops->add(pass->device, n, s->x, s->h, err));
    /* x += feed_forward(norm(x)) */
    TRY(feed_forward(block, pass, err));
    return pass->device->ops->add(pass->device, n, s->x, s->h, err);
}
