/* Light markdown for a terminal, in a stream: bold, italics, code spans, fenced code, headings and lists get styles;
 * all else stays as it is written.
 *
 * The caller pushes pieces of text as they come, cleaned by base/terminal.h, and gets text with the program's own
 * escape sequences. The result does not depend on where the pieces are cut. What cannot be decided yet (a "**" whose
 * closing one has not come) waits: until the end of its line, and for SN_MARKDOWN_SPAN_MAX bytes at most. Marks that
 * close nowhere are printed as text, so nothing is lost. One thread. Errors: SN_STOP, memory is out. */
#ifndef SN_CLI_TERMINAL_MARKDOWN_H
#define SN_CLI_TERMINAL_MARKDOWN_H

#include "base/mem.h"

enum { SN_MARKDOWN_SPAN_MAX = 400 };

typedef enum sn_markdown_line {
    SN_MARKDOWN_BEGIN, /* the next byte begins a line, whose kind is not known yet */
    SN_MARKDOWN_TEXT,
    SN_MARKDOWN_HEADING,
    SN_MARKDOWN_CODE,  /* in a fenced block */
    SN_MARKDOWN_FENCE, /* the line that begins or ends it */
} sn_markdown_line;

typedef struct sn_markdown {
    sn_buf held; /* what is not decided yet */
    sn_markdown_line line;
    size_t fence;    /* length of the fence of the block that is open; 0: none is */
    char fence_mark; /* '`' or '~' */
    char before;     /* the byte before `held`; '\n' at the beginning */
    unsigned styles; /* that the terminal has now */
} sn_markdown;

void sn_markdown_init(sn_markdown *m);
void sn_markdown_fini(sn_markdown *m);
/* Appends to `out` what text (n bytes) shows. */
sn_status sn_markdown_push(sn_markdown *m, const char *text, size_t n, sn_buf *out, sn_err *err) SN_MUST_USE;
/* The text has ended: appends the rest, ends all styles, and makes `m` ready for another text. */
sn_status sn_markdown_end(sn_markdown *m, sn_buf *out, sn_err *err) SN_MUST_USE;

#endif
