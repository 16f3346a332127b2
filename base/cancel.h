/* A flag that ends waits and long work. Any thread may set it, also a signal handler. The code that waits or works
 * looks at it several times a second, leaves its objects usable, and reports the end as its header says. */
#ifndef SN_BASE_CANCEL_H
#define SN_BASE_CANCEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef atomic_int sn_cancel; /* 0: go on */

static inline bool sn_is_cancelled(const sn_cancel *cancel) { /* accepts NULL */
    return cancel && atomic_load_explicit(cancel, memory_order_relaxed);
}

#endif
