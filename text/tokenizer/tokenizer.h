/* Tokenizers: text to token ids and back, exactly as the model's own tokenizer does it.
 *
 * Two kinds of byte pair encoding (Sennrich et al. 2016), byte-level (Radford et al. 2019) and SentencePiece's (Kudo &
 * Richardson 2018), which merges characters; and SentencePiece's unigram model. Central type: sn_tokenizer, read from
 * GGUF metadata or the files of a folder, immutable once open; any thread may use it. The caller owns it and all texts
 * and ids that it gets. SN_REFUSED for files and texts that cannot be handled exactly; SN_STOP when memory is out. */
#ifndef SN_TEXT_TOKENIZER_TOKENIZER_H
#define SN_TEXT_TOKENIZER_TOKENIZER_H

#include "base/err.h"
#include "base/mem.h"
#include "text/tokenizer/ids.h"

#include <stdbool.h>

typedef struct sn_tokenizer sn_tokenizer;

/* `path` is what sn_model_open takes: a GGUF file, or a folder with tokenizer.json, tiktoken.model,
 * tekken.json or tokenizer.model, of which the first counts (and tokenizer_config.json). */
sn_status sn_tokenizer_open(const char *path, sn_tokenizer **out, sn_err *err) SN_MUST_USE;
void sn_tokenizer_close(sn_tokenizer **tokenizer); /* accepts NULL */

/* Encodes a text. parse_special: special tokens written out in the text ("<|im_end|>") become their ids, else they stay
 * text. add_bos: a begin-of-sequence token comes first if the model wants one and the text does not begin with one. The
 * text has at most SN_TEXT_MAX bytes of valid UTF-8. A byte for which the vocabulary has no token (rare control
 * characters in SmolLM2) is left out, as the model's own tokenizer does; all other text survives encoding and decoding,
 * except that U+2581 becomes a space with SentencePiece, and that a tokenizer may change characters, fold spaces, and
 * have one unknown token for what it lacks. */
enum { SN_TEXT_MAX = 64 << 20 };
sn_status sn_tokenizer_encode(const sn_tokenizer *tokenizer, const char *text, size_t len, bool add_bos,
                              bool parse_special, sn_token_ids *out, sn_err *err) SN_MUST_USE;

/* As sn_tokenizer_encode, for text that continues other text: without a begin-of-sequence token, and without the space
 * that the model's tokenizer may put before a text. */
sn_status sn_tokenizer_encode_continuation(const sn_tokenizer *tokenizer, const char *text, size_t len,
                                           bool parse_special, sn_token_ids *out, sn_err *err) SN_MUST_USE;

/* As sn_tokenizer_encode with parse_special, except that no special token and no EOG token holds a byte i with bit 0 of
 * plain[i] set: there they stay text. plain: (len). */
sn_status sn_tokenizer_encode_marked(const sn_tokenizer *tokenizer, const char *text, size_t len, const uint8_t *plain,
                                     bool add_bos, sn_token_ids *out, sn_err *err) SN_MUST_USE;

/* Appends the bytes of one token. For a special token these are its text, or nothing without with_special; an id that
 * only pads the vocabulary has none. The bytes of one token need not be whole UTF-8: code that prints them holds back
 * the incomplete tail (sn_utf8_complete_prefix). SN_REFUSED for an id outside the vocabulary. */
sn_status sn_tokenizer_decode(const sn_tokenizer *tokenizer, int32_t id, bool with_special, sn_buf *out,
                              sn_err *err) SN_MUST_USE;

/* Whether decoding drops a space at the beginning of a whole text or of an assistant turn (SentencePiece: the first
 * token is "\u2581Hello"). Text that continues other text keeps the space. */
bool sn_tokenizer_strips_space(const sn_tokenizer *tokenizer);

int sn_tokenizer_n_vocab(const sn_tokenizer *tokenizer);
bool sn_tokenizer_is_eog(const sn_tokenizer *tokenizer, int32_t id); /* end of generation: of text or of turn */

/* The chat templates of the model's files, as they stand there; text/chat renders them. */
enum { SN_CHAT_TEMPLATE_MAX = 1 << 18, SN_CHAT_TOKEN_MAX = 64 };
typedef struct sn_chat_source {
    const char *text;      /* Jinja; `len` bytes. NULL: the model has no template. Borrowed from the tokenizer */
    size_t len;            /* above SN_CHAT_TEMPLATE_MAX: the template is longer than what is kept of it */
    const char *tool_text; /* the template that is meant for conversations with tools; NULL: `text` is for both */
    size_t tool_len;
    const char *bos, *eos; /* the texts of these tokens, "" where the model has none */
} sn_chat_source;
sn_chat_source sn_tokenizer_chat_source(const sn_tokenizer *tokenizer);

#endif
