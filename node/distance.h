/* How far other nodes are, and how fast bytes reach them: what the PINGs of a node have shown. Logic only: it is told what was
 * asked and answered, and the time. */
#ifndef SN_NODE_DISTANCE_H
#define SN_NODE_DISTANCE_H

#include "net/directory.h"
#include "net/transport.h"

enum { SN_DISTANCE_ASKED_MAX = 16, SN_DISTANCE_KNOWN_MAX = 64, SN_DISTANCE_RATES_MAX = 9 };

typedef struct sn_distance {
    struct sn_ping {
        sn_peer peer; /* 0: this place is free */
        uint64_t request, node, bytes;
        int64_t sent_us;
    } asked[SN_DISTANCE_ASKED_MAX]; /* the oldest is given up for a new one */
    size_t next_asked;
    struct {
        uint64_t node, us; /* us: a running mean of which the newest is a quarter */
        int64_t heard_us;
    } known[SN_DISTANCE_KNOWN_MAX];
    size_t n_known;
    uint64_t rates[SN_DISTANCE_RATES_MAX], n_rates; /* bytes a second, the newest ones */
} sn_distance;

/* A PING of so many bytes went out to the node with this tag (sn_node_tag). */
void sn_distance_asked(sn_distance *d, sn_peer peer, uint64_t request, uint64_t node, uint64_t bytes, int64_t now_us);
/* Its PONG came. One that nobody waits for is nothing. */
void sn_distance_answered(sn_distance *d, sn_peer peer, uint64_t request, int64_t now_us);

uint64_t sn_distance_to(const sn_distance *d, uint64_t node); /* microseconds there and back, 0: not known */
uint64_t sn_distance_bytes_per_s(const sn_distance *d);       /* the median of the newest; 0: not measured */
/* The newest round trips, for an announcement. */
void sn_distance_tell(const sn_distance *d, sn_announcement *a);

#endif
