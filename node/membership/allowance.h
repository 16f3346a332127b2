/* The allowance of bytes that each peer, a CURVE key, gets of this node's lists of announcements: a token bucket for
 * each of the peers that asked lately, and one for all of them together, because keys cost nothing. A list is hundreds
 * of times as long as the question, so without it a stranger could make a node fill its own connection. A part of
 * sn_membership, plain data; used on the network thread. */
#ifndef SN_NODE_MEMBERSHIP_ALLOWANCE_H
#define SN_NODE_MEMBERSHIP_ALLOWANCE_H

#include "net/message.h"

enum {
    SN_ALLOWANCE_PEERS_MAX = 1024,    /* peers remembered; a new one replaces one that has its full allowance, or the
                                         one that asked longest ago of a few */
    SN_ALLOWANCE_BYTES_PER_S = 32768, /* of one peer, */
    SN_ALLOWANCE_BURST = 655360,      /* at once: more than a node asks for when it starts */
    SN_ALLOWANCE_ALL_BYTES_PER_S = 2 << 20, /* of all peers */
    SN_ALLOWANCE_ALL_BURST = 32 << 20
};

typedef struct sn_allowance_bucket {
    uint8_t key[SN_KEY_SIZE];
    int64_t left, refilled_us; /* refilled_us 0: free */
} sn_allowance_bucket;

typedef struct sn_allowance {
    sn_allowance_bucket peers[SN_ALLOWANCE_PEERS_MAX], all;
} sn_allowance;

/* How many bytes this peer may get now. *wait_ms: when it may ask again if that is none. */
size_t sn_allowance_left(sn_allowance *allowance, const uint8_t key[SN_KEY_SIZE], int64_t now_us, int *wait_ms);
/* After sn_allowance_left: the peer gets so many. */
void sn_allowance_spend(sn_allowance *allowance, const uint8_t key[SN_KEY_SIZE], size_t bytes, int64_t now_us);

#endif
