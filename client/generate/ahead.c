#include "client/generate/ahead.h"

#include <math.h>

/* The tokens that are worth having under way are in so many windows, if that makes them longer. */
enum { WINDOWS = 24 };
static const double KEPT = 15.0 / 16, FIRST_RIGHT = 3.2, FIRST_JUDGED = 4;

static double larger(double a, double b) { return a > b ? a : b; }
static double smaller(double a, double b) { return a < b ? a : b; }

static void line_note(sn_ahead_line *line, double n, double us) {
    *line = (sn_ahead_line){KEPT * line->weight + 1, KEPT * line->n + n,        KEPT * line->us + us,
                            KEPT * line->nn + n * n, KEPT * line->nus + n * us, line->slope};
    const double spread = line->weight * line->nn - line->n * line->n;
    if (spread > 0.01 * line->nn) line->slope = larger((line->weight * line->nus - line->n * line->us) / spread, 0);
}

static double line_at(const sn_ahead_line *line, double n) {
    if (!(line->weight > 0)) return 0;
    return larger((line->us + line->slope * (n * line->weight - line->n)) / line->weight, 0);
}

/* This program's own work for a window, in which it does nothing else. */
static double own_us(const sn_ahead *a, double n) { return a->draft_us * n + line_at(&a->head, n); }

/* Between two windows at the narrowest place behind this program: a node, or this program's line. The first laps make
 * rows on a line look slow, because TCP begins slowly; when windows come one behind the other, these show that it is no
 * slower than so. A part of that is taken, or as many as there are now would always seem to be enough. */
static double place_us(const sn_ahead *a, double n) {
    static const double PART = 0.8;
    double row_us = a->line_share * larger(a->lap.slope - a->all.slope, 0);
    if (a->rows > 0) row_us = smaller(row_us, PART * a->gaps_us / a->rows);
    return larger(row_us * n, line_at(&a->stage, n));
}

static double interval_us(const sn_ahead *a, double n) { return larger(place_us(a, n), own_us(a, n)); }

void sn_ahead_note_window(sn_ahead *a, const sn_window *window, int64_t head_us) {
    const double n = window->n;
    if (!window->guessed) {
        line_note(&a->lap, n, (double)(window->lap_us + head_us));
        line_note(&a->all, n, (double)(window->compute_us + head_us));
    } else {
        a->rows = KEPT * a->rows + n;
        a->gaps_us = KEPT * a->gaps_us + (double)window->behind_us;
    }
    line_note(&a->stage, n, (double)window->stage_us);
    line_note(&a->head, n, (double)head_us);
    a->line_share = window->line_share;
}

void sn_ahead_note_drafts(sn_ahead *a, size_t n, int64_t us) {
    if (n) a->draft_us = KEPT * a->draft_us + (1 - KEPT) * (double)us / (double)n;
}

void sn_ahead_note_judged(sn_ahead *a, size_t n, size_t n_right) {
    if (!(a->judged > 0)) a->right = FIRST_RIGHT, a->judged = FIRST_JUDGED;
    for (size_t i = 0; i < n && i <= n_right; i++) {
        a->judged = KEPT * a->judged + 1;
        a->right = KEPT * a->right + (i < n_right);
    }
}

double sn_ahead_acceptance(const sn_ahead *a) {
    return a->judged > 0 ? a->right / a->judged : FIRST_RIGHT / FIRST_JUDGED;
}

size_t sn_ahead_length(const sn_ahead *a, size_t n_max) {
    const double lap_us = line_at(&a->lap, 1), each_us = a->lap.slope + own_us(a, (double)n_max) / (double)n_max / 2;
    if (!(lap_us > 0)) return 0;
    const double run = 1 / larger(1 - sn_ahead_acceptance(a), 1e-3); /* tokens until one is wrong */
    const double filling = lap_us * (double)n_max / larger(interval_us(a, (double)n_max), 1);
    const double cheapest = sqrt(run * line_at(&a->all, 0) / larger(each_us, 1));
    const double worth = log(smaller(each_us / lap_us, 1)) / log(smaller(sn_ahead_acceptance(a), 1 - 1e-3));
    const double n = smaller(larger(cheapest, smaller(2 * run, filling) / WINDOWS), worth);
    return n < 1 ? 1 : n < (double)n_max ? (size_t)ceil(n) : n_max;
}

bool sn_ahead_pays(const sn_ahead *a, size_t n_windows, size_t n_ahead, size_t n) {
    const double lap_us = line_at(&a->lap, (double)n), each_us = interval_us(a, (double)n);
    const double chance = pow(sn_ahead_acceptance(a), (double)n_ahead);
    if (!(lap_us > 0)) return false;
    return (double)n_windows * place_us(a, (double)n) < lap_us &&
           chance * (lap_us - each_us) > (1 - chance) * (line_at(&a->stage, (double)n) + own_us(a, (double)n));
}
