/* Announcements (net/directory.h): one map after a schema, then a signature; and the rules for their contents. */
#include "net/directory.h"

#include "base/parse.h"
#include "net/address.h"
#include "net/codec_private.h"

#include <stdlib.h>
#include <string.h>

/* An announcement as it is in the map: some fields have another type in sn_announcement. */
typedef struct announcement_wire {
    sn_announcement a;
    uint64_t state, reach;
    size_t n_block_hash;
    uint64_t round_trip[2 * SN_ROUND_TRIPS_MAX]; /* node, us, node, us, ... */
    size_t n_round_trip;
} announcement_wire;

static const sn_schema *announcement_schema(void) {
#define U64(f, ...)                                                                                                    \
    {                                                                                                                  \
        .name = #f, .type = SN_FIELD_U64, .offset = offsetof(announcement_wire, a.f), .range = { __VA_ARGS__ }         \
    }
#define KEY(f) {.name = #f, .type = SN_FIELD_BIN, .offset = offsetof(announcement_wire, a.f), .max = SN_KEY_SIZE}
#define STR(f)                                                                                                         \
    {.name = #f,                                                                                                       \
     .type = SN_FIELD_STR,                                                                                             \
     .offset = offsetof(announcement_wire, a.f),                                                                       \
     .max = sizeof((announcement_wire *)0)->a.f - 1}
#define LIST(f, kind, at, n, most, ...)                                                                                \
    {                                                                                                                  \
        .name = f, .type = kind, .offset = offsetof(announcement_wire, at),                                            \
        .n_offset = offsetof(announcement_wire, n), .max = most, .range = {                                            \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
    static const sn_field fields[] = {
        KEY(node),
        KEY(curve_key),
        STR(address),
        STR(name),
        STR(version),
        STR(device),
        U64(protocol, SN_R_U32),
        U64(sequence, SN_R_ANY),
        U64(expires_unix_ms, SN_R_COUNT),
        {.name = "state", .type = SN_FIELD_U64, .offset = offsetof(announcement_wire, state)},
        {.name = "reach", .type = SN_FIELD_U64, .offset = offsetof(announcement_wire, reach)},
        U64(relay_places, SN_R_COUNT),
        KEY(model),
        KEY(manifest),
        U64(first_block, SN_R_BLOCK),
        U64(end_block, SN_R_BLOCK),
        U64(n_blocks, SN_R_BLOCK),
        LIST("block_hash", SN_FIELD_KEYS, a.block_hash, n_block_hash, SN_SPAN_BLOCKS_MAX, SN_R_ANY),
        U64(kv_dtype, SN_R_INT),
        LIST("experts", SN_FIELD_U64S, a.experts, a.n_experts, 3, SN_R_INT),
        U64(tokens_per_s, SN_R_COUNT),
        U64(decode_us, SN_R_DURATION),
        U64(prompt_tokens_per_s, SN_R_COUNT),
        U64(network_bytes_per_s, SN_R_COUNT),
        U64(kv_bytes_free, SN_R_COUNT),
        U64(kv_tokens_max, SN_R_TOKENS),
        U64(sessions, SN_R_COUNT),
        U64(queued_steps, SN_R_COUNT),
        LIST("wire_dtype", SN_FIELD_U64S, a.wire_dtype, a.n_wire_dtype, SN_WIRE_DTYPES_MAX, SN_R_ANY),
        LIST("adapters", SN_FIELD_U64S, a.adapters, a.n_adapters, SN_ADAPTERS_MAX, SN_R_ANY),
        LIST("round_trip", SN_FIELD_U64S, round_trip, n_round_trip, 2 * SN_ROUND_TRIPS_MAX, SN_R_ANY),
    };
#undef U64
#undef KEY
#undef STR
#undef LIST
    static const sn_schema schema = {fields, sizeof fields / sizeof *fields, sizeof(announcement_wire)};
    return &schema;
}

static sn_status announcement_check_blocks(const sn_announcement *a, sn_err *err) {
    bool undecided = (a->state == SN_NODE_JOINING || a->state == SN_NODE_OFFLINE) && a->first_block == a->end_block;
    if ((a->first_block >= a->end_block && !undecided) || a->end_block > a->n_blocks)
        return sn_fail(err, SN_REFUSED, "blocks %llu:%llu of %llu are no range", (unsigned long long)a->first_block,
                       (unsigned long long)a->end_block, (unsigned long long)a->n_blocks);
    if (a->end_block - a->first_block > SN_SPAN_BLOCKS_MAX)
        return sn_fail(err, SN_REFUSED, "a span of %llu blocks is longer than the %d allowed",
                       (unsigned long long)(a->end_block - a->first_block), SN_SPAN_BLOCKS_MAX);
    return SN_OK;
}

static sn_status announcement_check_experts(const sn_announcement *a, sn_err *err) {
    if (!a->n_experts) return SN_OK;
    if (a->n_experts != 3 || a->experts[0] >= a->experts[1] || a->experts[1] > a->experts[2])
        return sn_fail(err, SN_REFUSED, "the experts that it names are no part of a mixture");
    return SN_OK;
}

const char *sn_reach_name(sn_reach_kind reach) {
    static const char *const names[] = {"direct", "mapped", "relayed"};
    return reach < SN_REACH_KINDS ? names[reach] : "unknown";
}

/* The rules that do not depend on the time. */
static sn_status announcement_check_contents(const sn_announcement *a, sn_err *err) {
    static const uint8_t none[SN_KEY_SIZE];
    if (a->protocol != SN_PROTOCOL_VERSION)
        return sn_fail(err, SN_REFUSED, "it speaks protocol %llu, this program speaks %d",
                       (unsigned long long)a->protocol, SN_PROTOCOL_VERSION);
    if ((unsigned)a->state > SN_NODE_OFFLINE) return sn_fail(err, SN_REFUSED, "state %d does not exist", (int)a->state);
    if (!memcmp(a->curve_key, none, SN_KEY_SIZE)) return sn_fail(err, SN_REFUSED, "its CURVE key is all zero");
    if (a->kv_dtype != SN_F32 && a->kv_dtype != SN_F16 && a->kv_dtype != SN_Q8)
        return sn_fail(err, SN_REFUSED, "no KV cache has type %llu", (unsigned long long)a->kv_dtype);
    sn_status status = announcement_check_blocks(a, err);
    if (!status) status = announcement_check_experts(a, err);
    if (!status) status = sn_address_check(a->address, false, err);
    if (status) return status;
    sn_host_port at;
    status = sn_parse_host_port(a->address, SN_HOST_PORT_DIAL, &at, err);
    if (!status && at.relayed != (a->reach == SN_REACH_RELAYED))
        return sn_fail(err, SN_REFUSED, "%s is not the address of a node that is %s", a->address,
                       sn_reach_name(a->reach));
    return status;
}

/* SN_ANNOUNCE_LIFE_MS_MAX bounds how long a node that died stays listed. */
static sn_status announcement_check_expiry(const sn_announcement *a, int64_t now_unix_ms, sn_err *err) {
    uint64_t now = now_unix_ms > 0 ? (uint64_t)now_unix_ms : 0;
    if (a->expires_unix_ms <= now) return sn_fail(err, SN_REFUSED, "it has expired");
    if (a->expires_unix_ms - now > SN_ANNOUNCE_LIFE_MS_MAX)
        return sn_fail(err, SN_REFUSED, "it expires more than %d s ahead: is one of the clocks wrong?",
                       SN_ANNOUNCE_LIFE_MS_MAX / 1000);
    return SN_OK;
}

sn_status sn_announcement_seal(const sn_announcement *a, const sn_identity *identity, sn_buf *out, sn_err *err) {
    if (memcmp(a->node, identity->id, SN_KEY_SIZE) != 0)
        return sn_fail(err, SN_REFUSED, "only a node itself may sign its announcement");
    sn_status status = announcement_check_contents(a, err);
    if (status) return status;
    if (a->n_round_trip > SN_ROUND_TRIPS_MAX)
        return sn_fail(err, SN_REFUSED, "an announcement has at most %d round trips", SN_ROUND_TRIPS_MAX);
    announcement_wire w = {.a = *a,
                           .state = a->state,
                           .reach = a->reach,
                           .n_block_hash = (size_t)(a->end_block - a->first_block),
                           .n_round_trip = 2 * a->n_round_trip};
    for (size_t i = 0; i < a->n_round_trip; i++) {
        w.round_trip[2 * i] = a->round_trip[i].node;
        w.round_trip[2 * i + 1] = a->round_trip[i].us;
    }
    const sn_schema *schema = announcement_schema();
    const void *structure = &w;
    uint8_t signature[SN_SIGNATURE_SIZE];
    size_t before = out->len;
    status = sn_schemas_encode(&schema, &structure, 1, out, err);
    if (!status) status = sn_sign(identity, out->data + before, out->len - before, signature, err);
    if (!status) status = sn_buf_append(out, signature, sizeof signature, err);
    if (status) out->len = before;
    return status;
}

sn_status sn_announcement_parse(const void *map, size_t len, sn_announcement *out, sn_err *err) {
    announcement_wire w = {0};
    sn_msgpack_reader reader = {map, (const uint8_t *)map + len, 0};
    sn_status status = sn_schema_decode(&reader, announcement_schema(), &w, err);
    if (status) return status;
    if (reader.at != reader.end) return sn_fail(err, SN_REFUSED, "bytes follow the end of the map");
    if (w.state > SN_NODE_OFFLINE)
        return sn_fail(err, SN_REFUSED, "state %llu does not exist", (unsigned long long)w.state);
    if (w.reach >= SN_REACH_KINDS)
        return sn_fail(err, SN_REFUSED, "a way %llu to reach it does not exist", (unsigned long long)w.reach);
    w.a.state = (sn_node_state)w.state;
    w.a.reach = (sn_reach_kind)w.reach;
    if ((status = announcement_check_contents(&w.a, err))) return status;
    if (w.n_block_hash != w.a.end_block - w.a.first_block)
        return sn_fail(err, SN_REFUSED, "it has %zu block hashes for %llu blocks", w.n_block_hash,
                       (unsigned long long)(w.a.end_block - w.a.first_block));
    if (w.n_round_trip % 2) return sn_fail(err, SN_REFUSED, "the last of its round trips has no time");
    w.a.n_round_trip = w.n_round_trip / 2;
    for (size_t i = 0; i < w.a.n_round_trip; i++)
        w.a.round_trip[i] = (struct sn_round_trip){w.round_trip[2 * i], w.round_trip[2 * i + 1]};
    *out = w.a;
    return SN_OK;
}

sn_status sn_announcement_peek(const void *data, size_t len, uint8_t node[SN_KEY_SIZE], uint64_t *sequence,
                               sn_err *err) {
    typedef struct head {
        uint8_t node[SN_KEY_SIZE];
        uint64_t sequence;
    } head;
    static const sn_field fields[] = {
        {.name = "node", .type = SN_FIELD_BIN, .offset = offsetof(head, node), .max = SN_KEY_SIZE},
        {.name = "sequence", .type = SN_FIELD_U64, .offset = offsetof(head, sequence)}};
    static const sn_schema schema = {fields, 2, sizeof(head)};
    if (len <= SN_SIGNATURE_SIZE || len > SN_ANNOUNCEMENT_SIZE_MAX)
        return sn_fail(err, SN_REFUSED, "%zu bytes are no announcement", len);
    head h = {0};
    sn_msgpack_reader reader = {data, (const uint8_t *)data + len - SN_SIGNATURE_SIZE, 0};
    sn_status status = sn_schema_decode(&reader, &schema, &h, err);
    if (status) return status;
    memcpy(node, h.node, SN_KEY_SIZE);
    *sequence = h.sequence;
    return SN_OK;
}

size_t sn_announcement_size(const sn_announcement *a) {
    return offsetof(sn_announcement, block_hash) + (size_t)(a->end_block - a->first_block) * SN_KEY_SIZE;
}

void sn_announcement_copy(sn_announcement *to, const sn_announcement *from) {
    memcpy(to, from, sn_announcement_size(from));
}

sn_status sn_announcement_list(const sn_blob *sealed, sn_blob **out, size_t *n, sn_err *err) {
    if (!sealed) return SN_OK;
    sn_status status = sn_list_new(1, 1, sizeof **out, out, err);
    if (!status) status = sn_calloc(&(*out)->data, sealed->len, 1, err);
    if (status) return status;
    memcpy((*out)->data, sealed->data, sealed->len);
    (*out)->len = sealed->len;
    *n = 1;
    return SN_OK;
}

uint64_t sn_node_tag(const uint8_t id[SN_KEY_SIZE]) {
    uint64_t tag = 0;
    for (int i = 0; i < 8; i++) tag = tag << 8 | id[i];
    return tag;
}

sn_status sn_announcement_open(const void *data, size_t len, int64_t now_unix_ms, sn_announcement *out, sn_err *err) {
    if (len <= SN_SIGNATURE_SIZE || len > SN_ANNOUNCEMENT_SIZE_MAX)
        return sn_fail(err, SN_REFUSED, "%zu bytes are no announcement", len);
    size_t map_len = len - SN_SIGNATURE_SIZE;
    /* The key that verifies the map is in the map: it is decoded first, and used only after it is verified. */
    sn_announcement a;
    sn_status status = sn_announcement_parse(data, map_len, &a, err);
    if (status) return status;
    if (!sn_verify(a.node, data, map_len, (const uint8_t *)data + map_len))
        return sn_fail(err, SN_REFUSED, "its signature was not made by the node that it describes");
    if ((status = announcement_check_expiry(&a, now_unix_ms, err))) return status;
    *out = a;
    return SN_OK;
}

sn_status sn_opened_new(const void *data, size_t len, int64_t now_unix_ms, const sn_opened **out, sn_err *err) {
    sn_announcement a;
    sn_opened *opened = NULL;
    sn_status status = sn_announcement_open(data, len, now_unix_ms, &a, err);
    if (status) return status;
    size_t size = offsetof(sn_opened, a) + sn_announcement_size(&a);
    if ((status = sn_calloc(&opened, size + len, 1, err))) return status;
    sn_announcement_copy(&opened->a, &a);
    opened->sealed = (sn_blob){(uint8_t *)opened + size, len};
    memcpy(opened->sealed.data, data, len);
    *out = opened;
    return SN_OK;
}

void sn_opened_release(const sn_opened *opened) { free((void *)(uintptr_t)opened); }
