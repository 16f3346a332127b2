/* Who serves what: signed announcements, and the directory that keeps the live ones. Logic only: it is handed bytes and
 * the time. A directory belongs to one thread.
 *
 * An announcement is spoken by the node it describes: signed by its Ed25519 key, with a sequence number that only grows and
 * an expiry of about a minute. Dropped with a reason: a bad signature, one that says another's id, an old sequence, one
 * expired or expiring too far ahead, a range of blocks that is none, too many. */
#ifndef SN_NET_DIRECTORY_H
#define SN_NET_DIRECTORY_H

#include "net/identity.h"

enum {
    SN_ANNOUNCE_EVERY_MS = 15000,
    SN_ANNOUNCE_LIFE_MS = 60000,
    SN_ANNOUNCE_LIFE_MS_MAX = 120000, /* an expiry further ahead is refused (allows for clocks that differ) */
    SN_SPAN_BLOCKS_MAX = 256,
    SN_DIRECTORY_MAX = 16384,         /* nodes kept; the one that expires first makes room */
    SN_ROUND_TRIPS_MAX = 16,          /* other nodes that an announcement says its distance to */
    SN_WIRE_DTYPES_MAX = 8,
};

/* JOINING: it loads, or waits to know what to load; its blocks are what it means to serve, not to be used yet. DRAINING: it
 * takes no new sessions. OFFLINE: its last word. */
typedef enum sn_node_state { SN_NODE_JOINING, SN_NODE_ONLINE, SN_NODE_DRAINING, SN_NODE_OFFLINE } sn_node_state;

typedef struct sn_announcement {
    uint8_t node[SN_KEY_SIZE];      /* id */
    uint8_t curve_key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
    char name[64];                  /* what its owner calls it; may be empty */
    char version[32];               /* software */
    uint64_t protocol, sequence, expires_unix_ms;
    sn_node_state state;
    uint8_t model[SN_KEY_SIZE];     /* sn_model_id */
    uint64_t first_block, end_block, n_blocks; /* of n_blocks of the model; none (equal) only while JOINING, or OFFLINE */
    /* Measured, 0: not yet. Of passes over the whole span; what a block costs is an equal share. */
    uint64_t tokens_per_s;          /* what it adds to the swarm: the least of computing in small batches and its network */
    uint64_t decode_us;             /* a pass of one token */
    uint64_t prompt_tokens_per_s;   /* passes of many tokens */
    uint64_t network_bytes_per_s;   /* to others, the median of what was measured */
    uint64_t kv_bytes_free, sessions, queue;
    uint64_t wire_dtype[SN_WIRE_DTYPES_MAX]; /* of tensors that it takes and sends, as reply_dtype counts them */
    size_t n_wire_dtype;
    uint64_t adapters[SN_ADAPTERS_MAX]; /* that its owner publishes: the first 8 bytes of their hashes, big-endian */
    size_t n_adapters;
    struct sn_round_trip {
        uint64_t node, us;          /* node: sn_node_tag of its id */
    } round_trip[SN_ROUND_TRIPS_MAX]; /* to others, as measured */
    size_t n_round_trip;
    /* end_block - first_block of them; zero while JOINING. The last member: what a directory hands out ends behind the last of
     * them, and is copied by sn_announcement_copy only. */
    uint8_t block_hash[SN_SPAN_BLOCKS_MAX][SN_KEY_SIZE];
} sn_announcement;

size_t sn_announcement_size(const sn_announcement *a); /* bytes of the struct with its hashes and no more */
void sn_announcement_copy(sn_announcement *to, const sn_announcement *from);

/* The first 8 bytes of an id, big-endian: enough to tell the nodes of a swarm apart where nothing rests on it. */
uint64_t sn_node_tag(const uint8_t id[SN_KEY_SIZE]);
/* The round trip that a node has measured to the one with this id, in microseconds; 0: it says nothing of it. */
uint64_t sn_announcement_round_trip(const sn_announcement *a, const uint8_t id[SN_KEY_SIZE]);

/* Encodes and signs: msgpack map, then 64 bytes of signature over it. */
sn_status sn_announcement_seal(const sn_announcement *a, const sn_identity *identity, sn_buf *out,
                               sn_err *err) SN_MUST_USE;
/* Decodes and checks everything that needs no directory. */
sn_status sn_announcement_open(const void *data, size_t len, int64_t now_unix_ms, sn_announcement *out,
                               sn_err *err) SN_MUST_USE;

typedef struct sn_directory sn_directory;

/* What an announcement told that was not known before. */
typedef enum sn_news {
    SN_NEWS_NONE,
    SN_NEWS_FIGURES, /* the node lives on; its load and rates may be others */
    SN_NEWS_CHANGE,  /* the node is new, or its state, address or blocks are */
} sn_news;

sn_status sn_directory_new(sn_directory **out, sn_err *err) SN_MUST_USE;
void sn_directory_free(sn_directory **directory);

/* Not more than so many nodes are kept from now on (SN_DIRECTORY_MAX at most). */
void sn_directory_limit(sn_directory *directory, size_t max);

/* Takes one sealed announcement. SN_REFUSED with the reason when it is dropped. What is known already, byte by byte or by a
 * later one, costs no verification. *tag: of the node that it speaks of. */
sn_status sn_directory_learn(sn_directory *directory, const void *data, size_t len, int64_t now_unix_ms, sn_news *news,
                             uint64_t *tag, sn_err *err) SN_MUST_USE;
/* The same, for who does not mind what is new. */
sn_status sn_directory_take(sn_directory *directory, const void *data, size_t len, int64_t now_unix_ms,
                            sn_err *err) SN_MUST_USE;
void sn_directory_expire(sn_directory *directory, int64_t now_unix_ms);

/* The live ones, ordered by first block, then id: the same order everywhere. Valid until the next take or expire. */
size_t sn_directory_count(const sn_directory *directory);
const sn_announcement *sn_directory_at(const sn_directory *directory, size_t i);
const sn_blob *sn_directory_sealed_at(const sn_directory *directory, size_t i);

/* The newest word of every node that is remembered, of those that have left, too, ordered by id and so by tag. Some have
 * expired: they are kept only so that older ones are not believed. */
size_t sn_directory_words(const sn_directory *directory);
const sn_announcement *sn_directory_word(const sn_directory *directory, size_t i);
const sn_blob *sn_directory_word_sealed(const sn_directory *directory, size_t i);
size_t sn_directory_seek(const sn_directory *directory, uint64_t tag); /* the first word with this tag or a greater one */
/* A node's newest word, or NULL. */
const sn_announcement *sn_directory_find(const sn_directory *directory, const uint8_t id[SN_KEY_SIZE]);

#endif
