/* Drafts: what the next tokens will be, guessed cheaply, so that one pass through the chain can look at several of them
 * (speculative decoding: Leviathan et al. 2023; by look-up in the text itself: Saxena 2023).
 *
 * A guess never decides anything: at each position the token is chosen from the chain's logits, with the chance that would have
 * been thrown there anyway, and a guess only counts if it is the same token. So the text is the one without a draft. One thread. */
#ifndef SN_CLIENT_DRAFT_H
#define SN_CLIENT_DRAFT_H

#include "client/sampler.h"
#include "model/tokenizer.h"
#include "device/device.h"
#include "model/model.h"

enum { SN_DRAFT_TOKENS = 16, SN_DRAFT_TOKENS_MAX = 63 };

/* Guesses up to `most` tokens that follow ids (n) into out; *n_out: how many, 0 when there is nothing to go by. `chance`: where it
 * stands before the first of them is chosen. */
typedef sn_status (*sn_draft_source)(void *ctx, const int32_t *ids, size_t n, const sn_chance *chance, size_t most, int32_t *out,
                                     size_t *n_out, sn_err *err);

/* A source, and how far ahead it is asked: further while its guesses come true, and less far when they do not. */
typedef struct sn_draft {
    sn_draft_source source;
    void *ctx;
    size_t most, length; /* length: of the next guess, 1 to most */
} sn_draft;

sn_draft sn_draft_of(sn_draft_source source, void *ctx, int most); /* most: 1 to SN_DRAFT_TOKENS_MAX */
sn_status sn_draft_guess(sn_draft *draft, const int32_t *ids, size_t n, const sn_chance *chance, size_t room, int32_t *out,
                         size_t *n_out, sn_err *err) SN_MUST_USE;
void sn_draft_learn(sn_draft *draft, size_t guessed, size_t right); /* of the newest guess */

/* A source without a context: what followed the latest of the longest earlier stretches that the text ends with. */
sn_status sn_draft_look_up(void *ctx, const int32_t *ids, size_t n, const sn_chance *chance, size_t most, int32_t *out,
                           size_t *n_out, sn_err *err) SN_MUST_USE;

/* A source that is a smaller model, all of it here. It chooses as the text's own sampler does, by the same chance: where its logits
 * are alike, so are its tokens. */
typedef struct sn_draft_model sn_draft_model;

typedef struct sn_draft_wish {
    const char *path;              /* of the model */
    sn_device *device;             /* borrowed */
    const sn_hparams *hp;          /* of the model whose text it is */
    const sn_tokenizer *tokenizer; /* of the same, NULL: it has none */
    sn_sampling sampling;          /* by which the text is chosen */
    int max_context;               /* longest timeline of the text */
} sn_draft_wish;

/* SN_REFUSED with a sentence where a token means another thing in the one than in the other. */
sn_status sn_draft_model_open(const sn_draft_wish *wish, sn_draft_model **out, sn_err *err) SN_MUST_USE;
void sn_draft_model_close(sn_draft_model **model); /* NULL-safe */
sn_status sn_draft_ask(void *model, const int32_t *ids, size_t n, const sn_chance *chance, size_t most, int32_t *out, size_t *n_out,
                       sn_err *err) SN_MUST_USE;

#endif
