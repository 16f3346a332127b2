/* A network of links with faults, as sn_transport. Each message is encoded and decoded. Addresses are "mem://N", N the
 * number of the place.
 *
 * What TCP does and what it does not: messages of a connection arrive in order and once, a connection that breaks takes
 * what is on its way with it and tells the dialling end - or, when a machine falls silent, only later. Beyond that single
 * messages can be lost, doubled or overtaken, which the protocol has to survive, too. */
#ifndef SN_TESTS_SIM_NET_H
#define SN_TESTS_SIM_NET_H

#include "net/transport.h"
#include "tests/sim/time.h"

typedef struct sim_net sim_net;

typedef struct sim_faults {
    double loss, doubling, overtaking; /* of a message */
} sim_faults;

/* Told of an event at a place; owns event->msg. */
typedef void (*sim_receive)(void *ctx, sn_event *event);

sim_net *sim_net_new(sim_time *time, sim_random random);
void sim_net_free(sim_net **net);
sim_faults *sim_net_faults(sim_net *net); /* to be changed at will */

/* A new place: of a machine (it keeps its clock) with an identity. Its number is its address. */
int sim_place_new(sim_net *net, sim_actor *actor, const uint8_t curve_key[SN_KEY_SIZE]);
/* The transport of the program that runs there now, free with sn_transport_free. `receive` NULL: events are kept for recv,
 * which waits as the running task. One at a time. */
sn_transport *sim_transport_new(sim_net *net, int place, sim_receive receive, void *ctx);
/* The program there dies: nothing is said any more. `silent`: nobody is told either, until they find out. */
void sim_place_crash(sim_net *net, int place, bool silent);
/* Places of different sides do not reach each other. 0 for all at the beginning. */
void sim_place_side(sim_net *net, int place, int side);
/* Breaks one connection by chance, if there is any. */
void sim_net_cut(sim_net *net);
/* What a place changes in what it sends (a liar); NULL: nothing. */
void sim_place_tamper(sim_net *net, int place, void (*tamper)(void *ctx, sn_msg *msg), void *ctx);

typedef struct sim_traffic {
    uint64_t messages[SN_MSG_KIND_COUNT], bytes[SN_MSG_KIND_COUNT]; /* sent, by kind */
} sim_traffic;
const sim_traffic *sim_net_traffic(const sim_net *net);
uint64_t sim_place_sent(const sim_net *net, int place); /* bytes, since the beginning */
int64_t sim_net_latency_us(const sim_net *net, int from, int to); /* one way, without chance */

#endif
