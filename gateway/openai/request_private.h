/* Reading a body in two phases: tables of fields take values of the right type and range into an sn_body (fields.c);
 * then each subject makes its part of the request from there. */
#ifndef SN_GATEWAY_OPENAI_REQUEST_PRIVATE_H
#define SN_GATEWAY_OPENAI_REQUEST_PRIVATE_H

#include "gateway/openai/request.h"

enum { SN_PATH_MAX = 96 };

typedef enum sn_request_field_kind {
    SN_FIELD_FLAG,   /* true or false into a bool */
    SN_FIELD_INT,    /* an integer from low to high into an int64_t */
    SN_FIELD_NUMBER, /* a number from low to high into a double */
    SN_FIELD_TEXT,   /* a string into a const char * */
    SN_FIELD_OBJECT, /* an object or list into a const json_t *, checked later */
    SN_FIELD_LIST,
    SN_FIELD_ANY,     /* any value into a const json_t * */
    SN_FIELD_IGNORED, /* any value: it changes no answer, and is noted in the request */
    SN_FIELD_ONLY,    /* a string, one of `words` ("auto|default"), which mean nothing here */
    SN_FIELD_REFUSED, /* refused, and `words` says why, but for values that ask for nothing: false, 0, "", [], {}, and
                         the number `low`; true where that is 1 */
} sn_request_field_kind;

typedef struct sn_request_field {
    const char *name;
    sn_request_field_kind kind;
    size_t offset; /* into the struct that is filled */
    double low, high;
    const char *words;
} sn_request_field;

typedef struct sn_parse sn_parse;

/* Reads an object by a table, which ends with a NULL name. path: of the object, "" for the body. null counts as a
 * missing field. Fields of no table entry are refused, or ignored where the end of the table is of that kind. */
bool sn_read_fields(sn_parse *p, const json_t *object, const char *path, const sn_request_field *fields, void *into);
/* Notes in the request that a part of it is ignored; name is borrowed. */
void sn_note_ignored(sn_parse *p, const char *name);

/* The path of a member or an element (name NULL) of `path`. Returns out. */
char *sn_path(char out[SN_PATH_MAX], const char *path, const char *name, size_t index);

/* Whether `word` is one of "a|b|c". */
bool sn_is_word(const char *words, const char *word);

/* What a body says, before it is put together. Integers that are missing are SN_UNSET. */
#define SN_UNSET INT64_MIN
typedef struct sn_body {
    const char *model, *encoding, *tokenize_text, *instructions;
    const json_t *messages, *prompt, *tools, *tool_choice, *response_format, *stop, *stream_options, *logit_bias,
        *variables, *reasoning, *text_format, *include, *ids, *modalities, *enable_thinking, *thinking;
    const char *reasoning_effort, *verbosity;
    int64_t n, max_tokens, max_completion_tokens, seed, top_k, top_logprobs, logprobs_n, dimensions, best_of;
    double temperature, top_p, min_p, repeat_penalty, repetition_penalty, presence_penalty, frequency_penalty;
    bool stream, return_progress, ignore_eos, echo, parallel_calls, logprobs_flag, add_special, parse_special,
        with_pieces;
} sn_body;

/* What the parts of a request are put into, and what they need. */
struct sn_parse {
    sn_request *r;
    const sn_request_limits *limits;
    sn_body body;
    json_t *chat;           /* {"messages", "tools", "variables"}, built on the way */
    bool assistant_is_open; /* calls of a response join the last message */
    size_t argument_values; /* in the arguments of all calls so far */
    sn_openai_error *error;
};

/* Memory of the request's life, zeroed; NULL: memory is out, and *error is filled. */
void *sn_parse_alloc(sn_parse *p, size_t n, size_t size);
/* Whether a text (len bytes) may fit into the context: if not it is refused before it costs a tokenizer's work. */
bool sn_parse_fits(sn_parse *p, size_t len, const char *path);
bool sn_out_of_memory(sn_openai_error *error);

/* -- subjects -- */
bool sn_parse_messages(sn_parse *p); /* "messages" of a chat (request_messages.c) */
/* The text of a content, a string or a list of parts of these types ("text|refusal"). A new reference. */
json_t *sn_parse_content(sn_parse *p, const json_t *content, const char *path, const char *types);
/* The role as templates know it; NULL: there is no such role. */
const char *sn_parse_role(const char *role);
/* Whether the arguments of a call may be read: values in those of all calls are counted before that. */
bool sn_parse_arguments_fit(sn_parse *p, const char *arguments, const char *path);
/* One call of an assistant, with its arguments as templates want them. A new reference; NULL: memory is out. */
json_t *sn_call_json(const char *id, const char *name, const char *arguments);
bool sn_parse_tools(sn_parse *p); /* "tools" and "tool_choice" of chats and responses (request_tools.c) */
/* The form of the answer's text, in the two ways of writing it (request_tools.c). */
bool sn_parse_response_format(sn_parse *p, const json_t *format, const char *path);
bool sn_parse_prompts(sn_parse *p, const json_t *prompt, const char *path); /* (request_prompts.c) */
bool sn_parse_logit_bias(sn_parse *p);
bool sn_parse_response(sn_parse *p); /* "input", "instructions", "text" and others of a response (request_response.c) */

extern const sn_request_field sn_chat_fields[], sn_completion_fields[], sn_embedding_fields[], sn_response_fields[],
    sn_tokenize_fields[], sn_detokenize_fields[]; /* (request_fields.c) */

#endif
