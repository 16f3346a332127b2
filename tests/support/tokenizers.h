/* Tokenizers of the fixtures, and comparisons with the reference's ids. Every failure here fails the test. */
#ifndef SN_TESTS_TOKENIZERS_H
#define SN_TESTS_TOKENIZERS_H

#include "text/tokenizer/tokenizer_private.h" /* private: vocabularies and rules without a file around them */

#include <jansson.h>

/* Loads a JSON file of the fixtures; `folder` may be "". The caller calls json_decref. */
json_t *load_json(const char *folder, const char *name);
json_t *fixture_json(const char *name, const char *file); /* of tokenizer/name */
sn_tokenizer *open_fixture(const char *name);

/* Both must succeed; the caller frees the result. */
sn_token_ids encode(const sn_tokenizer *t, const char *text, size_t len, bool add_bos, bool parse_special);
sn_buf decode(const sn_tokenizer *t, const sn_token_ids *ids, bool with_special);

void expect_same_ids(const sn_token_ids *ids, const json_t *expected, const char *what);
/* Texts and ids of a JSON array [{"text", "ids"}]. */
void expect_encodings(const sn_tokenizer *t, const json_t *list, bool add_bos, const char *name);
/* The text is the same after it was encoded and decoded. */
void expect_round_trip(const sn_tokenizer *t, const char *text, size_t len, bool parse_special);

/* The tokenizer of files with these contents; any of them may be NULL. */
sn_status tokenizer_from_json(json_t *root, json_t *config, json_t *generation, const char *jinja, sn_tokenizer **out,
                              sn_err *err);
/* The same from the bytes of a GGUF file; frees the bytes. */
sn_status tokenizer_from_gguf(sn_buf bytes, sn_tokenizer **out, sn_err *err);
/* Puts `value` (JSON text; NULL removes) at a path like "model.vocab.a". */
void change_json(json_t *root, const char *path, const char *value);

/* Metadata of a GGUF file. */
void put_gguf_strings(sn_buf *b, const char *key, const char *const *items, size_t n);
void put_gguf_bool(sn_buf *b, const char *key, bool value);

double now_s(void);

#endif
