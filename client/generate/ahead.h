/* How many windows of draft tokens are under way, by what was measured. docs/CLIENT.md derives the rule.
 *
 * Central type: sn_ahead, a generator's measurements of one chain. It has no thread and allocates nothing. */
#ifndef SN_CLIENT_GENERATE_AHEAD_H
#define SN_CLIENT_GENERATE_AHEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A straight line through what was measured, the newest most: us = at0 + n * slope. */
typedef struct sn_ahead_line {
    double weight, n, us, nn, nus;
} sn_ahead_line;

/* Zeroed: nothing was measured. */
typedef struct sn_ahead {
    sn_ahead_line lap;    /* time of a window of n rows through all blocks and the LM head */
    sn_ahead_line stage;  /* of it at the slowest node */
    double draft_us;      /* to draft a token */
    double right, judged; /* draft tokens that were equal, and all: the newest count most */
} sn_ahead;

void sn_ahead_note_window(sn_ahead *ahead, size_t n, int64_t lap_us, int64_t stage_us, int64_t head_us);
void sn_ahead_note_drafts(sn_ahead *ahead, size_t n, int64_t us);
void sn_ahead_note_judged(sn_ahead *ahead, size_t n, size_t n_right);
/* Whether a window of n draft tokens is worth sending behind n_ahead draft tokens in n_windows windows. */
bool sn_ahead_pays(const sn_ahead *ahead, size_t n_windows, size_t n_ahead, size_t n);
double sn_ahead_acceptance(const sn_ahead *ahead); /* the chance of a draft token to be equal; at first 0.8 */

#endif
