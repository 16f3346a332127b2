/* The families, as data in two layers: one sn_tensor_naming for each way of naming the tensors in a container (and, for
 * mixtures, what config.json says of the router and its defaults), then one descriptor for each family, or for each
 * variant of a family. Families that are alike begin with the same macro and say what differs. */
#include "model/family.h"

#include <stddef.h>

#define NAMED(safetensors, gguf) .naming = {[SN_CONTAINER_SAFETENSORS] = (safetensors), [SN_CONTAINER_GGUF] = (gguf)}

/* ---- names that several families share ---- */

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
#define GGUF_SHARED_EXPERT                                                                                             \
    [SN_ROLE_SHARED_GATE] = "ffn_gate_shexp.weight", [SN_ROLE_SHARED_UP] = "ffn_up_shexp.weight",                      \
    [SN_ROLE_SHARED_DOWN] = "ffn_down_shexp.weight", [SN_ROLE_SHARED_ROUTER] = "ffn_gate_inp_shexp.weight"
#define GGUF_SHARED GGUF_SHARED_EXPERT, [SN_ROLE_ROUTER_CORRECTION] = "exp_probs_b.bias"
#define GGUF_NORMS  [SN_ROLE_ATTN_NORM] = "attn_norm.weight", [SN_ROLE_FFN_NORM] = "ffn_norm.weight"
#define GGUF_POST_NORMS                                                                                                \
    [SN_ROLE_ATTN_POST_NORM] = "post_attention_norm.weight", [SN_ROLE_FFN_POST_NORM] = "post_ffw_norm.weight"

/* The block behind the last one, which predicts a further token. */
#define HF_NEXT_OF(output_norm)                                                                                        \
    [SN_ROLE_NEXT_EMBED_NORM] = "enorm.weight", [SN_ROLE_NEXT_HIDDEN_NORM] = "hnorm.weight",                           \
    [SN_ROLE_NEXT_INPUT] = "eh_proj.weight", [SN_ROLE_NEXT_OUTPUT_NORM] = output_norm
#define HF_NEXT HF_NEXT_OF("shared_head.norm.weight")
#define HF_NEXT_MTP                                                                                                    \
    [SN_ROLE_NEXT_EMBED_NORM] = "pre_fc_norm_embedding.weight",                                                        \
    [SN_ROLE_NEXT_HIDDEN_NORM] = "pre_fc_norm_hidden.weight", [SN_ROLE_NEXT_INPUT] = "fc.weight",                      \
    [SN_ROLE_NEXT_OUTPUT_NORM] = "norm.weight"
#define GGUF_NEXT                                                                                                      \
    [SN_ROLE_NEXT_EMBED_NORM] = "nextn.enorm.weight", [SN_ROLE_NEXT_HIDDEN_NORM] = "nextn.hnorm.weight",               \
    [SN_ROLE_NEXT_INPUT] = "nextn.eh_proj.weight", [SN_ROLE_NEXT_OUTPUT_NORM] = "nextn.shared_head_norm.weight"

/* Most families have these ends, this attention, and in folders these norms. */
#define HF_NAMES(...)   .block_prefix = "model.layers.", .names = {HF_ENDS, HF_ATTENTION, HF_NORMS, __VA_ARGS__}
#define GGUF_NAMES(...) .block_prefix = "blk.", .names = {GGUF_ENDS, GGUF_ATTENTION, __VA_ARGS__}

/* ---- every row passes through the same feed-forward ---- */

static const sn_tensor_naming naming_hf = {HF_NAMES(HF_FEED_FORWARD)};

static const sn_tensor_naming naming_gguf = {GGUF_NAMES(GGUF_FEED_FORWARD, GGUF_EXPERTS, GGUF_NORMS)};

/* Phi-3: Q, K and V in one matrix, gate and up in another. */
static const sn_tensor_naming naming_hf_phi3 = {
    .block_prefix = "model.layers.",
    .names = {HF_ENDS, HF_NORMS, [SN_ROLE_ATTN_Q] = "self_attn.qkv_proj.weight",
              [SN_ROLE_ATTN_K] = "self_attn.qkv_proj.weight", [SN_ROLE_ATTN_V] = "self_attn.qkv_proj.weight",
              [SN_ROLE_ATTN_O] = "self_attn.o_proj.weight", [SN_ROLE_FFN_GATE] = "mlp.gate_up_proj.weight",
              [SN_ROLE_FFN_UP] = "mlp.gate_up_proj.weight", [SN_ROLE_FFN_DOWN] = "mlp.down_proj.weight"},
    .qkv = SN_QKV_FUSED,
    .gate_up_fused = true};

static const sn_tensor_naming naming_gguf_phi3 = {
    .block_prefix = "blk.",
    .names = {GGUF_ENDS, GGUF_NORMS, [SN_ROLE_ATTN_Q] = "attn_qkv.weight", [SN_ROLE_ATTN_K] = "attn_qkv.weight",
              [SN_ROLE_ATTN_V] = "attn_qkv.weight", [SN_ROLE_ATTN_O] = "attn_output.weight",
              [SN_ROLE_FFN_GATE] = "ffn_up.weight", [SN_ROLE_FFN_UP] = "ffn_up.weight",
              [SN_ROLE_FFN_DOWN] = "ffn_down.weight"},
    .qkv = SN_QKV_FUSED,
    .gate_up_fused = true};

/* Gemma 3: norms before and after each half of a block. */
static const sn_tensor_naming naming_hf_gemma3 = {
    .block_prefix = "model.layers.",
    .names = {HF_ENDS, HF_ATTENTION, HF_FEED_FORWARD, [SN_ROLE_ATTN_NORM] = "input_layernorm.weight",
              [SN_ROLE_ATTN_POST_NORM] = "post_attention_layernorm.weight",
              [SN_ROLE_FFN_NORM] = "pre_feedforward_layernorm.weight",
              [SN_ROLE_FFN_POST_NORM] = "post_feedforward_layernorm.weight"}};
static const sn_tensor_naming naming_gguf_gemma3 = {GGUF_NAMES(GGUF_FEED_FORWARD, GGUF_NORMS, GGUF_POST_NORMS)};
static const char *const gemma2_reads[] = {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
                                           NULL};
static const char *const gemma3_reads[] = {"query_pre_attn_scalar", NULL};

#define GEMMA                                                                                                          \
    .activation_field = "hidden_activation", .gguf_rope = SN_ROPE_NEOX, .qkv_bias = SN_IF_DECLARED,                    \
    .window = SN_WINDOW_GIVEN, .window_default = 4096, .head_dim_default = 256, .attn_scalar_default = 256,            \
    .activation_default = SN_GELU_TANH, .tied_default = true, .norm_plus_one = true, .scales_embeddings = true,        \
    NAMED(&naming_hf_gemma3, &naming_gguf_gemma3)

/* Gemma 4: a scale for each block; mixtures have a feed-forward beside the experts. */
#define HF_GEMMA4                                                                                                      \
    HF_ENDS, HF_ATTENTION, [SN_ROLE_BLOCK_SCALE] = "layer_scalar", [SN_ROLE_ATTN_NORM] = "input_layernorm.weight",     \
                           [SN_ROLE_ATTN_POST_NORM] = "post_attention_layernorm.weight",                               \
                           [SN_ROLE_FFN_NORM] = "pre_feedforward_layernorm.weight",                                    \
                           [SN_ROLE_FFN_POST_NORM] = "post_feedforward_layernorm.weight", HF_FEED_FORWARD
#define GGUF_GEMMA4 GGUF_FEED_FORWARD, GGUF_NORMS, GGUF_POST_NORMS, [SN_ROLE_BLOCK_SCALE] = "layer_output_scale.weight"
static const sn_tensor_naming naming_hf_gemma4 = {.block_prefix = "model.layers.", .names = {HF_GEMMA4}};
static const sn_tensor_naming naming_gguf_gemma4 = {GGUF_NAMES(GGUF_GEMMA4)};
static const sn_tensor_naming naming_hf_gemma4_moe = {
    .block_prefix = "model.layers.",
    .names = {HF_GEMMA4, [SN_ROLE_SHARED_GATE] = "mlp.gate_proj.weight", [SN_ROLE_SHARED_UP] = "mlp.up_proj.weight",
              [SN_ROLE_SHARED_DOWN] = "mlp.down_proj.weight", [SN_ROLE_EXPERTS_GATE] = "experts.gate_up_proj",
              [SN_ROLE_EXPERTS_UP] = "experts.gate_up_proj", [SN_ROLE_EXPERTS_DOWN] = "experts.down_proj",
              [SN_ROLE_ROUTER] = "router.proj.weight", [SN_ROLE_ROUTER_NORM] = "router.scale",
              [SN_ROLE_ROUTER_FACTORS] = "router.per_expert_scale",
              [SN_ROLE_SHARED_POST_NORM] = "post_feedforward_layernorm_1.weight",
              [SN_ROLE_EXPERTS_NORM] = "pre_feedforward_layernorm_2.weight",
              [SN_ROLE_EXPERTS_POST_NORM] = "post_feedforward_layernorm_2.weight"},
    .gate_up_fused = true};
static const sn_tensor_naming naming_gguf_gemma4_moe = {GGUF_NAMES(
    GGUF_GEMMA4, GGUF_EXPERTS, [SN_ROLE_SHARED_GATE] = "ffn_gate.weight", [SN_ROLE_SHARED_UP] = "ffn_up.weight",
    [SN_ROLE_SHARED_DOWN] = "ffn_down.weight", [SN_ROLE_ROUTER_NORM] = "ffn_gate_inp.scale",
    [SN_ROLE_ROUTER_FACTORS] = "ffn_down_exps.scale", [SN_ROLE_SHARED_POST_NORM] = "post_ffw_norm_1.weight",
    [SN_ROLE_EXPERTS_NORM] = "pre_ffw_norm_2.weight", [SN_ROLE_EXPERTS_POST_NORM] = "post_ffw_norm_2.weight")};
static const sn_heads_config gemma4_heads = {.full = true,
                                             .n_kv = "num_global_key_value_heads",
                                             .n_kv_if = "attention_k_eq_v",
                                             .key_dim = "global_head_dim",
                                             .key_dim_default = 512};
static const sn_moe_config gemma4_experts = {.width = "moe_intermediate_size",
                                             .enabled_by = "enable_moe_block",
                                             .beside = true,
                                             .n_ff = 704,
                                             .n_experts = 128,
                                             .n_experts_used = 8,
                                             .scoring = SN_ROUTER_SOFTMAX,
                                             .shared_width = "intermediate_size"};
static const char *const gemma4_reads[] = {"final_logit_softcapping", "num_experts", "use_bidirectional_attention",
                                           NULL};

#define GEMMA4                                                                                                         \
    .name = "gemma4_text", .gguf_architecture = "gemma4", .gguf_rope = SN_ROPE_NEOX, .qkv_bias = SN_IF_DECLARED,       \
    .activation_field = "hidden_activation", .activation_default = SN_GELU_TANH, .tied_default = true,                 \
    .scales_embeddings = true, .head_dim_default = 256, .heads = &gemma4_heads, .norm_values = true, .unscaled = true, \
    .proportional = true, .qk_norm = SN_ALWAYS, .logit_softcap = true, .rope_required = true,                          \
    .window = SN_WINDOW_GIVEN, .window_default = 512, .window_pattern = 6, .theta_default = 1e6, .local_theta = 1e4,   \
    .rotates_part = true, .wrapped = true, .config_fields = gemma4_reads

/* OLMo 2: norms after each half of a block, none before. */
static const sn_tensor_naming naming_hf_olmo2 = {
    .block_prefix = "model.layers.",
    .names = {HF_ENDS, HF_ATTENTION, HF_FEED_FORWARD, [SN_ROLE_ATTN_POST_NORM] = "post_attention_layernorm.weight",
              [SN_ROLE_FFN_POST_NORM] = "post_feedforward_layernorm.weight"}};
static const sn_tensor_naming naming_gguf_olmo2 = {GGUF_NAMES(GGUF_FEED_FORWARD, GGUF_POST_NORMS)};

#define OLMO                                                                                                           \
    .eps_default = 1e-5, .gguf_rope = SN_ROPE_NEOX, .qkv_bias = SN_IF_DECLARED, .qk_norm = SN_ALWAYS,                  \
    .qk_norm_wide = true, NAMED(&naming_hf_olmo2, &naming_gguf_olmo2)

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
    HF_FUSED, .names = {HF_FUSED_ENDS, HF_FUSED_BLOCK, FUSED_NORMS("ln_attn", "ln_mlp")}};
static const sn_tensor_naming naming_hf_falcon_shared = {
    HF_FUSED, .names = {HF_FUSED_ENDS, HF_FUSED_BLOCK, FUSED_NORMS("input_layernorm", "input_layernorm")}};
static const sn_tensor_naming naming_hf_falcon_serial = {
    HF_FUSED, .names = {HF_FUSED_ENDS, HF_FUSED_BLOCK, FUSED_NORMS("input_layernorm", "post_attention_layernorm")}};
static const sn_tensor_naming naming_hf_bloom = {
    HF_FUSED, .names = {HF_FUSED_ENDS, HF_FUSED_BLOCK, FUSED_NORMS("input_layernorm", "post_attention_layernorm"),
                        [SN_ROLE_EMBED_NORM] = "transformer.word_embeddings_layernorm.weight",
                        [SN_ROLE_EMBED_NORM_BIAS] = "transformer.word_embeddings_layernorm.bias"}};

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
    GGUF_FUSED, .names = {GGUF_ENDS, GGUF_FUSED_BLOCK, FUSED_NORMS("attn_norm_2", "attn_norm")}};
static const sn_tensor_naming naming_gguf_falcon_shared = {
    GGUF_FUSED, .names = {GGUF_ENDS, GGUF_FUSED_BLOCK, FUSED_NORMS("attn_norm", "attn_norm")}};
static const sn_tensor_naming naming_gguf_bloom = {
    GGUF_FUSED,
    .names = {GGUF_ENDS, GGUF_FUSED_BLOCK, FUSED_NORMS("attn_norm", "ffn_norm"),
              [SN_ROLE_EMBED_NORM] = "token_embd_norm.weight", [SN_ROLE_EMBED_NORM_BIAS] = "token_embd_norm.bias"}};

static const char *const falcon_reads[] = {"parallel_attn", "new_decoder_architecture", NULL};

#define FALCON                                                                                                         \
    .name = "falcon", .gguf_architecture = "falcon", .gguf_rope = SN_ROPE_NEOX, .qkv_bias = SN_IF_DECLARED,            \
    .linear_bias = SN_IF_DECLARED, .layer_norm = true, .activation_default = SN_GELU, .tied_default = true,            \
    .activation_field = "activation", .eps_field = "layer_norm_epsilon", .ff_multiple = 4, .ctx_default = 2048,        \
    .config_fields = falcon_reads

/* Cohere 2: one norm for both halves, without a bias. */
static const sn_tensor_naming naming_hf_cohere2 = {
    .block_prefix = "model.layers.",
    .names = {HF_ENDS, HF_ATTENTION, HF_FEED_FORWARD, [SN_ROLE_ATTN_NORM] = "input_layernorm.weight",
              [SN_ROLE_FFN_NORM] = "input_layernorm.weight"}};
static const sn_tensor_naming naming_gguf_cohere2 = {
    GGUF_NAMES(GGUF_FEED_FORWARD, [SN_ROLE_ATTN_NORM] = "attn_norm.weight", [SN_ROLE_FFN_NORM] = "attn_norm.weight")};
static const char *const cohere2_reads[] = {"logit_scale", NULL};

static const char *const smollm3_reads[] = {"no_rope_layers", NULL};
static const char *const granite_reads[] = {"embedding_multiplier", "attention_multiplier", "residual_multiplier",
                                            "logits_scaling", NULL};

/* ---- a router chooses experts for every row ---- */

#define HF_MIXTRAL_EXPERTS                                                                                             \
    [SN_ROLE_ROUTER] = "block_sparse_moe.gate.weight",                                                                 \
    [SN_ROLE_EXPERTS_GATE] = "block_sparse_moe.experts.*.w1.weight",                                                   \
    [SN_ROLE_EXPERTS_UP] = "block_sparse_moe.experts.*.w3.weight",                                                     \
    [SN_ROLE_EXPERTS_DOWN] = "block_sparse_moe.experts.*.w2.weight"
#define HF_EXPERTS                                                                                                     \
    [SN_ROLE_EXPERTS_GATE] = "mlp.experts.*.gate_proj.weight", [SN_ROLE_EXPERTS_UP] = "mlp.experts.*.up_proj.weight",  \
    [SN_ROLE_EXPERTS_DOWN] = "mlp.experts.*.down_proj.weight"
#define HF_QWEN_EXPERTS HF_EXPERTS, [SN_ROLE_ROUTER] = "mlp.gate.weight"

/* Mixtures of experts: the names of Mixtral and of Qwen 3. */
static const sn_tensor_naming naming_hf_mixtral = {HF_NAMES(HF_MIXTRAL_EXPERTS)};
static const sn_tensor_naming naming_hf_qwen3_moe = {HF_NAMES(HF_QWEN_EXPERTS)};
static const sn_moe_config mixtral_experts = {
    .width = "intermediate_size", .n_experts = 8, .n_experts_used = 2, .n_ff = 14336};
static const sn_moe_config qwen3_experts = {.width = "moe_intermediate_size",
                                            .n_experts = 128,
                                            .n_experts_used = 8,
                                            .n_ff = 768,
                                            .scoring = SN_ROUTER_SOFTMAX_ALL,
                                            .normalised = SN_IF_DECLARED,
                                            .gguf_normalised = true};
/* Qwen 2: a shared expert behind a sigmoid. GLM 4: a shared expert, a correction; blocks without experts come first. */
static const sn_tensor_naming naming_hf_qwen2_moe = {
    HF_NAMES(HF_FEED_FORWARD, HF_QWEN_EXPERTS, [SN_ROLE_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",
             [SN_ROLE_SHARED_UP] = "mlp.shared_expert.up_proj.weight",
             [SN_ROLE_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",
             [SN_ROLE_SHARED_ROUTER] = "mlp.shared_expert_gate.weight")};
static const sn_tensor_naming naming_hf_glm4_moe = {HF_NAMES(
    HF_FEED_FORWARD, HF_NEXT, HF_QWEN_EXPERTS, [SN_ROLE_ROUTER_CORRECTION] = "mlp.gate.e_score_correction_bias",
    [SN_ROLE_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight",
    [SN_ROLE_SHARED_UP] = "mlp.shared_experts.up_proj.weight",
    [SN_ROLE_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight")};
static const sn_tensor_naming naming_hf_hy_v3 = {HF_NAMES(
    HF_FEED_FORWARD, HF_EXPERTS, HF_NEXT_OF("final_layernorm.weight"), [SN_ROLE_ROUTER] = "mlp.router.gate.weight",
    [SN_ROLE_ROUTER_CORRECTION] = "mlp.expert_bias", [SN_ROLE_SHARED_GATE] = "mlp.shared_mlp.gate_proj.weight",
    [SN_ROLE_SHARED_UP] = "mlp.shared_mlp.up_proj.weight", [SN_ROLE_SHARED_DOWN] = "mlp.shared_mlp.down_proj.weight")};
static const sn_tensor_naming naming_hf_ernie4_5_moe = {
    HF_NAMES(HF_FEED_FORWARD, HF_QWEN_EXPERTS, [SN_ROLE_ROUTER_CORRECTION] = "mlp.moe_statics.e_score_correction_bias",
             [SN_ROLE_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight",
             [SN_ROLE_SHARED_UP] = "mlp.shared_experts.up_proj.weight",
             [SN_ROLE_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight")};
static const sn_tensor_naming naming_hf_minimax_m2 = {
    HF_NAMES(HF_MIXTRAL_EXPERTS, [SN_ROLE_ROUTER_CORRECTION] = "block_sparse_moe.e_score_correction_bias")};
static const sn_tensor_naming naming_gguf_shared = {
    GGUF_NAMES(GGUF_FEED_FORWARD, GGUF_EXPERTS, GGUF_SHARED, GGUF_NORMS)};
static const sn_tensor_naming naming_gguf_hy_v3 = {GGUF_NAMES(GGUF_FEED_FORWARD, GGUF_EXPERTS, GGUF_SHARED_EXPERT,
                                                              GGUF_NEXT,
                                                              GGUF_NORMS, [SN_ROLE_ROUTER_CORRECTION] = "exp_probs_b")};
/* Seed-OSS: in GGUF the second norm has the name of a post-norm. */
static const sn_tensor_naming naming_gguf_seed_oss = {GGUF_NAMES(
    GGUF_FEED_FORWARD, [SN_ROLE_ATTN_NORM] = "attn_norm.weight", [SN_ROLE_FFN_NORM] = "post_attention_norm.weight")};
static const sn_tensor_naming naming_gguf_glm4_moe = {GGUF_NAMES(
    GGUF_FEED_FORWARD, GGUF_NEXT, GGUF_EXPERTS,
    GGUF_SHARED, [SN_ROLE_ATTN_NORM] = "attn_norm.weight", [SN_ROLE_FFN_NORM] = "post_attention_norm.weight")};
static const sn_moe_config qwen2_experts = {.width = "moe_intermediate_size",
                                            .n_experts = 60,
                                            .n_experts_used = 4,
                                            .n_ff = 1408,
                                            .scoring = SN_ROUTER_SOFTMAX_ALL,
                                            .normalised = SN_IF_DECLARED,
                                            .dense_width = "intermediate_size",
                                            .shared_width = "shared_expert_intermediate_size",
                                            .n_ff_shared = 5632,
                                            .shared_gated = true};
static const sn_moe_config glm4_experts = {.width = "moe_intermediate_size",
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
                                           .n_dense = 1};
static const sn_moe_config hy_v3_experts = {.width = "moe_intermediate_size",
                                            .n_experts = 192,
                                            .n_experts_used = 8,
                                            .n_ff = 1536,
                                            .scoring = SN_ROUTER_SIGMOID,
                                            .normalised = SN_ALWAYS,
                                            .gguf_normalised = true,
                                            .scale_default = 2.826,
                                            .scale_field = "router_scaling_factor",
                                            .correction = true,
                                            .dense_width = "intermediate_size",
                                            .shared_count = "num_shared_experts",
                                            .n_shared = 1,
                                            .n_dense = 1};
static const sn_moe_config ernie_experts = {.width = "moe_intermediate_size",
                                            .n_experts = 64,
                                            .n_experts_used = 6,
                                            .n_ff = 1536,
                                            .scoring = SN_ROUTER_SOFTMAX_ALL,
                                            .normalised = SN_ALWAYS,
                                            .gguf_normalised = true,
                                            .correction = true,
                                            .dense_width = "intermediate_size",
                                            .shared_count = "moe_num_shared_experts",
                                            .gguf_shared_counted = true,
                                            .n_shared = 2,
                                            .n_dense = 1};
static const sn_moe_config olmoe_experts = {.width = "intermediate_size",
                                            .n_experts = 64,
                                            .n_experts_used = 8,
                                            .n_ff = 2048,
                                            .scoring = SN_ROUTER_SOFTMAX_ALL,
                                            .normalised = SN_IF_DECLARED};
static const sn_moe_config minimax_experts = {.width = "intermediate_size",
                                              .n_experts = 8,
                                              .n_experts_used = 2,
                                              .n_ff = 14336,
                                              .scoring = SN_ROUTER_SIGMOID,
                                              .normalised = SN_ALWAYS,
                                              .gguf_normalised = true,
                                              .correction = true};
static const char *const glm4_reads[] = {"num_experts", "num_local_experts", "n_routed_experts", "use_qk_norm", NULL};
static const char *const ernie_reads[] = {"num_experts", NULL};
static const char *const minimax_reads[] = {"num_local_experts", "use_qk_norm", "rotary_dim", NULL};
/* Llama 4: experts stored transposed, which take their weight with the input; blocks with and without experts. */
static const sn_tensor_naming naming_hf_llama4 = {
    HF_NAMES([SN_ROLE_FFN_GATE] = "feed_forward.gate_proj.weight", [SN_ROLE_FFN_UP] = "feed_forward.up_proj.weight",
             [SN_ROLE_FFN_DOWN] = "feed_forward.down_proj.weight", [SN_ROLE_ROUTER] = "feed_forward.router.weight",
             [SN_ROLE_EXPERTS_GATE] = "feed_forward.experts.gate_up_proj",
             [SN_ROLE_EXPERTS_UP] = "feed_forward.experts.gate_up_proj",
             [SN_ROLE_EXPERTS_DOWN] = "feed_forward.experts.down_proj",
             [SN_ROLE_SHARED_GATE] = "feed_forward.shared_expert.gate_proj.weight",
             [SN_ROLE_SHARED_UP] = "feed_forward.shared_expert.up_proj.weight",
             [SN_ROLE_SHARED_DOWN] = "feed_forward.shared_expert.down_proj.weight"),
    .experts_transposed = true, .gate_up_halves = true};
static const sn_moe_config llama4_experts = {.width = "intermediate_size",
                                             .n_experts = 16,
                                             .n_experts_used = 1,
                                             .n_ff = 8192,
                                             .scoring = SN_ROUTER_SIGMOID,
                                             .dense_width = "intermediate_size_mlp",
                                             .shared_width = "intermediate_size",
                                             .scales_input = true};
static const char *const llama4_reads[] = {"num_local_experts", "no_rope_layers", "attention_chunk_size", "use_qk_norm",
                                           NULL};
static const char *const moe_reads[] = {"num_experts", "num_local_experts", NULL};
static const char *const qwen2_moe_reads[] = {"num_experts", "num_local_experts", "qkv_bias", NULL};

/* gpt-oss: biases of all matrices, attention sinks, experts stored transposed. */
static const sn_tensor_naming naming_hf_gpt_oss = {
    HF_NAMES([SN_ROLE_ATTN_SINKS] = "self_attn.sinks", [SN_ROLE_ROUTER] = "mlp.router.weight",
             [SN_ROLE_ROUTER_BIAS] = "mlp.router.bias", [SN_ROLE_EXPERTS_GATE] = "mlp.experts.gate_up_proj",
             [SN_ROLE_EXPERTS_UP] = "mlp.experts.gate_up_proj", [SN_ROLE_EXPERTS_DOWN] = "mlp.experts.down_proj",
             [SN_ROLE_EXPERTS_GATE_BIAS] = "mlp.experts.gate_up_proj_bias",
             [SN_ROLE_EXPERTS_UP_BIAS] = "mlp.experts.gate_up_proj_bias",
             [SN_ROLE_EXPERTS_DOWN_BIAS] = "mlp.experts.down_proj_bias"),
    .experts_transposed = true};
static const sn_tensor_naming naming_gguf_gpt_oss = {
    GGUF_NAMES(GGUF_EXPERTS, [SN_ROLE_ATTN_NORM] = "attn_norm.weight", [SN_ROLE_ATTN_SINKS] = "attn_sinks.weight",
               [SN_ROLE_FFN_NORM] = "post_attention_norm.weight", [SN_ROLE_ROUTER_BIAS] = "ffn_gate_inp.bias",
               [SN_ROLE_EXPERTS_GATE_BIAS] = "ffn_gate_exps.bias", [SN_ROLE_EXPERTS_UP_BIAS] = "ffn_up_exps.bias",
               [SN_ROLE_EXPERTS_DOWN_BIAS] = "ffn_down_exps.bias")};
static const sn_moe_config gpt_oss_experts = {
    .width = "intermediate_size", .n_experts = 128, .n_experts_used = 4, .n_ff = 2880};
/* MiMo-V2: values narrower than keys, other key/value heads and sinks in blocks with a window. */
static const sn_tensor_naming naming_hf_mimo2 = {
    HF_NAMES(HF_FEED_FORWARD, HF_QWEN_EXPERTS, [SN_ROLE_ROUTER_CORRECTION] = "mlp.gate.e_score_correction_bias",
             [SN_ROLE_ATTN_SINKS] = "self_attn.attention_sink_bias")};
static const sn_tensor_naming naming_gguf_mimo2 = {GGUF_NAMES(
    GGUF_FEED_FORWARD, GGUF_EXPERTS,
    GGUF_NORMS, [SN_ROLE_ROUTER_CORRECTION] = "exp_probs_b.bias", [SN_ROLE_ATTN_SINKS] = "attn_sinks.weight")};
static const sn_heads_config mimo2_heads = {.n = "swa_num_attention_heads",
                                            .n_kv = "swa_num_key_value_heads",
                                            .key_dim = "swa_head_dim",
                                            .value_dim = "swa_v_head_dim",
                                            .n_kv_times = 2};
static const sn_moe_config mimo2_experts = {.width = "moe_intermediate_size",
                                            .n_experts = 256,
                                            .n_experts_used = 8,
                                            .n_ff = 2048,
                                            .scoring = SN_ROUTER_SIGMOID,
                                            .normalised = SN_IF_DECLARED,
                                            .normalised_default = true,
                                            .gguf_normalised = true,
                                            .scale_default = 1,
                                            .correction = true,
                                            .groups_by = "noaux_tc",
                                            .dense_width = "intermediate_size",
                                            .dense_list = "moe_layer_freq",
                                            .n_dense = 1};
static const char *const mimo2_reads[] = {"n_routed_experts", "num_local_experts",    "n_group",
                                          "topk_group",       "hybrid_layer_pattern", NULL};
/* Step 3.5: other heads in blocks with a window, a gate for each head, the shared expert beside the mixture. */
static const sn_tensor_naming naming_hf_step35 = {HF_NAMES(
    HF_FEED_FORWARD, [SN_ROLE_ATTN_HEAD_GATE] = "self_attn.g_proj.weight", [SN_ROLE_ROUTER] = "moe.gate.weight",
    [SN_ROLE_ROUTER_CORRECTION] = "moe.router_bias", [SN_ROLE_EXPERTS_GATE] = "moe.gate_proj.weight",
    [SN_ROLE_EXPERTS_UP] = "moe.up_proj.weight", [SN_ROLE_EXPERTS_DOWN] = "moe.down_proj.weight",
    [SN_ROLE_SHARED_GATE] = "share_expert.gate_proj.weight", [SN_ROLE_SHARED_UP] = "share_expert.up_proj.weight",
    [SN_ROLE_SHARED_DOWN] = "share_expert.down_proj.weight")};
static const sn_tensor_naming naming_gguf_step35 = {GGUF_NAMES(
    GGUF_FEED_FORWARD, GGUF_EXPERTS, GGUF_SHARED, GGUF_NORMS, [SN_ROLE_ATTN_HEAD_GATE] = "attn_gate.weight")};
static const sn_heads_config step35_heads = {.n = "num_sliding_attention_heads", .object = "attention_other_setting"};
static const sn_moe_config step35_experts = {.width = "moe_intermediate_size",
                                             .n_experts = 288,
                                             .n_experts_used = 8,
                                             .n_ff = 1280,
                                             .scoring = SN_ROUTER_SIGMOID,
                                             .normalised = SN_ALWAYS,
                                             .gguf_normalised = true,
                                             .scale_default = 1,
                                             .scale_field = "moe_router_scaling_factor",
                                             .correction = true,
                                             .dense_width = "intermediate_size",
                                             .shared_width = "share_expert_dim",
                                             .n_ff_shared = 1280,
                                             .n_dense = 3};
static const char *const step35_reads[] = {"n_routed_experts",      "num_local_experts", "use_qk_norm",
                                           "query_pre_attn_scalar", "moe_layers_enum",   NULL};
static const char *const gpt_oss_reads[] = {"num_experts",  "num_local_experts",   "swiglu_alpha",
                                            "swiglu_limit", "quantization_config", NULL};

/* ---- most blocks have a recurrent state, the others attention whose output is gated ---- */

#define HF_DELTA                                                                                                       \
    [SN_ROLE_ATTN_GATE] = "self_attn.q_proj.weight", [SN_ROLE_DELTA_TAPS] = "linear_attn.conv1d.weight",               \
    [SN_ROLE_DELTA_RATES] = "linear_attn.A_log", [SN_ROLE_DELTA_TIME_BIAS] = "linear_attn.dt_bias",                    \
    [SN_ROLE_DELTA_NORM] = "linear_attn.norm.weight", [SN_ROLE_DELTA_OUT] = "linear_attn.out_proj.weight"
#define HF_RECURRENT                                                                                                   \
    HF_DELTA, HF_NEXT_MTP,                                                                                             \
        [SN_ROLE_DELTA_QKV] = "linear_attn.in_proj_qkv.weight", [SN_ROLE_DELTA_GATE] = "linear_attn.in_proj_z.weight", \
        [SN_ROLE_DELTA_TIME] = "linear_attn.in_proj_a.weight", [SN_ROLE_DELTA_WRITE] = "linear_attn.in_proj_b.weight"
#define HF_SHARED                                                                                                      \
    [SN_ROLE_ROUTER] = "mlp.gate.weight", [SN_ROLE_SHARED_GATE] = "mlp.shared_expert.gate_proj.weight",                \
    [SN_ROLE_SHARED_UP] = "mlp.shared_expert.up_proj.weight",                                                          \
    [SN_ROLE_SHARED_DOWN] = "mlp.shared_expert.down_proj.weight",                                                      \
    [SN_ROLE_SHARED_ROUTER] = "mlp.shared_expert_gate.weight"
#define GGUF_DELTA                                                                                                     \
    [SN_ROLE_ATTN_GATE] = "attn_q.weight", [SN_ROLE_DELTA_QKV] = "attn_qkv.weight",                                    \
    [SN_ROLE_DELTA_GATE] = "attn_gate.weight", [SN_ROLE_DELTA_TAPS] = "ssm_conv1d.weight",                             \
    [SN_ROLE_DELTA_RATES] = "ssm_a", [SN_ROLE_DELTA_TIME_BIAS] = "ssm_dt.bias",                                        \
    [SN_ROLE_DELTA_NORM] = "ssm_norm.weight", [SN_ROLE_DELTA_OUT] = "ssm_out.weight",                                  \
    [SN_ROLE_ATTN_NORM] = "attn_norm.weight", [SN_ROLE_FFN_NORM] = "post_attention_norm.weight"
#define GGUF_RECURRENT                                                                                                 \
    GGUF_DELTA, GGUF_NEXT, [SN_ROLE_DELTA_TIME] = "ssm_alpha.weight", [SN_ROLE_DELTA_WRITE] = "ssm_beta.weight"

/* Qwen3-Next: what multiplies the input of a recurrent block is two matrices. */
static const sn_tensor_naming naming_hf_qwen3_next = {
    HF_NAMES(HF_FEED_FORWARD, HF_DELTA, HF_NEXT_MTP, HF_SHARED,
             HF_EXPERTS, [SN_ROLE_DELTA_QKV] = "linear_attn.in_proj_qkvz.weight",
             [SN_ROLE_DELTA_GATE] = "linear_attn.in_proj_qkvz.weight",
             [SN_ROLE_DELTA_TIME] = "linear_attn.in_proj_ba.weight",
             [SN_ROLE_DELTA_WRITE] = "linear_attn.in_proj_ba.weight"),
    .delta_fused = true, .delta_paired = true, .q_gated = true, .next_prefix = "mtp."};
static const sn_tensor_naming naming_gguf_qwen3_next = {
    GGUF_NAMES(GGUF_FEED_FORWARD, GGUF_EXPERTS, GGUF_SHARED, GGUF_DELTA,
               GGUF_NEXT, [SN_ROLE_DELTA_TIME] = "ssm_ba.weight", [SN_ROLE_DELTA_WRITE] = "ssm_ba.weight"),
    .delta_paired = true, .q_gated = true};
static const sn_moe_config qwen3_next_experts = {.width = "moe_intermediate_size",
                                                 .n_experts = 512,
                                                 .n_experts_used = 10,
                                                 .n_ff = 512,
                                                 .scoring = SN_ROUTER_SOFTMAX_ALL,
                                                 .normalised = SN_IF_DECLARED,
                                                 .normalised_default = true,
                                                 .gguf_normalised = true,
                                                 .dense_width = "intermediate_size",
                                                 .shared_width = "shared_expert_intermediate_size",
                                                 .n_ff_shared = 512,
                                                 .shared_gated = true};
static const sn_tensor_naming naming_hf_qwen3_5 = {HF_NAMES(HF_FEED_FORWARD, HF_RECURRENT), .q_gated = true,
                                                   .next_prefix = "mtp."};
static const sn_tensor_naming naming_hf_qwen3_5_moe = {HF_NAMES(HF_RECURRENT, HF_SHARED, HF_EXPERTS), .q_gated = true,
                                                       .next_prefix = "mtp."};
/* The hub's files: all experts in one tensor. */
static const sn_tensor_naming naming_hf_qwen3_5_moe_stacked = {
    HF_NAMES(HF_RECURRENT, HF_SHARED, [SN_ROLE_EXPERTS_GATE] = "mlp.experts.gate_up_proj",
             [SN_ROLE_EXPERTS_UP] = "mlp.experts.gate_up_proj", [SN_ROLE_EXPERTS_DOWN] = "mlp.experts.down_proj"),
    .q_gated = true, .gate_up_fused = true, .next_prefix = "mtp."};
static const sn_tensor_naming naming_gguf_qwen3_5 = {GGUF_NAMES(GGUF_FEED_FORWARD, GGUF_RECURRENT), .q_gated = true};

static const sn_tensor_naming naming_gguf_qwen3_5_moe = {GGUF_NAMES(GGUF_EXPERTS, GGUF_SHARED, GGUF_RECURRENT),
                                                         .q_gated = true};

static const sn_moe_config qwen3_5_experts = {.width = "moe_intermediate_size",
                                              .n_experts = 256,
                                              .n_experts_used = 8,
                                              .n_ff = 512,
                                              .scoring = SN_ROUTER_SOFTMAX,
                                              .shared_width = "shared_expert_intermediate_size",
                                              .n_ff_shared = 512,
                                              .shared_gated = true};
static const char *const qwen3_5_moe_reads[] = {"num_experts", NULL};

#define QWEN3_5                                                                                                        \
    .gguf_rope = SN_ROPE_NEOX, .qkv_bias = SN_IF_DECLARED, .qk_norm = SN_ALWAYS, .recurrent = true,                    \
    .attn_gated = true, .wrapped = true, .further_blocks = true, .norm_plus_one = true, .head_dim_default = 256,       \
    .rotated_default = 0.25, .rotates_part = true

#define QWEN3_5_MOE                                                                                                    \
    .name = "qwen3_5_moe_text", QWEN3_5, .gguf_moe = true, .moe = &qwen3_5_experts,                                    \
    .config_fields = qwen3_5_moe_reads, .ff_multiple = 4 /* config.json has no intermediate_size */

/* ---- latent attention (MLA, DeepSeek-AI 2024) ---- */

#define HF_LATENT                                                                                                      \
    HF_ENDS, HF_NORMS, HF_FEED_FORWARD,                                                                                \
        [SN_ROLE_ATTN_Q_LOW] = "self_attn.q_a_proj.weight",                                                            \
        [SN_ROLE_ATTN_Q_LOW_NORM] = "self_attn.q_a_layernorm.weight", [SN_ROLE_ATTN_Q] = "self_attn.q_b_proj.weight",  \
        [SN_ROLE_ATTN_K] = "self_attn.kv_a_proj_with_mqa.weight",                                                      \
        [SN_ROLE_ATTN_V] = "self_attn.kv_a_proj_with_mqa.weight",                                                      \
        [SN_ROLE_ATTN_LATENT_NORM] = "self_attn.kv_a_layernorm.weight",                                                \
        [SN_ROLE_ATTN_K_UP] = "self_attn.kv_b_proj.weight", [SN_ROLE_ATTN_V_UP] = "self_attn.kv_b_proj.weight",        \
        [SN_ROLE_ATTN_O] = "self_attn.o_proj.weight", [SN_ROLE_ROUTER] = "mlp.gate.weight",                            \
        [SN_ROLE_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight",                                                 \
        [SN_ROLE_SHARED_UP] = "mlp.shared_experts.up_proj.weight",                                                     \
        [SN_ROLE_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight",                                                 \
        [SN_ROLE_INDEX_Q] = "self_attn.indexer.wq_b.weight", [SN_ROLE_INDEX_K] = "self_attn.indexer.wk.weight",        \
        [SN_ROLE_INDEX_K_NORM] = "self_attn.indexer.k_norm.weight",                                                    \
        [SN_ROLE_INDEX_K_NORM_BIAS] = "self_attn.indexer.k_norm.bias",                                                 \
        [SN_ROLE_INDEX_WEIGHTS] = "self_attn.indexer.weights_proj.weight"
static const sn_tensor_naming naming_hf_latent = {
    .block_prefix = "model.layers.",
    .names = {HF_LATENT, HF_NEXT, [SN_ROLE_ROUTER_CORRECTION] = "mlp.gate.e_score_correction_bias", HF_EXPERTS},
    .whole_q = "self_attn.q_proj.weight"};
static const sn_tensor_naming naming_gguf_latent = {.block_prefix = "blk.",
                                                    .names = {GGUF_ENDS,
                                                              GGUF_NORMS,
                                                              GGUF_FEED_FORWARD,
                                                              GGUF_EXPERTS,
                                                              GGUF_NEXT,
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
                                                              [SN_ROLE_INDEX_Q] = "indexer.attn_q_b.weight",
                                                              [SN_ROLE_INDEX_K] = "indexer.attn_k.weight",
                                                              [SN_ROLE_INDEX_K_NORM] = "indexer.k_norm.weight",
                                                              [SN_ROLE_INDEX_K_NORM_BIAS] = "indexer.k_norm.bias",
                                                              [SN_ROLE_INDEX_WEIGHTS] = "indexer.proj.weight"},
                                                    .whole_q = "attn_q.weight",
                                                    .joined_ups = "attn_kv_b.weight"};

static const sn_moe_config v2_experts = {.width = "moe_intermediate_size",
                                         .dense_width = "intermediate_size",
                                         .n_experts = 64,
                                         .n_experts_used = 6,
                                         .n_ff = 1407,
                                         .n_shared = 2,
                                         .scoring = SN_ROUTER_SOFTMAX_ALL,
                                         .normalised = SN_NEVER,
                                         .scale_default = 1,
                                         .groups_by = "group_limited_greedy"};
#define V3_EXPERTS                                                                                                     \
    .width = "moe_intermediate_size", .dense_width = "intermediate_size", .n_shared = 1, .scoring = SN_ROUTER_SIGMOID, \
    .normalised = SN_IF_DECLARED, .normalised_default = true, .correction = true, .groups_by = "noaux_tc"
static const sn_moe_config v3_experts = {V3_EXPERTS,   .n_experts = 256,     .n_experts_used = 8, .n_ff = 2048,
                                         .n_dense = 3, .scale_default = 2.5, .n_groups = 8,       .n_groups_used = 4};
static const sn_moe_config mistral4_experts = {.width = "moe_intermediate_size",
                                               .dense_width = "intermediate_size",
                                               .n_experts = 128,
                                               .n_experts_used = 4,
                                               .n_ff = 2048,
                                               .n_shared = 1,
                                               .scoring = SN_ROUTER_SOFTMAX_ALL,
                                               .normalised = SN_IF_DECLARED,
                                               .normalised_default = true,
                                               .scale_default = 1};
static const sn_moe_config glm5_experts = {V3_EXPERTS,   .n_experts = 256, .n_experts_used = 8,
                                           .n_ff = 2048, .n_dense = 3,     .scale_default = 2.5};
static const sn_moe_config glm4_lite_experts = {V3_EXPERTS,   .n_experts = 64, .n_experts_used = 4,
                                                .n_ff = 1536, .n_dense = 1,    .scale_default = 1.8};
/* Mistral 4: all experts in one tensor. */
static const sn_tensor_naming naming_hf_mistral4 = {
    .block_prefix = "model.layers.",
    .names = {HF_LATENT, [SN_ROLE_EXPERTS_GATE] = "mlp.experts.gate_up_proj",
              [SN_ROLE_EXPERTS_UP] = "mlp.experts.gate_up_proj", [SN_ROLE_EXPERTS_DOWN] = "mlp.experts.down_proj"},
    .whole_q = "self_attn.q_proj.weight",
    .gate_up_fused = true};
static const char *const latent_reads[] = {"n_routed_experts", "n_group", "topk_group", NULL};

#define LATENT_OF(folder)                                                                                              \
    .gguf_rope = SN_ROPE_INTERLEAVED, .latent = true, .gguf_moe = true, .further_blocks = true,                        \
    .config_fields = latent_reads, NAMED(folder, &naming_gguf_latent)
#define LATENT LATENT_OF(&naming_hf_latent)

/* ---- LFM2: most blocks have a short convolution between two gates ---- */

#define HF_LFM2                                                                                                        \
    [SN_ROLE_TOKEN_EMBEDDING] = "model.embed_tokens.weight", [SN_ROLE_OUTPUT_NORM] = "model.embedding_norm.weight",    \
    [SN_ROLE_OUTPUT] = "lm_head.weight", [SN_ROLE_ATTN_NORM] = "operator_norm.weight",                                 \
    [SN_ROLE_FFN_NORM] = "ffn_norm.weight", [SN_ROLE_ATTN_Q] = "self_attn.q_proj.weight",                              \
    [SN_ROLE_ATTN_K] = "self_attn.k_proj.weight", [SN_ROLE_ATTN_V] = "self_attn.v_proj.weight",                        \
    [SN_ROLE_ATTN_O] = "self_attn.out_proj.weight", [SN_ROLE_ATTN_Q_NORM] = "self_attn.q_layernorm.weight",            \
    [SN_ROLE_ATTN_K_NORM] = "self_attn.k_layernorm.weight", [SN_ROLE_DELTA_QKV] = "conv.in_proj.weight",               \
    [SN_ROLE_DELTA_GATE] = "conv.in_proj.weight", [SN_ROLE_DELTA_WRITE] = "conv.in_proj.weight",                       \
    [SN_ROLE_DELTA_TAPS] = "conv.conv.weight", [SN_ROLE_DELTA_OUT] = "conv.out_proj.weight",                           \
    [SN_ROLE_FFN_GATE] = "feed_forward.w1.weight", [SN_ROLE_FFN_UP] = "feed_forward.w3.weight",                        \
    [SN_ROLE_FFN_DOWN] = "feed_forward.w2.weight"
#define GGUF_LFM2                                                                                                      \
    GGUF_ATTENTION, GGUF_FEED_FORWARD, GGUF_NORMS,                                                                     \
        [SN_ROLE_TOKEN_EMBEDDING] = "token_embd.weight", [SN_ROLE_OUTPUT_NORM] = "token_embd_norm.weight",             \
        [SN_ROLE_OUTPUT] = "output.weight", [SN_ROLE_DELTA_QKV] = "shortconv.in_proj.weight",                          \
        [SN_ROLE_DELTA_GATE] = "shortconv.in_proj.weight", [SN_ROLE_DELTA_WRITE] = "shortconv.in_proj.weight",         \
        [SN_ROLE_DELTA_TAPS] = "shortconv.conv.weight", [SN_ROLE_DELTA_OUT] = "shortconv.out_proj.weight"
static const sn_tensor_naming naming_hf_lfm2 = {
    .block_prefix = "model.layers.", .names = {HF_LFM2}, .delta_joined = true};
static const sn_tensor_naming naming_gguf_lfm2 = {.block_prefix = "blk.", .names = {GGUF_LFM2}, .delta_joined = true};
static const sn_tensor_naming naming_hf_lfm2_moe = {
    .block_prefix = "model.layers.",
    .names = {HF_LFM2, [SN_ROLE_ROUTER] = "feed_forward.gate.weight",
              [SN_ROLE_ROUTER_CORRECTION] = "feed_forward.expert_bias",
              [SN_ROLE_EXPERTS_GATE] = "feed_forward.experts.*.w1.weight",
              [SN_ROLE_EXPERTS_UP] = "feed_forward.experts.*.w3.weight",
              [SN_ROLE_EXPERTS_DOWN] = "feed_forward.experts.*.w2.weight"},
    .delta_joined = true};
static const sn_tensor_naming naming_gguf_lfm2_moe = {
    .block_prefix = "blk.",
    .names = {GGUF_LFM2, GGUF_EXPERTS, [SN_ROLE_ROUTER_CORRECTION] = "exp_probs_b.bias"},
    .delta_joined = true};
static const sn_moe_config lfm2_experts = {.width = "moe_intermediate_size",
                                           .n_experts = 32,
                                           .n_experts_used = 4,
                                           .n_ff = 1792,
                                           .scoring = SN_ROUTER_SIGMOID,
                                           .normalised = SN_IF_DECLARED,
                                           .normalised_default = true,
                                           .gguf_normalised = true,
                                           .offset = 1e-6,
                                           .scale_default = 1,
                                           .correction = true,
                                           .dense_width = "intermediate_size",
                                           .n_dense = 2};
#define LFM2                                                                                                           \
    .gguf_rope = SN_ROPE_NEOX, .qk_norm = SN_ALWAYS, .recurrent = true, .recurrence = SN_SHORT_CONV,                   \
    .eps_default = 1e-5, .eps_field = "norm_eps", .activation_field = "", .theta_default = 1e6, .ctx_default = 128000, \
    .tied_default = true

/* ---- Mamba-2 in most blocks ---- */

#define HF_STATE_SPACE(at)                                                                                             \
    [SN_ROLE_DELTA_QKV] = at "in_proj.weight", [SN_ROLE_DELTA_GATE] = at "in_proj.weight",                             \
    [SN_ROLE_DELTA_TIME] = at "in_proj.weight", [SN_ROLE_DELTA_TAPS] = at "conv1d.weight",                             \
    [SN_ROLE_DELTA_TAPS_BIAS] = at "conv1d.bias", [SN_ROLE_DELTA_RATES] = at "A_log",                                  \
    [SN_ROLE_DELTA_TIME_BIAS] = at "dt_bias", [SN_ROLE_DELTA_SKIP] = at "D", [SN_ROLE_DELTA_NORM] = at "norm.weight",  \
    [SN_ROLE_DELTA_OUT] = at "out_proj.weight"
#define GGUF_STATE_SPACE                                                                                               \
    [SN_ROLE_DELTA_QKV] = "ssm_in.weight", [SN_ROLE_DELTA_GATE] = "ssm_in.weight",                                     \
    [SN_ROLE_DELTA_TIME] = "ssm_in.weight", [SN_ROLE_DELTA_TAPS] = "ssm_conv1d.weight",                                \
    [SN_ROLE_DELTA_TAPS_BIAS] = "ssm_conv1d.bias", [SN_ROLE_DELTA_RATES] = "ssm_a",                                    \
    [SN_ROLE_DELTA_TIME_BIAS] = "ssm_dt.bias", [SN_ROLE_DELTA_SKIP] = "ssm_d",                                         \
    [SN_ROLE_DELTA_NORM] = "ssm_norm.weight", [SN_ROLE_DELTA_OUT] = "ssm_out.weight"
#define HF_GRANITE_HYBRID HF_STATE_SPACE("mamba.")
static const sn_tensor_naming naming_hf_granite_moe_hybrid = {
    HF_NAMES(HF_GRANITE_HYBRID, [SN_ROLE_ROUTER] = "block_sparse_moe.router.layer.weight",
             [SN_ROLE_EXPERTS_GATE] = "block_sparse_moe.input_linear.weight",
             [SN_ROLE_EXPERTS_UP] = "block_sparse_moe.input_linear.weight",
             [SN_ROLE_EXPERTS_DOWN] = "block_sparse_moe.output_linear.weight",
             [SN_ROLE_SHARED_GATE] = "shared_mlp.input_linear.weight",
             [SN_ROLE_SHARED_UP] = "shared_mlp.input_linear.weight",
             [SN_ROLE_SHARED_DOWN] = "shared_mlp.output_linear.weight"),
    .delta_joined = true, .gate_up_fused = true, .shared_fused = true};
static const sn_tensor_naming naming_hf_granite_hybrid = {
    HF_NAMES(
        HF_GRANITE_HYBRID, [SN_ROLE_FFN_GATE] = "shared_mlp.input_linear.weight",
        [SN_ROLE_FFN_UP] = "shared_mlp.input_linear.weight", [SN_ROLE_FFN_DOWN] = "shared_mlp.output_linear.weight"),
    .delta_joined = true, .gate_up_fused = true};
static const sn_tensor_naming naming_gguf_granite_moe_hybrid = {
    GGUF_NAMES(GGUF_STATE_SPACE, GGUF_EXPERTS, GGUF_SHARED_EXPERT, GGUF_NORMS), .delta_joined = true};
static const sn_tensor_naming naming_gguf_granite_hybrid = {GGUF_NAMES(GGUF_STATE_SPACE, GGUF_FEED_FORWARD, GGUF_NORMS),
                                                            .delta_joined = true};
static const sn_moe_config granite_experts = {.width = "intermediate_size",
                                              .n_experts = 8,
                                              .n_experts_used = 2,
                                              .n_ff = 11008,
                                              .shared_width = "shared_intermediate_size",
                                              .n_ff_shared = 1024};
static const char *const granite_hybrid_reads[] = {"embedding_multiplier",
                                                   "attention_multiplier",
                                                   "residual_multiplier",
                                                   "logits_scaling",
                                                   "num_local_experts",
                                                   "shared_intermediate_size",
                                                   NULL};
#define GRANITE_HYBRID                                                                                                 \
    .name = "granitemoehybrid", .gguf_architecture = "granitehybrid", .gguf_rope = SN_ROPE_NEOX,                       \
    .qkv_bias = SN_IF_DECLARED, .recurrent = true, .recurrence = SN_STATE_SPACE, .unrotated = true,                    \
    .multipliers = true, .config_fields = granite_hybrid_reads

/* Nemotron 3: a block is one of four things. */
#define HF_NEMOTRON                                                                                                    \
    HF_STATE_SPACE("mixer."), [SN_ROLE_TOKEN_EMBEDDING] = "backbone.embeddings.weight",                                \
                              [SN_ROLE_OUTPUT_NORM] = "backbone.norm_f.weight", [SN_ROLE_OUTPUT] = "lm_head.weight",   \
                              [SN_ROLE_ATTN_NORM] = "norm.weight", [SN_ROLE_FFN_NORM] = "norm.weight",                 \
                              [SN_ROLE_ATTN_Q] = "mixer.q_proj.weight", [SN_ROLE_ATTN_K] = "mixer.k_proj.weight",      \
                              [SN_ROLE_ATTN_V] = "mixer.v_proj.weight", [SN_ROLE_ATTN_O] = "mixer.o_proj.weight",      \
                              [SN_ROLE_FFN_UP] = "mixer.up_proj.weight", [SN_ROLE_FFN_DOWN] = "mixer.down_proj.weight"
#define GGUF_NEMOTRON                                                                                                  \
    GGUF_STATE_SPACE, [SN_ROLE_ATTN_NORM] = "attn_norm.weight", [SN_ROLE_FFN_NORM] = "attn_norm.weight",               \
                      [SN_ROLE_FFN_UP] = "ffn_up.weight", [SN_ROLE_FFN_DOWN] = "ffn_down.weight"
static const sn_tensor_naming naming_hf_nemotron_moe = {
    .block_prefix = "backbone.layers.",
    .names = {HF_NEMOTRON, [SN_ROLE_ROUTER] = "mixer.gate.weight",
              [SN_ROLE_ROUTER_CORRECTION] = "mixer.gate.e_score_correction_bias",
              [SN_ROLE_EXPERTS_NARROW] = "mixer.fc1_latent_proj.weight",
              [SN_ROLE_EXPERTS_WIDEN] = "mixer.fc2_latent_proj.weight",
              [SN_ROLE_EXPERTS_UP] = "mixer.experts.*.up_proj.weight",
              [SN_ROLE_EXPERTS_DOWN] = "mixer.experts.*.down_proj.weight",
              [SN_ROLE_SHARED_UP] = "mixer.shared_experts.up_proj.weight",
              [SN_ROLE_SHARED_DOWN] = "mixer.shared_experts.down_proj.weight"},
    .delta_joined = true};
static const sn_tensor_naming naming_hf_nemotron = {
    .block_prefix = "backbone.layers.", .names = {HF_NEMOTRON}, .delta_joined = true};
static const sn_tensor_naming naming_gguf_nemotron_moe = {
    GGUF_NAMES(
        GGUF_NEMOTRON, [SN_ROLE_ROUTER] = "ffn_gate_inp.weight", [SN_ROLE_ROUTER_CORRECTION] = "exp_probs_b.bias",
        [SN_ROLE_EXPERTS_NARROW] = "ffn_latent_down.weight", [SN_ROLE_EXPERTS_WIDEN] = "ffn_latent_up.weight",
        [SN_ROLE_EXPERTS_UP] = "ffn_up_exps.weight", [SN_ROLE_EXPERTS_DOWN] = "ffn_down_exps.weight",
        [SN_ROLE_SHARED_UP] = "ffn_up_shexp.weight", [SN_ROLE_SHARED_DOWN] = "ffn_down_shexp.weight"),
    .delta_joined = true};
static const sn_tensor_naming naming_gguf_nemotron = {GGUF_NAMES(GGUF_NEMOTRON), .delta_joined = true};
static const sn_moe_config nemotron_experts = {
    V3_EXPERTS,          .n_experts = 8,       .n_experts_used = 2,
    .n_ff = 7688,        .scale_default = 1,   .shared_width = "moe_shared_expert_intermediate_size",
    .n_ff_shared = 7688, .blocks_listed = true};
#define NEMOTRON                                                                                                       \
    .name = "nemotron_h", .gguf_rope = SN_ROPE_INTERLEAVED, .qkv_bias = SN_IF_DECLARED, .recurrent = true,             \
    .recurrence = SN_STATE_SPACE, .one_half = true, .unrotated = true, .head_dim_default = 128, .ctx_default = 4096,   \
    .eps_default = 1e-5, .eps_field = "layer_norm_epsilon", .activation_field = "mlp_hidden_act",                      \
    .activation_default = SN_RELU_SQUARED, .further_blocks = true, .config_fields = latent_reads

/* ---- Kimi Delta Attention in most blocks, latent attention in the others ---- */

#define HF_KEYED(at)                                                                                                   \
    [SN_ROLE_DELTA_Q] = at "q_proj.weight", [SN_ROLE_DELTA_K] = at "k_proj.weight",                                    \
    [SN_ROLE_DELTA_V] = at "v_proj.weight", [SN_ROLE_DELTA_Q_TAPS] = at "q_conv1d.weight",                             \
    [SN_ROLE_DELTA_K_TAPS] = at "k_conv1d.weight", [SN_ROLE_DELTA_V_TAPS] = at "v_conv1d.weight",                      \
    [SN_ROLE_DELTA_WRITE] = at "b_proj.weight", [SN_ROLE_DELTA_RATES] = at "A_log",                                    \
    [SN_ROLE_DELTA_TIME_BIAS] = at "dt_bias", [SN_ROLE_DELTA_NORM] = at "o_norm.weight"
#define GGUF_KEYED                                                                                                     \
    [SN_ROLE_DELTA_Q] = "attn_q.weight", [SN_ROLE_DELTA_K] = "attn_k.weight", [SN_ROLE_DELTA_V] = "attn_v.weight",     \
    [SN_ROLE_DELTA_Q_TAPS] = "ssm_conv1d_q.weight", [SN_ROLE_DELTA_K_TAPS] = "ssm_conv1d_k.weight",                    \
    [SN_ROLE_DELTA_V_TAPS] = "ssm_conv1d_v.weight", [SN_ROLE_DELTA_WRITE] = "ssm_beta.weight",                         \
    [SN_ROLE_DELTA_RATES] = "ssm_a", [SN_ROLE_DELTA_TIME_BIAS] = "ssm_dt.bias",                                        \
    [SN_ROLE_DELTA_NORM] = "ssm_norm.weight", [SN_ROLE_DELTA_OUT] = "attn_output.weight"
#define GGUF_LATENT_BLOCK                                                                                              \
    GGUF_ENDS, GGUF_NORMS, GGUF_FEED_FORWARD, GGUF_EXPERTS,                                                            \
        GGUF_SHARED, [SN_ROLE_ATTN_Q_LOW] = "attn_q_a.weight", [SN_ROLE_ATTN_Q_LOW_NORM] = "attn_q_a_norm.weight",     \
                     [SN_ROLE_ATTN_Q] = "attn_q_b.weight", [SN_ROLE_ATTN_K] = "attn_kv_a_mqa.weight",                  \
                     [SN_ROLE_ATTN_V] = "attn_kv_a_mqa.weight", [SN_ROLE_ATTN_LATENT_NORM] = "attn_kv_a_norm.weight",  \
                     [SN_ROLE_ATTN_K_UP] = "attn_k_b.weight", [SN_ROLE_ATTN_V_UP] = "attn_v_b.weight",                 \
                     [SN_ROLE_ATTN_O] = "attn_output.weight"
static const sn_tensor_naming naming_hf_kimi_linear = {
    .block_prefix = "model.layers.",
    .names = {HF_ENDS,
              HF_NORMS,
              HF_FEED_FORWARD,
              HF_MIXTRAL_EXPERTS,
              HF_KEYED("self_attn."),
              [SN_ROLE_DELTA_TIME_LOW] = "self_attn.f_a_proj.weight",
              [SN_ROLE_DELTA_TIME] = "self_attn.f_b_proj.weight",
              [SN_ROLE_DELTA_GATE_LOW] = "self_attn.g_a_proj.weight",
              [SN_ROLE_DELTA_GATE] = "self_attn.g_b_proj.weight",
              [SN_ROLE_DELTA_OUT] = "self_attn.o_proj.weight",
              [SN_ROLE_ATTN_Q_LOW] = "self_attn.q_a_proj.weight",
              [SN_ROLE_ATTN_Q_LOW_NORM] = "self_attn.q_a_layernorm.weight",
              [SN_ROLE_ATTN_Q] = "self_attn.q_b_proj.weight",
              [SN_ROLE_ATTN_K] = "self_attn.kv_a_proj_with_mqa.weight",
              [SN_ROLE_ATTN_V] = "self_attn.kv_a_proj_with_mqa.weight",
              [SN_ROLE_ATTN_LATENT_NORM] = "self_attn.kv_a_layernorm.weight",
              [SN_ROLE_ATTN_K_UP] = "self_attn.kv_b_proj.weight",
              [SN_ROLE_ATTN_V_UP] = "self_attn.kv_b_proj.weight",
              [SN_ROLE_ATTN_O] = "self_attn.o_proj.weight",
              [SN_ROLE_ROUTER_CORRECTION] = "block_sparse_moe.gate.e_score_correction_bias",
              [SN_ROLE_SHARED_GATE] = "block_sparse_moe.shared_experts.gate_proj.weight",
              [SN_ROLE_SHARED_UP] = "block_sparse_moe.shared_experts.up_proj.weight",
              [SN_ROLE_SHARED_DOWN] = "block_sparse_moe.shared_experts.down_proj.weight"},
    .whole_q = "self_attn.q_proj.weight"};
static const sn_tensor_naming naming_gguf_kimi_linear = {
    .block_prefix = "blk.",
    .names = {GGUF_LATENT_BLOCK,
              GGUF_KEYED, [SN_ROLE_DELTA_TIME_LOW] = "ssm_f_a.weight", [SN_ROLE_DELTA_TIME] = "ssm_f_b.weight",
              [SN_ROLE_DELTA_GATE_LOW] = "ssm_g_a.weight", [SN_ROLE_DELTA_GATE] = "ssm_g_b.weight"},
    .whole_q = "attn_q.weight",
    .joined_ups = "attn_kv_b.weight"};
static const sn_tensor_naming naming_hf_bailing_hybrid = {
    .block_prefix = "model.layers.",
    .names = {HF_NORMS,
              HF_FEED_FORWARD,
              HF_EXPERTS,
              HF_KEYED("attention."),
              [SN_ROLE_TOKEN_EMBEDDING] = "model.word_embeddings.weight",
              [SN_ROLE_OUTPUT_NORM] = "model.norm.weight",
              [SN_ROLE_OUTPUT] = "lm_head.weight",
              [SN_ROLE_DELTA_TIME] = "attention.f_proj.weight",
              [SN_ROLE_DELTA_GATE] = "attention.g_proj.weight",
              [SN_ROLE_DELTA_OUT] = "attention.dense.weight",
              [SN_ROLE_ATTN_HEAD_GATE] = "attention.g_proj.weight",
              [SN_ROLE_ATTN_Q_LOW] = "attention.q_a_proj.weight",
              [SN_ROLE_ATTN_Q_LOW_NORM] = "attention.q_a_layernorm.weight",
              [SN_ROLE_ATTN_Q] = "attention.q_b_proj.weight",
              [SN_ROLE_ATTN_K] = "attention.kv_a_proj_with_mqa.weight",
              [SN_ROLE_ATTN_V] = "attention.kv_a_proj_with_mqa.weight",
              [SN_ROLE_ATTN_LATENT_NORM] = "attention.kv_a_layernorm.weight",
              [SN_ROLE_ATTN_K_UP] = "attention.kv_b_proj.weight",
              [SN_ROLE_ATTN_V_UP] = "attention.kv_b_proj.weight",
              [SN_ROLE_ATTN_O] = "attention.dense.weight",
              [SN_ROLE_ROUTER] = "mlp.gate.weight",
              [SN_ROLE_ROUTER_CORRECTION] = "mlp.gate.expert_bias",
              [SN_ROLE_SHARED_GATE] = "mlp.shared_experts.gate_proj.weight",
              [SN_ROLE_SHARED_UP] = "mlp.shared_experts.up_proj.weight",
              [SN_ROLE_SHARED_DOWN] = "mlp.shared_experts.down_proj.weight"},
    .whole_q = "attention.q_proj.weight"};
static const sn_tensor_naming naming_gguf_bailing_hybrid = {
    .block_prefix = "blk.",
    .names = {GGUF_LATENT_BLOCK, GGUF_KEYED, [SN_ROLE_DELTA_TIME] = "ssm_f_a.weight",
              [SN_ROLE_DELTA_GATE] = "ssm_g_a.weight", [SN_ROLE_ATTN_HEAD_GATE] = "attn_gate.weight"},
    .whole_q = "attn_q.weight",
    .joined_ups = "attn_kv_b.weight"};
static const sn_moe_config kimi_linear_experts = {
    V3_EXPERTS,   .n_experts = 256,        .n_experts_used = 8,    .n_ff = 1024,
    .n_dense = 1, .gguf_normalised = true, .scale_default = 2.446, .shared_count = "num_shared_experts"};
static const sn_moe_config bailing_experts = {V3_EXPERTS,           .n_experts = 512,
                                              .n_experts_used = 8,  .n_ff = 768,
                                              .n_dense = 2,         .gguf_normalised = true,
                                              .scale_default = 2.5, .n_groups = 8,
                                              .n_groups_used = 4,   .shared_count = "num_shared_experts"};
static const char *const keyed_reads[] = {"num_experts", "num_local_experts", "n_routed_experts",
                                          "n_group",     "topk_group",        NULL};
#define KEYED                                                                                                          \
    .gguf_rope = SN_ROPE_INTERLEAVED, .latent = true, .gguf_moe = true, .recurrent = true,                             \
    .recurrence = SN_KEYED_DELTA, .further_blocks = true, .config_fields = keyed_reads

/* ---- the families ---- */

const sn_family sn_families[] = {
    {.name = "llama",
     .gguf_architecture = "llama",
     .gguf_rope = SN_ROPE_INTERLEAVED,
     .qkv_bias = SN_IF_DECLARED,
     .gguf_moe = true,
     NAMED(&naming_hf, &naming_gguf)},
    {.name = "mistral", .window = SN_WINDOW_GIVEN, .window_default = 4096, NAMED(&naming_hf, &naming_gguf)},
    {.name = "qwen2",
     .gguf_architecture = "qwen2",
     .gguf_rope = SN_ROPE_NEOX,
     .qkv_bias = SN_ALWAYS,
     .window = SN_WINDOW_SWITCHED,
     NAMED(&naming_hf, &naming_gguf)},
    {.name = "qwen3",
     .gguf_architecture = "qwen3",
     .gguf_rope = SN_ROPE_NEOX,
     .qkv_bias = SN_IF_DECLARED,
     .qk_norm = SN_ALWAYS,
     .window = SN_WINDOW_SWITCHED,
     NAMED(&naming_hf, &naming_gguf)},
    {.name = "seed_oss",
     .gguf_architecture = "seed_oss",
     .gguf_rope = SN_ROPE_NEOX,
     .qkv_bias = SN_IF_DECLARED,
     .bias_default = true,
     .no_o_bias = true,
     .head_dim_default = 128,
     NAMED(&naming_hf, &naming_gguf_seed_oss)},
    {.name = "exaone4",
     .gguf_architecture = "exaone4",
     .gguf_rope = SN_ROPE_NEOX,
     .eps_default = 1e-5,
     .qk_norm = SN_ALWAYS,
     .window = SN_WINDOW_GIVEN,
     .window_default = 4096,
     .window_pattern = 4,
     .full_unrotated = true,
     NAMED(&naming_hf_olmo2, &naming_gguf_olmo2)},
    {.name = "phi3",
     .long_rope = true,
     .rotates_part = true,
     .eps_default = 1e-5,
     .gguf_architecture = "phi3",
     .gguf_rope = SN_ROPE_NEOX,
     .window = SN_WINDOW_GIVEN,
     NAMED(&naming_hf_phi3, &naming_gguf_phi3)},
    {OLMO, .name = "olmo2", .gguf_architecture = "olmo2", .windowed = "olmo3"},
    {OLMO, .name = "olmo3", .window = SN_WINDOW_GIVEN, .window_default = 4096, .window_pattern = 4,
     .theta_default = 5e5, .local_unscaled = true},
    {.name = "smollm3",
     .gguf_architecture = "smollm3",
     .gguf_rope = SN_ROPE_INTERLEAVED,
     .qkv_bias = SN_IF_DECLARED,
     .window = SN_WINDOW_SWITCHED,
     .theta_default = 2e6,
     .tied_default = true,
     .no_rope_interval = 4,
     .config_fields = smollm3_reads,
     NAMED(&naming_hf, &naming_gguf)},
    {.name = "granite",
     .gguf_architecture = "granite",
     .gguf_rope = SN_ROPE_INTERLEAVED,
     .qkv_bias = SN_IF_DECLARED,
     .multipliers = true,
     .config_fields = granite_reads,
     NAMED(&naming_hf, &naming_gguf)},
    {.name = "ministral3",
     .rope_required = true,
     .eps_default = 1e-5,
     .gguf_architecture = "mistral3",
     .gguf_rope = SN_ROPE_INTERLEAVED,
     .window = SN_WINDOW_GIVEN,
     .wrapped = true,
     NAMED(&naming_hf, &naming_gguf)},
    {GEMMA, .name = "gemma2", .gguf_architecture = "gemma2", .window_pattern = 2, .softcaps = true,
     .config_fields = gemma2_reads},
    {GEMMA, .name = "gemma3_text", .gguf_architecture = "gemma3", .qk_norm = SN_ALWAYS, .window_pattern = 6,
     .theta_default = 1e6, .local_theta = 1e4, .config_fields = gemma3_reads},
    {GEMMA4, .moe = &gemma4_experts, .gguf_moe = true, NAMED(&naming_hf_gemma4_moe, &naming_gguf_gemma4_moe)},
    {GEMMA4, NAMED(&naming_hf_gemma4, &naming_gguf_gemma4)},
    {FALCON, .parallel = true, NAMED(&naming_hf_falcon, &naming_gguf_falcon)},
    {FALCON, .parallel = true, NAMED(&naming_hf_falcon_shared, &naming_gguf_falcon_shared)},
    {FALCON, NAMED(&naming_hf_falcon_serial, NULL)},
    {.name = "cohere2",
     .gguf_architecture = "cohere2",
     .gguf_rope = SN_ROPE_INTERLEAVED,
     .neighbours = true,
     .qkv_bias = SN_IF_DECLARED,
     .layer_norm = true,
     .parallel = true,
     .eps_field = "layer_norm_eps",
     .window = SN_WINDOW_GIVEN,
     .window_default = 4096,
     .window_pattern = 4,
     .full_unrotated = true,
     .logit_scale_default = 0.0625,
     .tied_default = true,
     .config_fields = cohere2_reads,
     NAMED(&naming_hf_cohere2, &naming_gguf_cohere2)},
    {.name = "bloom",
     .activation_field = "",
     .eps_field = "layer_norm_epsilon",
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
     NAMED(&naming_hf_bloom, &naming_gguf_bloom)},
    {.name = "mixtral",
     .eps_default = 1e-5,
     .window = SN_WINDOW_GIVEN,
     .theta_default = 1e6,
     .moe = &mixtral_experts,
     .config_fields = moe_reads,
     NAMED(&naming_hf_mixtral, NULL)},
    {.name = "qwen3_moe",
     .gguf_architecture = "qwen3moe",
     .gguf_rope = SN_ROPE_NEOX,
     .qkv_bias = SN_IF_DECLARED,
     .qk_norm = SN_ALWAYS,
     .moe = &qwen3_experts,
     .gguf_moe = true,
     .config_fields = moe_reads,
     NAMED(&naming_hf_qwen3_moe, &naming_gguf)},
    {.name = "qwen2_moe",
     .gguf_architecture = "qwen2moe",
     .gguf_rope = SN_ROPE_NEOX,
     .qkv_bias = SN_ALWAYS,
     .window = SN_WINDOW_SWITCHED,
     .moe = &qwen2_experts,
     .gguf_moe = true,
     .config_fields = qwen2_moe_reads,
     NAMED(&naming_hf_qwen2_moe, &naming_gguf_shared)},
    {.name = "glm4_moe",
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
     NAMED(&naming_hf_glm4_moe, &naming_gguf_glm4_moe)},
    {.name = "hy_v3",
     .gguf_architecture = "hy_v3",
     .gguf_rope = SN_ROPE_NEOX,
     .eps_default = 1e-5,
     .qk_norm = SN_ALWAYS,
     .theta_default = 11158840,
     .head_dim_default = 128,
     .moe = &hy_v3_experts,
     .gguf_moe = true,
     .further_blocks = true,
     .config_fields = moe_reads,
     NAMED(&naming_hf_hy_v3, &naming_gguf_hy_v3)},
    {.name = "ernie4_5_moe",
     .gguf_architecture = "ernie4_5-moe",
     .gguf_rope = SN_ROPE_INTERLEAVED,
     .neighbours = true,
     .eps_default = 1e-5,
     .theta_default = 5e5,
     .tied_default = true,
     .moe = &ernie_experts,
     .gguf_moe = true,
     .further_blocks = true,
     .config_fields = ernie_reads,
     NAMED(&naming_hf_ernie4_5_moe, &naming_gguf_shared)},
    {.name = "olmoe",
     .gguf_architecture = "olmoe",
     .gguf_rope = SN_ROPE_NEOX,
     .eps_default = 1e-5,
     .qk_norm = SN_ALWAYS,
     .qk_norm_wide = true,
     .moe = &olmoe_experts,
     .gguf_moe = true,
     .config_fields = moe_reads,
     NAMED(&naming_hf_qwen3_moe, &naming_gguf)},
    {.name = "minimax_m2",
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
     NAMED(&naming_hf_minimax_m2, &naming_gguf_shared)},
    {.name = "llama4_text",
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
     NAMED(&naming_hf_llama4, &naming_gguf_shared)},
    {.name = "gpt_oss",
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
     NAMED(&naming_hf_gpt_oss, &naming_gguf_gpt_oss)},
    {.name = "mimo_v2_flash",
     .gguf_architecture = "mimo2",
     .gguf_rope = SN_ROPE_NEOX,
     .eps_default = 1e-5,
     .eps_field = "layernorm_epsilon",
     .head_dim_default = 192,
     .value_dim_default = 128,
     .value_scale_default = 0.707,
     .heads = &mimo2_heads,
     .window = SN_WINDOW_GIVEN,
     .window_default = 129,
     .window_sinks = true,
     .theta_default = 5e6,
     .local_theta = 1e4,
     .rotated_default = 0.334,
     .rotates_part = true,
     .qkv_bias = SN_IF_DECLARED,
     .no_o_bias = true,
     .moe = &mimo2_experts,
     .gguf_moe = true,
     .further_blocks = true,
     .config_fields = mimo2_reads,
     NAMED(&naming_hf_mimo2, &naming_gguf_mimo2)},
    {.name = "step3p5",
     .gguf_architecture = "step35",
     .gguf_rope = SN_ROPE_NEOX,
     .gguf_full_half = true,
     .eps_default = 1e-5,
     .head_dim_default = 128,
     .heads = &step35_heads,
     .head_gate = true,
     .limits = true,
     .qk_norm = SN_ALWAYS,
     .norm_plus_one = true,
     .window = SN_WINDOW_GIVEN,
     .theta_default = 1e4,
     .local_theta = 1e4,
     .rotates_part = true,
     .qkv_bias = SN_IF_DECLARED,
     .wrapped = true,
     .moe = &step35_experts,
     .gguf_moe = true,
     .further_blocks = true,
     .config_fields = step35_reads,
     NAMED(&naming_hf_step35, &naming_gguf_step35)},
    {.name = "qwen3_5_text", .gguf_architecture = "qwen35", QWEN3_5, NAMED(&naming_hf_qwen3_5, &naming_gguf_qwen3_5)},
    {QWEN3_5_MOE, .gguf_architecture = "qwen35moe", NAMED(&naming_hf_qwen3_5_moe, &naming_gguf_qwen3_5_moe)},
    {QWEN3_5_MOE, NAMED(&naming_hf_qwen3_5_moe_stacked, NULL)},
    {QWEN3_5, .name = "qwen3_next", .gguf_architecture = "qwen3next", .gguf_moe = true, .moe = &qwen3_next_experts,
     .config_fields = qwen3_5_moe_reads, NAMED(&naming_hf_qwen3_next, &naming_gguf_qwen3_next)},
    {LATENT, .name = "deepseek_v2", .moe = &v2_experts},
    {LATENT, .name = "deepseek_v3", .moe = &v3_experts, .gguf_architecture = "deepseek2"},
    {LATENT, .name = "deepseek_v32", .moe = &v3_experts, .gguf_architecture = "deepseek32", .indexed = true},
    {LATENT, .name = "glm_moe_dsa", .moe = &glm5_experts, .gguf_architecture = "glm-dsa", .indexed = true,
     .index_as_rope = true, .index_shares = true, .eps_default = 1e-5},
    {LATENT, .name = "glm4_moe_lite", .moe = &glm4_lite_experts, .eps_default = 1e-5},
    {LATENT_OF(&naming_hf_mistral4), .name = "mistral4", .moe = &mistral4_experts, .gguf_architecture = "mistral4",
     .wrapped = true, .rope_required = true, .rotates_part = true, .growth_default = 0.1},
    {LATENT, .name = "kimi_k2", .moe = &v3_experts, .theta_default = 50000, .wrapped = true},
    {LFM2, .name = "lfm2", .gguf_architecture = "lfm2", NAMED(&naming_hf_lfm2, &naming_gguf_lfm2)},
    {LFM2, .name = "lfm2_moe", .gguf_architecture = "lfm2moe", .gguf_moe = true, .moe = &lfm2_experts,
     .config_fields = moe_reads, NAMED(&naming_hf_lfm2_moe, &naming_gguf_lfm2_moe)},
    {GRANITE_HYBRID, .gguf_moe = true, .moe = &granite_experts,
     NAMED(&naming_hf_granite_moe_hybrid, &naming_gguf_granite_moe_hybrid)},
    {GRANITE_HYBRID, NAMED(&naming_hf_granite_hybrid, &naming_gguf_granite_hybrid)},
    {NEMOTRON, .gguf_architecture = "nemotron_h_moe", .gguf_moe = true, .moe = &nemotron_experts,
     NAMED(&naming_hf_nemotron_moe, &naming_gguf_nemotron_moe)},
    {NEMOTRON, .gguf_architecture = "nemotron_h", NAMED(&naming_hf_nemotron, &naming_gguf_nemotron)},
    {KEYED, .name = "kimi_linear", .gguf_architecture = "kimi-linear", .unrotated = true, .keeps_low_rank = true,
     .moe = &kimi_linear_experts, NAMED(&naming_hf_kimi_linear, &naming_gguf_kimi_linear)},
    {KEYED, .name = "bailing_hybrid", .gguf_architecture = "bailingmoe3", .theta_default = 6e6, .head_gate = true,
     .moe = &bailing_experts, NAMED(&naming_hf_bailing_hybrid, &naming_gguf_bailing_hybrid)},
    {.name = NULL}};
