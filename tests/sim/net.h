/* A network with faults, as sn_transport. Each message is encoded and decoded. Addresses are "nodeN:1", where N is
 * the number of the host.
 *
 * As with TCP, the messages of a connection arrive in order and once; a connection that breaks loses the messages in
 * flight and tells the dialling end, at once or, when a machine falls silent, only later. Beyond TCP, single
 * messages can be lost, duplicated or overtaken, which the protocol has to survive, too. */
#ifndef SN_TESTS_SIM_NET_H
#define SN_TESTS_SIM_NET_H

#include "net/transport/transport.h"
#include "tests/sim/time.h"

typedef struct sim_net sim_net;

typedef struct sim_faults {
    double loss, duplication, reordering; /* probability per message */
    double garbling;                      /* a byte of its map is changed, which CURVE excludes in reality */
} sim_faults;

/* Receives an event at a host; takes ownership of event->msg. */
typedef void (*sim_receive)(void *ctx, sn_event *event);

sim_net *sim_net_new(sim_time *time, sim_rng random);
void sim_net_free(sim_net **net);
/* Messages are handed over instead of being encoded and decoded again, which takes most of the time where thousands of
 * nodes gossip; their bytes are counted. Not together with faults. */
void sim_net_hand_over(sim_net *net);
/* A part of a sim_prepare: returns the ctx of the program that is to receive a message, or NULL. */
const void *sim_net_prepare(sim_action action, const void *what, int level);
/* From now on a signature is a hash of the bytes and of the signer's id (memo.c), for programs in which no node forges
 * any. */
void sim_fake_signatures(void);
sim_faults *sim_net_faults(sim_net *net); /* may be changed at any time */

/* Adds a host: a machine (which has its own clock) with an identity. Its number is its address. */
int sim_host_new(sim_net *net, sim_actor *actor, const uint8_t curve_key[SN_KEY_SIZE]);
/* Makes the transport of the program that now runs at the host; free with sn_transport_free. `receive` NULL: events
 * are kept for recv, which waits as the running task. One program at a time. */
sn_transport *sim_transport_new(sim_net *net, int host, sim_receive receive, void *ctx);
/* The program at the host ends without another message. `silent`: its connections are not closed either, so that the
 * other ends notice only later. */
void sim_host_crash(sim_net *net, int host, bool silent);
/* Hosts on different sides do not reach each other. All begin on side 0. */
void sim_host_set_side(sim_net *net, int host, int side);
/* Breaks one random connection, if there is any. */
void sim_net_break_connection(sim_net *net);
/* Lets a byzantine host change the messages that it sends; NULL: none. */
void sim_host_set_tamper(sim_net *net, int host, void (*tamper)(void *ctx, sn_msg *msg), void *ctx);

typedef struct sim_traffic {
    uint64_t messages[SN_MSG_KIND_COUNT], bytes[SN_MSG_KIND_COUNT]; /* sent, by kind */
} sim_traffic;
uint64_t sim_net_garbled(const sim_net *net); /* messages of which a byte was changed */
const sim_traffic *sim_net_traffic(const sim_net *net);
uint64_t sim_host_bytes_sent(const sim_net *net, int host); /* bytes since the beginning */

#endif
