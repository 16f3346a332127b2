/* A listening TCP socket for a server of the owner: metrics, the HTTP door. */
#ifndef SN_BASE_LISTEN_H
#define SN_BASE_LISTEN_H

#include "base/err.h"

enum { SN_LISTEN_BACKLOG = 128 };

/* Listens at host (a name or an address, without brackets; "*": all interfaces) and port (0: a free one). *fd is
 * non-blocking and closed on exec; *bound is its port. SN_REFUSED: there is no such host; SN_RETRY: the address is not
 * free. */
sn_status sn_listen_tcp(const char *host, int port, int *fd, int *bound, sn_err *err) SN_MUST_USE;

#endif
