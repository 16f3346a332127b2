/* Families with latent attention (MLA, DeepSeek-AI 2024): DeepSeek-V2, DeepSeek-V3 and those that take V3's form, as
 * data: tensor names, the router's defaults, then one descriptor for each family. */
#include "model/family_private.h"

#include <stddef.h>

static const sn_tensor_naming naming_hf = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_NORMS,
            HF_FEED_FORWARD,
            [SN_ROLE_ATTN_Q_LOW] = "self_attn.q_a_proj.weight",
            [SN_ROLE_ATTN_Q_LOW_NORM] = "self_attn.q_a_layernorm.weight",
            [SN_ROLE_ATTN_Q] = "self_attn.q_b_proj.weight",
            [SN_ROLE_ATTN_K] = "self_attn.kv_a_proj_with_mqa.weight",
            [SN_ROLE_ATTN_V] = "self_attn.kv_a_proj_with_mqa.weight",
            [SN_ROLE_ATTN_LATENT_NORM] = "self_attn.kv_a_layernorm.weight",
            [SN_ROLE_ATTN_K_UP] = "self_attn.kv_b_proj.weight",
            [SN_ROLE_ATTN_V_UP] = "self_attn.kv_b_proj.weight",
            [SN_ROLE_ATTN_O] = "self_attn.o_proj.weight",
            [SN_ROLE_ROUTER] = "mlp.gate.weight",
            [SN_ROLE_ROUTER_CORRECTION] = "mlp.gate.e_score_correction_bias",
            [SN_ROLE_EXPERTS_GATE] = "mlp.experts.*.gate_proj.weight",
            [SN_ROLE_EXPERTS_UP] = "mlp.experts.*.up_proj.weight",
            [SN_ROLE_EXPERTS_DOWN] = "mlp.experts.*.down_proj.weight",
            [SN_ROLE_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight",
            [SN_ROLE_SHARED_UP] = "mlp.shared_experts.up_proj.weight",
            [SN_ROLE_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight",
        },
    .whole_q = "self_attn.q_proj.weight",
};
static const sn_tensor_naming naming_gguf = {
    .block_prefix = "blk.",
    .names =
        {
            GGUF_ENDS,
            GGUF_NORMS,
            GGUF_FEED_FORWARD,
            GGUF_EXPERTS,
            [SN_ROLE_ATTN_Q_LOW] = "attn_q_a.weight",
            [SN_ROLE_ATTN_Q_LOW_NORM] = "attn_q_a_norm.weight",
            [SN_ROLE_ATTN_Q] = "attn_q_b.weight",
            [SN_ROLE_ATTN_K] = "attn_kv_a_mqa.weight",
            [SN_ROLE_ATTN_V] = "attn_kv_a_mqa.weight",
            [SN_ROLE_ATTN_LATENT_NORM] = "attn_kv_a_norm.weight",
            [SN_ROLE_ATTN_K_UP] = "attn_k_b.weight",
            [SN_ROLE_ATTN_V_UP] = "attn_v_b.weight",
            [SN_ROLE_ATTN_O] = "attn_output.weight",
            [SN_ROLE_ROUTER_CORRECTION] = "exp_probs_b.bias",
            [SN_ROLE_SHARED_GATE] = "ffn_gate_shexp.weight",
            [SN_ROLE_SHARED_UP] = "ffn_up_shexp.weight",
            [SN_ROLE_SHARED_DOWN] = "ffn_down_shexp.weight",
        },
    .whole_q = "attn_q.weight",
    .joined_ups = "attn_kv_b.weight",
};

static const sn_moe_config v2_experts = {
    .width = "moe_intermediate_size",
    .dense_width = "intermediate_size",
    .n_experts = 64,
    .n_experts_used = 6,
    .n_ff = 1407,
    .n_shared = 2,
    .scoring = SN_ROUTER_SOFTMAX_ALL,
    .normalised = SN_NEVER,
    .scale_default = 1,
    .groups_by = "group_limited_greedy",
};
static const sn_moe_config v3_experts = {
    .width = "moe_intermediate_size",
    .dense_width = "intermediate_size",
    .n_experts = 256,
    .n_experts_used = 8,
    .n_ff = 2048,
    .n_shared = 1,
    .n_dense = 3,
    .scoring = SN_ROUTER_SIGMOID,
    .normalised = SN_IF_DECLARED,
    .normalised_default = true,
    .correction = true,
    .scale_default = 2.5,
    .n_groups = 8,
    .n_groups_used = 4,
    .groups_by = "noaux_tc",
};
static const sn_moe_config glm4_lite_experts = {
    .width = "moe_intermediate_size",
    .dense_width = "intermediate_size",
    .n_experts = 64,
    .n_experts_used = 4,
    .n_ff = 1536,
    .n_shared = 1,
    .n_dense = 1,
    .scoring = SN_ROUTER_SIGMOID,
    .normalised = SN_IF_DECLARED,
    .normalised_default = true,
    .correction = true,
    .scale_default = 1.8,
    .groups_by = "noaux_tc",
};
static const char *const latent_reads[] = {"n_routed_experts", "n_group", "topk_group", NULL};

#define LATENT                                                                                                         \
    .gguf_rope = SN_ROPE_INTERLEAVED, .latent = true, .gguf_moe = true, .further_blocks = true,                        \
    .config_fields = latent_reads,                                                                                     \
    .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf, [SN_CONTAINER_GGUF] = &naming_gguf}

const sn_family sn_families_latent[] = {
    {LATENT, .name = "deepseek_v2", .moe = &v2_experts},
    {LATENT, .name = "deepseek_v3", .moe = &v3_experts, .gguf_architecture = "deepseek2"},
    {LATENT, .name = "glm4_moe_lite", .moe = &glm4_lite_experts, .eps_default = 1e-5},
    {LATENT, .name = "kimi_k2", .moe = &v3_experts, .theta_default = 50000},
    {.name = NULL},
};
