/* What a model thinks, apart from what it answers, while its text streams.
 *
 * Two forms are known. Models that think in tags write <think>...</think> before the answer, or begin within them.
 * gpt-oss writes channels by special tokens: <|channel|>NAME<|message|>TEXT; the answer is the channel "final". A model
 * of neither form answers only.
 *
 * The caller pushes text as it comes, and special tokens by their spelling. What may be the beginning of a tag is held
 * back, so the result does not depend on the cuts. One thread.
 *
 * The message of a finished answer comes from swarm_model_read_answer, which knows more forms. It reads from the
 * beginning at each call, and a view that asked it after each token would take time with the square of the length. */
#ifndef SN_CLI_TERMINAL_REASONING_H
#define SN_CLI_TERMINAL_REASONING_H

#include "base/mem.h"

typedef struct sn_reasoning {
    /* Gets the text in order, as parts of the thought or of the answer. Any other status than SN_OK ends the call. */
    sn_status (*on_text)(void *ctx, bool thought, const char *text, size_t n, sn_err *err);
    void *ctx;
    enum { SN_REASONING_BEGIN, SN_REASONING_THOUGHT, SN_REASONING_ANSWER, SN_REASONING_CHANNEL_NAME } state;
    bool blank; /* the part has had no text but white space, which is left out at its beginning */
    char held[16];
    size_t n_held;
    bool in_channel; /* a channel's name was announced, ... */
    char name[16];   /* ... and read so far */
} sn_reasoning;

/* Begins an answer; thinks: within a thought, because the prompt ends so. The callback and its ctx stay. */
void sn_reasoning_begin(sn_reasoning *r, bool thinks);
sn_status sn_reasoning_push(sn_reasoning *r, const char *text, size_t n, sn_err *err) SN_MUST_USE;
/* A special token by its spelling ("<|channel|>"). Unknown ones count for nothing. */
sn_status sn_reasoning_special(sn_reasoning *r, const char *token, sn_err *err) SN_MUST_USE;
/* The text has ended: gives out what is held. */
sn_status sn_reasoning_end(sn_reasoning *r, sn_err *err) SN_MUST_USE;

#endif
