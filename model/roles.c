/* What each role of a tensor is: its name, its shape, whether it is a vector, and which bias belongs to it. */
#include "model/model.h"

const char *sn_role_name(sn_role role) {
    static const char *const names[] = {
#define X(name) #name,
        SN_ROLES(X)
#undef X
    };
    return names[role];
}

/* Each of these functions changes the shape (1, n_embd) that most roles have. */

static void index_shape(const sn_hparams *h, sn_role role, size_t *rows, size_t *cols) {
    size_t heads = (size_t)h->index_heads, dim = (size_t)h->index_dim;
    if (role == SN_ROLE_INDEX_Q) *rows = heads * dim, *cols = (size_t)h->q_rank;
    if (role == SN_ROLE_INDEX_K) *rows = dim;
    if (role == SN_ROLE_INDEX_K_NORM || role == SN_ROLE_INDEX_K_NORM_BIAS) *cols = dim;
    if (role == SN_ROLE_INDEX_WEIGHTS) *rows = heads;
}

static void attention_shape(const sn_hparams *h, sn_role role, int block, size_t *rows, size_t *cols) {
    const sn_heads own = sn_heads_of(h, block);
    size_t heads = (size_t)own.n, head = (size_t)own.key_dim, q = heads * head, k = (size_t)own.n_kv * head;
    size_t value = (size_t)(h->latent ? h->value_dim : own.value_dim), latent = (size_t)h->latent,
           nope = (size_t)h->nope_dim;
    switch (role) {
    case SN_ROLE_ATTN_Q_LOW:
        *rows = (size_t)h->q_rank;
        break;
    case SN_ROLE_ATTN_Q_LOW_NORM:
        *cols = (size_t)h->q_rank;
        break;
    case SN_ROLE_ATTN_Q:
        *rows = latent ? heads * (nope + (size_t)h->rope_dim) : q;
        if (h->q_rank) *cols = (size_t)h->q_rank;
        break;
    case SN_ROLE_ATTN_GATE:
        *rows = q;
        break;
    case SN_ROLE_ATTN_HEAD_GATE:
        *rows = heads;
        break;
    case SN_ROLE_ATTN_V_NORM:
        *cols = (size_t)own.value_dim;
        break;
    case SN_ROLE_ATTN_K:
        *rows = sn_kv_key_width(h, block);
        break;
    case SN_ROLE_ATTN_V:
        *rows = sn_kv_value_width(h, block);
        break;
    case SN_ROLE_ATTN_LATENT_NORM:
        *cols = latent;
        break;
    case SN_ROLE_ATTN_K_UP:
        *rows = latent, *cols = nope;
        break;
    case SN_ROLE_ATTN_V_UP:
        *rows = value, *cols = latent;
        break;
    case SN_ROLE_ATTN_O:
        *rows = (size_t)h->n_embd, *cols = heads * value;
        break;
    case SN_ROLE_ATTN_Q_BIAS:
        *cols = q;
        break;
    case SN_ROLE_ATTN_K_BIAS:
        *cols = k;
        break;
    case SN_ROLE_ATTN_V_BIAS:
        *cols = sn_kv_value_width(h, block);
        break;
    case SN_ROLE_ATTN_SLOPES:
    case SN_ROLE_ATTN_SINKS:
        *cols = heads;
        break;
    case SN_ROLE_ATTN_Q_NORM:
        *cols = h->qk_norm_wide ? q : head;
        break;
    case SN_ROLE_ATTN_K_NORM:
        *cols = h->qk_norm_wide ? k : head;
        break;
    default:
        index_shape(h, role, rows, cols);
        break;
    }
}

static void feed_forward_shape(const sn_hparams *h, sn_role role, size_t *rows, size_t *cols) {
    size_t n_ff = (size_t)(h->n_experts ? h->n_ff_dense : h->n_ff);
    if (role == SN_ROLE_FFN_GATE || role == SN_ROLE_FFN_UP)
        *rows = n_ff;
    else
        *cols = n_ff;
    if (role == SN_ROLE_FFN_DOWN) *rows = (size_t)h->n_embd;
}

static void experts_shape(const sn_hparams *h, sn_role role, size_t *rows, size_t *cols) {
    size_t embd = (size_t)h->n_embd, ff = (size_t)h->n_ff, experts = (size_t)h->n_experts;
    size_t width = (size_t)sn_expert_width(h);
    switch (role) {
    case SN_ROLE_EXPERTS_NARROW:
        *rows = width;
        break;
    case SN_ROLE_EXPERTS_WIDEN:
        *rows = embd, *cols = width;
        break;
    case SN_ROLE_ROUTER:
        *rows = experts;
        break;
    case SN_ROLE_ROUTER_BIAS:
    case SN_ROLE_ROUTER_CORRECTION:
    case SN_ROLE_ROUTER_FACTORS:
        *cols = experts;
        break;
    case SN_ROLE_EXPERTS_GATE:
    case SN_ROLE_EXPERTS_UP:
        *rows = ff, *cols = width;
        break;
    case SN_ROLE_EXPERTS_DOWN:
        *rows = width, *cols = ff;
        break;
    case SN_ROLE_EXPERTS_GATE_BIAS:
    case SN_ROLE_EXPERTS_UP_BIAS:
        *cols = experts * ff;
        break;
    case SN_ROLE_EXPERTS_DOWN_BIAS:
        *cols = experts * embd;
        break;
    case SN_ROLE_SHARED_GATE:
    case SN_ROLE_SHARED_UP:
        *rows = (size_t)h->n_ff_shared;
        break;
    case SN_ROLE_SHARED_DOWN:
        *rows = embd, *cols = (size_t)h->n_ff_shared;
        break;
    default:
        feed_forward_shape(h, role, rows, cols);
        break;
    }
}

/* The roles of a recurrent block; false: it is none of them. */
static bool delta_shape(const sn_hparams *h, sn_role role, size_t *rows, size_t *cols) {
    const size_t keys = sn_delta_keys(h), values = sn_delta_values(h), rank = (size_t)h->delta_rank,
                 taps = (size_t)h->conv_taps, width = *cols;
    switch (role) {
    case SN_ROLE_DELTA_QKV:
        return *rows = sn_delta_width(h), true;
    case SN_ROLE_DELTA_Q:
    case SN_ROLE_DELTA_K:
        return *rows = keys, true;
    case SN_ROLE_DELTA_V:
        return *rows = values, true;
    case SN_ROLE_DELTA_GATE:
        return *rows = values, *cols = rank ? rank : width, true;
    case SN_ROLE_DELTA_TIME:
        return *rows = sn_delta_times(h), *cols = rank ? rank : width, true;
    case SN_ROLE_DELTA_TIME_LOW:
    case SN_ROLE_DELTA_GATE_LOW:
        return *rows = rank, true;
    case SN_ROLE_DELTA_WRITE:
        return *rows = sn_delta_writes(h), true;
    case SN_ROLE_DELTA_TAPS:
        return *cols = sn_delta_width(h) * taps, true;
    case SN_ROLE_DELTA_Q_TAPS:
    case SN_ROLE_DELTA_K_TAPS:
        return *cols = keys * taps, true;
    case SN_ROLE_DELTA_V_TAPS:
        return *cols = values * taps, true;
    case SN_ROLE_DELTA_TAPS_BIAS:
        return *cols = sn_delta_width(h), true;
    case SN_ROLE_DELTA_TIME_BIAS:
        return *cols = sn_delta_times(h), true;
    case SN_ROLE_DELTA_RATES:
    case SN_ROLE_DELTA_SKIP:
        return *cols = (size_t)h->delta_value_heads, true;
    case SN_ROLE_DELTA_NORM:
        return *cols = h->recurrence == SN_STATE_SPACE ? values : (size_t)h->delta_value_dim, true;
    case SN_ROLE_DELTA_OUT:
        return *rows = width, *cols = values, true;
    default:
        return false;
    }
}

static void ends_shape(const sn_hparams *h, sn_role role, size_t *rows, size_t *cols) {
    *rows = (size_t)(role == SN_ROLE_NEXT_INPUT ? h->n_embd : h->n_vocab);
    if (role == SN_ROLE_NEXT_INPUT) *cols = 2 * (size_t)h->n_embd;
}

void sn_role_shape(const sn_hparams *h, sn_role role, int block, size_t *rows, size_t *cols) {
    *rows = 1, *cols = (size_t)h->n_embd;
    if (delta_shape(h, role, rows, cols)) return;
    switch (role) {
    case SN_ROLE_TOKEN_EMBEDDING:
    case SN_ROLE_OUTPUT:
    case SN_ROLE_NEXT_INPUT:
        ends_shape(h, role, rows, cols);
        break;
    case SN_ROLE_ATTN_Q_LOW:
    case SN_ROLE_ATTN_Q_LOW_NORM:
    case SN_ROLE_ATTN_Q:
    case SN_ROLE_ATTN_K:
    case SN_ROLE_ATTN_V:
    case SN_ROLE_ATTN_LATENT_NORM:
    case SN_ROLE_ATTN_K_UP:
    case SN_ROLE_ATTN_V_UP:
    case SN_ROLE_ATTN_O:
    case SN_ROLE_ATTN_GATE:
    case SN_ROLE_ATTN_HEAD_GATE:
    case SN_ROLE_ATTN_V_NORM:
    case SN_ROLE_ATTN_Q_BIAS:
    case SN_ROLE_ATTN_K_BIAS:
    case SN_ROLE_ATTN_V_BIAS:
    case SN_ROLE_ATTN_SLOPES:
    case SN_ROLE_ATTN_SINKS:
    case SN_ROLE_ATTN_Q_NORM:
    case SN_ROLE_ATTN_K_NORM:
    case SN_ROLE_INDEX_Q ... SN_ROLE_INDEX_WEIGHTS:
        attention_shape(h, role, block, rows, cols);
        break;
    case SN_ROLE_FFN_GATE:
    case SN_ROLE_FFN_UP:
    case SN_ROLE_FFN_DOWN:
    case SN_ROLE_FFN_UP_BIAS:
    case SN_ROLE_ROUTER:
    case SN_ROLE_ROUTER_BIAS:
    case SN_ROLE_ROUTER_CORRECTION:
    case SN_ROLE_ROUTER_FACTORS:
    case SN_ROLE_EXPERTS_GATE:
    case SN_ROLE_EXPERTS_UP:
    case SN_ROLE_EXPERTS_DOWN:
    case SN_ROLE_EXPERTS_GATE_BIAS:
    case SN_ROLE_EXPERTS_UP_BIAS:
    case SN_ROLE_EXPERTS_DOWN_BIAS:
    case SN_ROLE_SHARED_GATE ... SN_ROLE_SHARED_DOWN:
    case SN_ROLE_EXPERTS_NARROW ... SN_ROLE_EXPERTS_WIDEN:
        experts_shape(h, role, rows, cols);
        break;
    case SN_ROLE_EMBED_NORM:
    case SN_ROLE_EMBED_NORM_BIAS:
    case SN_ROLE_OUTPUT_NORM:
    case SN_ROLE_OUTPUT_NORM_BIAS:
    case SN_ROLE_ATTN_NORM:
    case SN_ROLE_ATTN_NORM_BIAS:
    case SN_ROLE_ATTN_O_BIAS:
    case SN_ROLE_ATTN_POST_NORM:
    case SN_ROLE_FFN_NORM:
    case SN_ROLE_FFN_NORM_BIAS:
    case SN_ROLE_FFN_DOWN_BIAS:
    case SN_ROLE_FFN_POST_NORM:
    case SN_ROLE_SHARED_ROUTER:
    case SN_ROLE_NEXT_EMBED_NORM:
    case SN_ROLE_NEXT_HIDDEN_NORM:
    case SN_ROLE_NEXT_OUTPUT_NORM:
    case SN_ROLE_SHARED_POST_NORM:
    case SN_ROLE_EXPERTS_NORM:
    case SN_ROLE_EXPERTS_POST_NORM:
    case SN_ROLE_ROUTER_NORM:
    case SN_ROLE_DELTA_QKV ... SN_ROLE_DELTA_OUT: /* above */
    case SN_ROLE_COUNT:                           /* no role */
        break;
    case SN_ROLE_BLOCK_SCALE:
        *cols = 1;
        break;
    }
}

bool sn_role_is_norm(sn_role role) {
    switch (role) {
    case SN_ROLE_EMBED_NORM:
    case SN_ROLE_OUTPUT_NORM:
    case SN_ROLE_ATTN_NORM:
    case SN_ROLE_ATTN_POST_NORM:
    case SN_ROLE_FFN_NORM:
    case SN_ROLE_FFN_POST_NORM:
    case SN_ROLE_ATTN_Q_NORM:
    case SN_ROLE_ATTN_K_NORM:
    case SN_ROLE_ATTN_Q_LOW_NORM:
    case SN_ROLE_ATTN_LATENT_NORM:
    case SN_ROLE_INDEX_K_NORM:
    case SN_ROLE_NEXT_EMBED_NORM:
    case SN_ROLE_NEXT_HIDDEN_NORM:
    case SN_ROLE_NEXT_OUTPUT_NORM:
    case SN_ROLE_SHARED_POST_NORM:
    case SN_ROLE_EXPERTS_NORM:
    case SN_ROLE_EXPERTS_POST_NORM:
    case SN_ROLE_ROUTER_NORM:
        return true;
    default:
        return false;
    }
}

static const struct {
    sn_role of, bias;
} biases[] = {{SN_ROLE_INDEX_K_NORM, SN_ROLE_INDEX_K_NORM_BIAS},
              {SN_ROLE_EMBED_NORM, SN_ROLE_EMBED_NORM_BIAS},
              {SN_ROLE_OUTPUT_NORM, SN_ROLE_OUTPUT_NORM_BIAS},
              {SN_ROLE_ATTN_NORM, SN_ROLE_ATTN_NORM_BIAS},
              {SN_ROLE_FFN_NORM, SN_ROLE_FFN_NORM_BIAS},
              {SN_ROLE_ATTN_Q, SN_ROLE_ATTN_Q_BIAS},
              {SN_ROLE_ATTN_K, SN_ROLE_ATTN_K_BIAS},
              {SN_ROLE_ATTN_V, SN_ROLE_ATTN_V_BIAS},
              {SN_ROLE_ATTN_O, SN_ROLE_ATTN_O_BIAS},
              {SN_ROLE_FFN_UP, SN_ROLE_FFN_UP_BIAS},
              {SN_ROLE_FFN_DOWN, SN_ROLE_FFN_DOWN_BIAS},
              {SN_ROLE_ROUTER, SN_ROLE_ROUTER_BIAS},
              {SN_ROLE_EXPERTS_GATE, SN_ROLE_EXPERTS_GATE_BIAS},
              {SN_ROLE_EXPERTS_UP, SN_ROLE_EXPERTS_UP_BIAS},
              {SN_ROLE_EXPERTS_DOWN, SN_ROLE_EXPERTS_DOWN_BIAS}};

sn_role sn_role_bias(sn_role role) {
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++)
        if (biases[i].of == role) return biases[i].bias;
    return SN_ROLE_COUNT;
}

bool sn_role_is_vector(sn_role role) {
    bool vector = sn_role_is_norm(role) || role == SN_ROLE_ATTN_SLOPES || role == SN_ROLE_ATTN_SINKS ||
                  role == SN_ROLE_ROUTER_CORRECTION || role == SN_ROLE_ROUTER_FACTORS || role == SN_ROLE_ATTN_V_NORM ||
                  role == SN_ROLE_BLOCK_SCALE || (role >= SN_ROLE_DELTA_TAPS && role <= SN_ROLE_DELTA_NORM) ||
                  (role >= SN_ROLE_DELTA_Q_TAPS && role <= SN_ROLE_DELTA_SKIP);
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) vector |= biases[i].bias == role;
    return vector;
}
