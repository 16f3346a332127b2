/* Tokens that are found in the text as they are written, before anything is cut or merged: "<|im_end|>" and its like.
 * The leftmost one is taken, of those that begin there the longest. */
#ifndef SN_MODEL_ADDED_H
#define SN_MODEL_ADDED_H

#include "base/mem.h"

#include <stdbool.h>
#include <stdint.h>

enum { SN_ADDED_BYTES_MAX = 1 << 10 };

typedef struct sn_added_token {
    char *text; /* heap, owned by the list */
    size_t len;
    int32_t id;
    bool special;
    bool eats_left, eats_right; /* white space around it belongs to it */
} sn_added_token;

typedef struct sn_added {
    sn_added_token *tokens; /* sorted by their bytes after sn_added_finish */
    size_t n, room;
    bool begins[256]; /* bytes that some token begins with */
} sn_added;

void sn_added_fini(sn_added *added);
/* Copies the text. */
sn_status sn_added_put(sn_added *added, const sn_added_token *token, sn_err *err) SN_MUST_USE;
/* Call once after the last put; SN_REFUSED when a text was given twice. */
sn_status sn_added_finish(sn_added *added, sn_err *err) SN_MUST_USE;

/* The first token in text[from...len); NULL: none. */
const sn_added_token *sn_added_find(const sn_added *added, const char *text, size_t len, size_t from, size_t *at);

#endif
