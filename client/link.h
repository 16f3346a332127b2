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

/* Over another transport (tests): taken. `seeds`: nodes to ask, their keys known. */
typedef struct sn_seed {
    char address[SN_ADDRESS_MAX + 1];
    uint8_t curve_key[SN_KEY_SIZE];
} sn_seed;
sn_status sn_link_over(sn_transport **transport, const sn_seed *seeds, size_t n_seeds, sn_link **out,
                       sn_err *err) SN_MUST_USE;

/* A number for the next request, never given before. */
uint64_t sn_link_request(sn_link *link);
/* Sends *msg (consumed in any case) to the node. SN_RETRY when it cannot be sent now. */
sn_status sn_link_send(sn_link *link, const char *address, const uint8_t curve_key[SN_KEY_SIZE], sn_msg **msg,
                       sn_err *err) SN_MUST_USE;
/* Waits for the answer that echoes `request`, from whoever sends it; others are dropped. SN_RETRY when none came by
 * deadline_us, or one of another kind than `wanted`. An ERROR becomes its status and sentence, and `session` (NULL allowed)
 * the one it speaks of; zero when it was none. */
sn_status sn_link_wait(sn_link *link, uint64_t request, sn_msg_kind wanted, int64_t deadline_us, sn_msg **out,
                       uint8_t session[SN_SESSION_ID_SIZE], sn_err *err) SN_MUST_USE;

/* Both in one: *msg is consumed, its request set. Sentences name the address. */
sn_status sn_link_call(sn_link *link, const char *address, const uint8_t curve_key[SN_KEY_SIZE], sn_msg **msg,
                       sn_msg_kind wanted, int timeout_ms, sn_msg **out, sn_err *err) SN_MUST_USE;

const uint8_t *sn_link_curve_key(const sn_link *link);

#endif
