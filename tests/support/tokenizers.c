#include "tests/support/tokenizers.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

json_t *load_json(const char *folder, const char *name) {
    char path[1024];
    json_error_t why;
    snprintf(path, sizeof path, "%s/%s%s%s", SN_FIXTURES, folder, *folder ? "/" : "", name);
    json_t *value = json_load_file(path, 0, &why);
    cr_assert(value, "%s: %s", path, why.text);
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

sn_ids encode(const sn_tokenizer *t, const char *text, size_t len, bool add_bos, bool parse_special) {
    sn_ids ids;
    sn_err err;
    cr_assert_eq(sn_tokenizer_encode(t, text, len, add_bos, parse_special, &ids, &err), SN_OK, "%s", err.text);
    return ids;
}

void same_ids(const sn_ids *ids, const json_t *expected, const char *what) {
    cr_assert_eq(ids->n, json_array_size(expected), "%s: %zu tokens, expected %zu", what, ids->n,
                 json_array_size(expected));
    for (size_t i = 0; i < ids->n; i++)
        cr_assert_eq(ids->ids[i], json_integer_value(json_array_get(expected, i)), "%s: token %zu", what, i);
}

void same_as_expected(const sn_tokenizer *t, const json_t *list, bool add_bos, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *text = json_object_get(item, "text");
        char what[600];
        snprintf(what, sizeof what, "%s: '%.500s'", name, json_string_value(text));
        sn_ids ids = encode(t, json_string_value(text), json_string_length(text), add_bos, true);
        same_ids(&ids, json_object_get(item, "ids"), what);
        sn_ids_fini(&ids);
    }
}

sn_buf decode(const sn_tokenizer *t, const sn_ids *ids, bool with_special) {
    sn_buf out;
    sn_err err;
    sn_buf_init(&out, 1 << 28);
    for (size_t i = 0; i < ids->n; i++)
        cr_assert_eq(sn_tokenizer_decode(t, ids->ids[i], with_special, &out, &err), SN_OK, "%s", err.text);
    return out;
}

void survives(const sn_tokenizer *t, const char *text, size_t len, bool parse_special) {
    sn_ids ids = encode(t, text, len, false, parse_special);
    sn_buf back = decode(t, &ids, true);
    cr_assert_eq(back.len, len);
    cr_assert(len == 0 || !memcmp(back.data, text, len));
    sn_buf_fini(&back);
    sn_ids_fini(&ids);
}

double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
