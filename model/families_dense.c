/* Families whose blocks have one feed-forward for all rows, as data in two layers: one sn_tensor_naming for each way of
 * naming the tensors in a container, then one descriptor for each family, or for each variant of a family (Falcon). */
#include "model/family_private.h"

#include <stddef.h>

static const sn_tensor_naming naming_hf = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_FEED_FORWARD,
            HF_NORMS,
        },
};

const sn_tensor_naming sn_naming_gguf = {
    .block_prefix = "blk.",
    .names =
        {
            GGUF_ENDS,
            GGUF_ATTENTION,
            GGUF_FEED_FORWARD,
            GGUF_EXPERTS,
            GGUF_NORMS,
        },
};

/* Phi-3: Q, K and V in one matrix, gate and up in another. */
static const sn_tensor_naming naming_hf_phi3 = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_NORMS,
            [SN_ROLE_ATTN_Q] = "self_attn.qkv_proj.weight",
            [SN_ROLE_ATTN_K] = "self_attn.qkv_proj.weight",
            [SN_ROLE_ATTN_V] = "self_attn.qkv_proj.weight",
            [SN_ROLE_ATTN_O] = "self_attn.o_proj.weight",
            [SN_ROLE_FFN_GATE] = "mlp.gate_up_proj.weight",
            [SN_ROLE_FFN_UP] = "mlp.gate_up_proj.weight",
            [SN_ROLE_FFN_DOWN] = "mlp.down_proj.weight",
        },
    .qkv = SN_QKV_FUSED,
    .gate_up_fused = true,
};

static const sn_tensor_naming naming_gguf_phi3 = {
    .block_prefix = "blk.",
    .names =
        {
            GGUF_ENDS,
            GGUF_NORMS,
            [SN_ROLE_ATTN_Q] = "attn_qkv.weight",
            [SN_ROLE_ATTN_K] = "attn_qkv.weight",
            [SN_ROLE_ATTN_V] = "attn_qkv.weight",
            [SN_ROLE_ATTN_O] = "attn_output.weight",
            [SN_ROLE_FFN_GATE] = "ffn_up.weight",
            [SN_ROLE_FFN_UP] = "ffn_up.weight",
            [SN_ROLE_FFN_DOWN] = "ffn_down.weight",
        },
    .qkv = SN_QKV_FUSED,
    .gate_up_fused = true,
};

/* Gemma 3: norms before and after each half of a block. */
static const sn_tensor_naming naming_hf_gemma3 = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_FEED_FORWARD,
            [SN_ROLE_ATTN_NORM] = "input_layernorm.weight",
            [SN_ROLE_ATTN_POST_NORM] = "post_attention_layernorm.weight",
            [SN_ROLE_FFN_NORM] = "pre_feedforward_layernorm.weight",
            [SN_ROLE_FFN_POST_NORM] = "post_feedforward_layernorm.weight",
        },
};
static const sn_tensor_naming naming_gguf_gemma3 = {
    .block_prefix = "blk.",
    .names =
        {
            GGUF_ENDS,
            GGUF_ATTENTION,
            GGUF_FEED_FORWARD,
            GGUF_NORMS,
            GGUF_POST_NORMS,
        },
};
static const char *const gemma2_reads[] = {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
                                           NULL};
static const char *const gemma3_reads[] = {"query_pre_attn_scalar", NULL};

/* OLMo 2: norms after each half of a block, none before. */
static const sn_tensor_naming naming_hf_olmo2 = {
    .block_prefix = "model.layers.",
    .names =
        {
            HF_ENDS,
            HF_ATTENTION,
            HF_FEED_FORWARD,
            [SN_ROLE_ATTN_POST_NORM] = "post_attention_layernorm.weight",
            [SN_ROLE_FFN_POST_NORM] = "post_feedforward_layernorm.weight",
        },
};
static const sn_tensor_naming naming_gguf_olmo2 = {
    .block_prefix = "blk.",
    .names =
        {
            GGUF_ENDS,
            GGUF_ATTENTION,
            GGUF_FEED_FORWARD,
            GGUF_POST_NORMS,
        },
};

/* Falcon and BLOOM: Q, K and V in one matrix, head by head; no gates; a norm before each half, or one for both. */
#define HF_FUSED_ENDS                                                                                                  \
    [SN_ROLE_TOKEN_EMBEDDING] = "transformer.word_embeddings.weight", [SN_ROLE_OUTPUT] = "lm_head.weight",             \
    [SN_ROLE_OUTPUT_NORM] = "transformer.ln_f.weight", [SN_ROLE_OUTPUT_NORM_BIAS] = "transformer.ln_f.bias"
#define HF_FUSED_BLOCK                                                                                                 \
    [SN_ROLE_ATTN_Q] = "self_attention.query_key_value.weight",                                                        \
    [SN_ROLE_ATTN_K] = "self_attention.query_key_value.weight",                                                        \
    [SN_ROLE_ATTN_V] = "self_attention.query_key_value.weight",                                                        \
    [SN_ROLE_ATTN_Q_BIAS] = "self_attention.query_key_value.bias",                                                     \
    [SN_ROLE_ATTN_K_BIAS] = "self_attention.query_key_value.bias",                                                     \
    [SN_ROLE_ATTN_V_BIAS] = "self_attention.query_key_value.bias", [SN_ROLE_ATTN_O] = "self_attention.dense.weight",   \
    [SN_ROLE_ATTN_O_BIAS] = "self_attention.dense.bias", [SN_ROLE_FFN_UP] = "mlp.dense_h_to_4h.weight",                \
    [SN_ROLE_FFN_UP_BIAS] = "mlp.dense_h_to_4h.bias", [SN_ROLE_FFN_DOWN] = "mlp.dense_4h_to_h.weight",                 \
    [SN_ROLE_FFN_DOWN_BIAS] = "mlp.dense_4h_to_h.bias"
#define FUSED_NORMS(attention, feed_forward)                                                                           \
    [SN_ROLE_ATTN_NORM] = attention ".weight", [SN_ROLE_ATTN_NORM_BIAS] = attention ".bias",                           \
    [SN_ROLE_FFN_NORM] = feed_forward ".weight", [SN_ROLE_FFN_NORM_BIAS] = feed_forward ".bias"
#define HF_FUSED .block_prefix = "transformer.h.", .base = "transformer.", .qkv = SN_QKV_FUSED_PER_HEAD

static const sn_tensor_naming naming_hf_falcon = {
    HF_FUSED,
    .names =
        {
            HF_FUSED_ENDS,
            HF_FUSED_BLOCK,
            FUSED_NORMS("ln_attn", "ln_mlp"),
        },
};
static const sn_tensor_naming naming_hf_falcon_shared = {
    HF_FUSED,
    .names =
        {
            HF_FUSED_ENDS,
            HF_FUSED_BLOCK,
            FUSED_NORMS("input_layernorm", "input_layernorm"),
        },
};
static const sn_tensor_naming naming_hf_falcon_serial = {
    HF_FUSED,
    .names =
        {
            HF_FUSED_ENDS,
            HF_FUSED_BLOCK,
            FUSED_NORMS("input_layernorm", "post_attention_layernorm"),
        },
};
static const sn_tensor_naming naming_hf_bloom = {
    HF_FUSED,
    .names =
        {
            HF_FUSED_ENDS,
            HF_FUSED_BLOCK,
            FUSED_NORMS("input_layernorm", "post_attention_layernorm"),
            [SN_ROLE_EMBED_NORM] = "transformer.word_embeddings_layernorm.weight",
            [SN_ROLE_EMBED_NORM_BIAS] = "transformer.word_embeddings_layernorm.bias",
        },
};

#define GGUF_FUSED_BLOCK                                                                                               \
    [SN_ROLE_OUTPUT_NORM_BIAS] = "output_norm.bias", [SN_ROLE_ATTN_Q] = "attn_qkv.weight",                             \
    [SN_ROLE_ATTN_K] = "attn_qkv.weight", [SN_ROLE_ATTN_V] = "attn_qkv.weight",                                        \
    [SN_ROLE_ATTN_Q_BIAS] = "attn_qkv.bias", [SN_ROLE_ATTN_K_BIAS] = "attn_qkv.bias",                                  \
    [SN_ROLE_ATTN_V_BIAS] = "attn_qkv.bias", [SN_ROLE_ATTN_O] = "attn_output.weight",                                  \
    [SN_ROLE_ATTN_O_BIAS] = "attn_output.bias", [SN_ROLE_FFN_UP] = "ffn_up.weight",                                    \
    [SN_ROLE_FFN_UP_BIAS] = "ffn_up.bias", [SN_ROLE_FFN_DOWN] = "ffn_down.weight",                                     \
    [SN_ROLE_FFN_DOWN_BIAS] = "ffn_down.bias"
#define GGUF_FUSED .block_prefix = "blk.", .qkv = SN_QKV_FUSED

static const sn_tensor_naming naming_gguf_falcon = {
    GGUF_FUSED,
    .names =
        {
            GGUF_ENDS,
            GGUF_FUSED_BLOCK,
            FUSED_NORMS("attn_norm_2", "attn_norm"),
        },
};
static const sn_tensor_naming naming_gguf_falcon_shared = {
    GGUF_FUSED,
    .names =
        {
            GGUF_ENDS,
            GGUF_FUSED_BLOCK,
            FUSED_NORMS("attn_norm", "attn_norm"),
        },
};
static const sn_tensor_naming naming_gguf_bloom = {
    GGUF_FUSED,
    .names =
        {
            GGUF_ENDS,
            GGUF_FUSED_BLOCK,
            FUSED_NORMS("attn_norm", "ffn_norm"),
            [SN_ROLE_EMBED_NORM] = "token_embd_norm.weight",
            [SN_ROLE_EMBED_NORM_BIAS] = "token_embd_norm.bias",
        },
};

static const char *const falcon_reads[] = {"parallel_attn", "new_decoder_architecture", NULL};

#define FALCON                                                                                                         \
    .name = "falcon", .gguf_architecture = "falcon", .gguf_rope = SN_ROPE_NEOX, .qkv_bias = SN_IF_DECLARED,            \
    .linear_bias = SN_IF_DECLARED, .layer_norm = true, .activation_default = SN_GELU, .tied_default = true,            \
    .activation_field = "activation", .ff_multiple = 4, .ctx_default = 2048, .config_fields = falcon_reads

static const char *const smollm3_reads[] = {"no_rope_layers", NULL};
static const char *const granite_reads[] = {"embedding_multiplier", "attention_multiplier", "residual_multiplier",
                                            "logits_scaling", NULL};

#define USUAL_NAMES {[SN_CONTAINER_SAFETENSORS] = &naming_hf, [SN_CONTAINER_GGUF] = &sn_naming_gguf}

const sn_family sn_families_dense[] = {
    {
        .name = "llama",
        .gguf_architecture = "llama",
        .gguf_rope = SN_ROPE_INTERLEAVED,
        .qkv_bias = SN_IF_DECLARED,
        .gguf_moe = true,
        .naming = USUAL_NAMES,
    },
    {
        .name = "mistral",
        .window = SN_WINDOW_GIVEN,
        .window_default = 4096,
        .naming = USUAL_NAMES,
    },
    {
        .name = "qwen2",
        .gguf_architecture = "qwen2",
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_ALWAYS,
        .window = SN_WINDOW_SWITCHED,
        .naming = USUAL_NAMES,
    },
    {
        .name = "qwen3",
        .gguf_architecture = "qwen3",
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_IF_DECLARED,
        .qk_norm = SN_ALWAYS,
        .window = SN_WINDOW_SWITCHED,
        .naming = USUAL_NAMES,
    },
    {
        .name = "phi3",
        .rotates_part = true,
        .eps_default = 1e-5,
        .gguf_architecture = "phi3",
        .gguf_rope = SN_ROPE_NEOX,
        .window = SN_WINDOW_GIVEN,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_phi3, [SN_CONTAINER_GGUF] = &naming_gguf_phi3},
    },
    {
        .name = "olmo2",
        .eps_default = 1e-5,
        .gguf_architecture = "olmo2",
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_IF_DECLARED,
        .qk_norm = SN_ALWAYS,
        .qk_norm_wide = true,
        .windowed = "olmo3",
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_olmo2, [SN_CONTAINER_GGUF] = &naming_gguf_olmo2},
    },
    {
        .name = "olmo3",
        .eps_default = 1e-5,
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_IF_DECLARED,
        .qk_norm = SN_ALWAYS,
        .qk_norm_wide = true,
        .window = SN_WINDOW_GIVEN,
        .window_default = 4096,
        .window_pattern = 4,
        .theta_default = 5e5,
        .local_unscaled = true,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_olmo2, [SN_CONTAINER_GGUF] = &naming_gguf_olmo2},
    },
    {
        .name = "smollm3",
        .gguf_architecture = "smollm3",
        .gguf_rope = SN_ROPE_INTERLEAVED,
        .qkv_bias = SN_IF_DECLARED,
        .window = SN_WINDOW_SWITCHED,
        .theta_default = 2e6,
        .tied_default = true,
        .no_rope_interval = 4,
        .config_fields = smollm3_reads,
        .naming = USUAL_NAMES,
    },
    {
        .name = "granite",
        .gguf_architecture = "granite",
        .gguf_rope = SN_ROPE_INTERLEAVED,
        .qkv_bias = SN_IF_DECLARED,
        .multipliers = true,
        .config_fields = granite_reads,
        .naming = USUAL_NAMES,
    },
    {
        .name = "ministral3",
        .rope_required = true,
        .eps_default = 1e-5,
        .gguf_architecture = "mistral3",
        .gguf_rope = SN_ROPE_INTERLEAVED,
        .window = SN_WINDOW_GIVEN,
        .wrapped = true,
        .naming = USUAL_NAMES,
    },
    {
        .name = "gemma2",
        .activation_field = "hidden_activation",
        .gguf_architecture = "gemma2",
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_IF_DECLARED,
        .window = SN_WINDOW_GIVEN,
        .window_default = 4096,
        .window_pattern = 2,
        .head_dim_default = 256,
        .attn_scalar_default = 256,
        .activation_default = SN_GELU_TANH,
        .tied_default = true,
        .norm_plus_one = true,
        .scales_embeddings = true,
        .softcaps = true,
        .config_fields = gemma2_reads,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_gemma3, [SN_CONTAINER_GGUF] = &naming_gguf_gemma3},
    },
    {
        .name = "gemma3_text",
        .activation_field = "hidden_activation",
        .gguf_architecture = "gemma3",
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_IF_DECLARED,
        .qk_norm = SN_ALWAYS,
        .window = SN_WINDOW_GIVEN,
        .window_default = 4096,
        .window_pattern = 6,
        .head_dim_default = 256,
        .theta_default = 1e6,
        .attn_scalar_default = 256,
        .activation_default = SN_GELU_TANH,
        .tied_default = true,
        .local_theta = 1e4,
        .norm_plus_one = true,
        .scales_embeddings = true,
        .config_fields = gemma3_reads,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_gemma3, [SN_CONTAINER_GGUF] = &naming_gguf_gemma3},
    },
    {
        FALCON,
        .parallel = true,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_falcon, [SN_CONTAINER_GGUF] = &naming_gguf_falcon},
    },
    {
        FALCON,
        .parallel = true,
        .naming =
            {[SN_CONTAINER_SAFETENSORS] = &naming_hf_falcon_shared, [SN_CONTAINER_GGUF] = &naming_gguf_falcon_shared},
    },
    {
        FALCON,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_falcon_serial},
    },
    {
        .name = "bloom",
        .activation_field = "",
        .gguf_architecture = "bloom",
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_ALWAYS,
        .linear_bias = SN_ALWAYS,
        .layer_norm = true,
        .alibi = true,
        .activation_default = SN_GELU_TANH,
        .tied_default = true,
        .ff_multiple = 4,
        .ctx_default = 2048,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_bloom, [SN_CONTAINER_GGUF] = &naming_gguf_bloom},
    },
    {.name = NULL},
};
