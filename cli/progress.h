/* A progress line on stderr, for work that takes longer than a second: on a terminal one line that is rewritten and
 * erased at the end, otherwise a line every ten seconds. A thread of its own prints it, so it moves during calls that
 * block. */
#ifndef SN_CLI_PROGRESS_H
#define SN_CLI_PROGRESS_H

#include <stddef.h>

typedef struct sn_progress_bar sn_progress_bar;

/* `what` is copied. NULL when it cannot be shown; the other functions accept NULL. */
sn_progress_bar *sn_progress_bar_begin(const char *what);
/* Shows "512 of 4000 tokens, 12 %, 0:41 left" and the time; total 0: only the time. */
void sn_progress_bar_set(sn_progress_bar *bar, size_t done, size_t total);
void sn_progress_bar_unit(sn_progress_bar *bar, const char *unit); /* what is counted, static: "tokens" */
void sn_progress_bar_end(sn_progress_bar **bar);

#endif
