/* Peer statistics: what a client has measured of nodes (round trips, queue and compute times of steps) and their
 * failures. They correct what nodes announce about themselves, and decide which nodes are banned for a while.
 *
 * Central type: sn_peer_stats, one for each chain, used on the chain's thread. No clock: times are arguments, all on
 * one monotonic clock, in microseconds. */
#ifndef SN_CLIENT_ROUTING_PEER_STATS_H
#define SN_CLIENT_ROUTING_PEER_STATS_H

#include "net/directory.h"

enum {
    SN_PEER_STATS_MAX = 1024,           /* nodes; the one updated longest ago is replaced */
    SN_PEER_STATS_FRESH_US = 120000000, /* older measurements do not count */
    SN_BAN_US = 15000000,               /* after a first failure; doubled for each further one */
    SN_BAN_US_MAX = 600000000,
    SN_ABSENCE_US = 2000000,         /* for which a node that could not be reached is not tried again; doubled each */
    SN_ABSENCE_US_MAX = 64000000,    /* time, up to the life of an announcement of a node that is gone */
    SN_FAILURE_DECAY_STEPS = 64,     /* one failure is forgotten after so many good steps, */
    SN_LOSSES_MAX = 2,               /* sessions that a node may lose meanwhile */
    SN_FAILURE_DECAY_US = 300000000, /* or after so much time without another failure */
};

typedef struct sn_peer_stat {
    uint8_t node[SN_KEY_SIZE];
    int64_t newest_us;   /* time of the newest measurement or failure */
    int64_t measured_us; /* time of the newest measurement of a step or round trip; 0: none */
    /* Exponential moving averages; -1: not measured. */
    int64_t rtt_us;   /* round trip to this client */
    bool answers;     /* false: rtt_us is how long its answer was waited for in vain */
    int64_t queue_us; /* for which a step waited */
    int64_t block_ns; /* for computing one token through one block */
    int failures;     /* not forgotten yet */
    int absences;     /* since its newest step, as far as they make the next ban longer */
    int losses;       /* of sessions, not forgotten yet */
    int64_t lost_us;  /* time of the newest of these */
    int64_t banned_until_us, failed_us;
    int good_steps;   /* since the newest failure, less those that made a failure forgotten */
    bool looked_up;   /* the directory was read since the newest failure; it said: */
    uint64_t address; /* where the node is, as a hash; 0: it is not online */
} sn_peer_stat;

typedef struct sn_peer_stats sn_peer_stats;
sn_status sn_peer_stats_new(sn_peer_stats **out, sn_err *err) SN_MUST_USE;
void sn_peer_stats_free(sn_peer_stats **peer_stats); /* accepts NULL */

/* NULL: nothing is known of the node, or peer_stats is NULL. Valid until the next call that is not const. */
const sn_peer_stat *sn_peer_stats_find(const sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE]);

void sn_peer_stats_note_rtt(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t rtt_us, int64_t now_us);
/* It did not answer within waited_us. */
void sn_peer_stats_note_silence(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t waited_us,
                                int64_t now_us);
/* A step of `tokens` rows through `blocks` blocks that the node has answered correctly. */
void sn_peer_stats_note_step(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int blocks, int tokens,
                             int64_t queue_us, int64_t compute_us, int64_t now_us);
/* The node failed: it is banned for a time that grows with its failures. Returns that time in microseconds. */
int64_t sn_peer_stats_note_failure(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t now_us);
/* The node could not be reached: it is banned for a time that grows while no step of it is noted, and no failure is
 * counted. Returns that time. */
int64_t sn_peer_stats_note_absence(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t now_us);
/* The node has lost a session, as by a restart, or the connection to it. False: it has done so SN_LOSSES_MAX times
 * before without SN_FAILURE_DECAY_STEPS good steps or SN_FAILURE_DECAY_US between, and this is a failure: each loss
 * costs a replay. */
bool sn_peer_stats_note_loss(sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t now_us);
/* For how much longer the node is banned; 0: it is not. */
int64_t sn_peer_stats_ban_left_us(const sn_peer_stats *peer_stats, const uint8_t node[SN_KEY_SIZE], int64_t now_us);
/* Reads from the directory which nodes are online, and where. The ban for a first failure ends at once when the node
 * goes offline and comes back with its identity, or announces another address than the one that was read first after
 * the failure; a node that failed again could do so without end, and stays banned for its time. */
void sn_peer_stats_note_online(sn_peer_stats *peer_stats, const sn_directory *directory);

#endif
