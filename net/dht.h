/* First contacts on the Internet: DHT records (net/dht_record.h) in a public distributed hash table, under a hash of
 * the model's id.
 *
 * net/opendht/dht.c implements it with OpenDHT, as a library of its own because OpenDHT's licence is GPL-3; a build
 * without OpenDHT has net/opendht/none.c, whose sn_dht_open says so. OpenDHT listens on UDP on all interfaces and runs
 * its own thread, whose callbacks only enqueue records. The functions below belong to the caller's network thread.
 *
 * A record that is found proves nothing about its node, and a stranger may publish any number of them: net/dht_found.h
 * says whom to ask. */
#ifndef SN_NET_DHT_H
#define SN_NET_DHT_H

#include "net/dht_found.h"

typedef struct sn_dht sn_dht;

/* The help of an option that needs OpenDHT, and the end of a sentence that names --dht: none in a build without. */
#ifdef SN_WITH_DHT
#define SN_DHT_HELP(text) (text)
#define SN_OR_DHT         ", or --dht"
#else
#define SN_DHT_HELP(text) NULL
#define SN_OR_DHT         ""
#endif

/* Opens the DHT and starts the first search. bootstrap: "HOST:PORT" of any node of the DHT, or "on": this is its first
 * node. port: UDP, 0: any. `on_found` is called on OpenDHT's thread when sn_dht_next may have a record; it may only
 * wake another thread. SN_REFUSED: bootstrap is no address, the port is in use, or the build has no OpenDHT. */
sn_status sn_dht_open(const char *bootstrap, int port, const uint8_t model[SN_KEY_SIZE], void (*on_found)(void *),
                      void *ctx, sn_dht **out, sn_err *err) SN_MUST_USE;
void sn_dht_close(sn_dht **dht); /* accepts NULL; joins the thread */

int sn_dht_port(const sn_dht *dht); /* UDP */
/* Searches again for nodes that serve the model. */
void sn_dht_search(sn_dht *dht);
/* Publishes this node's record. It expires after ten minutes: publish again before. */
sn_status sn_dht_publish(sn_dht *dht, const sn_identity *identity, const char *address, int64_t now_unix_ms,
                         sn_err *err) SN_MUST_USE;
/* The next record that was found and verified, also one that was found before. False: there is none. */
bool sn_dht_next(sn_dht *dht, int64_t now_unix_ms, sn_dht_record *record);

#endif
