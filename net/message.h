/* The messages of the swarm, each declared once.
 *
 * On the wire a message is frame 0, a msgpack map from field name to value with "kind" (the name of the message in
 * lower case) and "correlation_id" (chosen by the sender of a request, echoed by the answer). If the message carries a
 * tensor the map describes it, and frame 1 is its data: raw little-endian elements, rows contiguous, moved without a
 * copy.
 *
 * The lists SN_FIELDS_X below are the source of the structs sn_msg_x, of the encoder, of the decoder with its limits,
 * and of the fuzz target; their comments are also the tables of docs/PROTOCOL.md, for programs in other languages
 * (scripts/make_docs.py writes them). A decoder accepts a map in any order, ignores unknown fields, and refuses a field
 * that is missing, of another type, or beyond its limit.
 *
 * The central type is sn_msg: its kind, its correlation id, its tensor, and a union of the structs of all kinds. A
 * message belongs to one owner at a time; sn_transport_send (net/transport/transport.h) takes it over. The functions
 * here have no state and may be called on any thread. Errors: SN_REFUSED for bytes or values that are no such message,
 * SN_STOP when memory is out. */
#ifndef SN_NET_MESSAGE_H
#define SN_NET_MESSAGE_H

#include "base/dtype.h"
#include "base/hash.h"
#include "base/mem.h"

enum {
    SN_PROTOCOL_VERSION = 6,           /* both sides of a connection must use the same */
    SN_KEY_SIZE = 32,                  /* bytes of a CURVE (X25519) or Ed25519 public key */
    SN_SESSION_ID_SIZE = 16,           /* bytes, opaque, chosen by the client at random */
    SN_ADDRESS_MAX = 255,              /* bytes of HOST:PORT */
    SN_HOPS_MAX = 64,                  /* nodes in a chain */
    SN_KV_TRANSFER_TOKENS_MAX = 512,   /* tokens whose KV pages one message carries */
    SN_KV_TRANSFER_SIZE_MAX = 2 << 20, /* bytes of these KV pages, if they are of several tokens: a node reads or writes
                                        * as many in one or two milliseconds */
    SN_SAMPLES_MAX = 1024,             /* sequences of a training batch, in one message */
    SN_EXPERT_PAIRS_MAX = 16384,       /* pairs of a row and an expert, in one message */
    SN_ANNOUNCEMENTS_MAX = 256,        /* announcements in one message */
    SN_ANNOUNCEMENT_SIZE_MAX = 16384,
    SN_PADDINGS_MAX = 16, /* blobs in a PING */
    SN_BYTE_RANGES_MAX = 4096,
    SN_ATTACH_POINTS_MAX = 256,    /* positions at which a prefix may be known, in one message */
    SN_WEIGHTS_SIZE_MAX = 1 << 17, /* bytes of a model's file in one message */
    SN_RELAY_LIFE_MS = 60000,      /* of a registration at a relay */
    SN_TEXT_SIZE_MAX = 511,
    SN_MODEL_NAME_MAX = 95,
    SN_REQUEST_ID_MAX = 40,    /* bytes of the client's name for the work that sessions and steps belong to */
    SN_MAP_SIZE_MAX = 5 << 20, /* bytes of frame 0 */
    SN_ADAPTERS_MAX = 8,       /* adapters that a node publishes */
    SN_ADAPTER_NAME_MAX = 63,
    SN_TIMELINES_MAX = 64,     /* hashes of a step's tokens that a node tells */
    SN_PREFILL_DEPTH_MAX = 32, /* steps of a session that wait at a node, beside the one in computation */
    SN_TENSOR_RANK_MAX = 4,
    SN_TENSOR_SIZE_MAX = 1 << 30, /* bytes of the tensor frame */
    SN_WIRE_DTYPE_MAX = 3,        /* F32, F16, BF16, Q8 */
    SN_RECEIPT_SIZE = 384,        /* bytes of a receipt (net/receipt.h) */
};

/* Smallest and largest value: of a number, or of the bytes of a BLOBS field's elements. All but the first fit a signed
 * integer of 32 (INT, BLOCK, TOKENS) or 64 bits, sums of a few of them too. */
#define SN_R_ANY        0, UINT64_MAX
#define SN_R_COUNT      0, INT64_MAX >> 8
#define SN_R_U32        0, UINT32_MAX
#define SN_R_INT        0, INT32_MAX
#define SN_R_FLAG       0, 1
#define SN_R_DTYPE      0, SN_WIRE_DTYPE_MAX
#define SN_R_BLOCK      0, 65536
#define SN_R_TOKENS     0, 1 << 30
#define SN_R_DURATION   0, INT64_C(1) << 48 /* microseconds: nine years */
#define SN_R_BYTES      0, SN_ANNOUNCEMENT_SIZE_MAX
#define SN_R_SOME_BYTES 1, SN_ANNOUNCEMENT_SIZE_MAX
#define SN_R_RECEIPT    SN_RECEIPT_SIZE, SN_RECEIPT_SIZE
#define SN_R_TIMELINES  SN_KEY_SIZE, SN_TIMELINES_MAX *SN_KEY_SIZE

/* Types of fields in the lists:
 *   U64(name, range)       unsigned integer within this range (SN_R_..., or two numbers)
 *   KEY(name)              32 bytes, a key or a hash
 *   SID(name)              16 bytes, a session id
 *   STR(name, max)         text of at most max bytes of printable UTF-8, because it is shown on terminals, and a NUL in
 *                          the struct; the encoder replaces other bytes by question marks, the decoder refuses them
 *   LIST(name, type, max)  array of at most max structs sn_<type>, on the heap, owned by the message
 *   BLOBS(name, max, range)  array of at most max byte strings, each with a number of bytes within this range, also on
 *                          the heap and owned by the message
 *
 * A value beyond its range is refused by the decoder, and not sent by the encoder, so a handler may narrow each number
 * and read each byte string as its range says, on every path.
 *
 * The comment of a request says which program sends it to which, and what it means; the list of its answer X_REPLY,
 * which goes back to the sender, follows right after it. Sizes are in bytes, *_us in microseconds, *_ms in
 * milliseconds. Blocks are [first_block, end_block). A hash is SHA-256. */

/* One field a line, which clang-format would join. */
/* clang-format off */

/* -- structs inside messages -- */

/* An entry of STEP's route: a node that the step is pushed to, after the node before it has computed its blocks. */
#define SN_FIELDS_ROUTE_ENTRY(U64, KEY, SID, STR, LIST, BLOBS)                                                         \
    SID(session)           /* the client's session at that node, which is the `next` of the session before */          \
    U64(dtype, SN_R_DTYPE) /* of the hidden states on their way to that node, numbered as in reply_dtype */            \
    KEY(timeline)          /* timeline hash at the step's position in that session; all zero: as in STEP */

/* What a step cost at one node, and where the node's timeline stands after it. */
#define SN_FIELDS_TRACE(U64, KEY, SID, STR, LIST, BLOBS)                                                               \
    KEY(node)                      /* node id (Ed25519 public key) */                                                  \
    KEY(timeline)                  /* timeline hash after the step */                                                  \
    U64(first_block, SN_R_BLOCK)   /* of the session */                                                                \
    U64(end_block, SN_R_BLOCK)     /* exclusive */                                                                     \
    U64(queue_us, SN_R_DURATION)   /* from arrival to the beginning of the computation */                              \
    U64(compute_us, SN_R_DURATION) /* of the forward pass over the span that held this step */                         \
    U64(node_us, SN_R_DURATION)    /* from arrival of the message to sending on: queue, computation and handling */

/* An element of token_timelines in KV_PUT and KV_GET_REPLY. */
#define SN_FIELDS_TOKEN_TIMELINE(U64, KEY, SID, STR, LIST, BLOBS)                                                      \
    KEY(timeline) /* the sender's timeline hash after this token */

/* A sequence of a training batch. */
#define SN_FIELDS_SAMPLE(U64, KEY, SID, STR, LIST, BLOBS)                                                              \
    U64(tokens, SN_R_TOKENS) /* of this sequence */

/* An adapter that a node's owner publishes. */
#define SN_FIELDS_ADAPTER_INFO(U64, KEY, SID, STR, LIST, BLOBS)                                                        \
    STR(name, SN_ADAPTER_NAME_MAX) /* what the owner calls it; another node may use another name */                    \
    KEY(hash)                      /* SHA-256 of its image: what OPEN names it by */

/* -- membership -- */

/* PEERS, from a client or a node to a node, answered by PEERS_REPLY: asks for announcements that the node knows, and
 * hands over announcements of the sender. `model`, the blocks and the tags restrict the answer; a tag is the first 8
 * bytes of a node id, big-endian. `known` is one blob with 16 bytes for each node of the tag range that the asker
 * knows, in the order of tags: its tag and the newest sequence, big-endian. */
#define SN_FIELDS_PEERS(U64, KEY, SID, STR, LIST, BLOBS)                                                               \
    U64(protocol, SN_R_U32)      /* SN_PROTOCOL_VERSION */                                                             \
    KEY(model)                   /* only nodes that serve it; all zero: every model */                                 \
    U64(first_block, SN_R_BLOCK) /* only nodes that serve a block of [first_block, end_block) */                       \
    U64(end_block, SN_R_BLOCK)   /* exclusive; 0: any block */                                                         \
    U64(from_tag, SN_R_ANY)      /* only nodes with a tag in [from_tag, to_tag] */                                     \
    U64(to_tag, SN_R_ANY)        /* inclusive; 0: up to the last tag */                                                \
    STR(name, 63)                /* only nodes of this name; empty: of any name */                                     \
    BLOBS(known, 1, SN_R_BYTES)  /* nodes that the asker knows: tag, sequence, 16 bytes each; empty from a client */   \
    BLOBS(announcements, SN_ANNOUNCEMENTS_MAX, SN_R_SOME_BYTES) /* sealed (net/directory.h), that the sender hands     \
                                                                 * over; none from a client */

/* PEERS_REPLY: the announcements that were asked for and are newer than those in `known`, in the order of tags. Where
 * neither `known` nor tags were given, it begins with this node's own and those of nodes that it has proven: that it
 * was told to join, or with which it has exchanged messages in the last ten minutes. */
#define SN_FIELDS_PEERS_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                         \
    U64(next_tag, SN_R_ANY)              /* more follow: ask again with this from_tag; 0: these are all */             \
    U64(proven, 0, SN_ANNOUNCEMENTS_MAX) /* so many come first, out of the order of tags: of the node itself, then     \
                                          * proven by it */                                                            \
    BLOBS(announcements, SN_ANNOUNCEMENTS_MAX, SN_R_SOME_BYTES) /* live ones, and the last ones of nodes that left;    \
                                                                 * sealed */

/* PING, from any program to a node, answered by PONG at once: the time until the answer is the round trip; with
 * padding, it also measures the bandwidth to the node. */
#define SN_FIELDS_PING(U64, KEY, SID, STR, LIST, BLOBS)                                                                \
    BLOBS(padding, SN_PADDINGS_MAX, SN_R_BYTES) /* bytes without a meaning */

#define SN_FIELDS_PONG(U64, KEY, SID, STR, LIST, BLOBS)                                                                \
    U64(padding_bytes, 0, SN_PADDINGS_MAX * SN_ANNOUNCEMENT_SIZE_MAX) /* received */

/* ADMIT, the first message in each direction of a connection in a private swarm: proves that the sender holds the
 * swarm's key (net/transport/private_swarm.h). */
#define SN_FIELDS_ADMIT(U64, KEY, SID, STR, LIST, BLOBS)                                                               \
    KEY(proof) /* HMAC-SHA256 over the CURVE keys of sender and receiver */

/* -- reaching nodes (net/transport/portal.h) -- */

/* DIAL_BACK, from a node to a node that it joined, answered by DIAL_BACK_REPLY: brings the token to the portal at this
 * port of the address from which the request comes, and at no other one. */
#define SN_FIELDS_DIAL_BACK(U64, KEY, SID, STR, LIST, BLOBS)                                                           \
    U64(protocol, SN_R_U32) /* SN_PROTOCOL_VERSION */                                                                  \
    U64(port, 1, 65535)     /* at which the asker listens */                                                           \
    SID(token)              /* chosen at random */

#define SN_FIELDS_DIAL_BACK_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                     \
    STR(address, SN_ADDRESS_MAX) /* that is dialled: the asker's as seen here, with the port that it gave */

/* RELAY, from a node that others cannot reach to one that they can, answered by RELAY_REPLY, again within
 * SN_RELAY_LIFE_MS: brings the node's clients to it, as long as this connection lasts. */
#define SN_FIELDS_RELAY(U64, KEY, SID, STR, LIST, BLOBS)                                                               \
    U64(protocol, SN_R_U32) /* SN_PROTOCOL_VERSION */

#define SN_FIELDS_RELAY_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                         \
    U64(bytes_per_s, SN_R_COUNT) /* that this relay passes on for all its nodes */

/* RELAY_CALL, from a relay to a node that asked it by RELAY, with correlation_id 0 and without an answer: a client waits
 * for the node, which connects to the relay's portal and names the token. */
#define SN_FIELDS_RELAY_CALL(U64, KEY, SID, STR, LIST, BLOBS)                                                          \
    SID(token) /* by which the node's connection names this client */

/* -- sessions -- */

/* OPEN, client to node, answered by OPEN_REPLY: opens a session over blocks that lie within the node's span. */
#define SN_FIELDS_OPEN(U64, KEY, SID, STR, LIST, BLOBS)                                                                \
    U64(protocol, SN_R_U32)            /* SN_PROTOCOL_VERSION */                                                       \
    SID(session)                       /* chosen by the client at random */                                            \
    KEY(model)                         /* model id, as in announcements */                                             \
    U64(first_block, SN_R_BLOCK)       /* of the session */                                                            \
    U64(end_block, SN_R_BLOCK)         /* exclusive; both lie within the node's span */                                \
    U64(max_tokens, SN_R_TOKENS)       /* longest timeline, at most the model's context */                             \
    KEY(predecessor)                   /* CURVE key of the node that may push steps here; all zero: none */            \
    BLOBS(next, 1, SN_R_SOME_BYTES)    /* sealed announcement of the node that steps are pushed to, not expired;       \
                                        * empty: none. A node dials nothing else for a client */                       \
    KEY(kv_source)                     /* CURVE key of the node that may send KV_PUT; all zero: none */                \
    KEY(adapter)                       /* hash of the adapter added to the weights, see ADAPTER_PUT; all zero:         \
                                        * none. An ERROR of status 2: the node does not hold it */                     \
    STR(request_id, SN_REQUEST_ID_MAX) /* for log lines: the same at every node of a chain; may be empty */

#define SN_FIELDS_OPEN_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                          \
    SID(session)                                                                                                       \
    U64(step_tokens_max, SN_R_INT)   /* tokens of the longest step that the node accepts: 512, or up to 2048 where     \
                                      * its devices gain by them */                                                    \
    U64(prefill_depth_max, SN_R_INT) /* steps that may be sent before the step in computation is answered */

/* STEP, client to node or node to node, answered by STEP_REPLY: runs the tensor, hidden states (tokens, n_embd),
 * through the session's blocks. Where the route is not empty, the node sends its output to the first node of the route,
 * as a STEP of the same correlation_id; the last node answers the client. */
#define SN_FIELDS_STEP(U64, KEY, SID, STR, LIST, BLOBS)                                                                \
    SID(session)                               /* at the node that the message goes to */                              \
    U64(step, SN_R_COUNT)                      /* 1, 2, 3, ... in each session; a repeated number is only answered     \
                                                * again */                                                             \
    U64(position, SN_R_TOKENS)                 /* of the first token; below the session's end: a rewind */             \
    U64(reply_dtype, SN_R_DTYPE)               /* of the tensor in the answer: 0 F32, 1 F16, 2 BF16, 3 Q8 */           \
    KEY(timeline)                              /* timeline hash at position; all zero: after the step before */        \
    LIST(route, route_entry, SN_HOPS_MAX)      /* the nodes after this one, in order; may be empty */                  \
    LIST(trace, trace, SN_HOPS_MAX)            /* one for each node that the step went through; empty from a client */ \
    U64(wants_receipt, SN_R_FLAG)              /* 1: every node adds its receipt (net/receipt.h) */                    \
    BLOBS(receipts, SN_HOPS_MAX, SN_R_RECEIPT) /* of the nodes so far; empty from a client */                          \
    STR(request_id, SN_REQUEST_ID_MAX)         /* as in OPEN; nodes that push the step pass it on */                   \
    U64(wants_timelines, SN_R_FLAG)            /* 1: every node adds its timelines, of at most 64 tokens */            \
    BLOBS(timelines, SN_HOPS_MAX, SN_R_TIMELINES) /* of the nodes so far; empty from a client */

/* STEP_REPLY, from the last node of the route to the client, with the hidden states (tokens, n_embd). */
#define SN_FIELDS_STEP_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                          \
    SID(session)                               /* at the last node */                                                  \
    U64(step, SN_R_COUNT)                                                                                              \
    LIST(trace, trace, SN_HOPS_MAX)            /* one for each node, in order */                                       \
    BLOBS(receipts, SN_HOPS_MAX, SN_R_RECEIPT) /* one for each node if they were asked for, in order */                \
    BLOBS(timelines, SN_HOPS_MAX, SN_R_TIMELINES) /* if they were asked for, of each node, in order: its timeline hash \
                                                   * after each token. The last one alone: it does not know the       \
                                                   * others any more */

/* A position of a timeline at which a page of the prefix cache ends, and the hash there. */
#define SN_FIELDS_ATTACH_POINT(U64, KEY, SID, STR, LIST, BLOBS)                                                        \
    U64(position, 1, 1 << 30) /* a multiple of 32 */                                                                   \
    KEY(timeline)             /* timeline hash at position */

/* ATTACH, client to node, answered by ATTACH_REPLY: the session goes on behind the first of these points whose KV pages
 * the node still has in its prefix cache, with all before it, in place of what it holds. Neither rows nor outputs
 * travel. */
#define SN_FIELDS_ATTACH(U64, KEY, SID, STR, LIST, BLOBS)                                                              \
    SID(session)                                                                                                       \
    LIST(points, attach_point, SN_ATTACH_POINTS_MAX) /* from later to earlier positions */

#define SN_FIELDS_ATTACH_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                        \
    SID(session)                                                                                                       \
    U64(length, SN_R_TOKENS) /* tokens of the session now; 0: none of the points is known, it is as it was before */

/* CLOSE, client to node, answered by CLOSE_REPLY also where the session is not known: frees the session. */
#define SN_FIELDS_CLOSE(U64, KEY, SID, STR, LIST, BLOBS)                                                               \
    SID(session)

#define SN_FIELDS_CLOSE_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                         \
    SID(session)

/* DRAINING, node to the owner of a session, with correlation_id 0 and without an answer: the node leaves; it serves the
 * session until it is closed or the time for draining ends. */
#define SN_FIELDS_DRAINING(U64, KEY, SID, STR, LIST, BLOBS)                                                            \
    SID(session)

/* -- experts of a group -- */

/* A row of the tensor of EXPERTS, and an expert of its block that the row chose. */
#define SN_FIELDS_EXPERT_PAIR(U64, KEY, SID, STR, LIST, BLOBS)                                                         \
    U64(row, SN_R_INT)    /* of the tensor */                                                                          \
    U64(expert, SN_R_INT) /* one that the node announces */

/* EXPERTS, from a node that holds a part of a block's experts to one that holds others, answered by EXPERTS_REPLY: what
 * these experts make of the rows. The tensor is F32 (rows, n_embd), what enters the mixture of the block; the answer's
 * is F32 (pairs, n_embd): the expert's output for each pair, before it is weighed. */
#define SN_FIELDS_EXPERTS(U64, KEY, SID, STR, LIST, BLOBS)                                                             \
    U64(protocol, SN_R_U32)                       /* SN_PROTOCOL_VERSION */                                            \
    U64(block, SN_R_BLOCK)                        /* a mixture of experts */                                           \
    KEY(block_hash)                               /* of the block, as in the announcement of the node that is asked */ \
    LIST(pairs, expert_pair, SN_EXPERT_PAIRS_MAX) /* in the order of rows; a row has at most as many as it may         \
                                                   * choose, and each once */

#define SN_FIELDS_EXPERTS_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                       \
    U64(queue_us, SN_R_DURATION)   /* from arrival to the beginning of the computation */                              \
    U64(compute_us, SN_R_DURATION) /* of the computation */

/* -- KV migration -- */

/* A tensor of KV pages is F32 (blocks, 2, tokens, n_kv_heads * head_dim): for each block of the session its keys
 * (rotated), then its values. With latent attention it has as many elements as keys and values have, and keys are not as
 * wide as values: (blocks, 2, tokens, (rope_dim + latent) / 2) holds the rotated parts of all keys, then all latents.
 * Where the blocks' keys and values have different widths, or some blocks are recurrent or have index keys, it is
 * (tokens, floats of a token): all keys, then all values, then all index keys of each block with attention, and with
 * recurrent blocks then the rows that entered the first block, (tokens, n_embd). */

/* KV_SEND, client to node, answered by KV_SEND_REPLY: copies this session's KV cache of blocks [first_block, end_block)
 * to the session `target` at another node, and keeps the copy up to date from then on. The same request again is
 * answered when the copy is complete. */
#define SN_FIELDS_KV_SEND(U64, KEY, SID, STR, LIST, BLOBS)                                                             \
    SID(session)                    /* at the node that the message goes to, which sends */                            \
    U64(first_block, SN_R_BLOCK)    /* of the blocks that go to the target */                                          \
    U64(end_block, SN_R_BLOCK)      /* exclusive; where the target has fewer blocks than the session, another          \
                                     * session gets the others */                                                      \
    U64(position, SN_R_TOKENS)      /* tokens that the target holds already */                                         \
    BLOBS(node, 1, SN_R_SOME_BYTES) /* sealed announcement of the other node, not expired; not read when the           \
                                     * request is repeated */                                                          \
    SID(target)                     /* the client's session there, opened with this node as its kv_source */

#define SN_FIELDS_KV_SEND_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                       \
    SID(session)                                                                                                       \
    U64(length, SN_R_TOKENS) /* tokens that the target holds now */                                                    \
    KEY(timeline)            /* this session's timeline hash after them */

/* KV_PUT, node (kv_source) or client to node, answered by KV_PUT_REPLY: writes the KV pages of some tokens into a
 * session; a position below the session's end rewinds it. Where the receiver's timeline has another hash at position
 * nothing is written, and the answer's length is 0. */
#define SN_FIELDS_KV_PUT(U64, KEY, SID, STR, LIST, BLOBS)                                                              \
    SID(session)               /* at the node that the message goes to */                                              \
    U64(position, SN_R_TOKENS) /* of the first token, at most the session's end */                                     \
    KEY(origin)                /* first hash of the sender's timeline, T(0) */                                         \
    KEY(timeline)              /* the sender's timeline hash at position; the receiver has another one: begin again    \
                                * at 0 */                                                                              \
    KEY(tensor_hash)           /* SHA-256 of the tensor's bytes */                                                     \
    LIST(token_timelines, token_timeline, SN_KV_TRANSFER_TOKENS_MAX) /* one for each token */

#define SN_FIELDS_KV_PUT_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                        \
    SID(session)                                                                                                       \
    U64(length, SN_R_TOKENS) /* tokens of the session now: the next KV_PUT goes on here */

/* STATE_PUT, node (kv_source) or client to node, answered by STATE_PUT_REPLY: a piece of the states of a session's
 * recurrent blocks at a position that its KV pages reach, F32 (1, floats). Its states are one after the other, in the
 * order of blocks; pieces come in order. */
#define SN_FIELDS_STATE_PUT(U64, KEY, SID, STR, LIST, BLOBS)                                                           \
    SID(session)               /* at the node that the message goes to */                                              \
    U64(position, SN_R_TOKENS) /* tokens that the states are a function of; a multiple of 64 */                        \
    KEY(origin)                /* as in KV_PUT */                                                                      \
    KEY(timeline)              /* the sender's timeline hash at position; nothing is written where the receiver has    \
                                * another one or ends before it */                                                     \
    KEY(tensor_hash)           /* SHA-256 of the tensor's bytes */                                                     \
    U64(offset, SN_R_COUNT)    /* floats before this piece; 0: the states at this position begin anew */

#define SN_FIELDS_STATE_PUT_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                     \
    SID(session)                                                                                                       \
    U64(length, SN_R_TOKENS) /* tokens of the session */                                                               \
    U64(floats, SN_R_COUNT)  /* of the states at this position that are there now; 0: begin again */

/* KV_GET, client to node, answered by KV_GET_REPLY: reads the KV pages of some tokens of a session. */
#define SN_FIELDS_KV_GET(U64, KEY, SID, STR, LIST, BLOBS)                                                              \
    SID(session)                                                                                                       \
    U64(position, SN_R_TOKENS) /* of the first token */                                                                \
    U64(tokens, SN_R_TOKENS)   /* at most; the answer may hold fewer */

/* KV_GET_REPLY, with the fields and the tensor of a KV_PUT. */
#define SN_FIELDS_KV_GET_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                        \
    SID(session)                                                                                                       \
    U64(position, SN_R_TOKENS)                                       /* of the first token */                          \
    KEY(origin)                                                      /* first hash of the node's timeline, T(0) */     \
    KEY(timeline)                                                    /* the node's timeline hash at position */        \
    KEY(tensor_hash)                                                 /* SHA-256 of the tensor's bytes */               \
    LIST(token_timelines, token_timeline, SN_KV_TRANSFER_TOKENS_MAX) /* one for each token */

/* RESUME, client to node, answered by RESUME_REPLY: the client goes on with a session whose KV cache came by KV_PUT or
 * whose chain has changed. No KV_PUT is accepted after it. */
#define SN_FIELDS_RESUME(U64, KEY, SID, STR, LIST, BLOBS)                                                              \
    SID(session)                                                                                                       \
    U64(position, SN_R_TOKENS)      /* at which the next step begins */                                                \
    U64(step, SN_R_COUNT)           /* the next step has this number + 1; above that of every step sent, also of       \
                                     * one that failed; 0: none was */                                                 \
    KEY(predecessor)                /* as in OPEN, from now on */                                                      \
    BLOBS(next, 1, SN_R_SOME_BYTES) /* as in OPEN, from now on; empty: as before */

#define SN_FIELDS_RESUME_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                        \
    SID(session)                                                                                                       \
    U64(length, SN_R_TOKENS) /* tokens up to position that the node holds; steps supply the others */                  \
    KEY(timeline)            /* timeline hash after them */

/* -- adapters and training -- */

/* ADAPTER_PUT, client to node, answered by ADAPTER_PUT_REPLY: gives the node an adapter (LoRA or prompt,
 * blocks/adapter.h), which it holds until others need the memory. The tensor is F32 (n): the bytes of a safetensors
 * image, whose length is a multiple of four. */
#define SN_FIELDS_ADAPTER_PUT(U64, KEY, SID, STR, LIST, BLOBS)                                                         \
    U64(protocol, SN_R_U32) /* SN_PROTOCOL_VERSION */                                                                  \
    KEY(model)              /* as in OPEN */                                                                           \
    KEY(hash)               /* SHA-256 of the image: the adapter's name from now on */

#define SN_FIELDS_ADAPTER_PUT_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                   \
    KEY(hash)                                                                                                          \
    U64(bytes, SN_R_COUNT) /* that the adapter takes at the node */

/* ADAPTERS, client to node, answered by ADAPTERS_REPLY: which adapters the node's owner publishes for all clients. */
#define SN_FIELDS_ADAPTERS(U64, KEY, SID, STR, LIST, BLOBS)                                                            \
    U64(protocol, SN_R_U32) /* SN_PROTOCOL_VERSION */

#define SN_FIELDS_ADAPTERS_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                      \
    KEY(model)                                    /* that the adapters belong to */                                    \
    LIST(adapters, adapter_info, SN_ADAPTERS_MAX)

/* FORWARD, client to node, answered by FORWARD_REPLY: runs a batch of sequences, each from position 0, through blocks,
 * for training. The tensor is F32 (rows, n_embd), the hidden states that enter first_block, one sequence after the
 * other; the answer's are those that leave end_block - 1. With save_activations the node may keep activations for a
 * minute, so that BACKWARD need not compute them again. */
#define SN_FIELDS_FORWARD(U64, KEY, SID, STR, LIST, BLOBS)                                                             \
    U64(protocol, SN_R_U32)               /* SN_PROTOCOL_VERSION */                                                    \
    KEY(model)                            /* as in OPEN */                                                             \
    U64(first_block, SN_R_BLOCK)                                                                                       \
    U64(end_block, SN_R_BLOCK)            /* exclusive */                                                              \
    KEY(adapter)                          /* hash, as given by ADAPTER_PUT; all zero: none. An ERROR of status 2:      \
                                           * the node does not hold it */                                              \
    U64(save_activations, SN_R_FLAG)      /* 1: BACKWARD of the same batch will follow */                              \
    LIST(samples, sample, SN_SAMPLES_MAX) /* the sequences, in order; their tokens add up to rows */

#define SN_FIELDS_FORWARD_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                       \
    U64(queue_us, SN_R_DURATION)   /* as in a trace */                                                                 \
    U64(compute_us, SN_R_DURATION) /* as in a trace */

/* BACKWARD, client to node, answered by BACKWARD_REPLY: the backward pass of the same batch. The tensor is F32 (2,
 * rows, n_embd): the hidden states that entered first_block, then the gradients of those that left end_block - 1. The
 * answer's is F32 (n): rows * n_embd gradients of the hidden states that entered, then for each sequence the gradients
 * of the adapter's tensors of these blocks. */
#define SN_FIELDS_BACKWARD(U64, KEY, SID, STR, LIST, BLOBS)                                                            \
    U64(protocol, SN_R_U32)               /* SN_PROTOCOL_VERSION */                                                    \
    KEY(model)                            /* as in OPEN */                                                             \
    U64(first_block, SN_R_BLOCK)                                                                                       \
    U64(end_block, SN_R_BLOCK)            /* exclusive */                                                              \
    KEY(adapter)                          /* as in FORWARD */                                                          \
    U64(save_activations, SN_R_FLAG)      /* ignored */                                                                \
    LIST(samples, sample, SN_SAMPLES_MAX) /* as in FORWARD */

#define SN_FIELDS_BACKWARD_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                      \
    U64(queue_us, SN_R_DURATION)   /* as in a trace */                                                                 \
    U64(compute_us, SN_R_DURATION) /* as in a trace */

/* -- weights from peers -- */

/* Bytes [from, to) of a file. */
#define SN_FIELDS_BYTE_RANGE(U64, KEY, SID, STR, LIST, BLOBS)                                                          \
    U64(from, SN_R_COUNT)                                                                                              \
    U64(to, SN_R_COUNT)   /* exclusive */

/* WEIGHTS_OFFER, from any program to a node, answered by WEIGHTS_OFFER_REPLY: which bytes of a file of the model the
 * node has. */
#define SN_FIELDS_WEIGHTS_OFFER(U64, KEY, SID, STR, LIST, BLOBS)                                                       \
    KEY(manifest)            /* its id (sharing/hub/manifest.h), as in announcements */                                \
    U64(file, 1, UINT32_MAX) /* 1, 2, ...: which of the manifest's files, in its order */

#define SN_FIELDS_WEIGHTS_OFFER_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                 \
    LIST(ranges, byte_range, SN_BYTE_RANGES_MAX) /* in order; what is beyond the limit is left out at the end */

/* WEIGHTS, from any program to a node, answered by WEIGHTS_REPLY: bytes of a file of the model, or of the manifest. */
#define SN_FIELDS_WEIGHTS(U64, KEY, SID, STR, LIST, BLOBS)                                                             \
    KEY(manifest)                      /* as in WEIGHTS_OFFER */                                                       \
    U64(file, SN_R_U32)                /* as in WEIGHTS_OFFER; 0: the manifest itself */                               \
    U64(from, SN_R_COUNT)              /* the first byte */                                                            \
    U64(bytes, 1, SN_WEIGHTS_SIZE_MAX) /* so many */

#define SN_FIELDS_WEIGHTS_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                       \
    U64(size, SN_R_COUNT)                          /* of the whole file */                                             \
    BLOBS(bytes, SN_PADDINGS_MAX, SN_R_SOME_BYTES) /* one after the other; all but the last have 16384 bytes */

/* -- status and errors -- */

/* STATUS, from any program to a node, answered by STATUS_REPLY: what the node does; counters begin when it starts. */
#define SN_FIELDS_STATUS(U64, KEY, SID, STR, LIST, BLOBS)                                                              \
    U64(protocol, SN_R_U32) /* SN_PROTOCOL_VERSION */

#define SN_FIELDS_STATUS_REPLY(U64, KEY, SID, STR, LIST, BLOBS)                                                        \
    U64(uptime_ms, SN_R_COUNT)             /* since the node started */                                                \
    U64(sessions, SN_R_COUNT)              /* open now */                                                              \
    U64(sessions_max, SN_R_COUNT)                                                                                      \
    U64(kv_bytes, SN_R_COUNT)              /* of KV pages in use */                                                    \
    U64(kv_bytes_max, SN_R_COUNT)                                                                                      \
    U64(weight_bytes, SN_R_COUNT)          /* of the span */                                                           \
    U64(queued_steps, SN_R_COUNT)          /* steps that wait */                                                       \
    U64(steps, SN_R_COUNT)                 /* computed */                                                              \
    U64(tokens, SN_R_COUNT)                /* computed */                                                              \
    U64(forward_passes, SN_R_COUNT)        /* over the span; one may hold steps of several sessions */                 \
    U64(compute_us, SN_R_DURATION)         /* of the forward passes */                                                 \
    U64(device_transfer_bytes, SN_R_COUNT) /* hidden states copied to, between and from devices */                     \
    U64(draining, SN_R_FLAG)               /* 1: the node leaves */                                                    \
    U64(shared_pages, SN_R_COUNT)          /* KV pages of 32 tokens that two or more sessions use */                   \
    U64(prefix_cached_tokens, SN_R_COUNT)  /* of `tokens`: attached from the prefix cache instead of computed */       \
    U64(swapped_bytes, SN_R_COUNT)         /* of idle sessions, swapped out of the KV cache */                         \
    U64(swap_bytes_max, SN_R_COUNT)        /* for them; 0: they stay in the KV cache */                                \
    U64(joined, SN_R_COUNT)                /* addresses given with --join */                                           \
    U64(bootstrap_peers, SN_R_COUNT)       /* nodes that answered there */                                             \
    STR(lacking, SN_TEXT_SIZE_MAX)         /* of a node with a part of the experts: those of its blocks that no        \
                                            * node which it knows holds; empty: none */                                \
    STR(model_name, SN_MODEL_NAME_MAX)     /* the model's name in its files, for people */

/* ERROR, node to the sender of a request, in place of the answer; the ERROR of a pushed STEP goes to the client. */
#define SN_FIELDS_ERROR(U64, KEY, SID, STR, LIST, BLOBS)                                                               \
    U64(status, 0, SN_STOP)     /* 1 retry, 2 rebuild, 3 refused, 4 stop (sn_status) */                                \
    U64(wait_ms, SN_R_INT)      /* of status 1: when the same request may succeed, as for a client that has used up    \
                                 * its steps of this second; 0: not known */                                           \
    U64(reason, SN_R_INT)       /* 1: sessions, perhaps idle ones of the sender, have the node's KV memory or          \
                                 * places: it may close some; 2: its KV memory could never hold the session            \
                                 * (sn_reason); 0 and others: none that programs act on */                             \
    SID(session)                /* of the STEP, KV_PUT or STATE_PUT that failed; zero: it was another request */       \
    U64(step, SN_R_COUNT)       /* of the STEP that failed; zero: it was another request */                            \
    STR(text, SN_TEXT_SIZE_MAX) /* one sentence, for people */

/*  KIND, struct sn_msg_..., 1: the message carries a tensor */
#define SN_MESSAGES(X)                                                                                                 \
    X(PEERS, peers, 0)                                                                                                 \
    X(PEERS_REPLY, peers_reply, 0)                                                                                     \
    X(PING, ping, 0)                                                                                                   \
    X(PONG, pong, 0)                                                                                                   \
    X(ADMIT, admit, 0)                                                                                                 \
    X(DIAL_BACK, dial_back, 0)                                                                                         \
    X(DIAL_BACK_REPLY, dial_back_reply, 0)                                                                             \
    X(RELAY, relay, 0)                                                                                                 \
    X(RELAY_REPLY, relay_reply, 0)                                                                                     \
    X(RELAY_CALL, relay_call, 0)                                                                                       \
    X(OPEN, open, 0)                                                                                                   \
    X(OPEN_REPLY, open_reply, 0)                                                                                       \
    X(STEP, step, 1)                                                                                                   \
    X(STEP_REPLY, step_reply, 1)                                                                                       \
    X(EXPERTS, experts, 1)                                                                                             \
    X(EXPERTS_REPLY, experts_reply, 1)                                                                                 \
    X(KV_SEND, kv_send, 0)                                                                                             \
    X(KV_SEND_REPLY, kv_send_reply, 0)                                                                                 \
    X(KV_PUT, kv_put, 1)                                                                                               \
    X(KV_PUT_REPLY, kv_put_reply, 0)                                                                                   \
    X(STATE_PUT, state_put, 1)                                                                                         \
    X(STATE_PUT_REPLY, state_put_reply, 0)                                                                             \
    X(KV_GET, kv_get, 0)                                                                                               \
    X(KV_GET_REPLY, kv_get_reply, 1)                                                                                   \
    X(RESUME, resume, 0)                                                                                               \
    X(RESUME_REPLY, resume_reply, 0)                                                                                   \
    X(DRAINING, draining, 0)                                                                                           \
    X(ADAPTER_PUT, adapter_put, 1)                                                                                     \
    X(ADAPTER_PUT_REPLY, adapter_put_reply, 0)                                                                         \
    X(ADAPTERS, adapters, 0)                                                                                           \
    X(ADAPTERS_REPLY, adapters_reply, 0)                                                                               \
    X(FORWARD, forward, 1)                                                                                             \
    X(FORWARD_REPLY, forward_reply, 1)                                                                                 \
    X(BACKWARD, backward, 1)                                                                                           \
    X(BACKWARD_REPLY, backward_reply, 1)                                                                               \
    X(WEIGHTS_OFFER, weights_offer, 0)                                                                                 \
    X(WEIGHTS_OFFER_REPLY, weights_offer_reply, 0)                                                                     \
    X(WEIGHTS, weights, 0)                                                                                             \
    X(WEIGHTS_REPLY, weights_reply, 0)                                                                                 \
    X(ATTACH, attach, 0)                                                                                               \
    X(ATTACH_REPLY, attach_reply, 0)                                                                                   \
    X(CLOSE, close, 0)                                                                                                 \
    X(CLOSE_REPLY, close_reply, 0)                                                                                     \
    X(STATUS, status, 0)                                                                                               \
    X(STATUS_REPLY, status_reply, 0)                                                                                   \
    X(ERROR, error, 0)

/* clang-format on */

typedef enum sn_msg_kind {
#define X(KIND, name, tensor) SN_MSG_##KIND,
    SN_MESSAGES(X)
#undef X
        SN_MSG_KIND_COUNT
} sn_msg_kind;

/* A byte string on the heap. */
typedef struct sn_blob {
    uint8_t *data;
    size_t len;
} sn_blob;

/* The structs: of the lists above, sn_<name> for what stands inside messages, sn_msg_<name> for each message. A LIST or
 * BLOBS field is a pointer `name` and a count `n_<name>`. */
#define SN_C_U64(name, ...) uint64_t name;
#define SN_C_KEY(name)      uint8_t name[SN_KEY_SIZE];
#define SN_C_SID(name)      uint8_t name[SN_SESSION_ID_SIZE];
#define SN_C_STR(name, max) char name[(max) + 1];
#define SN_C_LIST(name, type, max)                                                                                     \
    struct sn_##type *name;                                                                                            \
    size_t n_##name;
#define SN_C_BLOBS(name, max, ...)                                                                                     \
    sn_blob *name;                                                                                                     \
    size_t n_##name;
#define SN_STRUCT(KIND, name)                                                                                          \
    typedef struct sn_##name {                                                                                         \
        SN_FIELDS_##KIND(SN_C_U64, SN_C_KEY, SN_C_SID, SN_C_STR, SN_C_LIST, SN_C_BLOBS)                                \
    } sn_##name;
SN_STRUCT(ROUTE_ENTRY, route_entry)
SN_STRUCT(ATTACH_POINT, attach_point)
SN_STRUCT(TRACE, trace)
SN_STRUCT(TOKEN_TIMELINE, token_timeline)
SN_STRUCT(SAMPLE, sample)
SN_STRUCT(EXPERT_PAIR, expert_pair)
SN_STRUCT(ADAPTER_INFO, adapter_info)
SN_STRUCT(BYTE_RANGE, byte_range)
#define X(KIND, name, tensor) SN_STRUCT(KIND, msg_##name)
SN_MESSAGES(X)
#undef X

/* A tensor on the wire: row-major, rows contiguous. */
typedef struct sn_wire_tensor {
    sn_dtype dtype; /* F32, F16, BF16 or Q8 (base/wire.h) */
    int rank;       /* 0: no tensor */
    uint64_t shape[SN_TENSOR_RANK_MAX];
    const void *data; /* aligned to 4 bytes; in a received message it points into the message's frame 1 */
    size_t bytes;     /* of the data, as dtype and shape say; frame 1 has exactly as many */
} sn_wire_tensor;

typedef struct sn_msg {
    sn_msg_kind kind;
    uint64_t correlation_id;
    sn_wire_tensor tensor;
    /* release(owner) frees tensor.data when the message is freed; after a send this may be on a thread of the
     * transport. release NULL: tensor.data is borrowed, must outlive the message, and is copied when the message is
     * sent. */
    void (*release)(void *owner);
    void *owner;
    union {
#define X(KIND, name, tensor) sn_msg_##name name;
        SN_MESSAGES(X)
#undef X
    };
} sn_msg;

/* A message with zeroed fields. */
sn_status sn_msg_new(sn_msg_kind kind, uint64_t correlation_id, sn_msg **out, sn_err *err) SN_MUST_USE;
void sn_msg_free(sn_msg **msg); /* accepts NULL; frees lists, blobs and the tensor's owner */
/* Tokens whose KV pages one message carries at most, at least 1. token_bytes: of one token in all blocks. */
int sn_kv_transfer_tokens(size_t token_bytes);
const char *sn_msg_kind_name(sn_msg_kind kind);

/* Allocates a tensor that the message owns, and sets msg->tensor. *data may be written until the message is sent.
 * SN_REFUSED: a message of this kind carries no tensor, or dtype and shape are none for the wire. */
sn_status sn_msg_new_tensor(sn_msg *msg, sn_dtype dtype, int rank, const uint64_t *shape, void **data,
                            sn_err *err) SN_MUST_USE;

/* Allocates a LIST or BLOBS field: n zeroed elements of `size` bytes; *out is the field's pointer. SN_REFUSED: n is
 * above `max`, the field's limit. */
sn_status sn_list_new(size_t n, size_t max, size_t size, void *out, sn_err *err) SN_MUST_USE;

/* Appends frame 0 of the message, with the tensor's type and shape, to *out. */
sn_status sn_msg_encode(const sn_msg *msg, sn_buf *out, sn_err *err) SN_MUST_USE;

/* Decodes frame 0; the caller attaches frame 1 with sn_msg_attach_tensor. The bytes are untrusted: all headers are read
 * and counts are limited before anything is allocated, and maps and arrays nest at most 4 deep. */
sn_status sn_msg_decode(const void *frame, size_t len, sn_msg **out, sn_err *err) SN_MUST_USE;

/* The correlation id of a frame 0 that sn_msg_decode refused, so that its sender learns which request failed; 0 where
 * it cannot be read. */
uint64_t sn_msg_correlation_id(const void *frame, size_t len);

/* Attaches frame 1, after checking that it has exactly the bytes that dtype and shape say. n_frames: frames that
 * followed frame 0; SN_REFUSED where the message has another number. On success the message owns `owner`, on failure
 * the caller still does. */
sn_status sn_msg_attach_tensor(sn_msg *msg, size_t n_frames, const void *data, size_t len, void (*release)(void *),
                               void *owner, sn_err *err) SN_MUST_USE;

#endif
