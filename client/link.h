/* A client's link to a swarm: its identity, its transport, and the directory of nodes it has heard of. One thread. */
#ifndef SN_CLIENT_LINK_H
#define SN_CLIENT_LINK_H

#include "net/directory.h"
#include "net/transport.h"

typedef struct sn_link sn_link;

/* `join`: addresses of nodes ("tcp://host:port", with "#" and the node's CURVE key in hexadecimal behind it if it is to be
 * pinned). A fresh identity is made when identity_path is NULL. Connects to nobody yet. */
sn_status sn_link_open(const char *const *join, size_t n_join, const char *identity_path, sn_link **out,
                       sn_err *err) SN_MUST_USE;
void sn_link_close(sn_link **link); /* NULL-safe */

/* Asks the joined nodes who they know (model: NULL for every model) and waits until one has answered: SN_RETRY when none
 * did within timeout_ms, naming the addresses. */
sn_status sn_link_discover(sn_link *link, const sn_hash *model, int timeout_ms, sn_err *err) SN_MUST_USE;
sn_directory *sn_link_directory(sn_link *link);

/* Sends *msg to the node (consumed) and waits for the answer that echoes its request. SN_RETRY when none came within
 * timeout_ms. An ERROR message becomes its status and sentence, with the node named before it. *out is of kind `wanted`. */
sn_status sn_link_call(sn_link *link, const char *address, const uint8_t curve_key[SN_KEY_SIZE], sn_msg **msg,
                       sn_msg_kind wanted, int timeout_ms, sn_msg **out, sn_err *err) SN_MUST_USE;

#endif
