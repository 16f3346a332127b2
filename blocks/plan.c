#include "blocks/plan_ledger.h"

#include <string.h>

typedef struct planner {
    const sn_plan_wish *wish;
    int n; /* blocks */
    sn_tie_table ties;
    sn_plan_ledger ledger; /* of the attempt */
    bool preload[SN_PLAN_BLOCKS_MAX];
    sn_place places[SN_PLAN_BLOCKS_MAX];
} planner;

static sn_status planner_begin(planner *p, const sn_plan_wish *wish, sn_err *err) {
    sn_status status = sn_plan_check(wish, err);
    if (status) return status;
    p->wish = wish;
    p->n = wish->end - wish->first;
    sn_tie_table_make(wish, &p->ties);
    sn_plan_ledger_begin(&p->ledger, wish, &p->ties);
    return SN_OK;
}

/* -- resident: a run of blocks for each device, in order */

static size_t largest_weights(const planner *p) {
    size_t largest = 0;
    for (int b = 0; b < p->n; b++)
        if (p->wish->costs[b].weights > largest) largest = p->wish->costs[b].weights;
    return largest;
}

/* What is known of placing blocks `s` and on over devices `d` and on: the fewest bytes of tied weights held by all of
 * these devices together (SIZE_MAX: they do not fit), and where the run of device d ends then, as late as possible. */
typedef struct cuts {
    size_t tied[SN_PLAN_DEVICES_MAX + 1][SN_PLAN_BLOCKS_MAX + 1];
    int end[SN_PLAN_DEVICES_MAX][SN_PLAN_BLOCKS_MAX + 1];
} cuts;

static void find_cut(planner *p, int d, int s, size_t room, cuts *c) {
    size_t tied = 0, budget = p->wish->devices[d].budget;
    c->tied[d][s] = c->tied[d + 1][s]; /* the device gets nothing */
    c->end[d][s] = s;
    sn_plan_ledger_begin(&p->ledger, p->wish, &p->ties);
    for (int b = s; b < p->n; b++) {
        size_t more = sn_plan_ledger_tied(&p->ledger, b, d);
        if (!sn_plan_ledger_fit(&p->ledger, b, d, false) || room > budget - p->ledger.bytes[d]) break;
        tied = sn_plan_sum(tied, more);
        size_t all = sn_plan_sum(tied, c->tied[d + 1][b + 1]);
        if (all > c->tied[d][s] || all == SIZE_MAX) continue;
        c->tied[d][s] = all;
        c->end[d][s] = b + 1;
    }
}

/* True if all blocks fit when `room` bytes stay free on the first device; the places are set then. */
static bool place_runs(planner *p, size_t room, cuts *c) {
    int n_devices = p->wish->n_devices, b = 0;
    for (int s = 0; s <= p->n; s++) c->tied[n_devices][s] = s == p->n ? 0 : SIZE_MAX;
    for (int d = n_devices - 1; d >= 0; d--)
        for (int s = 0; s <= p->n; s++) find_cut(p, d, s, d == 0 ? room : 0, c);
    if (c->tied[0][0] == SIZE_MAX) return false;
    for (int d = 0; d < n_devices; d++)
        for (int end = c->end[d][b]; b < end; b++) p->places[b] = (sn_place){d, SN_ON_DEVICE, p->preload[b]};
    return true;
}

static bool place_resident(planner *p) {
    cuts c;
    if (!place_runs(p, 0, &c)) return false;
    if (c.end[0][0] == p->n || place_runs(p, largest_weights(p), &c)) return true;
    return place_runs(p, 0, &c); /* without the room again */
}

/* -- with offload */

/* Blocks that are not streamed, in order over the devices as the ledger leaves them; how many blocks were passed until
 * one fitted nowhere. `last` (NULL allowed): the device that the next one would go to. */
static int fill(planner *p, const bool *streamed, int *last) {
    int d = 0, b = 0;
    for (; b < p->n; b++) {
        if (streamed && streamed[b]) continue;
        while (d < p->wish->n_devices && !sn_plan_ledger_fit(&p->ledger, b, d, false)) d++;
        if (d == p->wish->n_devices) break;
        p->places[b] = (sn_place){d, SN_ON_DEVICE, p->preload[b]};
    }
    if (last) *last = d < p->wish->n_devices ? d : d - 1;
    return b;
}

/* The last k blocks that are not preloaded and whose weights are at most `largest` are streamed to device x. */
static bool place_streamed(planner *p, int k, size_t largest, int x) {
    bool streamed[SN_PLAN_BLOCKS_MAX] = {false};
    sn_plan_ledger_begin(&p->ledger, p->wish, &p->ties);
    for (int b = p->n - 1; b >= 0 && k; b--) {
        if (p->preload[b] || p->wish->costs[b].weights > largest) continue;
        if (!sn_plan_ledger_fit(&p->ledger, b, x, true)) return false;
        p->places[b] = (sn_place){x, p->wish->offload, false};
        streamed[b] = true;
        k--;
    }
    return k == 0 && fill(p, streamed, NULL) == p->n;
}

/* The weights of blocks that may be streamed, each size once, largest first. */
static int sizes_of(const planner *p, size_t sizes[SN_PLAN_BLOCKS_MAX]) {
    int n = 0;
    for (int b = 0; b < p->n; b++) {
        size_t size = p->wish->costs[b].weights;
        int at = 0;
        if (p->preload[b]) continue;
        while (at < n && sizes[at] > size) at++;
        if (at < n && sizes[at] == size) continue;
        memmove(sizes + at + 1, sizes + at, (size_t)(n - at) * sizeof *sizes);
        sizes[at] = size;
        n++;
    }
    return n;
}

static bool place_offloaded(planner *p) {
    size_t sizes[SN_PLAN_BLOCKS_MAX];
    int n_sizes = sizes_of(p, sizes), most = 0, fewest = 1;
    for (int b = 0; b < p->n; b++) most += !p->preload[b];
    if (p->wish->all_offloaded) {
        fewest = most;
        n_sizes = n_sizes ? 1 : 0;
    }
    for (int k = fewest; k <= most; k++)
        for (int i = 0; i < n_sizes; i++)
            for (int x = 0; x < p->wish->n_devices; x++)
                if (place_streamed(p, k, sizes[i], x)) return true;
    return false;
}

/* -- refusing */

/* Everything that may be streamed is, to the first device; the rest fills the devices; what fits nowhere would go to
 * the last one. That names a device which needs more, and how much. */
static sn_status refuse(planner *p, sn_err *err) {
    const sn_plan_wish *wish = p->wish;
    bool streamed[SN_PLAN_BLOCKS_MAX] = {false}, offload = wish->offload != SN_ON_DEVICE;
    char name[32];
    int d = 0;
    sn_plan_ledger_begin(&p->ledger, wish, &p->ties);
    for (int b = 0; offload && b < p->n; b++) {
        streamed[b] = !p->preload[b];
        if (streamed[b]) sn_plan_ledger_add(&p->ledger, b, 0, true);
    }
    if (p->ledger.bytes[0] <= wish->devices[0].budget)
        for (int b = fill(p, streamed, &d); b < p->n; b++)
            if (!streamed[b]) sn_plan_ledger_add(&p->ledger, b, d, false);
    return sn_fail(err, SN_REFUSED, "blocks %d:%d do not fit: %s would need %zu bytes more%s; give %s, or more memory",
                   wish->first, wish->end, sn_device_id_name(wish->devices[d].id, name),
                   p->ledger.bytes[d] - wish->devices[d].budget,
                   offload ? ", with all that is not preloaded streamed to it" : "",
                   offload ? "fewer blocks, less cache" : "fewer blocks, less cache, --offload host or disk");
}

sn_status sn_plan_auto(const sn_plan_wish *wish, sn_plan *out, sn_err *err) {
    planner p;
    sn_status status = planner_begin(&p, wish, err);
    if (!status) status = sn_plan_preload(wish, p.preload, err);
    if (status) return status;
    if (wish->all_offloaded && wish->offload == SN_ON_DEVICE)
        return sn_fail(err, SN_REFUSED,
                       "blocks that shall all be offloaded need a place to rest: give --offload host or disk");
    bool all_preloaded = true;
    for (int b = 0; b < p.n; b++) all_preloaded &= p.preload[b];
    bool fits = (!wish->all_offloaded || all_preloaded) && place_resident(&p);
    if (!fits && wish->offload != SN_ON_DEVICE) fits = place_offloaded(&p);
    if (!fits) return refuse(&p, err);
    sn_plan_finish(wish, &p.ties, p.places, out);
    return SN_OK;
}

int sn_plan_fitting(const sn_plan_wish *wish) {
    planner p;
    if (planner_begin(&p, wish, NULL)) return 0;
    memset(p.preload, 0, sizeof p.preload);
    return fill(&p, NULL, NULL);
}
