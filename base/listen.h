/* A listening TCP socket for a server of the owner: metrics, the HTTP door. */
#ifndef SN_BASE_LISTEN_H
#define SN_BASE_LISTEN_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    SN_LISTEN_BACKLOG = 128,
    SN_PORT_RETRY_MS = 20 /* retry_after_ms of a port that is in use */
};

/* Whether to try once more, after a pause that this takes, to get a port: `status` and *err say that it is in use, and
 * the first try was less than three seconds ago. A program that was killed holds its ports until the system has freed
 * its memory, some seconds for many GiB. */
bool sn_port_may_come_free(int64_t began_us, sn_status status, const sn_err *err);

/* Listens at host (a name or an address, without brackets; "*": all interfaces) and port (0: a free one). *fd is
 * non-blocking and closed on exec; *bound is its port. Waits while the port may come free. SN_REFUSED: there is no such
 * host; SN_RETRY: the address is not free. err is not NULL. */
sn_status sn_listen_tcp(const char *host, int port, int *fd, int *bound, sn_err *err) SN_MUST_USE;

#endif
