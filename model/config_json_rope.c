/* The ropes of config.json: their kinds, scalings and shares of a head, in the spellings of transformers 4 and 5. */
#include "model/config_json_private.h"

#include <string.h>

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
    sn_status status = sn_config_number(rope, "original_max_position_embeddings", true, &s->original_ctx, err);
    if (!status) status = sn_config_number(rope, "beta_fast", false, &s->beta_fast, err);
    if (!status) status = sn_config_number(rope, "beta_slow", false, &s->beta_slow, err);
    if (!status) status = sn_config_number(rope, "attention_factor", false, &s->attention_factor, err);
    if (!status) status = sn_config_number(rope, "mscale", false, &s->mscale, err);
    if (!status) status = sn_config_number(rope, "mscale_all_dim", false, &s->mscale_all_dim, err);
    if (!status) status = sn_config_number(rope, "llama_4_scaling_beta", false, &s->q_growth, err);
    return status ? status : sn_config_bool(rope, "truncate", &s->truncate, err);
}

static sn_status read_factors(const json_t *rope, const char *name, int *n, float out[SN_ROPE_FREQS_MAX], sn_err *err) {
    const json_t *list = sn_config_field(rope, name);
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
    sn_status status = sn_config_text(rope, "type", false, &type, err);
    if (!status) status = sn_config_text(rope, "rope_type", false, &type, err);
    if (status || (strcmp(type, "longrope") && strcmp(type, "su") && strcmp(type, "yarn"))) return status;
    status = read_factors(rope, "short_factor", &s->n_factors, s->factors[0], err);
    if (!status) status = read_factors(rope, "long_factor", &n_long, s->factors[1], err);
    if (!status && n_long != s->n_factors)
        return sn_fail(err, SN_REFUSED, "'short_factor' has %d numbers and 'long_factor' %d", s->n_factors, n_long);
    if (!status) status = sn_config_int(config, "original_max_position_embeddings", false, &original, err);
    said = original;
    if (!status) status = sn_config_int(rope, "original_max_position_embeddings", false, &said, err);
    if (!status && (said != original || original < 2))
        return sn_fail(err, SN_REFUSED, "'original_max_position_embeddings' is %d, and %d in '%s'", original, said,
                       "rope_parameters");
    s->original_ctx = original;
    s->factor = (double)h->n_ctx / original;
    if (!status) status = sn_config_number(rope, "factor", false, &s->factor, err);
    if (!status) status = sn_config_number(rope, "attention_factor", false, &s->attention_factor, err);
    if (s->factor < 1) s->factor = 1; /* cosines and sines are not multiplied then */
    s->kind = SN_ROPE_SCALING_LONG;
    return status;
}

/* *rotated: the share of a head that is rotated; of the proportional kind all of it is, by an angle of 0 beyond. */
static sn_status read_rope_kind(const json_t *rope, bool proportional, double *rotated, sn_rope_scaling *s,
                                sn_err *err) {
    const char *type = "default";
    sn_status status = sn_config_text(rope, "type", false, &type, err); /* old spelling */
    if (!status) status = sn_config_text(rope, "rope_type", false, &type, err);
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
        status = sn_config_number(rope, "factor", false, &factor, err);
        if (!status && (factor != 1 || !(s->rotated > 0 && s->rotated <= 1)))
            return sn_fail(err, SN_REFUSED, "a proportional rope of %g with 'factor' %g is not supported", s->rotated,
                           factor);
        return status;
    }
    status = sn_config_number(rope, "factor", true, &s->factor, err);
    if (status || s->kind == SN_ROPE_SCALING_LINEAR) return status;
    if (s->kind == SN_ROPE_SCALING_YARN) return read_yarn(rope, s, err);
    status = sn_config_number(rope, "low_freq_factor", true, &s->low_freq_factor, err);
    if (!status) status = sn_config_number(rope, "high_freq_factor", true, &s->high_freq_factor, err);
    if (!status) status = sn_config_number(rope, "original_max_position_embeddings", true, &s->original_ctx, err);
    return status;
}

/* Reads one rope from an object, called `where` in errors. *rotated: the share of a head's dimensions that it rotates.
 */
static sn_status read_rope_object(const json_t *rope, const char *where, bool proportional, double *rotated,
                                  sn_rope_scaling *s, sn_err *err) {
    if (!rope) return SN_OK;
    if (!json_is_object(rope)) return sn_fail(err, SN_REFUSED, "'%s' must be an object", where);
    sn_status status = check_rope_fields(rope, err);
    if (!status) status = sn_config_number(rope, "rope_theta", false, &s->theta, err);
    if (!status) status = sn_config_number(rope, "partial_rotary_factor", false, rotated, err);
    if (!status) status = read_rope_kind(rope, proportional, rotated, s, err);
    if (status) sn_err_context(err, "'%s'", where);
    return status;
}

/* Two ropes: s[0] of blocks with a window, s[1] of blocks with full attention. In transformers 5 rope_parameters has an
 * object for each; before, rope_scaling was about the second. */
static sn_status read_two_ropes(const json_t *config, const sn_family *family, const json_t *both,
                                double rotated[SN_ROPES_MAX], sn_rope_scaling s[SN_ROPES_MAX], sn_err *err) {
    const bool p = family->proportional;
    sn_status status = sn_config_number(config, "rope_local_base_freq", false, &s[0].theta, err);
    if (!status) status = sn_config_number(config, "swa_rope_theta", false, &s[0].theta, err);
    if (status) return status;
    const json_t *scaling = sn_config_field(config, "rope_scaling");
    if (!both && sn_config_field(scaling, "type") && !sn_config_field(scaling, "rope_type"))
        return sn_fail(err, SN_REFUSED, "'rope_scaling' says 'type', which this family ignores: call it 'rope_type'");
    if (!both) return read_rope_object(scaling, "rope_scaling", p, &rotated[1], &s[1], err);
    const json_t *local = sn_config_field(both, "sliding_attention"), *full = sn_config_field(both, "full_attention");
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
    const json_t *list = sn_config_field(config, name);
    bool seen[2] = {false, false};
    if (!json_is_array(list)) return sn_config_number(config, name, false, full, err);
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
sn_status sn_config_read_rope(const json_t *config, const sn_family *family, sn_hparams *h,
                              sn_rope_scaling s[SN_ROPES_MAX], sn_err *err) {
    const json_t *rope = sn_config_field(config, "rope_parameters"), *scaling = sn_config_field(config, "rope_scaling");
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
                                      : sn_config_number(config, "rope_theta", false, &usual->theta, err);
    /* what says it of each kind of blocks says it alone */
    const bool by_kind = h->n_ropes > 1 && rope && family->rotates_part;
    if (!status && !by_kind) status = sn_config_number(config, "partial_rotary_factor", false, &rotated[0], err);
    rotated[1] = rotated[0];
    if (!status && h->n_ropes > 1)
        status = config_by_kind(config, "partial_rotary_factors", h, &rotated[0], &rotated[1], err);
    if (!status && sn_family_reads(family, "rotary_dim"))
        status = sn_config_int(config, "rotary_dim", false, &rotary_dim, err);
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
