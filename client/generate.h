/* Generation: a prompt goes through the chain, then token after token is chosen and fed back.
 *
 * A generator owns the timeline of one chain: it knows which tokens the chain has seen. A prompt that begins like the
 * timeline (the next turn of a chat) is not computed again from its start: the chain is rewound to where they part and
 * only the rest is fed. So a caller always hands the whole prompt. One thread. */
#ifndef SN_CLIENT_GENERATE_H
#define SN_CLIENT_GENERATE_H

#include "client/chain.h"
#include "client/draft.h"
#include "client/head.h"
#include "client/sampler.h"
#include "model/tokenizer.h"

#include <signal.h>

typedef struct sn_generator sn_generator;

/* What a generator works with; borrowed, all must outlive it. */
typedef struct sn_generator_parts {
    const sn_hparams *hp;
    sn_head *head;
    sn_chain *chain;
    const sn_tokenizer *tokenizer; /* NULL: no text comes out, and no token ends it */
    int max_context;               /* longest timeline that the chain was opened for */
    sn_draft *draft;               /* what guesses ahead, so that a pass through the chain can give several tokens; NULL: nothing */
} sn_generator_parts;

sn_status sn_generator_new(const sn_generator_parts *parts, const sn_sampling *sampling, sn_generator **out,
                           sn_err *err) SN_MUST_USE;
void sn_generator_free(sn_generator **generator); /* NULL-safe; the chain stays open */

typedef enum sn_finish {
    SN_FINISH_STOP,        /* a token that ends the text or the turn; it is the last of ids */
    SN_FINISH_STOP_TEXT,   /* a stop string; the text ends before it, ids with the token that completed it */
    SN_FINISH_LENGTH,      /* max_tokens, or the context is full */
    SN_FINISH_INTERRUPTED, /* *interrupt was set */
} sn_finish;
const char *sn_finish_name(sn_finish finish); /* "stop", "stop_text", "length", "interrupted" */

typedef struct sn_generate_options {
    int max_tokens; /* 0: until the context is full */
    const char *const *stops;
    size_t n_stops;
    bool ignore_end; /* goes on behind end tokens: for measurements */
    bool is_answer;  /* the text stands by itself, though tokens come before it: a turn of a conversation */
    /* Each piece of text as soon as it is sure, valid UTF-8; what it returns other than SN_OK ends the generation. */
    sn_status (*on_text)(void *ctx, const char *text, size_t len, sn_err *err);
    /* With an audit: a node has lied, and of the text that on_text was told only the first `kept` bytes stand; what follows
     * them is told anew. NULL: the generation then fails. */
    sn_status (*on_void)(void *ctx, const char *text, size_t kept, sn_err *err);
    void *ctx;
    const volatile sig_atomic_t *interrupt; /* looked at between tokens; NULL: never */
} sn_generate_options;

typedef struct sn_generate_timings {
    size_t prompt_tokens, reused_tokens; /* of the prompt: all, and those that the chain had seen already */
    int64_t first_token_us;              /* from the call to the first token */
    int64_t prefill_us;                  /* the prompt through chain and head */
    size_t decode_steps;                 /* passes through the chain behind the prompt's, and ... */
    size_t decode_tokens;                /* ... tokens chosen from them: one each, and more where guesses were right */
    size_t guessed, guessed_right;       /* tokens that the draft guessed, and that were then chosen */
    int64_t draft_us;                    /* guessing */
    int64_t decode_us;                   /* from the first token to the last */
    int64_t client_us;                   /* of all this, in embedding, head and sampler */
    size_t taken_back;                   /* tokens that were chosen from wrong numbers, and chosen again */
} sn_generate_timings;

typedef struct sn_generation {
    sn_ids ids; /* generated ones only */
    sn_buf text;
    sn_finish finish;
    sn_generate_timings timings;
} sn_generation;
void sn_generation_fini(sn_generation *generation); /* safe on a zeroed one */

/* SN_REFUSED: the prompt is empty, too long, or has ids outside the vocabulary. On failure *out holds what came before.
 */
sn_status sn_generator_run(sn_generator *generator, const int32_t *prompt, size_t n_prompt,
                           const sn_generate_options *options, sn_generation *out, sn_err *err) SN_MUST_USE;

/* The timeline: tokens that the chain has seen, and the one behind them if it was chosen (*n counts it). */
const int32_t *sn_generator_ids(const sn_generator *generator, size_t *n);
sn_chance sn_generator_chance(const sn_generator *generator);
/* Goes on where another generator stood: the chain has seen `seen` of the ids. SN_REFUSED when they do not fit. */
sn_status sn_generator_go_on(sn_generator *generator, const int32_t *ids, size_t n, size_t seen, const sn_chance *chance,
                             sn_err *err) SN_MUST_USE;

/* Tokens that the chain has seen. */
size_t sn_generator_length(const sn_generator *generator);

#endif
