/* What each client has of the device's time, and how long clients make each other wait for it. Plain data of the
 * scheduler, in measured time; belongs to the device thread.
 *
 * A client that waits while the device computes rows of others is delayed. Its allowance says how much longer it may
 * be: it grows with time, beside n other clients by n / (n + 2.5) of it, and each delay is taken from it. So a client
 * that asks for little keeps 2.5 / (n + 2.5) of the speed that it has alone, less what is not measured here: two thirds
 * beside one, however many sessions that one has and whatever their rows cost.
 *
 * An allowance protects against clients that had more of the device's time only. Of time that was used longer ago than
 * SN_SHARE_WINDOW_US nothing is known any more, and a new client begins as if it had used as much as the one that used
 * least. */
#ifndef SN_NODE_ENGINE_CLIENT_SHARES_H
#define SN_NODE_ENGINE_CLIENT_SHARES_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SN_CLIENT_SHARES_MAX = 64,     /* clients that are remembered: the newest */
    SN_CLIENT_ACTIVE_US = 1000000, /* a client counts as long after its last step as a decoding session */
    SN_SHARE_WINDOW_US = 1000000,
    SN_SHARE_SLACK_US = 20000, /* a client that used only so much more than another one used as much */
};

typedef struct sn_client_share {
    uint64_t client;
    uint64_t batch;       /* number of the newest batch of a kind for which it had steps; 0: none */
    int64_t active_us;    /* when it had steps last; 0: the entry is free */
    int64_t used_us;      /* of the device's time for its rows, without what a pass takes for one row of anybody */
    int64_t allowance_us; /* may be negative */
    double cost;          /* of its rows in the pass that is accounted; 0: it is not in it */
    bool waits;           /* it waits for this pass */
    uint64_t pass;        /* the newest pass of which it was a part, or for which it waited from the beginning on */
} sn_client_share;

typedef struct sn_client_shares {
    sn_client_share list[SN_CLIENT_SHARES_MAX];
    int64_t now_us;   /* until then allowances have grown */
    int64_t limit_us; /* an allowance is no more than this, and no less than four times as much below 0 */
    uint64_t passes;
} sn_client_shares;

/* The client's entry, which is made where there is none. It counts as active now. Valid until the next call. */
sn_client_share *sn_client_shares_of(sn_client_shares *shares, uint64_t client, int64_t now_us);
/* Lets allowances grow until now. */
void sn_client_shares_advance(sn_client_shares *shares, int64_t now_us);
bool sn_client_shares_is_active(const sn_client_share *share, int64_t now_us);
/* Whether the allowance of `client` counts against `other`, which had more of the device's time. */
bool sn_client_shares_protects(const sn_client_shares *shares, uint64_t client, uint64_t other);
/* A pass took so long, of which one row alone, of row_cost, needs base_us. Each client with a `cost` used that part of
 * the rest, and was delayed by the part of others in it, its own first row being in the base; each other client that
 * `waits` was delayed by all of the pass. Takes costs and waits. */
void sn_client_shares_passed(sn_client_shares *shares, int64_t took_us, int64_t base_us, double row_cost);
/* A step of the client came when there were so many µs left of the newest pass. */
void sn_client_shares_came_late(sn_client_shares *shares, uint64_t client, int64_t left_us);
int64_t sn_client_shares_allowance(const sn_client_shares *shares, uint64_t client); /* limit_us of an unknown one */

#endif
