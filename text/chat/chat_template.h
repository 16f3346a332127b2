/* Chat templates: a conversation as the text, and the token ids, that the model was trained on.
 *
 * A model's files hold the template (tokenizer.chat_template of a GGUF file; chat_template.jinja, or chat_template of
 * tokenizer_config.json, in a folder), a program in Jinja that text/jinja runs. It sees what transformers would give
 * it: messages, tools, documents, add_generation_prompt, bos_token, eos_token, and the caller's own variables.
 *
 * What the template writes may be special tokens. What comes out of the conversation never is: "<|im_end|>" in a
 * message stays text, whatever the template does with the message. Only the role of a message counts as the template's
 * own text, if it is one of the well-known ones, because templates write "<|" + role + "|>". (Tokens of the vocabulary
 * that the model's files do not call special, such as "<think>" in some models, are ordinary text and may come from a
 * message.)
 *
 * Central type: sn_chat_template, immutable once parsed; any thread may use it. Errors are SN_REFUSED with a sentence:
 * the model has no template, the template is wrong (with its line), or it refuses the conversation. */
#ifndef SN_TEXT_CHAT_CHAT_TEMPLATE_H
#define SN_TEXT_CHAT_CHAT_TEMPLATE_H

#include "text/tokenizer/tokenizer.h"

#include <jansson.h>

typedef struct sn_chat_template sn_chat_template;

/* Parses the templates of a source. SN_REFUSED when it has none. */
sn_status sn_chat_template_parse(const sn_chat_source *source, sn_chat_template **out, sn_err *err) SN_MUST_USE;
/* Parses the templates of the model that the tokenizer belongs to. */
sn_status sn_chat_template_open(const sn_tokenizer *tokenizer, sn_chat_template **out, sn_err *err) SN_MUST_USE;
void sn_chat_template_close(sn_chat_template **chat); /* accepts NULL */

/* What is rendered; all is borrowed. */
typedef struct sn_chat_request {
    const json_t *messages;    /* an array of {"role", "content", ...}, as templates expect it */
    const json_t *tools;       /* an array of {"type": "function", "function": {...}}; NULL: none */
    const json_t *variables;   /* an object of further variables ("enable_thinking"); NULL: none */
    bool no_generation_prompt; /* the text ends behind the last message, without the opening of an answer */
} sn_chat_request;

typedef struct sn_chat_prompt {
    char *text;     /* heap, `len` bytes and a NUL */
    uint8_t *marks; /* heap, (len): bit 0 is set where the byte comes from the request */
    size_t len;
} sn_chat_prompt;
void sn_chat_prompt_fini(sn_chat_prompt *prompt);

enum { SN_CHAT_MESSAGES_MAX = 1 << 16 };
sn_status sn_chat_template_render(const sn_chat_template *chat, const sn_chat_request *request, sn_chat_prompt *out,
                                  sn_err *err) SN_MUST_USE;

/* Renders and tokenizes. The token ids begin with the begin-of-sequence token if the model wants one, whether the
 * template writes it or not. Free *out with sn_token_ids_fini. */
sn_status sn_chat_template_encode(const sn_chat_template *chat, const sn_tokenizer *tokenizer,
                                  const sn_chat_request *request, sn_token_ids *out, sn_err *err) SN_MUST_USE;

#endif
