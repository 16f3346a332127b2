/* How a model writes its answers: where it thinks, where it calls tools, and where its text is.
 *
 * Nothing but the chat template says it, and the template says it by example: sn_answer_format_open renders
 * conversations with a thought and with calls of known names and values, and takes what stands around these as the
 * marks of the format. Recognised are calls as JSON ({"name", "arguments"}, alone or in a list, or {NAME: arguments}),
 * a name followed by JSON, a name followed by tagged arguments, and channels (gpt-oss). Other templates have no tool
 * calls.
 *
 * sn_answer_read takes an answer apart, also while it is generated: of a longer beginning of the same answer, each text
 * (thought, content, the arguments of a call) continues that of a shorter one, so what was added can be streamed.
 *
 * Central type: sn_answer_format, immutable once open; any thread may use it. Errors: SN_REFUSED for an answer that is
 * not UTF-8; SN_STOP: out of memory. */
#ifndef SN_TEXT_CHAT_ANSWER_FORMAT_H
#define SN_TEXT_CHAT_ANSWER_FORMAT_H

#include "text/chat/chat_template.h"

typedef struct sn_answer_format sn_answer_format;

sn_status sn_answer_format_open(const sn_chat_template *chat, sn_answer_format **out, sn_err *err) SN_MUST_USE;
void sn_answer_format_close(sn_answer_format **format); /* accepts NULL */
/* Whether an answer to this prompt (len bytes) begins within a thought. */
bool sn_answer_format_prompt_thinks(const sn_answer_format *format, const char *prompt, size_t len);

/* The marks as JSON, as swarm_model_answer_marks gives them; NULL: memory is out. */
json_t *sn_answer_format_marks(const sn_answer_format *format);

/* An answer or its beginning. All is borrowed. */
typedef struct sn_answer {
    const char *text; /* (len), with special tokens spelled out */
    const uint8_t
        *special; /* (len): not 0 where the byte belongs to a special token, which is no content. NULL: none */
    size_t len;
    bool thinks;         /* it begins within a thought */
    bool ended;          /* nothing follows */
    const json_t *tools; /* of the request; NULL: no tools, and nothing is read as a call */
} sn_answer;

/* *out: {"role": "assistant", "content": TEXT}, and where there are any "reasoning_content": TEXT and "tool_calls":
 * [{"type": "function", "function": {"name", "arguments": TEXT}}]; the arguments of the last call may be a beginning.
 */
sn_status sn_answer_read(const sn_answer_format *format, const sn_answer *answer, json_t **out,
                         sn_err *err) SN_MUST_USE;

/* The same for an answer that grows: after each addition the reader has what sn_answer_read gives of all of it. Borrows
 * the format. */
typedef struct sn_answer_reader sn_answer_reader;
sn_status sn_answer_reader_open(const sn_answer_format *format, bool thinks, const json_t *tools,
                                sn_answer_reader **out, sn_err *err) SN_MUST_USE;
void sn_answer_reader_close(sn_answer_reader **reader); /* accepts NULL */
/* text (len), special (len, NULL: none): what follows. After `ended` nothing can be added. */
sn_status sn_answer_reader_add(sn_answer_reader *reader, const char *text, const uint8_t *special, size_t len,
                               bool ended, sn_err *err) SN_MUST_USE;
/* Borrowed until the next addition. */
const char *sn_answer_reader_content(const sn_answer_reader *reader, size_t *len);
const char *sn_answer_reader_thought(const sn_answer_reader *reader, size_t *len);
size_t sn_answer_reader_calls(const sn_answer_reader *reader);
const char *sn_answer_reader_name(const sn_answer_reader *reader, size_t call, size_t *len);
const char *sn_answer_reader_arguments(const sn_answer_reader *reader, size_t call, size_t *len);
/* A new reference; NULL: the answer is not UTF-8, or memory is out. */
json_t *sn_answer_reader_json(const sn_answer_reader *reader);

#endif
