/* Introductions: how a program learns the CURVE key of a node of which it knows only the address.
 *
 * CURVE needs the server's key before the first byte is sent, and users know only HOST:PORT. A node therefore answers
 * one kind of UDP datagram at the port of the same number: its id, its CURVE key, and a signature over them and the
 * question's nonce. The answer proves that its sender holds that identity. It does not prove that this is the node that
 * the user meant: that is trust on first use, unless the address pins the key (HOST:PORT#KEY, net/address.h; then no
 * question is sent). A question is as long as an answer, so a forged sender address gains no amplification.
 * Announcements carry CURVE keys, so only the first contact with a swarm needs an introduction.
 *
 * An sn_introducer has one thread that answers and asks. The functions below may be called from any thread. */
#ifndef SN_NET_INTRODUCTION_H
#define SN_NET_INTRODUCTION_H

#include "net/address.h"
#include "net/identity.h"

typedef struct sn_introducer sn_introducer;

/* Starts the thread. identity and bound (the address at which the transport listens): to answer questions; both are
 * NULL in a program that only asks. `identity` is borrowed. `on_found` is called on the thread when an answer arrives,
 * and by sn_introducer_ask for a pinned address; it may only wake another thread. SN_REFUSED: the UDP port is in use;
 * retry_after_ms as of a transport that listens.
 */
sn_status sn_introducer_new(const sn_identity *identity, const char *bound, void (*on_found)(void *), void *ctx,
                            sn_introducer **out, sn_err *err) SN_MUST_USE;
void sn_introducer_free(sn_introducer **introducer); /* accepts NULL; joins the thread */

/* "lan" looks for nodes of the local network (net/lan.h), and lets this one be found there, from now on.
 * Asks at HOST:PORT or HOST:PORT#KEY, whose host may be a name, until an answer arrives: 20 times every half second,
 * then every five seconds. SN_REFUSED: no address, or too many of them. */
sn_status sn_introducer_ask(sn_introducer *introducer, const char *address, sn_err *err) SN_MUST_USE;
/* Asks once more at a numeric address that was handed out and not pinned: another node may be there now. */
void sn_introducer_ask_again(sn_introducer *introducer, const char *address);
/* Hands out the numeric address of each that answered (or was pinned) once, with its key. False: there is no new one.
 */
bool sn_introducer_next(sn_introducer *introducer, char address[SN_ADDRESS_MAX + 1], uint8_t key[SN_KEY_SIZE]);

#endif
