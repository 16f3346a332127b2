/* The allowance of bytes that each peer, a CURVE key, gets of this node's lists of announcements: a token bucket for
 * each of the peers that asked lately, and one for all of them together, because keys cost nothing; and between the two
 * one for each network address, so that no address takes what is there for all. A list is hundreds of times as long as
 * the question, so without them a stranger could make a node fill its own connection. A part of sn_membership, plain
 * data; used on the network thread. */
#ifndef SN_NODE_MEMBERSHIP_ALLOWANCE_H
#define SN_NODE_MEMBERSHIP_ALLOWANCE_H

#include "net/address_limit.h"
#include "net/message.h"

enum {
    SN_ALLOWANCE_PEERS_MAX = 1024,    /* peers remembered; a new one replaces one that has its full allowance, or the
                                         one that asked longest ago of a few */
    SN_ALLOWANCE_BYTES_PER_S = 32768, /* of one peer, */
    SN_ALLOWANCE_BURST = 655360,      /* at once: more than a node asks for when it starts */
    SN_ALLOWANCE_NETWORKS_MAX = 256,
    SN_ALLOWANCE_NETWORK_BYTES_PER_S = 1 << 20, /* of one network address: half of */
    SN_ALLOWANCE_NETWORK_BURST = 16 << 20,
    SN_ALLOWANCE_ALL_BYTES_PER_S = 2 << 20, /* of all peers */
    SN_ALLOWANCE_ALL_BURST = 32 << 20,

    SN_NEWS_SOURCES_MAX = 256, /* network addresses, and as many peers that were dialled, which no address evicts */
    SN_NEWS_PER_S = 64,        /* announcements of one source that are verified, */
    SN_NEWS_BURST = 2048,      /* at once: all that a node asks of another one when it starts */
    SN_NEWS_ALL_PER_S = 512,   /* of all that dialled this node */
    SN_NEWS_ALL_BURST = 8192,
    SN_NEWS_MET_PER_S = 384, /* of all that this node dialled and was not told to join: six neighbours' */
    SN_NEWS_MET_BURST = 4096,
    SN_NEWS_FIRSTS_PER_S = 1, /* beside these: the first ones of messages of one connection, */
    SN_NEWS_FIRSTS_BURST = 10,
    SN_NEWS_CONNECTIONS_MAX = 8192 /* as many as a transport has at once: the low bits of their handles differ */
};

typedef struct sn_allowance_bucket {
    uint8_t key[SN_KEY_SIZE];
    int64_t left, refilled_us; /* refilled_us 0: free */
} sn_allowance_bucket;

typedef struct sn_allowance {
    sn_allowance_bucket peers[SN_ALLOWANCE_PEERS_MAX], networks[SN_ALLOWANCE_NETWORKS_MAX], all;
} sn_allowance;

/* The program that asks. network: of zeros where it is not known; then only the other two buckets count. */
typedef struct sn_allowance_peer {
    uint8_t key[SN_KEY_SIZE], network[SN_ADDRESS_PREFIX];
} sn_allowance_peer;

/* How many bytes this peer may get now. *wait_ms: when it may ask again if that is none. */
size_t sn_allowance_left(sn_allowance *allowance, const sn_allowance_peer *peer, int64_t now_us, int *wait_ms);
/* After sn_allowance_left: the peer gets so many. */
void sn_allowance_spend(sn_allowance *allowance, const sn_allowance_peer *peer, size_t bytes, int64_t now_us);

/* The announcements that a node verifies, in millionths: one takes a tenth of a millisecond of the network thread, and
 * hundreds come in one message. A source is a network address, or a peer that this node dialled. */
typedef struct sn_news_allowance {
    struct sn_news_connection {
        uint64_t peer;
        int64_t paid_us; /* when the first ones that it has brought would have come at the steady rate */
    } connections[SN_NEWS_CONNECTIONS_MAX];
    sn_allowance_bucket sources[SN_NEWS_SOURCES_MAX], dialled[SN_NEWS_SOURCES_MAX], all, met;
} sn_news_allowance;

/* Whether one more of this source may be verified now; counts it. A source of zeros, which is not known, always may. */
bool sn_news_allowed(sn_news_allowance *allowance, const uint8_t source[SN_ADDRESS_PREFIX], bool dialled,
                     int64_t now_us);
/* Beside it for peers that this node dialled and was not told to join: a stranger that invents nodes makes it dial one
 * after the other, each of which would have a new allowance. */
bool sn_news_of_met_allowed(sn_news_allowance *allowance, int64_t now_us);
/* The same for the first one of a message of a peer that dialled this node. */
bool sn_news_first_allowed(sn_news_allowance *allowance, uint64_t peer, int64_t now_us);

#endif
