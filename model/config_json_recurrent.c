/* Which blocks config.json says are recurrent, and their sizes. */
#include "model/config_json_private.h"

#include <string.h>

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
    return sn_config_field(config, sn_config_spelling(config, spellings));
}

/* Block `number` of the list, or of the pattern. */
static block_kind listed_kind(const json_t *config, const sn_family *family, size_t number) {
    const json_t *list = kinds_list(config);
    const char *word = json_string_value(json_array_get(list, number));
    if (list) return word ? kind_of(family, word) : KIND_UNKNOWN;
    return kind_of_letter(json_string_value(sn_config_field(config, "hybrid_override_pattern"))[number]);
}

/* How many blocks the list, or the pattern, has; 0: there is neither. */
size_t sn_config_n_listed_kinds(const json_t *config, const sn_family *family) {
    const char *pattern =
        family->one_half ? json_string_value(sn_config_field(config, "hybrid_override_pattern")) : NULL;
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
    const json_t *kda = sn_config_field(sn_config_field(config, "linear_attn_config"), "kda_layers");
    const char *field = family->recurrence == SN_KEYED_DELTA ? "layer_group_size" : "full_attention_interval";
    int every = family->recurrence == SN_STATE_SPACE ? INT32_MAX : 4;
    bool grouped = family->recurrence != SN_KEYED_DELTA || sn_config_field(config, field);
    sn_status status = sn_config_int(config, field, false, &every, err);
    if (!status && every < 1) return sn_fail(err, SN_REFUSED, "'%s' is %d", field, every);
    if (!status && !kda && !grouped)
        return sn_fail(err, SN_REFUSED,
                       "config.json does not say which blocks have attention: 'layer_types' is missing");
    for (int i = 0; i < h->n_blocks && !status; i++)
        h->recurrent[i] = kda ? lists_block(kda, 1, i)
                          : family->recurrence == SN_SHORT_CONV
                              ? sn_config_field(config, "full_attn_idxs") &&
                                    !lists_block(sn_config_field(config, "full_attn_idxs"), 0, i)
                              : (i + 1) % every != 0;
    return status;
}

static sn_status read_kinds(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const size_t n = sn_config_n_listed_kinds(config, family);
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
        if (fields[i].other) status = sn_config_int(config, fields[i].other, false, fields[i].value, err);
        if (!status) status = sn_config_int(config, fields[i].field, false, fields[i].value, err);
    }
    return status;
}
#define READ_INTS(config, fields, err) read_ints(config, sizeof(fields) / sizeof *(fields), fields, err)

static sn_status read_gated_delta(const json_t *config, sn_hparams *h, sn_err *err) {
    const int_field fields[] = {{"linear_conv_kernel_dim", NULL, &h->conv_taps, 4},
                                {"linear_num_key_heads", NULL, &h->delta_key_heads, 16},
                                {"linear_num_value_heads", NULL, &h->delta_value_heads, 32},
                                {"linear_key_head_dim", NULL, &h->delta_key_dim, 128},
                                {"linear_value_head_dim", NULL, &h->delta_value_dim, 128}};
    sn_status status = sn_config_require_bool(config, "attn_output_gate", true, err);
    return status ? status : READ_INTS(config, fields, err);
}

/* Kimi Linear has its numbers in linear_attn_config, or beside the others; Ling 3 has heads as attention has. */
static sn_status read_keyed_delta(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const json_t *own = sn_config_field(config, "linear_attn_config");
    bool safe = !family->keeps_low_rank;
    double bound = -5;
    const int_field fields[] = {{"linear_conv_kernel_dim", "short_conv_kernel_size", &h->conv_taps, 4},
                                {"linear_num_heads", "num_heads", &h->delta_key_heads, h->n_heads},
                                {"linear_head_dim", "head_dim", &h->delta_key_dim, 128}};
    sn_status status = own ? READ_INTS(own, fields, err) : READ_INTS(config, fields, err);
    if (!status) status = sn_config_require_bool(config, "mla_use_nope", true, err);
    if (!status) status = sn_config_require_bool(config, "no_kda_lora", true, err);
    if (!status) status = sn_config_require_text(config, "gated_attention_proj_granularity_type", "head_wise", err);
    if (!status && safe) status = sn_config_bool(config, "kda_safe_gate", &safe, err);
    if (!status && safe) status = sn_config_number(config, "kda_lower_bound", false, &bound, err);
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
    const json_t *limit = sn_config_field(config, "time_step_limit"), *high = json_array_get(limit, 1);
    const char *text =
        json_string_value(high) ? json_string_value(high) : json_string_value(sn_config_field(high, "__float__"));
    bool none = !limit || (json_array_size(limit) == 2 && json_number_value(json_array_get(limit, 0)) == 0 && text &&
                           (!strcmp(text, "Infinity") || !strcmp(text, "inf")));
    return none ? SN_OK : sn_fail(err, SN_REFUSED, "'time_step_limit' is set, which is not supported");
}

static sn_status read_state_space(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    int expand = 2;
    const bool automatic = json_is_string(sn_config_field(config, "mamba_d_head"));
    const int_field fields[] = {{"mamba_d_conv", "conv_kernel", &h->conv_taps, 4},
                                {"mamba_n_groups", "n_groups", &h->delta_key_heads, family->one_half ? 8 : 1},
                                {"mamba_n_heads", "mamba_num_heads", &h->delta_value_heads, 128},
                                {"mamba_d_state", "ssm_state_size", &h->delta_key_dim, family->one_half ? 128 : 256},
                                {"mamba_expand", "expand", &expand, 2}};
    sn_status status = READ_INTS(config, fields, err);
    h->conv_bias = h->delta_log_rates = true;
    h->delta_value_dim = family->one_half ? 64 : 0;
    if (!status)
        status = sn_config_bool(config, family->one_half ? "use_conv_bias" : "mamba_conv_bias", &h->conv_bias, err);
    if (!status) status = sn_config_int(config, "mamba_head_dim", false, &h->delta_value_dim, err);
    if (!status && !automatic) status = sn_config_int(config, "mamba_d_head", false, &h->delta_value_dim, err);
    if (!status) status = sn_config_require_text(config, "mamba_hidden_act", "silu", err);
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
    sn_status status = sn_config_int(config, "block_ff_dim", false, &h->n_ff, err);
    if (!status) status = sn_config_bool(config, "block_auto_adjust_ff_dim", &adjusts, err);
    if (!status) status = sn_config_number(config, "block_ffn_dim_multiplier", false, &factor, err);
    if (!status) status = sn_config_int(config, "block_multiple_of", false, &multiple, err);
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
    sn_status status = sn_config_int(config, "conv_L_cache", false, &h->conv_taps, err);
    return status || family->moe ? status : read_adjusted_width(config, h, err);
}

sn_status sn_config_read_recurrent(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    sn_status status = SN_OK;
    if (!family->recurrent) return SN_OK;
    if (sn_config_field(config, "sliding_window"))
        return sn_fail(err, SN_REFUSED, "'sliding_window' is set, which is not supported for this family");
    h->recurrence = family->recurrence;
    h->delta_log_rates = family->recurrence != SN_SHORT_CONV;
    if (family->recurrence == SN_GATED_DELTA) status = read_gated_delta(config, h, err);
    if (family->recurrence == SN_KEYED_DELTA) status = read_keyed_delta(config, family, h, err);
    if (family->recurrence == SN_STATE_SPACE) status = read_state_space(config, family, h, err);
    if (family->recurrence == SN_SHORT_CONV) status = read_short_conv(config, family, h, err);
    if (!status) status = read_kinds(config, family, h, err);
    const char *positions = "nope"; /* of Granite */
    if (!status) status = sn_config_text(config, "position_embedding_type", false, &positions, err);
    for (int i = 0; i < h->n_blocks && !status; i++)
        h->no_rope[i] = family->unrotated && strcmp(positions, "rope") != 0;
    if (!status && family->recurrence != SN_GATED_DELTA && !sn_n_recurrent(h, 0, h->n_blocks))
        sn_config_no_recurrence(h);
    return status;
}

/* Variants of hybrids: without experts Granite's shared expert is the feed-forward. */
sn_status sn_config_read_hybrid(const json_t *config, const sn_family **family, sn_hparams *h, sn_err *err) {
    int experts = (*family)->one_half ? 0 : (*family)->moe->n_experts;
    for (size_t i = 0; (*family)->one_half && i < sn_config_n_listed_kinds(config, *family); i++)
        experts += listed_kind(config, *family, i) == KIND_EXPERTS;
    sn_status status = (*family)->one_half ? SN_OK : sn_config_int(config, "num_local_experts", false, &experts, err);
    if (status || experts) return status;
    *family = sn_family_variant(*family, 1);
    return (*family)->one_half ? SN_OK : sn_config_int(config, "shared_intermediate_size", true, &h->n_ff, err);
}
