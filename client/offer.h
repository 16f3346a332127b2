/* Offers: what a route reckons with of each node, made from what it announces, corrected by what this client has seen
 * of it; and why a node is not used at all. Times are whole nanoseconds, so that the same knowledge gives the same
 * route anywhere. Logic only: no network, no clock. */
#ifndef SN_CLIENT_OFFER_H
#define SN_CLIENT_OFFER_H

#include "client/seen.h"

/* What is reckoned with where nothing is known. */
enum { SN_GUESS_RTT_US = 20000, SN_GUESS_BLOCK_US = 1000, SN_HANDLING_US = 50 };

typedef enum sn_verdict {
    SN_OFFER_USABLE,
    SN_OFFER_STATE, /* not online: joining, draining, offline */
    SN_OFFER_PROTOCOL,
    SN_OFFER_MODEL,    /* another model, or one of another number of blocks */
    SN_OFFER_WEIGHTS,  /* other weights under the same name */
    SN_OFFER_WIRE,     /* does not take hidden states of the wished type */
    SN_OFFER_NOT_ONLY, /* not among those that alone are to be used */
    SN_OFFER_DENIED,
    SN_OFFER_BANNED,
    SN_OFFER_ADAPTER,  /* it does not hold what the session needs, and cannot be brought it */
    SN_OFFER_NO_ROOM,  /* its cache cannot take the session, not even for one block */
    SN_OFFER_VERDICTS
} sn_verdict;
const char *sn_node_state_name(sn_node_state state); /* "online", ... */
const char *sn_verdict_name(sn_verdict verdict); /* "banned", ... */

/* A measured round trip between two offers. Stands at both of them. */
typedef struct sn_offer_link {
    size_t other; /* offer */
    int64_t rtt_ns;
} sn_offer_link;

typedef struct sn_offer {
    const sn_announcement *node; /* NULL: here, at the client. Valid as long as the directory is not changed */
    sn_verdict verdict;
    int first, end;                    /* blocks that it holds */
    int room;                          /* how many of them this session's cache fits for */
    int64_t rtt_ns;                    /* between it and the client */
    int64_t queue_ns;                  /* what a step costs there beside computing: waiting, handling */
    int64_t block_ns;                  /* one token through one block */
    int64_t prompt_ns;                 /* one of many tokens that go through a block together */
    bool rtt_measured, block_measured; /* by this client */
    double tokens_per_s;               /* through all its blocks, many at once */
    const sn_offer_link *links;        /* to offers later or earlier in the list; each other one at most once */
    size_t n_links;
} sn_offer;

enum { SN_PICK_DIGITS_MIN = 4 }; /* fewer are a name only */

/* Whom to use: names, or ids from their beginning in hexadecimal. */
typedef struct sn_pick {
    const char *const *only; /* none given: any */
    size_t n_only;
    const char *const *deny;
    size_t n_deny;
} sn_pick;

typedef struct sn_offer_wish {
    const sn_directory *directory; /* NULL: no nodes */
    const sn_seen *seen;           /* NULL: nothing */
    int64_t now_us;                /* of the clock of `seen` */
    sn_hash model;
    int n_blocks;
    /* What each block's weights must hash to (n_blocks entries), an entry NULL where unknown. */
    const sn_hash *const *block_hash;
    int local_first, local_end; /* blocks held here; equal: none */
    sn_pick pick;
    sn_dtype wire;               /* of hidden states; F32: every node takes them */
    uint64_t adapter; /* tag of one that nodes must hold already; 0: none */
    uint64_t kv_bytes_per_block; /* that the session takes at most; 0: not reckoned with */
    uint64_t seed;               /* decides among equals */
} sn_offer_wish;

typedef struct sn_offers {
    sn_offer *at;
    size_t n;
    sn_offer_link *links; /* of all of them */
} sn_offers;

/* An offer for each node of the directory, usable or not, and one for local blocks. */
sn_status sn_offers_make(const sn_offer_wish *wish, sn_offers *out, sn_err *err) SN_MUST_USE;
void sn_offers_ignore_room(sn_offers *offers); /* from now on those without room are taken, too */
void sn_offers_fini(sn_offers *offers);        /* harmless when zeroed */

#endif
