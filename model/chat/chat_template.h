/* Chat templates: turns of a conversation as the text that the model was trained on.
 *
 * A model's template is a program in Jinja. It is not run: one of six families (ChatML, Llama 2, Llama 3, Mistral,
 * Gemma, Phi-3) is recognised by its markers, and what differs within a family (default system turn, spaces, trimming)
 * is read from the literals of the template. Central type: sn_chat_template, immutable once parsed; any thread may read
 * it. A template that is not recognised is no error until a conversation is rendered: then SN_REFUSED.
 *
 * chat_template_parse.c recognises, chat_template.c renders. */
#ifndef SN_MODEL_CHAT_CHAT_TEMPLATE_H
#define SN_MODEL_CHAT_CHAT_TEMPLATE_H

#include "model/tokenizer/tokenizer.h"

typedef struct sn_chat_turn {
    const char *role; /* "system", "user" or "assistant" */
    const char *text;
} sn_chat_turn;

typedef enum sn_chat_family {
    SN_CHAT_NONE,    /* the model has no template */
    SN_CHAT_UNKNOWN, /* the template is of no family below */
    SN_CHAT_CHATML,
    SN_CHAT_LLAMA3,
    SN_CHAT_MISTRAL,
    SN_CHAT_LLAMA2,
    SN_CHAT_GEMMA,
    SN_CHAT_PHI3,
} sn_chat_family;

/* Where the text of a system turn goes. */
typedef enum sn_chat_system {
    SN_CHAT_SYSTEM_NONE,  /* nowhere: a system turn is refused */
    SN_CHAT_SYSTEM_FIRST, /* before the text of the first user turn */
    SN_CHAT_SYSTEM_LAST,  /* before the text of the last user turn, when that is the last turn */
    SN_CHAT_SYSTEM_TURN,  /* a turn of its own: [SYSTEM_PROMPT] ... [/SYSTEM_PROMPT], <|system|> ... <|end|> */
} sn_chat_system;

enum { SN_CHAT_TURNS_MAX = 1 << 16 };

typedef struct sn_chat_template {
    sn_chat_family family;
    /* bos: written first; by Llama 2 before every user turn; empty where the template writes none. eos: written by
     * Mistral and Llama 2 after an assistant turn, by Phi-3 at the end of a conversation (or empty). */
    char bos[SN_CHAT_TOKEN_MAX], eos[SN_CHAT_TOKEN_MAX];
    char *default_system;       /* ChatML: text of the system turn when none is given; NULL: none. Heap */
    bool strips_thinking;       /* ChatML of Qwen3: assistant turns before the last user turn lose their <think> part */
    bool trims;                 /* Llama 2, Llama 3, Gemma: white space around a text is removed */
    bool question_opens_answer; /* Phi-3: the opening of an assistant turn is part of every user turn */
    bool skips_empty_system;    /* Phi-3.5 */
    char *system_prefix;        /* Llama 3.1: begins every system turn, which is then always written. Heap or NULL */
    /* Of Mistral: whether there is a space before "[INST]", after it, before "[/INST]", before an assistant turn (Llama
     * 2, too) and after eos; and whether assistant turns are trimmed. */
    bool space_before_open, space_after_open, space_before_close, space_before_answer, space_after_eos;
    bool trims_answers;
    sn_chat_system system; /* Mistral, Gemma, Phi-3 */
    bool needs_system;     /* the template computes its default (today's date): the caller has to give a system turn */
} sn_chat_template;

/* Recognises the template in `source` (len 0: none). Only SN_STOP: out of memory. */
sn_status sn_chat_template_parse(sn_chat_template *chat, const sn_chat_source *source, sn_err *err) SN_MUST_USE;
/* Recognises the template of the model that the tokenizer belongs to. */
sn_status sn_chat_template_init(sn_chat_template *chat, const sn_tokenizer *tokenizer, sn_err *err) SN_MUST_USE;
void sn_chat_template_fini(sn_chat_template *chat);

/* Appends the conversation to `out`, as text that sn_tokenizer_encode(..., add_bos, parse_special) takes.
 * add_generation_prompt: the text ends with the opening of an assistant turn. `first` is false when the turns continue
 * a conversation right after the end token of an assistant turn: then neither a default system turn nor a
 * begin-of-sequence text is written, and the output begins with what the template puts after that token (a newline in
 * ChatML). SN_REFUSED when the template is not known, or does not allow these turns. */
sn_status sn_chat_template_render(const sn_chat_template *chat, const sn_chat_turn *turns, size_t n_turns, bool first,
                                  bool add_generation_prompt, sn_buf *out, sn_err *err) SN_MUST_USE;

/* init, render, fini: for a caller that renders now and then. */
sn_status sn_chat_template_apply(const sn_tokenizer *tokenizer, const sn_chat_turn *turns, size_t n_turns, bool first,
                                 bool add_generation_prompt, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif
