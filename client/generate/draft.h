/* Draft tokens: cheap proposals for the next tokens, so that one forward pass through the chain can accept several of
 * them (speculative decoding: Leviathan et al. 2023).
 *
 * Central types: sn_draft_source, a function that proposes tokens (a small model, or the model's own block that
 * predicts further tokens), and sn_draft, which asks a source, or copies what followed the end of the text earlier
 * (client/generate/copies.h), whichever was accepted more. The generator (generator.h) calls them on its thread.
 *
 * A draft token never decides anything: at each position the token is sampled from the chain's logits, with the random
 * numbers that it would have got without a draft, and a draft token is accepted only if it is the same token. So the
 * text is the same as without drafts.
 *
 * Tokens may be taken back: sn_draft_forget says from where on. The tokens that a proposal is asked for may be
 * optimistic, drafts that the chain has not judged yet; what is told of rows (sn_draft_note_rows) never is. */
#ifndef SN_CLIENT_GENERATE_DRAFT_H
#define SN_CLIENT_GENERATE_DRAFT_H

#include "client/generate/copies.h"
#include "client/generate/lm_head.h"
#include "client/generate/sampler.h"
#include "text/tokenizer/tokenizer.h"
#include "device/device.h"
#include "model/model.h"

enum { SN_DRAFT_TOKENS = 16, SN_DRAFT_TOKENS_MAX = 63 };

/* Writes up to n_max draft tokens for the positions after ids (n) to out; *n_out: how many; 0: no proposal. rng_state:
 * of the text's sampler, before the first of these tokens is sampled. */
typedef sn_status (*sn_draft_source)(void *ctx, const int32_t *ids, size_t n, const sn_rng_state *rng_state,
                                     size_t n_max, int32_t *out, size_t *n_out, sn_err *err);
/* As sn_draft_note_rows. */
typedef sn_status (*sn_draft_rows)(void *ctx, const int32_t *ids, size_t n_ids, size_t position, size_t n,
                                   const float *rows, sn_err *err);

/* What became of a kind of drafts: the source's, or copies of matches of about one length. */
typedef struct sn_draft_record {
    float rate;             /* share of the judged tokens that was accepted: the newest proposals count most */
    size_t length;          /* tokens of the next proposal: more while they are accepted, fewer when they are not */
    unsigned misses, rests; /* proposals in a row that a low rate still fell with; those that are left out for it */
} sn_draft_record;

enum { SN_DRAFT_OF_SOURCE, SN_DRAFT_SHORT_COPY, SN_DRAFT_COPY, SN_DRAFT_LONG_COPY, SN_DRAFT_KINDS };
enum { SN_DRAFT_PENDING = 1024 }; /* draft tokens that are not judged yet, at most */

typedef struct sn_draft {
    sn_draft_source source;          /* NULL: none */
    sn_draft_rows rows;              /* NULL: the source needs no rows */
    void *ctx;                       /* of both */
    sn_copies *copies;               /* owned; NULL: none */
    size_t n_max, length;            /* length: the longest that the next proposal can be */
    size_t least;                    /* tokens of a proposal, whatever was accepted: set by who asks */
    uint8_t kinds[SN_DRAFT_PENDING]; /* of the draft token for each position, modulo the number of them */
    sn_draft_record records[SN_DRAFT_KINDS];
} sn_draft;

sn_draft sn_draft_make(sn_draft_source source, void *ctx, int n_max); /* n_max: 1 to SN_DRAFT_TOKENS_MAX */
/* From now on copies are proposed, too. */
sn_status sn_draft_add_copies(sn_draft *draft, sn_err *err) SN_MUST_USE;
void sn_draft_fini(sn_draft *draft); /* accepts a zeroed one; the source is the caller's */

/* capacity: a further limit of n_out, such as the space that is left in the context. */
sn_status sn_draft_propose(sn_draft *draft, const int32_t *ids, size_t n, const sn_rng_state *rng_state,
                           size_t capacity, int32_t *out, size_t *n_out, sn_err *err) SN_MUST_USE;
/* The draft tokens of positions [position, position + n_drafted) were judged: so many of them, the first, are right. */
void sn_draft_note_accepted(sn_draft *draft, size_t position, size_t n_drafted, size_t n_accepted);
/* From position n on the text has other tokens than before, or none. */
void sn_draft_forget(sn_draft *draft, size_t n);
/* The chain's output, rows (n, n_embd), for positions [position, position + n) of the text, which will not be taken
 * back unless sn_draft_forget says so; ids (n_ids): the tokens that are known, up to position + n at least. A source
 * that needs the row of a token which is only optimistic takes what it makes of it itself. */
sn_status sn_draft_note_rows(sn_draft *draft, const int32_t *ids, size_t n_ids, size_t position, size_t n,
                             const float *rows, sn_err *err) SN_MUST_USE;

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

/* A source that is the model's own block which predicts a further token (blocks/next_block.h), computed here. It drafts
 * on from what it has made itself, samples as the text's own sampler, and needs the chain's rows; after a place whose
 * rows were never told, such as a prefix that nodes still had, it begins anew. */
typedef struct sn_draft_mtp sn_draft_mtp;

typedef struct sn_draft_mtp_options {
    const sn_model *model;
    sn_device *device; /* borrowed, as the head */
    sn_lm_head *head;  /* of the model */
    sn_sampling sampling;
    int max_context;
    sn_kv_dtype kv_dtype;
} sn_draft_mtp_options;

/* SN_REFUSED: the model's files have no such block, or not all of it. */
sn_status sn_draft_mtp_open(const sn_draft_mtp_options *options, sn_draft_mtp **out, sn_err *err) SN_MUST_USE;
void sn_draft_mtp_close(sn_draft_mtp **mtp); /* accepts NULL */
sn_status sn_draft_mtp_set_sampling(sn_draft_mtp *mtp, const sn_sampling *sampling, sn_err *err) SN_MUST_USE;
/* A draft of it, without copies. */
sn_draft sn_draft_of_mtp(sn_draft_mtp *mtp, int n_max);

#endif
