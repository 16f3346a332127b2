/* A bounded queue of pointers between threads, first in, first out. Any thread may push, pop and wake. */
#ifndef SN_BASE_QUEUE_H
#define SN_BASE_QUEUE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sn_queue sn_queue;

sn_status sn_queue_new(size_t limit, sn_queue **out, sn_err *err) SN_MUST_USE;
void sn_queue_free(sn_queue **queue); /* accepts NULL; the caller has popped all items before, or still owns them */

/* Returns false when the queue is full; the item then still belongs to the caller. Never blocks. */
bool sn_queue_push(sn_queue *queue, void *item) SN_MUST_USE;
/* The oldest item; NULL when none came before deadline_us (clock of sn_now_us; 0: does not wait), or after
 * sn_queue_wake. */
void *sn_queue_pop(sn_queue *queue, int64_t deadline_us);
/* Makes the waiting pop (or the next one that would wait) return without an item. */
void sn_queue_wake(sn_queue *queue);

#endif
