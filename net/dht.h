/* First contacts on the Internet: signposts (signpost.h) in a distributed hash table, under a hash of the model's id. Built with
 * OpenDHT where its library is found (net/opendht/dht.c, a library of its own because OpenDHT is GPL-3), else a build that says
 * that it cannot (none.c). OpenDHT's node listens on UDP on all addresses, and runs a thread; its callbacks only enqueue.
 *
 * Nothing found here is taken for alive: it is asked like any address that a person gives by --join. */
#ifndef SN_NET_DHT_H
#define SN_NET_DHT_H

#include "net/signpost.h"

typedef struct sn_dht sn_dht;

/* `contact`: "HOST:PORT" of any node of the table, or "on": we are the first. port: of UDP, 0: any. `found` is called on the
 * table's thread when there is something to take; it must only wake somebody. Asks at once. SN_REFUSED: a contact that is none,
 * a port that is taken, a build without OpenDHT. */
sn_status sn_dht_open(const char *contact, int port, const uint8_t model[SN_KEY_SIZE], void (*found)(void *), void *ctx,
                      sn_dht **out, sn_err *err) SN_MUST_USE;
void sn_dht_close(sn_dht **dht); /* NULL-safe; joins the thread */

int sn_dht_port(const sn_dht *dht);
/* Asks again who knows the model. */
void sn_dht_search(sn_dht *dht);
/* Puts up a signpost to us. It lasts ten minutes: do it again before. */
sn_status sn_dht_offer(sn_dht *dht, const sn_identity *identity, const char *address, int64_t now_unix_ms,
                       sn_err *err) SN_MUST_USE;
/* The next address that was found, with its key pinned ("tcp://host:port#key"), checked, each node once. False: none. */
bool sn_dht_take(sn_dht *dht, int64_t now_unix_ms, char address[SN_ADDRESS_MAX + 2 * SN_KEY_SIZE + 2]);

#endif
