/* The mixture of experts of config.json: its numbers, its router, and which blocks have a plain feed-forward instead.
 */
#include "model/config_json_private.h"

#include <stdlib.h>
#include <string.h>

/* Bounds of feed-forwards, block by block; null and 0: there is none. */
sn_status sn_config_read_limits(const json_t *config, const char *name, int n_blocks, float *limits, sn_err *err) {
    const json_t *list = sn_config_field(config, name);
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

static sn_status read_counts(const json_t *config, const sn_moe_config *m, sn_hparams *h, sn_err *err) {
    static const char *const spellings[] = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"};
    static const char *const used[] = {"num_experts_per_tok", "moe_top_k", "top_k_experts", "moe_k", NULL};
    sn_status status = SN_OK;
    h->n_experts = m->n_experts;
    h->n_experts_used = m->n_experts_used;
    h->n_ff = m->n_ff;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings && !status; i++)
        status = sn_config_int(config, spellings[i], false, &h->n_experts, err);
    if (!status) status = sn_config_int(config, sn_config_spelling(config, used), false, &h->n_experts_used, err);
    if (!status) status = sn_config_int(config, "num_experts_per_token", false, &h->n_experts_used, err);
    if (!status) status = sn_config_int(config, "moe_latent_size", false, &h->experts_width, err);
    if (!status) status = sn_config_int(config, m->width, false, &h->n_ff, err);
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
    status = sn_config_text(config, "scoring_func", false, &scoring, err);
    if (!status && strcmp(scoring, word))
        return sn_fail(err, SN_REFUSED, "'scoring_func' is %.64s; in this family %s is known", scoring, word);
    if (!status) status = sn_config_require_text(config, "moe_router_activation_func", word, err);
    if (!status) status = sn_config_require_text(config, "score_function", word, err);
    if (!status && m->normalised == SN_IF_DECLARED) status = sn_config_bool(config, "norm_topk_prob", &normalised, err);
    if (!status && m->normalised == SN_IF_DECLARED)
        status = sn_config_bool(config, "moe_renormalize", &normalised, err);
    if (!status && m->scale_default > 0) status = sn_config_number(config, scaling, false, &scale, err);
    if (!status && !(scale > 0 && scale <= 1e6))
        return sn_fail(err, SN_REFUSED, "'%s' is %g; it must lie from 0 to 1e6", scaling, scale);
    h->router_scoring = m->scoring == SN_ROUTER_SOFTMAX_ALL && normalised ? SN_ROUTER_SOFTMAX : m->scoring;
    h->router_normalised = m->scoring == SN_ROUTER_SIGMOID && normalised;
    h->router_correction = m->correction;
    if (!status && m->correction) status = sn_config_bool(config, "use_expert_bias", &h->router_correction, err);
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
    if (m->shared_width) return sn_config_int(config, m->shared_width, false, &h->n_ff_shared, err);
    if (n) status = sn_config_int(config, m->shared_count ? m->shared_count : "n_shared_experts", false, &n, err);
    if (!status && (n < 0 || n > SHARED_MAX || h->n_ff < 1 || h->n_ff > WIDTH_MAX))
        return sn_fail(err, SN_REFUSED, "%d shared experts of width %d are not possible", n, h->n_ff);
    h->n_ff_shared = n * h->n_ff;
    return status;
}

/* Marks the blocks that mlp_only_layers lists. */
static sn_status read_dense_list(const json_t *config, sn_hparams *h, sn_err *err) {
    const json_t *list = sn_config_field(config, "mlp_only_layers");
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
    const json_t *list = sn_config_field(config, "moe_layers");
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
    SN_TRY(sn_config_text(config, "moe_layers_enum", false, &text, err));
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
    const json_t *list = sn_config_field(config, "mlp_layer_types");
    if (!list) return SN_OK;
    if (!sn_config_lists_blocks(config, list, h->n_blocks))
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
    sn_status status = sn_config_int(config, "first_k_dense_replace", false, &first, err);
    if (!status) status = sn_config_int(config, "num_dense_layers", false, &first, err);
    if (!status) status = sn_config_int(config, "decoder_sparse_step", false, &step, err);
    if (!status) status = sn_config_int(config, "interleave_moe_layer_step", false, &step, err);
    if (!status) status = sn_config_int(config, "moe_layer_start_index", false, &first, err);
    if (!status) status = sn_config_int(config, "moe_layer_end_index", false, &last, err);
    if (!status) status = sn_config_int(config, "moe_layer_interval", false, &step, err);
    if (!status && (first < 0 || step < 1))
        return sn_fail(err, SN_REFUSED, "'first_k_dense_replace' is %d and 'decoder_sparse_step' %d", first, step);
    for (int i = 0; i < h->n_blocks && !status && !m->blocks_listed; i++)
        h->dense[i] = i < first || (i + 1) % step != 0 || (last != -1 && i > last);
    if (!status) status = read_dense_list(config, h, err);
    if (!status) status = read_sparse_list(config, h, err);
    if (!status && sn_family_reads(family, "moe_layers_enum")) status = read_sparse_text(config, h, err);
    if (!status && m->dense_list) status = sn_config_flags(config, m->dense_list, h->n_blocks, false, h->dense, err);
    if (!status) status = read_layer_kinds(config, h, err);
    for (int i = 0; i < h->n_blocks && !status; i++) any |= h->dense[i];
    if (!status && any && !m->dense_width)
        return sn_fail(err, SN_REFUSED,
                       "'decoder_sparse_step', 'mlp_only_layers' or 'first_k_dense_replace' mixes blocks with and "
                       "without experts, which is not supported for this family");
    return !status && any ? sn_config_int(config, m->dense_width, true, &h->n_ff_dense, err) : status;
}

/* The groups of experts that the router chooses among. */
static sn_status read_groups(const json_t *config, const sn_moe_config *m, sn_hparams *h, sn_err *err) {
    const char *scoring = m->scoring == SN_ROUTER_SIGMOID ? "sigmoid" : "softmax", *said = scoring, *by = m->groups_by;
    int groups = m->n_groups ? m->n_groups : 1, used = m->n_groups_used;
    if (!m->groups_by) return SN_OK;
    sn_status status = sn_config_text(config, "scoring_func", false, &said, err);
    if (!status) status = sn_config_text(config, "topk_method", false, &by, err);
    if (status) return status;
    bool may_choose = m->scoring != SN_ROUTER_SIGMOID; /* DeepSeek-V3 has one method, and V2 two */
    if (strcmp(said, scoring) || (strcmp(by, m->groups_by) && (strcmp(by, "greedy") || !may_choose)))
        return sn_fail(err, SN_REFUSED, "'scoring_func' is '%.32s' and 'topk_method' '%.32s'; '%s' is known with '%s'",
                       said, by, scoring, m->groups_by);
    if (strcmp(by, m->groups_by)) groups = 1;
    if (!strcmp(by, m->groups_by)) status = sn_config_int(config, "n_group", false, &groups, err);
    if (!status) status = sn_config_int(config, "num_expert_group", false, &groups, err);
    if (!status && groups != 1) status = sn_config_int(config, "topk_group", !m->n_groups, &used, err);
    int chosen = 1;
    if (!status && groups == 1 && !strcmp(by, m->groups_by))
        status = sn_config_int(config, "topk_group", false, &chosen, err);
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

sn_status sn_config_read_experts(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const sn_moe_config *m = family->moe;
    bool slides = false;
    if (!m) return SN_OK;
    h->dense_beside = m->beside;
    sn_status status = read_counts(config, m, h, err);
    if (!status) status = read_router(config, m, h, err);
    if (!status) status = read_shared(config, m, h, err);
    if (!status) status = read_groups(config, m, h, err);
    if (!status) status = read_dense(config, family, h, err);
    if (!status) status = sn_config_bool(config, "use_sliding_window", &slides, err);
    if (!status && slides && family->window == SN_WINDOW_NONE)
        return sn_fail(err, SN_REFUSED, "'use_sliding_window' is set, which is not supported for this family");
    return status;
}
