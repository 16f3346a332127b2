/* How an answer appears on standard output while it streams.
 *
 * A terminal gets it cleaned (base/terminal.h), with light markdown (markdown.h) where it can show styles, and with
 * what the model thinks (reasoning.h) dimmed above the answer, or under the line "[thinking]" where styles are off. A
 * pipe or file gets the exact bytes of the answer, without thoughts. One thread. Errors: SN_STOP (memory). Whether
 * standard output could be written, the caller asks it (ferror). */
#ifndef SN_CLI_TERMINAL_ANSWER_VIEW_H
#define SN_CLI_TERMINAL_ANSWER_VIEW_H

#include "base/terminal.h"
#include "cli/terminal/markdown.h"
#include "cli/terminal/reasoning.h"

typedef enum sn_view_kind { SN_VIEW_EXACT, SN_VIEW_PLAIN, SN_VIEW_STYLED } sn_view_kind;

typedef struct sn_answer_view {
    sn_view_kind kind;
    sn_reasoning reasoning;
    sn_terminal_text clean;
    sn_markdown markdown;
    sn_buf out;
    enum { SN_VIEW_NOTHING, SN_VIEW_THOUGHT, SN_VIEW_ANSWER } part; /* that was shown last */
} sn_answer_view;

/* What standard output can show: EXACT for what is no terminal, PLAIN with NO_COLOR or TERM=dumb. */
sn_view_kind sn_view_kind_of_stdout(void);
/* The view must stay where it is. */
void sn_answer_view_init(sn_answer_view *view, sn_view_kind kind);
void sn_answer_view_fini(sn_answer_view *view);

/* An answer begins; thinks: within a thought. */
void sn_answer_view_begin(sn_answer_view *view, bool thinks);
sn_status sn_answer_view_text(sn_answer_view *view, const char *text, size_t n, sn_err *err) SN_MUST_USE;
/* A special token of the answer, by its spelling. */
sn_status sn_answer_view_special(sn_answer_view *view, const char *token, sn_err *err) SN_MUST_USE;
/* The answer has ended: shows what was held back, ends all styles, and prints a line break. */
sn_status sn_answer_view_end(sn_answer_view *view, sn_err *err) SN_MUST_USE;

#endif
