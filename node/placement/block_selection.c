#include "node/placement/block_selection.h"

#include "base/random.h"

#include <stdlib.h>
#include <string.h>

/* -- windows -- */

static int compare_rates(const void *x, const void *y) {
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

static void sort_rates(uint64_t *rates, int n) { qsort(rates, (size_t)n, sizeof *rates, compare_rates); }

/* Lexicographic order. */
static int compare_sorted(const uint64_t *x, const uint64_t *y, int n) {
    for (int i = 0; i < n; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

/* Whether the window leaves no stretch that is too short for a window: of the blocks around it that are no faster than
 * its fastest block, those on one side fill a whole number of windows. */
static bool window_fits_well(const sn_block_coverage *c, int first, int n) {
    uint64_t level = 0;
    int left = first, right = first + n;
    for (int b = first; b < first + n; b++) level = c->rate[b] > level ? c->rate[b] : level;
    while (left > 0 && c->rate[left - 1] <= level) left--;
    while (right < c->n_blocks && c->rate[right] <= level) right++;
    return (first - left) % n == 0 || (right - first) % n == 0;
}

static void window_sort_rates(const sn_block_coverage *c, int first, int n, uint64_t *sorted) {
    memcpy(sorted, c->rate + first, (size_t)n * sizeof *sorted);
    sort_rates(sorted, n);
}

bool sn_block_selection_is_best(const sn_block_coverage *c, int first, int n) {
    uint64_t ours[SN_BLOCK_COVERAGE_MAX], sorted[SN_BLOCK_COVERAGE_MAX];
    window_sort_rates(c, first, n, ours);
    for (int at = 0; at + n <= c->n_blocks; at++) {
        window_sort_rates(c, at, n, sorted);
        if (compare_sorted(sorted, ours, n) < 0) return false;
    }
    return true;
}

int sn_block_selection_window(const sn_block_coverage *c, int n, uint64_t *seed) {
    uint64_t least[SN_BLOCK_COVERAGE_MAX], sorted[SN_BLOCK_COVERAGE_MAX];
    int ties[SN_BLOCK_COVERAGE_MAX], n_ties = 0, n_good = 0;
    for (int first = 0; first + n <= c->n_blocks; first++) {
        window_sort_rates(c, first, n, sorted);
        int order = n_ties ? compare_sorted(sorted, least, n) : -1;
        if (order > 0) continue;
        if (order < 0) {
            memcpy(least, sorted, (size_t)n * sizeof *sorted);
            n_ties = 0;
        }
        ties[n_ties++] = first;
    }
    for (int i = 0; i < n_ties; i++)
        if (window_fits_well(c, ties[i], n)) ties[n_good++] = ties[i];
    return ties[sn_rng_below(seed, (uint64_t)(n_good ? n_good : n_ties))];
}

/* -- rebalancing -- */

bool sn_block_selection_may_leave(const sn_block_coverage *c, int first, int end, int to) {
    for (int b = first; b < end; b++)
        if ((b < to || b >= to + end - first) && !c->serving[b]) return false;
    return true;
}

/* The coverage as it would be with the node at some window. */
typedef struct projection {
    int uncovered; /* blocks that no node serves */
    int distance;  /* from a block that two nodes serve to the nearest of these; INT32_MAX: there is none */
    uint64_t sorted[SN_BLOCK_COVERAGE_MAX];
} projection;

static void projection_make(const sn_block_coverage *c, int at, int n, uint64_t rate, projection *out) {
    int last_gap = -1, last_redundant = -1;
    out->uncovered = 0;
    out->distance = INT32_MAX;
    for (int b = 0; b < c->n_blocks; b++) {
        bool here = b >= at && b < at + n;
        uint64_t sum = c->rate[b];
        if (here) sum = sum > UINT64_MAX - rate ? UINT64_MAX : sum + rate;
        out->sorted[b] = sum;
        out->uncovered += !sum;
        if (!sum) last_gap = b;
        if (c->serving[b] + here > 1) last_redundant = b;
        if (last_gap >= 0 && last_redundant >= 0 && abs(last_gap - last_redundant) < out->distance)
            out->distance = abs(last_gap - last_redundant);
    }
    sort_rates(out->sorted, c->n_blocks);
}

/* > 0: x is better than y. */
static int compare_projections(const projection *x, const projection *y, int n_blocks) {
    if (x->uncovered != y->uncovered) return x->uncovered < y->uncovered ? 1 : -1;
    if (x->uncovered && x->distance != y->distance) return x->distance < y->distance ? 1 : -1;
    return compare_sorted(x->sorted, y->sorted, n_blocks);
}

static bool projection_is_worth_move(const projection *present, const projection *moved, int gain_percent) {
    if (moved->uncovered != present->uncovered) return moved->uncovered < present->uncovered;
    if (present->uncovered) return moved->distance < present->distance;
    double wanted = (double)present->sorted[0] * (1 + gain_percent / 100.0);
    return moved->sorted[0] > present->sorted[0] && (double)moved->sorted[0] >= wanted;
}

int sn_block_selection_rebalance(const sn_block_coverage *c, int first, int end, uint64_t tokens_per_s,
                                 int gain_percent, uint64_t *seed) {
    int n = end - first, best_at = first;
    uint64_t rate = sn_block_coverage_rate(c, tokens_per_s), n_equal = 0;
    projection present, best, other;
    projection_make(c, first, n, rate, &present);
    best = present;
    for (int at = 0; at + n <= c->n_blocks; at++) {
        if (at == first || !sn_block_selection_may_leave(c, first, end, at)) continue;
        projection_make(c, at, n, rate, &other);
        int order = compare_projections(&other, &best, c->n_blocks);
        if (order < 0 || (order == 0 && best_at == first)) continue; /* staying wins among equals */
        n_equal = order > 0 ? 1 : n_equal + 1;
        if (n_equal > 1 && sn_rng_below(seed, n_equal)) continue; /* reservoir sampling among equals */
        best_at = at;
        best = other;
    }
    return best_at != first && projection_is_worth_move(&present, &best, gain_percent) ? best_at : first;
}
