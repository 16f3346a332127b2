/* Checked size arithmetic, zeroed allocations that return errors, and a byte buffer with a limit. Any thread may call
 * these functions. */
#ifndef SN_BASE_MEM_H
#define SN_BASE_MEM_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* *out = a * b (a + b); false on overflow, and *out is then unusable. */
static inline bool sn_mul(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool sn_add(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

static inline size_t sn_min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t sn_round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/* Allocates a zeroed array of n elements of `size` bytes on the heap. SN_STOP with a sentence when the size overflows
 * or memory is out. `out` is the address of a pointer of any type; n == 0 gives a pointer that may be freed. Free with
 * free(). */
sn_status sn_calloc(void *out, size_t n, size_t size, sn_err *err) SN_MUST_USE;

/* Makes room for n elements of `size` bytes in an array that grows: *capacity becomes n at least, and twice what it was
 * where that is not enough. `array` is the address of a pointer of any type, NULL before the first call. What is new in
 * it is not set. After a failure (SN_STOP: memory is out) both are as they were. Free with free(). */
sn_status sn_grow(void *array, size_t *capacity, size_t n, size_t size, sn_err *err) SN_MUST_USE;

/* Allocates zeroed memory on pages of its own, with huge pages when it is large: weights, KV pages, scratch memory.
 * Free with sn_pages_free. */
sn_status sn_pages_alloc(void **out, size_t bytes, sn_err *err) SN_MUST_USE;
void sn_pages_free(void **pages, size_t bytes); /* accepts NULL in *pages; sets *pages to NULL */

/* A byte buffer that grows up to the limit given to sn_buf_init. It owns `data`. */
typedef struct sn_buf {
    uint8_t *data;
    size_t len, capacity, limit;
} sn_buf;

void sn_buf_init(sn_buf *buf, size_t limit);
void sn_buf_fini(sn_buf *buf);
/* Both leave the buffer as it was when they fail: SN_REFUSED when the limit would be exceeded, SN_STOP when memory is
 * out. */
sn_status sn_buf_append(sn_buf *buf, const void *data, size_t len, sn_err *err) SN_MUST_USE;
sn_status sn_buf_printf(sn_buf *buf, sn_err *err, const char *format, ...) SN_PRINTF(3, 4) SN_MUST_USE;

#endif
