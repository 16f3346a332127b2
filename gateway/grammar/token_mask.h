/* Which tokens of a vocabulary may come next: those whose bytes the grammar allows in its present state.
 *
 * Central types: sn_token_bytes, the bytes of all tokens in one order that shares beginnings, made once for a model and
 * read by any thread; sn_token_masks, the masks of one grammar's states, each computed once and kept, used by the
 * thread that uses the grammar. */
#ifndef SN_GATEWAY_GRAMMAR_TOKEN_MASK_H
#define SN_GATEWAY_GRAMMAR_TOKEN_MASK_H

#include "gateway/grammar/grammar.h"

typedef struct sn_token_bytes sn_token_bytes;
/* bytes (n), lengths (n): of each token; a token without bytes (a special one) is in no mask. Copies them. */
sn_status sn_token_bytes_new(const char *const *bytes, const size_t *lengths, size_t n, sn_token_bytes **out,
                             sn_err *err) SN_MUST_USE;
void sn_token_bytes_free(sn_token_bytes **tokens); /* accepts NULL */
const char *sn_token_bytes_of(const sn_token_bytes *tokens, size_t id, size_t *length);

typedef struct sn_token_masks sn_token_masks;
enum { SN_TOKEN_MASKS_BYTES = 64 << 20 }; /* kept; the oldest go first */
/* Borrows both. */
sn_status sn_token_masks_new(const sn_token_bytes *tokens, sn_grammar *grammar, sn_token_masks **out,
                             sn_err *err) SN_MUST_USE;
void sn_token_masks_free(sn_token_masks **masks);         /* accepts NULL */
size_t sn_token_masks_bytes(const sn_token_masks *masks); /* of memory that they have taken so far */
/* *out: bit id % 64 of word id / 64 says whether the token may come next. Valid until the next call. */
sn_status sn_token_masks_get(sn_token_masks *masks, int state, const uint64_t **out, sn_err *err) SN_MUST_USE;

#endif
