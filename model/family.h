/* Model families: what distinguishes them in their files, as data.
 *
 * Central types: sn_family, the descriptor of a family, and sn_tensor_naming, the names of its tensors in one
 * container. Both are constants of families.c; any thread may read them. Only code that reads model files uses them:
 * the mathematics of a block reads sn_hparams, never the family's name. A new family is a new descriptor in
 * families.c, and new roles in model.h if it has tensors of a new kind. Private to model/ and its rooms. */
#ifndef SN_MODEL_FAMILY_H
#define SN_MODEL_FAMILY_H

#include "model/model.h"

typedef enum sn_container { SN_CONTAINER_SAFETENSORS, SN_CONTAINER_GGUF, SN_CONTAINER_COUNT } sn_container;

/* Whether the models of a family have a trait. */
typedef enum sn_trait {
    SN_NEVER,
    SN_ALWAYS,
    SN_IF_DECLARED, /* if config.json says so; in a GGUF file, if the tensors exist */
} sn_trait;

/* How config.json declares a sliding window. */
typedef enum sn_window_rule {
    SN_WINDOW_NONE,     /* the family does not read sliding_window */
    SN_WINDOW_GIVEN,    /* sliding_window; null: no window */
    SN_WINDOW_SWITCHED, /* sliding_window, if use_sliding_window is true */
} sn_window_rule;

/* How Q, K and V (and their biases) lie in the file. Where they are fused, the three roles have one tensor name. */
typedef enum sn_qkv_layout {
    SN_QKV_SEPARATE,
    SN_QKV_FUSED,          /* one tensor: all rows of Q, of K, of V */
    SN_QKV_FUSED_PER_HEAD, /* one tensor: for each key/value head its queries, its key, its value */
} sn_qkv_layout;

/* The tensor names of the roles in one container; NULL: the family has no such tensor. The tensor of a block is called
 * block_prefix, the block's number, ".", name. In the name of a role with several matrices, "*" stands for the number
 * of the matrix; without "*" all of them are stacked in one tensor (matrices, rows, cols). */
typedef struct sn_tensor_naming {
    const char *block_prefix;
    const char *names[SN_ROLE_COUNT];
    sn_qkv_layout qkv;
    bool delta_fused;  /* DELTA_QKV and DELTA_GATE are one tensor: for each key head its query, its key, its values, and
                        * what gates these */
    bool delta_paired; /* DELTA_WRITE and DELTA_TIME are one tensor: for each key head those of its value heads */
    bool delta_joined; /* what multiplies the input of a recurrent block is one tensor */
    bool q_gated;      /* Q and attention's gate are one tensor: for each head its queries, then its gate */
    bool gate_up_fused;  /* gate and up are one tensor: all rows of gate, then of up; of experts, expert by expert */
    bool shared_fused;   /* the same of the shared expert */
    bool gate_up_halves; /* of transposed experts: all columns of gate, then of up */
    bool experts_transposed; /* stacked experts are (experts, inputs, outputs); gate and up are one tensor, with their
                              * columns alternating */
    const char *whole_q;     /* the name of ATTN_Q in models without q_rank; NULL: the same */
    const char *joined_ups;  /* the name of both ATTN_K_UP and ATTN_V_UP in files that lack their own names; or NULL */
    /* What stands before the names of block n_blocks: of its own four roles (NEXT_...) this, of the others this,
     * "layers.0." and the name; NULL: what other blocks have, with its number. */
    const char *next_prefix;
    const char *base; /* prefix that files of the model without its LM head leave out of their names; or NULL */
} sn_tensor_naming;

/* In the names of a wrapped family's tensors where the files hold an image encoder, too: before the whole name, or
 * behind the first of the two prefixes. */
#define SN_WRAPPER_PREFIX "language_model."
#define SN_WRAPPED_PREFIX "model."

/* How config.json describes a mixture of experts, and the defaults of its fields. */
typedef struct sn_moe_config {
    const char *width; /* the field with the n_ff of an expert */
    int n_experts, n_experts_used, n_ff;
    sn_router_scoring scoring;
    /* SN_ROUTER_SOFTMAX_ALL and SN_ROUTER_SIGMOID: SN_NEVER or SN_ALWAYS, or what norm_topk_prob says, with its
     * default. Normalised, SN_ROUTER_SOFTMAX_ALL is SN_ROUTER_SOFTMAX. */
    sn_trait normalised;
    bool normalised_default, gguf_normalised; /* the latter: where a GGUF file does not say it */
    bool correction;                          /* the router has a correction */
    double offset;                            /* router_offset of sn_hparams */
    bool blocks_listed;                       /* the list of blocks says which of them are dense */
    const char *enabled_by;                   /* the model is a mixture only if this field is true; or NULL */
    bool beside;             /* the shared expert is a feed-forward with norms of its own: sn_hparams.dense_beside */
    const char *dense_list;  /* the field that lists the blocks without experts by 0; or NULL */
    const char *groups_by;   /* the topk_method that chooses among the best groups of experts; NULL: none does */
    const char *dense_width; /* the field with the n_ff of blocks without experts; NULL: all blocks have experts */
    const char
        *shared_width; /* the field with the n_ff of the shared expert; NULL: n_shared_experts times an expert's */
    const char *shared_count, *scale_field; /* NULL: n_shared_experts, routed_scaling_factor */
    bool gguf_shared_counted; /* its converter writes another width of the shared expert than shared_count times n_ff */
    int n_shared, n_ff_shared, n_dense; /* defaults of n_shared_experts, shared_width and first_k_dense_replace */
    bool shared_gated;
    double scale_default;        /* of routed_scaling_factor; 0: the family ignores that field */
    int n_groups, n_groups_used; /* defaults of n_group and topk_group; 0: 1 */
    bool scales_input;           /* the weight of an expert multiplies its input */
} sn_moe_config;

/* How config.json describes blocks whose heads differ from those of its usual fields: those with a window, or with full
 * attention. Fields of the others: NULL: the same number. */
typedef struct sn_heads_config {
    bool full; /* the others are the blocks with full attention */
    const char *n, *n_kv, *key_dim, *value_dim;
    int n_kv_times;      /* where the file does not say n_kv: the usual number so many times */
    const char *n_kv_if; /* n_kv counts only if this field is true; then their values are what gives keys, too */
    int key_dim_default; /* where the file does not say it; 0: the usual number */
    const char *object;  /* the field with an object that has some of them, by the usual names */
} sn_heads_config;

typedef struct sn_family {
    const char *name;              /* config.json's model_type */
    const char *gguf_architecture; /* NULL: none, or its GGUF files have another family's */
    sn_rope_style gguf_rope;       /* in safetensors always SN_ROPE_NEOX */
    sn_trait qkv_bias;
    sn_trait qk_norm;
    bool qk_norm_wide, qk_norm_plain;
    bool layer_norm, parallel, alibi;
    const sn_heads_config *heads; /* NULL: all blocks have the same heads */
    bool head_gate;               /* a gate for each head of attention */
    bool limits;                  /* config.json may bound feed-forwards block by block */
    bool gguf_full_half;          /* GGUF: blocks with full attention rotate half of the dimensions that it says */
    bool norm_values;             /* values are normed */
    bool proportional;            /* rope may be of type proportional: the dimensions that are not rotated are pairs */
    bool unscaled;                /* scores of attention are not scaled */
    bool window_sinks;            /* blocks with full attention have no sinks */
    double value_scale_default;   /* values are multiplied by attention_value_scale; 0: the family has no such field */
    int value_dim_default;        /* v_head_dim; 0: that of keys */
    bool latent;                  /* latent attention */
    bool indexed;                 /* with an indexer: sn_hparams.index_topk */
    bool index_as_rope;           /* as in sn_hparams */
    bool index_shares;            /* files may say that blocks attend to what the last one with an indexer has chosen */
    sn_trait linear_bias;
    bool bias_default; /* attention_bias where config.json does not say it */
    bool no_o_bias;    /* attention_bias is not about the output matrix */
    /* Where config.json does not say them: n_ff as a multiple of n_embd, and n_ctx; 0: config.json must say them. */
    int ff_multiple, ctx_default, taps_default;
    sn_window_rule window;
    int window_default; /* SN_WINDOW_GIVEN: where config.json has no such field */
    int window_pattern; /* where config.json does not list the blocks, every n-th has full attention; 0: none has */
    /* Defaults of config.json's fields; 0: those of most families. */
    int head_dim_default;
    double theta_default, attn_scalar_default, eps_default;
    bool tied_default;
    sn_activation activation_default;
    const char *activation_field; /* of config.json; NULL: hidden_act; "": none */
    const char *eps_field;        /* of config.json; NULL: rms_norm_eps */
    double logit_scale_default;   /* logits are multiplied by logit_scale; 0: the family has no such field */
    double local_theta;           /* rope theta of the blocks with a window; 0: that of the others */
    bool local_unscaled;          /* blocks with a window have the same rope theta, without scaling */
    const char *windowed;         /* the name of the family that its GGUF files with a window belong to; or NULL */
    double rotated_default;       /* partial_rotary_factor */
    bool rotates_part;            /* config.json may say it; other families ignore it while rope has no scaling */
    int no_rope_interval; /* config.json may list no_rope_layers; without the list every n-th block has no rope */
    bool logit_softcap;   /* logits are bounded by a number of the file */
    bool softcaps;        /* scores of attention and logits are bounded by numbers of the file */
    bool neighbours;      /* files of Hugging Face rotate neighbouring dimensions, as some GGUF files do */
    bool full_unrotated;  /* where blocks have a window, those with full attention have no rope */
    bool chunks;          /* blocks with rope attend to their chunk of positions */
    bool multipliers;     /* embeddings, scores, residuals and logits are multiplied by numbers of the file */
    bool wrapped;         /* config.json may have these fields in text_config, beside those of an image encoder */
    bool recurrent;       /* some blocks have a recurrence instead of attention */
    sn_recurrence recurrence;
    bool one_half;       /* a block is a recurrence, attention, a feed-forward or a mixture, each with its norm */
    bool unrotated;      /* attention has no rope */
    bool keeps_low_rank; /* SN_KEYED_DELTA: delta_rank is delta_key_dim */
    bool attn_gated;     /* those with attention have an output gate */
    bool rope_required;  /* config.json must have rope_parameters or rope_scaling: the reference's default is scaled */
    bool long_rope;      /* rope may have factors of short and of long timelines */
    bool yarn_untruncated;                              /* GGUF: sn_rope_scaling.truncate is false */
    double growth_default;                              /* GGUF: sn_rope_scaling.q_growth where yarn is without it */
    bool norm_plus_one;                                 /* safetensors store the factors of norms minus 1 */
    bool scales_embeddings;                             /* embeddings are multiplied by sqrt(n_embd) */
    const sn_tensor_naming *naming[SN_CONTAINER_COUNT]; /* NULL: no such files exist */
    const sn_moe_config *moe;                           /* NULL: no mixture of experts */
    bool further_blocks; /* files may hold blocks after the last one, which predict further tokens; the first is used to
                          * draft if the family names its own roles (NEXT_...) */
    bool gguf_moe;       /* GGUF files of the family may be mixtures; softmax over the chosen experts */
    /* NULL-terminated, or NULL: fields of config.json that change the mathematics and that this family may set; in
     * other families they are refused. */
    const char *const *config_fields;
} sn_family;

/* All of them (families.c): the variants of a family stand one after the other; the last descriptor has no name. */
extern const sn_family sn_families[];

/* The n-th variant of a family: descriptors of one name, told apart by other contents of the file. NULL: there are
 * fewer.
 */
const sn_family *sn_family_variant(const sn_family *first, int n);

/* The family (its first variant) of a config.json's model_type or of a GGUF architecture. SN_REFUSED names the known
 * ones.
 */
sn_status sn_family_find(sn_container container, const char *name, const sn_family **out, sn_err *err) SN_MUST_USE;

/* Writes the name of the tensor that holds this matrix of the role, in a model of n_blocks; false when the family has
 * no tensor for the role. */
enum { SN_TENSOR_NAME_MAX = 128 };
bool sn_family_tensor_name(const sn_family *family, sn_container container, int n_blocks, sn_role role, int block,
                           int expert, char out[SN_TENSOR_NAME_MAX]);

/* Replaces the name of a role by its other one (whole_q, joined_ups, experts' gate and up as one), for files that lack
 * the first; false: there is none. */
bool sn_family_other_name(const sn_family *family, sn_container container, int n_blocks, sn_role role, int block,
                          char out[SN_TENSOR_NAME_MAX]);

/* Whether all matrices of the role are stacked in one tensor. */
bool sn_family_stacks_experts(const sn_family *family, sn_container container, sn_role role);

/* Whether a model of the family with these hyperparameters has the role, in this block if it belongs to one. */
bool sn_family_has_role(const sn_family *family, const sn_hparams *hparams, sn_role role, int block);

/* Whether a tensor that some files contain is not needed: its contents follow from the hyperparameters, or it belongs
 * to a further block (family->further_blocks) or an image encoder (family->wrapped). */
bool sn_family_ignores(const sn_family *family, sn_container container, int n_blocks, const char *tensor_name);

#endif
