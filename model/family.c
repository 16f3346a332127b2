/* Looks things up in the list of families: families.c. */
#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *family_name_in(const sn_family *family, sn_container container) {
    return container == SN_CONTAINER_GGUF ? family->gguf_architecture : family->name;
}

/* Adds a name to a list of names. */
static void list_name(char *list, size_t size, const char *name) {
    size_t at = strlen(list);
    snprintf(list + at, size - at, "%s%s", at ? ", " : "", name);
}

sn_status sn_family_find(sn_container container, const char *name, const sn_family **out, sn_err *err) {
    char known[512] = "";
    const char *last = "";
    for (const sn_family *at = sn_families; at->name; at++) {
        const char *own = family_name_in(at, container);
        if (!own) continue;
        if (!strcmp(own, name)) {
            *out = at;
            return SN_OK;
        }
        if (strcmp(own, last)) list_name(known, sizeof known, own); /* variants follow each other */
        last = own;
    }
    return sn_fail(err, SN_REFUSED, "models of the family '%.64s' cannot be run; these can: %s", name, known);
}

const sn_family *sn_family_variant(const sn_family *first, int n) {
    const sn_family *at = first;
    while (n > 0 && at->name && !strcmp(at->name, first->name)) at++, n--;
    return at->name && !strcmp(at->name, first->name) ? at : NULL;
}

static bool is_of_next(sn_role role) { return role >= SN_ROLE_NEXT_EMBED_NORM && role <= SN_ROLE_NEXT_OUTPUT_NORM; }

/* What stands before the name of the role in the block's tensors. */
static void write_prefix(const sn_tensor_naming *naming, int n_blocks, sn_role role, int block, char *out,
                         size_t size) {
    if (block < n_blocks || !naming->next_prefix)
        snprintf(out, size, "%s%d.", naming->block_prefix, block);
    else
        snprintf(out, size, is_of_next(role) ? "%s" : "%slayers.0.", naming->next_prefix);
}

bool sn_family_tensor_name(const sn_family *family, sn_container container, int n_blocks, sn_role role, int block,
                           int expert, char out[SN_TENSOR_NAME_MAX]) {
    const sn_tensor_naming *naming = family->naming[container];
    const char *name = naming->names[role], *star = name ? strchr(name, '*') : NULL;
    char prefix[SN_TENSOR_NAME_MAX / 2];
    if (!name) return false;
    write_prefix(naming, n_blocks, role, block, prefix, sizeof prefix);
    if (role < SN_ROLE_FIRST_OF_BLOCK)
        snprintf(out, SN_TENSOR_NAME_MAX, "%s", name);
    else if (star)
        snprintf(out, SN_TENSOR_NAME_MAX, "%s%.*s%d%s", prefix, (int)(star - name), name, expert, star + 1);
    else
        snprintf(out, SN_TENSOR_NAME_MAX, "%s%s", prefix, name);
    return true;
}

bool sn_family_other_name(const sn_family *family, sn_container container, int n_blocks, sn_role role, int block,
                          char out[SN_TENSOR_NAME_MAX]) {
    const sn_tensor_naming *naming = family->naming[container];
    const char *other = role == SN_ROLE_ATTN_Q ? naming->whole_q : sn_role_is_of_head(role) ? naming->joined_ups : NULL;
    if (container == SN_CONTAINER_GGUF && (role == SN_ROLE_EXPERTS_GATE || role == SN_ROLE_EXPERTS_UP))
        other = "ffn_gate_up_exps.weight"; /* as converters that fuse write every family's */
    char prefix[SN_TENSOR_NAME_MAX / 2];
    if (!other) return false;
    write_prefix(naming, n_blocks, role, block, prefix, sizeof prefix);
    snprintf(out, SN_TENSOR_NAME_MAX, "%s%s", prefix, other);
    return true;
}

bool sn_family_stacks_experts(const sn_family *family, sn_container container, sn_role role) {
    const char *name = family->naming[container]->names[role];
    return name && role >= SN_ROLE_EXPERTS_GATE && role <= SN_ROLE_EXPERTS_DOWN && !strchr(name, '*');
}

bool sn_family_has_role(const sn_family *family, const sn_hparams *hparams, sn_role role, int block) {
    bool attention = (role >= SN_ROLE_ATTN_Q_LOW && role <= SN_ROLE_ATTN_K_NORM) || role == SN_ROLE_ATTN_GATE ||
                     role == SN_ROLE_ATTN_HEAD_GATE;
    bool delta = role >= SN_ROLE_DELTA_QKV && role <= SN_ROLE_DELTA_OUT;
    if (hparams->recurrent[block] ? attention : delta) return false;
    if (hparams->no_mixer[block] && (delta || role == SN_ROLE_ATTN_NORM)) return false;
    if (hparams->no_ff[block] && role >= SN_ROLE_FFN_NORM && role <= SN_ROLE_SHARED_ROUTER) return false;
    if (is_of_next(role) && block < hparams->n_blocks) return false;
    switch (role) {
    case SN_ROLE_ATTN_Q_BIAS:
    case SN_ROLE_ATTN_K_BIAS:
    case SN_ROLE_ATTN_V_BIAS:
        return hparams->qkv_bias;
    case SN_ROLE_ATTN_O_BIAS:
        return hparams->o_bias;
    case SN_ROLE_FFN_UP_BIAS:
    case SN_ROLE_FFN_DOWN_BIAS:
        return hparams->linear_bias;
    case SN_ROLE_ATTN_Q_NORM:
    case SN_ROLE_ATTN_K_NORM:
        return hparams->qk_norm && !hparams->qk_norm_plain;
    case SN_ROLE_ATTN_V:
        return !(hparams->full_keys_are_values && hparams->full_attention[block]);
    case SN_ROLE_SHARED_POST_NORM:
    case SN_ROLE_EXPERTS_NORM:
    case SN_ROLE_EXPERTS_POST_NORM:
    case SN_ROLE_ROUTER_NORM:
    case SN_ROLE_ROUTER_FACTORS:
        return hparams->dense_beside;
    case SN_ROLE_ATTN_SINKS:
        return family->naming[SN_CONTAINER_SAFETENSORS]->names[role] &&
               !(hparams->window_sinks && !sn_window_of(hparams, block));
    case SN_ROLE_ATTN_Q_LOW:
    case SN_ROLE_ATTN_Q_LOW_NORM:
        return hparams->q_rank;
    case SN_ROLE_DELTA_TAPS_BIAS:
        return hparams->conv_bias;
    case SN_ROLE_EXPERTS_NARROW:
    case SN_ROLE_EXPERTS_WIDEN:
        return sn_has_experts(hparams, block) && hparams->experts_width;
    case SN_ROLE_INDEX_Q:
    case SN_ROLE_INDEX_K:
    case SN_ROLE_INDEX_K_NORM:
    case SN_ROLE_INDEX_K_NORM_BIAS:
    case SN_ROLE_INDEX_WEIGHTS:
        return sn_chooses_keys(hparams, block);
    case SN_ROLE_EXPERTS_GATE: /* only as GGUF files some families have mixtures (Mixtral is llama there) */
        return sn_has_experts(hparams, block) && (family->naming[SN_CONTAINER_SAFETENSORS]->names[role] ||
                                                  family->naming[SN_CONTAINER_SAFETENSORS]->names[SN_ROLE_FFN_GATE]);
    case SN_ROLE_SHARED_GATE:
        return sn_has_experts(hparams, block) && hparams->n_ff_shared &&
               family->naming[SN_CONTAINER_SAFETENSORS]->names[role];
    case SN_ROLE_ROUTER:
    case SN_ROLE_EXPERTS_UP:
    case SN_ROLE_EXPERTS_DOWN:
        return sn_has_experts(hparams, block);
    case SN_ROLE_ROUTER_CORRECTION:
        return sn_has_experts(hparams, block) && hparams->router_correction;
    case SN_ROLE_SHARED_UP:
    case SN_ROLE_SHARED_DOWN:
        return sn_has_experts(hparams, block) && hparams->n_ff_shared;
    case SN_ROLE_SHARED_ROUTER:
        return sn_has_experts(hparams, block) && hparams->shared_gated;
    case SN_ROLE_FFN_GATE:
    case SN_ROLE_FFN_UP:
    case SN_ROLE_FFN_DOWN:
        if (sn_has_experts(hparams, block)) return false;
        __attribute__((fallthrough));
    default:
        return family->naming[SN_CONTAINER_SAFETENSORS]->names[role] != NULL;
    }
}

/* The number of the block that the tensor belongs to, as the family names it; -1: none. */
static long block_of(const sn_tensor_naming *naming, const char *tensor_name) {
    size_t len = strlen(naming->block_prefix);
    bool numbered =
        !strncmp(tensor_name, naming->block_prefix, len) && tensor_name[len] >= '0' && tensor_name[len] <= '9';
    return numbered ? strtol(tensor_name + len, NULL, 10) : -1;
}

bool sn_family_ignores(const sn_family *family, sn_container container, int n_blocks, const char *tensor_name) {
    /* what is said about activations: they are not rounded here; and shapes, which follow from the hyperparameters */
    static const char *const endings[] = {"rope_freqs.weight", ".rotary_emb.inv_freq",
                                          ".input_scale",      ".input_global_scale",
                                          ".input_zero_point", ".k_scale",
                                          ".v_scale",          ".weight_shape"};
    size_t len = strlen(tensor_name);
    static const char *const encoder[] = {"vision_tower.",       "vision_model.",        "multi_modal_projector.",
                                          "model.visual.",       "vit_large_projector.", "model.vision_tower.",
                                          "model.embed_vision.", "model.audio_tower.",   "model.embed_audio.",
                                          "mm_projector."};
    for (size_t i = 0; family->wrapped && i < sizeof encoder / sizeof *encoder; i++)
        if (!strncmp(tensor_name, encoder[i], strlen(encoder[i]))) return true;
    if (family->long_rope && !strncmp(tensor_name, "rope_factors_", 13)) return true;
    if (family->further_blocks && (!strncmp(tensor_name, "mtp.", 4) || !strncmp(tensor_name, "model.mtp.", 10) ||
                                   !strncmp(tensor_name, "model.mtp_", 10)))
        return true;
    if (family->further_blocks && block_of(family->naming[container], tensor_name) >= n_blocks) return true;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t ending = strlen(endings[i]);
        if (len >= ending && !strcmp(tensor_name + len - ending, endings[i])) return true;
    }
    return false;
}
