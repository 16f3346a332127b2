/* Reads config.json. Three kinds of fields: those that read_config and its helpers read; those that change the
 * mathematics and are not implemented (must_be_neutral, must_be_absent), which are refused unless they have the value
 * at which they do nothing, or the family declares that it reads them (family->config_fields); and all others, which do
 * not change the mathematics and are ignored. Defaults that differ between families are in the family's descriptor.
 *
 * null counts as absent. Spellings of transformers 4 and 5 are both read. */
#include "model/config.h"

#include "model/json.h"
#include "model/not_a_model.h"
#include "model/quantisation.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields ---- */

/* A field that is absent, and one that is null, count alike: the value stays as it was, or SN_REFUSED when it is
 * required; of true and false, null is false, as in Python. Errors name the field. */

static const json_t *config_field(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static sn_status config_int(const json_t *object, const char *name, bool required, int *out, sn_err *err) {
    const json_t *value = config_field(object, name);
    if (!value && !required) return SN_OK;
    if (!value) return sn_fail(err, SN_REFUSED, "'%s' is missing", name);
    json_int_t wide = json_integer_value(value);
    if (!json_is_integer(value) || wide < INT32_MIN || wide > INT32_MAX)
        return sn_fail(err, SN_REFUSED, "'%s' must be a whole number", name);
    *out = (int)wide;
    return SN_OK;
}

static sn_status config_number(const json_t *object, const char *name, bool required, double *out, sn_err *err) {
    const json_t *value = config_field(object, name);
    if (!value && !required) return SN_OK;
    if (!value) return sn_fail(err, SN_REFUSED, "'%s' is missing", name);
    if (!json_is_number(value)) return sn_fail(err, SN_REFUSED, "'%s' must be a number", name);
    *out = json_number_value(value);
    return SN_OK;
}

static sn_status config_bool(const json_t *object, const char *name, bool *out, sn_err *err) {
    const json_t *value = json_object_get(object, name);
    if (!value) return SN_OK;
    if (!json_is_boolean(value) && !json_is_null(value))
        return sn_fail(err, SN_REFUSED, "'%s' must be true or false", name);
    *out = json_is_true(value);
    return SN_OK;
}

static sn_status config_text(const json_t *object, const char *name, bool required, const char **out, sn_err *err) {
    const json_t *value = config_field(object, name);
    if (!value && !required) return SN_OK;
    if (!value) return sn_fail(err, SN_REFUSED, "'%s' is missing", name);
    if (!json_is_string(value)) return sn_fail(err, SN_REFUSED, "'%s' must be a text", name);
    *out = json_string_value(value);
    return SN_OK;
}

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

static bool family_reads(const sn_family *family, const char *name) {
    for (const char *const *at = family->config_fields; at && *at; at++)
        if (!strcmp(*at, name)) return true;
    return false;
}

/* Weights that are quantised in the files. */
static sn_status read_quantised(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const json_t *about = config_field(config, "quantization_config");
    return about ? sn_quantisation_read(about, family_reads(family, "quantization_config"), h, err) : SN_OK;
}

static sn_status check_neutral(const json_t *config, const sn_family *family, sn_err *err) {
    bool causal = true;
    sn_status status = config_bool(config, "is_causal", &causal, err);
    if (status) return status;
    if (!causal)
        return sn_fail(err, SN_REFUSED,
                       "'is_causal' is false: each token would see the later ones, which is not supported");
    const char *direction = json_string_value(config_field(config, "use_bidirectional_attention"));
    if (direction && strcmp(direction, "vision")) /* about pictures */
        return sn_fail(err, SN_REFUSED,
                       "'use_bidirectional_attention' is '%.32s': each token would see the later ones, which is not "
                       "supported",
                       direction);
    if (json_number_value(config_field(config, "hidden_size_per_layer_input")) != 0 ||
        json_number_value(config_field(config, "num_kv_shared_layers")) != 0)
        return sn_fail(err, SN_REFUSED,
                       "'hidden_size_per_layer_input' or 'num_kv_shared_layers' is set: models whose blocks take token "
                       "embeddings of their own, or keys and values of other blocks, are not supported");
    for (size_t i = 0; i < sizeof must_be_neutral / sizeof *must_be_neutral; i++) {
        const json_t *value = config_field(config, must_be_neutral[i].field);
        bool neutral = !value || json_is_false(value) ||
                       (json_is_number(value) && json_number_value(value) == must_be_neutral[i].neutral);
        if (!neutral && !family_reads(family, must_be_neutral[i].field))
            return sn_fail(err, SN_REFUSED, "'%s' is set, which is not supported for this family",
                           must_be_neutral[i].field);
    }
    for (size_t i = 0; i < sizeof must_be_absent / sizeof *must_be_absent; i++)
        if (config_field(config, must_be_absent[i]) && !family_reads(family, must_be_absent[i]))
            return sn_fail(err, SN_REFUSED, "'%s' is set, which is not supported for this family", must_be_absent[i]);
    return SN_OK;
}

/* ---- fields with several spellings ---- */

/* The first of the spellings (NULL-terminated) that is present; the first of all when none is. */
static const char *find_spelling(const json_t *config, const char *const *names) {
    for (const char *const *at = names; *at; at++)
        if (config_field(config, *at)) return *at;
    return *names;
}

/* The clamped activation has constants, and only its published ones are implemented. config.json calls it silu. */
static sn_status check_clamps(const json_t *config, const char *name, sn_err *err) {
    double alpha = 1.702, limit = 7;
    sn_status status = config_number(config, "swiglu_alpha", false, &alpha, err);
    if (!status) status = config_number(config, "swiglu_limit", false, &limit, err);
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
    sn_status status = config_text(config, field, false, &name, err);
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

/* ---- rope ---- */

static sn_status check_rope_fields(const json_t *rope, sn_err *err) {
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "original_max_position_embeddings",
                                        "partial_rotary_factor",
                                        "beta_fast",
                                        "beta_slow",
                                        "attention_factor",
                                        "truncate",
                                        "mscale",
                                        "mscale_all_dim",
                                        "llama_4_scaling_beta",
                                        "mrope_section", /* of pictures: those of a text's tokens are equal */
                                        "mrope_interleaved",
                                        "short_factor",
                                        "long_factor",
                                        "max_position_embeddings"};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)rope, name, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= !strcmp(name, known[i]);
        if (!found) return sn_fail(err, SN_REFUSED, "'%.64s' is not known and may change the positions", name);
    }
    return SN_OK;
}

static sn_status read_yarn(const json_t *rope, sn_rope_scaling *s, sn_err *err) {
    s->beta_fast = 32;
    s->beta_slow = 1;
    s->truncate = true;
    sn_status status = config_number(rope, "original_max_position_embeddings", true, &s->original_ctx, err);
    if (!status) status = config_number(rope, "beta_fast", false, &s->beta_fast, err);
    if (!status) status = config_number(rope, "beta_slow", false, &s->beta_slow, err);
    if (!status) status = config_number(rope, "attention_factor", false, &s->attention_factor, err);
    if (!status) status = config_number(rope, "mscale", false, &s->mscale, err);
    if (!status) status = config_number(rope, "mscale_all_dim", false, &s->mscale_all_dim, err);
    if (!status) status = config_number(rope, "llama_4_scaling_beta", false, &s->q_growth, err);
    return status ? status : config_bool(rope, "truncate", &s->truncate, err);
}

static sn_status read_factors(const json_t *rope, const char *name, int *n, float out[SN_ROPE_FREQS_MAX], sn_err *err) {
    const json_t *list = config_field(rope, name);
    *n = (int)json_array_size(list);
    if (*n < 1 || *n > SN_ROPE_FREQS_MAX)
        return sn_fail(err, SN_REFUSED, "'%s' must be a list of numbers, one for each pair of dimensions", name);
    for (int i = 0; i < *n; i++)
        out[i] = (float)json_number_value(json_array_get(list, (size_t)i)); /* 0: refused later */
    return SN_OK;
}

/* Phi-3 names its kind of rope in several ways, and the original context beside it. */
static sn_status read_longrope(const json_t *config, const json_t *rope, const sn_hparams *h, sn_rope_scaling *s,
                               sn_err *err) {
    const char *type = "default";
    int n_long = 0, original = 4096, said;
    sn_status status = config_text(rope, "type", false, &type, err);
    if (!status) status = config_text(rope, "rope_type", false, &type, err);
    if (status || (strcmp(type, "longrope") && strcmp(type, "su") && strcmp(type, "yarn"))) return status;
    status = read_factors(rope, "short_factor", &s->n_factors, s->factors[0], err);
    if (!status) status = read_factors(rope, "long_factor", &n_long, s->factors[1], err);
    if (!status && n_long != s->n_factors)
        return sn_fail(err, SN_REFUSED, "'short_factor' has %d numbers and 'long_factor' %d", s->n_factors, n_long);
    if (!status) status = config_int(config, "original_max_position_embeddings", false, &original, err);
    said = original;
    if (!status) status = config_int(rope, "original_max_position_embeddings", false, &said, err);
    if (!status && (said != original || original < 2))
        return sn_fail(err, SN_REFUSED, "'original_max_position_embeddings' is %d, and %d in '%s'", original, said,
                       "rope_parameters");
    s->original_ctx = original;
    s->factor = (double)h->n_ctx / original;
    if (!status) status = config_number(rope, "factor", false, &s->factor, err);
    if (!status) status = config_number(rope, "attention_factor", false, &s->attention_factor, err);
    if (s->factor < 1) s->factor = 1; /* cosines and sines are not multiplied then */
    s->kind = SN_ROPE_SCALING_LONG;
    return status;
}

/* *rotated: the share of a head that is rotated; of the proportional kind all of it is, by an angle of 0 beyond. */
static sn_status read_rope_kind(const json_t *rope, bool proportional, double *rotated, sn_rope_scaling *s,
                                sn_err *err) {
    const char *type = "default";
    sn_status status = config_text(rope, "type", false, &type, err); /* old spelling */
    if (!status) status = config_text(rope, "rope_type", false, &type, err);
    if (status || s->kind == SN_ROPE_SCALING_LONG) return status; /* which was read before */
    if (!strcmp(type, "default"))
        s->kind = SN_ROPE_SCALING_NONE;
    else if (!strcmp(type, "linear"))
        s->kind = SN_ROPE_SCALING_LINEAR;
    else if (!strcmp(type, "llama3"))
        s->kind = SN_ROPE_SCALING_LLAMA3;
    else if (!strcmp(type, "yarn"))
        s->kind = SN_ROPE_SCALING_YARN;
    else if (!strcmp(type, "proportional") && proportional)
        s->kind = SN_ROPE_SCALING_PROPORTIONAL;
    else
        return sn_fail(err, SN_REFUSED, "rope type '%.64s' is not known; default, linear, llama3 and yarn are", type);
    if (s->kind == SN_ROPE_SCALING_NONE) return SN_OK;
    if (s->kind == SN_ROPE_SCALING_PROPORTIONAL) {
        double factor = 1;
        s->rotated = *rotated, *rotated = 1;
        status = config_number(rope, "factor", false, &factor, err);
        if (!status && (factor != 1 || !(s->rotated > 0 && s->rotated <= 1)))
            return sn_fail(err, SN_REFUSED, "a proportional rope of %g with 'factor' %g is not supported", s->rotated,
                           factor);
        return status;
    }
    status = config_number(rope, "factor", true, &s->factor, err);
    if (status || s->kind == SN_ROPE_SCALING_LINEAR) return status;
    if (s->kind == SN_ROPE_SCALING_YARN) return read_yarn(rope, s, err);
    status = config_number(rope, "low_freq_factor", true, &s->low_freq_factor, err);
    if (!status) status = config_number(rope, "high_freq_factor", true, &s->high_freq_factor, err);
    if (!status) status = config_number(rope, "original_max_position_embeddings", true, &s->original_ctx, err);
    return status;
}

/* Reads one rope from an object, called `where` in errors. *rotated: the share of a head's dimensions that it rotates.
 */
static sn_status read_rope_object(const json_t *rope, const char *where, bool proportional, double *rotated,
                                  sn_rope_scaling *s, sn_err *err) {
    if (!rope) return SN_OK;
    if (!json_is_object(rope)) return sn_fail(err, SN_REFUSED, "'%s' must be an object", where);
    sn_status status = check_rope_fields(rope, err);
    if (!status) status = config_number(rope, "rope_theta", false, &s->theta, err);
    if (!status) status = config_number(rope, "partial_rotary_factor", false, rotated, err);
    if (!status) status = read_rope_kind(rope, proportional, rotated, s, err);
    if (status) sn_err_context(err, "'%s'", where);
    return status;
}

/* Two ropes: s[0] of blocks with a window, s[1] of blocks with full attention. In transformers 5 rope_parameters has an
 * object for each; before, rope_scaling was about the second. */
static sn_status read_two_ropes(const json_t *config, const sn_family *family, const json_t *both,
                                double rotated[SN_ROPES_MAX], sn_rope_scaling s[SN_ROPES_MAX], sn_err *err) {
    const bool p = family->proportional;
    sn_status status = config_number(config, "rope_local_base_freq", false, &s[0].theta, err);
    if (!status) status = config_number(config, "swa_rope_theta", false, &s[0].theta, err);
    if (status) return status;
    const json_t *scaling = config_field(config, "rope_scaling");
    if (!both && config_field(scaling, "type") && !config_field(scaling, "rope_type"))
        return sn_fail(err, SN_REFUSED, "'rope_scaling' says 'type', which this family ignores: call it 'rope_type'");
    if (!both) return read_rope_object(scaling, "rope_scaling", p, &rotated[1], &s[1], err);
    const json_t *local = config_field(both, "sliding_attention"), *full = config_field(both, "full_attention");
    if (!json_is_object(both) || json_object_size(both) != (size_t)(!!local + !!full))
        return sn_fail(err, SN_REFUSED, "'rope_parameters' must hold sliding_attention and full_attention");
    status = read_rope_object(local, "sliding_attention", p, &rotated[0], &s[0], err);
    if (!status) status = read_rope_object(full, "full_attention", p, &rotated[1], &s[1], err);
    if (!status && scaling)
        status = sn_fail(err, SN_REFUSED, "'rope_scaling' and 'rope_parameters' are both there: take one out");
    return status;
}

/* How many dimensions of a head of so many a rope rotates. `rotated`: what the file says, with the family's default. */
static sn_status rotated_dims(const sn_family *family, const sn_rope_scaling *s, double rotated, int head_dim, int *out,
                              sn_err *err) {
    const double usual = family->rotated_default > 0 ? family->rotated_default : 1;
    if (!family->rotates_part && s->kind == SN_ROPE_SCALING_NONE) rotated = usual;
    if (!family->rotates_part && rotated != usual)
        return sn_fail(err, SN_REFUSED, "'partial_rotary_factor' is set, which is not supported for this family");
    if (!(rotated > 0 && rotated <= 1))
        return sn_fail(err, SN_REFUSED, "'partial_rotary_factor' is %g; it must lie from 0 to 1", rotated);
    *out = (int)(head_dim * rotated);
    return SN_OK;
}

/* A number, or a list of one for each block, equal in all blocks of a kind; a number is the full one alone. */
static sn_status config_by_kind(const json_t *config, const char *name, const sn_hparams *h, double *window,
                                double *full, sn_err *err) {
    const json_t *list = config_field(config, name);
    bool seen[2] = {false, false};
    if (!json_is_array(list)) return config_number(config, name, false, full, err);
    for (int b = 0; b < h->n_blocks; b++) {
        const json_t *own = json_array_get(list, (size_t)b);
        const int kind = h->full_attention[b];
        double *out = kind ? full : window;
        if (!json_is_number(own) || (seen[kind] && json_number_value(own) != *out))
            return sn_fail(err, SN_REFUSED, "'%s' must list numbers, the same for all blocks of a kind", name);
        *out = json_number_value(own), seen[kind] = true;
    }
    return SN_OK;
}

/* In transformers 5 rope_parameters holds everything; before, rope_scaling held the scaling, and rope_theta was a field
 * of its own. Where both are there, as people add the second, that one counts alone. */
static sn_status read_rope(const json_t *config, const sn_family *family, sn_hparams *h,
                           sn_rope_scaling s[SN_ROPES_MAX], sn_err *err) {
    const json_t *rope = config_field(config, "rope_parameters"), *scaling = config_field(config, "rope_scaling");
    double rotated[SN_ROPES_MAX];
    int rotary_dim = 0;
    rotated[0] = family->rotated_default > 0 ? family->rotated_default : 1;
    bool wins = scaling && (!json_is_object(scaling) || json_object_size(scaling)); /* an empty one says nothing */
    if (family->rope_required && !rope && !wins) return sn_fail(err, SN_REFUSED, "'rope_parameters' is missing");
    h->n_ropes = family->local_theta > 0 || family->local_unscaled ? 2 : 1;
    sn_rope_scaling *usual = &s[h->n_ropes - 1];
    s[0].theta = family->local_theta;
    usual->theta = family->theta_default > 0 ? family->theta_default : 10000;
    sn_status status = h->n_ropes > 1 ? config_by_kind(config, "rope_theta", h, &s[0].theta, &usual->theta, err)
                                      : config_number(config, "rope_theta", false, &usual->theta, err);
    /* what says it of each kind of blocks says it alone */
    const bool by_kind = h->n_ropes > 1 && rope && family->rotates_part;
    if (!status && !by_kind) status = config_number(config, "partial_rotary_factor", false, &rotated[0], err);
    rotated[1] = rotated[0];
    if (!status && h->n_ropes > 1)
        status = config_by_kind(config, "partial_rotary_factors", h, &rotated[0], &rotated[1], err);
    if (!status && family_reads(family, "rotary_dim"))
        status = config_int(config, "rotary_dim", false, &rotary_dim, err);
    if (status) return status;
    if (family->local_unscaled) s[0].theta = usual->theta;
    if (family->long_rope) status = read_longrope(config, wins ? scaling : rope, h, usual, err);
    if (status) return status;
    if (h->n_ropes > 1)
        status = read_two_ropes(config, family, rope, rotated, s, err);
    else
        status =
            read_rope_object(wins ? scaling : rope, wins ? "rope_scaling" : "rope_parameters", false, rotated, s, err);
    if (!status) status = rotated_dims(family, &s[0], rotated[0], h->head_dim, &h->rope_dim, err);
    const int full_dim = h->full_heads.n ? h->full_heads.key_dim : h->head_dim;
    if (!status && h->n_ropes > 1) status = rotated_dims(family, &s[1], rotated[1], full_dim, &h->rope_dim_full, err);
    if (status) return status;
    if (rotary_dim) h->rope_dim = rotary_dim;
    h->q_growth = (float)usual->q_growth;
    h->q_growth_step = usual->original_ctx >= 1 && usual->original_ctx <= 1e9 ? (int)usual->original_ctx : 0;
    return SN_OK;
}

/* ---- the window ---- */

/* Whether a list has all blocks; it may have those that predict further tokens, too. */
static bool lists_blocks(const json_t *config, const json_t *list, int n_blocks) {
    const json_int_t further = json_integer_value(config_field(config, "num_nextn_predict_layers"));
    const size_t n = json_array_size(list), all = (size_t)n_blocks;
    return json_is_array(list) && (n == all || (further > 0 && further < 64 && n == all + (size_t)further));
}

/* layer_types lists the blocks one by one. *sliding: whether any block has the window. */
static sn_status read_layer_types(const json_t *config, int n_blocks, bool *full_attention, bool *sliding,
                                  sn_err *err) {
    const json_t *list = config_field(config, "layer_types");
    if (!list) return SN_OK;
    if (!lists_blocks(config, list, n_blocks))
        return sn_fail(err, SN_REFUSED, "'layer_types' must list the kinds of all %d blocks", n_blocks);
    size_t n_sliding = 0;
    for (size_t i = 0; i < (size_t)n_blocks; i++) {
        const char *kind = json_string_value(json_array_get(list, i));
        bool slides = kind && !strcmp(kind, "sliding_attention");
        if (!slides && (!kind || strcmp(kind, "full_attention")))
            return sn_fail(err, SN_REFUSED,
                           "'layer_types' holds '%.64s'; full_attention and sliding_attention are known",
                           kind ? kind : "no text");
        n_sliding += slides;
        full_attention[i] = !slides;
    }
    *sliding = n_sliding;
    return SN_OK;
}

/* A list by block of 0 and 1, where there is one; the blocks whose number is `ones` get true. */
static sn_status read_flags(const json_t *config, const char *name, int n_blocks, bool ones, bool *out, sn_err *err) {
    const json_t *list = config_field(config, name);
    if (!list) return SN_OK;
    if (!json_is_array(list) || json_array_size(list) < (size_t)n_blocks)
        return sn_fail(err, SN_REFUSED, "'%s' must list all %d blocks", name, n_blocks);
    for (int i = 0; i < n_blocks; i++) {
        const json_t *flag = json_array_get(list, (size_t)i);
        if (!json_is_integer(flag) || json_integer_value(flag) < 0 || json_integer_value(flag) > 1)
            return sn_fail(err, SN_REFUSED, "'%s' must hold 0 and 1", name);
        out[i] = json_integer_value(flag) == ones;
    }
    return SN_OK;
}

/* The reference takes layer_types although use_sliding_window is false, with a window of nothing. */
static sn_status check_no_window(const json_t *config, sn_err *err) {
    const json_t *list = config_field(config, "layer_types");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_string_value(json_array_get(list, i)) &&
            !strcmp(json_string_value(json_array_get(list, i)), "sliding_attention"))
            return sn_fail(err, SN_REFUSED, "'layer_types' holds sliding_attention and 'use_sliding_window' is false");
    return SN_OK;
}

/* Every n-th block has full attention, unless layer_types says otherwise. */
static sn_status read_pattern(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    int pattern = family->window_pattern;
    if (config_field(config, "layer_types")) return SN_OK; /* which says it block by block */
    sn_status status = config_int(config, "_sliding_window_pattern", false, &pattern, err);
    if (!status) status = config_int(config, "sliding_window_pattern", false, &pattern, err);
    if (!status && pattern < 1) return sn_fail(err, SN_REFUSED, "'sliding_window_pattern' is %d", pattern);
    for (int i = 0; i < h->n_blocks && !status; i++) h->full_attention[i] = (i + 1) % pattern == 0;
    return status;
}

/* Blocks without rope: those with a 0 in the list, or every n-th. */
static sn_status read_no_rope(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const json_t *list = config_field(config, "no_rope_layers");
    int interval = family->no_rope_interval;
    if (!interval) return SN_OK;
    sn_status status = config_int(config, "no_rope_layer_interval", false, &interval, err);
    if (status) return status;
    if (interval < 1) return sn_fail(err, SN_REFUSED, "'no_rope_layer_interval' is %d", interval);
    if (list && (!json_is_array(list) || (json_array_size(list) && json_array_size(list) != (size_t)h->n_blocks)))
        return sn_fail(err, SN_REFUSED, "'no_rope_layers' must list all %d blocks", h->n_blocks);
    bool listed = list && json_array_size(list);
    for (int i = 0; i < h->n_blocks; i++)
        h->no_rope[i] = listed ? json_integer_value(json_array_get(list, (size_t)i)) == 0 : (i + 1) % interval == 0;
    return SN_OK;
}

/* Llama 4: blocks with rope attend to their chunk, the others to everything, with queries that grow. */
static sn_status read_chunks(const json_t *config, bool yarn, sn_hparams *h, sn_err *err) {
    const json_t *list = config_field(config, "layer_types");
    bool grows = true;
    double growth = 0.1, step = 8192;
    int chunk = 8192;
    if (yarn) return sn_fail(err, SN_REFUSED, "rope scaling of type yarn is not supported for this family");
    sn_status status = config_int(config, "attention_chunk_size", false, &chunk, err);
    if (!status) status = config_bool(config, "attn_temperature_tuning", &grows, err);
    if (!status) status = config_number(config, "attn_scale", false, &growth, err);
    if (!status) status = config_number(config, "floor_scale", false, &step, err);
    if (status) return status;
    if (chunk < 1 || !(step >= 1 && step <= 1e9) || step != floor(step))
        return sn_fail(err, SN_REFUSED, "'attention_chunk_size' is %d and 'floor_scale' %g; both must be whole numbers",
                       chunk, step);
    for (int i = 0; i < h->n_blocks; i++) {
        const char *kind = json_string_value(json_array_get(list, (size_t)i));
        h->full_attention[i] = h->no_rope[i];
        if (kind && strcmp(kind, h->no_rope[i] ? "full_attention" : "chunked_attention"))
            return sn_fail(err, SN_REFUSED,
                           "'layer_types' holds '%.64s' for block %d, which contradicts no_rope_layers", kind, i);
    }
    h->window = chunk;
    h->window_chunks = true;
    h->q_growth = grows ? (float)growth : 0;
    h->q_growth_step = (int)step;
    h->q_growth_offset = 1;
    h->q_growth_unrotated = true;
    return SN_OK;
}

/* Gemma 2's bounds; null: there is none. */
static sn_status read_softcaps(const json_t *config, sn_hparams *h, sn_err *err) {
    double scores = json_object_get(config, "attn_logit_softcapping") ? 0 : 50,
           logits = json_object_get(config, "final_logit_softcapping") ? 0 : 30;
    sn_status status = config_number(config, "attn_logit_softcapping", false, &scores, err);
    if (!status) status = config_number(config, "final_logit_softcapping", false, &logits, err);
    bool none[] = {!config_field(config, "attn_logit_softcapping") && scores == 0,
                   !config_field(config, "final_logit_softcapping") && logits == 0};
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
    SN_TRY(config_number(config, "final_logit_softcapping", false, &cap, err));
    if (config_field(config, "final_logit_softcapping") && !(cap > 0 && cap <= 1e6))
        return sn_fail(err, SN_REFUSED, "'final_logit_softcapping' is %g; it must lie above 0, up to 1e6", cap);
    h->logit_softcap = (float)cap;
    return SN_OK;
}

/* Granite's four factors. */
static sn_status read_multipliers(const json_t *config, sn_hparams *h, sn_err *err) {
    double embeddings = 1, attention = 1, residual = 1, logits = 1;
    sn_status status = config_number(config, "embedding_multiplier", false, &embeddings, err);
    if (!status) status = config_number(config, "attention_multiplier", false, &attention, err);
    if (!status) status = config_number(config, "residual_multiplier", false, &residual, err);
    if (!status) status = config_number(config, "logits_scaling", false, &logits, err);
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
    sn_status status = config_number(config, "logit_scale", false, &scale, err);
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
    if (!(scalar > 0) && !family_reads(family, "query_pre_attn_scalar")) return SN_OK;
    if (!(scalar > 0)) scalar = h->head_dim;
    sn_status status = config_number(config, "query_pre_attn_scalar", false, &scalar, err);
    if (!status && !(scalar > 0 && scalar <= 1e9))
        return sn_fail(err, SN_REFUSED, "'query_pre_attn_scalar' is %g; it must lie from 0 to 1e9", scalar);
    h->attn_scale = 1.0f / sqrtf((float)scalar);
    return status;
}

/* MiMo: 1 is a block with a window, whose size may be said without the token itself. */
static sn_status read_hybrid_pattern(const json_t *config, sn_hparams *h, int *window, sn_err *err) {
    int before = *window - 1;
    if (!config_field(config, "hybrid_layer_pattern") && !config_field(config, "layer_types"))
        return sn_fail(err, SN_REFUSED, "neither 'layer_types' nor 'hybrid_layer_pattern' is there");
    bool sinks = true;
    SN_TRY(config_bool(config, "add_swa_attention_sink_bias", &sinks, err));
    if (!sinks) return sn_fail(err, SN_REFUSED, "'add_swa_attention_sink_bias' is false, which is not supported");
    SN_TRY(config_int(config, "sliding_window_size", false, &before, err));
    *window = before < INT32_MAX ? before + 1 : before;
    return read_flags(config, "hybrid_layer_pattern", h->n_blocks, false, h->full_attention, err);
}

static sn_status read_window(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    if (family->window == SN_WINDOW_NONE) return SN_OK;
    bool sliding = true;
    int window = json_object_get(config, "sliding_window") ? 0 : family->window_default, first_sliding = 0;
    sn_status status = config_int(config, "sliding_window", false, &window, err);
    if (status) return status;
    if (family->window == SN_WINDOW_SWITCHED) {
        sliding = false;
        status = config_bool(config, "use_sliding_window", &sliding, err);
        if (!status) status = config_int(config, "max_window_layers", sliding, &first_sliding, err);
        if (status) return status;
        if (sliding && !config_field(config, "layer_types")) {
            sliding = first_sliding < h->n_blocks;
            for (int i = 0; i < first_sliding && sliding; i++) h->full_attention[i] = true;
        }
        if (!sliding) return check_no_window(config, err);
    }
    if (family->window_pattern) status = read_pattern(config, family, h, err);
    if (!status && family_reads(family, "hybrid_layer_pattern")) status = read_hybrid_pattern(config, h, &window, err);
    if (!status) status = read_layer_types(config, h->n_blocks, h->full_attention, &sliding, err);
    if (!status && sliding && window == 0 && config_field(config, "sliding_window"))
        return sn_fail(err, SN_REFUSED, "'sliding_window' is 0: a token must at least see itself");
    if (!status && sliding) h->window = window;
    for (int i = 0; i < h->n_blocks && family->full_unrotated && window; i++)
        h->no_rope[i] = !sliding || h->full_attention[i];
    return status;
}

/* ---- the indexer ---- */

/* Block i of a text "FSSF", or of a list of "full" and "shared"; 0: neither. */
static char index_kind(const json_t *kinds, int i) {
    const char *text =
        json_is_string(kinds) ? json_string_value(kinds) + i : json_string_value(json_array_get(kinds, (size_t)i));
    if (!text) return 0;
    if (json_is_string(kinds)) return *text == 'F' || *text == 'S' ? *text : 0;
    return !strcmp(text, "full") ? 'F' : !strcmp(text, "shared") ? 'S' : 0;
}

/* Which blocks attend to what a block before has chosen: said block by block, or all but every n-th. */
static sn_status read_shared_choices(const json_t *config, sn_hparams *h, sn_err *err) {
    const char *name = config_field(config, "indexer_types") ? "indexer_types" : "index_topk_pattern";
    const json_t *kinds = config_field(config, name);
    size_t n = json_is_string(kinds) ? json_string_length(kinds) : json_array_size(kinds);
    int every = 1, offset = 2;
    sn_status status = config_int(config, "index_topk_freq", false, &every, err);
    if (!status) status = config_int(config, "index_skip_topk_offset", false, &offset, err);
    if (!status && kinds && n < (size_t)h->n_blocks)
        return sn_fail(err, SN_REFUSED, "'%s' must say of each of the %d blocks whether it is full or shared", name,
                       h->n_blocks);
    if (!status && (offset < 0 || offset > SN_BLOCKS_MAX))
        return sn_fail(err, SN_REFUSED, "'index_skip_topk_offset' is %d; it must lie from 0 to %d", offset,
                       SN_BLOCKS_MAX);
    if (every < 1) every = 1;
    for (int i = 0; i < h->n_blocks && !status; i++) {
        int past = i - offset + 1 > 0 ? i - offset + 1 : 0;
        char kind = kinds ? index_kind(kinds, i) : past % every == 0 ? 'F' : 'S';
        if (!kind) return sn_fail(err, SN_REFUSED, "'%s' holds what is neither full nor shared", name);
        h->index_shared[i] = kind == 'S';
    }
    return status;
}

static sn_status read_indexer(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    sn_status status = config_int(config, "index_topk", true, &h->index_topk, err);
    if (!status) status = config_int(config, "index_n_heads", true, &h->index_heads, err);
    if (!status) status = config_int(config, "index_head_dim", true, &h->index_dim, err);
    if (!status && family->index_shares) status = read_shared_choices(config, h, err);
    return status ? status : sn_config_finish_indexer(h, family, err);
}

/* ---- heads that differ between kinds of blocks ---- */

/* Values are as wide as keys where the family does not say it. */
static sn_status read_heads_fields(const json_t *object, const sn_family *family, const char *const names[4],
                                   sn_heads *h, sn_err *err) {
    int *const numbers[] = {&h->n, &h->n_kv, &h->key_dim, &h->value_dim};
    sn_status status = SN_OK;
    for (int i = 0; i < 4 && !status; i++)
        if (names[i]) status = config_int(object, names[i], false, numbers[i], err);
    if (!family->value_dim_default) h->value_dim = h->key_dim;
    return status;
}

/* In transformers 5 per_layer_config says the heads of single blocks: they must be those of one kind, all alike. */
static sn_status read_per_layer(const json_t *config, const sn_family *family, const sn_hparams *h, sn_heads *others,
                                sn_err *err) {
    static const char *const names[] = {"num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim"};
    const json_t *layers = config_field(config, "per_layer_config");
    bool any = false;
    if (layers && !json_is_object(layers)) return sn_fail(err, SN_REFUSED, "'per_layer_config' must be an object");
    for (int b = 0; b < h->n_blocks; b++) {
        char number[16];
        snprintf(number, sizeof number, "%d", b);
        const json_t *own = config_field(layers, number);
        sn_heads heads = *others;
        const bool other = h->full_attention[b] == family->heads->full;
        if (own) SN_TRY(read_heads_fields(own, family, names, &heads, err));
        if (other && own && !any) *others = heads, any = true;
        if (other ? any && (!own || memcmp(&heads, others, sizeof heads)) : own != NULL)
            return sn_fail(err, SN_REFUSED, "'per_layer_config' gives block %d other heads than blocks of its kind", b);
    }
    return SN_OK;
}

/* The usual fields are about one kind of blocks; what they say of heads becomes full_heads, or what the others have. */
static sn_status read_other_heads(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    static const char *const usual_names[] = {"num_attention_heads", "num_attention_groups", "head_dim", NULL};
    const sn_heads_config *m = family->heads;
    if (!m) return SN_OK;
    const sn_heads usual = sn_usual_heads(h);
    sn_heads others = usual;
    bool counts = true;
    if (m->n_kv_times && usual.n_kv <= SN_HEADS_MAX) others.n_kv *= m->n_kv_times;
    if (m->n_kv_if) counts = false;
    if (m->n_kv_if) SN_TRY(config_bool(config, m->n_kv_if, &counts, err));
    h->full_keys_are_values = m->n_kv_if && counts;
    if (m->full && !h->full_attention[h->n_blocks - 1])
        return sn_fail(err, SN_REFUSED, "the last block has a window, where this family has full attention");
    if (m->key_dim_default && !config_field(config, "per_layer_config"))
        others.key_dim = others.value_dim = m->key_dim_default;
    const char *const names[] = {m->n, counts ? m->n_kv : NULL, m->key_dim, m->value_dim};
    SN_TRY(read_heads_fields(config, family, names, &others, err));
    const json_t *object = m->object ? config_field(config, m->object) : NULL;
    if (object && !json_is_object(object)) return sn_fail(err, SN_REFUSED, "'%s' must be an object", m->object);
    if (object) SN_TRY(read_heads_fields(object, family, usual_names, &others, err));
    SN_TRY(read_per_layer(config, family, h, &others, err));
    if (!memcmp(&others, &usual, sizeof usual)) return SN_OK;
    const sn_heads *full = m->full ? &others : &usual, *window = m->full ? &usual : &others;
    if (others.n < 1) return sn_fail(err, SN_REFUSED, "%d heads of some blocks are not possible", others.n);
    h->full_heads = *full;
    h->n_heads = window->n, h->n_kv_heads = window->n_kv, h->head_dim = window->key_dim;
    h->value_dim = window->value_dim;
    return SN_OK;
}

static sn_status read_values(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    double scale = family->value_scale_default;
    if (family->value_dim_default) h->value_dim = family->value_dim_default;
    if (family->value_dim_default) SN_TRY(config_int(config, "v_head_dim", false, &h->value_dim, err));
    if (!(family->value_scale_default > 0)) return SN_OK;
    if (json_object_get(config, "attention_value_scale")) scale = 1; /* null */
    SN_TRY(config_number(config, "attention_value_scale", false, &scale, err));
    if (!(scale > 0 && scale <= 1e6))
        return sn_fail(err, SN_REFUSED, "'attention_value_scale' is %g; it must lie from 0 to 1e6", scale);
    h->value_scale = scale == 1 ? 0 : (float)scale;
    return SN_OK;
}

/* ---- latent attention ---- */

static sn_status read_latent(const json_t *config, const sn_family *family, const sn_rope_scaling *scaling,
                             sn_hparams *h, sn_err *err) {
    int rope_dim = 0, every = 1;
    bool bias = false, neighbours = true;
    if (!family->latent) return SN_OK;
    sn_status status = config_int(config, "kv_lora_rank", true, &h->latent, err);
    if (!status) status = config_int(config, "q_lora_rank", false, &h->q_rank, err);
    if (!status) status = config_int(config, "qk_nope_head_dim", true, &h->nope_dim, err);
    if (!status) status = config_int(config, "qk_rope_head_dim", true, &rope_dim, err);
    if (!status) status = config_int(config, "v_head_dim", true, &h->value_dim, err);
    /* transformers calls the rotated part head_dim when it saves a configuration, or partial_rotary_factor of it */
    if (!status && !family->recurrent && config_field(config, "head_dim") && h->rope_dim != rope_dim)
        return sn_fail(err, SN_REFUSED,
                       "'head_dim' says %d rotated dimensions and 'qk_rope_head_dim' %d: they must agree", h->rope_dim,
                       rope_dim);
    if (!status && scaling->kind != SN_ROPE_SCALING_NONE && scaling->kind != SN_ROPE_SCALING_YARN)
        return sn_fail(err, SN_REFUSED, "of kinds of rope scaling this family knows yarn alone");
    if (!status) status = config_bool(config, "attention_bias", &bias, err);
    if (!status && family->moe->scoring == SN_ROUTER_SIGMOID) /* V2 does not read it */
        status = config_bool(config, "rope_interleave", &neighbours, err);
    if (!status) status = config_int(config, "moe_layer_freq", false, &every, err);
    if (!status && (bias || every != 1))
        return sn_fail(err, SN_REFUSED, "'%s' is set, which is not supported for this family",
                       bias ? "attention_bias" : "moe_layer_freq");
    h->rope_style = neighbours ? SN_ROPE_INTERLEAVED : SN_ROPE_NEOX;
    if (!status) status = sn_config_finish_latent(h, rope_dim, scaling, err);
    return status || !family->indexed ? status : read_indexer(config, family, h, err);
}

/* ---- which blocks are recurrent, and their sizes ---- */

/* What config.json calls the kinds of blocks, and hybrid_override_pattern their letters. */
typedef enum block_kind { KIND_ATTENTION, KIND_RECURRENT, KIND_DENSE, KIND_EXPERTS, KIND_UNKNOWN } block_kind;

static block_kind kind_of(const sn_family *family, const char *word) {
    static const struct {
        const char *word;
        block_kind kind;
        bool one_half; /* only in families of such blocks */
    } known[] = {{"full_attention", KIND_ATTENTION, false},
                 {"attention", KIND_ATTENTION, false},
                 {"mlp", KIND_DENSE, true},
                 {"moe", KIND_EXPERTS, true}};
    const char *recurrent = family->recurrence == SN_SHORT_CONV ? "conv" : "linear_attention";
    if (!strcmp(word, recurrent) || (family->recurrence == SN_STATE_SPACE && !strcmp(word, "mamba")))
        return KIND_RECURRENT;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(word, known[i].word) && (family->one_half || !known[i].one_half)) return known[i].kind;
    return KIND_UNKNOWN;
}

static block_kind kind_of_letter(char letter) {
    return letter == 'M'   ? KIND_RECURRENT
           : letter == '*' ? KIND_ATTENTION
           : letter == '-' ? KIND_DENSE
           : letter == 'E' ? KIND_EXPERTS
                           : KIND_UNKNOWN;
}

static const json_t *kinds_list(const json_t *config) {
    static const char *const spellings[] = {"layer_types", "layers_block_type", NULL};
    return config_field(config, find_spelling(config, spellings));
}

/* Block `number` of the list, or of the pattern. */
static block_kind listed_kind(const json_t *config, const sn_family *family, size_t number) {
    const json_t *list = kinds_list(config);
    const char *word = json_string_value(json_array_get(list, number));
    if (list) return word ? kind_of(family, word) : KIND_UNKNOWN;
    return kind_of_letter(json_string_value(config_field(config, "hybrid_override_pattern"))[number]);
}

/* How many blocks the list, or the pattern, has; 0: there is neither. */
static size_t n_listed_kinds(const json_t *config, const sn_family *family) {
    const char *pattern = family->one_half ? json_string_value(config_field(config, "hybrid_override_pattern")) : NULL;
    return kinds_list(config) ? json_array_size(kinds_list(config)) : pattern ? strlen(pattern) : 0;
}

/* Whether a list of numbers of blocks, which count from `first` on, holds this one. */
static bool lists_block(const json_t *list, int first, int block) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == block + first) return true;
    return false;
}

/* The kind of a block where no list says it: every n-th has attention, or those of a list of their numbers. */
static sn_status unlisted_kinds(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const json_t *kda = config_field(config_field(config, "linear_attn_config"), "kda_layers");
    const char *field = family->recurrence == SN_KEYED_DELTA ? "layer_group_size" : "full_attention_interval";
    int every = family->recurrence == SN_STATE_SPACE ? INT32_MAX : 4;
    bool grouped = family->recurrence != SN_KEYED_DELTA || config_field(config, field);
    sn_status status = config_int(config, field, false, &every, err);
    if (!status && every < 1) return sn_fail(err, SN_REFUSED, "'%s' is %d", field, every);
    if (!status && !kda && !grouped)
        return sn_fail(err, SN_REFUSED,
                       "config.json does not say which blocks have attention: 'layer_types' is missing");
    for (int i = 0; i < h->n_blocks && !status; i++)
        h->recurrent[i] =
            kda ? lists_block(kda, 1, i)
            : family->recurrence == SN_SHORT_CONV
                ? config_field(config, "full_attn_idxs") && !lists_block(config_field(config, "full_attn_idxs"), 0, i)
                : (i + 1) % every != 0;
    return status;
}

static sn_status read_kinds(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const size_t n = n_listed_kinds(config, family);
    if (!n) return unlisted_kinds(config, family, h, err);
    if (n != (size_t)h->n_blocks)
        return sn_fail(err, SN_REFUSED, "'layer_types' must list the kinds of all %d blocks", h->n_blocks);
    for (int i = 0; i < h->n_blocks; i++) {
        const block_kind kind = listed_kind(config, family, (size_t)i);
        const char *word = json_string_value(json_array_get(kinds_list(config), (size_t)i));
        if (kind == KIND_UNKNOWN)
            return sn_fail(err, SN_REFUSED, "'layer_types' holds '%.64s'; full_attention and %s are known here",
                           word ? word : "no text", family->recurrence == SN_SHORT_CONV ? "conv" : "linear_attention");
        h->recurrent[i] = kind != KIND_ATTENTION;
        h->no_mixer[i] = kind == KIND_DENSE || kind == KIND_EXPERTS;
        h->no_ff[i] = family->one_half && !h->no_mixer[i];
        h->dense[i] = kind == KIND_DENSE;
    }
    return SN_OK;
}

/* A number that config.json may call by one of two names. */
typedef struct int_field {
    const char *field, *other; /* other: or NULL */
    int *value, usual;
} int_field;

static sn_status read_ints(const json_t *config, size_t n, const int_field *fields, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t i = 0; i < n && !status; i++) {
        *fields[i].value = fields[i].usual;
        if (fields[i].other) status = config_int(config, fields[i].other, false, fields[i].value, err);
        if (!status) status = config_int(config, fields[i].field, false, fields[i].value, err);
    }
    return status;
}
#define READ_INTS(config, fields, err) read_ints(config, sizeof(fields) / sizeof *(fields), fields, err)

/* Fields that must have a certain value, if they are there. */
static sn_status require_text(const json_t *config, const char *field, const char *value, sn_err *err) {
    const char *said = value;
    sn_status status = config_text(config, field, false, &said, err);
    if (status || !strcmp(said, value)) return status;
    return sn_fail(err, SN_REFUSED, "'%s' is '%.64s'; in this family %s is known", field, said, value);
}
static sn_status require_bool(const json_t *config, const char *field, bool value, sn_err *err) {
    bool said = value;
    sn_status status = config_bool(config, field, &said, err);
    if (status || said == value) return status;
    return sn_fail(err, SN_REFUSED, "'%s' is %s, which is not supported for this family", field,
                   said ? "true" : "false");
}

static sn_status read_gated_delta(const json_t *config, sn_hparams *h, sn_err *err) {
    const int_field fields[] = {{"linear_conv_kernel_dim", NULL, &h->conv_taps, 4},
                                {"linear_num_key_heads", NULL, &h->delta_key_heads, 16},
                                {"linear_num_value_heads", NULL, &h->delta_value_heads, 32},
                                {"linear_key_head_dim", NULL, &h->delta_key_dim, 128},
                                {"linear_value_head_dim", NULL, &h->delta_value_dim, 128}};
    sn_status status = require_bool(config, "attn_output_gate", true, err);
    return status ? status : READ_INTS(config, fields, err);
}

/* Kimi Linear has its numbers in linear_attn_config, or beside the others; Ling 3 has heads as attention has. */
static sn_status read_keyed_delta(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const json_t *own = config_field(config, "linear_attn_config");
    bool safe = !family->keeps_low_rank;
    double bound = -5;
    const int_field fields[] = {{"linear_conv_kernel_dim", "short_conv_kernel_size", &h->conv_taps, 4},
                                {"linear_num_heads", "num_heads", &h->delta_key_heads, h->n_heads},
                                {"linear_head_dim", "head_dim", &h->delta_key_dim, 128}};
    sn_status status = own ? READ_INTS(own, fields, err) : READ_INTS(config, fields, err);
    if (!status) status = require_bool(config, "mla_use_nope", true, err);
    if (!status) status = require_bool(config, "no_kda_lora", true, err);
    if (!status) status = require_text(config, "gated_attention_proj_granularity_type", "head_wise", err);
    if (!status && safe) status = config_bool(config, "kda_safe_gate", &safe, err);
    if (!status && safe) status = config_number(config, "kda_lower_bound", false, &bound, err);
    if (!status && !(bound < 0 && bound >= -80))
        return sn_fail(err, SN_REFUSED, "'kda_lower_bound' is %g; it must lie from -80 to 0", bound);
    h->delta_value_heads = h->delta_key_heads;
    h->delta_value_dim = h->delta_key_dim;
    h->delta_apart = true;
    h->delta_rank = family->keeps_low_rank ? h->delta_key_dim : 0;
    h->delta_floor = safe ? (float)bound : 0;
    return status;
}

/* Steps of time must not be limited: transformers limits them in some passes and not in others. */
static sn_status check_time_steps(const json_t *config, sn_err *err) {
    const json_t *limit = config_field(config, "time_step_limit"), *high = json_array_get(limit, 1);
    const char *text =
        json_string_value(high) ? json_string_value(high) : json_string_value(config_field(high, "__float__"));
    bool none = !limit || (json_array_size(limit) == 2 && json_number_value(json_array_get(limit, 0)) == 0 && text &&
                           (!strcmp(text, "Infinity") || !strcmp(text, "inf")));
    return none ? SN_OK : sn_fail(err, SN_REFUSED, "'time_step_limit' is set, which is not supported");
}

static sn_status read_state_space(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    int expand = 2;
    const bool automatic = json_is_string(config_field(config, "mamba_d_head"));
    const int_field fields[] = {{"mamba_d_conv", "conv_kernel", &h->conv_taps, 4},
                                {"mamba_n_groups", "n_groups", &h->delta_key_heads, family->one_half ? 8 : 1},
                                {"mamba_n_heads", "mamba_num_heads", &h->delta_value_heads, 128},
                                {"mamba_d_state", "ssm_state_size", &h->delta_key_dim, family->one_half ? 128 : 256},
                                {"mamba_expand", "expand", &expand, 2}};
    sn_status status = READ_INTS(config, fields, err);
    h->conv_bias = h->delta_log_rates = true;
    h->delta_value_dim = family->one_half ? 64 : 0;
    if (!status)
        status = config_bool(config, family->one_half ? "use_conv_bias" : "mamba_conv_bias", &h->conv_bias, err);
    if (!status) status = config_int(config, "mamba_head_dim", false, &h->delta_value_dim, err);
    if (!status && !automatic) status = config_int(config, "mamba_d_head", false, &h->delta_value_dim, err);
    if (!status) status = require_text(config, "mamba_hidden_act", "silu", err);
    if (!status) status = check_time_steps(config, err);
    if (status) return status;
    if (!h->delta_value_dim && h->delta_value_heads > 0 && expand > 0 && expand <= 64 && h->n_embd <= INT32_MAX / 64)
        h->delta_value_dim = expand * h->n_embd / h->delta_value_heads;
    if (!family->one_half && h->delta_key_heads != 1) /* the reference norms all groups as one, others each group */
        return sn_fail(err, SN_REFUSED, "'mamba_n_groups' is %d; in this family 1 is known", h->delta_key_heads);
    return SN_OK;
}

/* LFM2: the width of the feed-forward may be two thirds of what is said, rounded up. */
static sn_status read_adjusted_width(const json_t *config, sn_hparams *h, sn_err *err) {
    bool adjusts = true;
    double factor = 1;
    int multiple = 256;
    sn_status status = config_int(config, "block_ff_dim", false, &h->n_ff, err);
    if (!status) status = config_bool(config, "block_auto_adjust_ff_dim", &adjusts, err);
    if (!status) status = config_number(config, "block_ffn_dim_multiplier", false, &factor, err);
    if (!status) status = config_int(config, "block_multiple_of", false, &multiple, err);
    if (status || !adjusts) return status;
    if (!(factor > 0 && factor <= 64) || multiple < 1 || multiple > 1 << 20 || h->n_ff < 1 || h->n_ff > 1 << 20)
        return sn_fail(err, SN_REFUSED, "a feed-forward of %d times %g in multiples of %d is not possible", h->n_ff,
                       factor, multiple);
    h->n_ff = 2 * h->n_ff / 3; /* rounded down, as the reference does */
    h->n_ff = (int)(factor * h->n_ff);
    h->n_ff = (h->n_ff + multiple - 1) / multiple * multiple;
    return SN_OK;
}

static sn_status read_short_conv(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    h->delta_key_heads = h->delta_value_heads = 1;
    h->delta_value_dim = h->n_embd;
    h->conv_taps = 3;
    sn_status status = config_int(config, "conv_L_cache", false, &h->conv_taps, err);
    return status || family->moe ? status : read_adjusted_width(config, h, err);
}

static sn_status read_recurrent(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    sn_status status = SN_OK;
    if (!family->recurrent) return SN_OK;
    if (config_field(config, "sliding_window"))
        return sn_fail(err, SN_REFUSED, "'sliding_window' is set, which is not supported for this family");
    h->recurrence = family->recurrence;
    h->delta_log_rates = family->recurrence != SN_SHORT_CONV;
    if (family->recurrence == SN_GATED_DELTA) status = read_gated_delta(config, h, err);
    if (family->recurrence == SN_KEYED_DELTA) status = read_keyed_delta(config, family, h, err);
    if (family->recurrence == SN_STATE_SPACE) status = read_state_space(config, family, h, err);
    if (family->recurrence == SN_SHORT_CONV) status = read_short_conv(config, family, h, err);
    if (!status) status = read_kinds(config, family, h, err);
    const char *positions = "nope"; /* of Granite */
    if (!status) status = config_text(config, "position_embedding_type", false, &positions, err);
    for (int i = 0; i < h->n_blocks && !status; i++)
        h->no_rope[i] = family->unrotated && strcmp(positions, "rope") != 0;
    if (!status && family->recurrence != SN_GATED_DELTA && !sn_n_recurrent(h, 0, h->n_blocks))
        sn_config_no_recurrence(h);
    return status;
}

/* Bounds of feed-forwards, block by block; null and 0: there is none. */
static sn_status read_limits(const json_t *config, const char *name, int n_blocks, float *limits, sn_err *err) {
    const json_t *list = config_field(config, name);
    if (!list) return SN_OK;
    if (!json_is_array(list) || json_array_size(list) < (size_t)n_blocks)
        return sn_fail(err, SN_REFUSED, "'%s' must list all %d blocks", name, n_blocks);
    for (int i = 0; i < n_blocks; i++) {
        const json_t *limit = json_array_get(list, (size_t)i);
        const double value = json_number_value(limit);
        if (!(json_is_null(limit) || json_is_number(limit)) || !(value >= 0 && value <= 1e6))
            return sn_fail(err, SN_REFUSED, "'%s' must hold numbers from 0 to 1e6, or null", name);
        limits[i] = (float)value;
    }
    return SN_OK;
}

/* ---- the mixture of experts: its numbers, its router, and which blocks have a plain feed-forward instead ---- */

static sn_status read_counts(const json_t *config, const sn_moe_config *m, sn_hparams *h, sn_err *err) {
    static const char *const spellings[] = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"};
    static const char *const used[] = {"num_experts_per_tok", "moe_top_k", "top_k_experts", "moe_k", NULL};
    sn_status status = SN_OK;
    h->n_experts = m->n_experts;
    h->n_experts_used = m->n_experts_used;
    h->n_ff = m->n_ff;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings && !status; i++)
        status = config_int(config, spellings[i], false, &h->n_experts, err);
    if (!status) status = config_int(config, find_spelling(config, used), false, &h->n_experts_used, err);
    if (!status) status = config_int(config, "num_experts_per_token", false, &h->n_experts_used, err);
    if (!status) status = config_int(config, "moe_latent_size", false, &h->experts_width, err);
    if (!status) status = config_int(config, m->width, false, &h->n_ff, err);
    if (!status && (h->n_experts < 1 || h->n_experts > SN_MODEL_EXPERTS_MAX))
        return sn_fail(err, SN_REFUSED, "the model claims %d experts", h->n_experts);
    return status;
}

static sn_status read_router(const json_t *config, const sn_moe_config *m, sn_hparams *h, sn_err *err) {
    bool normalised = m->normalised == SN_ALWAYS || m->normalised_default;
    double scale = m->scale_default > 0 ? m->scale_default : 1;
    const char *scaling = m->scale_field ? m->scale_field : "routed_scaling_factor";
    sn_status status = SN_OK;
    const char *word = m->scoring == SN_ROUTER_SIGMOID ? "sigmoid" : "softmax", *scoring = word;
    status = config_text(config, "scoring_func", false, &scoring, err);
    if (!status && strcmp(scoring, word))
        return sn_fail(err, SN_REFUSED, "'scoring_func' is %.64s; in this family %s is known", scoring, word);
    if (!status) status = require_text(config, "moe_router_activation_func", word, err);
    if (!status) status = require_text(config, "score_function", word, err);
    if (!status && m->normalised == SN_IF_DECLARED) status = config_bool(config, "norm_topk_prob", &normalised, err);
    if (!status && m->normalised == SN_IF_DECLARED) status = config_bool(config, "moe_renormalize", &normalised, err);
    if (!status && m->scale_default > 0) status = config_number(config, scaling, false, &scale, err);
    if (!status && !(scale > 0 && scale <= 1e6))
        return sn_fail(err, SN_REFUSED, "'%s' is %g; it must lie from 0 to 1e6", scaling, scale);
    h->router_scoring = m->scoring == SN_ROUTER_SOFTMAX_ALL && normalised ? SN_ROUTER_SOFTMAX : m->scoring;
    h->router_normalised = m->scoring == SN_ROUTER_SIGMOID && normalised;
    h->router_correction = m->correction;
    if (!status && m->correction) status = config_bool(config, "use_expert_bias", &h->router_correction, err);
    h->router_offset = (float)m->offset;
    h->router_scale = (float)scale;
    h->experts_scale_input = m->scales_input;
    return status;
}

static sn_status read_shared(const json_t *config, const sn_moe_config *m, sn_hparams *h, sn_err *err) {
    enum { SHARED_MAX = 64, WIDTH_MAX = 1 << 20 };
    int n = m->n_shared;
    sn_status status = SN_OK;
    h->n_ff_shared = m->n_ff_shared;
    h->shared_gated = m->shared_gated;
    if (m->shared_width) return config_int(config, m->shared_width, false, &h->n_ff_shared, err);
    if (n) status = config_int(config, m->shared_count ? m->shared_count : "n_shared_experts", false, &n, err);
    if (!status && (n < 0 || n > SHARED_MAX || h->n_ff < 1 || h->n_ff > WIDTH_MAX))
        return sn_fail(err, SN_REFUSED, "%d shared experts of width %d are not possible", n, h->n_ff);
    h->n_ff_shared = n * h->n_ff;
    return status;
}

/* Marks the blocks that mlp_only_layers lists. */
static sn_status read_dense_list(const json_t *config, sn_hparams *h, sn_err *err) {
    const json_t *list = config_field(config, "mlp_only_layers");
    if (list && !json_is_array(list)) return sn_fail(err, SN_REFUSED, "'mlp_only_layers' must be a list");
    for (size_t i = 0; list && i < json_array_size(list); i++) {
        const json_t *block = json_array_get(list, i);
        json_int_t number = json_integer_value(block);
        if (!json_is_integer(block) || number < 0)
            return sn_fail(err, SN_REFUSED, "'mlp_only_layers' must hold the numbers of blocks");
        if (number < h->n_blocks) h->dense[number] = true;
    }
    return SN_OK;
}

/* Where moe_layers lists the blocks with experts, all others are dense. */
static sn_status read_sparse_list(const json_t *config, sn_hparams *h, sn_err *err) {
    const json_t *list = config_field(config, "moe_layers");
    if (list && !json_is_array(list)) return sn_fail(err, SN_REFUSED, "'moe_layers' must be a list");
    for (int i = 0; list && i < h->n_blocks; i++) h->dense[i] = true;
    for (size_t i = 0; list && i < json_array_size(list); i++) {
        json_int_t number = json_integer_value(json_array_get(list, i));
        if (!json_is_integer(json_array_get(list, i)) || number < 0 || number >= h->n_blocks)
            return sn_fail(err, SN_REFUSED, "'moe_layers' must hold numbers of blocks");
        h->dense[number] = false;
    }
    return SN_OK;
}

/* The same as a text, "3,4,5". */
static sn_status read_sparse_text(const json_t *config, sn_hparams *h, sn_err *err) {
    const char *text = NULL;
    SN_TRY(config_text(config, "moe_layers_enum", false, &text, err));
    for (int i = 0; text && i < h->n_blocks; i++) h->dense[i] = true;
    while (text && *text) {
        char *end;
        const long number = strtol(text, &end, 10);
        if (end == text || (*end && *end != ',') || number < 0)
            return sn_fail(err, SN_REFUSED, "'moe_layers_enum' must be numbers of blocks, with commas between");
        if (number < h->n_blocks) h->dense[number] = false; /* those beyond predict further tokens */
        text = *end ? end + 1 : end;
    }
    return SN_OK;
}

/* Where mlp_layer_types says of each block whether it has experts, nothing else does. */
static sn_status read_layer_kinds(const json_t *config, sn_hparams *h, sn_err *err) {
    const json_t *list = config_field(config, "mlp_layer_types");
    if (!list) return SN_OK;
    if (!lists_blocks(config, list, h->n_blocks))
        return sn_fail(err, SN_REFUSED, "'mlp_layer_types' must list the kinds of all %d blocks", h->n_blocks);
    for (int i = 0; i < h->n_blocks; i++) {
        const char *kind = json_string_value(json_array_get(list, (size_t)i));
        h->dense[i] = kind && !strcmp(kind, "dense");
        if (!h->dense[i] && (!kind || strcmp(kind, "sparse")))
            return sn_fail(err, SN_REFUSED, "'mlp_layer_types' holds '%.64s'; dense and sparse are known",
                           kind ? kind : "no text");
    }
    return SN_OK;
}

/* Which blocks have no experts: the first and last ones, those of a list, and all but every n-th. */
static sn_status read_dense(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const sn_moe_config *m = family->moe;
    int first = m->n_dense, last = -1, step = 1;
    bool any = false;
    sn_status status = config_int(config, "first_k_dense_replace", false, &first, err);
    if (!status) status = config_int(config, "num_dense_layers", false, &first, err);
    if (!status) status = config_int(config, "decoder_sparse_step", false, &step, err);
    if (!status) status = config_int(config, "interleave_moe_layer_step", false, &step, err);
    if (!status) status = config_int(config, "moe_layer_start_index", false, &first, err);
    if (!status) status = config_int(config, "moe_layer_end_index", false, &last, err);
    if (!status) status = config_int(config, "moe_layer_interval", false, &step, err);
    if (!status && (first < 0 || step < 1))
        return sn_fail(err, SN_REFUSED, "'first_k_dense_replace' is %d and 'decoder_sparse_step' %d", first, step);
    for (int i = 0; i < h->n_blocks && !status && !m->blocks_listed; i++)
        h->dense[i] = i < first || (i + 1) % step != 0 || (last != -1 && i > last);
    if (!status) status = read_dense_list(config, h, err);
    if (!status) status = read_sparse_list(config, h, err);
    if (!status && family_reads(family, "moe_layers_enum")) status = read_sparse_text(config, h, err);
    if (!status && m->dense_list) status = read_flags(config, m->dense_list, h->n_blocks, false, h->dense, err);
    if (!status) status = read_layer_kinds(config, h, err);
    for (int i = 0; i < h->n_blocks && !status; i++) any |= h->dense[i];
    if (!status && any && !m->dense_width)
        return sn_fail(err, SN_REFUSED,
                       "'decoder_sparse_step', 'mlp_only_layers' or 'first_k_dense_replace' mixes blocks with and "
                       "without experts, which is not supported for this family");
    return !status && any ? config_int(config, m->dense_width, true, &h->n_ff_dense, err) : status;
}

/* The groups of experts that the router chooses among. */
static sn_status read_groups(const json_t *config, const sn_moe_config *m, sn_hparams *h, sn_err *err) {
    const char *scoring = m->scoring == SN_ROUTER_SIGMOID ? "sigmoid" : "softmax", *said = scoring, *by = m->groups_by;
    int groups = m->n_groups ? m->n_groups : 1, used = m->n_groups_used;
    if (!m->groups_by) return SN_OK;
    sn_status status = config_text(config, "scoring_func", false, &said, err);
    if (!status) status = config_text(config, "topk_method", false, &by, err);
    if (status) return status;
    bool may_choose = m->scoring != SN_ROUTER_SIGMOID; /* DeepSeek-V3 has one method, and V2 two */
    if (strcmp(said, scoring) || (strcmp(by, m->groups_by) && (strcmp(by, "greedy") || !may_choose)))
        return sn_fail(err, SN_REFUSED, "'scoring_func' is '%.32s' and 'topk_method' '%.32s'; '%s' is known with '%s'",
                       said, by, scoring, m->groups_by);
    if (strcmp(by, m->groups_by)) groups = 1;
    if (!strcmp(by, m->groups_by)) status = config_int(config, "n_group", false, &groups, err);
    if (!status) status = config_int(config, "num_expert_group", false, &groups, err);
    if (!status && groups != 1) status = config_int(config, "topk_group", !m->n_groups, &used, err);
    int chosen = 1;
    if (!status && groups == 1 && !strcmp(by, m->groups_by))
        status = config_int(config, "topk_group", false, &chosen, err);
    if (!status && chosen != 1) return sn_fail(err, SN_REFUSED, "'topk_group' is %d of one group", chosen);
    return status ? status : sn_config_set_groups(h, groups, used, err);
}

sn_status sn_config_set_groups(sn_hparams *h, int groups, int used, sn_err *err) {
    if (groups == 1) return SN_OK;
    if (groups < 1 || groups > h->n_experts || h->n_experts % groups || used < 1 || used > groups ||
        h->n_experts_used > h->n_experts / groups * used)
        return sn_fail(err, SN_REFUSED,
                       "%d of %d groups of the model's %d experts, of which a token uses %d, are not possible", used,
                       groups, h->n_experts, h->n_experts_used);
    h->n_expert_groups = groups;
    h->n_expert_groups_used = used;
    return SN_OK;
}

static sn_status read_experts(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const sn_moe_config *m = family->moe;
    bool slides = false;
    if (!m) return SN_OK;
    h->dense_beside = m->beside;
    sn_status status = read_counts(config, m, h, err);
    if (!status) status = read_router(config, m, h, err);
    if (!status) status = read_shared(config, m, h, err);
    if (!status) status = read_groups(config, m, h, err);
    if (!status) status = read_dense(config, family, h, err);
    if (!status) status = config_bool(config, "use_sliding_window", &slides, err);
    if (!status && slides && family->window == SN_WINDOW_NONE)
        return sn_fail(err, SN_REFUSED, "'use_sliding_window' is set, which is not supported for this family");
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
    const size_t listed = family->one_half ? n_listed_kinds(config, family) : 0;
    sn_status status = config_int(config, find_spelling(config, blocks), !listed, &h->n_blocks, err);
    if (listed) h->n_blocks = listed <= SN_BLOCKS_MAX ? (int)listed : SN_BLOCKS_MAX + 1;
    if (!status) status = config_int(config, find_spelling(config, embd), true, &h->n_embd, err);
    if (!status) status = config_int(config, find_spelling(config, heads), true, &h->n_heads, err);
    if (!status && h->n_embd > 0 && h->n_embd <= INT32_MAX / 8) h->n_ff = family->ff_multiple * h->n_embd;
    if (!status) status = config_int(config, find_spelling(config, ff), !family->ff_multiple, &h->n_ff, err);
    if (!status) status = config_int(config, "vocab_size", true, &h->n_vocab, err);
    h->n_ctx = family->ctx_default;
    if (!status) status = config_int(config, find_spelling(config, ctx), !family->ctx_default, &h->n_ctx, err);
    if (!status) status = config_number(config, find_spelling(config, eps_names), false, &eps, err);
    if (status) return status;
    h->norm_eps = (float)eps;
    h->n_kv_heads = h->n_heads;
    h->head_dim = family->head_dim_default;
    status = config_int(config, find_spelling(config, kv_heads), false, &h->n_kv_heads, err);
    if (!status) status = config_int(config, "attention_head_dim", false, &h->head_dim, err);
    if (!status) status = config_int(config, "head_dim", false, &h->head_dim, err);
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
    sn_status status = config_bool(config, "new_decoder_architecture", &late, err);
    if (!status) status = config_bool(config, "parallel_attn", &parallel, err);
    if (!status) status = config_bool(config, "multi_query", &multi_query, err);
    if (!status) status = config_bool(config, "bias", bias, err);
    if (!status) status = config_int(config, "num_ln_in_parallel_attn", false, &norms, err);
    if (!status && late) status = config_int(config, "num_kv_heads", false, &h->n_kv_heads, err);
    if (status) return status;
    if (late && norms != 1 && norms != 2)
        return sn_fail(err, SN_REFUSED, "'num_ln_in_parallel_attn' is %d; 1 and 2 are known", norms);
    if (!late) h->n_kv_heads = multi_query ? 1 : h->n_heads;
    *family = sn_family_variant(*family, late && norms == 2 ? 0 : late || parallel ? 1 : 2);
    return SN_OK;
}

/* Variants of hybrids: without experts Granite's shared expert is the feed-forward. */
static sn_status read_hybrid(const json_t *config, const sn_family **family, sn_hparams *h, sn_err *err) {
    int experts = (*family)->one_half ? 0 : (*family)->moe->n_experts;
    for (size_t i = 0; (*family)->one_half && i < n_listed_kinds(config, *family); i++)
        experts += listed_kind(config, *family, i) == KIND_EXPERTS;
    sn_status status = (*family)->one_half ? SN_OK : config_int(config, "num_local_experts", false, &experts, err);
    if (status || experts) return status;
    *family = sn_family_variant(*family, 1);
    return (*family)->one_half ? SN_OK : config_int(config, "shared_intermediate_size", true, &h->n_ff, err);
}

/* Whether the model is a mixture: else it is the next variant of the family. */
static sn_status read_enabled(const json_t *config, const sn_family **family, sn_err *err) {
    bool enabled = false;
    if (!(*family)->moe || !(*family)->moe->enabled_by) return SN_OK;
    SN_TRY(config_bool(config, (*family)->moe->enabled_by, &enabled, err));
    if (!enabled) *family = sn_family_variant(*family, 1);
    return SN_OK;
}

static sn_status read_qk_norm(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    h->qk_norm = family->qk_norm_plain;
    sn_status status = config_bool(config, "use_qk_norm", &h->qk_norm, err);
    h->qk_norm_plain = h->qk_norm && family->qk_norm_plain;
    return status;
}

/* Where the model has an image encoder, too, the fields of the text model are in text_config; *config becomes that. */
static sn_status unwrap(const json_t **config, sn_hparams *h, sn_err *err) {
    const json_t *text = config_field(*config, "text_config");
    const char *type = NULL;
    const sn_family *family;
    if (!text || config_text(text, "model_type", true, &type, NULL) ||
        sn_family_find(SN_CONTAINER_SAFETENSORS, type, &family, NULL) || !family->wrapped)
        return SN_OK;
    sn_status status = read_quantised(*config, family, h, err);
    if (!status) status = config_bool(*config, "tie_word_embeddings", &h->tied_output, err);
    *config = text;
    return status;
}

static sn_status read_config(const json_t *config, sn_hparams *h, const sn_family **family, sn_err *err) {
    const char *type = "", *name = "";
    bool bias, qkv_bias = true;
    sn_rope_scaling scaling[SN_ROPES_MAX] = {0};
    if (!json_is_object(config)) return sn_fail(err, SN_REFUSED, "it is not a JSON object");
    sn_status status = unwrap(&config, h, err);
    if (!status) status = config_text(config, "model_type", true, &type, err);
    if (!status) status = sn_family_find(SN_CONTAINER_SAFETENSORS, type, family, err);
    if (status) return status;
    bias = (*family)->bias_default;
    status = check_neutral(config, *family, err);
    if (!status) status = read_enabled(config, family, err);
    if (!status) status = read_quantised(config, *family, h, err);
    if (!status) status = read_sizes(config, *family, h, err);
    if (!status && family_reads(*family, "new_decoder_architecture"))
        status = read_falcon(config, family, h, &bias, err);
    if (!status && (*family)->recurrence == SN_STATE_SPACE) status = read_hybrid(config, family, h, err);
    h->rope_style = (*family)->neighbours ? SN_ROPE_INTERLEAVED : SN_ROPE_NEOX;
    if (!status) status = read_window(config, *family, h, err);
    if (!status) status = read_values(config, *family, h, err);
    if (!status) status = read_other_heads(config, *family, h, err);
    if (!status) status = read_rope(config, *family, h, scaling, err);
    if (!status) status = read_latent(config, *family, scaling, h, err);
    if (!status) status = read_no_rope(config, *family, h, err);
    if (!status) status = read_recurrent(config, *family, h, err);
    if (!status && (*family)->chunks) status = read_chunks(config, scaling[0].kind == SN_ROPE_SCALING_YARN, h, err);
    if (!status) status = read_activation(config, *family, h, err);
    if (!status) status = read_scales(config, *family, h, err);
    if (!status) status = read_experts(config, *family, h, err);
    if (!status && (*family)->limits) status = read_limits(config, "swiglu_limits", h->n_blocks, h->ff_limit, err);
    if (!status && (*family)->limits)
        status = read_limits(config, "swiglu_limits_shared", h->n_blocks, h->dense_limit, err);
    if (!status) status = config_bool(config, "attention_bias", &bias, err);
    if (!status && family_reads(*family, "qkv_bias")) status = config_bool(config, "qkv_bias", &qkv_bias, err);
    if (!status && (*family)->qk_norm == SN_IF_DECLARED) status = read_qk_norm(config, *family, h, err);
    if (!status) status = config_bool(config, "tie_word_embeddings", &h->tied_output, err);
    if (!status) status = config_bool(config, "tie_embedding", &h->tied_output, err);
    if (!status) status = config_text(config, "_name_or_path", false, &name, err);
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
