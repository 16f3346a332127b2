/* What the forms of a reply share. reply.c keeps the choices' tokens and texts and finds out what is new; a form says
 * how it looks to the client: chat and completion (reply_chat.c, reply_completion.c), response (reply_response.c). */
#ifndef SN_GATEWAY_OPENAI_REPLY_PRIVATE_H
#define SN_GATEWAY_OPENAI_REPLY_PRIVATE_H

#include "gateway/openai/reply.h"

#include "base/mem.h"

/* A token and where its alternatives are in the choice's list. */
typedef struct sn_told_token {
    int32_t id;
    double logprob;
    size_t top, n_top;
} sn_told_token;
typedef struct sn_alternative {
    int32_t id;
    double logprob;
} sn_alternative;

/* The texts of a chat's answer: a thought, the content, and the arguments of calls, each after an empty beginning. */
typedef enum sn_answer_part { SN_PART_REASONING, SN_PART_CONTENT, SN_PART_CALL_BEGINS, SN_PART_CALL } sn_answer_part;

enum { SN_CALL_ID_BYTES = 10 }; /* 9 letters and digits, which some templates insist on, and a NUL */

typedef struct sn_reply_choice {
    size_t index, prompt;
    sn_buf ids;                /* int32_t: the answer so far */
    sn_buf told, alternatives; /* sn_told_token, of the echoed prompt, too; sn_alternative */
    size_t n_echo, echo_bytes; /* of told and text: the echoed prompt */
    size_t told_sent, offset;  /* tokens that the client got; characters of text before the next one */
    sn_buf text;               /* completion: the text so far */
    swarm_answer *answer;      /* chat: the message that the first n_read tokens are; NULL before them */
    size_t n_read;
    size_t text_sent, reasoning_sent; /* bytes that the client got, of a chat those of the content */
    sn_buf calls_sent;                /* size_t for each call that the client knows: bytes of its arguments */
    size_t calls_done;                /* calls that the client has */
    size_t n_reasoning;               /* tokens of the thought */
    bool begun;
    bool call_is_cut;   /* the answer ended within its last call */
    const char *finish; /* "stop", "length", "tool_calls"; NULL before the end */
} sn_reply_choice;

typedef struct sn_prompt_usage {
    size_t tokens, cached;
    bool thinks;
} sn_prompt_usage;

typedef struct sn_reply_form {
    const char *id_prefix;
    void (*begin)(sn_reply *r); /* before the first event of a stream; NULL: nothing */
    /* Of a stream: text that is new in a part */
    void (*delta)(sn_reply *r, sn_reply_choice *c, sn_answer_part part, size_t call, const char *text, size_t len);
    void (*progress)(sn_reply *r, sn_reply_choice *c, json_t *progress); /* of a stream; takes it. NULL: not told */
    void (*end)(sn_reply *r, sn_reply_choice *c,
                json_t *swarm);                   /* of a stream: the choice's end; swarm of the last: or NULL */
    void (*finish)(sn_reply *r, json_t *swarm);   /* of a stream: what follows the last choice */
    json_t *(*whole)(sn_reply *r, json_t *swarm); /* the body, a new reference */
    void (*fail)(sn_reply *r, const sn_openai_error *error); /* of a stream */
} sn_reply_form;
extern const sn_reply_form sn_chat_form, sn_completion_form, sn_response_form, sn_embedding_form;

struct sn_reply {
    const sn_request *request;
    const sn_served_model *served;
    const sn_reply_form *form;
    char id[80];      /* with its prefix */
    uint64_t id_hash; /* for the ids of calls and items */
    int64_t created;
    sn_reply_choice *choices; /* (n_choices) */
    size_t n_choices, n_ended;
    sn_prompt_usage *prompts; /* (n_prompts) */
    size_t n_prompts;
    json_t **embeddings; /* (n_prompts) of an embedding */
    size_t held;         /* sn_reply_held */
    sn_buf out;
    size_t taken;
    sn_reply_choice *last; /* the choice that ended last: its end is told with what sn_reply_finish brings */
    bool begun, closed, no_memory;
    struct sn_response_state *response; /* of reply_response.c; NULL: none */
};

void sn_response_state_free(struct sn_response_state **state); /* accepts NULL */

/* -- sending -- */
/* An event of a stream: takes the reference of `data`. name: of the event, NULL: none. */
void sn_reply_send(sn_reply *r, const char *name, json_t *data);
void sn_reply_send_text(sn_reply *r, const char *text);
/* object[key] = value, taking its reference; memory that is out shows in no_memory. */
void sn_reply_set(sn_reply *r, json_t *object, const char *key, json_t *value);
/* The beginning of a body or chunk: id, object, created, model. */
json_t *sn_reply_start(sn_reply *r, const char *object);
/* {"prompt_tokens", ...}. */
json_t *sn_reply_usage(sn_reply *r);
/* For forms whose streams end with an error in a chunk and "[DONE]". */
void sn_reply_send_error(sn_reply *r, const sn_openai_error *error);
/* Tokens of all prompts, of those cached, of all choices, and of the thoughts in them. */
typedef struct sn_usage {
    size_t prompt, cached, completion, reasoning;
} sn_usage;
sn_usage sn_reply_count(const sn_reply *r);
/* An id of 9 letters and digits for a part of this reply. */
void sn_reply_call_id(const sn_reply *r, size_t choice, size_t call, char out[SN_CALL_ID_BYTES]);
/* The content or the thought of the choice's answer, as far as it is final: cut where a stop string begins or may
 * begin. */
const char *sn_choice_text(const sn_reply *r, const sn_reply_choice *c, sn_answer_part part, size_t *len);
/* Calls of the choice's answer; with parallel calls not wanted, the first. */
size_t sn_choice_calls(const sn_reply *r, const sn_reply_choice *c);
const char *sn_choice_call_name(const sn_reply_choice *c, size_t call, size_t *len);
/* Cut as the text is. */
const char *sn_choice_arguments(const sn_reply *r, const sn_reply_choice *c, size_t call, size_t *len);

/* -- log-probabilities (reply_logprobs.c): of tokens [told_sent, told), which then count as sent -- */
json_t *sn_chat_logprobs(sn_reply *r, sn_reply_choice *c); /* a list of {"token", "logprob", "bytes", "top_logprobs"} */
json_t *sn_completion_logprobs(sn_reply *r,
                               sn_reply_choice *c); /* {"tokens", "token_logprobs", "top_logprobs", "text_offset"} */

#endif
