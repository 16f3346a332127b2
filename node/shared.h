/* Bytes with a count of users: an output that is on its way to the network and kept for a repeated question at once. */
#ifndef SN_NODE_SHARED_H
#define SN_NODE_SHARED_H

#include "base/err.h"

#include <stddef.h>

typedef struct sn_shared sn_shared;

sn_status sn_shared_new(size_t bytes, sn_shared **out, sn_err *err) SN_MUST_USE; /* one user: the caller */
void *sn_shared_data(sn_shared *shared);
sn_shared *sn_shared_ref(sn_shared *shared); /* one user more */
void sn_shared_unref(void *shared);          /* NULL-safe; any thread; the last user frees */

#endif
