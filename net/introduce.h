/* Introductions: from an address that a person typed to the key that a CURVE connection needs.
 *
 * CURVE wants the server's key before the first byte, and people only know tcp://host:port. A node therefore answers one
 * question by UDP on the port of the same number: who are you? The answer holds its id and CURVE key, and the id's signature
 * over them and the asker's nonce. What it proves is that the answerer holds that identity, not that it is the one meant:
 * trust on first use, unless the address pins the key ("tcp://host:port#<64 hexadecimal digits>"; then nobody is asked).
 * Questions are as long as answers, so a forged sender gains nothing. Announcements carry keys, so only the very first
 * contact needs this. One thread serves and asks; the functions below may be called from any. */
#ifndef SN_NET_INTRODUCE_H
#define SN_NET_INTRODUCE_H

#include "net/identity.h"

typedef struct sn_introducer sn_introducer;

/* Splits "tcp://host:port" or "tcp://host:port#key". `plain` gets the address without the key; *pinned says whether there
 * was one. SN_REFUSED with what an address looks like. */
sn_status sn_address_parse(const char *text, char plain[SN_ADDRESS_MAX + 1], uint8_t key[SN_KEY_SIZE], bool *pinned,
                           sn_err *err) SN_MUST_USE;

/* Starts the thread. `identity` and `bound` (where the transport listens) to answer questions, both NULL only to ask.
 * `found` is called on the thread when an answer came, and by sn_introducer_ask for a pinned address; it must only wake
 * somebody. SN_REFUSED when the port is taken. */
sn_status sn_introducer_new(const sn_identity *identity, const char *bound, void (*found)(void *), void *ctx,
                            sn_introducer **out, sn_err *err) SN_MUST_USE;
void sn_introducer_free(sn_introducer **introducer); /* NULL-safe; joins the thread */

/* Asks at the address, again and again until answered: twice a second at first, later every five seconds. */
sn_status sn_introducer_ask(sn_introducer *introducer, const char *address, sn_err *err) SN_MUST_USE;
/* The next one that answered: its plain address and key. False: none new. */
bool sn_introducer_take(sn_introducer *introducer, char address[SN_ADDRESS_MAX + 1], uint8_t key[SN_KEY_SIZE]);

#endif
