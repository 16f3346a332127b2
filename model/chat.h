/* Chat templates of six families: ChatML, Llama 2, Llama 3, Mistral, Gemma and Phi-3. A model's template is a program in Jinja; it is not
 * run but recognised by its markers, and what differs within a family (default system turn, spaces, trimming) is read
 * from its literals. */
#ifndef SN_MODEL_CHAT_H
#define SN_MODEL_CHAT_H

#include "model/tokenizer.h"

typedef enum sn_chat_family {
    SN_CHAT_NONE,    /* the model has no template */
    SN_CHAT_UNKNOWN, /* it has one of another family */
    SN_CHAT_CHATML,
    SN_CHAT_LLAMA3,
    SN_CHAT_MISTRAL,
    SN_CHAT_LLAMA2,
    SN_CHAT_GEMMA,
    SN_CHAT_PHI3,
} sn_chat_family;

typedef enum sn_chat_system {
    SN_CHAT_SYSTEM_NONE,  /* refused */
    SN_CHAT_SYSTEM_FIRST, /* before the text of the first user turn */
    SN_CHAT_SYSTEM_LAST,  /* before the text of the last user turn, when that is the last turn */
    SN_CHAT_SYSTEM_TURN,  /* a turn of its own: [SYSTEM_PROMPT] ... [/SYSTEM_PROMPT], <|system|> ... <|end|> */
} sn_chat_system;

enum { SN_CHAT_TEMPLATE_MAX = 1 << 18, SN_CHAT_TOKEN_MAX = 64, SN_CHAT_TURNS_MAX = 1 << 16 };

typedef struct sn_chat {
    sn_chat_family family;
    char bos[SN_CHAT_TOKEN_MAX]; /* written first, of Llama 2 before every question; empty where the template does not */
    char eos[SN_CHAT_TOKEN_MAX]; /* Mistral, Llama 2: behind an answer. Phi-3: at the end of a conversation, or empty */
    char *default_system;        /* ChatML: the system turn when there is none; NULL: none. Heap */
    bool drops_thoughts;         /* ChatML of Qwen3: answers before the last question lose their <think> part */
    bool trims;                  /* Llama 2, Llama 3, Gemma: white space around a text goes */
    bool asks_for_answer;        /* Phi-3: the opening of an answer is part of every question */
    bool skips_empty_system;     /* Phi-3.5 */
    char *system_head;           /* Llama 3.1: begins every system turn, which is then always written. Heap or NULL */
    /* Mistral; the space before an answer of Llama 2, too */
    bool space_before_open, space_behind_open, space_before_close, space_before_answer, space_behind_eos;
    bool trims_answers;
    sn_chat_system system; /* Gemma and Phi-3, too */
    bool needs_system; /* its default is made up at run time (today's date): the caller has to give one */
} sn_chat;

/* Reads the template; `bos` and `eos` are the texts of these tokens, "" when the model has none. */
sn_status sn_chat_read(sn_chat *chat, const char *text, size_t len, const char *bos, const char *eos,
                       sn_err *err) SN_MUST_USE;
void sn_chat_fini(sn_chat *chat);

/* As sn_tokenizer_chat. */
sn_status sn_chat_render(const sn_chat *chat, const sn_chat_turn *turns, size_t n_turns, bool first, bool open_answer,
                         sn_buf *out, sn_err *err) SN_MUST_USE;

#endif
