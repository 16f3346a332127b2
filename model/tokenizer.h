/* BPE over bytes, or over characters as SentencePiece has it: text to token ids and back, exactly as the model's own
 * tokenizer does it.
 *
 * Sennrich et al. 2016 (BPE), Radford et al. 2019 (bytes as the alphabet), Kudo & Richardson 2018 (SentencePiece). Read from
 * GGUF metadata or tokenizer.json.
 * Immutable once open; any thread may use it. */
#ifndef SN_MODEL_TOKENIZER_H
#define SN_MODEL_TOKENIZER_H

#include "base/err.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sn_tokenizer sn_tokenizer;

typedef struct sn_ids {
    int32_t *ids; /* heap; free with sn_ids_fini */
    size_t n;
} sn_ids;
void sn_ids_fini(sn_ids *ids);

/* `path` is what sn_model_open takes: a GGUF file, or a folder with tokenizer.json (and tokenizer_config.json). */
sn_status sn_tokenizer_open(const char *path, sn_tokenizer **out, sn_err *err) SN_MUST_USE;
void sn_tokenizer_close(sn_tokenizer **tokenizer); /* NULL-safe */

/* Special tokens written out in the text ("<|im_end|>") become their ids when parse_special, else they stay text. A
 * begin-of-sequence token is put first when add_bos, the model wants one, and the text does not write it out itself.
 * Text is at most SN_TEXT_MAX bytes; invalid UTF-8 is refused. A byte for which the vocabulary has no token (rare
 * control characters in SmolLM2) is left out, as the model's own tokenizer does; all other text survives encoding and
 * decoding (but for U+2581 in vocabularies of characters, which is a space there). */
enum { SN_TEXT_MAX = 64 << 20 };
sn_status sn_tokenizer_encode(const sn_tokenizer *tokenizer, const char *text, size_t len, bool add_bos,
                              bool parse_special, sn_ids *out, sn_err *err) SN_MUST_USE;

/* The same for text that goes on from other text: no token for the beginning, and no space before it where the model's
 * tokenizer would put one before a text. */
sn_status sn_tokenizer_encode_more(const sn_tokenizer *tokenizer, const char *text, size_t len, bool parse_special,
                                   sn_ids *out, sn_err *err) SN_MUST_USE;

/* Appends the bytes of one token (for a special token its text, or nothing when !with_special; nothing for an id that
 * only pads the vocabulary). Bytes of one token need not be whole UTF-8: a printer keeps the incomplete tail back
 * (sn_utf8_complete_prefix). SN_REFUSED for an id outside the vocabulary. */
sn_status sn_tokenizer_decode(const sn_tokenizer *tokenizer, int32_t id, bool with_special, sn_buf *out,
                              sn_err *err) SN_MUST_USE;

/* Whether a text that stands by itself, a whole one or the answer in a conversation, is decoded without the space that its
 * first token brings along, if it does (SentencePiece: "\u2581Hello"). Text that goes on from other text keeps it. */
bool sn_tokenizer_drops_lead(const sn_tokenizer *tokenizer);

int sn_tokenizer_n_vocab(const sn_tokenizer *tokenizer);
bool sn_tokenizer_is_end(const sn_tokenizer *tokenizer, int32_t id); /* end of text or of turn: generation stops */

typedef struct sn_chat_turn {
    const char *role; /* "system", "user" or "assistant" */
    const char *text;
} sn_chat_turn;

/* Renders a conversation by the model's chat template (of the families in chat.h, recognised from the file) and appends
 * the text to `out`, which sn_tokenizer_encode(..., add_bos, parse_special) then takes; `open_answer` ends it with the
 * opening of an assistant turn. `first` is false when the turns continue a conversation right behind the end token of
 * an answer: then no default system turn and no begin-of-sequence text is written, and the output begins with what the
 * template puts behind that token (a newline in ChatML). SN_REFUSED when the model has no template that is known. */
sn_status sn_tokenizer_chat(const sn_tokenizer *tokenizer, const sn_chat_turn *turns, size_t n_turns, bool first,
                            bool open_answer, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif
