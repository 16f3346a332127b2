#include "net/signpost.h"

#include "net/codec.h"

#include <string.h>

static const sn_record *record_signpost(void) {
    static const sn_field fields[] = {
        {"node", SN_FIELD_BIN, offsetof(sn_signpost, node), 0, SN_KEY_SIZE, NULL},
        {"curve_key", SN_FIELD_BIN, offsetof(sn_signpost, curve_key), 0, SN_KEY_SIZE, NULL},
        {"model", SN_FIELD_BIN, offsetof(sn_signpost, model), 0, SN_KEY_SIZE, NULL},
        {"address", SN_FIELD_STR, offsetof(sn_signpost, address), 0, SN_ADDRESS_MAX, NULL},
        {"expires_unix_ms", SN_FIELD_U64, offsetof(sn_signpost, expires_unix_ms), 0, 0, NULL},
    };
    static const sn_record record = {fields, sizeof fields / sizeof *fields, sizeof(sn_signpost)};
    return &record;
}

sn_status sn_signpost_seal(const sn_signpost *post, const sn_identity *identity, sn_buf *out, sn_err *err) {
    const sn_record *record = record_signpost();
    const void *structure = post;
    uint8_t signature[SN_SIGNATURE_SIZE];
    size_t before = out->len;
    sn_status status = sn_address_check(post->address, false, err);
    if (!status) status = sn_records_encode(&record, &structure, 1, out, err);
    if (!status) status = sn_sign(identity, out->data + before, out->len - before, signature, err);
    if (!status) status = sn_buf_append(out, signature, sizeof signature, err);
    if (status) out->len = before;
    return status;
}

sn_status sn_signpost_open(const void *data, size_t len, const uint8_t model[SN_KEY_SIZE], int64_t now_unix_ms,
                           sn_signpost *out, sn_err *err) {
    if (len <= SN_SIGNATURE_SIZE || len > SN_SIGNPOST_SIZE_MAX)
        return sn_fail(err, SN_REFUSED, "a signpost of %zu bytes is none", len);
    size_t map_len = len - SN_SIGNATURE_SIZE;
    uint64_t now = now_unix_ms > 0 ? (uint64_t)now_unix_ms : 0;
    sn_signpost post = {0};
    sn_reader reader = {data, (const uint8_t *)data + map_len, 0};
    sn_status status = sn_record_decode(&reader, record_signpost(), &post, err);
    if (!status && reader.at != reader.end) status = sn_fail(err, SN_REFUSED, "bytes follow where the map has ended");
    if (status) return status;
    if (!sn_verify(post.node, data, map_len, (const uint8_t *)data + map_len))
        return sn_fail(err, SN_REFUSED, "its signature was not made by the node that it speaks of");
    if (memcmp(post.model, model, SN_KEY_SIZE)) return sn_fail(err, SN_REFUSED, "it is for another model");
    if (post.expires_unix_ms <= now) return sn_fail(err, SN_REFUSED, "it has expired");
    if (post.expires_unix_ms - now > SN_SIGNPOST_LIFE_MS_MAX)
        return sn_fail(err, SN_REFUSED, "it expires more than %d s ahead", SN_SIGNPOST_LIFE_MS_MAX / 1000);
    status = sn_address_check(post.address, false, err);
    if (!status) *out = post;
    return status;
}
