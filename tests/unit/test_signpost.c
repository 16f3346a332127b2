#include "net/signpost.h"

#include "base/text.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOW = 1000000 };

static void must(sn_status status, const sn_err *err) { cr_assert_eq(status, SN_OK, "%s", err->text); }

static sn_signpost make(const sn_identity *identity) {
    sn_signpost post = {.address = "tcp://192.0.2.7:31330", .expires_unix_ms = NOW + SN_SIGNPOST_LIFE_MS};
    memcpy(post.node, identity->id, SN_KEY_SIZE);
    memcpy(post.curve_key, identity->curve_key, SN_KEY_SIZE);
    memset(post.model, 7, SN_KEY_SIZE);
    return post;
}

static sn_buf seal(const sn_signpost *post, const sn_identity *identity) {
    sn_err err = {0};
    sn_buf out;
    sn_buf_init(&out, SN_SIGNPOST_SIZE_MAX);
    must(sn_signpost_seal(post, identity, &out, &err), &err);
    return out;
}

static void refuses(const sn_buf *sealed, size_t len, int64_t now, const uint8_t *model, const char *words) {
    sn_signpost back;
    sn_err err = {0};
    cr_assert_eq(sn_signpost_open(sealed->data, len, model, now, &back, &err), SN_REFUSED);
    cr_assert(strstr(err.text, words), "'%s' is not about '%s'", err.text, words);
}

Test(signpost, is_opened_as_it_was_sealed_and_only_for_its_model_and_time) {
    sn_err err = {0};
    sn_identity identity;
    must(sn_identity_new(&identity, &err), &err);
    sn_signpost post = make(&identity), back;
    sn_buf sealed = seal(&post, &identity);
    uint8_t other[SN_KEY_SIZE] = {1};
    must(sn_signpost_open(sealed.data, sealed.len, post.model, NOW, &back, &err), &err);
    cr_assert_str_eq(back.address, post.address);
    cr_assert_arr_eq(back.curve_key, post.curve_key, SN_KEY_SIZE);
    refuses(&sealed, sealed.len, NOW, other, "another model");
    refuses(&sealed, sealed.len, NOW + SN_SIGNPOST_LIFE_MS, post.model, "expired");
    refuses(&sealed, sealed.len, NOW - (SN_SIGNPOST_LIFE_MS_MAX - SN_SIGNPOST_LIFE_MS) - 1, post.model, "ahead");
    for (size_t i = 0; i < sealed.len; i++) { /* any changed byte, any cut */
        sealed.data[i] ^= 0x10;
        cr_assert_eq(sn_signpost_open(sealed.data, sealed.len, post.model, NOW, &back, &err), SN_REFUSED, "byte %zu", i);
        sealed.data[i] ^= 0x10;
        cr_assert_eq(sn_signpost_open(sealed.data, i, post.model, NOW, &back, &err), SN_REFUSED, "length %zu", i);
    }
    sn_buf_fini(&sealed);
}

Test(signpost, is_signed_by_the_node_that_it_names) {
    sn_err err = {0};
    sn_identity identity, liar;
    must(sn_identity_new(&identity, &err), &err);
    must(sn_identity_new(&liar, &err), &err);
    sn_signpost post = make(&identity);
    sn_buf sealed = seal(&post, &liar);
    refuses(&sealed, sealed.len, NOW, post.model, "signature");
    sn_buf_fini(&sealed);
    snprintf(post.address, sizeof post.address, "nonsense");
    sn_buf_init(&sealed, SN_SIGNPOST_SIZE_MAX);
    cr_assert_eq(sn_signpost_seal(&post, &identity, &sealed, &err), SN_REFUSED);
    cr_assert_eq(sealed.len, 0);
    sn_buf_fini(&sealed);
}

/* For the fuzz target. SN_WRITE_CORPUS=1 makes it anew. */
Test(signpost, stands_in_the_corpus) {
    static const char *const path = SN_FIXTURES "/../fuzz/corpus/signpost/one";
    sn_err err = {0};
    if (getenv("SN_WRITE_CORPUS")) {
        sn_identity identity;
        must(sn_identity_new(&identity, &err), &err);
        sn_signpost post = make(&identity);
        sn_buf sealed = seal(&post, &identity);
        FILE *file = fopen(path, "wb");
        cr_assert(file && fwrite(sealed.data, 1, sealed.len, file) == sealed.len && !fclose(file), "%s", path);
        sn_buf_fini(&sealed);
    }
    sn_buf sealed = {0};
    sn_signpost post;
    uint8_t model[SN_KEY_SIZE];
    memset(model, 7, sizeof model);
    must(sn_read_file(path, SN_SIGNPOST_SIZE_MAX, &sealed, &err), &err);
    must(sn_signpost_open(sealed.data, sealed.len, model, NOW, &post, &err), &err);
    sn_buf_fini(&sealed);
}
