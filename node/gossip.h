/* What a core keeps for the passing on of announcements (core_gossip.c). A part of sn_core. */
#ifndef SN_NODE_GOSSIP_H
#define SN_NODE_GOSSIP_H

#include "net/directory.h"
#include "net/transport.h"

enum {
    SN_NEAR_MAX = 6,      /* nodes that we talk to of ourselves; one of them is replaced in each round */
    SN_RETIRED_MAX = 16,  /* connections of former ones that are kept a while */
    SN_NEWS_MAX = 512,
    SN_REMEMBERED_MAX = 16,
    SN_GOSSIP_BYTES_PER_S = 16384, /* that a node sends to other nodes at most, however large the swarm */
};

/* Nodes of whom there is news to pass on, by tag; the oldest falls out when there is more than fits. */
typedef struct sn_news_queue {
    uint64_t tag[SN_NEWS_MAX];
    size_t first, n;
} sn_news_queue;

typedef struct sn_near {
    sn_peer peer;
    uint8_t id[SN_KEY_SIZE];
    bool greeted;
} sn_near;

typedef struct sn_gossip {
    uint64_t seed;
    sn_near near[SN_NEAR_MAX];
    size_t n_near;
    sn_peer retired[SN_RETIRED_MAX];
    size_t next_retired;
    sn_news_queue changes, figures; /* changes go first */
    int64_t bytes_per_s, allowance, allowance_us; /* bytes that may be sent now, as of then */
    int64_t push_us, pull_us;        /* when to pass on news, and to ask for what we lack */
    struct sn_remembered {
        char address[SN_ADDRESS_MAX + 1]; /* empty: none */
        uint8_t id[SN_KEY_SIZE], curve_key[SN_KEY_SIZE];
    } remembered[SN_REMEMBERED_MAX]; /* nodes that were there once: where a swarm that fell apart finds together again */
    uint64_t bytes_sent;
} sn_gossip;

#endif
