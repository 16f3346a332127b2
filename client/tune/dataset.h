/* A data set of tokenized training examples. It is read from a .txt file, whose tokens are cut into sequences, or from
 * a .jsonl file with one object per line:
 *   {"text": ...}                        every token counts in the loss
 *   {"prompt": ..., "completion": ...}   only the tokens of the completion count
 *   {"messages": [{"role", "content"}]}  rendered with the chat template; only the assistant's messages count
 *   {"text": ..., "label": ...}          an example of a classifier
 * sn_dataset owns its examples and labels. It is immutable after it was read, so any thread may use it. */
#ifndef SN_CLIENT_TUNE_DATASET_H
#define SN_CLIENT_TUNE_DATASET_H

#include "base/hash.h"
#include "text/tokenizer/tokenizer.h"

typedef struct sn_example {
    int32_t *ids;
    uint8_t *loss_mask;      /* (n): 1 if the prediction of the token counts in the loss, else 0 */
    size_t n, n_loss_tokens; /* tokens; ones in loss_mask */
    int label;               /* index of the label; -1: none */
} sn_example;

typedef struct sn_dataset {
    sn_example *at;
    size_t n;
    char **labels; /* in the order of their first occurrence in the file */
    size_t n_labels;
    size_t n_truncated; /* examples that were longer than max_tokens; only their first max_tokens are kept */
    sn_hash hash;       /* SHA-256 of the file */
} sn_dataset;

typedef struct sn_dataset_options {
    int max_tokens;              /* limit for one sequence */
    bool labelled;               /* true: each line must have a text and a label */
    const sn_dataset *labels_of; /* data set whose labels are used, and no others; NULL: collect them from the file */
} sn_dataset_options;

/* Reads and tokenizes a file. SN_REFUSED, with the file's name and line, for content that cannot be used. */
sn_status sn_dataset_read(const char *path, const sn_tokenizer *tokenizer, const sn_dataset_options *options,
                          sn_dataset **out, sn_err *err) SN_MUST_USE;
void sn_dataset_free(sn_dataset **dataset); /* accepts NULL */

/* Writes the shuffled order of the examples in epoch 0, 1, ... into order[dataset->n]. It depends on `seed` and `epoch`
 * only. */
void sn_dataset_order(const sn_dataset *dataset, uint64_t seed, uint64_t epoch, size_t *order);

#endif
