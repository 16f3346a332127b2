/* What the two files of the portal share (portal.h): portal.c has the functions for other threads, portal_thread.c the
 * thread. Private to net/transport/. The lock guards everything but the passages, which are the thread's alone. */
#ifndef SN_NET_TRANSPORT_PORTAL_PRIVATE_H
#define SN_NET_TRANSPORT_PORTAL_PRIVATE_H

#include "net/transport/portal.h"
#include "net/transport/splice_private.h"

#include <poll.h>
#include <pthread.h>

enum {
    SN_PORTAL_EXPECTED_MAX = 8, /* tokens of dial-backs */
    SN_PORTAL_QUEUE_MAX = 64,   /* between the thread and others, each way */
    SN_PORTAL_MAGIC_SIZE = 8,
    SN_TOKEN_LINE = SN_PORTAL_MAGIC_SIZE + SN_TOKEN_SIZE,
    SN_PORTAL_HEAD_MAX = 262, /* bytes of what a newcomer says: the longest SOCKS request */
};
/* What a connection that brings a token begins with; SN_PORTAL_MAGIC_SIZE bytes, the last of which is 0. */
#define SN_DIAL_BACK_MAGIC "SWARM<1"
#define SN_ANSWER_MAGIC    "SWARM>1"

typedef enum sn_passage_stage {
    SN_PASSAGE_FIRST,   /* nothing is known of it */
    SN_PASSAGE_METHODS, /* SOCKS: ways to authenticate, of which it must offer none */
    SN_PASSAGE_REQUEST, /* SOCKS: the node that it wants */
    SN_PASSAGE_TOKEN,   /* a dial-back, or the answer of a relayed node */
    SN_PASSAGE_WAITING, /* the relayed node has been called */
    SN_PASSAGE_JOINED,
    SN_PASSAGE_DIALS, /* this portal connects, and will send `head` */
    SN_PASSAGE_ENDED,
} sn_passage_stage;

typedef struct sn_passage {
    sn_passage_stage stage;
    int fd; /* -1: JOINED, whose splice has both, or ENDED */
    sn_splice *splice;
    int64_t until_us;
    struct sockaddr_storage other; /* its other end */
    uint8_t prefix[SN_ADDRESS_PREFIX];
    uint8_t head[SN_PORTAL_HEAD_MAX];
    size_t len, want;                               /* of head: bytes that have come, or been sent; and are to */
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE]; /* WAITING, JOINED: the relayed node, and its call */
} sn_passage;

typedef struct sn_portal_call {
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE];
} sn_portal_call;

struct sn_portal {
    sn_portal_host host;
    int wake_fd;
    pthread_t thread;
    bool started;
    /* Of the thread. */
    sn_passage *passages;            /* (capacity) */
    struct pollfd *polled;           /* (2 * capacity + 1) */
    size_t n, capacity, next_served; /* next_served: the passage that is the first to have some of the rate */
    int64_t budget, refilled_us;     /* bytes that may be relayed now */
    sn_address_limit *calls_of_address;

    pthread_mutex_t lock; /* guards the members below */
    bool stop;
    sn_passage queue[SN_PORTAL_QUEUE_MAX]; /* for the thread to take over */
    size_t n_queue;
    struct {
        uint8_t token[SN_TOKEN_SIZE];
        bool reached;
    } expected[SN_PORTAL_EXPECTED_MAX];
    size_t next_expected;
    int64_t bytes_per_s;
    uint8_t registered[SN_RELAYED_NODES_MAX][SN_KEY_SIZE];
    size_t n_registered;
    uint8_t renewed[SN_RELAYED_NODES_MAX][SN_KEY_SIZE]; /* whose joined connections the thread ends */
    size_t n_renewed;
    sn_portal_call calls[SN_PORTAL_QUEUE_MAX];
    size_t n_calls, n_joined, n_dials;
    uint64_t relayed_bytes;
};

/* -- portal_thread.c */

void *sn_portal_run(void *portal);
void sn_passage_end(sn_passage *passage);
void sn_portal_wake_thread(sn_portal *portal);
bool sn_portal_is_registered(const sn_portal *portal, const uint8_t key[SN_KEY_SIZE]); /* with the lock */

#endif
