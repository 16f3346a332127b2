/* What a node counts and measures, for who watches it: plain numbers, copied out of the core. */
#ifndef SN_NODE_FIGURES_H
#define SN_NODE_FIGURES_H

#include "base/err.h"
#include "node/engine.h"
#include "node/quota.h"

/* How many times each upper bound (SN_HISTOGRAM_BOUNDS_US, then none) was not passed; not cumulated. */
enum { SN_HISTOGRAM_BOUNDS = 14 };
extern const int64_t SN_HISTOGRAM_BOUNDS_US[SN_HISTOGRAM_BOUNDS];
typedef struct sn_histogram {
    uint64_t counts[SN_HISTOGRAM_BOUNDS + 1], sum_us;
} sn_histogram;
void sn_histogram_add(sn_histogram *histogram, int64_t us);

typedef struct sn_figures {
    char model[128];/* its name; empty: none is served yet */
    int first, end; /* blocks served */
    sn_engine_figures engine;
    uint64_t kv_bytes_max, weight_bytes, sessions, sessions_max, draining;
    uint64_t steps, tokens;
    uint64_t handed_over;           /* sessions whose past another node got */
    uint64_t refusals[SN_STOP + 1]; /* ERRORs sent, by their status */
    uint64_t quota_refusals[SN_QUOTA_KINDS]; /* those of them for which a client's quota was the reason */
    uint64_t announcements, joined; /* nodes known; those that we joined and that answered */
    sn_histogram step, queue; /* of each step: from arrival to its answer, and to the beginning of its computation */
} sn_figures;

#endif
