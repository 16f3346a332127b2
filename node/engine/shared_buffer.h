/* A buffer with an atomic reference count, aligned to 64 bytes: the output of a step is sent by the transport and kept
 * for a repeated request at the same time. */
#ifndef SN_NODE_ENGINE_SHARED_BUFFER_H
#define SN_NODE_ENGINE_SHARED_BUFFER_H

#include "base/err.h"

#include <stddef.h>

typedef struct sn_shared_buffer sn_shared_buffer;

sn_status sn_shared_buffer_new(size_t bytes, sn_shared_buffer **out,
                               sn_err *err) SN_MUST_USE; /* one reference: the caller's */
void *sn_shared_buffer_data(sn_shared_buffer *shared);
sn_shared_buffer *sn_shared_buffer_ref(sn_shared_buffer *shared); /* adds a reference */
void sn_shared_buffer_unref(void *shared);                        /* drops a reference; any thread; accepts NULL */

#endif
