/* The table of model families, as data in three layers:
 *
 *   1. macros with the tensor names that several families share (HF_ATTENTION, GGUF_NORMS, ...),
 *   2. one sn_tensor_naming for each way of naming the tensors in a container,
 *   3. families[]: one descriptor for each family, or for each variant of a family (Falcon), with its namings.
 *
 * The functions at the end look things up in this table. */
#include "model/family.h"

#include <stdio.h>
#include <string.h>

#define HF_ENDS                                                                                                        \
    [SN_ROLE_TOKEN_EMBEDDING] = "model.embed_tokens.weight", [SN_ROLE_OUTPUT_NORM] = "model.norm.weight",              \
    [SN_ROLE_OUTPUT] = "lm_head.weight"
#define HF_ATTENTION                                                                                                   \
    [SN_ROLE_ATTN_Q] = "self_attn.q_proj.weight", [SN_ROLE_ATTN_K] = "self_attn.k_proj.weight",                        \
    [SN_ROLE_ATTN_V] = "self_attn.v_proj.weight", [SN_ROLE_ATTN_O] = "self_attn.o_proj.weight",                        \
    [SN_ROLE_ATTN_Q_BIAS] = "self_attn.q_proj.bias", [SN_ROLE_ATTN_K_BIAS] = "self_attn.k_proj.bias",                  \
    [SN_ROLE_ATTN_V_BIAS] = "self_attn.v_proj.bias", [SN_ROLE_ATTN_O_BIAS] = "self_attn.o_proj.bias",                  \
    [SN_ROLE_ATTN_Q_NORM] = "self_attn.q_norm.weight", [SN_ROLE_ATTN_K_NORM] = "self_attn.k_norm.weight"
#define HF_FEED_FORWARD                                                                                                \
    [SN_ROLE_FFN_GATE] = "mlp.gate_proj.weight", [SN_ROLE_FFN_UP] = "mlp.up_proj.weight",                              \
    [SN_ROLE_FFN_DOWN] = "mlp.down_proj.weight"
#define HF_NORMS [SN_ROLE_ATTN_NORM] = "input_layernorm.weight", [SN_ROLE_FFN_NORM] = "post_attention_layernorm.weight"

#define GGUF_ENDS                                                                                                      \
    [SN_ROLE_TOKEN_EMBEDDING] = "token_embd.weight", [SN_ROLE_OUTPUT_NORM] = "output_norm.weight",                     \
    [SN_ROLE_OUTPUT] = "output.weight"
#define GGUF_ATTENTION                                                                                                 \
    [SN_ROLE_ATTN_Q] = "attn_q.weight", [SN_ROLE_ATTN_K] = "attn_k.weight", [SN_ROLE_ATTN_V] = "attn_v.weight",        \
    [SN_ROLE_ATTN_O] = "attn_output.weight", [SN_ROLE_ATTN_Q_BIAS] = "attn_q.bias",                                    \
    [SN_ROLE_ATTN_K_BIAS] = "attn_k.bias", [SN_ROLE_ATTN_V_BIAS] = "attn_v.bias",                                      \
    [SN_ROLE_ATTN_O_BIAS] = "attn_output.bias", [SN_ROLE_ATTN_Q_NORM] = "attn_q_norm.weight",                          \
    [SN_ROLE_ATTN_K_NORM] = "attn_k_norm.weight"
#define GGUF_FEED_FORWARD                                                                                              \
    [SN_ROLE_FFN_GATE] = "ffn_gate.weight", [SN_ROLE_FFN_UP] = "ffn_up.weight", [SN_ROLE_FFN_DOWN] = "ffn_down.weight"
#define GGUF_EXPERTS                                                                                                   \
    [SN_ROLE_ROUTER] = "ffn_gate_inp.weight", [SN_ROLE_EXPERTS_GATE] = "ffn_gate_exps.weight",                         \
    [SN_ROLE_EXPERTS_UP] = "ffn_up_exps.weight", [SN_ROLE_EXPERTS_DOWN] = "ffn_down_exps.weight"
#define GGUF_NORMS [SN_ROLE_ATTN_NORM] = "attn_norm.weight", [SN_ROLE_FFN_NORM] = "ffn_norm.weight"

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
static const sn_tensor_naming naming_gguf = {
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

#define GGUF_POST_NORMS                                                                                                \
    [SN_ROLE_ATTN_POST_NORM] = "post_attention_norm.weight", [SN_ROLE_FFN_POST_NORM] = "post_ffw_norm.weight"

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
    .softmax_over_all = true,
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
    .ff_multiple = 4, .ctx_default = 2048, .config_fields = falcon_reads

#define USUAL_NAMES {[SN_CONTAINER_SAFETENSORS] = &naming_hf, [SN_CONTAINER_GGUF] = &naming_gguf}

static const sn_family families[] = {
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
        .qk_norm = true,
        .window = SN_WINDOW_SWITCHED,
        .naming = USUAL_NAMES,
    },
    {
        .name = "phi3",
        .gguf_architecture = "phi3",
        .gguf_rope = SN_ROPE_NEOX,
        .window = SN_WINDOW_GIVEN,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_phi3, [SN_CONTAINER_GGUF] = &naming_gguf_phi3},
    },
    {
        .name = "olmo2",
        .gguf_architecture = "olmo2",
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_IF_DECLARED,
        .qk_norm = true,
        .qk_norm_wide = true,
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_olmo2, [SN_CONTAINER_GGUF] = &naming_gguf_olmo2},
    },
    {
        .name = "gemma3_text",
        .gguf_architecture = "gemma3",
        .gguf_rope = SN_ROPE_NEOX,
        .qkv_bias = SN_IF_DECLARED,
        .qk_norm = true,
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
        .naming = {[SN_CONTAINER_SAFETENSORS] = &naming_hf_qwen3_moe, [SN_CONTAINER_GGUF] = &naming_gguf},
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
};

enum { N_FAMILIES = sizeof families / sizeof *families };

static const char *family_name_in(const sn_family *family, sn_container container) {
    return container == SN_CONTAINER_GGUF ? family->gguf_architecture : family->name;
}

sn_status sn_family_find(sn_container container, const char *name, const sn_family **out, sn_err *err) {
    char known[256] = "";
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const char *own = family_name_in(&families[i], container);
        if (!own) continue;
        if (!strcmp(own, name)) {
            *out = &families[i];
            return SN_OK;
        }
        if (i && family_name_in(&families[i - 1], container) &&
            !strcmp(own, family_name_in(&families[i - 1], container)))
            continue;
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", own);
    }
    return sn_fail(err, SN_REFUSED, "models of the family '%.64s' cannot be run; these can: %s", name, known);
}

const sn_family *sn_family_variant(const sn_family *first, int n) {
    const sn_family *at = first + n;
    return at < families + N_FAMILIES && !strcmp(at->name, first->name) ? at : NULL;
}

bool sn_family_tensor_name(const sn_family *family, sn_container container, sn_role role, int block, int expert,
                           char out[SN_TENSOR_NAME_MAX]) {
    const sn_tensor_naming *naming = family->naming[container];
    const char *name = naming->names[role], *star = name ? strchr(name, '*') : NULL;
    if (!name) return false;
    if (role < SN_ROLE_FIRST_OF_BLOCK)
        snprintf(out, SN_TENSOR_NAME_MAX, "%s", name);
    else if (star)
        snprintf(out, SN_TENSOR_NAME_MAX, "%s%d.%.*s%d%s", naming->block_prefix, block, (int)(star - name), name,
                 expert, star + 1);
    else
        snprintf(out, SN_TENSOR_NAME_MAX, "%s%d.%s", naming->block_prefix, block, name);
    return true;
}

bool sn_family_stacks_experts(const sn_family *family, sn_container container, sn_role role) {
    const char *name = family->naming[container]->names[role];
    return name && role >= SN_ROLE_EXPERTS_GATE && role <= SN_ROLE_EXPERTS_DOWN && !strchr(name, '*');
}

bool sn_family_has_role(const sn_family *family, const sn_hparams *hparams, sn_role role) {
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
        return hparams->qk_norm;
    case SN_ROLE_ROUTER:
    case SN_ROLE_EXPERTS_GATE:
    case SN_ROLE_EXPERTS_UP:
    case SN_ROLE_EXPERTS_DOWN:
        return hparams->n_experts;
    case SN_ROLE_FFN_GATE:
    case SN_ROLE_FFN_UP:
    case SN_ROLE_FFN_DOWN:
        if (hparams->n_experts) return false;
        __attribute__((fallthrough));
    default:
        return family->naming[SN_CONTAINER_SAFETENSORS]->names[role] != NULL;
    }
}

bool sn_family_ignores(const char *tensor_name) {
    static const char *const endings[] = {"rope_freqs.weight", ".rotary_emb.inv_freq"};
    size_t len = strlen(tensor_name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t ending = strlen(endings[i]);
        if (len >= ending && !strcmp(tensor_name + len - ending, endings[i])) return true;
    }
    return false;
}
