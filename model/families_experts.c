/* Families whose feed-forwards are mixtures of experts, as data in two layers: one sn_tensor_naming for each way of
 * naming the tensors in a container, with the router's defaults, then one descriptor for each family. */
#include "model/family_private.h"

#include <stddef.h>

/* Mixtures of experts: the names of Mixtral and of Qwen 3. */
static const sn_tensor_naming naming_hf_mixtral = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_NORMS,
            [SN_ROLE_ROUTER] = "block_sparse_moe.gate.weight",
            [SN_ROLE_EXPERTS_GATE] = "block_sparse_moe.experts.*.w1.weight",
            [SN_ROLE_EXPERTS_UP] = "block_sparse_moe.experts.*.w3.weight",
            [SN_ROLE_EXPERTS_DOWN] = "block_sparse_moe.experts.*.w2.weight",
        },
};
static const sn_tensor_naming naming_hf_qwen3_moe = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_NORMS,
            [SN_ROLE_ROUTER] = "mlp.gate.weight",
            [SN_ROLE_EXPERTS_GATE] = "mlp.experts.*.gate_proj.weight",
            [SN_ROLE_EXPERTS_UP] = "mlp.experts.*.up_proj.weight",
            [SN_ROLE_EXPERTS_DOWN] = "mlp.experts.*.down_proj.weight",
        },
};
static const sn_moe_config mixtral_experts = {
    .width = "intermediate_size",
    .n_experts = 8,
    .n_experts_used = 2,
    .n_ff = 14336,
};
static const sn_moe_config qwen3_experts = {
    .width = "moe_intermediate_size",
    .n_experts = 128,
    .n_experts_used = 8,
    .n_ff = 768,
    .scoring = SN_ROUTER_SOFTMAX_ALL,
    .normalised = SN_IF_DECLARED,
};
static const char *const moe_reads[] = {"num_experts", "num_local_experts", NULL};

/* gpt-oss: biases of all matrices, attention sinks, experts stored transposed. */
static const sn_tensor_naming naming_hf_gpt_oss = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_NORMS,
            [SN_ROLE_ATTN_SINKS] = "self_attn.sinks",
            [SN_ROLE_ROUTER] = "mlp.router.weight",
            [SN_ROLE_ROUTER_BIAS] = "mlp.router.bias",
            [SN_ROLE_EXPERTS_GATE] = "mlp.experts.gate_up_proj",
            [SN_ROLE_EXPERTS_UP] = "mlp.experts.gate_up_proj",
            [SN_ROLE_EXPERTS_DOWN] = "mlp.experts.down_proj",
            [SN_ROLE_EXPERTS_GATE_BIAS] = "mlp.experts.gate_up_proj_bias",
            [SN_ROLE_EXPERTS_UP_BIAS] = "mlp.experts.gate_up_proj_bias",
            [SN_ROLE_EXPERTS_DOWN_BIAS] = "mlp.experts.down_proj_bias",
        },
    .experts_transposed = true,
};
static const sn_tensor_naming naming_gguf_gpt_oss = {
    .block_prefix = "blk.",
    .names =
        {
            GGUF_ENDS,
            GGUF_ATTENTION,
            GGUF_EXPERTS,
            [SN_ROLE_ATTN_NORM] = "attn_norm.weight",
            [SN_ROLE_ATTN_SINKS] = "attn_sinks.weight",
            [SN_ROLE_FFN_NORM] = "post_attention_norm.weight",
            [SN_ROLE_ROUTER_BIAS] = "ffn_gate_inp.bias",
            [SN_ROLE_EXPERTS_GATE_BIAS] = "ffn_gate_exps.bias",
            [SN_ROLE_EXPERTS_UP_BIAS] = "ffn_up_exps.bias",
            [SN_ROLE_EXPERTS_DOWN_BIAS] = "ffn_down_exps.bias",
        },
};
static const sn_moe_config gpt_oss_experts = {
    .width = "intermediate_size",
    .n_experts = 128,
    .n_experts_used = 4,
    .n_ff = 2880,
};
static const char *const gpt_oss_reads[] = {"num_experts",  "num_local_experts",   "swiglu_alpha",
                                            "swiglu_limit", "quantization_config", NULL};

const sn_family sn_families_experts[] = {
    {
        .name = "mixtral",
        .window = SN_WINDOW_GIVEN,
        .theta_default = 1e6,
        .moe = &mixtral_experts,
        .config_fields = moe_reads,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_mixtral},
    },
    {
        .name = "qwen3_moe",
        .gguf_architecture = "qwen3moe",
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_IF_DECLARED,
        .qk_norm = true,
        .moe = &qwen3_experts,
        .gguf_moe = true,
        .config_fields = moe_reads,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_qwen3_moe, [SN_CONTAINER_GGUF] = &sn_naming_gguf},
    },
    {
        .name = "gpt_oss",
        .gguf_architecture = "gpt-oss",
        .gguf_rope = SN_ROPE_NEOX,
        .gguf_moe = true,
        .qkv_bias = SN_IF_DECLARED,
        .bias_default = true,
        .window = SN_WINDOW_GIVEN,
        .window_default = 128,
        .window_pattern = 2,
        .head_dim_default = 64,
        .theta_default = 150000,
        .rope_required = true,
        .yarn_untruncated = true,
        .activation_default = SN_SWIGLU_CLAMPED,
        .moe = &gpt_oss_experts,
        .config_fields = gpt_oss_reads,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_gpt_oss, [SN_CONTAINER_GGUF] = &naming_gguf_gpt_oss},
    },
    {.name = NULL},
};
