/* The parts of tokenizer.json (https://huggingface.co/docs/tokenizers) around its model: what is done to text before, how it is
 * cut, and how tokens become text again. */
#ifndef SN_MODEL_TOKENIZER_JSON_H
#define SN_MODEL_TOKENIZER_JSON_H

#include "model/tokenizer_parts.h"

#include <jansson.h>

/* Whether the file is of byte-level BPE, by its pre_tokenizer and decoder; else it is taken for SentencePiece's kind. */
bool sn_tokenizer_json_is_byte_level(const json_t *root);

/* Adds the steps of "pre_tokenizer". SN_REFUSED for what is not known, and for one that does not fit the vocabulary:
 * byte-level where that is of bytes; where it is of characters, one that leaves spaces as they are with a normalizer that
 * does so, too. */
sn_status sn_tokenizer_json_steps(sn_tokenizer *t, const json_t *value, sn_err *err) SN_MUST_USE;

/* Of vocabularies of characters: "normalizer" and "decoder". SN_REFUSED for what is not known. */
sn_status sn_tokenizer_json_normalizer(sn_tokenizer *t, const json_t *value, sn_err *err) SN_MUST_USE;
sn_status sn_tokenizer_json_decoder(sn_tokenizer *t, const json_t *value, sn_err *err) SN_MUST_USE;

/* A member that is a string or a bool; `missing` when it is absent, null or something else. */
const char *sn_json_string(const json_t *object, const char *key, const char *missing);
bool sn_json_bool(const json_t *object, const char *key, bool missing);

#endif
