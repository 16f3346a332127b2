#include "node/engine/shared_buffer.h"

#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>

struct sn_shared_buffer {
    atomic_int users;
    _Alignas(64) unsigned char data[];
};

sn_status sn_shared_buffer_new(size_t bytes, sn_shared_buffer **out, sn_err *err) {
    size_t size;
    if (!sn_add(bytes, sizeof(sn_shared_buffer) + 63, &size))
        return sn_fail(err, SN_STOP, "%zu bytes cannot be addressed", bytes);
    sn_shared_buffer *shared = aligned_alloc(64, size / 64 * 64);
    if (!shared) return sn_fail(err, SN_STOP, "out of memory: %zu bytes cannot be allocated", bytes);
    atomic_init(&shared->users, 1);
    *out = shared;
    return SN_OK;
}

void *sn_shared_buffer_data(sn_shared_buffer *shared) { return shared->data; }

sn_shared_buffer *sn_shared_buffer_ref(sn_shared_buffer *shared) {
    atomic_fetch_add(&shared->users, 1);
    return shared;
}

void sn_shared_buffer_unref(void *shared) {
    sn_shared_buffer *s = shared;
    if (s && atomic_fetch_sub(&s->users, 1) == 1) free(s);
}
