#include "net/dht_record.h"

#include "net/address.h"
#include "net/codec_private.h"

#include <string.h>

static const sn_schema *dht_record_schema(void) {
    static const sn_field fields[] = {
        {.name = "node", .type = SN_FIELD_BIN, .offset = offsetof(sn_dht_record, node), .max = SN_KEY_SIZE},
        {.name = "curve_key", .type = SN_FIELD_BIN, .offset = offsetof(sn_dht_record, curve_key), .max = SN_KEY_SIZE},
        {.name = "model", .type = SN_FIELD_BIN, .offset = offsetof(sn_dht_record, model), .max = SN_KEY_SIZE},
        {.name = "address", .type = SN_FIELD_STR, .offset = offsetof(sn_dht_record, address), .max = SN_ADDRESS_MAX},
        {.name = "expires_unix_ms",
         .type = SN_FIELD_U64,
         .offset = offsetof(sn_dht_record, expires_unix_ms),
         .range = {SN_R_COUNT}},
    };
    static const sn_schema schema = {fields, sizeof fields / sizeof *fields, sizeof(sn_dht_record)};
    return &schema;
}

sn_status sn_dht_record_seal(const sn_dht_record *record, const sn_identity *identity, sn_buf *out, sn_err *err) {
    const sn_schema *schema = dht_record_schema();
    const void *structure = record;
    uint8_t signature[SN_SIGNATURE_SIZE];
    size_t before = out->len;
    sn_status status = sn_address_check_numeric(record->address, err);
    if (!status) status = sn_schemas_encode(&schema, &structure, 1, out, err);
    if (!status) status = sn_sign(identity, out->data + before, out->len - before, signature, err);
    if (!status) status = sn_buf_append(out, signature, sizeof signature, err);
    if (status) out->len = before;
    return status;
}

sn_status sn_dht_record_open(const void *data, size_t len, const uint8_t model[SN_KEY_SIZE], int64_t now_unix_ms,
                             sn_dht_record *out, sn_err *err) {
    if (len <= SN_SIGNATURE_SIZE || len > SN_DHT_RECORD_SIZE_MAX)
        return sn_fail(err, SN_REFUSED, "%zu bytes are no DHT record", len);
    size_t map_len = len - SN_SIGNATURE_SIZE;
    uint64_t now = now_unix_ms > 0 ? (uint64_t)now_unix_ms : 0;
    sn_dht_record record = {0};
    sn_msgpack_reader reader = {data, (const uint8_t *)data + map_len, 0};
    sn_status status = sn_schema_decode(&reader, dht_record_schema(), &record, err);
    if (!status && reader.at != reader.end) status = sn_fail(err, SN_REFUSED, "bytes follow the end of the map");
    if (status) return status;
    if (!sn_verify(record.node, data, map_len, (const uint8_t *)data + map_len))
        return sn_fail(err, SN_REFUSED, "its signature was not made by the node that it names");
    if (memcmp(record.model, model, SN_KEY_SIZE)) return sn_fail(err, SN_REFUSED, "it is for another model");
    if (record.expires_unix_ms <= now) return sn_fail(err, SN_REFUSED, "it has expired");
    if (record.expires_unix_ms - now > SN_DHT_RECORD_LIFE_MS_MAX)
        return sn_fail(err, SN_REFUSED, "it expires more than %d s ahead", SN_DHT_RECORD_LIFE_MS_MAX / 1000);
    status = sn_address_check_numeric(record.address, err);
    if (!status) *out = record;
    return status;
}
