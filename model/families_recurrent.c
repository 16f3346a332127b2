/* Families most of whose blocks are recurrent: the others have attention, whose output is gated. */
#include "model/family_private.h"

#include <stddef.h>

#define HF_RECURRENT                                                                                                   \
    [SN_ROLE_ATTN_GATE] = "self_attn.q_proj.weight", [SN_ROLE_DELTA_QKV] = "linear_attn.in_proj_qkv.weight",           \
    [SN_ROLE_DELTA_GATE] = "linear_attn.in_proj_z.weight", [SN_ROLE_DELTA_TIME] = "linear_attn.in_proj_a.weight",      \
    [SN_ROLE_DELTA_WRITE] = "linear_attn.in_proj_b.weight", [SN_ROLE_DELTA_TAPS] = "linear_attn.conv1d.weight",        \
    [SN_ROLE_DELTA_RATES] = "linear_attn.A_log", [SN_ROLE_DELTA_TIME_BIAS] = "linear_attn.dt_bias",                    \
    [SN_ROLE_DELTA_NORM] = "linear_attn.norm.weight", [SN_ROLE_DELTA_OUT] = "linear_attn.out_proj.weight"
#define HF_SHARED                                                                                                      \
    [SN_ROLE_ROUTER] = "mlp.gate.weight", [SN_ROLE_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",                \
    [SN_ROLE_SHARED_UP] = "mlp.shared_expert.up_proj.weight",                                                          \
    [SN_ROLE_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",                                                      \
    [SN_ROLE_SHARED_ROUTER] = "mlp.shared_expert_gate.weight"
#define GGUF_RECURRENT                                                                                                 \
    [SN_ROLE_ATTN_GATE] = "attn_q.weight", [SN_ROLE_DELTA_QKV] = "attn_qkv.weight",                                    \
    [SN_ROLE_DELTA_GATE] = "attn_gate.weight", [SN_ROLE_DELTA_TIME] = "ssm_alpha.weight",                              \
    [SN_ROLE_DELTA_WRITE] = "ssm_beta.weight", [SN_ROLE_DELTA_TAPS] = "ssm_conv1d.weight",                             \
    [SN_ROLE_DELTA_RATES] = "ssm_a", [SN_ROLE_DELTA_TIME_BIAS] = "ssm_dt.bias",                                        \
    [SN_ROLE_DELTA_NORM] = "ssm_norm.weight", [SN_ROLE_DELTA_OUT] = "ssm_out.weight",                                  \
    [SN_ROLE_ATTN_NORM] = "attn_norm.weight", [SN_ROLE_FFN_NORM] = "post_attention_norm.weight"

static const sn_tensor_naming naming_hf_qwen3_5 = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_FEED_FORWARD,
            HF_NORMS,
            HF_RECURRENT,
        },
    .q_gated = true,
};
static const sn_tensor_naming naming_hf_qwen3_5_moe = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_NORMS,
            HF_RECURRENT,
            HF_SHARED,
            [SN_ROLE_EXPERTS_GATE] = "mlp.experts.*.gate_proj.weight",
            [SN_ROLE_EXPERTS_UP] = "mlp.experts.*.up_proj.weight",
            [SN_ROLE_EXPERTS_DOWN] = "mlp.experts.*.down_proj.weight",
        },
    .q_gated = true,
};
/* The hub's files: all experts in one tensor. */
static const sn_tensor_naming naming_hf_qwen3_5_moe_stacked = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_NORMS,
            HF_RECURRENT,
            HF_SHARED,
            [SN_ROLE_EXPERTS_GATE] = "mlp.experts.gate_up_proj",
            [SN_ROLE_EXPERTS_UP] = "mlp.experts.gate_up_proj",
            [SN_ROLE_EXPERTS_DOWN] = "mlp.experts.down_proj",
        },
    .q_gated = true,
    .gate_up_fused = true,
};
static const sn_tensor_naming naming_gguf_qwen3_5 = {
    .block_prefix = "blk.",
    .names =
        {
            GGUF_ENDS,
            GGUF_ATTENTION,
            GGUF_FEED_FORWARD,
            GGUF_RECURRENT,
        },
    .q_gated = true,
};

static const sn_tensor_naming naming_gguf_qwen3_5_moe = {
    .block_prefix = "blk.",
    .names =
        {
            GGUF_ENDS,
            GGUF_ATTENTION,
            GGUF_EXPERTS,
            GGUF_SHARED,
            GGUF_RECURRENT,
        },
    .q_gated = true,
};

static const sn_moe_config qwen3_5_experts = {
    .width = "moe_intermediate_size",
    .n_experts = 256,
    .n_experts_used = 8,
    .n_ff = 512,
    .scoring = SN_ROUTER_SOFTMAX,
    .shared_width = "shared_expert_intermediate_size",
    .n_ff_shared = 512,
    .shared_gated = true,
};
static const char *const moe_reads[] = {"num_experts", NULL};

#define QWEN3_5                                                                                                        \
    .gguf_rope = SN_ROPE_NEOX, .qkv_bias = SN_IF_DECLARED, .qk_norm = SN_ALWAYS, .recurrent = true, .wrapped = true,   \
    .further_blocks = true, .norm_plus_one = true, .head_dim_default = 256, .rotated_default = 0.25,                   \
    .rotates_part = true

#define QWEN3_5_MOE                                                                                                    \
    .name = "qwen3_5_moe_text", QWEN3_5, .gguf_moe = true, .moe = &qwen3_5_experts, .config_fields = moe_reads,        \
    .ff_multiple = 4 /* config.json has no intermediate_size */

const sn_family sn_families_recurrent[] = {
    {
        .name = "qwen3_5_text",
        .gguf_architecture = "qwen35",
        QWEN3_5,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_qwen3_5, [SN_CONTAINER_GGUF] = &naming_gguf_qwen3_5},
    },
    {
        QWEN3_5_MOE,
        .gguf_architecture = "qwen35moe",
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_qwen3_5_moe, [SN_CONTAINER_GGUF] = &naming_gguf_qwen3_5_moe},
    },
    {
        QWEN3_5_MOE,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_qwen3_5_moe_stacked},
    },
    {.name = NULL},
};
