#include "node/choose.h"

#include "base/random.h"

#include <stdlib.h>
#include <string.h>

/* -- the census -- */

sn_status sn_census_begin(sn_census *census, int n_blocks, sn_err *err) {
    memset(census, 0, sizeof *census);
    census->usual_rate = 1;
    census->n_blocks = n_blocks;
    if (n_blocks < 1 || n_blocks > SN_CENSUS_BLOCKS_MAX)
        return sn_fail(err, SN_REFUSED, "a node can choose among 1 to %d blocks, this model has %d: say which, as in 10:20",
                       SN_CENSUS_BLOCKS_MAX, n_blocks);
    return SN_OK;
}

void sn_census_add(sn_census *census, int first, int end, uint64_t tokens_per_s, bool serving) {
    for (int b = first; b < end && b < census->n_blocks; b++) {
        uint64_t rate = tokens_per_s ? tokens_per_s : census->usual_rate;
        census->rate[b] = census->rate[b] > UINT64_MAX - rate ? UINT64_MAX : census->rate[b] + rate;
        census->serving[b] += serving;
    }
}

/* Who is counted. */
typedef struct who {
    const uint8_t *model, *except;
    uint64_t joining_below;
    int n_blocks;
} who;

static bool counts(const sn_announcement *a, const who *w) {
    if (memcmp(a->model, w->model, SN_KEY_SIZE) || a->n_blocks != (uint64_t)w->n_blocks) return false;
    if (w->except && !memcmp(a->node, w->except, SN_KEY_SIZE)) return false;
    return a->state == SN_NODE_ONLINE || (a->state == SN_NODE_JOINING && sn_node_tag(a->node) < w->joining_below);
}

/* The mean of those that have measured, for those that have not. */
static uint64_t mean_rate(const sn_directory *directory, const who *w) {
    uint64_t n = 0, mean = 0;
    for (size_t i = 0; i < sn_directory_count(directory); i++) {
        const sn_announcement *a = sn_directory_at(directory, i);
        if (!counts(a, w) || !a->tokens_per_s) continue;
        n++;
        mean = a->tokens_per_s > mean ? mean + (a->tokens_per_s - mean) / n : mean - (mean - a->tokens_per_s) / n;
    }
    return mean ? mean : 1;
}

sn_status sn_census_take(sn_census *census, const sn_directory *directory, const uint8_t model[SN_KEY_SIZE], int n_blocks,
                         const uint8_t *except, uint64_t joining_below, sn_err *err) {
    const who w = {model, except, joining_below, n_blocks};
    sn_status status = sn_census_begin(census, n_blocks, err);
    if (status) return status;
    census->usual_rate = mean_rate(directory, &w);
    for (size_t i = 0; i < sn_directory_count(directory); i++) {
        const sn_announcement *a = sn_directory_at(directory, i);
        if (counts(a, &w)) /* its blocks are a range within n_blocks: the directory has checked it */
            sn_census_add(census, (int)a->first_block, (int)a->end_block, a->tokens_per_s, a->state == SN_NODE_ONLINE);
    }
    return SN_OK;
}

/* -- windows -- */

static int compare_rates(const void *x, const void *y) {
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

static void sort_rates(uint64_t *rates, int n) { qsort(rates, (size_t)n, sizeof *rates, compare_rates); }

/* Like memcmp, of numbers. */
static int compare_sorted(const uint64_t *x, const uint64_t *y, int n) {
    for (int i = 0; i < n; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

/* Whether a window leaves no scraps: the stretch of blocks that are no better off than those of the window has a whole number
 * of windows on one side of it. */
static bool fits_well(const sn_census *c, int first, int n) {
    uint64_t level = 0;
    int left = first, right = first + n;
    for (int b = first; b < first + n; b++) level = c->rate[b] > level ? c->rate[b] : level;
    while (left > 0 && c->rate[left - 1] <= level) left--;
    while (right < c->n_blocks && c->rate[right] <= level) right++;
    return (first - left) % n == 0 || (right - first) % n == 0;
}

static void sorted_window(const sn_census *c, int first, int n, uint64_t *sorted) {
    memcpy(sorted, c->rate + first, (size_t)n * sizeof *sorted);
    sort_rates(sorted, n);
}

bool sn_is_best_window(const sn_census *c, int first, int n) {
    uint64_t ours[SN_CENSUS_BLOCKS_MAX], sorted[SN_CENSUS_BLOCKS_MAX];
    sorted_window(c, first, n, ours);
    for (int at = 0; at + n <= c->n_blocks; at++) {
        sorted_window(c, at, n, sorted);
        if (compare_sorted(sorted, ours, n) < 0) return false;
    }
    return true;
}

int sn_choose_window(const sn_census *c, int n, uint64_t *seed) {
    uint64_t least[SN_CENSUS_BLOCKS_MAX], sorted[SN_CENSUS_BLOCKS_MAX];
    int ties[SN_CENSUS_BLOCKS_MAX], n_ties = 0, n_good = 0;
    for (int first = 0; first + n <= c->n_blocks; first++) {
        sorted_window(c, first, n, sorted);
        int order = n_ties ? compare_sorted(sorted, least, n) : -1;
        if (order > 0) continue;
        if (order < 0) {
            memcpy(least, sorted, (size_t)n * sizeof *sorted);
            n_ties = 0;
        }
        ties[n_ties++] = first;
    }
    for (int i = 0; i < n_ties; i++)
        if (fits_well(c, ties[i], n)) ties[n_good++] = ties[i];
    return ties[sn_seeded_below(seed, (uint64_t)(n_good ? n_good : n_ties))];
}

/* -- moves -- */

bool sn_may_leave(const sn_census *c, int first, int end, int to) {
    for (int b = first; b < end; b++)
        if ((b < to || b >= to + end - first) && !c->serving[b]) return false;
    return true;
}

/* The swarm as it would be with the node at `at`. */
typedef struct outlook {
    int uncovered; /* blocks that nobody holds */
    int distance;  /* from a block held twice to the nearest of these; INT_MAX: there are none */
    uint64_t sorted[SN_CENSUS_BLOCKS_MAX];
} outlook;

static void look(const sn_census *c, int at, int n, uint64_t rate, outlook *out) {
    int last_gap = -1, last_spare = -1;
    out->uncovered = 0;
    out->distance = INT32_MAX;
    for (int b = 0; b < c->n_blocks; b++) {
        bool here = b >= at && b < at + n;
        uint64_t sum = c->rate[b];
        if (here) sum = sum > UINT64_MAX - rate ? UINT64_MAX : sum + rate;
        out->sorted[b] = sum;
        out->uncovered += !sum;
        if (!sum) last_gap = b;
        if (c->serving[b] + here > 1) last_spare = b;
        if (last_gap >= 0 && last_spare >= 0 && abs(last_gap - last_spare) < out->distance)
            out->distance = abs(last_gap - last_spare);
    }
    sort_rates(out->sorted, c->n_blocks);
}

/* Whether x is worth more than y. */
static int compare_outlooks(const outlook *x, const outlook *y, int n_blocks) {
    if (x->uncovered != y->uncovered) return x->uncovered < y->uncovered ? 1 : -1;
    if (x->uncovered && x->distance != y->distance) return x->distance < y->distance ? 1 : -1;
    return compare_sorted(x->sorted, y->sorted, n_blocks);
}

static bool is_worth_it(const outlook *now, const outlook *then, int gain_percent) {
    if (then->uncovered != now->uncovered) return then->uncovered < now->uncovered;
    if (now->uncovered) return then->distance < now->distance;
    double wanted = (double)now->sorted[0] * (1 + gain_percent / 100.0);
    return then->sorted[0] > now->sorted[0] && (double)then->sorted[0] >= wanted;
}

int sn_choose_move(const sn_census *c, int first, int end, uint64_t tokens_per_s, int gain_percent, uint64_t *seed) {
    int n = end - first, best_at = first;
    uint64_t rate = tokens_per_s ? tokens_per_s : c->usual_rate, n_equal = 0;
    outlook now, best, other;
    look(c, first, n, rate, &now);
    best = now;
    for (int at = 0; at + n <= c->n_blocks; at++) {
        if (at == first || !sn_may_leave(c, first, end, at)) continue;
        look(c, at, n, rate, &other);
        int order = compare_outlooks(&other, &best, c->n_blocks);
        if (order < 0 || (order == 0 && best_at == first)) continue; /* what is no better is no reason to move */
        n_equal = order > 0 ? 1 : n_equal + 1;
        if (n_equal > 1 && sn_seeded_below(seed, n_equal)) continue; /* one of the equals, each as likely */
        best_at = at;
        best = other;
    }
    return best_at != first && is_worth_it(&now, &best, gain_percent) ? best_at : first;
}
