/* Messages (net/message.h): schemas made from the lists of fields, and the rules for tensors.
 *
 * Each list becomes a function that returns its schema, and codec.c encodes and decodes structs after schemas. Frame 0
 * is one map of two structs: the header (kind, correlation_id, and the tensor's type and shape) and the fields of the
 * kind. Decoding goes over the map twice. The first pass decodes the header, which reads all of the map's bytes, so the
 * second pass meets no malformed msgpack; the kind in the header says which schema the second pass uses. Frame 1 is
 * never copied here: a message points to it and knows how to release it. */
#include "net/codec_private.h"

#include "base/wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* -- tables -- */

#define F_U64(f, ...)   {.name = #f, .type = SN_FIELD_U64, .offset = offsetof(self, f), .range = {__VA_ARGS__}},
#define F_KEY(f)        {.name = #f, .type = SN_FIELD_BIN, .offset = offsetof(self, f), .max = SN_KEY_SIZE},
#define F_SID(f)        {.name = #f, .type = SN_FIELD_BIN, .offset = offsetof(self, f), .max = SN_SESSION_ID_SIZE},
#define F_STR(f, limit) {.name = #f, .type = SN_FIELD_STR, .offset = offsetof(self, f), .max = (limit)},
#define F_LIST(f, of, limit)                                                                                           \
    {.name = #f,                                                                                                       \
     .type = SN_FIELD_LIST,                                                                                            \
     .offset = offsetof(self, f),                                                                                      \
     .n_offset = offsetof(self, n_##f),                                                                                \
     .max = (limit),                                                                                                   \
     .schema = schema_##of},
#define F_BLOBS(f, limit, ...)                                                                                         \
    {.name = #f,                                                                                                       \
     .type = SN_FIELD_BLOBS,                                                                                           \
     .offset = offsetof(self, f),                                                                                      \
     .n_offset = offsetof(self, n_##f),                                                                                \
     .max = (limit),                                                                                                   \
     .range = {__VA_ARGS__}},

/* One function for each schema: the lists do not name their struct, so the function calls it `self`. */
#define DEFINE_SCHEMA(KIND, name)                                                                                      \
    static const sn_schema *schema_##name(void) {                                                                      \
        typedef sn_##name self;                                                                                        \
        static const sn_field fields[] = {SN_FIELDS_##KIND(F_U64, F_KEY, F_SID, F_STR, F_LIST, F_BLOBS)};              \
        static_assert(sizeof fields / sizeof *fields <= 60, "a map has at most 64 fields, the header's among them");   \
        static const sn_schema schema = {fields, sizeof fields / sizeof *fields, sizeof(self)};                        \
        return &schema;                                                                                                \
    }
DEFINE_SCHEMA(ROUTE_ENTRY, route_entry)
DEFINE_SCHEMA(ATTACH_POINT, attach_point)
DEFINE_SCHEMA(TRACE, trace)
DEFINE_SCHEMA(TOKEN_TIMELINE, token_timeline)
DEFINE_SCHEMA(SAMPLE, sample)
DEFINE_SCHEMA(EXPERT_PAIR, expert_pair)
DEFINE_SCHEMA(ADAPTER_INFO, adapter_info)
DEFINE_SCHEMA(BYTE_RANGE, byte_range)
#define X(KIND, name, tensor) DEFINE_SCHEMA(KIND, msg_##name)
SN_MESSAGES(X)
#undef X

static const struct kind {
    const char *name;
    bool tensor;
    const sn_schema *(*schema)(void);
    size_t offset; /* of its struct in sn_msg */
} kinds[] = {
#define X(KIND, name, tensor) {#name, tensor, schema_msg_##name, offsetof(sn_msg, name)},
    SN_MESSAGES(X)
#undef X
};

/* The fields that every message has, beside those of its kind. */
typedef struct tensor_header {
    char dtype[8];
    uint64_t shape[SN_TENSOR_RANK_MAX];
    size_t n_shape;
} tensor_header;

typedef struct msg_header {
    char kind[24];
    uint64_t correlation_id;
    tensor_header tensor;
    size_t n_tensor;
} msg_header;

static const sn_schema *tensor_header_schema(void) {
    static const sn_field fields[] = {{.name = "dtype",
                                       .type = SN_FIELD_STR,
                                       .offset = offsetof(tensor_header, dtype),
                                       .max = sizeof((tensor_header *)0)->dtype - 1},
                                      {.name = "shape",
                                       .type = SN_FIELD_U64S,
                                       .offset = offsetof(tensor_header, shape),
                                       .n_offset = offsetof(tensor_header, n_shape),
                                       .max = SN_TENSOR_RANK_MAX}}; /* tensor_bytes checks each dimension */
    static const sn_schema schema = {fields, 2, sizeof(tensor_header)};
    return &schema;
}

static const sn_schema *msg_header_schema(void) {
    static const sn_field fields[] = {
        {.name = "kind",
         .type = SN_FIELD_STR,
         .offset = offsetof(msg_header, kind),
         .max = sizeof((msg_header *)0)->kind - 1},
        {.name = "correlation_id", .type = SN_FIELD_U64, .offset = offsetof(msg_header, correlation_id)},
        {.name = "tensor",
         .type = SN_FIELD_OPTIONAL,
         .offset = offsetof(msg_header, tensor),
         .n_offset = offsetof(msg_header, n_tensor),
         .max = 1,
         .schema = tensor_header_schema}};
    static const sn_schema schema = {fields, 3, sizeof(msg_header)};
    return &schema;
}

static_assert(SN_WIRE_DTYPE_MAX == SN_WIRE_DTYPES - 1, "types in messages are numbered as in base/wire.h");

/* -- messages -- */

const char *sn_msg_kind_name(sn_msg_kind kind) { return (unsigned)kind < SN_MSG_KIND_COUNT ? kinds[kind].name : "?"; }

sn_status sn_msg_new(sn_msg_kind kind, uint64_t correlation_id, sn_msg **out, sn_err *err) {
    *out = NULL;
    if ((unsigned)kind >= SN_MSG_KIND_COUNT) return sn_fail(err, SN_REFUSED, "there is no message kind %d", (int)kind);
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->kind = kind;
    (*out)->correlation_id = correlation_id;
    return SN_OK;
}

static void release_tensor(sn_msg *msg) {
    if (msg->release) msg->release(msg->owner);
    msg->release = NULL;
    msg->owner = NULL;
}

void sn_msg_free(sn_msg **msg) {
    if (!*msg) return;
    const struct kind *kind = &kinds[(*msg)->kind];
    sn_schema_fini(kind->schema(), (uint8_t *)*msg + kind->offset);
    release_tensor(*msg);
    free(*msg);
    *msg = NULL;
}

int sn_kv_transfer_tokens(size_t token_bytes) {
    size_t n = SN_KV_TRANSFER_SIZE_MAX / token_bytes;
    return n < 1 ? 1 : n < SN_KV_TRANSFER_TOKENS_MAX ? (int)n : SN_KV_TRANSFER_TOKENS_MAX;
}

sn_status sn_list_new(size_t n, size_t max, size_t size, void *out, sn_err *err) {
    if (n > max) return sn_fail(err, SN_REFUSED, "a list of %zu elements is longer than the %zu allowed", n, max);
    return sn_calloc(out, n, size, err);
}

/* -- tensors -- */

static sn_status tensor_bytes(sn_dtype dtype, int rank, const uint64_t *shape, size_t *out, sn_err *err) {
    if (!sn_is_wire_dtype(dtype))
        return sn_fail(err, SN_REFUSED, "a tensor on the wire is F32, F16, BF16 or Q8, not %s", sn_dtype_name(dtype));
    if (rank < 1 || rank > SN_TENSOR_RANK_MAX)
        return sn_fail(err, SN_REFUSED, "a tensor has 1 to %d dimensions, not %d", SN_TENSOR_RANK_MAX, rank);
    size_t bytes = sn_dtype_bytes(dtype), block = sn_dtype_block(dtype);
    if (shape[rank - 1] % block)
        return sn_fail(err, SN_REFUSED, "rows of %llu elements are not a multiple of %s's block of %zu",
                       (unsigned long long)shape[rank - 1], sn_dtype_name(dtype), block);
    for (int i = 0; i < rank; i++) {
        uint64_t n = i == rank - 1 ? shape[i] / block : shape[i];
        if (!shape[i]) return sn_fail(err, SN_REFUSED, "dimension %d of the tensor is zero", i);
        if (!sn_mul(bytes, n, &bytes) || bytes > SN_TENSOR_SIZE_MAX)
            return sn_fail(err, SN_REFUSED, "the tensor is larger than the %d bytes allowed: send it in parts",
                           SN_TENSOR_SIZE_MAX);
    }
    *out = bytes;
    return SN_OK;
}

/* A message has a tensor exactly if its kind has one. */
static sn_status check_tensor_presence(sn_msg_kind kind, bool has, sn_err *err) {
    if (has == kinds[kind].tensor) return SN_OK;
    return sn_fail(err, SN_REFUSED, has ? "a message '%s' carries no tensor" : "a message '%s' must carry a tensor",
                   kinds[kind].name);
}

sn_status sn_msg_new_tensor(sn_msg *msg, sn_dtype dtype, int rank, const uint64_t *shape, void **data, sn_err *err) {
    size_t bytes;
    sn_status status = check_tensor_presence(msg->kind, true, err);
    if (!status) status = tensor_bytes(dtype, rank, shape, &bytes, err);
    if (status) return status;
    void *buffer = aligned_alloc(64, sn_round_up(bytes, 64));
    if (!buffer) return sn_fail(err, SN_STOP, "out of memory: no %zu bytes for a tensor", bytes);
    release_tensor(msg);
    msg->tensor = (sn_wire_tensor){.dtype = dtype, .rank = rank, .data = buffer, .bytes = bytes};
    memcpy(msg->tensor.shape, shape, (size_t)rank * sizeof *shape);
    msg->release = free;
    msg->owner = buffer;
    *data = buffer;
    return SN_OK;
}

sn_status sn_msg_attach_tensor(sn_msg *msg, size_t n_frames, const void *data, size_t len, void (*release)(void *),
                               void *owner, sn_err *err) {
    size_t wanted = msg->tensor.rank ? 1 : 0;
    if (n_frames != wanted)
        return sn_fail(err, SN_REFUSED, "a message '%s' has %zu frames after the first, this one has %zu",
                       kinds[msg->kind].name, wanted, n_frames);
    if (!wanted) return SN_OK;
    if (len != msg->tensor.bytes)
        return sn_fail(err, SN_REFUSED, "the tensor's frame has %zu bytes, its type and shape say %zu", len,
                       msg->tensor.bytes);
    release_tensor(msg);
    msg->tensor.data = data;
    msg->release = release;
    msg->owner = owner;
    return SN_OK;
}

/* -- frame 0 -- */

sn_status sn_msg_encode(const sn_msg *msg, sn_buf *out, sn_err *err) {
    sn_err own = {0};
    if (!err) err = &own;
    const struct kind *kind = &kinds[msg->kind];
    const sn_wire_tensor *tensor = &msg->tensor;
    sn_status status = check_tensor_presence(msg->kind, tensor->rank != 0, err);
    if (status) return status;
    msg_header h = {.correlation_id = msg->correlation_id};
    memcpy(h.kind, kind->name, strlen(kind->name));
    if (tensor->rank) {
        size_t bytes;
        if ((status = tensor_bytes(tensor->dtype, tensor->rank, tensor->shape, &bytes, err))) return status;
        if (bytes != tensor->bytes)
            return sn_fail(err, SN_REFUSED, "the tensor has %zu bytes, its type and shape say %zu", tensor->bytes,
                           bytes);
        const char *dtype = sn_dtype_name(tensor->dtype);
        memcpy(h.tensor.dtype, dtype, strlen(dtype));
        memcpy(h.tensor.shape, tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape);
        h.tensor.n_shape = (size_t)tensor->rank;
        h.n_tensor = 1;
    }
    const sn_schema *schemas[] = {msg_header_schema(), kind->schema()};
    const void *structs[] = {&h, (const uint8_t *)msg + kind->offset};
    if (sn_schemas_encode(schemas, structs, 2, out, err)) return sn_err_context(err, "message '%s'", kind->name);
    return SN_OK;
}

static sn_status decode_tensor(const tensor_header *from, sn_wire_tensor *out, sn_err *err) {
    for (int i = 0; i < SN_WIRE_DTYPES; i++) {
        if (strcmp(from->dtype, sn_dtype_name(sn_wire_dtypes[i])) != 0) continue;
        *out = (sn_wire_tensor){.dtype = sn_wire_dtypes[i], .rank = (int)from->n_shape};
        memcpy(out->shape, from->shape, sizeof out->shape);
        return tensor_bytes(out->dtype, out->rank, out->shape, &out->bytes, err);
    }
    return sn_fail(err, SN_REFUSED, "a tensor on the wire is F32, F16, BF16 or Q8, not '%s'", from->dtype);
}

/* The first pass over the map: finds the kind, and that the map is well formed up to its last byte. */
static sn_status decode_msg_header(const uint8_t *frame, size_t len, sn_msg_kind *kind, msg_header *h, sn_err *err) {
    sn_msgpack_reader reader = {frame, frame + len, 0};
    sn_status status = sn_schema_decode(&reader, msg_header_schema(), h, err);
    if (status) return status;
    if (reader.at != reader.end) return sn_fail(err, SN_REFUSED, "bytes follow the end of the map");
    for (int i = 0; i < SN_MSG_KIND_COUNT; i++) {
        if (strcmp(h->kind, kinds[i].name) != 0) continue;
        *kind = (sn_msg_kind)i;
        return check_tensor_presence(*kind, h->n_tensor != 0, err);
    }
    return sn_fail(err, SN_REFUSED, "messages of kind '%s' are unknown", h->kind);
}

uint64_t sn_msg_correlation_id(const void *frame, size_t len) {
    msg_header h = {0};
    sn_msg_kind kind;
    return len > SN_MAP_SIZE_MAX || decode_msg_header(frame, len, &kind, &h, NULL) ? 0 : h.correlation_id;
}

sn_status sn_msg_decode(const void *frame, size_t len, sn_msg **out, sn_err *err) {
    sn_err own = {0};
    if (!err) err = &own;
    *out = NULL;
    if (len > SN_MAP_SIZE_MAX)
        return sn_fail(err, SN_REFUSED, "its first frame has %zu bytes, at most %d are allowed", len, SN_MAP_SIZE_MAX);
    msg_header h = {0};
    sn_msg_kind kind = SN_MSG_KIND_COUNT;
    sn_status status = decode_msg_header(frame, len, &kind, &h, err);
    if (status) return status;
    sn_msg *msg;
    if ((status = sn_msg_new(kind, h.correlation_id, &msg, err))) return status;
    if (h.n_tensor) status = decode_tensor(&h.tensor, &msg->tensor, err);
    sn_msgpack_reader reader = {frame, (const uint8_t *)frame + len, 0};
    if (!status) status = sn_schema_decode(&reader, kinds[kind].schema(), (uint8_t *)msg + kinds[kind].offset, err);
    if (status) {
        sn_msg_free(&msg);
        return sn_err_context(err, "message '%s'", kinds[kind].name);
    }
    *out = msg;
    return SN_OK;
}
