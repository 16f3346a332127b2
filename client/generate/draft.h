/* Draft tokens: cheap proposals for the next tokens, so that one forward pass through the chain can accept several of
 * them (speculative decoding: Leviathan et al. 2023; prompt lookup: Saxena 2023).
 *
 * Central types: sn_draft_source, a function that proposes tokens (prompt lookup, or a small model), and sn_draft, a
 * source with the number of tokens to ask it for. The generator (generator.h) calls them on its thread.
 *
 * A draft token never decides anything: at each position the token is sampled from the chain's logits, with the random
 * numbers that it would have got without a draft, and a draft token is accepted only if it is the same token. So the
 * text is the same as without drafts. */
#ifndef SN_CLIENT_GENERATE_DRAFT_H
#define SN_CLIENT_GENERATE_DRAFT_H

#include "client/generate/sampler.h"
#include "text/tokenizer/tokenizer.h"
#include "device/device.h"
#include "model/model.h"

enum { SN_DRAFT_TOKENS = 16, SN_DRAFT_TOKENS_MAX = 63 };

/* Writes up to n_max draft tokens for the positions after ids (n) to out; *n_out: how many; 0: no proposal. rng_state:
 * of the text's sampler, before the first of these tokens is sampled. */
typedef sn_status (*sn_draft_source)(void *ctx, const int32_t *ids, size_t n, const sn_rng_state *rng_state,
                                     size_t n_max, int32_t *out, size_t *n_out, sn_err *err);

/* A source, and the number of tokens that it is asked for: more while its tokens are accepted, fewer when they are not.
 */
typedef struct sn_draft {
    sn_draft_source source;
    void *ctx;
    size_t n_max, length; /* length: tokens of the next proposal, 1 to n_max */
} sn_draft;

sn_draft sn_draft_make(sn_draft_source source, void *ctx, int n_max); /* n_max: 1 to SN_DRAFT_TOKENS_MAX */
/* capacity: a further limit of n_out, such as the space that is left in the context. */
sn_status sn_draft_propose(sn_draft *draft, const int32_t *ids, size_t n, const sn_rng_state *rng_state,
                           size_t capacity, int32_t *out, size_t *n_out, sn_err *err) SN_MUST_USE;
void sn_draft_note_accepted(sn_draft *draft, size_t n_drafted, size_t n_accepted); /* of the newest proposal */

/* Prompt lookup, a source that needs no ctx: finds the longest n-gram at the end of the text that occurs earlier, takes
 * its latest occurrence, and proposes the tokens that followed it. */
sn_status sn_draft_ngram(void *ctx, const int32_t *ids, size_t n, const sn_rng_state *rng_state, size_t n_max,
                         int32_t *out, size_t *n_out, sn_err *err) SN_MUST_USE;

/* A source that is a smaller model, with all blocks on this machine. It samples as the text's own sampler, with the
 * same random numbers: where its logits are similar to the model's, its tokens are the same. */
typedef struct sn_draft_model sn_draft_model;

typedef struct sn_draft_model_options {
    const char *path;              /* of the draft model */
    sn_device *device;             /* borrowed */
    const sn_hparams *hp;          /* of the model that generates the text */
    const sn_tokenizer *tokenizer; /* of that model; NULL: it has none */
    sn_sampling sampling;          /* of the text */
    int max_context;               /* longest timeline of the text */
    sn_kv_dtype kv_dtype;          /* of the text's session: a model then drafts what it would say itself */
} sn_draft_model_options;

/* SN_REFUSED: a token id has another meaning in the two models. */
sn_status sn_draft_model_open(const sn_draft_model_options *options, sn_draft_model **out, sn_err *err) SN_MUST_USE;
void sn_draft_model_close(sn_draft_model **model); /* accepts NULL */
/* The text is sampled so from now on. */
sn_status sn_draft_model_set_sampling(sn_draft_model *model, const sn_sampling *sampling, sn_err *err) SN_MUST_USE;
sn_status sn_draft_model_propose(void *model, const int32_t *ids, size_t n, const sn_rng_state *rng_state, size_t n_max,
                                 int32_t *out, size_t *n_out, sn_err *err) SN_MUST_USE;

#endif
