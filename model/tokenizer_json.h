/* The parts of tokenizer.json that say how text is cut (https://huggingface.co/docs/tokenizers): the pre_tokenizer. */
#ifndef SN_MODEL_TOKENIZER_JSON_H
#define SN_MODEL_TOKENIZER_JSON_H

#include "model/tokenizer_parts.h"

#include <jansson.h>

/* Adds the steps of "pre_tokenizer". SN_REFUSED for what is not known, and for one that is not byte-level. */
sn_status sn_tokenizer_json_steps(const json_t *value, sn_pretokenizer *pretokenizer, sn_err *err) SN_MUST_USE;

/* A member that is a string or a bool; `missing` when it is absent, null or something else. */
const char *sn_json_string(const json_t *object, const char *key, const char *missing);
bool sn_json_bool(const json_t *object, const char *key, bool missing);

#endif
