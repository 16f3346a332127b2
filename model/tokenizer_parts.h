/* What a tokenizer is made of; for the files that build it. */
#ifndef SN_MODEL_TOKENIZER_PARTS_H
#define SN_MODEL_TOKENIZER_PARTS_H

#include "model/added.h"
#include "model/chat.h"
#include "model/gguf.h"
#include "model/pretokenizer.h"
#include "model/tokenizer.h"
#include "model/vocab.h"

enum { SN_TOKENIZER_PASSES = 2, SN_END_IDS_MAX = 32 };

/* Whether a space is put before what lies between added tokens; of vocabularies of characters. */
typedef enum sn_lead {
    SN_LEAD_NEVER,
    SN_LEAD_ALWAYS,     /* before each such part (a normalizer "Prepend") */
    SN_LEAD_UNLESS,     /* before each that does not begin with one ("Metaspace" with "always") */
    SN_LEAD_FIRST_ONLY, /* the same, at the beginning of the text only ("Metaspace" with "first") */
} sn_lead;

struct sn_tokenizer {
    sn_vocab vocab;
    sn_pretokenizer *pretokenizer;
    /* Added tokens are looked for in two passes over the text, the second in what the first left: those that a
     * tokenizer.json does not normalise, then those that it does. */
    sn_added added[SN_TOKENIZER_PASSES];
    bool whole_words; /* a piece that is a token is taken as it stands */
    sn_lead lead;
    bool marks_early;      /* spaces become U+2581 before the second pass, not behind it */
    bool drops_lead;       /* decoding leaves a space at the beginning of a text out */
    int32_t bos;      /* -1: the model has none */
    bool add_bos;
    int32_t end_ids[SN_END_IDS_MAX];
    size_t n_end_ids;
    sn_chat chat;
};

sn_status sn_tokenizer_new(sn_tokenizer **out, sn_err *err) SN_MUST_USE;

/* Gives a token to the vocabulary and to the pass that looks for it; kind is not SN_TOKEN_NORMAL. */
sn_status sn_tokenizer_put_added(sn_tokenizer *tokenizer, int pass, const sn_added_token *token,
                                 sn_err *err) SN_MUST_USE;
/* Ids outside the vocabulary and ids that are there already are left out. */
void sn_tokenizer_put_end(sn_tokenizer *tokenizer, int64_t id);
/* Ends the building: sorts, and takes tokens of well-known names for end tokens. */
sn_status sn_tokenizer_finish(sn_tokenizer *tokenizer, sn_err *err) SN_MUST_USE;

/* The tokenizer in a GGUF file's metadata. */
sn_status sn_tokenizer_from_gguf(const sn_gguf *gguf, sn_tokenizer **out, sn_err *err) SN_MUST_USE;

/* Texts of a folder's files; those that are not there are zeroed, tokenizer.json must be. */
typedef struct sn_tokenizer_files {
    sn_buf tokenizer;         /* tokenizer.json */
    sn_buf tokenizer_config;  /* tokenizer_config.json: texts of bos and eos, chat template */
    sn_buf generation_config; /* generation_config.json: ids that end a generation */
    sn_buf chat_template;     /* chat_template.jinja, where newer folders have it */
} sn_tokenizer_files;
sn_status sn_tokenizer_from_files(const sn_tokenizer_files *files, sn_tokenizer **out, sn_err *err) SN_MUST_USE;

#endif
