/* The struct of a tokenizer, for the files that build it: tokenizer_load.c opens files, tokenizer_gguf.c and
 * tokenizer_json*.c, tokenizer_tiktoken.c, tokenizer_tekken.c and
 * tokenizer_spm.c read them, tokenizer.c encodes and decodes. */
#ifndef SN_TEXT_TOKENIZER_TOKENIZER_PRIVATE_H
#define SN_TEXT_TOKENIZER_TOKENIZER_PRIVATE_H

#include "text/tokenizer/added_tokens.h"
#include "model/gguf.h"
#include "text/tokenizer/normal_form.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/spm_text.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/unigram.h"
#include "text/tokenizer/vocab.h"

enum { SN_TOKENIZER_PASSES = 2, SN_EOG_IDS_MAX = 32, SN_NORMAL_FORMS_MAX = 4 };

/* SentencePiece: which parts of the text, between added tokens, get a space before them. */
typedef enum sn_prepend_scheme {
    SN_PREPEND_NEVER,
    SN_PREPEND_ALWAYS,       /* each part (normalizer "Prepend") */
    SN_PREPEND_UNLESS_SPACE, /* each part that does not begin with a space ("Metaspace" with "always") */
    SN_PREPEND_FIRST,        /* the first part, unless it begins with a space ("Metaspace" with "first") */
} sn_prepend_scheme;

struct sn_tokenizer {
    sn_vocab vocab;
    sn_pretokenizer *pretokenizer;
    /* Added tokens are found in two passes over the text: first those that tokenizer.json does not normalise, then, in
     * the parts between them, those that it does. */
    sn_added_tokens added[SN_TOKENIZER_PASSES];
    bool ignore_merges; /* a piece that is a token becomes that token, whatever the merges say */
    sn_prepend_scheme prepend;
    sn_normal_form forms[SN_NORMAL_FORMS_MAX]; /* that a text is brought to before the second pass, in this order */
    size_t n_forms;
    sn_spm_text *rules;  /* heap: instead of prepend, forms and escapes_early, those of a tokenizer.model; else NULL */
    sn_unigram *unigram; /* heap: a text's pieces are not merged, but chosen by this; else NULL */
    bool escapes_early;  /* spaces become U+2581 before the second pass, not after it */
    bool strips_space;   /* sn_tokenizer_strips_space */
    int32_t bos;         /* id of the begin-of-sequence token; -1: the model has none */
    bool add_bos;
    int32_t eog_ids[SN_EOG_IDS_MAX];
    size_t n_eog_ids;
    char *chat_template, *tool_template; /* heap, of these lengths; NULL: the model has none */
    size_t chat_template_len, tool_template_len;
    char bos_text[SN_CHAT_TOKEN_MAX], eos_text[SN_CHAT_TOKEN_MAX];
};

sn_status sn_tokenizer_new(sn_tokenizer **out, sn_err *err) SN_MUST_USE;

/* Adds an added token to the vocabulary and to the pass that finds it. */
sn_status sn_tokenizer_add_token(sn_tokenizer *tokenizer, int pass, const sn_added_token *token,
                                 sn_err *err) SN_MUST_USE;
/* Adds an id that ends generation; ignores ids outside the vocabulary and ids that are there already. */
void sn_tokenizer_add_eog(sn_tokenizer *tokenizer, int64_t id);
/* Keeps copies of the model's chat templates (of length 0: none) and of the texts of the two tokens. */
sn_status sn_tokenizer_set_chat_source(sn_tokenizer *tokenizer, const sn_chat_source *source, sn_err *err) SN_MUST_USE;
/* Call last: sorts the added tokens, and adds tokens of well-known names to the ids that end generation. */
sn_status sn_tokenizer_finish(sn_tokenizer *tokenizer, sn_err *err) SN_MUST_USE;

/* Builds the tokenizer from a GGUF file's metadata. */
sn_status sn_tokenizer_from_gguf(const sn_gguf *gguf, sn_tokenizer **out, sn_err *err) SN_MUST_USE;

/* The contents of a folder's files. Files that are missing are zeroed; one of the first four is
 * required, and goes before those behind it. */
typedef struct sn_tokenizer_files {
    sn_buf tokenizer;         /* tokenizer.json */
    sn_buf tiktoken;          /* tiktoken.model */
    sn_buf tekken;            /* tekken.json */
    sn_buf sentencepiece;     /* tokenizer.model */
    sn_buf added_tokens;      /* added_tokens.json: tokens and ids beside tokenizer.model, in older folders */
    sn_buf tokenizer_config;  /* tokenizer_config.json: texts of bos and eos, chat template */
    sn_buf generation_config; /* generation_config.json: ids that end generation */
    sn_buf chat_template;     /* chat_template.jinja of newer folders; goes before tokenizer_config's */
    sn_buf tool_template;     /* additional_chat_templates/tool_use.jinja, the same */
} sn_tokenizer_files;
/* Builds the tokenizer from the files of a Hugging Face folder. */
sn_status sn_tokenizer_from_files(const sn_tokenizer_files *files, sn_tokenizer **out, sn_err *err) SN_MUST_USE;

#endif
