/* For the files that describe families (families_*.c): names of tensors that several families share, and the lists of
 * descriptors that family.c joins. A list is one array for each kind of family and ends with a descriptor without a
 * name; the variants of a family stand one after the other in it. Private to model/. */
#ifndef SN_MODEL_FAMILY_PRIVATE_H
#define SN_MODEL_FAMILY_PRIVATE_H

#include "model/family.h"

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
#define GGUF_SHARED                                                                                                    \
    [SN_ROLE_SHARED_GATE] = "ffn_gate_shexp.weight", [SN_ROLE_SHARED_UP] = "ffn_up_shexp.weight",                      \
    [SN_ROLE_SHARED_DOWN] = "ffn_down_shexp.weight", [SN_ROLE_SHARED_ROUTER] = "ffn_gate_inp_shexp.weight",            \
    [SN_ROLE_ROUTER_CORRECTION] = "exp_probs_b.bias"
#define GGUF_NORMS [SN_ROLE_ATTN_NORM] = "attn_norm.weight", [SN_ROLE_FFN_NORM] = "ffn_norm.weight"
#define GGUF_POST_NORMS                                                                                                \
    [SN_ROLE_ATTN_POST_NORM] = "post_attention_norm.weight", [SN_ROLE_FFN_POST_NORM] = "post_ffw_norm.weight"

/* How GGUF files name the tensors of most families, mixtures of experts among them. */
extern const sn_tensor_naming sn_naming_gguf;

extern const sn_family sn_families_dense[];     /* every row passes through the same feed-forward */
extern const sn_family sn_families_recurrent[]; /* most blocks have a recurrent state instead of a KV cache */
extern const sn_family sn_families_experts[];   /* a router chooses experts for every row */
extern const sn_family sn_families_latent[];    /* latent attention */

#endif
