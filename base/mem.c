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
    if (!p) return sn_fail(err, SN_STOP, "out of memory: %zu bytes are not to be had", bytes);
    memcpy(out, &p, sizeof p); /* out is the address of a pointer to any type */
    return SN_OK;
}

enum { HUGE_PAGE = 2 << 20 };

/* Not up to a whole huge page: each block of a small model would take up to 2 MB that nobody uses. */
static size_t pages_size(size_t bytes) { return sn_round_up(bytes ? bytes : 1, 4096); }

sn_status sn_pages_alloc(void **out, size_t bytes, sn_err *err) {
    if (bytes > SIZE_MAX - 2 * (size_t)HUGE_PAGE) return sn_fail(err, SN_STOP, "%zu bytes cannot be addressed", bytes);
    size_t size = pages_size(bytes), slack = size >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint8_t *p = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return sn_fail(err, SN_STOP, "out of memory: %zu bytes are not to be had", bytes);
    if (slack) { /* only an aligned range can be backed by huge pages: give back what sticks out */
        size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
        if (before) munmap(p, before);
        if (slack - before) munmap(p + before + size, slack - before);
        p += before;
        madvise(p, size, MADV_HUGEPAGE); /* a wish: without it everything is as right, and slower */
    }
    *out = p;
    return SN_OK;
}

void sn_pages_free(void **pages, size_t bytes) {
    if (!*pages) return;
    munmap(*pages, pages_size(bytes));
    *pages = NULL;
}

void sn_buf_init(sn_buf *buf, size_t cap) { *buf = (sn_buf){.cap = cap}; }

void sn_buf_fini(sn_buf *buf) {
    free(buf->data);
    *buf = (sn_buf){0};
}

sn_status sn_buf_append(sn_buf *buf, const void *data, size_t len, sn_err *err) {
    size_t need;
    if (!sn_add(buf->len, len, &need) || need > buf->cap)
        return sn_fail(err, SN_REFUSED, "%zu more bytes would pass the limit of %zu", len, buf->cap);
    if (need > buf->room) {
        size_t room = need < buf->cap / 2 ? need * 2 : buf->cap;
        uint8_t *grown = realloc(buf->data, room);
        if (!grown) return sn_fail(err, SN_STOP, "out of memory: %zu bytes are not to be had", room);
        buf->data = grown;
        buf->room = room;
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
