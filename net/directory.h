/* Announcements and the directory: which node serves which blocks.
 *
 * An announcement is a node's signed description of itself: what it serves, where it listens, what was measured there.
 * Its Ed25519 key signs it, its sequence number only grows, and it expires after about a minute. Sealed means encoded
 * and signed. A directory keeps the newest announcement of each node, and drops with a reason: a bad signature, another
 * node's id, a name instead of a numeric address, an old sequence number, an expiry that has passed or lies too far
 * ahead, blocks that are no range, and nodes beyond its capacity. Ids cost nothing, so a full directory is fair by
 * source: it evicts nodes that the network address brought which brought most, then the peer, nodes of peers that
 * dialled this program before those of peers that it dialled, and never a proven node: this one, one that it was told
 * to join, one with which it has exchanged messages itself.
 *
 * Logic only: bytes and the time are arguments, nothing here reads a clock or a socket. A directory belongs to one
 * thread (in a node and a client the network thread) and owns its copies of the announcements. Functions without a
 * directory may be called on any thread. Errors: SN_REFUSED with the reason for an announcement that is dropped,
 * SN_STOP when memory is out. */
#ifndef SN_NET_DIRECTORY_H
#define SN_NET_DIRECTORY_H

#include "net/address_limit.h"
#include "net/identity.h"

enum {
    SN_ANNOUNCE_EVERY_MS = 15000,
    SN_ANNOUNCE_LIFE_MS = 60000,      /* no announcement counts for longer after it has arrived */
    SN_ANNOUNCE_LIFE_MS_MAX = 120000, /* an expiry further ahead is refused; the margin allows for clocks that differ */
    SN_SPAN_BLOCKS_MAX = 256,
    SN_DIRECTORY_MAX = 16384, /* nodes kept */
    SN_ROUND_TRIPS_MAX = 16,  /* round trips to other nodes in one announcement */
    SN_WIRE_DTYPES_MAX = 8,
};

typedef enum sn_node_state {
    SN_NODE_JOINING,  /* loads, or has not selected its blocks: the blocks are what it will serve, not usable yet */
    SN_NODE_ONLINE,   /* serves */
    SN_NODE_DRAINING, /* serves its sessions, opens no new ones */
    SN_NODE_OFFLINE,  /* leaves: its last announcement */
} sn_node_state;

/* How others reach a node. */
typedef enum sn_reach_kind {
    SN_REACH_DIRECT,
    SN_REACH_MAPPED,  /* through a port that a router opened for it */
    SN_REACH_RELAYED, /* through a relay: the address ends in "/relay" */
    SN_REACH_KINDS,
} sn_reach_kind;
const char *sn_reach_name(sn_reach_kind reach); /* "direct", ... */

typedef struct sn_announcement {
    uint8_t node[SN_KEY_SIZE]; /* id: its Ed25519 public key */
    uint8_t curve_key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1]; /* HOST:PORT */
    char name[64];                    /* given by its owner; may be empty */
    char version[32];                 /* of its software */
    char device[32];                  /* the devices of its blocks, as "cuda:0,cpu" */
    uint64_t protocol, sequence, expires_unix_ms;
    sn_node_state state;
    sn_reach_kind reach;
    uint64_t relay_places;         /* for so many further nodes it would be a relay */
    uint8_t model[SN_KEY_SIZE];    /* sn_model_id */
    uint8_t manifest[SN_KEY_SIZE]; /* of the files that it shares (sharing/hub/manifest.h); all zero: it shares none */
    uint64_t first_block, end_block, n_blocks; /* [first_block, end_block) of the model's n_blocks; an empty range only
                                                * while JOINING, or OFFLINE */
    /* Of each mixture among its blocks it holds experts [experts[0], experts[1]) of experts[2] only; none: all. It is
     * online while it and other nodes, which it asks within a step, hold all of them. */
    uint64_t experts[3];
    size_t n_experts;
    /* Measured by the node; 0: not yet measured. Forward passes run over the whole span; the cost of one block is an
     * equal share. */
    uint64_t tokens_per_s;        /* what the node adds to the swarm: the least of its small batches and its network */
    uint64_t decode_us;           /* a forward pass of one token */
    uint64_t prompt_tokens_per_s; /* forward passes of many tokens */
    uint64_t network_bytes_per_s; /* to other nodes, the median of the measurements */
    uint64_t kv_bytes_free, sessions, queued_steps;
    uint64_t kv_tokens_max;                  /* no session at this node can have more tokens; 0: it does not say */
    uint64_t wire_dtype[SN_WIRE_DTYPES_MAX]; /* of tensors that it receives and sends, numbered as in reply_dtype */
    size_t n_wire_dtype;
    uint64_t adapters[SN_ADAPTERS_MAX]; /* that its owner publishes: the first 8 bytes of their hashes, big-endian */
    size_t n_adapters;
    struct sn_round_trip {
        uint64_t node, us;            /* node: sn_node_tag of its id */
    } round_trip[SN_ROUND_TRIPS_MAX]; /* to other nodes, as measured */
    size_t n_round_trip;
    uint64_t kv_dtype; /* in which it keeps keys and values, numbered as in reply_dtype */
    /* The hash of each block's weights; zero while JOINING. The last member: an announcement in a directory ends after
     * the last hash of its span, so only sn_announcement_copy may copy it. */
    uint8_t block_hash[SN_SPAN_BLOCKS_MAX][SN_KEY_SIZE];
} sn_announcement;

const char *sn_node_state_name(sn_node_state state);   /* "online", ... */
size_t sn_announcement_size(const sn_announcement *a); /* bytes of the struct up to the last hash of its span */
void sn_announcement_copy(sn_announcement *to, const sn_announcement *from);

/* The first 8 bytes of an id, big-endian: tells the nodes of a swarm apart where no security depends on it. */
uint64_t sn_node_tag(const uint8_t id[SN_KEY_SIZE]);

/* Appends the sealed announcement to *out: a msgpack map, then 64 bytes of signature over it. */
sn_status sn_announcement_seal(const sn_announcement *a, const sn_identity *identity, sn_buf *out,
                               sn_err *err) SN_MUST_USE;
/* Opens a sealed announcement: decodes it and checks everything that needs no directory. */
sn_status sn_announcement_open(const void *data, size_t len, int64_t now_unix_ms, sn_announcement *out,
                               sn_err *err) SN_MUST_USE;
/* Reads only whose announcement it is, and its sequence number; checks nothing else. */
sn_status sn_announcement_peek(const void *data, size_t len, uint8_t node[SN_KEY_SIZE], uint64_t *sequence,
                               sn_err *err) SN_MUST_USE;
/* Decodes only the map of an announcement and checks its values: neither signature nor expiry. For announcements that
 * were opened before, and for the fuzz target. */
sn_status sn_announcement_parse(const void *map, size_t len, sn_announcement *out, sn_err *err) SN_MUST_USE;

/* Puts a copy of a sealed announcement into a new list of one, for a message. NULL: the list stays empty. */
sn_status sn_announcement_list(const sn_blob *sealed, sn_blob **out, size_t *n, sn_err *err) SN_MUST_USE;

/* A sealed announcement and what it says, which never change: directories own theirs, and free it by releasing it. */
typedef struct sn_opened {
    sn_blob sealed;
    sn_announcement a; /* allocated up to the last hash of its span */
} sn_opened;

/* As sn_announcement_open, into new memory with a copy of the bytes. */
sn_status sn_opened_new(const void *data, size_t len, int64_t now_unix_ms, const sn_opened **out,
                        sn_err *err) SN_MUST_USE;
void sn_opened_release(const sn_opened *opened);

typedef struct sn_directory sn_directory;

/* What an announcement changed in the directory. */
typedef enum sn_directory_change {
    SN_CHANGE_NONE,  /* nothing: it was known */
    SN_CHANGE_STATS, /* the node's expiry, load or rates */
    SN_CHANGE_NODE,  /* the node is new, or its state, address, keys or blocks are */
    SN_CHANGE_NAMED, /* nothing: it was refused because it announces a name, which its owner should know */
} sn_directory_change;

sn_status sn_directory_new(sn_directory **out, sn_err *err) SN_MUST_USE;
void sn_directory_free(sn_directory **directory); /* accepts NULL */

/* From now on announced addresses may be names, too: for a transport that dials them. */
void sn_directory_accept_names(sn_directory *directory);
/* Limits the directory to max nodes from now on (at most SN_DIRECTORY_MAX). */
void sn_directory_limit(sn_directory *directory, size_t max);

/* Who brought an announcement. */
typedef struct sn_announcement_source {
    uint64_t peer;                      /* handle of the connection */
    bool dialled;                       /* this program dialled that peer, and asked it */
    uint8_t network[SN_ADDRESS_PREFIX]; /* sn_event.network */
} sn_announcement_source;

/* Adds one sealed announcement. source: NULL: this program itself. SN_REFUSED with the reason when it is dropped. Bytes
 * that are known already, and announcements older than a known one, cost no verification. *tag: of the node that it
 * describes. */
sn_status sn_directory_update(sn_directory *directory, const void *data, size_t len, int64_t now_unix_ms,
                              const sn_announcement_source *source, sn_directory_change *change, uint64_t *tag,
                              sn_err *err) SN_MUST_USE;
/* Whether sn_directory_update would verify this one, which takes a while. */
bool sn_directory_is_news(const sn_directory *directory, const void *data, size_t len);
/* As sn_directory_update, without the report of what changed. */
sn_status sn_directory_add(sn_directory *directory, const void *data, size_t len, int64_t now_unix_ms,
                           sn_err *err) SN_MUST_USE;
/* The node with this id is proven until then; ignored when it is not known. */
void sn_directory_prove(sn_directory *directory, const uint8_t id[SN_KEY_SIZE], int64_t until_unix_ms);
bool sn_directory_is_proven(const sn_directory *directory, const uint8_t id[SN_KEY_SIZE], int64_t now_unix_ms);
/* No program at this address proves this key any more: what nodes announced so does not count until they sign something
 * newer. Announcements stay where they are in memory. */
void sn_directory_retire(sn_directory *directory, const char *address, const uint8_t curve_key[SN_KEY_SIZE]);
void sn_directory_expire(sn_directory *directory, int64_t now_unix_ms); /* removes what has expired */

/* The live nodes, ordered by first block, then by id: the same order in every program. Pointers are valid until the
 * next update or expire. An announcement says what its node signed; it counts until the expiry of the directory, which
 * is no later. */
size_t sn_directory_count(const sn_directory *directory);
const sn_announcement *sn_directory_at(const sn_directory *directory, size_t i);
uint64_t sn_directory_expiry_at(const sn_directory *directory, size_t i);
bool sn_directory_is_proven_at(const sn_directory *directory, size_t i, int64_t now_unix_ms);
const sn_blob *sn_directory_sealed_at(const sn_directory *directory, size_t i);

/* The newest announcement of every remembered node, of nodes that have left, too, ordered by id and so by tag. Some
 * have expired: they are kept until no older announcement of the node can be valid. */
typedef struct sn_known_node {
    uint64_t tag, sequence, expires_unix_ms; /* expiry: of the directory */
} sn_known_node;
size_t sn_directory_known_count(const sn_directory *directory);
const sn_known_node *sn_directory_known(const sn_directory *directory, size_t i);
bool sn_directory_known_is_proven(const sn_directory *directory, size_t i, int64_t now_unix_ms);
const sn_announcement *sn_directory_known_at(const sn_directory *directory, size_t i);
const sn_blob *sn_directory_known_sealed_at(const sn_directory *directory, size_t i);
/* Who brought it: of several, the one with the better claim. */
const sn_announcement_source *sn_directory_known_source_at(const sn_directory *directory, size_t i);
/* The index of the first remembered node with this tag or a greater one. */
size_t sn_directory_seek(const sn_directory *directory, uint64_t tag);
/* The newest announcement of a node, or NULL. */
const sn_announcement *sn_directory_find(const sn_directory *directory, const uint8_t id[SN_KEY_SIZE]);
const sn_blob *sn_directory_find_sealed(const sn_directory *directory, const uint8_t id[SN_KEY_SIZE]);
/* Until when the newest announcement of a node counts; 0: the node is not known. */
uint64_t sn_directory_find_expiry(const sn_directory *directory, const uint8_t id[SN_KEY_SIZE]);

#endif
