#include "cli/terminal/lines.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { IDLE_MS = 200 };
static const size_t line_max = (size_t)1 << 30;

void sn_lines_init(sn_lines *lines) {
    *lines = (sn_lines){.fd = STDIN_FILENO};
    sn_buf_init(&lines->input, line_max);
}

void sn_lines_fini(sn_lines *lines) { sn_buf_fini(&lines->input); }

/* Gives out the first line, if there is a whole one. */
static bool pop_line(sn_lines *l, const char **line, size_t *n, sn_status *status, sn_err *err) {
    size_t left = l->input.len - l->used;
    if (!left) return false;
    char *text = (char *)l->input.data + l->used,
         *end = left > l->looked ? memchr(text + l->looked, '\n', left - l->looked) : NULL;
    l->looked = end ? 0 : left;
    if (!end && !l->ended) return false;
    if (!end) { /* the last line has no line break */
        *status = sn_buf_append(&l->input, "\n", 1, err);
        if (*status) return true;
        text = (char *)l->input.data + l->used;
        end = text + left;
    }
    *end = 0;
    *line = text;
    *n = (size_t)(end - text);
    l->used += *n + 1;
    return true;
}

static sn_status read_more(sn_lines *l, sn_err *err) {
    char chunk[65536];
    struct pollfd in = {.fd = l->fd, .events = POLLIN};
    int ready = poll(&in, 1, IDLE_MS);
    if (!ready && l->idle) l->idle(l->ctx);
    if (ready <= 0) return SN_OK;
    ssize_t got = read(l->fd, chunk, sizeof chunk);
    if (got < 0)
        return errno == EINTR ? SN_OK : sn_fail(err, SN_REFUSED, "the input cannot be read: %s", strerror(errno));
    l->ended = !got;
    if (l->used) {
        l->input.len -= l->used;
        memmove(l->input.data, l->input.data + l->used, l->input.len);
        l->used = 0;
    }
    sn_status status = sn_buf_append(&l->input, chunk, (size_t)got, err);
    return status ? sn_err_context(err, "a line of the input is too long") : SN_OK;
}

sn_status sn_lines_next(sn_lines *l, const char **line, size_t *n, sn_line_event *event, sn_err *err) {
    sn_status status = SN_OK;
    for (;;) {
        *event = SN_LINE_READ;
        if (pop_line(l, line, n, &status, err) || status) return status;
        *event = sn_is_cancelled(l->interrupt) ? SN_LINE_INTERRUPT : SN_LINE_END;
        if (l->ended || sn_is_cancelled(l->interrupt)) return SN_OK;
        status = read_more(l, err);
        if (status) return status;
    }
}
