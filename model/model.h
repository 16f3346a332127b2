/* An opened model: hyperparameters, and where each tensor lies in its files. Immutable once open; any thread may read.
 *
 * Opening reads headers only. Tensor data is a memory-mapped view: touching it reads it from the file, so a node that
 * asks for the tensors of its own blocks reads nothing else. Two containers: GGUF v2/v3 (one file) and a Hugging Face
 * folder (config.json beside model.safetensors, or shards named by model.safetensors.index.json). */
#ifndef SN_MODEL_MODEL_H
#define SN_MODEL_MODEL_H

#include "base/activation.h"
#include "base/dtype.h"
#include "base/hash.h"

#include <stdbool.h>

/* What a tensor does in the model, whatever its file calls it. Shapes are (rows, cols) = (outputs, inputs), or (width).
 */
/*     role           shape                         present when */
#define SN_ROLES(X)                                                                                                    \
    X(TOKEN_EMBEDDING) /* (n_vocab, n_embd)              always                          */                            \
    X(EMBED_NORM)      /* (n_embd)                       the family norms embeddings     */                            \
    X(EMBED_NORM_BIAS) /* (n_embd)                       likewise, layer_norm            */                            \
    X(OUTPUT_NORM)     /* (n_embd)                       always                          */                            \
    X(OUTPUT_NORM_BIAS) /* (n_embd)                      layer_norm                      */                            \
    X(OUTPUT)          /* (n_vocab, n_embd)              always: the embedding when tied */                            \
    X(ATTN_NORM)       /* (n_embd)                       unless it is ATTN_POST_NORM only */                           \
    X(ATTN_NORM_BIAS)  /* (n_embd)                       layer_norm                      */                            \
    X(ATTN_Q)          /* (n_heads * head_dim, n_embd)                                   */                            \
    X(ATTN_K)          /* (n_kv_heads * head_dim, n_embd)                                */                            \
    X(ATTN_V)          /* (n_kv_heads * head_dim, n_embd)                                */                            \
    X(ATTN_O)          /* (n_embd, n_heads * head_dim)                                   */                            \
    X(ATTN_Q_BIAS)     /* (n_heads * head_dim)           qkv_bias                        */                            \
    X(ATTN_K_BIAS)     /* (n_kv_heads * head_dim)        qkv_bias                        */                            \
    X(ATTN_V_BIAS)     /* (n_kv_heads * head_dim)        qkv_bias                        */                            \
    X(ATTN_O_BIAS)     /* (n_embd)                       o_bias                          */                            \
    X(ATTN_SLOPES)     /* (n_heads)                      alibi; in no file: made here    */                            \
    X(ATTN_SINKS)      /* (n_heads)                      the family's softmax has sinks  */                            \
    X(ATTN_Q_NORM)     /* (head_dim), qk_norm_wide: (n_heads * head_dim)       qk_norm   */                            \
    X(ATTN_K_NORM)     /* (head_dim), qk_norm_wide: (n_kv_heads * head_dim)    qk_norm   */                            \
    X(ATTN_POST_NORM)  /* (n_embd)                       post_norm: of what attention adds */                          \
    X(FFN_NORM)        /* (n_embd)                       unless it is FFN_POST_NORM only */                            \
    X(FFN_NORM_BIAS)   /* (n_embd)                       layer_norm                      */                            \
    X(FFN_GATE)        /* (n_ff, n_embd)                 the family has gates            */                            \
    X(FFN_UP)          /* (n_ff, n_embd)                                                 */                            \
    X(FFN_DOWN)        /* (n_embd, n_ff)                                                 */                            \
    X(FFN_UP_BIAS)     /* (n_ff)                         linear_bias                     */                            \
    X(FFN_DOWN_BIAS)   /* (n_embd)                       linear_bias                     */                            \
    X(FFN_POST_NORM)   /* (n_embd)                       post_norm: of what the feed-forward adds */                      \
    X(ROUTER)          /* (n_experts, n_embd)            n_experts: then these four in place of the three FFN_ */         \
    X(EXPERTS_GATE)    /* (n_ff, n_embd)                 of each expert: sn_role_pieces */                                \
    X(EXPERTS_UP)      /* (n_ff, n_embd)                 likewise                        */                               \
    X(EXPERTS_DOWN)    /* (n_embd, n_ff)                 likewise                        */                               \
    X(ROUTER_BIAS)     /* (n_experts)                    the family's experts have biases, these four */                    \
    X(EXPERTS_GATE_BIAS) /* (n_experts * n_ff)           of all experts, one behind the other */                            \
    X(EXPERTS_UP_BIAS) /* (n_experts * n_ff)             likewise                        */                               \
    X(EXPERTS_DOWN_BIAS) /* (n_experts * n_embd)         likewise                        */

typedef enum sn_role {
#define X(name) SN_ROLE_##name,
    SN_ROLES(X)
#undef X
        SN_ROLE_COUNT,
    SN_ROLE_FIRST_OF_BLOCK = SN_ROLE_ATTN_NORM, /* roles from here on belong to a block, those before to the client */
} sn_role;

/* Whether the role is a norm, a bias or a number for each head: one row, used as float32. */
bool sn_role_is_vector(sn_role role);
bool sn_role_is_norm(sn_role role); /* the factors of a norm */
sn_role sn_role_bias(sn_role role); /* of a norm or a matrix; SN_ROLE_COUNT: that has none in any family */

typedef enum sn_rope_style {
    SN_ROPE_PAIRS,  /* rotates (0,1), (2,3), ...: GGUF files of the llama architecture, whose Q and K are permuted so */
    SN_ROPE_HALVES, /* rotates (0,d/2), (1,d/2+1), ...: everything else (GPT-NeoX style) */
} sn_rope_style;

enum {
    SN_BLOCKS_MAX = 1024,
    SN_HEADS_MAX = 1024,
    SN_ROPE_FREQS_MAX = 256,
    SN_ROPES_MAX = 2,
    SN_MODEL_EXPERTS_MAX = 1024,
    SN_MODEL_EXPERTS_USED_MAX = 64,
    SN_FAMILY_NAME_SIZE = 32,
    SN_MODEL_NAME_SIZE = 128
};

typedef struct sn_hparams {
    char family[SN_FAMILY_NAME_SIZE]; /* as family.c names it: "llama", "qwen2", ... */
    char name[SN_MODEL_NAME_SIZE];    /* what the file says of itself, else the file's name: for people only */
    int n_blocks, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
    int n_ctx; /* longest context the model was made for */
    float norm_eps;
    int window; /* sliding window: a token sees itself and window-1 before it; 0: all */
    bool looks_back[SN_BLOCKS_MAX]; /* blocks that see everything before, whatever the window */
    int n_experts, n_experts_used; /* of a mixture: n_ff is one expert's. 0: there is none */
    bool experts_over_all;         /* the chosen ones' weights are shares of all experts', not of the chosen ones' */
    bool qkv_bias, tied_output;
    bool qk_norm, qk_norm_wide; /* wide: all heads of a row are normed as one */
    bool post_norm;             /* what a half of a block adds is normed before */
    bool layer_norm;            /* norms take the mean off and have biases; else they are RMS norms */
    bool o_bias;                /* the matrix behind attention has a bias */
    bool linear_bias;           /* the matrices of a feed-forward without gates have biases */
    bool parallel;              /* both halves of a block read what enters it (through norms of their own), and add to it */
    bool gated;                 /* the feed-forward has gates */
    bool alibi;                 /* attention leans by ATTN_SLOPES; such models have no rope */
    sn_activation activation;   /* of the feed-forward: of its gate, where it has one */
    bool norm_plus_one;         /* the file's factors of norms are w, to be used as 1 + w */
    float attn_scale;           /* of a query with a key: 1 / sqrt(head_dim) where the model does not say otherwise */
    float embed_scale;          /* embeddings are multiplied by it before the first block (client); 1 */
    sn_rope_style rope_style;
    int rope_dim; /* rotated dimensions of a head (even, <= head_dim); 0: nothing turns */
    /* Angle of pair i at position p = p * rope_freq[i] (radians): theta, linear, llama3 and yarn scaling are already in.
     * float32 as the reference computes it. */
    float rope_freq[SN_ROPE_FREQS_MAX];
    int n_ropes;                             /* 1; 2: blocks that look back rotate by these instead: */
    float rope_freq_back[SN_ROPE_FREQS_MAX];
    float rope_scale[SN_ROPES_MAX]; /* cosines and sines are multiplied by it: yarn's; else 1 */
} sn_hparams;

/* Of the block of that number: its window (0: it sees all), and which of the n_ropes tables of angles it rotates by. */
static inline int sn_window_of(const sn_hparams *hp, int block) { return hp->looks_back[block] ? 0 : hp->window; }
static inline int sn_rope_of(const sn_hparams *hp, int block) { return hp->n_ropes > 1 && hp->looks_back[block]; }
static inline const float *sn_rope_freqs(const sn_hparams *hp, int rope) {
    return rope ? hp->rope_freq_back : hp->rope_freq;
}

/* How many matrices the role has in a block. */
static inline int sn_role_pieces(const sn_hparams *hp, sn_role role) {
    return role >= SN_ROLE_EXPERTS_GATE && role <= SN_ROLE_EXPERTS_DOWN ? hp->n_experts : 1;
}

/* A tensor in its file, or a view of rows of one: Q, K and V may lie there as one matrix. `data` is the first row, valid
 * until sn_model_close; rank 1 has rows == 1. Row r lies r / group_rows * group_stride + r % group_rows rows behind
 * data; of a vector so do the elements. A whole tensor is one group. Where col_step is not 0 the file has the matrix turned:
 * element (r, c) lies r * row_step + c * col_step elements behind data. Read it by its runs, or make it contiguous.
 *
 * Where scales is not NULL the file has MXFP4 in two tensors: data are the blocks' elements alone, 16 bytes a block with neighbours
 * in one byte, the first in its low half; a block's exponent lies among scales, a byte each, at its own number. Made contiguous
 * they are SN_MXFP4's blocks. */
typedef struct sn_model_tensor {
    sn_dtype dtype;
    size_t rows, cols;
    const void *data, *scales;
    size_t bytes; /* of the rows, once contiguous */
    size_t group_rows, group_stride;
    size_t row_step, col_step; /* elements; 0 where rows lie as rows. Of plain numbers only */
    uint64_t tie; /* names the parameter within the model, from 1 on: roles of equal ties share one. Stable, no address */
} sn_model_tensor;

/* The tensor as runs of contiguous bytes (scales are not among them), in the order of its rows, or turned of its columns (with what
 * lies between their elements): run i < sn_model_n_runs. */
size_t sn_model_n_runs(const sn_model_tensor *tensor);
const void *sn_model_run(const sn_model_tensor *tensor, size_t i, size_t *bytes);

/* The tensor's rows one behind the other (bytes): where they lie so in the file that memory, and *copy is NULL, else
 * *copy, which the caller frees. */
sn_status sn_model_contiguous(const sn_model_tensor *tensor, const void **rows, void **copy, sn_err *err) SN_MUST_USE;

typedef struct sn_model sn_model;

/* SN_REFUSED with a sentence for anything that is not a whole, consistent model of a known family. */
sn_status sn_model_open(const char *path, sn_model **out, sn_err *err) SN_MUST_USE;
void sn_model_close(sn_model **model); /* NULL-safe */

const sn_hparams *sn_model_hparams(const sn_model *model);

/* The tensor of `role` in `block` (block is ignored for the client's roles). A role that the family does not have gives
 * *out with data == NULL. SN_REFUSED when it should be there and is missing, or its shape contradicts the
 * hyperparameters. */
sn_status sn_model_find(const sn_model *model, sn_role role, int block, sn_model_tensor *out, sn_err *err) SN_MUST_USE;
/* The same of one of the role's matrices, below sn_role_pieces: of that expert. sn_model_find gives number 0. */
sn_status sn_model_find_piece(const sn_model *model, sn_role role, int block, int piece, sn_model_tensor *out,
                              sn_err *err) SN_MUST_USE;

/* True if the file holds every tensor of the block (a client's copy may hold only the ends of the model). */
bool sn_model_has_block(const sn_model *model, int block);

/* Tells the system that the tensor's pages in memory will not be needed again (its data stays readable). */
void sn_model_forget(const sn_model *model, const sn_model_tensor *tensor);

/* SHA-256 that names a block's weights: the hyperparameters that its mathematics uses, then for each role in the order
 * of SN_ROLES the dtype, rows, cols and bytes. Reads the block's tensors and forgets them again. */
sn_status sn_model_block_hash(const sn_model *model, int block, sn_hash *out, sn_err *err) SN_MUST_USE;

/* SHA-256 that names the whole model without reading weights: hyperparameters, and name, dtype and shape of every block
 * tensor. Nodes and clients whose ids differ speak of different models; equal ids still need equal block hashes. A
 * folder that lacks shards of the model has another id than the whole. */
sn_hash sn_model_id(const sn_model *model);

/* Everything in the files, for `swarm inspect`. Index below sn_model_n_tensors; name is valid until close; dtype is
 * SN_DTYPE_COUNT where the file's type is none of ours. */
size_t sn_model_n_tensors(const sn_model *model);
void sn_model_tensor_at(const sn_model *model, size_t i, const char **name, sn_model_tensor *out);
const char *sn_model_container(const sn_model *model); /* "GGUF v3", "safetensors" */

#endif
