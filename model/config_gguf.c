/* Reads the keys ARCHITECTURE.* of GGUF metadata. A key that is not in known_keys may change the mathematics, so it is
 * refused. What the metadata does not say (biases, a tied LM head, Falcon's variant) follows from the tensors that the
 * file has. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* All keys of an architecture that are read, or that do not change the mathematics. */
static const char *const known_keys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.sliding_window",
    "attention.causal",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "vocab_size",
    "tensor_data_layout",
};

/* Keys that are known only in families where some blocks have a window, and where these blocks have their own rope. */
static const char *const pattern_keys[] = {"attention.sliding_window_pattern"};
static const char *const two_ropes_keys[] = {"rope.freq_base_swa"};
static const char *const heads_keys[] = {"attention.sliding_window_pattern",
                                         "attention.key_length_swa",
                                         "attention.value_length_swa",
                                         "rope.dimension_count_swa",
                                         "attention.value_scale",
                                         "swiglu_clamp_exp",
                                         "swiglu_clamp_shexp",
                                         "attention.shared_kv_layers",
                                         "embedding_length_per_layer_input"};
/* Those of mixtures of experts; of families with further blocks; of families with multipliers; of families whose
 * queries grow with the position. */
static const char *const experts_keys[] = {"expert_shared_count",       "expert_shared_feed_forward_length",
                                           "expert_weights_scale",      "expert_weights_norm",
                                           "expert_gating_func",        "expert_group_count",
                                           "expert_group_used_count",   "leading_dense_block_count",
                                           "interleave_moe_layer_step", "moe_every_n_layers"};
static const char *const further_keys[] = {"nextn_predict_layers"};
static const char *const multiplier_keys[] = {"embedding_scale", "attention.scale", "residual_scale", "logit_scale"};
static const char *const long_keys[] = {"rope.scaling.attn_factor"};
static const char *const logit_keys[] = {"logit_scale"};
static const char *const softcap_keys[] = {"attn_logit_softcapping", "final_logit_softcapping"};
static const char *const growth_keys[] = {"attention.temperature_scale", "attention.temperature_length",
                                          "rope.scaling.yarn_log_multiplier"};

/* Keys that are known only in families with recurrent blocks. */
static const char *const state_space_keys[] = {"ssm.conv_kernel",    "ssm.state_size", "ssm.group_count",
                                               "ssm.time_step_rank", "ssm.inner_size", "moe_latent_size"};
static const char *const keyed_delta_keys[] = {"ssm.conv_kernel", "kda.head_dim", "kda.safe_gate",
                                               "kda.gate_lower_bound"};
static const char *const short_conv_keys[] = {"shortconv.l_cache"};
static const char *const recurrent_keys[] = {"ssm.conv_kernel",         "ssm.state_size",
                                             "ssm.group_count",         "ssm.time_step_rank",
                                             "ssm.inner_size",          "attention.recurrent_layers",
                                             "full_attention_interval", "rope.dimension_sections"};

/* Keys that are known only in families with an indexer; with latent attention. */
static const char *const indexed_keys[] = {"attention.indexer.head_count", "attention.indexer.key_length",
                                           "attention.indexer.top_k", "attention.indexer.types"};
static const char *const latent_keys[] = {"attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla",
                                          "attention.value_length_mla", "rope.scaling.yarn_log_multiplier"};

typedef struct reader {
    const sn_gguf *gguf;
    const sn_family *family;
    const char *architecture;
    sn_err *err;
} reader;

enum { KEY_SIZE = 128 };

static char *full_key(const reader *r, const char *key, char out[KEY_SIZE]) {
    snprintf(out, KEY_SIZE, "%s.%s", r->architecture, key);
    return out;
}

static sn_status read_int(const reader *r, const char *key, bool required, int *out) {
    char full[KEY_SIZE];
    return sn_gguf_i32(r->gguf, full_key(r, key, full), required, out, r->err);
}

static sn_status read_float(const reader *r, const char *key, bool required, float *out) {
    char full[KEY_SIZE];
    return sn_gguf_f32(r->gguf, full_key(r, key, full), required, out, r->err);
}

/* A number that may be a list with one for each block: that of the block, which may lie beyond the list. */
static int block_number(const reader *r, const char *key, int block, int usual) {
    char full[KEY_SIZE];
    const sn_gguf_value *value = sn_gguf_find(r->gguf, full_key(r, key, full));
    if (!value || value->type != SN_GGUF_ARRAY) return usual;
    return (size_t)block < value->n ? sn_gguf_i32_at(value, (size_t)block) : 0;
}

/* The same: the largest one. */
static sn_status read_largest(const reader *r, const char *key, bool required, int *out) {
    char full[KEY_SIZE];
    const sn_gguf_value *value = sn_gguf_find(r->gguf, full_key(r, key, full));
    if (!value || value->type != SN_GGUF_ARRAY) return read_int(r, key, required, out);
    if ((value->element != SN_GGUF_I32 && value->element != SN_GGUF_U32) || !value->n)
        return sn_fail(r->err, SN_REFUSED, "'%s' must be whole numbers, one for each block", full);
    *out = 0;
    for (size_t i = 0; i < value->n; i++)
        if (sn_gguf_i32_at(value, i) > *out) *out = sn_gguf_i32_at(value, i);
    return SN_OK;
}

static bool is_among(sn_gguf_str key, size_t prefix, const char *const *list, size_t n) {
    for (size_t k = 0; k < n; k++) {
        size_t len = strlen(list[k]);
        if (key.len == prefix + 1 + len && !memcmp(key.data + prefix + 1, list[k], len)) return true;
    }
    return false;
}

static bool is_recurrence_key(sn_recurrence recurrence, sn_gguf_str key, size_t prefix) {
#define AMONG(list) is_among(key, prefix, list, sizeof(list) / sizeof *(list))
    return recurrence == SN_STATE_SPACE   ? AMONG(state_space_keys)
           : recurrence == SN_KEYED_DELTA ? AMONG(keyed_delta_keys)
           : recurrence == SN_SHORT_CONV  ? AMONG(short_conv_keys)
                                          : AMONG(recurrent_keys);
#undef AMONG
}

static sn_status check_keys(const reader *r) {
    size_t prefix = strlen(r->architecture);
    for (size_t i = 0; i < sn_gguf_n_values(r->gguf); i++) {
        sn_gguf_str key = sn_gguf_value_at(r->gguf, i)->key;
        if (key.len <= prefix || memcmp(key.data, r->architecture, prefix) || key.data[prefix] != '.') continue;
        bool known = is_among(key, prefix, known_keys, sizeof known_keys / sizeof *known_keys);
        if (r->family->window_pattern)
            known |= is_among(key, prefix, pattern_keys, sizeof pattern_keys / sizeof *pattern_keys);
        if (r->family->moe) known |= is_among(key, prefix, experts_keys, sizeof experts_keys / sizeof *experts_keys);
        if (r->family->further_blocks)
            known |= is_among(key, prefix, further_keys, sizeof further_keys / sizeof *further_keys);
        if (r->family->multipliers)
            known |= is_among(key, prefix, multiplier_keys, sizeof multiplier_keys / sizeof *multiplier_keys);
        if (r->family->logit_scale_default > 0)
            known |= is_among(key, prefix, logit_keys, sizeof logit_keys / sizeof *logit_keys);
        if (r->family->long_rope) known |= is_among(key, prefix, long_keys, sizeof long_keys / sizeof *long_keys);
        if (r->family->softcaps || r->family->logit_softcap)
            known |= is_among(key, prefix, softcap_keys, sizeof softcap_keys / sizeof *softcap_keys);
        if ((r->family->wrapped && !r->family->recurrent) || r->family->latent)
            known |= is_among(key, prefix, growth_keys, sizeof growth_keys / sizeof *growth_keys);
        if (r->family->heads) known |= is_among(key, prefix, heads_keys, sizeof heads_keys / sizeof *heads_keys);
        if (r->family->local_theta > 0 || r->family->local_unscaled)
            known |= is_among(key, prefix, two_ropes_keys, sizeof two_ropes_keys / sizeof *two_ropes_keys);
        if (r->family->recurrent) known |= is_recurrence_key(r->family->recurrence, key, prefix);
        if (r->family->indexed)
            known |= is_among(key, prefix, indexed_keys, sizeof indexed_keys / sizeof *indexed_keys);
        if (r->family->latent) known |= is_among(key, prefix, latent_keys, sizeof latent_keys / sizeof *latent_keys);
        if (!known)
            return sn_fail(r->err, SN_REFUSED,
                           "metadata key '%.*s' is not known and may change the model's mathematics",
                           (int)sn_gguf_value_at(r->gguf, i)->key.len, key.data);
    }
    return SN_OK;
}

/* DeepSeek-V2 and V3 share an architecture. V3's router is of function 2; where a file says nothing, as those of
 * GLM-4.7-Flash, it is V3's that corrects its scores. */
static sn_status is_deepseek_v2(const reader *r, bool *out) {
    char name[KEY_SIZE];
    int func = 0, n_dense = 0;
    *out = false;
    if (strcmp(r->architecture, "deepseek2")) return SN_OK;
    sn_status status = read_int(r, "expert_gating_func", false, &func);
    if (!status) status = read_int(r, "leading_dense_block_count", false, &n_dense);
    snprintf(name, sizeof name, "blk.%d.exp_probs_b.bias", n_dense);
    *out = func ? func != 2 : !sn_gguf_tensor_find(r->gguf, name);
    return status;
}

static sn_status read_family(reader *r, sn_hparams *h, const sn_family **family) {
    sn_gguf_str text;
    sn_status status = sn_gguf_string(r->gguf, "general.architecture", true, &text, r->err);
    if (status) return status;
    char name[SN_FAMILY_NAME_SIZE] = "";
    if (text.len >= sizeof name) return sn_fail(r->err, SN_REFUSED, "general.architecture is %zu bytes long", text.len);
    memcpy(name, text.data, text.len);
    status = sn_family_find(SN_CONTAINER_GGUF, name, family, r->err);
    if (status) return status;
    char key[KEY_SIZE];
    r->architecture = (*family)->gguf_architecture;
    if ((*family)->windowed && sn_gguf_find(r->gguf, full_key(r, "attention.sliding_window", key)))
        status = sn_family_find(SN_CONTAINER_SAFETENSORS, (*family)->windowed, family, r->err);
    bool old = false;
    if (!status && (*family)->latent) status = is_deepseek_v2(r, &old);
    if (!status && old) status = sn_family_find(SN_CONTAINER_SAFETENSORS, "deepseek_v2", family, r->err);
    if (status) return status;
    if (!status && (*family)->moe && (*family)->moe->enabled_by &&
        !sn_gguf_find(r->gguf, full_key(r, "expert_count", key)))
        *family = sn_family_variant(*family, 1);
    r->family = *family;
    snprintf(h->family, sizeof h->family, "%s", (*family)->name);
    if (sn_gguf_string(r->gguf, "general.name", false, &text, NULL) == SN_OK && sn_gguf_find(r->gguf, "general.name"))
        sn_config_copy_name(h->name, text.data, text.len);
    return check_keys(r);
}

/* The size of the vocabulary: vocab_size, else the number of tokens, else the rows of the embedding. */
static sn_status read_vocab(const reader *r, int *out) {
    sn_status status = read_int(r, "vocab_size", false, out);
    if (status || *out) return status;
    const sn_gguf_value *tokens = sn_gguf_find(r->gguf, "tokenizer.ggml.tokens");
    const sn_gguf_tensor *embedding = sn_gguf_tensor_find(r->gguf, "token_embd.weight");
    size_t n = tokens ? tokens->n : embedding ? embedding->dims[1] : 0;
    if (n < 1 || n > INT32_MAX) return sn_fail(r->err, SN_REFUSED, "the file does not say how large the vocabulary is");
    *out = (int)n;
    return SN_OK;
}

/* The list of kinds of blocks has bools, or 0 and 1. */
static bool flag_at(const sn_gguf_value *list, size_t i) {
    return list->element == SN_GGUF_BOOL ? list->data[i] : sn_gguf_i32_at(list, i) != 0;
}

/* Which blocks have full attention: a list, or every n-th. */
static sn_status read_pattern(const reader *r, sn_hparams *h) {
    char key[KEY_SIZE];
    const sn_gguf_value *value = sn_gguf_find(r->gguf, full_key(r, "attention.sliding_window_pattern", key));
    int pattern = r->family->window_pattern;
    bool listed = value && value->type == SN_GGUF_ARRAY;
    if (!pattern && !r->family->heads) return SN_OK;
    if (!pattern && !listed) return sn_fail(r->err, SN_REFUSED, "'%s' is missing", key);
    sn_status status = listed ? SN_OK : read_int(r, "attention.sliding_window_pattern", false, &pattern);
    if (status) return status;
    bool known =
        listed && (value->element == SN_GGUF_BOOL || value->element == SN_GGUF_I32 || value->element == SN_GGUF_U32);
    if (listed &&
        (!known || (r->family->further_blocks ? value->n < (size_t)h->n_blocks : value->n != (size_t)h->n_blocks)))
        return sn_fail(r->err, SN_REFUSED, "'%s' must be %d bools, or a number", key, h->n_blocks);
    if (!listed && pattern < 1) return sn_fail(r->err, SN_REFUSED, "'%s' is %d", key, pattern);
    for (int i = 0; i < h->n_blocks; i++)
        h->full_attention[i] = !h->window || (listed ? !flag_at(value, (size_t)i) : (i + 1) % pattern == 0);
    for (int i = 0; i < h->n_blocks; i++)
        h->no_rope[i] = r->family->full_unrotated && h->window && h->full_attention[i];
    return SN_OK;
}

/* A number, or a list of one for each block: then those of the two kinds of blocks. */
static sn_status read_by_kind(const reader *r, const char *key, bool required, const sn_hparams *h, int *window,
                              int *full) {
    char name[KEY_SIZE];
    const sn_gguf_value *list = sn_gguf_find(r->gguf, full_key(r, key, name));
    *full = *window;
    if (!r->family->heads || !list || list->type != SN_GGUF_ARRAY) {
        sn_status status = read_int(r, key, required, window);
        *full = r->family->heads ? *window : 0;
        return status;
    }
    if ((list->element != SN_GGUF_I32 && list->element != SN_GGUF_U32) || list->n < (size_t)h->n_blocks)
        return sn_fail(r->err, SN_REFUSED, "'%s' must list the numbers of all %d blocks", name, h->n_blocks);
    bool seen[2] = {false, false};
    for (int b = 0; b < h->n_blocks; b++) {
        const int n = sn_gguf_i32_at(list, (size_t)b), kind = h->full_attention[b];
        int *own = kind ? full : window;
        if (seen[kind] && n != *own)
            return sn_fail(r->err, SN_REFUSED, "'%s' differs between blocks of one kind", name);
        *own = n, seen[kind] = true;
    }
    if (!seen[0]) *window = *full;
    if (!seen[1]) *full = *window;
    return SN_OK;
}

/* Whether blocks with full attention have no matrix of values. */
static bool lacks_values(const reader *r, const sn_hparams *h) {
    char name[KEY_SIZE];
    int b = 0;
    while (b < h->n_blocks - 1 && !h->full_attention[b]) b++;
    snprintf(name, sizeof name, "blk.%d.attn_v.weight", b);
    return h->full_attention[b] && !sn_gguf_tensor_find(r->gguf, name);
}

/* key_length and value_length are those of blocks with full attention, and with "_swa" of those with a window. */
static sn_status read_other_heads(const reader *r, int value_length, sn_hparams *h) {
    sn_heads *full = &h->full_heads;
    full->key_dim = h->head_dim, full->value_dim = h->value_dim = value_length;
    sn_status status = read_int(r, "attention.key_length_swa", false, &h->head_dim);
    if (!status) status = read_int(r, "attention.value_length_swa", false, &h->value_dim);
    if (!status && r->family->value_scale_default > 0)
        status = read_float(r, "attention.value_scale", false, &h->value_scale);
    if (h->value_scale == 1) h->value_scale = 0;
    int shared = 0, per_layer = 0;
    if (!status) status = read_int(r, "attention.shared_kv_layers", false, &shared);
    if (!status) status = read_int(r, "embedding_length_per_layer_input", false, &per_layer);
    if (!status && (shared || per_layer))
        return sn_fail(
            r->err, SN_REFUSED,
            "models whose blocks take token embeddings of their own, or keys and values of other blocks, are "
            "not supported");
    h->full_keys_are_values = r->family->heads->n_kv_if && lacks_values(r, h);
    const sn_heads usual = sn_usual_heads(h);
    if (!memcmp(full, &usual, sizeof usual)) *full = (sn_heads){0};
    return status;
}

static sn_status read_sizes(const reader *r, sn_hparams *h) {
    int further = 0;
    sn_status status = read_int(r, "block_count", true, &h->n_blocks);
    if (!status) status = read_int(r, "nextn_predict_layers", false, &further);
    if (!status && (further < 0 || further >= h->n_blocks) && further)
        return sn_fail(r->err, SN_REFUSED, "%d of %d blocks cannot predict further tokens", further, h->n_blocks);
    h->n_blocks -= further;
    if (!status && (h->n_blocks < 1 || h->n_blocks > SN_BLOCKS_MAX)) /* before arrays of blocks are filled */
        return sn_fail(r->err, SN_REFUSED, "the model's number of blocks is %d; it must lie from 1 to %d", h->n_blocks,
                       SN_BLOCKS_MAX);
    if (!status) status = read_int(r, "attention.sliding_window", false, &h->window);
    if (!status) status = read_pattern(r, h);
    if (!status) status = read_int(r, "context_length", true, &h->n_ctx);
    if (!status) status = read_int(r, "embedding_length", true, &h->n_embd);
    if (!status && h->n_embd > 0 && h->n_embd <= INT32_MAX / 8) h->n_ff = r->family->ff_multiple * h->n_embd;
    if (!status) status = read_largest(r, "feed_forward_length", !r->family->ff_multiple, &h->n_ff);
    if (!status) status = read_by_kind(r, "attention.head_count", true, h, &h->n_heads, &h->full_heads.n);
    if (status) return status;
    h->n_kv_heads = h->n_heads, h->full_heads.n_kv = h->full_heads.n;
    status = r->family->recurrent
                 ? read_largest(r, "attention.head_count_kv", false, &h->n_kv_heads)
                 : read_by_kind(r, "attention.head_count_kv", false, h, &h->n_kv_heads, &h->full_heads.n_kv);
    const char *eps = r->family->layer_norm || r->family->one_half ? "attention.layer_norm_epsilon"
                                                                   : "attention.layer_norm_rms_epsilon";
    if (!status) status = read_float(r, eps, true, &h->norm_eps);
    if (!status) status = read_vocab(r, &h->n_vocab);
    if (!status) status = read_int(r, "attention.key_length", false, &h->head_dim);
    if (status) return status;
    if (h->n_heads < 1) return sn_fail(r->err, SN_REFUSED, "the model claims %d heads", h->n_heads);
    if (!h->head_dim && h->n_embd % h->n_heads)
        return sn_fail(r->err, SN_REFUSED, "a hidden state of %d cannot be split into %d heads", h->n_embd, h->n_heads);
    if (!h->head_dim) h->head_dim = h->n_embd / h->n_heads;
    int value_length = h->head_dim;
    status = read_int(r, "attention.value_length", false, &value_length);
    if (!status && r->family->heads) return read_other_heads(r, value_length, h);
    if (!status && value_length != h->head_dim && !r->family->latent)
        return sn_fail(r->err, SN_REFUSED, "keys of %d and values of %d dimensions in one head are not taken",
                       h->head_dim, value_length);
    return status;
}

/* Keys whose other values have no implementation. */
static sn_status check_neutral(const reader *r) {
    char key[KEY_SIZE];
    bool causal = true;
    sn_status status = sn_gguf_bool(r->gguf, full_key(r, "attention.causal", key), false, &causal, r->err);
    if (status) return status;
    if (!causal) return sn_fail(r->err, SN_REFUSED, "the model attends to later tokens: it is no text generator");
    return SN_OK;
}

/* How many blocks before the first with experts have a feed-forward of their own: where a file does not say it. */
static int leading_dense(const reader *r, const sn_hparams *h) {
    char name[KEY_SIZE];
    int n = 0;
    for (; n < h->n_blocks; n++) {
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", n);
        if (sn_gguf_tensor_find(r->gguf, name)) break;
    }
    return n;
}

/* What the router does, the shared expert, and the blocks without experts. */
static sn_status read_moe(const reader *r, const sn_moe_config *m, sn_hparams *h) {
    char key[KEY_SIZE];
    int func = 0, groups = 1, groups_used = 1, n_shared = 0, n_dense = leading_dense(r, h), step = 1;
    float weights_scale = 1;
    bool normalised = m->gguf_normalised;
    sn_status status = read_int(r, "expert_gating_func", false, &func);
    if (!status) status = read_int(r, "expert_group_count", false, &groups);
    if (!status) status = read_int(r, "expert_group_used_count", false, &groups_used);
    if (!status) status = read_int(r, "expert_shared_count", false, &n_shared);
    if (!status) status = read_int(r, "expert_shared_feed_forward_length", false, &h->n_ff_shared);
    if (!status) status = read_int(r, "leading_dense_block_count", false, &n_dense);
    if (!status) status = read_int(r, "interleave_moe_layer_step", false, &step);
    if (!status) status = read_int(r, "moe_every_n_layers", false, &step);
    if (!status) status = read_float(r, "expert_weights_scale", false, &weights_scale);
    if (!status) status = sn_gguf_bool(r->gguf, full_key(r, "expert_weights_norm", key), false, &normalised, r->err);
    if (status) return status;
    bool sigmoid = m->scoring == SN_ROUTER_SIGMOID;
    if ((func && func != (sigmoid ? 2 : 1)) || (groups > 1 && !m->groups_by))
        return sn_fail(r->err, SN_REFUSED, "a router of function %d over %d groups is not known in this family", func,
                       groups);
    if (n_shared < 0 || n_shared > 64 || n_dense < 0 || step < 1)
        return sn_fail(r->err, SN_REFUSED, "%d shared experts and %d leading dense blocks are not possible", n_shared,
                       n_dense);
    h->router_scoring = m->scoring == SN_ROUTER_SOFTMAX_ALL && normalised ? SN_ROUTER_SOFTMAX : m->scoring;
    h->router_normalised = sigmoid && normalised;
    h->router_correction = m->correction;
    h->router_scale = weights_scale;
    h->router_offset = (float)m->offset;
    h->shared_gated = m->shared_gated;
    if (m->shared_width && !strcmp(m->shared_width, m->width)) n_shared = 1;
    if (h->dense_beside && n_dense) return sn_fail(r->err, SN_REFUSED, "%d blocks have no experts", n_dense);
    if (m->gguf_shared_counted) h->n_ff_shared = 0;
    if (n_shared && !h->n_ff_shared && h->n_ff <= 1 << 20) h->n_ff_shared = n_shared * h->n_ff;
    h->experts_scale_input = m->scales_input;
    for (int i = 0; i < h->n_blocks; i++) h->dense[i] = i < n_dense || (i + 1) % step != 0;
    return sn_config_set_groups(h, groups > 1 ? groups : 1, groups_used, r->err);
}

/* Files of the llama architecture that are mixtures (Mixtral) give an expert's width as feed_forward_length. */
static sn_status read_experts(const reader *r, const sn_family *family, sn_hparams *h) {
    /* deepseek2 may be without experts (Youtu) */
    const bool optional = !family->moe || family->latent || family->recurrence == SN_STATE_SPACE;
    sn_status status = read_int(r, "expert_count", !optional, &h->n_experts);
    if (!status && optional && family->moe && !h->n_experts) return SN_OK;
    if (!status) status = read_int(r, "expert_used_count", h->n_experts && family->gguf_moe, &h->n_experts_used);
    if (!status && (h->n_experts || h->n_experts_used) && !family->gguf_moe)
        return sn_fail(r->err, SN_REFUSED, "mixtures of experts of this architecture are not taken");
    h->n_ff_dense = family->moe && family->moe->dense_width ? h->n_ff : 0;
    h->dense_beside = family->moe && family->moe->beside;
    if (h->dense_beside) h->n_ff_shared = h->n_ff;
    if (!status && h->n_experts)
        status = read_int(r, "expert_feed_forward_length",
                          family->moe && strcmp(family->moe->width, "intermediate_size"), &h->n_ff);
    return !status && family->moe ? read_moe(r, family->moe, h) : status;
}

/* Tensors with divisors of the rope's frequencies: of all timelines, or of short and of long ones. */
static const char freq_factors[] = "rope_freqs.weight", *const long_factors[2] = {"rope_factors_short.weight",
                                                                                  "rope_factors_long.weight"};

sn_status sn_config_tensor_of_gguf(const char *path, uint64_t *from, uint64_t *bytes, sn_err *err) {
    const char *const names[] = {freq_factors, long_factors[0], long_factors[1]}, *file;
    sn_gguf *gguf = NULL;
    uint64_t end = 0, at;
    *from = *bytes = 0;
    sn_status status = sn_gguf_open_file(path, &gguf, err);
    for (size_t i = 0; i < sizeof names / sizeof *names && !status; i++) {
        const sn_gguf_tensor *tensor = sn_gguf_tensor_find(gguf, names[i]);
        if (!tensor || !sn_gguf_file_of(gguf, tensor->data, &file, &at)) continue;
        if (!end || at < *from) *from = at;
        if (at + tensor->bytes > end) end = at + tensor->bytes;
        *bytes = end - *from; /* converters write them one after the other */
    }
    sn_gguf_close(&gguf);
    return status;
}

/* attention.indexer.types: true for the blocks that choose; it may be of the blocks that predict further tokens, too.
 */
static sn_status read_indexer(const reader *r, sn_hparams *h) {
    char key[KEY_SIZE];
    const sn_gguf_value *types = sn_gguf_find(r->gguf, full_key(r, "attention.indexer.types", key));
    if (types && (types->type != SN_GGUF_ARRAY || types->element != SN_GGUF_BOOL || types->n < (size_t)h->n_blocks ||
                  types->n > SN_BLOCKS_MAX))
        return sn_fail(r->err, SN_REFUSED, "'%s' must be %d bools", key, h->n_blocks);
    for (int i = 0; i < h->n_blocks && types && r->family->index_shares; i++) h->index_shared[i] = !types->data[i];
    sn_status status = read_int(r, "attention.indexer.top_k", true, &h->index_topk);
    if (!status) status = read_int(r, "attention.indexer.head_count", true, &h->index_heads);
    if (!status) status = read_int(r, "attention.indexer.key_length", true, &h->index_dim);
    return status ? status : sn_config_finish_indexer(h, r->family, r->err);
}

/* Older files have keys and values of all heads in one matrix, and say how wide they are without "_mla". */
static sn_status read_latent(const reader *r, const sn_rope_scaling *s, sn_hparams *h) {
    int key_length = h->head_dim, rope_dim = h->rope_dim;
    h->value_dim = h->head_dim;
    sn_status status = read_int(r, "attention.kv_lora_rank", true, &h->latent);
    if (!status) status = read_int(r, "attention.q_lora_rank", false, &h->q_rank);
    if (!status) status = read_int(r, "attention.value_length", false, &h->value_dim);
    if (!status) status = read_int(r, "attention.key_length_mla", false, &key_length);
    if (!status) status = read_int(r, "attention.value_length_mla", false, &h->value_dim);
    if (!status && (key_length < 1 || rope_dim < 1 || key_length <= rope_dim))
        return sn_fail(r->err, SN_REFUSED, "keys of %d dimensions, of which %d are rotated, are not possible",
                       key_length, rope_dim);
    h->nope_dim = key_length - rope_dim;
    if (!status) status = sn_config_finish_latent(h, rope_dim, s, r->err);
    return status || !r->family->indexed ? status : read_indexer(r, h);
}

static sn_status read_factors(const reader *r, const char *name, const sn_hparams *h, int *n,
                              float out[SN_ROPE_FREQS_MAX]) {
    const sn_gguf_tensor *factors = sn_gguf_tensor_find(r->gguf, name);
    *n = 0;
    if (!factors) return SN_OK;
    const bool half = r->family->gguf_full_half; /* the first ones are used */
    const int used = h->rope_dim / (half ? 4 : 2);
    if (factors->dtype != SN_F32 || factors->n_dims != 1 || used < 0 || used > SN_ROPE_FREQS_MAX ||
        factors->dims[0] < (size_t)used || (!half && factors->dims[0] != (size_t)used))
        return sn_fail(r->err, SN_REFUSED, "tensor '%s' must be %d numbers of type F32", name, h->rope_dim / 2);
    *n = used;
    memcpy(out, factors->data, (size_t)used * sizeof *out);
    return SN_OK;
}

/* The file has the factor of cosines and sines, and no word for the kind of scaling. */
static sn_status read_longrope(const reader *r, const sn_hparams *h, sn_rope_scaling *s) {
    float attention = 1;
    int n_long = 0, original = h->n_ctx;
    sn_status status = read_factors(r, long_factors[0], h, &s->n_factors, s->factors[0]);
    if (!status) status = read_factors(r, long_factors[1], h, &n_long, s->factors[1]);
    if (!status) status = read_float(r, "rope.scaling.attn_factor", false, &attention);
    if (!status) status = read_int(r, "rope.scaling.original_context_length", false, &original);
    if (status || (!n_long && !s->n_factors && attention == 1)) return status;
    if (!n_long || !s->n_factors || s->kind != SN_ROPE_SCALING_NONE)
        return sn_fail(r->err, SN_REFUSED, "longrope needs '%s' and '%s', and no other scaling", long_factors[0],
                       long_factors[1]);
    s->kind = SN_ROPE_SCALING_LONG;
    s->factor = 1;
    s->attention_factor = (double)attention;
    s->original_ctx = original;
    return SN_OK;
}

/* Defaults are those of the reference. */
static sn_status read_yarn(const reader *r, const sn_hparams *h, sn_rope_scaling *s) {
    int original = h->n_ctx;
    float fast = 32, slow = 1, log_multiplier = 0, growth = (float)r->family->growth_default;
    sn_status status = read_int(r, "rope.scaling.original_context_length", false, &original);
    if (!status) status = read_float(r, "rope.scaling.yarn_beta_fast", false, &fast);
    if (!status) status = read_float(r, "rope.scaling.yarn_beta_slow", false, &slow);
    if (!status) status = read_float(r, "rope.scaling.yarn_log_multiplier", false, &log_multiplier);
    if (!status) status = read_float(r, "attention.temperature_scale", false, &growth);
    s->kind = SN_ROPE_SCALING_YARN;
    s->original_ctx = original;
    s->beta_fast = (double)fast;
    s->beta_slow = (double)slow;
    s->mscale = log_multiplier > 0; /* the file does not say another one than 1 */
    s->mscale_all_dim = (double)log_multiplier;
    if (r->family->latent) s->mscale = s->mscale_all_dim = (double)(log_multiplier * 10); /* it has a tenth of both */
    s->q_growth = (double)growth;
    s->truncate = !r->family->yarn_untruncated;
    return status;
}

static sn_status read_rope(const reader *r, sn_hparams *h, sn_rope_scaling *s) {
    char key[KEY_SIZE];
    float theta = r->family->theta_default > 0 ? (float)r->family->theta_default : 10000, factor = 1;
    sn_gguf_str type = {"none", 4};
    const int head_dim = h->full_heads.n ? h->full_heads.key_dim : h->head_dim;
    h->rope_dim = r->family->rotated_default > 0 ? (int)(head_dim * r->family->rotated_default) : head_dim;
    sn_status status = read_int(r, "rope.dimension_count", false, &h->rope_dim);
    if (!status) status = read_float(r, "rope.freq_base", false, &theta);
    if (!status) status = read_float(r, "rope.scale_linear", false, &factor); /* old spelling */
    if (status) return status;
    if (factor != 1) type = (sn_gguf_str){"linear", 6};
    status = sn_gguf_string(r->gguf, full_key(r, "rope.scaling.type", key), false, &type, r->err);
    if (!status) status = read_float(r, "rope.scaling.factor", false, &factor);
    if (status) return status;
    s->theta = (double)theta;
    s->factor = (double)factor;
    if (sn_gguf_str_equals(type, "linear"))
        s->kind = SN_ROPE_SCALING_LINEAR;
    else if (sn_gguf_str_equals(type, "yarn"))
        status = read_yarn(r, h, s);
    else if (!sn_gguf_str_equals(type, "none"))
        return sn_fail(r->err, SN_REFUSED, "rope scaling of type '%.*s' is not known; none, linear and yarn are",
                       type.len > 32 ? 32 : (int)type.len, type.data);
    if (!status) status = read_factors(r, freq_factors, h, &s->n_factors, s->factors[0]);
    return !status && r->family->long_rope ? read_longrope(r, h, s) : status;
}

/* Which blocks are recurrent: a list, or all but every n-th. */
static sn_status read_recurrent_blocks(const reader *r, sn_hparams *h) {
    char key[KEY_SIZE];
    const sn_gguf_value *list = sn_gguf_find(r->gguf, full_key(r, "attention.recurrent_layers", key));
    int every = 4, further = 0; /* the list may be of the blocks that predict further tokens, too */
    sn_status status = read_int(r, "nextn_predict_layers", false, &further);
    if (!status && list &&
        (list->type != SN_GGUF_ARRAY || list->element != SN_GGUF_BOOL ||
         (list->n != (size_t)h->n_blocks && list->n != (size_t)h->n_blocks + (size_t)further)))
        return sn_fail(r->err, SN_REFUSED, "'%s' must be %d bools", key, h->n_blocks);
    if (!status) status = read_int(r, "full_attention_interval", false, &every);
    if (!status && every < 1) return sn_fail(r->err, SN_REFUSED, "'full_attention_interval' is %d", every);
    for (int i = 0; i < h->n_blocks && !status; i++) h->recurrent[i] = list ? list->data[i] : (i + 1) % every != 0;
    return status;
}

/* Blocks without heads of keys and values have no attention. Where blocks have one half, those that have a width of
 * feed-forward are that, or a mixture. */
static void read_blocks_by_heads(const reader *r, sn_hparams *h) {
    char name[KEY_SIZE];
    for (int i = 0; i < h->n_blocks; i++) {
        const int n_ff = block_number(r, "feed_forward_length", i, h->n_ff);
        h->recurrent[i] = !block_number(r, "attention.head_count_kv", i, h->n_kv_heads);
        h->no_rope[i] = r->family->unrotated;
        if (!r->family->one_half) continue;
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", i);
        h->no_mixer[i] = n_ff > 0 && h->recurrent[i];
        h->no_ff[i] = !h->no_mixer[i];
        h->dense[i] = h->no_mixer[i] && !sn_gguf_tensor_find(r->gguf, name);
        if (h->dense[i] && h->n_experts) h->n_ff_dense = n_ff;
    }
}

static bool any_block_has(const reader *r, const sn_hparams *h, const char *tensor) {
    char name[KEY_SIZE];
    for (int i = 0; i < h->n_blocks; i++) {
        snprintf(name, sizeof name, "blk.%d.%s", i, tensor);
        if (sn_gguf_tensor_find(r->gguf, name)) return true;
    }
    return false;
}

/* How many heads a keyed delta rule has, which only its matrices say; as many as attention where there are none. */
static int keyed_heads(const reader *r, const sn_hparams *h) {
    char name[KEY_SIZE];
    for (int i = 0; i < h->n_blocks; i++) {
        snprintf(name, sizeof name, "blk.%d.ssm_beta.weight", i);
        const sn_gguf_tensor *write = sn_gguf_tensor_find(r->gguf, name);
        if (write && write->n_dims == 2 && write->dims[1] <= SN_HEADS_MAX) return (int)write->dims[1];
    }
    return h->n_heads;
}

static sn_status read_keyed_delta(const reader *r, sn_hparams *h) {
    char key[KEY_SIZE];
    bool safe = false;
    float bound = -5;
    sn_status status = read_int(r, "ssm.conv_kernel", true, &h->conv_taps);
    if (!status) status = read_int(r, "kda.head_dim", true, &h->delta_key_dim);
    if (!status) status = sn_gguf_bool(r->gguf, full_key(r, "kda.safe_gate", key), false, &safe, r->err);
    if (!status) status = read_float(r, "kda.gate_lower_bound", false, &bound);
    h->delta_key_heads = h->delta_value_heads = keyed_heads(r, h);
    h->delta_value_dim = h->delta_key_dim;
    h->delta_apart = true;
    h->delta_rank = r->family->keeps_low_rank ? h->delta_key_dim : 0;
    h->delta_rates_negated = !r->family->keeps_low_rank;
    h->delta_floor = safe ? bound : 0;
    if (!status && safe && !(bound < 0 && bound >= -80))
        return sn_fail(r->err, SN_REFUSED, "'kda.gate_lower_bound' is %g; it must lie from -80 to 0", (double)bound);
    return status;
}

/* llama.cpp's converter orders value heads so that those of one key head lie n_key_heads apart, but where it keeps the
 * pairs of the folder. */
static sn_status read_recurrent(const reader *r, sn_hparams *h) {
    int inner = 0;
    if (!r->family->recurrent) return SN_OK;
    sn_status status = SN_OK;
    h->recurrence = r->family->recurrence;
    if (h->recurrence == SN_GATED_DELTA)
        status = read_recurrent_blocks(r, h);
    else
        read_blocks_by_heads(r, h);
    if (h->recurrence == SN_KEYED_DELTA) return read_keyed_delta(r, h);
    if (h->recurrence == SN_SHORT_CONV) {
        h->delta_key_heads = h->delta_value_heads = 1, h->delta_value_dim = h->n_embd;
        return read_int(r, "shortconv.l_cache", true, &h->conv_taps);
    }
    if (!status) status = read_int(r, "ssm.conv_kernel", true, &h->conv_taps);
    if (!status) status = read_int(r, "ssm.state_size", true, &h->delta_key_dim);
    if (!status) status = read_int(r, "ssm.group_count", true, &h->delta_key_heads);
    if (!status) status = read_int(r, "ssm.time_step_rank", true, &h->delta_value_heads);
    if (!status) status = read_int(r, "ssm.inner_size", true, &inner);
    if (status) return status;
    if (h->delta_value_heads < 1 || inner < 1 || inner % h->delta_value_heads)
        return sn_fail(r->err, SN_REFUSED, "%d values cannot be split into %d heads", inner, h->delta_value_heads);
    h->delta_value_dim = inner / h->delta_value_heads;
    h->conv_bias = any_block_has(r, h, "ssm_conv1d.bias");
    h->delta_heads_alternate = h->recurrence == SN_GATED_DELTA && h->delta_key_heads != h->delta_value_heads &&
                               !r->family->naming[SN_CONTAINER_GGUF]->delta_paired;
    return SN_OK;
}

/* The rope of the blocks with a window, without scaling. */
static sn_status read_window_rope(const reader *r, double usual_theta, sn_hparams *h, sn_rope_scaling *local) {
    float theta = (float)(r->family->local_unscaled ? usual_theta : r->family->local_theta);
    sn_status status = read_float(r, "rope.freq_base_swa", false, &theta);
    h->n_ropes = 2;
    h->rope_dim_full = r->family->gguf_full_half ? h->rope_dim / 2 : h->rope_dim;
    if (!status && r->family->heads) status = read_int(r, "rope.dimension_count_swa", false, &h->rope_dim);
    local->theta = (double)theta;
    return status;
}

/* Bounds of feed-forwards: a number, or a list of one for each block; 0: there is none. */
static sn_status read_limits(const reader *r, const char *key, int n_blocks, float *limits) {
    char name[KEY_SIZE];
    const sn_gguf_value *list = sn_gguf_find(r->gguf, full_key(r, key, name));
    float one = 0;
    const bool listed = list && list->type == SN_GGUF_ARRAY;
    if (listed && (list->element != SN_GGUF_F32 || list->n < (size_t)n_blocks))
        return sn_fail(r->err, SN_REFUSED, "'%s' must list the numbers of all %d blocks", name, n_blocks);
    sn_status status = listed ? SN_OK : read_float(r, key, false, &one);
    for (int b = 0; b < n_blocks && !status; b++) {
        limits[b] = listed ? sn_gguf_f32_at(list, (size_t)b) : one;
        if (!(limits[b] >= 0 && limits[b] <= 1e6f))
            return sn_fail(r->err, SN_REFUSED, "'%s' is %g; it must lie from 0 to 1e6", name, (double)limits[b]);
    }
    return status;
}

/* The scales of embeddings and attention. */
static sn_status read_scales(const reader *r, sn_hparams *h) {
    enum { GEMMA2_27B_BLOCKS = 46, GEMMA3_27B_BLOCKS = 62 }; /* the sizes whose attention is not scaled by head_dim */
    float logits = 1;
    if (r->family->scales_embeddings) h->embed_scale = sqrtf((float)h->n_embd);
    h->logit_scale = (float)r->family->logit_scale_default;
    if (h->logit_scale > 0) return read_float(r, "logit_scale", false, &h->logit_scale);
    if (r->family->logit_softcap) return read_float(r, "final_logit_softcapping", false, &h->logit_softcap);
    if (r->family->softcaps) {
        h->score_softcap = 50, h->logit_softcap = 30;
        sn_status status = read_float(r, "attn_logit_softcapping", false, &h->score_softcap);
        if (!status) status = read_float(r, "final_logit_softcapping", false, &h->logit_softcap);
        if (!status && h->n_blocks == GEMMA2_27B_BLOCKS)
            h->attn_scale = 1 / sqrtf((float)h->n_embd / (float)h->n_heads);
        return status;
    }
    if (r->family->multipliers) {
        sn_status status = read_float(r, "embedding_scale", false, &h->embed_scale);
        if (!status) status = read_float(r, "attention.scale", false, &h->attn_scale);
        if (!status) status = read_float(r, "residual_scale", false, &h->residual_scale);
        if (!status) status = read_float(r, "logit_scale", false, &logits);
        if (!status && !(logits > 0)) return sn_fail(r->err, SN_REFUSED, "'logit_scale' is %g", (double)logits);
        h->logit_scale = 1 / logits;
        return status;
    }
    if (r->family->attn_scalar_default > 0 && h->n_blocks == GEMMA3_27B_BLOCKS)
        return sn_fail(
            r->err, SN_REFUSED,
            "GGUF files do not say how this size of the family scales attention: give the Hugging Face folder");
    return SN_OK;
}

/* What files of Llama 4 do not say, as llama.cpp has it. */
static void fix_chunks(sn_hparams *h) {
    enum { WITHOUT_NORMS = 128 }; /* Maverick's number of experts */
    for (int i = 0; i < h->n_blocks; i++) h->full_attention[i] = h->no_rope[i];
    h->window = h->q_growth_step = 8192;
    h->window_chunks = h->q_growth_unrotated = true;
    h->q_growth = 0.1f;
    h->q_growth_offset = 1;
    h->qk_norm = h->qk_norm_plain = h->n_experts != WITHOUT_NORMS;
}

/* Positions after which queries grow by a step: the original context, unless the file names another number. */
static sn_status read_growth_step(const reader *r, const sn_rope_scaling *s, sn_hparams *h) {
    h->q_growth_step = s->original_ctx <= 1e9 ? (int)s->original_ctx : 0;
    return read_int(r, "attention.temperature_length", false, &h->q_growth_step);
}

sn_status sn_config_from_gguf(const sn_gguf *gguf, sn_hparams *hparams, const sn_family **family, sn_err *err) {
    reader r = {.gguf = gguf, .err = err};
    sn_rope_scaling scaling[SN_ROPES_MAX] = {0};
    *hparams = (sn_hparams){0};
    sn_status status = read_family(&r, hparams, family);
    if (!status) status = check_neutral(&r);
    if (!status) status = read_sizes(&r, hparams);
    if (!status) status = read_experts(&r, *family, hparams);
    if (!status && (*family)->recurrence == SN_STATE_SPACE && !hparams->n_experts && sn_family_variant(*family, 1))
        r.family = *family = sn_family_variant(*family, 1);
    if (!status && (*family)->recurrence == SN_STATE_SPACE)
        status = read_int(&r, "moe_latent_size", false, &hparams->experts_width);
    bool two = !status && ((*family)->local_theta > 0 || (*family)->local_unscaled);
    if (!status) status = read_rope(&r, hparams, &scaling[two]);
    if (!status && (*family)->latent) status = read_latent(&r, scaling, hparams);
    if (!status && two) status = read_window_rope(&r, scaling[1].theta, hparams, &scaling[0]);
    if (!status) status = read_recurrent(&r, hparams);
    if (!status) status = read_scales(&r, hparams);
    if (!status && (*family)->limits)
        status = read_limits(&r, "swiglu_clamp_exp", hparams->n_blocks, hparams->ff_limit);
    if (!status && (*family)->limits)
        status = read_limits(&r, "swiglu_clamp_shexp", hparams->n_blocks, hparams->dense_limit);
    if (status) return status;
    for (int i = 0; (*family)->no_rope_interval && i < hparams->n_blocks; i++)
        hparams->no_rope[i] = (i + 1) % (*family)->no_rope_interval == 0; /* files do not say it */
    /* Falcon's variants: a norm for each half, or one for both */
    if (!(*family)->moe && sn_family_variant(*family, 1) && !sn_gguf_tensor_find(gguf, "blk.0.attn_norm_2.weight"))
        *family = sn_family_variant(*family, 1);
    hparams->linear_bias = (*family)->linear_bias == SN_ALWAYS;
    hparams->window_sinks = (*family)->window_sinks;
    hparams->rope_style = (*family)->gguf_rope;
    hparams->activation = (*family)->activation_default;
    hparams->qkv_bias = (*family)->qkv_bias == SN_ALWAYS ||
                        ((*family)->qkv_bias == SN_IF_DECLARED && sn_gguf_tensor_find(gguf, "blk.0.attn_q.bias"));
    hparams->o_bias = hparams->linear_bias ||
                      ((*family)->qkv_bias == SN_IF_DECLARED && sn_gguf_tensor_find(gguf, "blk.0.attn_output.bias"));
    hparams->qk_norm = (*family)->qk_norm == SN_IF_DECLARED && sn_gguf_tensor_find(gguf, "blk.0.attn_q_norm.weight");
    if ((*family)->chunks)
        fix_chunks(hparams);
    else
        hparams->q_growth = (float)scaling[two].q_growth;
    if (!(*family)->chunks) status = read_growth_step(&r, &scaling[two], hparams);
    if (status) return status;
    hparams->tied_output = !sn_gguf_tensor_find(gguf, "output.weight");
    return sn_config_finish(hparams, *family, scaling, err);
}
