/* What config.json says of attention, block by block: windows, blocks without rope, heads, indexers, latents. */
#include "model/config_json_private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- windows ---- */

/* layer_types lists the blocks one by one. *sliding: whether any block has the window. */
static sn_status read_layer_types(const json_t *config, int n_blocks, bool *full_attention, bool *sliding,
                                  sn_err *err) {
    const json_t *list = sn_config_field(config, "layer_types");
    if (!list) return SN_OK;
    if (!sn_config_lists_blocks(config, list, n_blocks))
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

/* The reference takes layer_types although use_sliding_window is false, with a window of nothing. */
static sn_status check_no_window(const json_t *config, sn_err *err) {
    const json_t *list = sn_config_field(config, "layer_types");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_string_value(json_array_get(list, i)) &&
            !strcmp(json_string_value(json_array_get(list, i)), "sliding_attention"))
            return sn_fail(err, SN_REFUSED, "'layer_types' holds sliding_attention and 'use_sliding_window' is false");
    return SN_OK;
}

/* Every n-th block has full attention, unless layer_types says otherwise. */
static sn_status read_pattern(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    int pattern = family->window_pattern;
    if (sn_config_field(config, "layer_types")) return SN_OK; /* which says it block by block */
    sn_status status = sn_config_int(config, "_sliding_window_pattern", false, &pattern, err);
    if (!status) status = sn_config_int(config, "sliding_window_pattern", false, &pattern, err);
    if (!status && pattern < 1) return sn_fail(err, SN_REFUSED, "'sliding_window_pattern' is %d", pattern);
    for (int i = 0; i < h->n_blocks && !status; i++) h->full_attention[i] = (i + 1) % pattern == 0;
    return status;
}

/* Blocks without rope: those with a 0 in the list, or every n-th. */
sn_status sn_config_read_no_rope(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    const json_t *list = sn_config_field(config, "no_rope_layers");
    int interval = family->no_rope_interval;
    if (!interval) return SN_OK;
    sn_status status = sn_config_int(config, "no_rope_layer_interval", false, &interval, err);
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
sn_status sn_config_read_chunks(const json_t *config, bool yarn, sn_hparams *h, sn_err *err) {
    const json_t *list = sn_config_field(config, "layer_types");
    bool grows = true;
    double growth = 0.1, step = 8192;
    int chunk = 8192;
    if (yarn) return sn_fail(err, SN_REFUSED, "rope scaling of type yarn is not supported for this family");
    sn_status status = sn_config_int(config, "attention_chunk_size", false, &chunk, err);
    if (!status) status = sn_config_bool(config, "attn_temperature_tuning", &grows, err);
    if (!status) status = sn_config_number(config, "attn_scale", false, &growth, err);
    if (!status) status = sn_config_number(config, "floor_scale", false, &step, err);
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

/* MiMo: 1 is a block with a window, whose size may be said without the token itself. */
static sn_status read_hybrid_pattern(const json_t *config, sn_hparams *h, int *window, sn_err *err) {
    int before = *window - 1;
    if (!sn_config_field(config, "hybrid_layer_pattern") && !sn_config_field(config, "layer_types"))
        return sn_fail(err, SN_REFUSED, "neither 'layer_types' nor 'hybrid_layer_pattern' is there");
    bool sinks = true;
    SN_TRY(sn_config_bool(config, "add_swa_attention_sink_bias", &sinks, err));
    if (!sinks) return sn_fail(err, SN_REFUSED, "'add_swa_attention_sink_bias' is false, which is not supported");
    SN_TRY(sn_config_int(config, "sliding_window_size", false, &before, err));
    *window = before < INT32_MAX ? before + 1 : before;
    return sn_config_flags(config, "hybrid_layer_pattern", h->n_blocks, false, h->full_attention, err);
}

sn_status sn_config_read_window(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    if (family->window == SN_WINDOW_NONE) return SN_OK;
    bool sliding = true;
    int window = json_object_get(config, "sliding_window") ? 0 : family->window_default, first_sliding = 0;
    sn_status status = sn_config_int(config, "sliding_window", false, &window, err);
    if (status) return status;
    if (family->window == SN_WINDOW_SWITCHED) {
        sliding = false;
        status = sn_config_bool(config, "use_sliding_window", &sliding, err);
        if (!status) status = sn_config_int(config, "max_window_layers", sliding, &first_sliding, err);
        if (status) return status;
        if (sliding && !sn_config_field(config, "layer_types")) {
            sliding = first_sliding < h->n_blocks;
            for (int i = 0; i < first_sliding && sliding; i++) h->full_attention[i] = true;
        }
        if (!sliding) return check_no_window(config, err);
    }
    if (family->window_pattern) status = read_pattern(config, family, h, err);
    if (!status && sn_family_reads(family, "hybrid_layer_pattern"))
        status = read_hybrid_pattern(config, h, &window, err);
    if (!status) status = read_layer_types(config, h->n_blocks, h->full_attention, &sliding, err);
    if (!status && sliding && window == 0 && sn_config_field(config, "sliding_window"))
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
    const char *name = sn_config_field(config, "indexer_types") ? "indexer_types" : "index_topk_pattern";
    const json_t *kinds = sn_config_field(config, name);
    size_t n = json_is_string(kinds) ? json_string_length(kinds) : json_array_size(kinds);
    int every = 1, offset = 2;
    sn_status status = sn_config_int(config, "index_topk_freq", false, &every, err);
    if (!status) status = sn_config_int(config, "index_skip_topk_offset", false, &offset, err);
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
    sn_status status = sn_config_int(config, "index_topk", true, &h->index_topk, err);
    if (!status) status = sn_config_int(config, "index_n_heads", true, &h->index_heads, err);
    if (!status) status = sn_config_int(config, "index_head_dim", true, &h->index_dim, err);
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
        if (names[i]) status = sn_config_int(object, names[i], false, numbers[i], err);
    if (!family->value_dim_default) h->value_dim = h->key_dim;
    return status;
}

/* In transformers 5 per_layer_config says the heads of single blocks: they must be those of one kind, all alike. */
static sn_status read_per_layer(const json_t *config, const sn_family *family, const sn_hparams *h, sn_heads *others,
                                sn_err *err) {
    static const char *const names[] = {"num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim"};
    const json_t *layers = sn_config_field(config, "per_layer_config");
    bool any = false;
    if (layers && !json_is_object(layers)) return sn_fail(err, SN_REFUSED, "'per_layer_config' must be an object");
    for (int b = 0; b < h->n_blocks; b++) {
        char number[16];
        snprintf(number, sizeof number, "%d", b);
        const json_t *own = sn_config_field(layers, number);
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
sn_status sn_config_read_other_heads(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    static const char *const usual_names[] = {"num_attention_heads", "num_attention_groups", "head_dim", NULL};
    const sn_heads_config *m = family->heads;
    if (!m) return SN_OK;
    const sn_heads usual = sn_usual_heads(h);
    sn_heads others = usual;
    bool counts = true;
    if (m->n_kv_times && usual.n_kv <= SN_HEADS_MAX) others.n_kv *= m->n_kv_times;
    if (m->n_kv_if) counts = false;
    if (m->n_kv_if) SN_TRY(sn_config_bool(config, m->n_kv_if, &counts, err));
    h->full_keys_are_values = m->n_kv_if && counts;
    if (m->full && !h->full_attention[h->n_blocks - 1])
        return sn_fail(err, SN_REFUSED, "the last block has a window, where this family has full attention");
    if (m->key_dim_default && !sn_config_field(config, "per_layer_config"))
        others.key_dim = others.value_dim = m->key_dim_default;
    const char *const names[] = {m->n, counts ? m->n_kv : NULL, m->key_dim, m->value_dim};
    SN_TRY(read_heads_fields(config, family, names, &others, err));
    const json_t *object = m->object ? sn_config_field(config, m->object) : NULL;
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

sn_status sn_config_read_values(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) {
    double scale = family->value_scale_default;
    if (family->value_dim_default) h->value_dim = family->value_dim_default;
    if (family->value_dim_default) SN_TRY(sn_config_int(config, "v_head_dim", false, &h->value_dim, err));
    if (!(family->value_scale_default > 0)) return SN_OK;
    if (json_object_get(config, "attention_value_scale")) scale = 1; /* null */
    SN_TRY(sn_config_number(config, "attention_value_scale", false, &scale, err));
    if (!(scale > 0 && scale <= 1e6))
        return sn_fail(err, SN_REFUSED, "'attention_value_scale' is %g; it must lie from 0 to 1e6", scale);
    h->value_scale = scale == 1 ? 0 : (float)scale;
    return SN_OK;
}

/* ---- latent attention ---- */

sn_status sn_config_read_latent(const json_t *config, const sn_family *family, const sn_rope_scaling *scaling,
                                sn_hparams *h, sn_err *err) {
    int rope_dim = 0, every = 1;
    bool bias = false, neighbours = true;
    if (!family->latent) return SN_OK;
    sn_status status = sn_config_int(config, "kv_lora_rank", true, &h->latent, err);
    if (!status) status = sn_config_int(config, "q_lora_rank", false, &h->q_rank, err);
    if (!status) status = sn_config_int(config, "qk_nope_head_dim", true, &h->nope_dim, err);
    if (!status) status = sn_config_int(config, "qk_rope_head_dim", true, &rope_dim, err);
    if (!status) status = sn_config_int(config, "v_head_dim", true, &h->value_dim, err);
    /* transformers calls the rotated part head_dim when it saves a configuration, or partial_rotary_factor of it */
    if (!status && !family->recurrent && sn_config_field(config, "head_dim") && h->rope_dim != rope_dim)
        return sn_fail(err, SN_REFUSED,
                       "'head_dim' says %d rotated dimensions and 'qk_rope_head_dim' %d: they must agree", h->rope_dim,
                       rope_dim);
    if (!status && scaling->kind != SN_ROPE_SCALING_NONE && scaling->kind != SN_ROPE_SCALING_YARN)
        return sn_fail(err, SN_REFUSED, "of kinds of rope scaling this family knows yarn alone");
    if (!status) status = sn_config_bool(config, "attention_bias", &bias, err);
    if (!status && family->moe->scoring == SN_ROUTER_SIGMOID) /* V2 does not read it */
        status = sn_config_bool(config, "rope_interleave", &neighbours, err);
    if (!status) status = sn_config_int(config, "moe_layer_freq", false, &every, err);
    if (!status && (bias || every != 1))
        return sn_fail(err, SN_REFUSED, "'%s' is set, which is not supported for this family",
                       bias ? "attention_bias" : "moe_layer_freq");
    h->rope_style = neighbours ? SN_ROPE_INTERLEAVED : SN_ROPE_NEOX;
    if (!status) status = sn_config_finish_latent(h, rope_dim, scaling, err);
    return status || !family->indexed ? status : read_indexer(config, family, h, err);
}
