/* A private swarm: only those who hold its key are heard.
 *
 * A transport around another one. Whoever connects proves first that he holds the 32 secret bytes, and is answered by the same
 * proof; until then nothing else of him comes through, in either direction: not to join, to ask, to serve, to push. A proof is
 * HMAC-SHA256 over both CURVE keys, which the connection has proven, so it is worth nothing to anybody else and nowhere else.
 * Messages by ADMIT (docs/PROTOCOL.md, "Private swarms"). Belongs to the thread of the inner transport. */
#ifndef SN_NET_MEMBERS_H
#define SN_NET_MEMBERS_H

#include "net/transport.h"

enum { SN_SWARM_KEY_SIZE = 32 };

/* Takes *inner, on success and on failure. The key is copied. */
sn_status sn_transport_private_new(sn_transport **inner, const sn_identity *identity,
                                   const uint8_t key[SN_SWARM_KEY_SIZE], sn_transport **out, sn_err *err) SN_MUST_USE;
/* The proof that the holder of CURVE key `from` gives to the one of `to`. */
void sn_member_proof(const uint8_t key[SN_SWARM_KEY_SIZE], const uint8_t from[SN_KEY_SIZE], const uint8_t to[SN_KEY_SIZE],
                     uint8_t out[SN_KEY_SIZE]);

/* The file of a swarm's key: made with mode 0600, never overwritten, refused when others may read it. */
sn_status sn_swarm_key_make(const char *path, sn_err *err) SN_MUST_USE;
sn_status sn_swarm_key_load(const char *path, uint8_t out[SN_SWARM_KEY_SIZE], sn_err *err) SN_MUST_USE;

#endif
