/* Families of models: what sets one apart from another in its files, as data. The mathematics of a block reads
 * sn_hparams, never the family's name. A new family is a new row in family.c (and new roles in model.h when it has
 * tensors of a new kind). */
#ifndef SN_MODEL_FAMILY_H
#define SN_MODEL_FAMILY_H

#include "model/model.h"

typedef enum sn_container { SN_CONTAINER_SAFETENSORS, SN_CONTAINER_GGUF, SN_CONTAINER_COUNT } sn_container;

typedef enum sn_trait {
    SN_NEVER,
    SN_ALWAYS,
    SN_IF_SAID, /* when config.json says so; in a GGUF file, when the tensors are there */
} sn_trait;

typedef enum sn_window_rule {
    SN_WINDOW_NONE,     /* the family does not read sliding_window */
    SN_WINDOW_GIVEN,    /* sliding_window, null for none */
    SN_WINDOW_SWITCHED, /* sliding_window where use_sliding_window */
} sn_window_rule;

/* How Q, K and V (and their biases) lie in the file; where together, the three roles have one name. */
typedef enum sn_qkv_layout {
    SN_QKV_APART,
    SN_QKV_JOINED,  /* all of Q, all of K, all of V */
    SN_QKV_BY_HEAD, /* for each key/value head: the queries that share it, its key, its value */
} sn_qkv_layout;

/* Names of the roles in a container. NULL: the family has no such tensor. A block's tensor is called block_prefix,
 * number of the block, ".", name. Of a role with several matrices, "*" in its name stands for the number of each; without it
 * they lie in one tensor (matrices, rows, cols). */
typedef struct sn_naming {
    const char *block_prefix;
    const char *of[SN_ROLE_COUNT];
    sn_qkv_layout qkv;
    bool gate_up; /* gate and up are one tensor, gate first */
    bool experts_turned; /* stacked experts lie (experts, inputs, outputs); gate and up are one tensor and take turns in its columns */
    const char *base; /* what all names but the output's begin with, where the file is not of the bare model; or NULL */
} sn_naming;

/* What config.json says of a mixture of experts, and means where it is silent. */
typedef struct sn_mixture {
    const char *width; /* field: n_ff of an expert */
    int n_experts, n_experts_used, n_ff;
    bool weighs_over_all; /* unless norm_topk_prob */
} sn_mixture;

typedef struct sn_family {
    const char *name;              /* also config.json's model_type */
    const char *gguf_architecture; /* NULL: its GGUF files go by another family's */
    sn_rope_style gguf_rope;       /* safetensors: always SN_ROPE_HALVES */
    sn_trait qkv_bias;
    bool qk_norm, qk_norm_wide;
    bool layer_norm, parallel, alibi;
    sn_trait linear_bias;
    bool bias_default; /* where config.json is silent */
    int ff_times, ctx_default; /* width of the feed-forward in hidden states, and context, where config.json says none; 0: it must */
    sn_window_rule window;
    int window_default; /* of SN_WINDOW_GIVEN when config.json has no such field */
    int window_pattern; /* every n-th block looks back over all, where config.json does not list them; 0: none */
    /* What config.json means where it is silent; 0: as most do. */
    int head_dim_default;
    double theta_default, attn_scalar_default;
    bool tied_default;
    sn_activation activation_default;
    double local_theta;    /* blocks with a window rotate by this theta; 0: as the others */
    bool rope_said;        /* config.json must say how positions rotate */
    bool yarn_smooth;      /* GGUF: yarn's pairs between begin and end at any place, not at whole ones */
    bool norm_plus_one;    /* safetensors hold norms' factors less 1 */
    bool embeds_by_width;  /* embeddings are multiplied by sqrt(n_embd) */
    const sn_naming *naming[SN_CONTAINER_COUNT]; /* NULL: no such files are known */
    const sn_mixture *mixture; /* NULL: the feed-forward is one */
    bool gguf_mixtures; /* its GGUF files may be mixtures; the chosen experts share all weight then */
    const char *const *reads; /* NULL-terminated: fields of config.json that change the mathematics and are read here,
                                 where another family must not have them; or NULL */
} sn_family;

/* Of several rows with one name, which differ by what the file says further: the n-th of them; NULL: there are fewer. */
const sn_family *sn_family_variant(const sn_family *first, int n);

/* The family of a config.json's model_type (of several rows the first), or of a GGUF architecture; SN_REFUSED names the ones that are known. */
sn_status sn_family_find(sn_container container, const char *name, const sn_family **out, sn_err *err) SN_MUST_USE;

/* Writes the name of the tensor that holds this of the role's matrices; false when the family has none for the role. */
enum { SN_TENSOR_NAME_MAX = 128 };
bool sn_family_tensor_name(const sn_family *family, sn_container container, sn_role role, int block,
                           int piece, char out[SN_TENSOR_NAME_MAX]);

/* Whether all of the role's matrices lie in one tensor. */
bool sn_family_stacks(const sn_family *family, sn_container container, sn_role role);

/* Whether a model of these hyperparameters has the role at all. */
bool sn_family_has_role(const sn_family *family, const sn_hparams *hparams, sn_role role);

/* True for tensors that some files carry and nobody needs: what they hold follows from the hyperparameters. */
bool sn_family_ignores(const char *tensor_name);

#endif
