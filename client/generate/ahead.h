/* How many windows of draft tokens are under way and how long they are, by what was measured. docs/CLIENT.md derives
 * the rules.
 *
 * Central type: sn_ahead, a generator's measurements of one chain. It has no thread and allocates nothing. */
#ifndef SN_CLIENT_GENERATE_AHEAD_H
#define SN_CLIENT_GENERATE_AHEAD_H

#include "client/chain/chain.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A straight line through what was measured, the newest most. */
typedef struct sn_ahead_line {
    double weight, n, us, nn, nus;
    double slope; /* as it was when lengths last differed enough to show it */
} sn_ahead_line;

/* Zeroed: nothing was measured. */
typedef struct sn_ahead {
    sn_ahead_line lap;    /* time of a window of n rows through all blocks and the LM head, with none before it */
    sn_ahead_line stage;  /* of it at the slowest node */
    sn_ahead_line all;    /* at all nodes and in the LM head */
    sn_ahead_line head;   /* in the LM head */
    double rows, gaps_us; /* of windows that were sent behind others: their rows, and between them and those before */
    double line_share;    /* of the time that rows take on lines, the part on this program's line */
    double draft_us;      /* to draft a token */
    double right, judged; /* draft tokens that were equal, and all that were compared: the newest count most */
} sn_ahead;

/* A window of n rows has passed. The lap of one that was sent behind others shows what it waited for, too. */
void sn_ahead_note_window(sn_ahead *ahead, const sn_window *window, int64_t head_us);
void sn_ahead_note_drafts(sn_ahead *ahead, size_t n, int64_t us);
/* Of n draft tokens in a row the first n_right are equal; behind a wrong one none was compared. */
void sn_ahead_note_judged(sn_ahead *ahead, size_t n, size_t n_right);
/* Draft tokens of a window where several may be under way, at most n_max; 0: nothing was measured. */
size_t sn_ahead_length(const sn_ahead *ahead, size_t n_max);
/* Whether a window of n draft tokens is worth sending behind n_ahead draft tokens in n_windows windows. */
bool sn_ahead_pays(const sn_ahead *ahead, size_t n_windows, size_t n_ahead, size_t n);
double sn_ahead_acceptance(const sn_ahead *ahead); /* the chance of a draft token to be equal; at first 0.8 */

#endif
