#include "tests/support/tokenizers.h"

#include "tests/support/require.h"

#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

json_t *load_json(const char *folder, const char *name) {
    char path[1024];
    json_error_t parse_error;
    snprintf(path, sizeof path, "%s/%s%s%s", SN_FIXTURES, folder, *folder ? "/" : "", name);
    json_t *value = json_load_file(path, 0, &parse_error);
    cr_assert(value, "%s: %s", path, parse_error.text);
    return value;
}

json_t *fixture_json(const char *name, const char *file) {
    char folder[128];
    snprintf(folder, sizeof folder, "tokenizer/%s", name);
    return load_json(folder, file);
}

sn_tokenizer *open_fixture(const char *name) {
    char path[1024];
    sn_tokenizer *t;
    sn_err err;
    snprintf(path, sizeof path, "%s/tokenizer/%s", SN_FIXTURES, name);
    cr_assert_eq(sn_tokenizer_open(path, &t, &err), SN_OK, "%s", err.text);
    return t;
}

sn_token_ids encode(const sn_tokenizer *t, const char *text, size_t len, bool add_bos, bool parse_special) {
    sn_token_ids ids;
    sn_err err;
    cr_assert_eq(sn_tokenizer_encode(t, text, len, add_bos, parse_special, &ids, &err), SN_OK, "%s", err.text);
    return ids;
}

void expect_same_ids(const sn_token_ids *ids, const json_t *expected, const char *what) {
    cr_assert_eq(ids->n, json_array_size(expected), "%s: %zu tokens, expected %zu", what, ids->n,
                 json_array_size(expected));
    for (size_t i = 0; i < ids->n; i++)
        cr_assert_eq(ids->ids[i], json_integer_value(json_array_get(expected, i)), "%s: token %zu", what, i);
}

void expect_encodings(const sn_tokenizer *t, const json_t *list, bool add_bos, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *text = json_object_get(item, "text");
        char what[600];
        snprintf(what, sizeof what, "%s: '%.500s'", name, json_string_value(text));
        sn_token_ids ids = encode(t, json_string_value(text), json_string_length(text), add_bos, true);
        expect_same_ids(&ids, json_object_get(item, "ids"), what);
        sn_token_ids_fini(&ids);
    }
}

sn_buf decode(const sn_tokenizer *t, const sn_token_ids *ids, bool with_special) {
    sn_buf out;
    sn_err err;
    sn_buf_init(&out, 1 << 28);
    for (size_t i = 0; i < ids->n; i++)
        cr_assert_eq(sn_tokenizer_decode(t, ids->ids[i], with_special, &out, &err), SN_OK, "%s", err.text);
    return out;
}

void expect_round_trip(const sn_tokenizer *t, const char *text, size_t len, bool parse_special) {
    sn_token_ids ids = encode(t, text, len, false, parse_special);
    sn_buf back = decode(t, &ids, true);
    cr_assert_eq(back.len, len);
    cr_assert(len == 0 || !memcmp(back.data, text, len));
    sn_buf_fini(&back);
    sn_token_ids_fini(&ids);
}

static sn_buf dump_json(json_t *value) {
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    return (sn_buf){.data = (uint8_t *)text, .len = text ? strlen(text) : 0};
}

sn_status tokenizer_from_json(json_t *root, json_t *config, json_t *generation, const char *jinja, sn_tokenizer **out,
                              sn_err *err) {
    sn_tokenizer_files files = {.tokenizer = dump_json(root),
                                .tokenizer_config = dump_json(config),
                                .generation_config = dump_json(generation)};
    if (jinja) files.chat_template = (sn_buf){.data = (uint8_t *)strdup(jinja), .len = strlen(jinja)};
    sn_status status = sn_tokenizer_from_files(&files, out, err);
    free(files.tokenizer.data);
    free(files.tokenizer_config.data);
    free(files.generation_config.data);
    free(files.chat_template.data);
    return status;
}

sn_status tokenizer_from_gguf(sn_buf bytes, sn_tokenizer **out, sn_err *err) {
    sn_gguf *gguf;
    cr_assert_eq(sn_gguf_open_memory(bytes.data, bytes.len, "made", &gguf, err), SN_OK, "%s", err->text);
    sn_status status = sn_tokenizer_from_gguf(gguf, out, err);
    sn_gguf_close(&gguf);
    sn_buf_fini(&bytes);
    return status;
}

void change_json(json_t *root, const char *path, const char *value) {
    char key[64];
    json_t *at = root;
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        at = json_is_array(at) ? json_array_get(at, (size_t)require_int(key, 0, 1 << 20)) : json_object_get(at, key);
        cr_assert(at, "no %s", key);
    }
    json_t *new_value = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    cr_assert(!value || new_value, "%s", value);
    if (!value)
        json_object_del(at, path);
    else if (json_is_array(at))
        json_array_set_new(at, (size_t)require_int(path, 0, 1 << 20), new_value);
    else
        json_object_set_new(at, path, new_value);
}

void put_gguf_strings(sn_buf *b, const char *key, const char *const *items, size_t n) {
    put_gguf_key(b, key, SN_GGUF_ARRAY);
    put_u32(b, SN_GGUF_STRING);
    put_u64(b, n);
    for (size_t i = 0; i < n; i++) put_gguf_string(b, items[i]);
}

void put_gguf_bool(sn_buf *b, const char *key, bool value) {
    put_gguf_key(b, key, SN_GGUF_BOOL);
    put_bytes(b, &(uint8_t){value}, 1);
}

double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
