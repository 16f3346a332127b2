/* A private swarm: a transport around another one that exchanges messages only with holders of the swarm's key.
 *
 * A peer first proves that it holds the 32 secret bytes (ADMIT, docs/PROTOCOL.md, "Private swarms"), and gets the same
 * proof in return; until then no other message of it is passed on, in either direction. A proof is HMAC-SHA256 over the
 * CURVE keys of both ends, which the connection has proven, so it is worthless on any other connection. Threads,
 * ownership and errors are those of the inner transport (net/transport/transport.h). */
#ifndef SN_NET_TRANSPORT_PRIVATE_SWARM_H
#define SN_NET_TRANSPORT_PRIVATE_SWARM_H

#include "net/transport/transport.h"

enum { SN_SWARM_KEY_SIZE = 32 };

/* Takes *inner (sets it NULL), also on failure. The key is copied. */
sn_status sn_transport_private_swarm_new(sn_transport **inner, const sn_identity *identity,
                                         const uint8_t key[SN_SWARM_KEY_SIZE], sn_transport **out,
                                         sn_err *err) SN_MUST_USE;
/* The proof that the holder of CURVE key `from` sends to the holder of `to`. */
void sn_private_swarm_proof(const uint8_t key[SN_SWARM_KEY_SIZE], const uint8_t from[SN_KEY_SIZE],
                            const uint8_t to[SN_KEY_SIZE], uint8_t out[SN_KEY_SIZE]);

/* The file of a swarm's key (net/secret_file.h has its rules). */
sn_status sn_swarm_key_make(const char *path, sn_err *err) SN_MUST_USE;
sn_status sn_swarm_key_load(const char *path, uint8_t out[SN_SWARM_KEY_SIZE], sn_err *err) SN_MUST_USE;

#endif
