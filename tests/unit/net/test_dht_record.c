#include "net/dht_record.h"

#include "base/file.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOW = 1000000 };

static void require_ok(sn_status status, const sn_err *err) { cr_assert_eq(status, SN_OK, "%s", err->text); }

static sn_dht_record make_record(const sn_identity *identity) {
    sn_dht_record record = {.address = "192.0.2.7:31330", .expires_unix_ms = NOW + SN_DHT_RECORD_LIFE_MS};
    memcpy(record.node, identity->id, SN_KEY_SIZE);
    memcpy(record.curve_key, identity->curve_key, SN_KEY_SIZE);
    memset(record.model, 7, SN_KEY_SIZE);
    return record;
}

static sn_buf seal_record(const sn_dht_record *record, const sn_identity *identity) {
    sn_err err = {0};
    sn_buf out;
    sn_buf_init(&out, SN_DHT_RECORD_SIZE_MAX);
    require_ok(sn_dht_record_seal(record, identity, &out, &err), &err);
    return out;
}

static void expect_refused(const sn_buf *sealed, size_t len, int64_t now, const uint8_t *model,
                           const char *error_part) {
    sn_dht_record back;
    sn_err err = {0};
    cr_assert_eq(sn_dht_record_open(sealed->data, len, model, now, &back, &err), SN_REFUSED);
    cr_assert(strstr(err.text, error_part), "'%s' is not about '%s'", err.text, error_part);
}

Test(dht_record, opens_as_sealed_for_its_model_and_time_only) {
    sn_err err = {0};
    sn_identity identity;
    require_ok(sn_identity_new(&identity, &err), &err);
    sn_dht_record record = make_record(&identity), back;
    sn_buf sealed = seal_record(&record, &identity);
    uint8_t other[SN_KEY_SIZE] = {1};
    require_ok(sn_dht_record_open(sealed.data, sealed.len, record.model, NOW, &back, &err), &err);
    cr_assert_str_eq(back.address, record.address);
    cr_assert_arr_eq(back.curve_key, record.curve_key, SN_KEY_SIZE);
    expect_refused(&sealed, sealed.len, NOW, other, "another model");
    expect_refused(&sealed, sealed.len, NOW + SN_DHT_RECORD_LIFE_MS, record.model, "expired");
    expect_refused(&sealed, sealed.len, NOW - (SN_DHT_RECORD_LIFE_MS_MAX - SN_DHT_RECORD_LIFE_MS) - 1, record.model,
                   "ahead");
    expect_refused(&sealed, SN_SIGNATURE_SIZE, NOW, record.model, "64 bytes are no DHT record");
    expect_refused(&sealed, SN_DHT_RECORD_SIZE_MAX + 1, NOW, record.model, "bytes are no DHT record");
    for (size_t i = 0; i < sealed.len; i++) { /* any changed byte, any truncation */
        sealed.data[i] ^= 0x10;
        cr_assert_eq(sn_dht_record_open(sealed.data, sealed.len, record.model, NOW, &back, &err), SN_REFUSED,
                     "byte %zu", i);
        sealed.data[i] ^= 0x10;
        cr_assert_eq(sn_dht_record_open(sealed.data, i, record.model, NOW, &back, &err), SN_REFUSED, "length %zu", i);
    }
    sn_buf_fini(&sealed);
}

Test(dht_record, must_be_signed_by_its_node) {
    sn_err err = {0};
    sn_identity identity, forger;
    require_ok(sn_identity_new(&identity, &err), &err);
    require_ok(sn_identity_new(&forger, &err), &err);
    sn_dht_record record = make_record(&identity);
    sn_buf sealed = seal_record(&record, &forger);
    expect_refused(&sealed, sealed.len, NOW, record.model, "signature");
    sn_buf_fini(&sealed);
    snprintf(record.address, sizeof record.address, "nonsense");
    sn_buf_init(&sealed, SN_DHT_RECORD_SIZE_MAX);
    cr_assert_eq(sn_dht_record_seal(&record, &identity, &sealed, &err), SN_REFUSED);
    cr_assert_eq(sealed.len, 0);
    sn_buf_fini(&sealed);
}

/* For the fuzz target. SN_WRITE_CORPUS=1 writes the corpus anew. */
Test(dht_record, matches_the_fuzz_corpus) {
    static const char *const path = SN_FIXTURES "/../fuzz/corpus/dht_record/one";
    sn_err err = {0};
    if (getenv("SN_WRITE_CORPUS")) {
        sn_identity identity;
        require_ok(sn_identity_new(&identity, &err), &err);
        sn_dht_record record = make_record(&identity);
        sn_buf sealed = seal_record(&record, &identity);
        FILE *file = fopen(path, "wb");
        cr_assert(file && fwrite(sealed.data, 1, sealed.len, file) == sealed.len && !fclose(file), "%s", path);
        sn_buf_fini(&sealed);
    }
    sn_buf sealed = {0};
    sn_dht_record record;
    uint8_t model[SN_KEY_SIZE];
    memset(model, 7, sizeof model);
    require_ok(sn_read_file(path, SN_DHT_RECORD_SIZE_MAX, &sealed, &err), &err);
    require_ok(sn_dht_record_open(sealed.data, sealed.len, model, NOW, &record, &err), &err);
    sn_buf_fini(&sealed);
}
