/* Reads config.json. Three kinds of fields: those that read_config and what it calls in other files read; those that
 * change the mathematics and are not implemented (must_be_neutral, must_be_absent), which are refused unless they have
 * the value at which they do nothing, or the family declares that it reads them (family->config_fields); and all
 * others, which do not change the mathematics and are ignored. Defaults that differ between families are in the
 * family's descriptor.
 *
 * null counts as absent. Spellings of transformers 4 and 5 are both read. */
#include "model/config_json_private.h"

#include "model/json.h"
#include "model/not_a_model.h"
#include "model/quantisation.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Fields that change the mathematics in a way that is not implemented, with the value at which they do nothing. Each
 * must be absent, null, false, or have this value. */
static const struct {
    const char *field;
    double neutral;
} must_be_neutral[] = {
    {"mlp_bias", 0},
    {"moe_norm_min", 1e-12},
    {"attention_out_bias", 0},
    {"use_qk_norm", 0},
    {"qk_layernorm", 0},
    {"clip_qkv", 0},
    {"rope_interleaved", 0},
    {"alibi", 0},
    {"parallel_attn", 0},
    {"new_decoder_architecture", 0},
    {"apply_residual_connection_post_layernorm", 0},
    {"use_parallel_residual", 0},
    {"is_encoder_decoder", 0},
    {"attn_logit_softcapping", 0},
    {"use_bidirectional_attention", 0},
    {"final_logit_softcapping", 0},
    {"num_experts", 0},
    {"num_local_experts", 0},
    {"n_group", 1},
    {"topk_group", 1},
    {"shared_intermediate_size", 0},
    {"n_routed_experts", 0},
    {"attention_chunk_size", 0},
    {"add_full_attention_sink_bias", 0},
    {"use_double_wide_mlp", 0},
    {"swiglu_alpha", 0},
    {"swiglu_limit", 0},
    {"logit_scale", 1},
    {"logits_scaling", 1},
    {"embedding_multiplier", 1},
    {"residual_multiplier", 1},
    {"attention_multiplier", 1},
    {"scale_emb", 1},
    {"conv_bias", 0},
    {"mamba_proj_bias", 0},
    {"use_bias", 0},
};

/* The same for lists and objects: they must be absent or null. */
static const char *const must_be_absent[] = {"no_rope_layers", "text_config", "vision_config", "query_pre_attn_scalar",
                                             "scale_depth"};

/* ---- fields that are refused ---- */

/* Weights that are quantised in the files. */
static sn_status read_quantised(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const json_t *about = sn_config_field(config, "quantization_config");
    return about ? sn_quantisation_read(about, sn_family_reads(family, "quantization_config"), h, err) : SN_OK;
}

static sn_status check_neutral(const json_t *config, const sn_family *family, sn_err *err) {
    bool causal = true;
    sn_status status = sn_config_bool(config, "is_causal", &causal, err);
    if (status) return status;
    if (!causal)
        return sn_fail(err, SN_REFUSED,
                       "'is_causal' is false: each token would see the later ones, which is not supported");
    const char *direction = json_string_value(sn_config_field(config, "use_bidirectional_attention"));
    if (direction && strcmp(direction, "vision")) /* about pictures */
        return sn_fail(err, SN_REFUSED,
                       "'use_bidirectional_attention' is '%.32s': each token would see the later ones, which is not "
                       "supported",
                       direction);
    if (json_number_value(sn_config_field(config, "hidden_size_per_layer_input")) != 0 ||
        json_number_value(sn_config_field(config, "num_kv_shared_layers")) != 0)
        return sn_fail(err, SN_REFUSED,
                       "'hidden_size_per_layer_input' or 'num_kv_shared_layers' is set: models whose blocks take token "
                       "embeddings of their own, or keys and values of other blocks, are not supported");
    for (size_t i = 0; i < sizeof must_be_neutral / sizeof *must_be_neutral; i++) {
        const json_t *value = sn_config_field(config, must_be_neutral[i].field);
        bool neutral = !value || json_is_false(value) ||
                       (json_is_number(value) && json_number_value(value) == must_be_neutral[i].neutral);
        if (!neutral && !sn_family_reads(family, must_be_neutral[i].field))
            return sn_fail(err, SN_REFUSED, "'%s' is set, which is not supported for this family",
                           must_be_neutral[i].field);
    }
    for (size_t i = 0; i < sizeof must_be_absent / sizeof *must_be_absent; i++)
        if (sn_config_field(config, must_be_absent[i]) && !sn_family_reads(family, must_be_absent[i]))
            return sn_fail(err, SN_REFUSED, "'%s' is set, which is not supported for this family", must_be_absent[i]);
    return SN_OK;
}

/* ---- fields with several spellings ---- */

/* The clamped activation has constants, and only its published ones are implemented. config.json calls it silu. */
static sn_status check_clamps(const json_t *config, const char *name, sn_err *err) {
    double alpha = 1.702, limit = 7;
    sn_status status = sn_config_number(config, "swiglu_alpha", false, &alpha, err);
    if (!status) status = sn_config_number(config, "swiglu_limit", false, &limit, err);
    if (!status && (alpha != 1.702 || limit != 7))
        return sn_fail(err, SN_REFUSED, "'swiglu_alpha' is %g and 'swiglu_limit' %g; only 1.702 and 7 are known", alpha,
                       limit);
    if (!status && name && strcmp(name, "silu"))
        return sn_fail(err, SN_REFUSED, "the activation '%.64s' is not known in this family; silu is", name);
    return status;
}

static sn_status read_activation(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    static const struct {
        const char *name;
        sn_activation kind;
    } known[] = {{"silu", SN_SILU},          {"swish", SN_SILU},
                 {"gelu", SN_GELU},          {"gelu_pytorch_tanh", SN_GELU_TANH},
                 {"gelu_new", SN_GELU_TANH}, {"relu2", SN_RELU_SQUARED}};
    const char *name = NULL, *field = family->activation_field ? family->activation_field : "hidden_act";
    h->activation = family->activation_default;
    sn_status status = sn_config_text(config, field, false, &name, err);
    if (!status && h->activation == SN_SWIGLU_CLAMPED) return check_clamps(config, name, err);
    if (status || !name) return status;
    bool shared = family->recurrent && !family->one_half; /* it is the recurrent blocks', too */
    if (shared && strcmp(name, "silu") && strcmp(name, "swish"))
        return sn_fail(err, SN_REFUSED, "the activation '%.64s' is not known in this family; silu is", name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) {
            h->activation = known[i].kind;
            return SN_OK;
        }
    return sn_fail(err, SN_REFUSED, "the activation '%.64s' is not known; silu, gelu and gelu_pytorch_tanh are", name);
}

/* ---- scales ---- */

/* Gemma 2's bounds; null: there is none. */
static sn_status read_softcaps(const json_t *config, sn_hparams *h, sn_err *err) {
    double scores = json_object_get(config, "attn_logit_softcapping") ? 0 : 50,
           logits = json_object_get(config, "final_logit_softcapping") ? 0 : 30;
    sn_status status = sn_config_number(config, "attn_logit_softcapping", false, &scores, err);
    if (!status) status = sn_config_number(config, "final_logit_softcapping", false, &logits, err);
    bool none[] = {!sn_config_field(config, "attn_logit_softcapping") && scores == 0,
                   !sn_config_field(config, "final_logit_softcapping") && logits == 0};
    if (!status && !((none[0] || (scores > 0 && scores <= 1e6)) && (none[1] || (logits > 0 && logits <= 1e6))))
        return sn_fail(err, SN_REFUSED,
                       "'attn_logit_softcapping' %g and 'final_logit_softcapping' %g must lie above 0, up to 1e6",
                       scores, logits);
    h->score_softcap = (float)scores;
    h->logit_softcap = (float)logits;
    return SN_OK;
}

static sn_status read_logit_softcap(const json_t *config, sn_hparams *h, sn_err *err) {
    double cap = 0;
    SN_TRY(sn_config_number(config, "final_logit_softcapping", false, &cap, err));
    if (sn_config_field(config, "final_logit_softcapping") && !(cap > 0 && cap <= 1e6))
        return sn_fail(err, SN_REFUSED, "'final_logit_softcapping' is %g; it must lie above 0, up to 1e6", cap);
    h->logit_softcap = (float)cap;
    return SN_OK;
}

/* Granite's four factors. */
static sn_status read_multipliers(const json_t *config, sn_hparams *h, sn_err *err) {
    double embeddings = 1, attention = 1, residual = 1, logits = 1;
    sn_status status = sn_config_number(config, "embedding_multiplier", false, &embeddings, err);
    if (!status) status = sn_config_number(config, "attention_multiplier", false, &attention, err);
    if (!status) status = sn_config_number(config, "residual_multiplier", false, &residual, err);
    if (!status) status = sn_config_number(config, "logits_scaling", false, &logits, err);
    if (!status && !(embeddings > 0 && embeddings <= 1e6 && attention > 0 && attention <= 1e6 && residual > 0 &&
                     residual <= 1e6 && logits > 0 && logits <= 1e6))
        return sn_fail(err, SN_REFUSED,
                       "'embedding_multiplier' %g, 'attention_multiplier' %g, 'residual_multiplier' %g and "
                       "'logits_scaling' %g must lie from 0 to 1e6",
                       embeddings, attention, residual, logits);
    h->embed_scale = (float)embeddings;
    h->attn_scale = (float)attention;
    h->residual_scale = (float)residual;
    h->logit_scale = (float)(1 / logits);
    return status;
}

static sn_status read_logit_scale(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    double scale = family->logit_scale_default;
    sn_status status = sn_config_number(config, "logit_scale", false, &scale, err);
    if (!status && !(scale > 0 && scale <= 1e6))
        return sn_fail(err, SN_REFUSED, "'logit_scale' is %g; it must lie from 0 to 1e6", scale);
    h->logit_scale = (float)scale;
    return status;
}

/* The scales of embeddings and attention, and the default of tied_output. */
static sn_status read_scales(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    double scalar = family->attn_scalar_default;
    h->tied_output = h->tied_output || family->tied_default;
    if (family->scales_embeddings) h->embed_scale = sqrtf((float)h->n_embd);
    if (family->multipliers) return read_multipliers(config, h, err);
    if (family->softcaps) {
        sn_status softcaps = read_softcaps(config, h, err);
        if (softcaps) return softcaps;
    }
    if (family->logit_softcap) SN_TRY(read_logit_softcap(config, h, err));
    if (family->logit_scale_default > 0) return read_logit_scale(config, family, h, err);
    if (!(scalar > 0) && !sn_family_reads(family, "query_pre_attn_scalar")) return SN_OK;
    if (!(scalar > 0)) scalar = h->head_dim;
    sn_status status = sn_config_number(config, "query_pre_attn_scalar", false, &scalar, err);
    if (!status && !(scalar > 0 && scalar <= 1e9))
        return sn_fail(err, SN_REFUSED, "'query_pre_attn_scalar' is %g; it must lie from 0 to 1e9", scalar);
    h->attn_scale = 1.0f / sqrtf((float)scalar);
    return status;
}

/* ---- config.json ---- */

static sn_status read_sizes(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    static const char *const blocks[] = {"num_hidden_layers", "n_layer", NULL};
    static const char *const embd[] = {"hidden_size", "n_embed", NULL};
    static const char *const heads[] = {"num_attention_heads", "n_head", NULL};
    static const char *const kv_heads[] = {"num_key_value_heads", "num_attention_groups", NULL};
    static const char *const ff[] = {"intermediate_size", "ffn_hidden_size", "n_inner", NULL};
    static const char *const ctx[] = {"max_position_embeddings", "seq_length", "model_max_length", NULL};
    const char *const eps_names[] = {family->eps_field ? family->eps_field : "rms_norm_eps",
                                     family->layer_norm ? NULL : "rms_norm_eps", NULL};
    double eps = family->eps_default > 0 ? family->eps_default : family->layer_norm ? 1e-5 : 1e-6;
    const size_t listed = family->one_half ? sn_config_n_listed_kinds(config, family) : 0;
    sn_status status = sn_config_int(config, sn_config_spelling(config, blocks), !listed, &h->n_blocks, err);
    if (listed) h->n_blocks = listed <= SN_BLOCKS_MAX ? (int)listed : SN_BLOCKS_MAX + 1;
    if (!status) status = sn_config_int(config, sn_config_spelling(config, embd), true, &h->n_embd, err);
    if (!status) status = sn_config_int(config, sn_config_spelling(config, heads), true, &h->n_heads, err);
    if (!status && h->n_embd > 0 && h->n_embd <= INT32_MAX / 8) h->n_ff = family->ff_multiple * h->n_embd;
    if (!status) status = sn_config_int(config, sn_config_spelling(config, ff), !family->ff_multiple, &h->n_ff, err);
    if (!status) status = sn_config_int(config, "vocab_size", true, &h->n_vocab, err);
    h->n_ctx = family->ctx_default;
    if (!status) status = sn_config_int(config, sn_config_spelling(config, ctx), !family->ctx_default, &h->n_ctx, err);
    if (!status) status = sn_config_number(config, sn_config_spelling(config, eps_names), false, &eps, err);
    if (status) return status;
    h->norm_eps = (float)eps;
    h->n_kv_heads = h->n_heads;
    h->head_dim = family->head_dim_default;
    status = sn_config_int(config, sn_config_spelling(config, kv_heads), false, &h->n_kv_heads, err);
    if (!status) status = sn_config_int(config, "attention_head_dim", false, &h->head_dim, err);
    if (!status) status = sn_config_int(config, "head_dim", false, &h->head_dim, err);
    if (status) return status;
    if (h->n_heads < 1) return sn_fail(err, SN_REFUSED, "'num_attention_heads' is %d", h->n_heads);
    if (!h->head_dim && h->n_embd % h->n_heads)
        return sn_fail(err, SN_REFUSED, "a hidden state of %d cannot be split into %d heads", h->n_embd, h->n_heads);
    if (!h->head_dim) h->head_dim = h->n_embd / h->n_heads;
    if (h->n_blocks < 1 || h->head_dim < 1) /* sn_config_finish checks the other ranges */
        return sn_fail(err, SN_REFUSED, "the model claims %d blocks and heads of %d", h->n_blocks, h->head_dim);
    if (h->n_blocks > SN_BLOCKS_MAX) /* before arrays of blocks are filled */
        return sn_fail(err, SN_REFUSED, "the model's number of blocks is %d; it must be %d at most", h->n_blocks,
                       SN_BLOCKS_MAX);
    return SN_OK;
}

/* Falcon's variants: which norms it has, whether its halves are parallel, how many key/value heads it has. */
static sn_status read_falcon(const json_t *config, const sn_family **family, sn_hparams *h, bool *bias, sn_err *err) {
    bool late = false, parallel = true, multi_query = true;
    int norms = 2;
    sn_status status = sn_config_bool(config, "new_decoder_architecture", &late, err);
    if (!status) status = sn_config_bool(config, "parallel_attn", &parallel, err);
    if (!status) status = sn_config_bool(config, "multi_query", &multi_query, err);
    if (!status) status = sn_config_bool(config, "bias", bias, err);
    if (!status) status = sn_config_int(config, "num_ln_in_parallel_attn", false, &norms, err);
    if (!status && late) status = sn_config_int(config, "num_kv_heads", false, &h->n_kv_heads, err);
    if (status) return status;
    if (late && norms != 1 && norms != 2)
        return sn_fail(err, SN_REFUSED, "'num_ln_in_parallel_attn' is %d; 1 and 2 are known", norms);
    if (!late) h->n_kv_heads = multi_query ? 1 : h->n_heads;
    *family = sn_family_variant(*family, late && norms == 2 ? 0 : late || parallel ? 1 : 2);
    return SN_OK;
}

/* Whether the model is a mixture: else it is the next variant of the family. */
static sn_status read_enabled(const json_t *config, const sn_family **family, sn_err *err) {
    bool enabled = false;
    if (!(*family)->moe || !(*family)->moe->enabled_by) return SN_OK;
    SN_TRY(sn_config_bool(config, (*family)->moe->enabled_by, &enabled, err));
    if (!enabled) *family = sn_family_variant(*family, 1);
    return SN_OK;
}

static sn_status read_qk_norm(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    h->qk_norm = family->qk_norm_plain;
    sn_status status = sn_config_bool(config, "use_qk_norm", &h->qk_norm, err);
    h->qk_norm_plain = h->qk_norm && family->qk_norm_plain;
    return status;
}

/* Where the model has an image encoder, too, the fields of the text model are in text_config; *config becomes that. */
static sn_status unwrap(const json_t **config, sn_hparams *h, sn_err *err) {
    const json_t *text = sn_config_field(*config, "text_config");
    const char *type = NULL;
    const sn_family *family;
    if (!text || sn_config_text(text, "model_type", true, &type, NULL) ||
        sn_family_find(SN_CONTAINER_SAFETENSORS, type, &family, NULL) || !family->wrapped)
        return SN_OK;
    sn_status status = read_quantised(*config, family, h, err);
    if (!status) status = sn_config_bool(*config, "tie_word_embeddings", &h->tied_output, err);
    *config = text;
    return status;
}

static sn_status read_config(const json_t *config, sn_hparams *h, const sn_family **family, sn_err *err) {
    const char *type = "", *name = "";
    bool bias, qkv_bias = true;
    sn_rope_scaling scaling[SN_ROPES_MAX] = {0};
    if (!json_is_object(config)) return sn_fail(err, SN_REFUSED, "it is not a JSON object");
    sn_status status = unwrap(&config, h, err);
    if (!status) status = sn_config_text(config, "model_type", true, &type, err);
    if (!status) status = sn_family_find(SN_CONTAINER_SAFETENSORS, type, family, err);
    if (status) return status;
    bias = (*family)->bias_default;
    status = check_neutral(config, *family, err);
    if (!status) status = read_enabled(config, family, err);
    if (!status) status = read_quantised(config, *family, h, err);
    if (!status) status = read_sizes(config, *family, h, err);
    if (!status && sn_family_reads(*family, "new_decoder_architecture"))
        status = read_falcon(config, family, h, &bias, err);
    if (!status && (*family)->recurrence == SN_STATE_SPACE) status = sn_config_read_hybrid(config, family, h, err);
    h->rope_style = (*family)->neighbours ? SN_ROPE_INTERLEAVED : SN_ROPE_NEOX;
    if (!status) status = sn_config_read_window(config, *family, h, err);
    if (!status) status = sn_config_read_values(config, *family, h, err);
    if (!status) status = sn_config_read_other_heads(config, *family, h, err);
    if (!status) status = sn_config_read_rope(config, *family, h, scaling, err);
    if (!status) status = sn_config_read_latent(config, *family, scaling, h, err);
    if (!status) status = sn_config_read_no_rope(config, *family, h, err);
    if (!status) status = sn_config_read_recurrent(config, *family, h, err);
    if (!status && (*family)->chunks)
        status = sn_config_read_chunks(config, scaling[0].kind == SN_ROPE_SCALING_YARN, h, err);
    if (!status) status = read_activation(config, *family, h, err);
    if (!status) status = read_scales(config, *family, h, err);
    if (!status) status = sn_config_read_experts(config, *family, h, err);
    if (!status && (*family)->limits)
        status = sn_config_read_limits(config, "swiglu_limits", h->n_blocks, h->ff_limit, err);
    if (!status && (*family)->limits)
        status = sn_config_read_limits(config, "swiglu_limits_shared", h->n_blocks, h->dense_limit, err);
    if (!status) status = sn_config_bool(config, "attention_bias", &bias, err);
    if (!status && sn_family_reads(*family, "qkv_bias")) status = sn_config_bool(config, "qkv_bias", &qkv_bias, err);
    if (!status && (*family)->qk_norm == SN_IF_DECLARED) status = read_qk_norm(config, *family, h, err);
    if (!status) status = sn_config_bool(config, "tie_word_embeddings", &h->tied_output, err);
    if (!status) status = sn_config_bool(config, "tie_embedding", &h->tied_output, err);
    if (!status) status = sn_config_text(config, "_name_or_path", false, &name, err);
    if (status) return status;
    snprintf(h->family, sizeof h->family, "%s", (*family)->name);
    sn_config_copy_name(h->name, name, strlen(name));
    h->norm_plus_one = (*family)->norm_plus_one;
    h->window_sinks = (*family)->window_sinks;
    h->qkv_bias = ((*family)->qkv_bias == SN_ALWAYS && qkv_bias) || ((*family)->qkv_bias == SN_IF_DECLARED && bias);
    h->linear_bias = (*family)->linear_bias == SN_ALWAYS || ((*family)->linear_bias == SN_IF_DECLARED && bias);
    h->o_bias = h->linear_bias || ((*family)->qkv_bias == SN_IF_DECLARED && bias && !(*family)->no_o_bias);
    return sn_config_finish(h, *family, scaling, err);
}

sn_status sn_config_from_json(const char *text, size_t len, sn_hparams *hparams, const sn_family **family,
                              sn_err *err) {
    json_error_t wrong;
    *hparams = (sn_hparams){0};
    json_t *config = sn_json_read(text, len, &wrong);
    if (!config) {
        const char *other = sn_not_a_model(text, len);
        if (other) return sn_fail(err, SN_REFUSED, "%s", other);
        return sn_fail(err, SN_REFUSED, "it is not valid JSON: %s (line %d)", wrong.text, wrong.line);
    }
    sn_status status = read_config(config, hparams, family, err);
    json_decref(config);
    return status;
}
