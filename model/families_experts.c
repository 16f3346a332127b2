/* Families whose feed-forwards are mixtures of experts, as data in two layers: one sn_tensor_naming for each way of
 * naming the tensors in a container, with the router's defaults, then one descriptor for each family. */
#include "model/family_private.h"

#include <stddef.h>

#define HF_MIXTRAL_EXPERTS                                                                                             \
    [SN_ROLE_ROUTER] = "block_sparse_moe.gate.weight",                                                                 \
    [SN_ROLE_EXPERTS_GATE] = "block_sparse_moe.experts.*.w1.weight",                                                   \
    [SN_ROLE_EXPERTS_UP] = "block_sparse_moe.experts.*.w3.weight",                                                     \
    [SN_ROLE_EXPERTS_DOWN] = "block_sparse_moe.experts.*.w2.weight"
#define HF_QWEN_EXPERTS                                                                                                \
    [SN_ROLE_ROUTER] = "mlp.gate.weight", [SN_ROLE_EXPERTS_GATE] = "mlp.experts.*.gate_proj.weight",                   \
    [SN_ROLE_EXPERTS_UP] = "mlp.experts.*.up_proj.weight", [SN_ROLE_EXPERTS_DOWN] = "mlp.experts.*.down_proj.weight"

/* Mixtures of experts: the names of Mixtral and of Qwen 3. */
static const sn_tensor_naming naming_hf_mixtral = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_NORMS,
            HF_MIXTRAL_EXPERTS,
        },
};
static const sn_tensor_naming naming_hf_qwen3_moe = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_NORMS,
            HF_QWEN_EXPERTS,
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
    .gguf_normalised = true,
};
/* Qwen 2: a shared expert behind a sigmoid. GLM 4: a shared expert, a correction; blocks without experts come first. */
static const sn_tensor_naming naming_hf_qwen2_moe = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_FEED_FORWARD,
            HF_NORMS,
            HF_QWEN_EXPERTS,
            [SN_ROLE_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",
            [SN_ROLE_SHARED_UP] = "mlp.shared_expert.up_proj.weight",
            [SN_ROLE_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",
            [SN_ROLE_SHARED_ROUTER] = "mlp.shared_expert_gate.weight",
        },
};
static const sn_tensor_naming naming_hf_glm4_moe = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_FEED_FORWARD,
            HF_NORMS,
            HF_QWEN_EXPERTS,
            [SN_ROLE_ROUTER_CORRECTION] = "mlp.gate.e_score_correction_bias",
            [SN_ROLE_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight",
            [SN_ROLE_SHARED_UP] = "mlp.shared_experts.up_proj.weight",
            [SN_ROLE_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight",
        },
};
static const sn_tensor_naming naming_hf_minimax_m2 = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_NORMS,
            HF_MIXTRAL_EXPERTS,
            [SN_ROLE_ROUTER_CORRECTION] = "block_sparse_moe.e_score_correction_bias",
        },
};
static const sn_tensor_naming naming_gguf_shared = {
    .block_prefix = "blk.",
    .names = {GGUF_ENDS, GGUF_ATTENTION, GGUF_FEED_FORWARD, GGUF_EXPERTS, GGUF_SHARED, GGUF_NORMS},
};
static const sn_tensor_naming naming_gguf_glm4_moe = {
    .block_prefix = "blk.",
    .names =
        {
            GGUF_ENDS,
            GGUF_ATTENTION,
            GGUF_FEED_FORWARD,
            GGUF_EXPERTS,
            GGUF_SHARED,
            [SN_ROLE_ATTN_NORM] = "attn_norm.weight",
            [SN_ROLE_FFN_NORM] = "post_attention_norm.weight",
        },
};
static const sn_moe_config qwen2_experts = {
    .width = "moe_intermediate_size",
    .n_experts = 60,
    .n_experts_used = 4,
    .n_ff = 1408,
    .scoring = SN_ROUTER_SOFTMAX_ALL,
    .normalised = SN_IF_DECLARED,
    .dense_width = "intermediate_size",
    .shared_width = "shared_expert_intermediate_size",
    .n_ff_shared = 5632,
    .shared_gated = true,
};
static const sn_moe_config glm4_experts = {
    .width = "moe_intermediate_size",
    .n_experts = 128,
    .n_experts_used = 8,
    .n_ff = 1408,
    .scoring = SN_ROUTER_SIGMOID,
    .normalised = SN_IF_DECLARED,
    .normalised_default = true,
    .scale_default = 1,
    .correction = true,
    .dense_width = "intermediate_size",
    .n_shared = 1,
    .n_dense = 1,
};
static const sn_moe_config minimax_experts = {
    .width = "intermediate_size",
    .n_experts = 8,
    .n_experts_used = 2,
    .n_ff = 14336,
    .scoring = SN_ROUTER_SIGMOID,
    .normalised = SN_ALWAYS,
    .gguf_normalised = true,
    .correction = true,
};
static const char *const glm4_reads[] = {"num_experts", "num_local_experts", "n_routed_experts", "use_qk_norm", NULL};
static const char *const minimax_reads[] = {"num_local_experts", "use_qk_norm", "rotary_dim", NULL};
/* Llama 4: experts stored transposed, which take their weight with the input; blocks with and without experts. */
static const sn_tensor_naming naming_hf_llama4 = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_NORMS,
            [SN_ROLE_FFN_GATE] = "feed_forward.gate_proj.weight",
            [SN_ROLE_FFN_UP] = "feed_forward.up_proj.weight",
            [SN_ROLE_FFN_DOWN] = "feed_forward.down_proj.weight",
            [SN_ROLE_ROUTER] = "feed_forward.router.weight",
            [SN_ROLE_EXPERTS_GATE] = "feed_forward.experts.gate_up_proj",
            [SN_ROLE_EXPERTS_UP] = "feed_forward.experts.gate_up_proj",
            [SN_ROLE_EXPERTS_DOWN] = "feed_forward.experts.down_proj",
            [SN_ROLE_SHARED_GATE] = "feed_forward.shared_expert.gate_proj.weight",
            [SN_ROLE_SHARED_UP] = "feed_forward.shared_expert.up_proj.weight",
            [SN_ROLE_SHARED_DOWN] = "feed_forward.shared_expert.down_proj.weight",
        },
    .experts_transposed = true,
    .gate_up_halves = true,
};
static const sn_moe_config llama4_experts = {
    .width = "intermediate_size",
    .n_experts = 16,
    .n_experts_used = 1,
    .n_ff = 8192,
    .scoring = SN_ROUTER_SIGMOID,
    .dense_width = "intermediate_size_mlp",
    .shared_width = "intermediate_size",
    .scales_input = true,
};
static const char *const llama4_reads[] = {"num_local_experts", "no_rope_layers", "attention_chunk_size", "use_qk_norm",
                                           NULL};
static const char *const moe_reads[] = {"num_experts", "num_local_experts", NULL};
static const char *const qwen2_moe_reads[] = {"num_experts", "num_local_experts", "qkv_bias", NULL};

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
        .eps_default = 1e-5,
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
        .qk_norm = SN_ALWAYS,
        .moe = &qwen3_experts,
        .gguf_moe = true,
        .config_fields = moe_reads,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_qwen3_moe, [SN_CONTAINER_GGUF] = &sn_naming_gguf},
    },
    {
        .name = "qwen2_moe",
        .gguf_architecture = "qwen2moe",
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_ALWAYS,
        .window = SN_WINDOW_SWITCHED,
        .moe = &qwen2_experts,
        .gguf_moe = true,
        .config_fields = qwen2_moe_reads,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_qwen2_moe, [SN_CONTAINER_GGUF] = &naming_gguf_shared},
    },
    {
        .name = "glm4_moe",
        .rotates_part = true,
        .eps_default = 1e-5,
        .gguf_architecture = "glm4moe",
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_IF_DECLARED,
        .no_o_bias = true,
        .qk_norm = SN_IF_DECLARED,
        .rotated_default = 0.5,
        .moe = &glm4_experts,
        .gguf_moe = true,
        .further_blocks = true,
        .config_fields = glm4_reads,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_glm4_moe, [SN_CONTAINER_GGUF] = &naming_gguf_glm4_moe},
    },
    {
        .name = "minimax_m2",
        .rotates_part = true,
        .gguf_architecture = "minimax-m2",
        .gguf_rope = SN_ROPE_NEOX,
        .qk_norm = SN_ALWAYS,
        .qk_norm_wide = true,
        .theta_default = 5e6,
        .moe = &minimax_experts,
        .gguf_moe = true,
        .further_blocks = true,
        .config_fields = minimax_reads,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_minimax_m2, [SN_CONTAINER_GGUF] = &naming_gguf_shared},
    },
    {
        .name = "llama4_text",
        .eps_default = 1e-5,
        .gguf_architecture = "llama4",
        .gguf_rope = SN_ROPE_INTERLEAVED,
        .neighbours = true,
        .qkv_bias = SN_IF_DECLARED,
        .qk_norm = SN_IF_DECLARED,
        .qk_norm_plain = true,
        .theta_default = 5e5,
        .no_rope_interval = 4,
        .chunks = true,
        .wrapped = true,
        .moe = &llama4_experts,
        .gguf_moe = true,
        .config_fields = llama4_reads,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_llama4, [SN_CONTAINER_GGUF] = &naming_gguf_shared},
    },
    {
        .name = "gpt_oss",
        .eps_default = 1e-5,
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
