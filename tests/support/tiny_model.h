/* Tiny random models as GGUF files, of the architectures llama and qwen35, with any weight type, made when a test needs
 * them. The same arguments give the same bytes. */
#ifndef SN_TESTS_TINY_MODEL_H
#define SN_TESTS_TINY_MODEL_H

#include "base/dtype.h"

#include <stdbool.h>

typedef struct tiny_model_options {
    sn_dtype dtype; /* of the matrices; cols must be multiples of its block: 256 for K types */
    int n_blocks, n_embd, n_heads, n_kv_heads, n_ff, n_vocab,
        n_ctx; /* 0: 4, 64 (256 for K types), 4, 2, 96 (256), 96, 512 */
    unsigned seed;
    int n_experts, n_experts_used; /* 0: none; else each block is a mixture of so many, of which a token takes (0: 2) */
    bool recurrent;                /* qwen35: blocks 0, 2, ... hold recurrent states. With SN_F32 */
} tiny_model_options;

/* Writes the model to a new file in the temporary folder and returns its path. The caller frees the path and removes
 * the file; tiny_model_remove does both. */
char *tiny_model_make(const tiny_model_options *options);
void tiny_model_remove(char **path);

#endif
