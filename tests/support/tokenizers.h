/* Tokenizers of the fixtures, and how they are compared with the reference's ids. Whatever fails here fails the test.
 */
#ifndef SN_TESTS_TOKENIZERS_H
#define SN_TESTS_TOKENIZERS_H

#include "model/tokenizer_parts.h"

#include <jansson.h>

/* A JSON file of the fixtures; `folder` may be "". The caller decrefs it. */
json_t *load_json(const char *folder, const char *name);
json_t *fixture_json(const char *name, const char *file); /* of tokenizer/name */
sn_tokenizer *open_fixture(const char *name);

/* These must succeed; the caller frees what they return. */
sn_ids encode(const sn_tokenizer *t, const char *text, size_t len, bool add_bos, bool parse_special);
sn_buf decode(const sn_tokenizer *t, const sn_ids *ids, bool with_special);

void same_ids(const sn_ids *ids, const json_t *expected, const char *what);
/* Texts and ids of a JSON array [{"text", "ids"}]. */
void same_as_expected(const sn_tokenizer *t, const json_t *list, bool add_bos, const char *name);
/* Encoded and decoded, the text is what it was. */
void survives(const sn_tokenizer *t, const char *text, size_t len, bool parse_special);

/* The tokenizer of files with this in them; any may be NULL. */
sn_status tokenizer_from_json(json_t *root, json_t *config, json_t *generation, const char *jinja, sn_tokenizer **out,
                              sn_err *err);
/* The same from the bytes of a GGUF file, which this frees. */
sn_status tokenizer_from_gguf(sn_buf bytes, sn_tokenizer **out, sn_err *err);
/* Puts `value` (JSON text; NULL removes) at a path like "model.vocab.a". */
void change_json(json_t *root, const char *path, const char *value);

/* Metadata of a GGUF file. */
void put_gguf_strings(sn_buf *b, const char *key, const char *const *items, size_t n);
void put_gguf_bool(sn_buf *b, const char *key, bool value);

double now_s(void);

#endif
