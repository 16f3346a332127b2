/* Models of DeepSeek-V3's shape with random weights, as folders with FP8 (E4M3) weights in blocks of 128 by 128 like
 * those that DeepSeek publishes, or with the same numbers as float32. Files are written as a stream, which takes a few
 * megabytes of memory for a model of any size. The same arguments give the same bytes. A failure ends the process. */
#ifndef SN_TESTS_MADE_MODEL_H
#define SN_TESTS_MADE_MODEL_H

#include <stdbool.h>

/* Widths are as in sn_hparams. Matrices of FP8 need inputs of a multiple of 128. */
typedef struct made_shape {
    int embd, heads, q_rank, latent, rope, nope, value, ff_dense, ff, experts, used, groups, groups_used, vocab, ctx;
    int blocks, dense; /* the first `dense` blocks have no experts */
    bool whole;        /* embedding, LM head and routers are in FP8, too */
    bool tied;         /* the embedding is the LM head */
} made_shape;

extern const made_shape made_deepseek_v3; /* one block of each kind; a vocabulary of 1,024 */
extern const made_shape made_small;       /* the same ratios, about 1/28 as wide, with blocks of 128 that heads share */

/* What the files hold. */
typedef enum made_form {
    MADE_FP8,        /* scales in float32 */
    MADE_FP8_SHORT,  /* scales in bfloat16 */
    MADE_FP8_SINGLE, /* one scale for each matrix, in bfloat16, and one for its inputs */
    MADE_F32,        /* the numbers of MADE_FP8 */
    MADE_F32_SINGLE, /* those of MADE_FP8_SINGLE */
    MADE_NO_SCALE,   /* FP8, without the scales of the output matrix of block 1 */
    MADE_FEW_SCALES, /* FP8, with a row of its scales too few */
    MADE_ODD_SCALES, /* FP8, with its scales as F16 */
    MADE_NAN,        /* FP8, with a NaN in it */
    MADE_ENDLESS,    /* FP8, with an infinite scale in it */
} made_form;

/* Writes config.json and model.safetensors into an existing folder. */
void made_model_write(const char *folder, const made_shape *shape, made_form form);

#endif
