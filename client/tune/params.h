/* The parameters that a client trains: float32 tensors in one array, with their names and positions. Deep prompts and
 * LoRA matrices have the order of a node's gradients (blocks/adapter.h), so the parameters of a range of blocks are one
 * range of the array.
 *
 * The central type is sn_params, which owns the array. The tuner changes its values between steps; a backbone and the
 * loss read them. One thread uses it. */
#ifndef SN_CLIENT_TUNE_PARAMS_H
#define SN_CLIENT_TUNE_PARAMS_H

#include "client/generate/lm_head.h"
#include "base/parse.h"
#include "model/model.h"

typedef enum sn_method {
    SN_METHOD_PROMPT,      /* virtual tokens before the text (Lester et al. 2021) */
    SN_METHOD_DEEP_PROMPT, /* these, and trained vectors added before each further block */
    SN_METHOD_LORA,        /* low-rank adapters A and B of the blocks' matrices (Hu et al. 2021) */
    SN_METHOD_HEAD,        /* a classifier on the last hidden state */
    SN_METHOD_COUNT
} sn_method;
const char *sn_method_name(sn_method method); /* "deep-prompt" */
extern const sn_word sn_method_words[];       /* "prompt", "deep-prompt", "lora", "head" */

enum { SN_PROMPT_TOKENS_MAX = 1024, SN_LABELS_MAX = 256 };

typedef struct sn_param {
    char name[48];         /* as in an adapter image; virtual tokens are "prompt", a classifier is "score" */
    int block;             /* -1: belongs to no block */
    sn_role role;          /* the matrix that LoRA adapts; SN_ROLE_COUNT: no LoRA */
    bool b;                /* LoRA: true for the matrix B, false for A */
    size_t rows, cols, at; /* at: index of its first element in sn_params.values */
} sn_param;

typedef struct sn_params_shape {
    sn_method method;
    int prompt_tokens, rank, n_labels;
    double alpha;               /* the product B A is scaled by alpha / rank */
    bool target[SN_ROLE_COUNT]; /* the matrices that LoRA adapts */
} sn_params_shape;

typedef struct sn_params {
    sn_params_shape shape;
    int n_blocks, n_embd;
    int first, end; /* only values of these blocks are trained, which their owner may set; 0 and n_blocks at first */
    sn_param *list;
    size_t n;
    float *values;
    size_t n_floats;
} sn_params;

/* Allocates all tensors of this shape for the model, zeroed. SN_REFUSED with a sentence when the shape is invalid or
 * does not fit the model. */
sn_status sn_params_new(const sn_hparams *hp, const sn_params_shape *shape, sn_params **out, sn_err *err) SN_MUST_USE;
void sn_params_free(sn_params **params); /* accepts NULL */

/* Sets the initial values of a training: virtual tokens are the embeddings of random tokens of the vocabulary, A is
 * uniform, a classifier is normal; B and deep prompts stay zero, so a LoRA adapter changes nothing at first. */
sn_status sn_params_init_values(sn_params *params, sn_lm_head *head, int n_vocab, uint64_t *rng,
                                sn_err *err) SN_MUST_USE;

/* Parses "q,v" or "all" into target. SN_REFUSED for an unknown name. */
sn_status sn_targets_parse(const char *list, bool target[SN_ROLE_COUNT], sn_err *err) SN_MUST_USE;

/* Returns the number of virtual tokens and their rows (n, n_embd); 0 and NULL when there are none. */
int sn_params_prompt(const sn_params *params, const float **rows);

/* The range of the array that holds the parameters of blocks [first, end): its first element and its number of
 * elements. */
void sn_params_block_range(const sn_params *params, int first, int end, size_t *at, size_t *n);
/* Serialises the parameters of blocks [first, end) as the adapter image that a node accepts (blocks/adapter.h), with B
 * scaled by alpha / rank. The image is empty when there are no such parameters. */
sn_status sn_params_image(const sn_params *params, int first, int end, sn_buf *out, sn_err *err) SN_MUST_USE;
/* sum (floats): the sum over n sequences, in their order, of the gradients (n, floats) that a backbone gave for the
 * parameters of blocks [first, end). */
void sn_params_sum_gradients(const sn_params *params, int first, int end, size_t n, const float *grads, float *sum);

#endif
