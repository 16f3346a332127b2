/* Generation: a prompt runs through the chain (prefill), then one token after another is sampled and run through it
 * (decode).
 *
 * Central type: sn_generator. It knows the tokens of its chain's timeline. A caller always gives the whole prompt; what
 * the prompt has in common with the timeline (the earlier turns of a chat) is not computed again: the chain is rewound
 * to where the two differ, and only the rest runs. One thread, the chain's; everything in sn_generator_parts is
 * borrowed.
 *
 * Errors: those of the chain and the sampler (SN_RETRY, SN_STOP); SN_REFUSED for a prompt that cannot be used. A failed
 * audit check (SN_REBUILD of the chain) is handled here: the wrong tokens are retracted and generated again. */
#ifndef SN_CLIENT_GENERATE_GENERATOR_H
#define SN_CLIENT_GENERATE_GENERATOR_H

#include "base/cancel.h"
#include "client/chain/chain.h"
#include "client/generate/draft.h"
#include "client/generate/lm_head.h"
#include "client/generate/sampler.h"
#include "text/tokenizer/tokenizer.h"

typedef struct sn_generator sn_generator;

/* Everything that a generator uses; borrowed, must outlive it. */
typedef struct sn_generator_parts {
    const sn_hparams *hp;
    sn_lm_head *head;
    sn_chain *chain;
    const sn_tokenizer *tokenizer; /* NULL: token ids only, no text, and no token ends the generation */
    int max_context;               /* longest timeline for which the chain was opened */
    sn_draft *draft; /* proposes draft tokens, so that a step of the chain can give several tokens, and is told what the
                        chain has computed; NULL: none */
} sn_generator_parts;

sn_status sn_generator_new(const sn_generator_parts *parts, const sn_sampling *sampling, sn_generator **out,
                           sn_err *err) SN_MUST_USE;
void sn_generator_free(sn_generator **generator); /* accepts NULL; the chain stays open */
/* From now on tokens are sampled so. keep_rng: the random numbers go on, and the seed is not used. */
sn_status sn_generator_set_sampling(sn_generator *generator, const sn_sampling *sampling, bool keep_rng,
                                    sn_err *err) SN_MUST_USE;

typedef enum sn_finish {
    SN_FINISH_STOP,        /* a token that ends the text or the turn; it is the last of the ids */
    SN_FINISH_STOP_TEXT,   /* a stop string: the text ends before it, the ids with the token that completed it */
    SN_FINISH_LENGTH,      /* max_tokens, or the context is full */
    SN_FINISH_INTERRUPTED, /* it was cancelled */
} sn_finish;
const char *sn_finish_name(sn_finish finish); /* "stop", "stop_text", "length", "interrupted" */

typedef struct sn_generate_options {
    int max_tokens; /* 0: until the context is full */
    const char *const *stops;
    size_t n_stops;
    bool ignore_eos; /* continue after end tokens: for measurements */
    bool is_answer;  /* the text is a turn of a conversation, not a continuation of the prompt's text */
    /* Gets each piece of text as soon as it is final, valid UTF-8. Any status other than SN_OK ends the generation. */
    sn_status (*on_text)(void *ctx, const char *text, size_t len, sn_err *err);
    bool
        when_checked; /* on_text gets all of the text once, after the audit's last check, and nothing after a failure */
    /* After a failed audit check: only the first `kept` bytes of the text that on_text got are right (`text`); what
     * follows them is generated again. NULL: the generation then fails. */
    sn_status (*on_retract)(void *ctx, const char *text, size_t kept, sn_err *err);
    /* Of the prompt's tokens that are to be computed, `done` are; first with 0. NULL: not wanted. */
    void (*on_prefill)(void *ctx, size_t done, size_t total);
    /* A token was sampled, from these logits (n_vocab). NULL: not wanted. */
    sn_status (*on_token)(void *ctx, int32_t id, const float *logits, sn_err *err);
    /* Changes the logits (n_vocab) of the token after ids (n), before it is sampled; a function of the ids alone. NULL:
     * they stay. */
    void (*change_logits)(void *ctx, const int32_t *ids, size_t n, float *logits);
    const char *prefix_scope; /* of sn_chain_attach_prefix; NULL: none */
    void *ctx;
    const sn_cancel *cancel; /* checked between tokens; the functions above may set it. NULL: never */
} sn_generate_options;

typedef struct sn_generate_timings {
    size_t prompt_tokens, reused_tokens; /* of the prompt: all tokens; those that were in the timeline already */
    int64_t first_token_us;              /* from the call to the first token */
    int64_t prefill_us;                  /* the prompt through chain and LM head */
    size_t decode_steps;                 /* steps of the chain after prefill */
    size_t decode_tokens;                /* tokens sampled from them: one each, more where draft tokens were accepted */
    size_t n_drafted, n_accepted;        /* draft tokens: proposed; accepted */
    size_t n_judged;                     /* of them: compared with the text; the others came behind a wrong one */
    size_t n_ahead;                      /* of the steps: sent while those before them were under way, and right */
    int64_t laps_us;                     /* time of n_laps windows that had none before them under way, */
    size_t n_laps;                       /* each one lap over all nodes */
    int64_t draft_us;                    /* in the draft source */
    int64_t decode_us;                   /* from the first token to the last */
    int64_t client_us;                   /* of all this time: in embedding, LM head and sampler */
    size_t retracted;                    /* tokens that were sampled from wrong logits, and sampled again */
} sn_generate_timings;

typedef struct sn_generation {
    sn_token_ids ids; /* generated tokens only */
    sn_buf text;
    sn_finish finish;
    sn_generate_timings timings;
} sn_generation;
void sn_generation_fini(sn_generation *generation); /* accepts a zeroed one */

/* SN_REFUSED: the prompt is empty, too long, or has ids outside the vocabulary. On failure *out has what was generated
 * before. */
sn_status sn_generator_run(sn_generator *generator, const int32_t *prompt, size_t n_prompt,
                           const sn_generate_options *options, sn_generation *out, sn_err *err) SN_MUST_USE;

/* The timeline: the tokens that the chain has computed, and the one after them if it was sampled (*n counts it). */
const int32_t *sn_generator_ids(const sn_generator *generator, size_t *n);
sn_rng_state sn_generator_rng_state(const sn_generator *generator);
/* Takes over the state of another generator; the chain has computed the first `seen` of the ids (n), which is n or n
 * - 1. SN_REFUSED: they do not fit into the context. */
sn_status sn_generator_resume(sn_generator *generator, const int32_t *ids, size_t n, size_t seen,
                              const sn_rng_state *rng_state, sn_err *err) SN_MUST_USE;

/* -- the timeline in steps -- */

/* Appends ids (n), and computes them and a token that was sampled before them. logits (n, n_vocab): of each; NULL: not
 * wanted. After a failure the timeline is as it was. SN_REBUILD: as sn_chain_step; the timeline ends there. */
sn_status sn_generator_append(sn_generator *generator, const int32_t *ids, size_t n, float *logits,
                              sn_err *err) SN_MUST_USE;
/* Computes the logits (n_vocab) of the token that follows the timeline, which is not empty. */
sn_status sn_generator_next_logits(sn_generator *generator, float **logits, sn_err *err) SN_MUST_USE;
/* Shortens the timeline to its first n tokens, and to what the chain still has after a failed audit. */
void sn_generator_rewind(sn_generator *generator, size_t n);

/* Tokens that the chain has computed. */
size_t sn_generator_length(const sn_generator *generator);

#endif
