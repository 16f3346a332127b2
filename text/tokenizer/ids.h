/* A list of token ids: what encoding a text gives. */
#ifndef SN_TEXT_TOKENIZER_IDS_H
#define SN_TEXT_TOKENIZER_IDS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct sn_token_ids {
    int32_t *ids; /* heap, [n] */
    size_t n;
} sn_token_ids;

/* Frees the list and zeroes it. */
static inline void sn_token_ids_fini(sn_token_ids *ids) {
    free(ids->ids);
    *ids = (sn_token_ids){0};
}

#endif
