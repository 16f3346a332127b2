/* Tiny random Llama models as GGUF files, in any weight type, made when a test needs them. The same arguments give the
 * same bytes. */
#ifndef SN_TESTS_TINY_H
#define SN_TESTS_TINY_H

#include "base/dtype.h"

typedef struct tiny_options {
    sn_dtype dtype;   /* of the matrices; cols must be multiples of its block: 256 for K types */
    int n_blocks, n_embd, n_heads, n_kv_heads, n_ff, n_vocab, n_ctx; /* 0: 4, 64 (256 for K types), 4, 2, 96 (256), 96, 512 */
    unsigned seed;
} tiny_options;

/* Writes the model to a new file below the temporary folder and returns its path; the caller frees the path and removes the
 * file (tiny_remove does both). */
char *tiny_make(const tiny_options *options);
void tiny_remove(char **path);

#endif
