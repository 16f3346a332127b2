/* A bounded queue of pointers between threads. */
#ifndef SN_BASE_QUEUE_H
#define SN_BASE_QUEUE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sn_queue sn_queue;

sn_status sn_queue_new(size_t limit, sn_queue **out, sn_err *err) SN_MUST_USE;
void sn_queue_free(sn_queue **queue); /* NULL-safe; what is still in it belongs to the caller before */

/* False when the queue is full (the item stays the caller's). Never blocks. */
bool sn_queue_push(sn_queue *queue, void *item) SN_MUST_USE;
/* The oldest item, or NULL when none came until deadline_us (sn_now_us clock; 0: does not wait) or somebody woke us. */
void *sn_queue_pop(sn_queue *queue, int64_t deadline_us);
/* Makes a waiting (or the next waiting) pop return without an item. */
void sn_queue_wake(sn_queue *queue);

#endif
