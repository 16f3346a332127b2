/* Lines from a pipe or a file, of any length that memory holds, while something else is done between them. One thread.
 */
#ifndef SN_CLI_TERMINAL_LINES_H
#define SN_CLI_TERMINAL_LINES_H

#include "base/cancel.h"
#include "base/mem.h"

typedef struct sn_lines {
    int fd;
    const sn_cancel *interrupt; /* borrowed, as are ctx and idle */
    void (*idle)(void *ctx);    /* called about five times a second while a line is awaited; may be NULL */
    void *ctx;
    sn_buf input;        /* read, and not given out yet */
    size_t used, looked; /* of it: given out; of the rest: known to hold no line break */
    bool ended;
} sn_lines;

typedef enum sn_line_event { SN_LINE_READ, SN_LINE_END, SN_LINE_INTERRUPT } sn_line_event;

void sn_lines_init(sn_lines *lines); /* of standard input; interrupt, idle and ctx are the caller's to set */
void sn_lines_fini(sn_lines *lines);
/* The next line, borrowed until the next call, with a NUL in place of its "\n" that *n does not count. */
sn_status sn_lines_next(sn_lines *lines, const char **line, size_t *n, sn_line_event *event, sn_err *err) SN_MUST_USE;

#endif
