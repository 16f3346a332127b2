/* libswarm: language models over a swarm of nodes, from C and from every language that calls C.
 *
 * The way of a token: swarm_connect finds nodes, swarm_model_open reads the tokenizer, the embedding and the LM head,
 * swarm_session_open takes a route over the nodes that serve the model's blocks, and swarm_session_generate continues a
 * text. examples/ has whole programs. docs/API.md explains this file to its reader.
 *
 * Errors. A function that can fail returns a swarm_code. On failure, when `error` is not NULL, *error becomes a new
 * error, which the caller frees; on success *error is not touched. The code says what the caller may do, the text is
 * one sentence for people.
 *
 * Options are strings by key. The keys are the words of the command line without dashes ("join", "kv-dtype"), with the
 * same values: swarm_options_describe lists them.
 *
 * Ownership. Handles belong to the caller and are closed by the function that their type names; NULL is accepted there.
 * A handle that was made from another one (a session from a model) must be closed before it. Memory that a function
 * returns through a `**` parameter is freed with swarm_free; everything else that is returned is borrowed from the
 * handle, until its next call that is not a question. All lengths are bytes or elements, as said; texts are UTF-8, end
 * with a NUL that their length does not count, and may hold NULs before it.
 *
 * Threads. Connections and models may be used by several threads at once. Sessions, blocks and training runs belong to
 * one thread at a time; different ones run in parallel. Errors, options and events are used by one thread at a time.
 * Only swarm_cancel_set may be called at any time, by any thread, also from a signal handler.
 *
 * The library never prints, exits, changes signal handlers or reads the environment, and it has no state but its
 * handles. After fork, only the parent may use handles.
 *
 * The interface only grows: within libswarm.so.0 no function, constant or key disappears or changes its meaning. */
#ifndef SWARM_H
#define SWARM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SWARM_API __attribute__((visibility("default")))
#else
#define SWARM_API
#endif

/* "0.1.0": of the library that runs. Static. */
SWARM_API const char *swarm_version(void);

/* Frees memory that this library returned through a `**` parameter. NULL is accepted. */
SWARM_API void swarm_free(void *memory);

/* -- errors */

typedef enum swarm_code {
    SWARM_OK = 0,
    SWARM_RETRY = 1,   /* the call was right, but no node could do it now: try again later */
    SWARM_REBUILD = 2, /* an audit failed: the timeline ends before the wrong result, and other nodes continue there */
    SWARM_REFUSED = 3, /* an argument, option or file is wrong: do not repeat the call unchanged */
    SWARM_STOP = 4,    /* this process cannot go on with the handle: memory is out, or a device failed */
    SWARM_CANCELLED = 5, /* the cancel flag was set, or a callback stopped the call; the handle stays usable */
} swarm_code;

typedef struct swarm_error swarm_error;
SWARM_API swarm_code swarm_error_code(const swarm_error *error);  /* NULL: SWARM_OK */
SWARM_API const char *swarm_error_text(const swarm_error *error); /* one sentence, borrowed; NULL: "" */
/* With SWARM_RETRY: after how many milliseconds a node said that it can; 0: it is not known. */
SWARM_API int64_t swarm_error_retry_after_ms(const swarm_error *error);
/* Why, where a program can act on it: "no_room" (sessions have the KV memory or the places of the nodes: with
 * SWARM_RETRY, after which sessions that are idle may be closed), "too_long" (the timeline has more tokens than KV
 * memory anywhere holds: SWARM_REFUSED), or "". Static. */
SWARM_API const char *swarm_error_reason(const swarm_error *error);
SWARM_API void swarm_error_free(swarm_error *error);

/* -- options */

typedef struct swarm_options swarm_options;
SWARM_API swarm_options *swarm_options_new(void); /* NULL: memory is out */
/* Sets a key to a value; both are copied. A key that takes several values ("join", "stop") collects them. The value is
 * checked by the function that the options are given to, as is whether it knows the key. SWARM_REFUSED: no function
 * knows the key; SWARM_STOP. */
SWARM_API swarm_code swarm_options_set(swarm_options *options, const char *key, const char *value, swarm_error **error);
SWARM_API void swarm_options_free(swarm_options *options);
/* The keys that a kind of options may have, as JSON: [{"key", "value", "default", "repeatable", "help"}]. of:
 * "connection", "model", "session", "generation", "blocks" or "training". */
SWARM_API swarm_code swarm_options_describe(const char *of, char **json, size_t *length, swarm_error **error);

/* -- cancelling */

/* A flag that stops calls from another thread. Functions that take one borrow it for the life of the handle that they
 * make; once it is set, the call in progress on this handle and later ones return SWARM_CANCELLED, within a second,
 * until it is cleared. One flag may serve several handles. */
typedef struct swarm_cancel swarm_cancel;
SWARM_API swarm_cancel *swarm_cancel_new(void); /* NULL: memory is out */
SWARM_API void swarm_cancel_set(swarm_cancel *cancel);
SWARM_API void swarm_cancel_clear(swarm_cancel *cancel);
SWARM_API void swarm_cancel_free(swarm_cancel *cancel);

/* -- a connection to a swarm */

typedef struct swarm_connection swarm_connection;
/* Finds nodes through the addresses of "join" or "dht". cancel may be NULL. SWARM_RETRY: no node answered. */
SWARM_API swarm_code swarm_connect(const swarm_options *options, swarm_cancel *cancel, swarm_connection **connection,
                                   swarm_error **error);
SWARM_API void swarm_disconnect(swarm_connection *connection);
/* The nodes and the coverage of the blocks, as `swarm status --json` prints them (docs/CLIENT.md). Asks the nodes;
 * takes up to two seconds. */
SWARM_API swarm_code swarm_connection_status(swarm_connection *connection, char **json, size_t *length,
                                             swarm_error **error);

/* -- a model: what a client needs besides the blocks */

typedef struct swarm_model swarm_model;
/* Opens a model by its path: a GGUF file, or a folder with config.json and safetensors. It needs no blocks unless a
 * session computes some itself ("local"). With the option "cache" (a folder) it may also be the name of a model of a
 * hub, "ORG/NAME[:FILE][@REVISION]", or the URL of a GGUF file, where no file has this path: then what is needed of it
 * is fetched, here and by later calls, also by several processes at once, and stays in the folder. SWARM_RETRY: the hub
 * does not answer, or is busy. options: of "model"; NULL: the defaults. With the option "template" the path
 * may be NULL: such a model renders chats as text, and does nothing else. */
SWARM_API swarm_code swarm_model_open(const char *path, const swarm_options *options, swarm_model **model,
                                      swarm_error **error);
SWARM_API void swarm_model_close(swarm_model *model);
/* What the model is, as `swarm inspect --json` prints it (docs/CLIENT.md). */
SWARM_API swarm_code swarm_model_describe(const swarm_model *model, char **json, size_t *length, swarm_error **error);
SWARM_API int32_t swarm_model_blocks(const swarm_model *model);  /* transformer blocks */
SWARM_API int32_t swarm_model_width(const swarm_model *model);   /* floats of a hidden state */
SWARM_API int32_t swarm_model_vocab(const swarm_model *model);   /* logits of a token; ids are below it */
SWARM_API int32_t swarm_model_context(const swarm_model *model); /* tokens of the longest timeline */

enum {
    SWARM_TEXT_BEGINS = 1,  /* the text is the beginning: with the begin-of-sequence token, if the model wants one */
    SWARM_TEXT_SPECIAL = 2, /* special tokens that are spelled out count as such; never for text of strangers */
    SWARM_TEXT_NO_BOS = 4,  /* with SWARM_TEXT_BEGINS: the begin-of-sequence token is left out */
};
/* The token ids of a text; *ids is freed with swarm_free. flags: SWARM_TEXT_ bits. */
SWARM_API swarm_code swarm_model_tokenize(const swarm_model *model, const char *text, size_t length, int flags,
                                          int32_t **ids, size_t *n, swarm_error **error);
/* The text of token ids; with SWARM_TEXT_SPECIAL special tokens are spelled out, else left out. An incomplete UTF-8
 * sequence at the end becomes U+FFFD. */
SWARM_API swarm_code swarm_model_detokenize(const swarm_model *model, const int32_t *ids, size_t n, int flags,
                                            char **text, size_t *length, swarm_error **error);
/* The exact bytes of one token, which need not be whole UTF-8; those of a text's tokens, one after another, are the
 * text. A special token has bytes with SWARM_TEXT_SPECIAL only. With SWARM_TEXT_BEGINS the token is the first of a
 * text: the space that some tokenizers put there is left out. */
SWARM_API swarm_code swarm_model_token_bytes(const swarm_model *model, int32_t id, int flags, char **bytes,
                                             size_t *length, swarm_error **error);
/* Whether a token ends a text or a turn: 1 or 0. */
SWARM_API int swarm_model_ends(const swarm_model *model, int32_t id);
/* Renders a conversation with the model's chat template. request: JSON {"messages": [{"role", "content"}...], "tools":
 * [...], "add_generation_prompt": true, "variables": {...}, "continues": false}; all but messages may be missing. The
 * prompt comes as text, as ids, or both: the other results may be NULL. Only what the template itself writes becomes
 * special tokens. The ids begin with the begin-of-sequence token, if the model wants one, unless the prompt continues a
 * timeline. */
SWARM_API swarm_code swarm_model_render_chat(const swarm_model *model, const char *request, size_t request_length,
                                             char **text, size_t *length, int32_t **ids, size_t *n,
                                             swarm_error **error);
/* The same as JSON, as `swarm render --json` prints it (docs/CLIENT.md): which bytes come from the request, too. */
SWARM_API swarm_code swarm_model_render_parts(const swarm_model *model, const char *request, size_t request_length,
                                              char **json, size_t *length, swarm_error **error);
enum {
    SWARM_ANSWER_ENDS = 1,   /* the answer is whole */
    SWARM_ANSWER_THINKS = 2, /* it begins within a thought: swarm_model_prompt_thinks */
};
/* Whether an answer to this prompt (text of swarm_model_render_chat) begins within a thought: 1 or 0. */
SWARM_API int swarm_model_prompt_thinks(const swarm_model *model, const char *prompt, size_t length);
/* Where the parts of an answer begin, as JSON, for programs that steer what is generated: {"thought": [BEGIN, END],
 * "calls": [MARK...]}. These are the texts at which swarm_model_read_answer sees a thought and calls; white space in
 * one stands for any or none. "calls": an empty list where an object that is the whole answer is a call, null where
 * the template has no calls or no mark says where one begins. "thought" is null where marks do not say it. */
SWARM_API swarm_code swarm_model_answer_marks(const swarm_model *model, char **json, size_t *length,
                                              swarm_error **error);
/* The message that a generated answer is, as JSON for the next request: {"role": "assistant", "content"}, and where
 * there are any "reasoning_content" and "tool_calls", taken apart as the model's template writes them. tools: the JSON
 * list of the request; NULL: none, and nothing is read as a call. flags: SWARM_ANSWER_ bits. Without SWARM_ANSWER_ENDS
 * the tokens are a beginning, and every text of the message (the "arguments" of a call too) begins the one that more
 * tokens give: what was added can be streamed. */
SWARM_API swarm_code swarm_model_read_answer(const swarm_model *model, const char *tools, size_t tools_length,
                                             int flags, const int32_t *ids, size_t n, char **json, size_t *length,
                                             swarm_error **error);

/* An answer that is read while it is generated: after each addition its texts are those of swarm_model_read_answer for
 * all tokens so far, and the work is proportional to what was added. */
typedef struct swarm_answer swarm_answer;
/* As swarm_model_read_answer; flags: 0 or SWARM_ANSWER_THINKS. The model is borrowed. */
SWARM_API swarm_code swarm_answer_open(const swarm_model *model, const char *tools, size_t tools_length, int flags,
                                       swarm_answer **answer, swarm_error **error);
SWARM_API void swarm_answer_close(swarm_answer *answer); /* accepts NULL */
/* What follows, n tokens. flags: SWARM_ANSWER_ENDS with the last ones, else 0. After a failure the answer can only be
 * closed. */
SWARM_API swarm_code swarm_answer_add(swarm_answer *answer, const int32_t *ids, size_t n, int flags,
                                      swarm_error **error);
typedef enum swarm_answer_part {
    SWARM_ANSWER_CONTENT = 1,
    SWARM_ANSWER_THOUGHT = 2,
    SWARM_ANSWER_CALL = 3,      /* the name of the function that a call is for */
    SWARM_ANSWER_ARGUMENTS = 4, /* of a call: JSON, or its beginning */
} swarm_answer_part;
/* A text of the answer, borrowed until the next addition. call: from 0, of the last two parts. NULL: there is no such
 * call. */
SWARM_API const char *swarm_answer_text(const swarm_answer *answer, swarm_answer_part part, size_t call,
                                        size_t *length);

/* The ends of the model, for programs that compute with hidden states. All arrays are float32, row after row. */
/* hidden (n, width): the embeddings of ids (n). */
SWARM_API swarm_code swarm_model_embed(const swarm_model *model, const int32_t *ids, size_t n, float *hidden,
                                       swarm_error **error);
/* logits (n, vocab) of hidden (n, width) as it leaves the last block: final norm and LM head. */
SWARM_API swarm_code swarm_model_logits(const swarm_model *model, const float *hidden, size_t n, float *logits,
                                        swarm_error **error);
/* The log-probability of a token in a row of logits (vocab), and the n_top most likely tokens of the row, best first
 * (n_top at most vocab): the numbers that events of tokens have. SWARM_RETRY: the row holds NaN or +infinity. */
SWARM_API swarm_code swarm_model_logprob(const swarm_model *model, const float *logits, int32_t id, double *logprob,
                                         size_t n_top, int32_t *top_ids, double *top_logprobs, swarm_error **error);
/* out (n, width): hidden (n, width) as it leaves the last block, after the final norm; they may be one array. What a
 * text means is read from such rows (embeddings). */
SWARM_API swarm_code swarm_model_norm(const swarm_model *model, const float *hidden, size_t n, float *out,
                                      swarm_error **error);
/* The gradient of hidden (n, width) from that of logits (n, vocab). */
SWARM_API swarm_code swarm_model_logits_backward(const swarm_model *model, const float *hidden, size_t n,
                                                 const float *logits_gradient, float *hidden_gradient,
                                                 swarm_error **error);

/* -- adapters */

typedef struct swarm_adapter swarm_adapter;
/* An adapter's folder (of `swarm tune`, or LoRA or prompt tuning in PEFT's format), or "name:NAME" of one that nodes
 * publish. SWARM_REFUSED: it was trained for other weights. */
SWARM_API swarm_code swarm_adapter_open(const swarm_model *model, swarm_connection *connection, const char *name,
                                        swarm_adapter **adapter, swarm_error **error);
SWARM_API void swarm_adapter_close(swarm_adapter *adapter);
/* What its user should know, as that it does not say which weights it was trained for: a sentence, borrowed. NULL:
 * nothing. */
SWARM_API const char *swarm_adapter_warning(const swarm_adapter *adapter);

/* -- events */

/* What happens during calls on a session, given to its callback on the thread of the call. An event is valid during the
 * callback. */
typedef enum swarm_event_kind {
    SWARM_EVENT_PROGRESS = 1, /* tokens of a prompt are computed: number "done" of "total", of which "reused" were in
                                 the timeline before the call */
    SWARM_EVENT_TOKEN = 2,    /* a token was sampled: number "id", "logprob" with the option "logprobs" */
    SWARM_EVENT_TEXT = 3,     /* text is final: swarm_event_text */
    SWARM_EVENT_RETRACT = 4,  /* an audit failed: of the text so far only the first number "kept" bytes stand, and of
                                 the tokens number "kept_tokens"; what follows is generated again */
    SWARM_EVENT_FAILOVER = 5, /* a node failed and was replaced; the tokens are not affected */
    SWARM_EVENT_MOVE = 6,     /* the session moved: its node drains, or a faster route was found */
    SWARM_EVENT_AUDIT = 7,    /* a node gave a wrong result and was banned: text is the verdict */
} swarm_event_kind;
typedef struct swarm_event swarm_event;
SWARM_API swarm_event_kind swarm_event_get_kind(const swarm_event *event);
/* The event's text, or a sentence about it; borrowed. *length may be NULL. */
SWARM_API const char *swarm_event_text(const swarm_event *event, size_t *length);
/* A number by its name, as above; 0 where the event has none of this name. */
SWARM_API double swarm_event_number(const swarm_event *event, const char *name);
/* Of a token: the most likely tokens at its place, best first, as many as "logprobs" says; their count. Borrowed. */
SWARM_API size_t swarm_event_top(const swarm_event *event, const int32_t **ids, const double **logprobs);

/* Returns 0 to go on; else the call stops after this token: swarm_session_generate with what it has
 * ("interrupted"), others with SWARM_CANCELLED. It must not call functions of the session. */
typedef int (*swarm_event_callback)(void *context, const swarm_event *event);

/* -- sessions */

/* A timeline of tokens and its KV cache, wherever the blocks are. Positions count tokens from 0. */
typedef struct swarm_session swarm_session;
/* connection NULL: this process computes all blocks ("local" is then "all"). options: of "session", NULL allowed.
 * adapter, cancel: may be NULL; borrowed for the session's life. With "load" it begins as swarm_session_load does.
 * SWARM_RETRY names the blocks that no node serves. */
SWARM_API swarm_code swarm_session_open(const swarm_model *model, swarm_connection *connection,
                                        const swarm_options *options, const swarm_adapter *adapter,
                                        swarm_cancel *cancel, swarm_session **session, swarm_error **error);
SWARM_API void swarm_session_close(swarm_session *session);
SWARM_API void swarm_session_on_event(swarm_session *session, swarm_event_callback callback, void *context);
/* Which kinds of events the callback is given, as a sum of 1 << SWARM_EVENT_...; all of them at first. Not during a
 * call. For callers to whom each event costs something, as interpreters. */
SWARM_API void swarm_session_want_events(swarm_session *session, uint64_t kinds);
/* Called before a token is sampled at position n, with the ids (n) before it: it may change the logits (vocab), for
 * masks and biases. It must depend on nothing but the ids, since draft tokens ask for positions that may not stay. */
typedef void (*swarm_logits_callback)(void *context, const int32_t *ids, size_t n, float *logits, size_t vocab);
SWARM_API void swarm_session_on_logits(swarm_session *session, swarm_logits_callback callback, void *context);

/* Makes prompt (n) the timeline and continues it. What it shares with the present timeline is not computed again.
 * options: of "generation" (sampling, "max-tokens", "stop"), NULL allowed: the most likely tokens, or with "answer"
 * as its makers recommend to sample ("answer_sampling" of the model's description). *json: {"ids", "text",
 * "finish_reason", "timings"} as `swarm generate --json` prints it; json NULL: not wanted. With SWARM_CANCELLED, too,
 * *json has what was generated until then, "interrupted" (with "audit-hold" only what was checked), or is NULL if the
 * generation had not begun; after other failures it is NULL. A node's failure is not noticed but in events. After a
 * failure the timeline holds what was computed, which the next call does not compute again. Without "seed" the
 * session's random numbers go on. */
SWARM_API swarm_code swarm_session_generate(swarm_session *session, const int32_t *prompt, size_t n,
                                            const swarm_options *options, char **json, size_t *length,
                                            swarm_error **error);

/* The same in steps. Appends ids (n) to the timeline and computes them. logits (n, vocab) gets those of each, NULL: not
 * wanted. After a failure the timeline is as before, but for SWARM_REBUILD. */
SWARM_API swarm_code swarm_session_append(swarm_session *session, const int32_t *ids, size_t n, float *logits,
                                          swarm_error **error);
/* Samples the token that follows the timeline, without appending it. options: of "generation", NULL allowed; with a
 * "seed", the token depends on nothing but seed and timeline. */
SWARM_API swarm_code swarm_session_sample(swarm_session *session, const swarm_options *options, int32_t *id,
                                          swarm_error **error);
/* The timeline, borrowed; *n: its tokens. */
SWARM_API const int32_t *swarm_session_tokens(const swarm_session *session, size_t *n);
/* Shortens the timeline to its first n tokens. */
SWARM_API swarm_code swarm_session_rewind(swarm_session *session, size_t n, swarm_error **error);

/* Hidden states through the session's blocks (of the option "blocks", else all): in (n, width), as positions
 * [position, position + n), to out (n, width); in and out may be one array. position is at most the length, and a
 * smaller one rewinds. A session that was used so has no tokens: the functions above refuse it. */
SWARM_API swarm_code swarm_session_forward(swarm_session *session, size_t position, size_t n, const float *in,
                                           float *out, swarm_error **error);

/* Writes tokens, KV cache and `extra` (length bytes, given back by swarm_session_extra) to a file, encrypted with the
 * content of key_path, 16 or more random bytes; NULL: that of the options "session-key", else "identity". */
SWARM_API swarm_code swarm_session_save(swarm_session *session, const char *path, const char *key_path,
                                        const char *extra, size_t length, swarm_error **error);
/* Reads such a file into a session that has just been opened, over any route: it continues with the same bits. After a
 * failure the session can only be closed. */
SWARM_API swarm_code swarm_session_load(swarm_session *session, const char *path, const char *key_path,
                                        swarm_error **error);
SWARM_API const char *swarm_session_extra(const swarm_session *session, size_t *length); /* NULL: none was loaded */

/* Checks what the audit (option "audit") has not checked yet. SWARM_REBUILD: a result was wrong; the timeline ends
 * before it, and other nodes continue. */
SWARM_API swarm_code swarm_session_audit(swarm_session *session, swarm_error **error);
/* Work between calls, without waiting: a session that pauses calls it each second or so, so that its KV cache moves
 * when a node drains. */
SWARM_API swarm_code swarm_session_poll(swarm_session *session, swarm_error **error);
/* Hops, their times, failovers, and the audit's counts, as JSON (docs/CLIENT.md). */
SWARM_API swarm_code swarm_session_describe(const swarm_session *session, char **json, size_t *length,
                                            swarm_error **error);

/* -- gradients through remote blocks */

/* Frozen blocks as a function of hidden states, without a KV cache; sequences begin at position 0. */
typedef struct swarm_blocks swarm_blocks;
/* options: of "blocks" ("blocks" A:B, else all). connection NULL: computed here. */
SWARM_API swarm_code swarm_blocks_open(const swarm_model *model, swarm_connection *connection,
                                       const swarm_options *options, swarm_cancel *cancel, swarm_blocks **blocks,
                                       swarm_error **error);
SWARM_API void swarm_blocks_close(swarm_blocks *blocks);
/* Trainable values inside the blocks, by the options "method" (lora, deep-prompt), "rank", "alpha", "targets",
 * "virtual-tokens", "seed": how many floats; 0: no method was given, or prompt, whose virtual tokens are the caller's.
 * docs/FINE-TUNING.md says their order. */
SWARM_API size_t swarm_blocks_parameters(const swarm_blocks *blocks);
/* Copies the values (of swarm_blocks_parameters) for later calls; initial values are those of `swarm tune`. */
SWARM_API swarm_code swarm_blocks_set(swarm_blocks *blocks, const float *values, swarm_error **error);
SWARM_API swarm_code swarm_blocks_get(const swarm_blocks *blocks, float *values, swarm_error **error);
/* The present values as an adapter for sessions over this model: a copy, which needs the model and not the blocks. With
 * prompt ("virtual-tokens", width), of the methods prompt and deep-prompt, the session puts these virtual tokens before
 * every timeline. prompt NULL: nothing stands before it, and deep prompts are added to its first rows, as
 * swarm_blocks_forward does. */
SWARM_API swarm_code swarm_blocks_adapter(swarm_blocks *blocks, const float *prompt, swarm_adapter **adapter,
                                          swarm_error **error);
/* Writes the present values into a folder, which is made, for swarm_adapter_open; LoRA and prompt tuning in PEFT's
 * format. The methods prompt and deep-prompt need prompt, as above. */
SWARM_API swarm_code swarm_blocks_save(swarm_blocks *blocks, const float *prompt, const char *folder,
                                       swarm_error **error);
/* out (rows, width) of in (rows, width): `sequences` sequences one after another, of lengths (sequences) rows. The
 * arrays of these two functions must not overlap. After a failure what they hold is undefined. */
SWARM_API swarm_code swarm_blocks_forward(swarm_blocks *blocks, size_t sequences, const int32_t *lengths,
                                          const float *in, float *out, swarm_error **error);
/* in_gradient (rows, width) and, unless NULL, gradient (of swarm_blocks_parameters, summed over the sequences), from
 * out_gradient (rows, width). It computes the forward pass again: nodes keep nothing between the two calls. */
SWARM_API swarm_code swarm_blocks_backward(swarm_blocks *blocks, size_t sequences, const int32_t *lengths,
                                           const float *in, const float *out_gradient, float *in_gradient,
                                           float *gradient, swarm_error **error);

/* -- training */

/* A run of `swarm tune`: an adapter for frozen blocks. The same options and data give the same bits, over any route. */
typedef struct swarm_training swarm_training;
/* options: of "training" ("data", "method", "lr", "steps"...). With "resume" it continues a checkpoint. */
SWARM_API swarm_code swarm_training_open(const swarm_model *model, swarm_connection *connection,
                                         const swarm_options *options, swarm_cancel *cancel, swarm_training **training,
                                         swarm_error **error);
SWARM_API void swarm_training_close(swarm_training *training);
/* One step. *loss: its mean loss before the step. After a failure nothing has changed: call it again. *done: 1 when
 * this was the last step, else 0. */
SWARM_API swarm_code swarm_training_step(swarm_training *training, double *loss, int *done, swarm_error **error);
SWARM_API swarm_code swarm_training_evaluate(swarm_training *training, double *loss, swarm_error **error);
/* Writes a checkpoint (state to "resume" from), or the adapter, into a folder. */
SWARM_API swarm_code swarm_training_checkpoint(swarm_training *training, const char *folder, swarm_error **error);
SWARM_API swarm_code swarm_training_save(swarm_training *training, const char *folder, swarm_error **error);

#ifdef __cplusplus
}
#endif
#endif
