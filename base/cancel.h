/* A flag that ends waits and long work. Any thread may set it, also a signal handler. The code that waits or works
 * looks at it several times a second, leaves its objects usable, and reports the end as its header says. */
#ifndef SN_BASE_CANCEL_H
#define SN_BASE_CANCEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct sn_cancel {
    atomic_int set;               /* 0: go on */
    const struct sn_cancel *also; /* another flag that counts like this one; NULL: none. Set before others look */
} sn_cancel;

static inline bool sn_is_cancelled(const sn_cancel *cancel) { /* accepts NULL */
    for (; cancel; cancel = cancel->also)
        if (atomic_load_explicit(&cancel->set, memory_order_relaxed)) return true;
    return false;
}

#endif
