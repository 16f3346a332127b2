/* What is learned from: a .txt file, its tokens cut into sequences, or a .jsonl file with an object on each line:
 *   {"text": ...}                        every token is learned
 *   {"prompt": ..., "completion": ...}   only the completion's tokens are
 *   {"messages": [{"role", "content"}]}  by the chat template; only the assistant's answers are
 *   {"text": ..., "label": ...}          for a classifier
 * Immutable once read. */
#ifndef SN_CLIENT_TUNE_DATASET_H
#define SN_CLIENT_TUNE_DATASET_H

#include "base/hash.h"
#include "model/tokenizer.h"

typedef struct sn_example {
    int32_t *ids;
    uint8_t *learned; /* for each token: whether its prediction counts */
    size_t n, n_learned;
    int label; /* index of the label; -1: none */
} sn_example;

typedef struct sn_dataset {
    sn_example *at;
    size_t n;
    char **labels; /* in order of their first mention */
    size_t n_labels;
    size_t cut;   /* examples that were longer than the longest sequence: their ends are left out */
    sn_hash hash; /* of the file's bytes */
} sn_dataset;

typedef struct sn_dataset_wish {
    int longest;          /* tokens of a sequence */
    bool labelled;        /* texts with labels are wanted */
    const sn_dataset *as; /* labels are those of another one; NULL: its own */
} sn_dataset_wish;

/* SN_REFUSED with the file's name and line for what cannot be used. */
sn_status sn_dataset_read(const char *path, const sn_tokenizer *tokenizer, const sn_dataset_wish *wish,
                          sn_dataset **out, sn_err *err) SN_MUST_USE;
void sn_dataset_free(sn_dataset **dataset); /* NULL-safe */

/* The order of epoch 0, 1, ... for a seed: order has room for dataset->n. */
void sn_dataset_order(const sn_dataset *dataset, uint64_t seed, uint64_t epoch, size_t *order);

#endif
