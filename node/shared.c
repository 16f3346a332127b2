#include "node/shared.h"

#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>

struct sn_shared {
    atomic_int users;
    _Alignas(64) unsigned char data[];
};

sn_status sn_shared_new(size_t bytes, sn_shared **out, sn_err *err) {
    size_t size;
    if (!sn_add(bytes, sizeof(sn_shared) + 63, &size))
        return sn_fail(err, SN_STOP, "%zu bytes cannot be addressed", bytes);
    sn_shared *shared = aligned_alloc(64, size / 64 * 64);
    if (!shared) return sn_fail(err, SN_STOP, "out of memory: %zu bytes are not to be had", bytes);
    atomic_init(&shared->users, 1);
    *out = shared;
    return SN_OK;
}

void *sn_shared_data(sn_shared *shared) { return shared->data; }

sn_shared *sn_shared_ref(sn_shared *shared) {
    atomic_fetch_add(&shared->users, 1);
    return shared;
}

void sn_shared_unref(void *shared) {
    sn_shared *s = shared;
    if (s && atomic_fetch_sub(&s->users, 1) == 1) free(s);
}
