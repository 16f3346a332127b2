/* What a client trains: float32 tensors in one array, with their names and places. Deep prompts and adapters stand in
 * the order of a node's gradients (blocks/tuning.h), so that a stretch of blocks is a stretch of the array. */
#ifndef SN_CLIENT_TUNE_PARAMS_H
#define SN_CLIENT_TUNE_PARAMS_H

#include "client/head.h"
#include "client/tune/random.h"
#include "base/mem.h"
#include "model/model.h"

typedef enum sn_method {
    SN_METHOD_PROMPT,      /* virtual tokens before the text (Lester et al. 2021) */
    SN_METHOD_DEEP_PROMPT, /* these, and what is added to their hidden states before each further block */
    SN_METHOD_LORA,        /* low-rank adapters of the blocks' matrices (Hu et al. 2021) */
    SN_METHOD_HEAD,        /* a classifier on the last hidden state */
    SN_METHOD_COUNT
} sn_method;
const char *sn_method_name(sn_method method); /* "deep-prompt" */
sn_status sn_method_parse(const char *name, sn_method *out, sn_err *err) SN_MUST_USE;

enum { SN_PROMPT_TOKENS_MAX = 1024, SN_LABELS_MAX = 256 };

typedef struct sn_param {
    char name[48];         /* as in a tuning's image; "prompt" the virtual tokens, "score" the classifier */
    int block;             /* -1: none */
    sn_role role;          /* of an adapter's matrix; SN_ROLE_COUNT: none */
    bool b;                /* the adapter's second matrix */
    size_t rows, cols, at; /* at: its first element in the array */
} sn_param;

typedef struct sn_params_shape {
    sn_method method;
    int prompt_tokens, rank, n_labels;
    double alpha;               /* an adapter's result is scaled by alpha / rank */
    bool target[SN_ROLE_COUNT]; /* matrices that get adapters */
} sn_params_shape;

typedef struct sn_params {
    sn_params_shape shape;
    int n_blocks, n_embd;
    sn_param *list;
    size_t n;
    float *values;
    size_t n_floats;
} sn_params;

/* All tensors of this shape for the model, zeroed. SN_REFUSED with a sentence when the shape makes no sense. */
sn_status sn_params_new(const sn_hparams *hp, const sn_params_shape *shape, sn_params **out, sn_err *err) SN_MUST_USE;
void sn_params_free(sn_params **params); /* NULL-safe */

/* Where training begins: virtual tokens as tokens of the vocabulary drawn by chance, A uniform, B and deep prompts
 * zero. */
sn_status sn_params_begin(sn_params *params, sn_head *head, int n_vocab, sn_random_state *random,
                          sn_err *err) SN_MUST_USE;

/* "q,v" or "all" -> target. */
sn_status sn_targets_parse(const char *list, bool target[SN_ROLE_COUNT], sn_err *err) SN_MUST_USE;

/* Virtual tokens: how many, and their rows (n, n_embd); 0 and NULL when there are none. */
int sn_params_prompt(const sn_params *params, const float **rows);

/* Elements of the tensors that belong to blocks [first, end): where they begin in the array, and how many they are. */
void sn_params_of_blocks(const sn_params *params, int first, int end, size_t *at, size_t *n);
/* Their image, as a node takes it; empty when there are none. */
sn_status sn_params_image(const sn_params *params, int first, int end, sn_buf *out, sn_err *err) SN_MUST_USE;
/* By how much a node's gradient of this tensor counts: an adapter's scale is in the B that it was sent. */
float sn_param_scale(const sn_params *params, const sn_param *param);

#endif
