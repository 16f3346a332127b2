#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

sn_status sn_calloc(void *out, size_t n, size_t size, sn_err *err) {
    size_t bytes;
    if (!sn_mul(n, size, &bytes)) return sn_fail(err, SN_STOP, "a size of %zu times %zu bytes overflows", n, size);
    void *p = calloc(bytes ? bytes : 1, 1);
    if (!p) return sn_fail(err, SN_STOP, "out of memory: %zu bytes could not be allocated", bytes);
    memcpy(out, &p, sizeof p); /* out is the address of a pointer of any type */
    return SN_OK;
}

sn_status sn_grow(void *array, size_t *capacity, size_t n, size_t size, sn_err *err) {
    enum { FIRST = 16 };
    void *old, *grown = NULL;
    size_t bytes, wanted;
    if (n <= *capacity) return SN_OK;
    if (!sn_mul(*capacity, 2, &wanted) || wanted < n) wanted = n;
    if (wanted < FIRST) wanted = FIRST;
    memcpy(&old, array, sizeof old);
    if (sn_mul(wanted, size, &bytes)) grown = realloc(old, bytes);
    if (!grown) return sn_fail(err, SN_STOP, "out of memory: a list of %zu elements does not fit", n);
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return SN_OK;
}

enum { HUGE_PAGE = 2 << 20 };

/* Rounds up to small pages only: rounding to huge pages would waste up to 2 MB for each block of a small model. */
static size_t pages_size(size_t bytes) { return sn_round_up(bytes ? bytes : 1, 4096); }

sn_status sn_pages_alloc(void **out, size_t bytes, sn_err *err) {
    if (bytes > SIZE_MAX - 2 * (size_t)HUGE_PAGE) return sn_fail(err, SN_STOP, "%zu bytes cannot be addressed", bytes);
    size_t size = pages_size(bytes), slack = size >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint8_t *p = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return sn_fail(err, SN_STOP, "out of memory: %zu bytes could not be allocated", bytes);
    if (slack) { /* huge pages back only an aligned range: unmap what lies outside of it */
        size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
        if (before) munmap(p, before);
        if (slack - before) munmap(p + before + size, slack - before);
        p += before;
        madvise(p, size, MADV_HUGEPAGE); /* a hint: without huge pages the results are the same, only slower */
    }
    *out = p;
    return SN_OK;
}

void sn_pages_free(void **pages, size_t bytes) {
    if (!*pages) return;
    munmap(*pages, pages_size(bytes));
    *pages = NULL;
}

void sn_buf_init(sn_buf *buf, size_t limit) { *buf = (sn_buf){.limit = limit}; }

void sn_buf_fini(sn_buf *buf) {
    free(buf->data);
    *buf = (sn_buf){0};
}

sn_status sn_buf_append(sn_buf *buf, const void *data, size_t len, sn_err *err) {
    size_t need;
    if (!sn_add(buf->len, len, &need) || need > buf->limit)
        return sn_fail(err, SN_REFUSED, "%zu more bytes would exceed the limit of %zu", len, buf->limit);
    if (need > buf->capacity) {
        size_t capacity = need < buf->limit / 2 ? need * 2 : buf->limit;
        uint8_t *grown = realloc(buf->data, capacity);
        if (!grown) return sn_fail(err, SN_STOP, "out of memory: %zu bytes could not be allocated", capacity);
        buf->data = grown;
        buf->capacity = capacity;
    }
    if (len) memcpy(buf->data + buf->len, data, len);
    buf->len = need;
    return SN_OK;
}

sn_status sn_buf_printf(sn_buf *buf, sn_err *err, const char *format, ...) {
    char line[4096];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof line) return sn_fail(err, SN_REFUSED, "a line of %d bytes is too long", n);
    return sn_buf_append(buf, line, (size_t)n, err);
}
