/* Requests of the OpenAI API: a JSON body becomes a checked request, or an error that names the field.
 *
 * Every field of a body is known, and has a value that is obeyed, or the request is refused: docs/SERVER.md lists them.
 * Nothing here computes: what needs the tokenizer (the ids of prompts) is the caller's next step, and
 * sn_request_check_length comes after it.
 *
 * Central type: sn_request, immutable once parsed; any thread may read it. All in it is borrowed from it. */
#ifndef SN_GATEWAY_OPENAI_REQUEST_H
#define SN_GATEWAY_OPENAI_REQUEST_H

#include "gateway/openai/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum sn_request_kind {
    SN_REQUEST_CHAT,       /* POST /v1/chat/completions */
    SN_REQUEST_COMPLETION, /* POST /v1/completions */
    SN_REQUEST_EMBEDDING,  /* POST /v1/embeddings */
    SN_REQUEST_RESPONSE,   /* POST /v1/responses: as a chat, with bodies and events of its own */
    SN_REQUEST_TOKENIZE,   /* POST /tokenize */
    SN_REQUEST_DETOKENIZE, /* POST /detokenize */
} sn_request_kind;

enum {
    SN_REQUEST_DEPTH_MAX = 64,                /* nested lists and objects of a body */
    SN_REQUEST_VALUES_MAX = 1000000,          /* of a body, of about a hundred bytes each when they are read */
    SN_REQUEST_ARGUMENT_VALUES_MAX = 1 << 18, /* of the arguments of all calls of earlier answers, likewise */
    SN_REQUEST_TEXT_MAX = 1 << 20,            /* bytes to be tokenized for /tokenize */
    SN_REQUEST_TOKEN_BYTES = 64,  /* a longer text than this for each token of the context, and 1 MiB, is no prompt */
    SN_REQUEST_STOPS_MAX = 16,    /* stop strings */
    SN_REQUEST_STOP_MAX = 256,    /* bytes of one */
    SN_REQUEST_TOP_MAX = 20,      /* tokens with their log-probabilities at each place */
    SN_REQUEST_BIASES_MAX = 1024, /* entries of logit_bias */
    SN_REQUEST_TOOLS_MAX = 128,
    SN_REQUEST_MESSAGES_MAX = 1 << 14,
    SN_REQUEST_IGNORED_MAX = 16, /* names that are noted; others are ignored without a note */
};

/* How an answer is sampled where its request says nothing. */
typedef struct sn_request_sampling {
    double temperature, top_p, min_p, repeat_penalty;
    int32_t top_k; /* 0: all */
} sn_request_sampling;

/* What the server allows. */
typedef struct sn_request_limits {
    const char *const *models; /* (n_models) names of the model (sn_request_model says how else requests may call it) */
    size_t n_models;
    int32_t vocab, context; /* of the model; context is what a session holds */
    int32_t width;          /* floats of an embedding */
    sn_request_sampling sampling;
    int n_max;       /* "n", 1 or more */
    int prompts_max; /* prompts of a completion, inputs of embeddings; times "n" it is at most choices_max */
    int choices_max;
    bool no_tools; /* the model's chat template has no tools: requests with tools are refused */
} sn_request_limits;

/* A text or token ids. */
typedef struct sn_prompt {
    const char *text; /* (len) NULL: ids */
    size_t len;
    const int32_t *ids; /* (n) each inside the vocabulary */
    size_t n;
} sn_prompt;

typedef struct sn_bias {
    int32_t id;
    float bias; /* added to its logit: -100 (never) to 100 */
} sn_bias;

typedef enum sn_tool_choice {
    SN_TOOLS_NONE,     /* no tools, or "none": nothing is read as a call */
    SN_TOOLS_AUTO,     /* the model decides */
    SN_TOOLS_REQUIRED, /* the answer is a call of some tool */
    SN_TOOLS_NAMED,    /* the answer is a call of tool_name */
} sn_tool_choice;

typedef struct sn_request {
    sn_request_kind kind;
    const char *model; /* as the request calls it: one of the limits' names */

    /* Chat and response: the JSON for swarm_model_render_chat (chat_len bytes), and the list of tools (tools_len) for
     * swarm_model_read_answer; tools is NULL where nothing is to be read as a call. */
    char *chat, *tools;
    size_t chat_len, tools_len;
    sn_tool_choice tool_choice;
    const char *tool_name; /* with SN_TOOLS_NAMED */
    bool parallel_calls;   /* false: one call at most */
    json_t *functions;     /* [{"name", "parameters", "strict"}], whatever the choice is */

    /* Completion, embedding, tokenize: prompts. Detokenize: one list of ids. */
    sn_prompt *prompts; /* (n_prompts) */
    size_t n_prompts;
    bool add_special, parse_special, with_pieces; /* tokenize */

    /* Generation. Choices are numbered prompt * n + k. */
    int n;
    int64_t max_tokens; /* 0: nothing is generated; -1: until the context is full */
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int32_t top_k; /* 0: all */
    int64_t seed;  /* of choice 0, and of choice k this plus k; -1: none was given */
    bool ignore_eos;
    const char **stops; /* (n_stops) */
    size_t n_stops;
    sn_bias *biases; /* (n_biases) */
    size_t n_biases;
    int logprobs; /* -1: none; else so many most likely tokens with each token */
    const json_t
        *schema; /* the answer's text is JSON of this schema ({"type": "object"}: any object); NULL: any text */

    bool echo; /* completion: the prompt comes before the text, with its log-probabilities if those are asked for */
    bool stream, include_usage, continuous_usage;
    bool return_progress; /* a stream's chunks tell how much of the prompt is computed */
    bool base64;          /* embedding: floats as base64 of little-endian float32 */

    const char *ignored[SN_REQUEST_IGNORED_MAX]; /* (n_ignored) names of fields that were given and change nothing */
    size_t n_ignored;

    json_t *body; /* what was parsed; a reply quotes some of it */
    void *own;    /* what the request's lists borrow */
} sn_request;

/* Parses and checks a body (len bytes). False: *error says why, and *out is NULL. */
bool sn_request_parse(sn_request_kind kind, const char *body, size_t len, const sn_request_limits *limits,
                      sn_request **out, sn_openai_error *error) SN_MUST_USE;
/* The name of a served model that a request calls so: by this name in any case, with the suffix of its file, ":latest",
 * or a path before it. NULL: there is none. */
const char *sn_request_model(const sn_request_limits *limits, const char *name);
/* About what a body takes when it was parsed, as values and as texts. */
size_t sn_request_memory(const char *body, size_t len);
void sn_request_free(sn_request **request); /* accepts NULL */

/* Choices in all: prompts (one for a chat) times n. */
size_t sn_request_choices(const sn_request *request);
/* Whether a prompt of n_tokens leaves room for an answer in the context: one that asks for more than there is room for
 * ends with the context. A prompt without tokens is refused. */
bool sn_request_check_length(const sn_request *request, size_t n_tokens, const sn_request_limits *limits,
                             sn_openai_error *error) SN_MUST_USE;
/* Options of "generation" for a choice of a request of this owner; the caller frees *out with swarm_options_free. Not
 * for max_tokens 0. What they leave out (penalties other than repeat_penalty, biases, schemas, tools that must be
 * called) is done by a constraint (constraint.h). */
bool sn_request_generation(const sn_request *request, size_t choice, uint64_t owner, swarm_options **out,
                           sn_openai_error *error) SN_MUST_USE;

#endif
