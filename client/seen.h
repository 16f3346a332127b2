/* What a client has seen of nodes: round trips, how long their steps took, and whether they failed. It corrects what
 * nodes say of themselves, and it decides who is not asked for a while. Logic only: it is handed the time. One thread.
 */
#ifndef SN_CLIENT_SEEN_H
#define SN_CLIENT_SEEN_H

#include "net/directory.h"

enum {
    SN_SEEN_MAX = 1024,           /* nodes remembered; the one unheard of for longest makes room */
    SN_SEEN_FRESH_US = 120000000, /* what was measured longer ago does not count any more */
    SN_BAN_US = 15000000,         /* for a first failure; doubled for each further one */
    SN_BAN_US_MAX = 600000000,
    SN_FORGIVE_STEPS = 64,     /* steps done well that make one failure forgotten */
    SN_FORGIVE_US = 300000000, /* as does so much time without another one */
};

typedef struct sn_sight {
    uint8_t node[SN_KEY_SIZE];
    int64_t heard_us;    /* newest measurement or failure */
    int64_t measured_us; /* newest measurement of a step or round trip; 0: none */
    int64_t rtt_us;      /* to this client; -1: not measured. These are means that forget exponentially */
    int64_t queue_us;    /* that a step waited; -1: not measured */
    int64_t block_ns;    /* of computing one token through one block; -1: not measured */
    int failures;        /* not forgiven yet */
    int64_t banned_until_us, failed_us;
    int good_steps; /* since something was last forgiven, or failed */
    bool gone;      /* was not online at some time after it was banned */
} sn_sight;

typedef struct sn_seen sn_seen;
sn_status sn_seen_new(sn_seen **out, sn_err *err) SN_MUST_USE;
void sn_seen_free(sn_seen **seen); /* NULL-safe */

/* NULL when the node was never heard of, or there is no `seen`. Valid until the next call that changes something. */
const sn_sight *sn_seen_of(const sn_seen *seen, const uint8_t node[SN_KEY_SIZE]);

void sn_seen_round_trip(sn_seen *seen, const uint8_t node[SN_KEY_SIZE], int64_t rtt_us, int64_t now_us);
/* A step of `tokens` rows through `blocks` blocks that the node answered as it should. */
void sn_seen_step(sn_seen *seen, const uint8_t node[SN_KEY_SIZE], int blocks, int tokens, int64_t queue_us,
                  int64_t compute_us, int64_t now_us);
/* The node failed: it is banned for a time that grows with its failures. Returns how long, in microseconds. */
int64_t sn_seen_failure(sn_seen *seen, const uint8_t node[SN_KEY_SIZE], int64_t now_us);
/* How long it is still banned; 0: it is not. */
int64_t sn_seen_banned_us(const sn_seen *seen, const uint8_t node[SN_KEY_SIZE], int64_t now_us);
/* Looks at who is online: a banned node that went and came back under its old identity gets another chance at once,
 * though its failures still count for the next ban. */
void sn_seen_presence(sn_seen *seen, const sn_directory *directory);

#endif
