#include "client/generate/ahead.h"

#include <math.h>

static const double KEPT = 15.0 / 16, FIRST_RIGHT = 3.2, FIRST_JUDGED = 4;

static void line_note(sn_ahead_line *line, double n, double us) {
    *line = (sn_ahead_line){KEPT * line->weight + 1, KEPT * line->n + n, KEPT * line->us + us, KEPT * line->nn + n * n,
                            KEPT * line->nus + n * us};
}

/* Where all windows were equally long, nothing is known of the slope: none. */
static double line_at(const sn_ahead_line *line, double n) {
    const double spread = line->weight * line->nn - line->n * line->n;
    double slope = spread > 1e-6 * line->nn ? (line->weight * line->nus - line->n * line->us) / spread : 0;
    if (!(line->weight > 0)) return 0;
    if (slope < 0) slope = 0;
    const double us = (line->us + slope * (n * line->weight - line->n)) / line->weight;
    return us > 0 ? us : 0;
}

void sn_ahead_note_window(sn_ahead *a, size_t n, int64_t lap_us, int64_t stage_us, int64_t head_us) {
    line_note(&a->lap, (double)n, (double)(lap_us + head_us));
    line_note(&a->stage, (double)n, (double)(stage_us > head_us ? stage_us : head_us));
}

void sn_ahead_note_drafts(sn_ahead *a, size_t n, int64_t us) {
    if (n) a->draft_us = KEPT * a->draft_us + (1 - KEPT) * (double)us / (double)n;
}

void sn_ahead_note_judged(sn_ahead *a, size_t n, size_t n_right) {
    if (!(a->judged > 0)) *a = (sn_ahead){a->lap, a->stage, a->draft_us, FIRST_RIGHT, FIRST_JUDGED};
    for (size_t i = 0; i < n; i++) {
        a->judged = KEPT * a->judged + 1;
        a->right = KEPT * a->right + (i < n_right);
    }
}

double sn_ahead_acceptance(const sn_ahead *a) {
    return a->judged > 0 ? a->right / a->judged : FIRST_RIGHT / FIRST_JUDGED;
}

bool sn_ahead_pays(const sn_ahead *a, size_t n_windows, size_t n_ahead, size_t n) {
    const double lap_us = line_at(&a->lap, (double)n), stage_us = line_at(&a->stage, (double)n);
    const double draft_us = a->draft_us * (double)n, interval_us = stage_us > draft_us ? stage_us : draft_us;
    const double chance = pow(sn_ahead_acceptance(a), (double)n_ahead);
    if (!(lap_us > 0)) return false;
    return (double)n_windows * interval_us < lap_us &&
           chance * (lap_us - interval_us) > (1 - chance) * (stage_us + draft_us);
}
