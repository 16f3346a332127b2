/* Plans of random queries, compared with counting and exhaustive search. */
#include "blocks/plan.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static sn_err err;
static sn_plan plan;

static uint64_t random_state = 20261121;
static unsigned random_below(unsigned n) { /* 0..n-1; SplitMix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (unsigned)((z ^ z >> 31) % n);
}

enum { QUERIES = 2000, BLOCKS = 6, DEVICES = 3 };

typedef struct random_case {
    sn_block_cost costs[BLOCKS];
    sn_plan_device devices[DEVICES];
    bool preload[BLOCKS];
    char ranges[128];
    sn_plan_query query;
    int n;
    bool uniform;
} random_case;

static void make_random_case(random_case *t) {
    *t = (random_case){.n = 1 + (int)random_below(BLOCKS), .uniform = random_below(2)};
    size_t total = 0;
    for (int b = 0; b < t->n; b++) {
        sn_block_cost *c = &t->costs[b];
        if (t->uniform && b) {
            *c = t->costs[0];
        } else {
            *c = (sn_block_cost){.weights = 1 + random_below(50),
                                 .cache = random_below(10),
                                 .n_ties = t->uniform ? 0 : (int)random_below(3)};
            for (int i = 0; i < c->n_ties; i++) c->ties[i].bytes = 10 * (c->ties[i].group = 1 + random_below(3));
        }
        total += c->weights + c->cache;
        t->preload[b] = random_below(6) == 0;
        size_t len = strlen(t->ranges);
        if (t->preload[b]) snprintf(t->ranges + len, sizeof t->ranges - len, "%s%d:%d", len ? "," : "", 3 + b, 4 + b);
    }
    t->query = (sn_plan_query){.first = 3,
                               .end = 3 + t->n,
                               .costs = t->costs,
                               .devices = t->devices,
                               .n_devices = 1 + (int)random_below(DEVICES),
                               .offload = (sn_residence)random_below(3),
                               .preload = t->ranges[0] ? t->ranges : NULL};
    t->query.offload_all = t->query.offload && random_below(4) == 0;
    for (int d = 0; d < t->query.n_devices; d++)
        t->devices[d] = (sn_plan_device){
            {SN_DEVICE_CUDA, d}, random_below((unsigned)(total * 3 / (unsigned)t->query.n_devices)), random_below(20)};
}

/* The memory that a device needs, by definition. */
static size_t bytes_needed(const random_case *t, const int *device, const bool *streamed, int d) {
    size_t sum = 0, largest = 0;
    bool any = false, groups[4] = {false};
    for (int b = 0; b < t->n; b++) {
        if (device[b] != d) continue;
        any = true;
        sum += t->costs[b].cache + (streamed[b] ? 0 : t->costs[b].weights);
        if (streamed[b] && t->costs[b].weights > largest) largest = t->costs[b].weights;
        for (int i = 0; i < t->costs[b].n_ties; i++) groups[t->costs[b].ties[i].group] = true;
    }
    for (size_t g = 1; g < 4; g++) sum += groups[g] ? 10 * g : 0;
    return any ? sum + 2 * largest + t->devices[d].scratch : 0;
}

static bool within_budgets(const random_case *t, const int *device, const bool *streamed) {
    for (int d = 0; d < t->query.n_devices; d++)
        if (bytes_needed(t, device, streamed, d) > t->devices[d].budget) return false;
    return true;
}

/* True if these blocks can be streamed to some one device with the others assigned in order to the devices in some
 * way. */
static bool assignment_exists(const random_case *t, const bool *streamed) {
    int device[BLOCKS], n_variants = 1;
    for (int b = 0; b < t->n; b++) n_variants *= t->query.n_devices;
    for (int x = 0; x < t->query.n_devices; x++)
        for (int variant = 0; variant < n_variants; variant++) {
            int rest = variant, last = 0;
            bool ordered = true;
            for (int b = 0; b < t->n; b++, rest /= t->query.n_devices) {
                device[b] = streamed[b] ? x : rest % t->query.n_devices;
                if (streamed[b]) continue;
                ordered &= device[b] >= last;
                last = device[b];
            }
            if (ordered && within_budgets(t, device, streamed)) return true;
        }
    return false;
}

static int count_streamed(const bool *streamed, int n) {
    int k = 0;
    for (int b = 0; b < n; b++) k += streamed[b];
    return k;
}

/* True if the rule allows these blocks to be streamed: the last ones that are not preloaded, except for some of the
 * largest size. */
static bool follows_the_rule(const random_case *t, const bool *streamed) {
    size_t largest = 0;
    bool begun = false;
    for (int b = 0; b < t->n; b++)
        if (streamed[b] && t->costs[b].weights > largest) largest = t->costs[b].weights;
    for (int b = 0; b < t->n; b++) {
        bool may = !t->preload[b] && t->costs[b].weights <= largest;
        if ((streamed[b] && !may) || (begun && may && !streamed[b])) return false;
        if (t->query.offload_all && !t->preload[b] && !streamed[b]) return false;
        begun |= streamed[b];
    }
    return true;
}

/* The least number of streamed blocks for which a plan exists, or -1. For equal blocks every subset is tried. */
static int fewest_streamed(const random_case *t) {
    int best = -1;
    for (int set = 0; set < 1 << t->n; set++) {
        bool streamed[BLOCKS], may = true;
        for (int b = 0; b < t->n; b++) {
            streamed[b] = set >> b & 1;
            may &= !streamed[b] || (!t->preload[b] && t->query.offload);
            may &= streamed[b] || t->preload[b] || !t->query.offload_all;
        }
        int k = count_streamed(streamed, t->n);
        if (!may || (best >= 0 && k >= best) || (!t->uniform && !follows_the_rule(t, streamed))) continue;
        if (assignment_exists(t, streamed)) best = k;
    }
    return best;
}

static void check_plan(const random_case *t, int i) {
    int device[BLOCKS], n_offloaded = 0, last = 0;
    bool streamed[BLOCKS];
    cr_assert(plan.first == 3 && plan.end == 3 + t->n);
    for (int b = 0; b < t->n; b++) {
        const sn_block_placement *p = &plan.placements[b];
        cr_assert(p->device >= 0 && p->device < plan.n_devices, "query %d", i);
        device[b] = plan.devices[p->device].ordinal;
        streamed[b] = p->residence != SN_ON_DEVICE;
        n_offloaded += streamed[b];
        cr_assert(!streamed[b] || p->residence == t->query.offload, "query %d", i);
        cr_assert_eq(p->preload, t->preload[b]);
        cr_assert(!p->preload || !streamed[b]);
        if (streamed[b]) continue;
        cr_assert(device[b] >= last, "query %d", i);
        last = device[b];
    }
    for (int p = 0; p < plan.n_devices; p++) {
        int d = plan.devices[p].ordinal;
        cr_assert_eq(plan.device_bytes[p], bytes_needed(t, device, streamed, d), "query %d", i);
        cr_assert_leq(plan.device_bytes[p], t->devices[d].budget, "query %d", i);
    }
    cr_assert_eq(n_offloaded, fewest_streamed(t), "query %d", i);
}

/* How many blocks fit; each number is tried separately. */
static int count_fitting(const random_case *t) {
    bool none[BLOCKS] = {false};
    random_case part = *t;
    part.query.devices = part.devices, part.query.costs = part.costs;
    for (part.n = t->n; part.n > 0; part.n--)
        if (assignment_exists(&part, none)) break;
    return part.n;
}

Test(plan_random, every_random_query_gets_a_valid_plan_or_has_none) {
    static random_case t;
    int given = 0, offloaded = 0;
    for (int i = 0; i < QUERIES; i++) {
        make_random_case(&t);
        sn_status status = sn_plan_auto(&t.query, &plan, &err);
        if (status == SN_OK) {
            check_plan(&t, i);
            given++;
            offloaded += plan.host_bytes || plan.disk_bytes;
        } else {
            cr_assert_eq(status, SN_REFUSED);
            cr_assert_eq(fewest_streamed(&t), -1, "query %d was refused: %s", i, err.text);
            cr_assert(!strstr(err.text, " 0 bytes more"), "%s", err.text);
        }
        cr_assert_eq(sn_plan_n_fitting(&t.query), count_fitting(&t), "query %d", i);
    }
    cr_assert(given > QUERIES / 4 && given < QUERIES * 3 / 4 && offloaded > QUERIES / 20, "%d plans, %d offloaded",
              given, offloaded);
    cr_log_info("%d of %d queries had a plan, %d with offload", given, QUERIES, offloaded);
}
