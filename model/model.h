/* An opened model: its hyperparameters, and where each of its tensors lies in the files.
 *
 * Central types: sn_model, immutable once open, read by any thread; sn_hparams, the hyperparameters; sn_role, what a
 * tensor does in the model; sn_model_tensor, a view of a tensor in a file. Opening reads headers only. Tensor data is
 * mapped into memory: it is read from the file when it is touched, so a node that loads its own blocks reads nothing
 * else. Views belong to the model and are valid until sn_model_close.
 *
 * Two containers: GGUF v2/v3 (one file), and a Hugging Face folder (config.json with model.safetensors, or with shards
 * that model.safetensors.index.json lists). Files come from outside: everything is checked, and SN_REFUSED says in a
 * sentence what is wrong. */
#ifndef SN_MODEL_MODEL_H
#define SN_MODEL_MODEL_H

#include "base/activation.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/recurrence.h"
#include "base/router.h"

#include <stdbool.h>

/* What a tensor does in the model, whatever its file calls it. Shapes are (rows, cols) = (outputs, inputs), or (width);
 * those of attention by the heads of the block (sn_heads_of).
 *     role             shape                            present if */
#define SN_ROLES(X)                                                                                                    \
    X(TOKEN_EMBEDDING)  /* (n_vocab, n_embd)                 always */                                                 \
    X(EMBED_NORM)       /* (n_embd)                          the family norms embeddings */                            \
    X(EMBED_NORM_BIAS)  /* (n_embd)                          likewise, layer_norm */                                   \
    X(OUTPUT_NORM)      /* (n_embd)                          always */                                                 \
    X(OUTPUT_NORM_BIAS) /* (n_embd)                          layer_norm */                                             \
    X(OUTPUT)           /* (n_vocab, n_embd)                 always; the embedding if tied */                          \
    X(ATTN_NORM)        /* (n_embd)                          unless the family has only ATTN_POST_NORM */              \
    X(ATTN_NORM_BIAS)   /* (n_embd)                          layer_norm */                                             \
    X(ATTN_Q_LOW)       /* (q_rank, n_embd)                  q_rank: its output is normed and is ATTN_Q's input */     \
    X(ATTN_Q_LOW_NORM)  /* (q_rank)                          q_rank */                                                 \
    X(ATTN_Q) /* (n_heads * head_dim, n_embd); latent: (n_heads * (nope_dim + rope_dim), q_rank or n_embd) */          \
    X(ATTN_K) /* (n_kv_heads * head_dim, n_embd);  latent: (rope_dim, n_embd), the keys' own elements */               \
    X(ATTN_V) /* (n_kv_heads * value_dim, n_embd); latent: (latent, n_embd) */                                         \
    X(ATTN_LATENT_NORM)  /* (latent)                          latent: of the output of ATTN_V */                       \
    X(ATTN_K_UP)         /* (latent, nope_dim)                latent: of each head; takes q to the latent */           \
    X(ATTN_V_UP)         /* (value_dim, latent)               latent: of each head; takes the latent to values */      \
    X(ATTN_O)            /* (n_embd, n_heads * value_dim) */                                                           \
    X(ATTN_Q_BIAS)       /* (n_heads * head_dim)              qkv_bias */                                              \
    X(ATTN_K_BIAS)       /* (n_kv_heads * head_dim)           qkv_bias */                                              \
    X(ATTN_V_BIAS)       /* (n_kv_heads * value_dim)          qkv_bias */                                              \
    X(ATTN_O_BIAS)       /* (n_embd)                          o_bias */                                                \
    X(ATTN_SLOPES)       /* (n_heads)                         alibi; computed, in no file */                           \
    X(ATTN_SINKS)        /* (n_heads)                         the family has attention sinks; window_sinks */          \
    X(ATTN_Q_NORM)       /* (head_dim), qk_norm_wide: (n_heads * head_dim)    qk_norm */                               \
    X(ATTN_K_NORM)       /* (head_dim), qk_norm_wide: (n_kv_heads * head_dim)    qk_norm */                            \
    X(ATTN_POST_NORM)    /* (n_embd)                          post_norm: of the output of attention */                 \
    X(FFN_NORM)          /* (n_embd)                          unless the family has only FFN_POST_NORM */              \
    X(FFN_NORM_BIAS)     /* (n_embd)                          layer_norm */                                            \
    X(FFN_GATE)          /* (n_ff, n_embd)                    the family has gates */                                  \
    X(FFN_UP)            /* (n_ff, n_embd) */                                                                          \
    X(FFN_DOWN)          /* (n_embd, n_ff) */                                                                          \
    X(FFN_UP_BIAS)       /* (n_ff)                            linear_bias */                                           \
    X(FFN_DOWN_BIAS)     /* (n_embd)                          linear_bias */                                           \
    X(FFN_POST_NORM)     /* (n_embd)                          post_norm: of the output of the feed-forward */          \
    X(ROUTER)            /* (n_experts, n_embd)               n_experts: these four instead of the three FFN_ */       \
    X(EXPERTS_GATE)      /* (n_ff, sn_expert_width)           of each expert: sn_role_n_matrices */                    \
    X(EXPERTS_UP)        /* (n_ff, sn_expert_width)           likewise */                                              \
    X(EXPERTS_DOWN)      /* (sn_expert_width, n_ff)           likewise */                                              \
    X(ROUTER_BIAS)       /* (n_experts)                       the family's experts have biases: these four */          \
    X(EXPERTS_GATE_BIAS) /* (n_experts * n_ff)                of all experts, one after the other */                   \
    X(EXPERTS_UP_BIAS)   /* (n_experts * n_ff)                likewise */                                              \
    X(EXPERTS_DOWN_BIAS) /* (n_experts * n_embd)              likewise */                                              \
    X(ROUTER_CORRECTION) /* (n_experts)                       router_correction */                                     \
    X(SHARED_GATE)       /* (n_ff_shared, n_embd)             n_ff_shared: the expert that takes every row */          \
    X(SHARED_UP)         /* (n_ff_shared, n_embd)             likewise */                                              \
    X(SHARED_DOWN)       /* (n_embd, n_ff_shared)             likewise */                                              \
    X(SHARED_ROUTER)     /* (1, n_embd)                       shared_gated */                                          \
    X(ATTN_GATE)         /* (n_heads * head_dim, n_embd)      attn_gate */                                             \
    X(INDEX_Q)           /* (index_heads * index_dim, q_rank) index_topk, in blocks that choose: these five */         \
    X(INDEX_K)           /* (index_dim, n_embd)               likewise */                                              \
    X(INDEX_K_NORM)      /* (index_dim)                       a layer norm */                                          \
    X(INDEX_K_NORM_BIAS) /* (index_dim) */                                                                             \
    X(INDEX_WEIGHTS)     /* (index_heads, n_embd)             of the heads' scores */                                  \
    X(DELTA_QKV)         /* (sn_delta_width, n_embd)          recurrent blocks: these instead of the ATTN_ ones */     \
    X(DELTA_GATE)        /* (sn_delta_values, delta_rank or n_embd) of the output */                                   \
    X(DELTA_TIME)        /* (sn_delta_times, delta_rank or n_embd) of the decay: device.h calls its result a */        \
    X(DELTA_WRITE)       /* (sn_delta_writes, n_embd)         of what is written: b */                                 \
    X(DELTA_TAPS)        /* (sn_delta_width * conv_taps)      of the convolution, channel by channel */                \
    X(DELTA_RATES)       /* (value heads)                     of the decay */                                          \
    X(DELTA_TIME_BIAS)   /* (sn_delta_times)                  added to what DELTA_TIME gives */                        \
    X(DELTA_NORM)        /* (value_dim)                       of each value head's output; SN_STATE_SPACE: of all */   \
    X(DELTA_Q)           /* (sn_delta_keys, n_embd)           delta_apart: these six instead of QKV and TAPS */        \
    X(DELTA_K)           /* (sn_delta_keys, n_embd)           likewise */                                              \
    X(DELTA_V)           /* (sn_delta_values, n_embd)         likewise */                                              \
    X(DELTA_Q_TAPS)      /* (sn_delta_keys * conv_taps)       likewise */                                              \
    X(DELTA_K_TAPS)      /* (sn_delta_keys * conv_taps)       likewise */                                              \
    X(DELTA_V_TAPS)      /* (sn_delta_values * conv_taps)     likewise */                                              \
    X(DELTA_TAPS_BIAS)   /* (sn_delta_width)                  conv_bias */                                             \
    X(DELTA_SKIP)        /* (value heads)                     SN_STATE_SPACE: of the values in the output */           \
    X(DELTA_TIME_LOW)    /* (delta_rank, n_embd)              delta_rank: its output is DELTA_TIME's input */          \
    X(DELTA_GATE_LOW)    /* (delta_rank, n_embd)              likewise, DELTA_GATE's */                                \
    X(DELTA_OUT)         /* (n_embd, sn_delta_values) */                                                               \
    X(EXPERTS_NARROW)    /* (experts_width, n_embd)           experts_width: makes the experts' input */               \
    X(EXPERTS_WIDEN)     /* (n_embd, experts_width)           likewise, takes the sum of their outputs */              \
    X(NEXT_EMBED_NORM)   /* (n_embd)                          n_next: block n_blocks alone has these four */           \
    X(NEXT_HIDDEN_NORM)  /* (n_embd)                          likewise */                                              \
    X(NEXT_INPUT)        /* (n_embd, 2 * n_embd)              of a normed embedding and a normed hidden state */       \
    X(NEXT_OUTPUT_NORM)  /* (n_embd)                          takes the place of OUTPUT_NORM behind this block */      \
    X(ATTN_HEAD_GATE)    /* (n_heads, n_embd)                 head_gate: a number for each head */                     \
    X(ATTN_V_NORM)       /* (value_dim)                       norm_values; computed, in no file */                     \
    X(SHARED_POST_NORM)  /* (n_embd)                          dense_beside: of the output of the shared expert */      \
    X(EXPERTS_NORM)      /* (n_embd)                          likewise: of the experts' input, which is not that */    \
    X(EXPERTS_POST_NORM) /* (n_embd)                          likewise: of what the chosen experts give */             \
    X(ROUTER_NORM)       /* (n_embd)                          likewise: of the router's input */                       \
    X(ROUTER_FACTORS)    /* (n_experts)                       likewise: of the experts' weights */                     \
    X(BLOCK_SCALE)       /* (1)                               the family scales what leaves a block; host memory */

typedef enum sn_role {
#define X(name) SN_ROLE_##name,
    SN_ROLES(X)
#undef X
        SN_ROLE_COUNT,
    SN_ROLE_FIRST_OF_BLOCK = SN_ROLE_ATTN_NORM, /* roles from here on belong to a block, those before to the client */
} sn_role;

/* Whether the role is one row that is used as float32: a norm, a bias, or a number for each head. */
bool sn_role_is_vector(sn_role role);
bool sn_role_is_norm(sn_role role);     /* the factors of a norm */
const char *sn_role_name(sn_role role); /* "ATTN_Q", static */
sn_role sn_role_bias(sn_role role);     /* the bias of a norm or matrix; SN_ROLE_COUNT: no family has one */

/* Which dimensions of a head a rope rotates as a pair. */
typedef enum sn_rope_style {
    SN_ROPE_INTERLEAVED, /* (0,1), (2,3), ...: GGUF files of the llama architecture, whose Q and K are permuted so */
    SN_ROPE_NEOX,        /* (0,d/2), (1,d/2+1), ...: all others (GPT-NeoX style) */
} sn_rope_style;

enum {
    SN_BLOCKS_MAX = 1024,
    SN_HEADS_MAX = 1024,
    SN_ROPE_FREQS_MAX = 256,
    SN_ROPES_MAX = 2,
    SN_INDEX_TOPK_MAX = 1 << 14,
    SN_INDEX_DIM_MAX = 512,
    SN_MODEL_EXPERTS_MAX = 1024,
    SN_MODEL_EXPERTS_USED_MAX = 64,
    SN_FAMILY_NAME_SIZE = 32,
    SN_MODEL_NAME_SIZE = 128
};

/* The heads of attention: of queries, and of keys and values; elements of a query or key, and of a value. */
typedef struct sn_heads {
    int n, n_kv, key_dim, value_dim;
} sn_heads;

typedef struct sn_hparams {
    char family[SN_FAMILY_NAME_SIZE]; /* a name of families.c: "llama", "qwen2", ... */
    char name[SN_MODEL_NAME_SIZE];    /* for display: the name in the file, else the name of the file */
    int n_next; /* 1: the files have a block that predicts a further token (blocks/next_block.h): number n_blocks, which
                   does not count in n_blocks. Else 0 */
    int n_blocks, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab; /* heads: of the blocks without others */
    sn_heads full_heads; /* of blocks with full attention, where they have others than those with a window; else 0 */
    int n_ctx;           /* the longest context that the model was trained for, tokens */
    float norm_eps, latent_eps; /* latent_eps: of ATTN_Q_LOW_NORM, ATTN_LATENT_NORM and INDEX_K_NORM */
    int window;                 /* sliding window: a token attends to itself and window-1 before it; 0: to all */
    bool full_attention[SN_BLOCKS_MAX]; /* blocks that attend to all positions, whatever the window */
    bool window_sinks;                  /* of a family with sinks, only blocks with a window have some */
    bool window_chunks;                 /* the window is a chunk instead: window of sn_attention, device/device.h */
    bool no_rope[SN_BLOCKS_MAX];        /* blocks whose queries and keys are not rotated */
    /* q is multiplied by 1 + q_growth * ln(1 + (position + q_growth_offset) / q_growth_step), a whole number inside the
     * brackets; 0: it is not. */
    float q_growth;
    int q_growth_step, q_growth_offset;
    bool q_growth_unrotated; /* only in blocks without rope */
    float score_softcap,
        logit_softcap;                /* scores of attention and logits x become cap * tanh(x / cap); 0: they do not */
    bool experts_scale_input;         /* the weight of an expert multiplies its input instead of its output */
    int n_experts, n_experts_used;    /* of a mixture of experts (n_ff is then one expert's); 0: there is none */
    int experts_width;                /* elements of what enters and leaves an expert; 0: n_embd */
    bool dense[SN_BLOCKS_MAX];        /* of a mixture: blocks with a feed-forward of n_ff_dense instead of experts */
    int n_ff_dense, n_ff_shared;      /* n_ff_shared: of the expert that takes every row; 0: there is none */
    bool shared_gated;                /* its output is multiplied by the sigmoid of SHARED_ROUTER times the row */
    sn_router_scoring router_scoring; /* with router_normalised and router_scale: sn_moe_router, device/device.h */
    bool router_correction, router_normalised; /* the latter only with SN_ROUTER_SIGMOID */
    float router_scale;                        /* of the experts' weights; usually 1 */
    float router_offset;                       /* sum_offset of sn_moe_router */
    int n_expert_groups, n_expert_groups_used; /* n_groups and n_groups_used of sn_moe_router */
    bool qkv_bias;                             /* Q, K and V have biases */
    bool tied_output;                          /* the LM head is the embedding */
    bool qk_norm, qk_norm_wide; /* Q and K have norms; wide: over all heads of a row, not over each head */
    bool post_norm;             /* the output of each half of a block has a norm before it is added */
    bool layer_norm;            /* norms subtract the mean and have biases; else they are RMS norms */
    bool o_bias;                /* the output matrix of attention has a bias */
    bool linear_bias;           /* the matrices of a feed-forward without gates have biases */
    bool parallel;              /* both halves of a block read the block's input, each through its own norm */
    bool gated;                 /* the feed-forward has gates */
    bool alibi;                 /* attention is biased by ATTN_SLOPES; such models have no rope */
    sn_activation activation;   /* of the feed-forward; of its gate, if it is gated */
    bool attn_gate;             /* attention's output is multiplied by sigmoid(ATTN_GATE) */
    bool head_gate;             /* each head's output is multiplied by its sigmoid(ATTN_HEAD_GATE) */
    bool norm_values;           /* values have an RMS norm without factors */
    bool full_keys_are_values;  /* in blocks with full attention values are what ATTN_K gives, and ATTN_V is absent */
    /* The shared expert has norms of its own, and the experts and the router each another norm of the block's input. */
    bool dense_beside;
    /* By block: silu(gate) is bounded by it, and up by it and its negative, in experts; in the shared expert or a
     * feed-forward without experts. 0: unbounded. */
    float ff_limit[SN_BLOCKS_MAX], dense_limit[SN_BLOCKS_MAX];
    bool recurrent[SN_BLOCKS_MAX]; /* blocks without attention: they have a recurrence behind a short convolution */
    bool no_mixer[SN_BLOCKS_MAX], no_ff[SN_BLOCKS_MAX]; /* blocks of one half: without the first one, which then count
                                                           as recurrent, too, and without the second one */
    sn_recurrence recurrence;
    int conv_taps;               /* 0: the model has no recurrent blocks, and what is said of them here says nothing */
    bool conv_bias, delta_apart; /* DELTA_TAPS_BIAS; DELTA_Q and so on */
    int delta_rank;              /* 0: DELTA_TIME and DELTA_GATE are one matrix each */
    float delta_floor;           /* floor of sn_delta, device/device.h */
    bool delta_rates_negated;    /* the file stores -DELTA_RATES */
    int delta_key_heads, delta_value_heads, delta_key_dim, delta_value_dim;
    bool delta_heads_alternate;           /* as sn_delta_shape.key_heads_alternate: GGUF files order value heads so */
    bool delta_log_rates;                 /* the file stores ln(-DELTA_RATES) */
    bool zeros_less_one, zeros_in_middle; /* GPTQ: the file has zeros so; all are said to be half of the codes' range */
    bool act_order;                       /* of the folder's quantised matrices: columns belong to scattered groups */
    bool qk_norm_plain;                   /* these norms have no factors, and only blocks with rope have them */
    bool norm_plus_one;                   /* the file stores w where norms multiply by 1 + w */
    float value_scale;                    /* values are multiplied by it before they are stored; 0: they are not */
    float attn_scale;                     /* of query times key: 1 / sqrt(head_dim) unless the model says otherwise */
    float embed_scale;                    /* embeddings are multiplied by it before the first block; usually 1 */
    float residual_scale;                 /* what each half of a block adds is multiplied by it; usually 1 */
    float logit_scale;                    /* logits are multiplied by it; usually 1 */
    sn_rope_style rope_style;
    int rope_dim;      /* rotated dimensions of a head (even, <= head_dim); 0: no rope */
    int rope_dim_full; /* those of blocks with full attention (n_ropes 2), and of long timelines */
    /* Latent attention (MLA: DeepSeek-AI 2024). All heads share one key, the `latent` numbers that stand for the keys
     * and values of all heads, then rope_dim rotated ones; the value is the latent. So n_kv_heads is 1 and head_dim is
     * latent + rope_dim. A head's q of nope_dim + rope_dim numbers is brought to this form by ATTN_K_UP, and ATTN_V_UP
     * makes its result of value_dim numbers. 0: none. q_rank 0: q has one matrix. */
    int latent, nope_dim, q_rank;
    int value_dim; /* of a head's value; 0: head_dim */
    /* An indexer (DeepSeek-AI 2025) chooses index_topk positions for each token, to which all heads of the block
     * attend: those of the highest scores by index_heads queries of index_dim numbers, of which the first rope_dim are
     * rotated as halves, or as the model's own rope does (index_as_rope). 0: attention to all positions. */
    int index_topk, index_heads, index_dim;
    bool index_as_rope;
    bool index_shared[SN_BLOCKS_MAX]; /* blocks without an indexer, which attend to what the block before has chosen */
    /* The angle of pair i at position p is p * rope_freq[i], in radians. Scaling (linear, llama3, yarn) is included.
     * float32, as the reference computes it. */
    float rope_freq[SN_ROPE_FREQS_MAX];
    int n_ropes;                             /* 1 or 2 */
    float rope_freq_full[SN_ROPE_FREQS_MAX]; /* n_ropes 2: the frequencies of blocks with full attention */
    /* Timelines of at most so many tokens use rope_freq, and longer ones rope_freq_full from their first token on
     * (LongRoPE: Ding et al. 2024); n_ropes is then 1. 0: all use the same */
    int long_after;
    float rope_scale[SN_ROPES_MAX]; /* of each rope: factor of cosines and sines (yarn); else 1 */
} sn_hparams;

/* Of a block: its window (0: none; below 0: chunks), and which of the n_ropes ropes it uses. */
static inline int sn_window_of(const sn_hparams *hp, int block) {
    return hp->full_attention[block] ? 0 : hp->window_chunks ? -hp->window : hp->window;
}
static inline int sn_rope_of(const sn_hparams *hp, int block) { return hp->n_ropes > 1 && hp->full_attention[block]; }
static inline int sn_rope_dim(const sn_hparams *hp, int rope) { return rope ? hp->rope_dim_full : hp->rope_dim; }
static inline const float *sn_rope_freqs(const sn_hparams *hp, int rope) {
    return rope ? hp->rope_freq_full : hp->rope_freq;
}

/* The heads of a block; of latent attention the value is what the cache has, the latent. */
static inline sn_heads sn_usual_heads(const sn_hparams *hp) {
    const int value = hp->latent ? hp->latent : hp->value_dim ? hp->value_dim : hp->head_dim;
    return (sn_heads){hp->n_heads, hp->n_kv_heads, hp->head_dim, value};
}
static inline sn_heads sn_heads_of(const sn_hparams *hp, int block) {
    return hp->full_heads.n && hp->full_attention[block] ? hp->full_heads : sn_usual_heads(hp);
}
/* Whether a timeline of at most max_tokens is a long one (long_after). */
static inline bool sn_is_long(const sn_hparams *hp, int max_tokens) {
    return hp->long_after && max_tokens > hp->long_after;
}

/* For each number the larger one of both kinds of blocks: for buffers. */
static inline sn_heads sn_most_heads(const sn_hparams *hp) {
    const sn_heads a = sn_usual_heads(hp), *b = &hp->full_heads;
    return (sn_heads){a.n > b->n ? a.n : b->n, a.n_kv > b->n_kv ? a.n_kv : b->n_kv,
                      a.key_dim > b->key_dim ? a.key_dim : b->key_dim,
                      a.value_dim > b->value_dim ? a.value_dim : b->value_dim};
}

static inline bool sn_q_grows(const sn_hparams *hp, int block) {
    return hp->q_growth > 0 && (!hp->q_growth_unrotated || hp->no_rope[block]);
}
static inline bool sn_has_experts(const sn_hparams *hp, int block) {
    return hp->n_experts && !hp->dense[block] && !hp->no_ff[block];
}
/* Elements of a row that enters an expert, and of one that leaves it. */
static inline int sn_expert_width(const sn_hparams *hp) { return hp->experts_width ? hp->experts_width : hp->n_embd; }
/* Columns of what DELTA_QKV gives: queries and keys of all key heads, values of all value heads. */
static inline size_t sn_delta_width(const sn_hparams *hp) {
    return 2 * (size_t)hp->delta_key_heads * (size_t)hp->delta_key_dim +
           (size_t)hp->delta_value_heads * (size_t)hp->delta_value_dim;
}
/* Columns of what the recurrence gives; of the queries, or the keys, of all key heads; of what DELTA_TIME and
 * DELTA_WRITE give. */
static inline size_t sn_delta_values(const sn_hparams *hp) {
    return (size_t)hp->delta_value_heads * (size_t)hp->delta_value_dim;
}
static inline size_t sn_delta_keys(const sn_hparams *hp) {
    return (size_t)hp->delta_key_heads * (size_t)hp->delta_key_dim;
}
static inline size_t sn_delta_times(const sn_hparams *hp) {
    return (size_t)hp->delta_value_heads * (hp->recurrence == SN_KEYED_DELTA ? (size_t)hp->delta_key_dim : 1);
}
static inline size_t sn_delta_writes(const sn_hparams *hp) {
    return hp->recurrence == SN_SHORT_CONV ? sn_delta_values(hp) : (size_t)hp->delta_value_heads;
}
/* How many of the blocks [first, block) have a state, or attention, as `block` does: which state, or which part of a KV
 * page, is this block's in a cache of blocks from `first` on. */
static inline int sn_place_of(const sn_hparams *hp, int first, int block) {
    int place = 0;
    for (int b = first; b < block; b++) place += hp->recurrent[b] == hp->recurrent[block] && !hp->no_mixer[b];
    return place;
}
/* How many of the blocks [first, end) have a state. */
static inline int sn_n_states(const sn_hparams *hp, int first, int end) {
    int n = 0;
    for (int b = first; b < end; b++) n += hp->recurrent[b] && !hp->no_mixer[b];
    return n;
}
static inline int sn_n_recurrent(const sn_hparams *hp, int first, int end) {
    int n = 0;
    for (int b = first; b < end; b++) n += hp->recurrent[b];
    return n;
}
/* Whether the block has index keys, and how many of the blocks [first, end) do. */
static inline bool sn_chooses_keys(const sn_hparams *hp, int block) {
    return hp->index_topk && !hp->index_shared[block];
}
static inline int sn_n_choosing(const sn_hparams *hp, int first, int end) {
    int n = 0;
    for (int b = first; b < end; b++) n += sn_chooses_keys(hp, b);
    return n;
}
/* Whether a node's or client's blocks may begin with this one: one that attends to what the block before has chosen
 * stays with it, because choices do not travel. */
static inline bool sn_may_cut(const sn_hparams *hp, int block) {
    return block >= hp->n_blocks || !hp->index_topk || !hp->index_shared[block];
}
/* SN_REFUSED, with the places where the model can be cut: blocks [first, end) begin or end somewhere else. */
sn_status sn_check_cuts(const sn_hparams *hp, int first, int end, sn_err *err) SN_MUST_USE;
bool sn_has_no_cuts(const sn_hparams *hp); /* whether there are places where it cannot be cut */
/* Whether the inputs of products keep at least 16 bits (sn_linear.high_precision): a rounding may choose other experts,
 * and the norm behind a recurrent block makes it larger. */
static inline bool sn_needs_precision(const sn_hparams *hp) {
    return hp->n_experts || sn_n_recurrent(hp, 0, hp->n_blocks);
}

/* The shape of one matrix of the role in a block, (outputs, inputs); of a vector (1, width). */
void sn_role_shape(const sn_hparams *hparams, sn_role role, int block, size_t *rows, size_t *cols);

static inline bool sn_role_is_of_head(sn_role role) { return role == SN_ROLE_ATTN_K_UP || role == SN_ROLE_ATTN_V_UP; }
static inline bool sn_role_is_of_expert(sn_role role) {
    return role >= SN_ROLE_EXPERTS_GATE && role <= SN_ROLE_EXPERTS_DOWN;
}
/* The number of matrices of the role in a block: n_experts for the roles of experts, n_heads for those of heads,
 * else 1.
 */
static inline int sn_role_n_matrices(const sn_hparams *hp, sn_role role) {
    return sn_role_is_of_expert(role) ? hp->n_experts : sn_role_is_of_head(role) && hp->latent ? hp->n_heads : 1;
}

/* Numbers of a token in the KV cache of a block: of its keys and of its values, without what they share. */
static inline size_t sn_kv_key_width(const sn_hparams *hp, int block) {
    const sn_heads h = sn_heads_of(hp, block);
    return (size_t)h.n_kv * (size_t)(h.key_dim - hp->latent);
}
static inline size_t sn_kv_value_width(const sn_hparams *hp, int block) {
    const sn_heads h = sn_heads_of(hp, block);
    return (size_t)h.n_kv * (size_t)h.value_dim;
}
static inline size_t sn_kv_index_width(const sn_hparams *hp, int block) {
    return sn_chooses_keys(hp, block) ? (size_t)hp->index_dim : 0;
}
/* Of both and of index keys, in all of the blocks [first, end) that have some. */
static inline size_t sn_kv_width(const sn_hparams *hp, int first, int end) {
    size_t width = 0;
    for (int b = first; b < end; b++) {
        if (!hp->recurrent[b]) width += sn_kv_key_width(hp, b) + sn_kv_value_width(hp, b);
        width += sn_kv_index_width(hp, b);
    }
    return width;
}

/* A tensor in its file, or a view of some of its rows (Q, K and V may be one matrix in the file). Read it run by run
 * (sn_model_run), or make it contiguous (sn_model_contiguous). A vector has rows == 1. Four forms:
 *
 * - rows: row r (of a vector: element r) lies r / group_rows * group_stride + r % group_rows rows after `data`. A whole
 *   tensor is one group. In parts (n_parts): first the first part_rows[0] rows of all groups, then the part_rows[1]
 *   behind them, ..; a group is group_rows rows.
 * - transposed: col_step is not 0; element (r, c) lies r * row_step + c * col_step elements after `data`.
 * - packed: packed is not NULL; quantised weights in several tensors of a folder (model/packed.h), which
 *   sn_model_contiguous rearranges to blocks; `data` is that of their codes, one run.
 * - split: scales is not NULL; the file has elements and scales in two tensors, which sn_model_contiguous joins to
 *   blocks. Of SN_MXFP4, `data` has 16 bytes per block with neighbouring elements in one byte, the first in the low
 *   half, and `scales` one byte per block. Of SN_F8_E4M3, `data` has a byte per element, and `scales` a float32 (or
 *   bfloat16: scales_short) for each 128 rows and 128 columns of the file's tensor, or a single one (scales_single). */
enum { SN_TENSOR_PARTS_MAX = 3 };
typedef struct sn_model_tensor {
    sn_dtype dtype;
    size_t rows, cols;
    const void *data, *scales;
    const struct sn_packed *packed;
    size_t first_row; /* of a split or packed tensor: the row of the file's tensor that lies at `data`, or is first */
    bool scales_short, scales_single;
    size_t bytes; /* of the rows, once contiguous */
    bool vector;  /* the groups are of elements: not so of a matrix with one row */
    size_t group_rows, group_stride;
    int n_parts; /* 0: not in parts */
    size_t part_rows[SN_TENSOR_PARTS_MAX];
    size_t row_step, col_step; /* elements; 0: not transposed. Only of F32, F16 and BF16 */
    bool turned;  /* the role's matrix is the transpose of this one, which is quantised: (cols, rows) once decoded */
    uint64_t tie; /* stable id (from 1) of the parameter within the model: roles with equal ties share a parameter */
} sn_model_tensor;

/* The tensor as runs of contiguous bytes (without scales), in the order of its rows. Of a transposed tensor a run is a
 * column, with the bytes between its elements. i < sn_model_n_runs. */
size_t sn_model_n_runs(const sn_model_tensor *tensor);
const void *sn_model_run(const sn_model_tensor *tensor, size_t i, size_t *bytes);

/* Of a split tensor: the scales of run i. */
const void *sn_model_run_scales(const sn_model_tensor *tensor, size_t i, size_t *bytes);
/* What a packed tensor has beside its codes, 0 and up. NULL: this one, and all beyond the last. */
const void *sn_model_packed_part(const sn_model_tensor *tensor, int i, size_t *bytes);
/* Whether its rows lie in the file otherwise than one after the other. */
bool sn_model_is_rearranged(const sn_model_tensor *tensor);

/* *rows: the tensor's rows one after the other (tensor->bytes). Where they lie so in the file, this is the file's
 * memory and *copy is NULL; else it is *copy, which the caller frees. SN_REFUSED: scales that are no numbers, and what
 * else of quantised weights cannot be computed with. */
sn_status sn_model_contiguous(const sn_model_tensor *tensor, const void **rows, void **copy, sn_err *err) SN_MUST_USE;

/* Whether a packed tensor's columns are in the order of their activations (GPTQ's desc_act). sn_model_contiguous has
 * them group by group then; sn_model_order writes which column is at each place. order: (cols). SN_REFUSED: the groups
 * are not those of the scales. */
bool sn_model_is_ordered(const sn_model_tensor *tensor);
sn_status sn_model_order(const sn_model_tensor *tensor, int32_t *order, sn_err *err) SN_MUST_USE;

typedef struct sn_model sn_model;

/* Opens a GGUF file or a folder. SN_REFUSED for anything that is not a consistent model of a known family. */
sn_status sn_model_open(const char *path, sn_model **out, sn_err *err) SN_MUST_USE;
void sn_model_close(sn_model **model); /* accepts NULL */

const sn_hparams *sn_model_hparams(const sn_model *model);

/* The tensor of `role` in `block` (ignored for roles that belong to no block). *out has data == NULL if the family does
 * not have the role. SN_REFUSED when the tensor is missing. */
sn_status sn_model_find(const sn_model *model, sn_role role, int block, sn_model_tensor *out, sn_err *err) SN_MUST_USE;
/* The same for one of the role's matrices, expert < sn_role_n_matrices. sn_model_find finds number 0. */
sn_status sn_model_find_expert(const sn_model *model, sn_role role, int block, int expert, sn_model_tensor *out,
                               sn_err *err) SN_MUST_USE;

/* Whether the files contain every tensor of the block (a client's copy may have only embedding and LM head). */
bool sn_model_has_block(const sn_model *model, int block);

/* Where bytes of a tensor lie: the path of the file, as it was opened, and the offset in it. False: they are in no file
 * (ATTN_SLOPES). */
bool sn_model_file_of(const sn_model *model, const void *bytes, const char **path, uint64_t *offset);

/* Tells the operating system that the tensor's pages in memory are not needed soon; its data stays readable. */
void sn_model_release_pages(const sn_model *model, const sn_model_tensor *tensor);

/* SHA-256 that identifies a block's weights: of the hyperparameters that its mathematics uses, then for each role in
 * the order of SN_ROLES dtype, rows, cols and bytes. Reads the block's tensors and releases their pages. */
sn_status sn_model_block_hash(const sn_model *model, int block, sn_hash *out, sn_err *err) SN_MUST_USE;

/* When to stop long work: asked at least every SN_HALT_BYTES that are read. */
enum { SN_HALT_BYTES = 1 << 20 };
typedef struct sn_halt {
    bool (*now)(void *ctx);
    void *ctx;
} sn_halt;

/* The same, but SN_RETRY once stop->now says true. stop NULL: never. */
sn_status sn_model_hash_block(const sn_model *model, int block, const sn_halt *stop, sn_hash *out,
                              sn_err *err) SN_MUST_USE;

/* From now on block hashes are kept in this folder of caches, and found there as long as the files that they were
 * computed of are as they were (model/kept_hash.h). Before other threads use the model. cache: copied; NULL: not so. */
void sn_model_keep_hashes(sn_model *model, const char *cache);

/* The hash of a block of the model, computed by the first call and remembered, so that a client that opens many
 * sessions reads the weights once. Any thread. */
sn_status sn_model_known_block_hash(const sn_model *model, int block, const sn_halt *stop, sn_hash *out,
                                    sn_err *err) SN_MUST_USE;
/* Whether that call would read no weights, because the hash is remembered or kept. */
bool sn_model_knows_block_hash(const sn_model *model, int block);
/* The bytes of a block's weights, as its hash reads them. */
sn_status sn_model_block_bytes(const sn_model *model, int block, uint64_t *out, sn_err *err) SN_MUST_USE;

/* The hashes of all blocks as a manifest says them (sharing/hub/manifest.h), for a program that has not all blocks.
 * Before other threads use the model. hashes: (n_blocks), copied. */
void sn_model_set_block_hashes(sn_model *model, const sn_hash *hashes);
/* Whether they were set; then the hash of this block. */
bool sn_model_told_block_hash(const sn_model *model, int block, sn_hash *out);

/* As sn_model_block_hash, for the weights that a client computes with itself: embedding, its norm, the last norm, LM
 * head. */
sn_status sn_model_client_hash(const sn_model *model, sn_hash *out, sn_err *err) SN_MUST_USE;
/* stop: as in sn_model_hash_block. */
sn_status sn_model_hash_client(const sn_model *model, const sn_halt *stop, sn_hash *out, sn_err *err) SN_MUST_USE;

/* SHA-256 that identifies the model without reading weights: of the hyperparameters, and of name, dtype and shape of
 * every block tensor. Different ids mean different models; models of equal ids may still differ in their block hashes.
 * A folder that lacks shards of the model has another id than the complete model. */
sn_hash sn_model_id(const sn_model *model);

/* All tensors of the files, for `swarm inspect`; i < sn_model_n_tensors. out->dtype is SN_DTYPE_COUNT where the type is
 * none of ours, as that of the scales in split MXFP4; type is its name then, too, in the words of the file ("U8").
 * out->bytes are those of the file: of a split tensor its elements, whose scales are a tensor of their own. */
size_t sn_model_n_tensors(const sn_model *model);
void sn_model_tensor_at(const sn_model *model, size_t i, const char **name, const char **type, sn_model_tensor *out);
/* Whether the tensor holds the scales of another one instead of parameters. */
bool sn_model_tensor_is_scale(const char *name);
const char *sn_model_container(const sn_model *model); /* "GGUF v3", "safetensors" */

#endif
