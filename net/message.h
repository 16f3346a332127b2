/* The messages of the swarm, declared once.
 *
 * On the wire a message is frame 0, a msgpack map from field name to value with "kind" (its name below) and "request"
 * (chosen by the asker, echoed by the answer), then one frame for its tensor if it has one: raw little-endian elements,
 * rows contiguous, moved without a copy. From the lists below come the structs, the encoder, the decoder with its limits,
 * the fuzz target and the tables of docs/PROTOCOL.md. A decoder takes a map in any order, ignores fields that it does not
 * know, and refuses a field that is missing, of another type, or beyond its limit. */
#ifndef SN_NET_MESSAGE_H
#define SN_NET_MESSAGE_H

#include "base/dtype.h"
#include "base/hash.h"
#include "base/mem.h"

enum {
    SN_PROTOCOL = 2,              /* both sides of a connection must speak the same */
    SN_KEY_SIZE = 32,             /* a CURVE (X25519) or Ed25519 public key */
    SN_SESSION_ID_SIZE = 16,      /* opaque, chosen by the client at random */
    SN_ADDRESS_MAX = 255,         /* "tcp://host:port" */
    SN_HOPS_MAX = 64,             /* nodes in a chain */
    SN_PAST_TOKENS_MAX = 512,     /* of a past, in one message */
    SN_SAMPLES_MAX = 1024,        /* of a batch, in one message */
    SN_ANNOUNCEMENTS_MAX = 256,   /* in one message */
    SN_ANNOUNCEMENT_SIZE_MAX = 16384,
    SN_PADDINGS_MAX = 16,         /* in a PING */
    SN_TEXT_SIZE_MAX = 511,
    SN_FLOW_MAX = 40,             /* what a client calls the work that its sessions and steps belong to */
    SN_MAP_SIZE_MAX = 5 << 20,    /* frame 0 */
    SN_ADAPTERS_MAX = 8,          /* that a node publishes */
    SN_ADAPTER_NAME_MAX = 63,
    SN_STEPS_AHEAD_MAX = 8,       /* steps of a session that wait behind the one in work */
    SN_TENSOR_RANK_MAX = 4,
    SN_TENSOR_SIZE_MAX = 1 << 30, /* bytes of the tensor frame */
};

/* Field kinds used in the lists:
 *   U64(name)          unsigned integer
 *   KEY(name)          32 bytes, a key or hash
 *   SID(name)          16 bytes, a session id
 *   STR(name, max)     text of at most max bytes of printable UTF-8 (it ends on people's terminals), NUL-terminated in
 *                      the struct; bytes that are not are sent as question marks, and refused when they come
 *   LIST(name, type, max)  array of at most max elements of the struct sn_<type>, in heap memory owned by the message
 *   BLOBS(name, max)   array of at most max byte strings of at most SN_ANNOUNCEMENT_SIZE_MAX bytes, heap, owned */

/* A stop on the way of a pushed step: where to send the output next. */
#define SN_FIELDS_HOP(U64, KEY, SID, STR, LIST, BLOBS)                                                                 \
    STR(address, SN_ADDRESS_MAX) /* where the node listens */                                                          \
    KEY(curve_key)               /* its CURVE key: the connection reaches nobody else */                               \
    SID(session)                 /* the client's session at that node */                                              \
    U64(dtype)                   /* as what the hidden states go there, numbered as in reply_dtype */                  \
    KEY(timeline)                /* hash that the step builds on there */

/* What a step cost at one node, and where its timeline stands afterwards. */
#define SN_FIELDS_TRACE(U64, KEY, SID, STR, LIST, BLOBS)                                                               \
    KEY(node)        /* node id (Ed25519 public key) */                                                                \
    KEY(timeline)    /* hash after the step */                                                                         \
    U64(first_block) U64(end_block)                                                                                    \
    U64(queue_us)    /* from arrival to the beginning of the computation */                                           \
    U64(compute_us)  /* the pass over the span that held this step */                                                 \
    U64(node_us)     /* from arrival of the message to sending on: queue, compute and handling */

/* Ask a node for the announcements it knows, and tell it ours. model: all zero for every model. Blocks: of nodes that have
 * any of them; end_block 0: of all. Tags (the first 8 bytes of ids, big-endian): of nodes in this range; to_tag 0: to the last.
 * known: one blob of 16 bytes for each node of the range that the asker knows, ordered: tag and newest sequence, big-endian;
 * only what is newer is answered. */
#define SN_FIELDS_PEERS(U64, KEY, SID, STR, LIST, BLOBS)                                                               \
    U64(protocol) KEY(model) U64(first_block) U64(end_block) U64(from_tag) U64(to_tag) BLOBS(known, 1)                 \
    BLOBS(announcements, SN_ANNOUNCEMENTS_MAX)
/* next: there is more, to be asked for from this tag on; 0: that is all. */
#define SN_FIELDS_PEERS_ARE(U64, KEY, SID, STR, LIST, BLOBS) U64(next) BLOBS(announcements, SN_ANNOUNCEMENTS_MAX)

/* Answered at once: the time until then is the round trip. With padding, bytes that nobody looks at, it is how long so much
 * takes on the way there. */
#define SN_FIELDS_PING(U64, KEY, SID, STR, LIST, BLOBS) BLOBS(padding, SN_PADDINGS_MAX)
#define SN_FIELDS_PONG(U64, KEY, SID, STR, LIST, BLOBS) U64(padding_bytes)

/* In a private swarm the first message either way: the sender holds the swarm's key (net/members.h). */
#define SN_FIELDS_ADMIT(U64, KEY, SID, STR, LIST, BLOBS) KEY(proof)

/* Open a session over blocks [first_block, end_block), which must lie within the node's span. predecessor: CURVE key of
 * the node that may push steps into this session; source: of the node that may put a past into it (KV_PUT) before its owner
 * goes on there (RESUME); all zero: none. tuning: what is added to the weights, as told by TUNE; all zero: nothing. flow: for
 * logs, the same at every node of a chain. */
#define SN_FIELDS_OPEN(U64, KEY, SID, STR, LIST, BLOBS)                                                                \
    U64(protocol) SID(session) KEY(model) U64(first_block) U64(end_block) U64(max_tokens) KEY(predecessor)   \
    KEY(source) KEY(tuning) STR(flow, SN_FLOW_MAX)
#define SN_FIELDS_OPENED(U64, KEY, SID, STR, LIST, BLOBS)                                                              \
    SID(session) U64(step_tokens_max) /* longest step that the node takes */                                           \
    U64(steps_ahead_max)              /* steps that may be sent before the one before them is answered */

/* Run `tensor` (tokens, n_embd) through the session's blocks. position: of the first token; behind the session's end is a
 * rewind, beyond it is refused. timeline: hash of the session's past before `position`; all zero: where the step before ended. step: 1, 2, 3, ...; the same number
 * again gives the same answer again. route: the nodes that follow when the output is to be pushed on; trace: what the step
 * cost so far (filled by the nodes of a pushed chain). reply_dtype: of the tensor in the answer. receipt: 1 asks each node
 * for its receipt (net/receipt.h), which goes on behind those that came. */
#define SN_FIELDS_STEP(U64, KEY, SID, STR, LIST, BLOBS)                                                                \
    SID(session) U64(step) U64(position) U64(reply_dtype) KEY(timeline)                                                \
    LIST(route, hop, SN_HOPS_MAX) LIST(trace, trace, SN_HOPS_MAX)                                                      \
    U64(receipt) BLOBS(receipts, SN_HOPS_MAX) STR(flow, SN_FLOW_MAX)
/* The answer of the last node of the chain, with the hidden states (tokens, n_embd). */
#define SN_FIELDS_RESULT(U64, KEY, SID, STR, LIST, BLOBS)                                                              \
    SID(session) U64(step) LIST(trace, trace, SN_HOPS_MAX) BLOBS(receipts, SN_HOPS_MAX)

/* A past moves. Its tensor is float32 (blocks, 2, tokens, n_kv_heads * head_dim): of each block the keys, then the values.
 * A mark is the timeline's hash behind one more token. */
#define SN_FIELDS_MARK(U64, KEY, SID, STR, LIST, BLOBS) KEY(timeline)
/* The owner asks: copy this session's past of blocks [first_block, end_block) to the session `target` at another node, which
 * holds its first `position` tokens already, and keep it up to date from then on. Asked again for the same target: answer once
 * it is. */
#define SN_FIELDS_KV_SEND(U64, KEY, SID, STR, LIST, BLOBS)                                                             \
    SID(session) U64(first_block) U64(end_block) U64(position) STR(address, SN_ADDRESS_MAX) KEY(curve_key) SID(target)
#define SN_FIELDS_KV_SENT(U64, KEY, SID, STR, LIST, BLOBS) SID(session) U64(length) KEY(timeline)
/* The owner or its source writes the past from `position` on (below the end it is a rewind). origin: hash that the sender's
 * timeline begins with; before: the one at `position`, which the part builds on; hash: SHA-256 of the tensor's bytes. The
 * answer says where the past ends now. */
#define SN_FIELDS_KV_PUT(U64, KEY, SID, STR, LIST, BLOBS)                                                              \
    SID(session) U64(position) KEY(origin) KEY(before) KEY(hash) LIST(marks, mark, SN_PAST_TOKENS_MAX)
#define SN_FIELDS_KV_TAKEN(U64, KEY, SID, STR, LIST, BLOBS) SID(session) U64(length)
/* The owner reads it. */
#define SN_FIELDS_KV_GET(U64, KEY, SID, STR, LIST, BLOBS) SID(session) U64(position) U64(tokens)
#define SN_FIELDS_KV_PART(U64, KEY, SID, STR, LIST, BLOBS)                                                             \
    SID(session) U64(position) KEY(origin) KEY(before) KEY(hash) LIST(marks, mark, SN_PAST_TOKENS_MAX)
/* The owner goes on at `position`: its next step will be `step` + 1, pushed by `predecessor` (as in OPEN). Nobody puts a past
 * into the session any more. The answer: how much of these tokens is there, and the hash behind them. */
#define SN_FIELDS_RESUME(U64, KEY, SID, STR, LIST, BLOBS)  SID(session) U64(position) U64(step) KEY(predecessor)
#define SN_FIELDS_RESUMED(U64, KEY, SID, STR, LIST, BLOBS) SID(session) U64(length) KEY(timeline)
/* To the owner of a session, unasked: the node leaves; it serves on until the session is moved or its time is up. */
#define SN_FIELDS_LEAVING(U64, KEY, SID, STR, LIST, BLOBS) SID(session)

/* Training through frozen blocks. A tuning (blocks/tuning.h) is what a client has trained: its tensor is F32 (n), the
 * bytes of a safetensors image, whose length is a multiple of four. Held until others need the room; hash: SHA-256 of
 * the image. */
#define SN_FIELDS_TUNE(U64, KEY, SID, STR, LIST, BLOBS)  U64(protocol) KEY(model) KEY(hash)
#define SN_FIELDS_TUNED(U64, KEY, SID, STR, LIST, BLOBS) KEY(hash) U64(bytes)
/* Which adapters a node's owner publishes, for everybody's sessions: hash names them in OPEN. */
#define SN_FIELDS_ADAPTER_TOLD(U64, KEY, SID, STR, LIST, BLOBS) STR(name, SN_ADAPTER_NAME_MAX) KEY(hash)
#define SN_FIELDS_ADAPTERS(U64, KEY, SID, STR, LIST, BLOBS)     U64(protocol)
#define SN_FIELDS_ADAPTERS_ARE(U64, KEY, SID, STR, LIST, BLOBS) KEY(model) LIST(adapters, adapter_told, SN_ADAPTERS_MAX)
/* A batch of sequences, each from position 0, one behind the other: FORWARD's tensor is (rows, n_embd), the hidden
 * states that enter first_block; the answer those that leave end_block - 1. BACKWARD's is (2, rows, n_embd): the same,
 * then the gradients of what leaves; the answer's is (n): rows * n_embd gradients of what enters, then for each
 * sequence those of the tuning's tensors of these blocks. tuning: as told by TUNE; all zero: none. keep, of FORWARD: 1
 * when a BACKWARD of the same will come, so that the node may keep for a minute what that would compute again; it need not. */
#define SN_FIELDS_SAMPLE(U64, KEY, SID, STR, LIST, BLOBS) U64(tokens) /* of one sequence */
#define SN_FIELDS_FORWARD(U64, KEY, SID, STR, LIST, BLOBS)                                                             \
    U64(protocol) KEY(model) U64(first_block) U64(end_block) KEY(tuning) U64(keep) LIST(samples, sample, SN_SAMPLES_MAX)
#define SN_FIELDS_FORWARDED(U64, KEY, SID, STR, LIST, BLOBS) U64(queue_us) U64(compute_us)
#define SN_FIELDS_BACKWARD(U64, KEY, SID, STR, LIST, BLOBS)                                                            \
    U64(protocol) KEY(model) U64(first_block) U64(end_block) KEY(tuning) U64(keep) LIST(samples, sample, SN_SAMPLES_MAX)
#define SN_FIELDS_GRADIENTS(U64, KEY, SID, STR, LIST, BLOBS) U64(queue_us) U64(compute_us)

#define SN_FIELDS_CLOSE(U64, KEY, SID, STR, LIST, BLOBS)  SID(session)
#define SN_FIELDS_CLOSED(U64, KEY, SID, STR, LIST, BLOBS) SID(session)

/* What the node is doing; figures since it started. */
#define SN_FIELDS_STATUS(U64, KEY, SID, STR, LIST, BLOBS) U64(protocol)
#define SN_FIELDS_STATUS_IS(U64, KEY, SID, STR, LIST, BLOBS)                                                           \
    U64(uptime_ms) U64(sessions) U64(sessions_max) U64(kv_bytes) U64(kv_bytes_max) U64(weight_bytes) U64(queue)        \
    U64(steps) U64(tokens) U64(passes) U64(compute_us) U64(guard_bytes) U64(draining)        \
    U64(shared_pages) U64(shared_tokens) U64(idle_bytes)

/* status: an sn_status. wait_ms: of SN_RETRY, when the same request may do; 0: not known. session and step as in the message that
 * failed, zero when it had none. */
#define SN_FIELDS_ERROR(U64, KEY, SID, STR, LIST, BLOBS)                                                               \
    U64(status) U64(wait_ms) SID(session) U64(step) STR(text, SN_TEXT_SIZE_MAX)

/*    KIND       struct     carries a tensor */
#define SN_MESSAGES(X)                                                                                                 \
    X(PEERS, peers, 0)                                                                                                 \
    X(PEERS_ARE, peers_are, 0)                                                                                         \
    X(PING, ping, 0)                                                                                                   \
    X(PONG, pong, 0)                                                                                                   \
    X(ADMIT, admit, 0)                                                                                                 \
    X(OPEN, open, 0)                                                                                                   \
    X(OPENED, opened, 0)                                                                                               \
    X(STEP, step, 1)                                                                                                   \
    X(RESULT, result, 1)                                                                                               \
    X(KV_SEND, kv_send, 0)                                                                                             \
    X(KV_SENT, kv_sent, 0)                                                                                             \
    X(KV_PUT, kv_put, 1)                                                                                               \
    X(KV_TAKEN, kv_taken, 0)                                                                                           \
    X(KV_GET, kv_get, 0)                                                                                               \
    X(KV_PART, kv_part, 1)                                                                                             \
    X(RESUME, resume, 0)                                                                                               \
    X(RESUMED, resumed, 0)                                                                                             \
    X(LEAVING, leaving, 0)                                                                                             \
    X(TUNE, tune, 1)                                                                                                   \
    X(TUNED, tuned, 0)                                                                                                 \
    X(ADAPTERS, adapters, 0)                                                                                           \
    X(ADAPTERS_ARE, adapters_are, 0)                                                                                   \
    X(FORWARD, forward, 1)                                                                                             \
    X(FORWARDED, forwarded, 1)                                                                                         \
    X(BACKWARD, backward, 1)                                                                                           \
    X(GRADIENTS, gradients, 1)                                                                                         \
    X(CLOSE, close, 0)                                                                                                 \
    X(CLOSED, closed, 0)                                                                                               \
    X(STATUS, status, 0)                                                                                               \
    X(STATUS_IS, status_is, 0)                                                                                         \
    X(ERROR, error, 0)

typedef enum sn_msg_kind {
#define X(KIND, name, tensor) SN_MSG_##KIND,
    SN_MESSAGES(X)
#undef X
        SN_MSG_KIND_COUNT
} sn_msg_kind;

typedef struct sn_blob {
    uint8_t *data;
    size_t len;
} sn_blob;

#define SN_C_U64(name)            uint64_t name;
#define SN_C_KEY(name)            uint8_t name[SN_KEY_SIZE];
#define SN_C_SID(name)            uint8_t name[SN_SESSION_ID_SIZE];
#define SN_C_STR(name, max)       char name[(max) + 1];
#define SN_C_LIST(name, type, max)                                                                                     \
    struct sn_##type *name;                                                                                            \
    size_t n_##name;
#define SN_C_BLOBS(name, max)                                                                                          \
    sn_blob *name;                                                                                                     \
    size_t n_##name;
#define SN_STRUCT(KIND, name)                                                                                          \
    typedef struct sn_##name {                                                                                         \
        SN_FIELDS_##KIND(SN_C_U64, SN_C_KEY, SN_C_SID, SN_C_STR, SN_C_LIST, SN_C_BLOBS)                                \
    } sn_##name;
SN_STRUCT(HOP, hop)
SN_STRUCT(TRACE, trace)
SN_STRUCT(MARK, mark)
SN_STRUCT(SAMPLE, sample)
SN_STRUCT(ADAPTER_TOLD, adapter_told)
#define X(KIND, name, tensor) SN_STRUCT(KIND, msg_##name)
SN_MESSAGES(X)
#undef X

/* A tensor on the wire: rows contiguous, row-major. `data` points into the message's frame, aligned to 4 bytes. */
typedef struct sn_wire_tensor {
    sn_dtype dtype;               /* F32, F16, BF16 or Q8 (base/wire.h) */
    int rank;                     /* 0: no tensor */
    uint64_t shape[SN_TENSOR_RANK_MAX];
    const void *data;
    size_t bytes;                 /* what dtype and shape say; the frame has exactly as many */
} sn_wire_tensor;

typedef struct sn_msg {
    sn_msg_kind kind;
    uint64_t request;
    sn_wire_tensor tensor;
    /* Owner of tensor.data: freed by release(owner) when the message is freed, which after a send may be in a thread of
     * the transport. NULL: tensor.data is borrowed, must outlive the message, and is copied to be sent. */
    void (*release)(void *owner);
    void *owner;
    union {
#define X(KIND, name, tensor) sn_msg_##name name;
        SN_MESSAGES(X)
#undef X
    };
} sn_msg;

sn_status sn_msg_new(sn_msg_kind kind, uint64_t request, sn_msg **out, sn_err *err) SN_MUST_USE;
void sn_msg_free(sn_msg **msg); /* NULL-safe; frees lists, blobs and the tensor's owner */
const char *sn_msg_kind_name(sn_msg_kind kind);

/* Gives the message room for a tensor of its own, data writable until it is sent: sets msg->tensor. */
sn_status sn_msg_new_tensor(sn_msg *msg, sn_dtype dtype, int rank, const uint64_t *shape, void **data,
                            sn_err *err) SN_MUST_USE;

/* Lists are filled through these: n elements, zeroed; within the limit of the field or SN_REFUSED. */
sn_status sn_list_new(size_t n, size_t max, size_t size, void *out, sn_err *err) SN_MUST_USE;

/* Frame 0 of the message, tensor header included. */
sn_status sn_msg_encode(const sn_msg *msg, sn_buf *out, sn_err *err) SN_MUST_USE;

/* Frame 0 -> message, without tensor data: the caller attaches the second frame with sn_msg_attach. Untrusted bytes:
 * headers are walked and counts capped before anything is allocated; depth at most 4. */
sn_status sn_msg_decode(const void *frame, size_t len, sn_msg **out, sn_err *err) SN_MUST_USE;

/* Takes the tensor frame: checks that it has exactly the bytes that dtype and shape say. On success the message owns
 * `owner`; on failure the caller still does. `n_frames` is the number of frames that followed frame 0. */
sn_status sn_msg_attach(sn_msg *msg, size_t n_frames, const void *data, size_t len, void (*release)(void *), void *owner,
                        sn_err *err) SN_MUST_USE;

#endif
