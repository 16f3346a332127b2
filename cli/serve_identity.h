/* The identity of a server that was given none. */
#ifndef SN_CLI_SERVE_IDENTITY_H
#define SN_CLI_SERVE_IDENTITY_H

#include "base/err.h"

/* Nodes keep pages of conversations by the key of their client: a server that is started again gets the one that it
 * had, from a file in the cache, as its setting --identity; without a cache, or while another server holds the file, a
 * new one, as every client. The file stays locked as long as the process lives. SN_STOP only. */
sn_status sn_serve_identity(sn_err *err) SN_MUST_USE;

#endif
