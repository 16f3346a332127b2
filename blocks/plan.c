/* Which blocks rest and compute where (plan.h has the rules): what users write of it (--device-map, --preload), and
 * automatic placement. place_resident finds the best cuts by dynamic programming, from the last device to the first;
 * place_offloaded tries numbers of streamed blocks from few to many; planner_refuse names the device that lacks memory.
 * Every attempt fills a ledger (plan_ledger.h). */
#include "base/parse.h"
#include "blocks/plan_ledger.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* -- what users write -- */

/* Takes the next entry of a comma-separated list off *text; false at the end. An entry that is too long for any valid
 * one ends in "...", so that it is refused. */
static bool next_entry(const char **text, char *entry, size_t size) {
    if (!*text) return false;
    size_t len = strcspn(*text, ",");
    snprintf(entry, size, "%.*s", (int)sn_min_size(len, size - 1), *text);
    if (len >= size) memcpy(entry + size - 4, "...", 4);
    *text = (*text)[len] ? *text + len + 1 : NULL;
    return true;
}

/* Parses "10:12" to indices into the query's blocks. */
static sn_status parse_range(const sn_plan_query *query, const char *text, int *first, int *end, sn_err *err) {
    sn_status status = sn_parse_blocks(text, first, end, err);
    if (status) return status;
    if (*first < query->first || *end > query->end)
        return sn_fail(err, SN_REFUSED, "the blocks %d:%d are not all of this span, which is %d:%d", *first, *end,
                       query->first, query->end);
    *first -= query->first;
    *end -= query->first;
    return SN_OK;
}

/* The experts of the query's mixtures; {0, 0}: it has none. */
static sn_expert_range query_experts(const sn_plan_query *query) {
    sn_expert_range all = query->experts;
    for (int b = 0; b < query->end - query->first; b++)
        if (!query->experts.end && query->costs[b].n_experts > all.end) all.end = query->costs[b].n_experts;
    if (all.end > SN_PLAN_EXPERTS_MAX) all.end = SN_PLAN_EXPERTS_MAX;
    return all;
}

/* "0:8" of "experts:0:8" */
static sn_status parse_preloaded_experts(const sn_plan_query *query, const char *text, sn_preload *out, sn_err *err) {
    const sn_expert_range all = query_experts(query);
    int first, end;
    sn_status status = sn_parse_blocks(text, &first, &end, err);
    if (status) return status;
    if (first < all.first || end > all.end)
        return sn_fail(err, SN_REFUSED, "the experts %d:%d do not exist here: blocks of this span have %d:%d", first,
                       end, all.first, all.end);
    for (int e = first; e < end; e++) {
        out->n_experts += !out->experts[e];
        out->experts[e] = true;
    }
    return SN_OK;
}

static sn_status parse_preload(const sn_plan_query *query, sn_preload *out, sn_err *err) {
    static const char experts[] = "experts:";
    char entry[96];
    const char *text = query->preload;
    bool all = text && strcmp(text, "all") == 0;
    *out = (sn_preload){.n_experts = 0};
    for (int b = 0; b < query->end - query->first; b++) out->blocks[b] = all;
    if (all) return SN_OK;
    while (next_entry(&text, entry, sizeof entry)) {
        int first = 0, end = 0;
        sn_status status = !strncmp(entry, experts, strlen(experts))
                               ? parse_preloaded_experts(query, entry + strlen(experts), out, err)
                               : parse_range(query, entry, &first, &end, err);
        if (status) return sn_err_context(err, "preload");
        for (int b = first; b < end; b++) out->blocks[b] = true;
    }
    return SN_OK;
}

/* -- automatic placement -- */

typedef struct planner {
    const sn_plan_query *query;
    sn_plan_query tight; /* the query with the devices below, whose budgets are less by keep_free */
    sn_plan_device tight_devices[SN_PLAN_DEVICES_MAX];
    int n; /* blocks */
    sn_tie_table ties;
    sn_plan_ledger ledger; /* of the current attempt */
    sn_preload preload;
    const sn_block_placement *experts; /* where the experts of each block are; NULL: with their blocks */
    sn_block_placement placements[SN_PLAN_BLOCKS_MAX];
} planner;

/* The placement of a block that stays on device d. */
static sn_block_placement resident(const planner *p, int b, int d) {
    sn_block_placement place = p->experts ? p->experts[b] : (sn_block_placement){0};
    place.device = d;
    place.preload = p->preload.blocks[b];
    return place;
}

static bool try_resident(planner *p, int b, int d) {
    const sn_block_placement place = resident(p, b, d);
    return sn_plan_ledger_try_add(&p->ledger, b, &place);
}

static sn_block_placement streamed_to(const planner *p, int d) {
    return (sn_block_placement){.device = d, .residence = p->query->offload};
}

static sn_status planner_init(planner *p, const sn_plan_query *query, sn_err *err) {
    sn_status status = sn_plan_check_query(query, err);
    if (status) return status;
    p->query = query;
    p->tight = *query;
    p->tight.devices = p->tight_devices;
    for (int i = 0; i < query->n_devices; i++) {
        p->tight_devices[i] = query->devices[i];
        p->tight_devices[i].budget -= sn_min_size(query->devices[i].budget, query->keep_free);
    }
    p->n = query->end - query->first;
    sn_tie_table_make(query, &p->ties);
    sn_plan_ledger_init(&p->ledger, query, &p->ties);
    return SN_OK;
}

/* ---- resident: a run of blocks for each device, in order ---- */

static size_t largest_weights(const planner *p) {
    size_t largest = 0;
    for (int b = 0; b < p->n; b++)
        if (p->query->costs[b].weights > largest) largest = p->query->costs[b].weights;
    return largest;
}

/* The best way to place blocks `s` and up on devices `d` and up. tied[d][s]: the fewest bytes of tied weights that
 * these devices hold together; SIZE_MAX: the blocks do not fit. end[d][s]: where the run of device d then ends, as late
 * as possible. */
typedef struct cuts {
    size_t tied[SN_PLAN_DEVICES_MAX + 1][SN_PLAN_BLOCKS_MAX + 1];
    int end[SN_PLAN_DEVICES_MAX][SN_PLAN_BLOCKS_MAX + 1];
} cuts;

/* Fills the table at [d][s], given its entries for d + 1. */
static void find_cut(planner *p, int d, int s, size_t reserved, cuts *c) {
    size_t tied = 0, budget = p->query->devices[d].budget;
    c->tied[d][s] = c->tied[d + 1][s]; /* the device gets nothing */
    c->end[d][s] = s;
    sn_plan_ledger_init(&p->ledger, p->query, &p->ties);
    for (int b = s; b < p->n; b++) {
        size_t more = sn_plan_ledger_tied_cost(&p->ledger, b, d);
        if (!try_resident(p, b, d) || reserved > budget - p->ledger.bytes[d]) break;
        tied = sn_plan_add_sizes(tied, more);
        size_t all = sn_plan_add_sizes(tied, c->tied[d + 1][b + 1]);
        if (all > c->tied[d][s] || all == SIZE_MAX) continue;
        c->tied[d][s] = all;
        c->end[d][s] = b + 1;
    }
}

/* Sets the placements and returns true if all blocks fit while `reserved` bytes stay free on the first device. */
static bool place_runs(planner *p, size_t reserved, cuts *c) {
    int n_devices = p->query->n_devices, b = 0;
    for (int s = 0; s <= p->n; s++) c->tied[n_devices][s] = s == p->n ? 0 : SIZE_MAX;
    for (int d = n_devices - 1; d >= 0; d--)
        for (int s = 0; s <= p->n; s++) find_cut(p, d, s, d == 0 ? reserved : 0, c);
    if (c->tied[0][0] == SIZE_MAX) return false;
    for (int d = 0; d < n_devices; d++)
        for (int end = c->end[d][b]; b < end; b++) p->placements[b] = resident(p, b, d);
    return true;
}

static bool place_within_budgets(planner *p) {
    cuts c;
    if (!place_runs(p, 0, &c)) return false;
    if (c.end[0][0] == p->n || place_runs(p, largest_weights(p), &c)) return true;
    return place_runs(p, 0, &c); /* without the reserve: the table holds the last attempt */
}

static int count_devices(const planner *p) {
    int n = 0;
    for (int b = 0; b < p->n; b++) n += !b || p->placements[b].device != p->placements[b - 1].device;
    return n;
}

static bool place_resident(planner *p) {
    const sn_plan_query *query = p->query;
    sn_block_placement placements[SN_PLAN_BLOCKS_MAX];
    if (!place_within_budgets(p)) return false;
    int n_devices = count_devices(p);
    memcpy(placements, p->placements, sizeof placements);
    p->query = &p->tight;
    if (!place_within_budgets(p) || count_devices(p) > n_devices) memcpy(p->placements, placements, sizeof placements);
    p->query = query;
    return true;
}

/* ---- with offload ---- */

/* Places the blocks that are not streamed, in order, on devices in order, as the ledger allows. Returns the index of
 * the first block that fits nowhere (n: all fit). *last (NULL allowed): the device to which the next block would go. */
static int fill_devices(planner *p, const bool *streamed, int *last) {
    int d = 0, b = 0;
    for (; b < p->n; b++) {
        if (streamed && streamed[b]) continue;
        while (d < p->query->n_devices && !try_resident(p, b, d)) d++;
        if (d == p->query->n_devices) break;
        p->placements[b] = resident(p, b, d);
    }
    if (last) *last = d < p->query->n_devices ? d : d - 1;
    return b;
}

/* Places with the last k blocks streamed to device x that are not preloaded and have at most `largest` bytes. */
static bool place_streamed(planner *p, int k, size_t largest, int x) {
    bool streamed[SN_PLAN_BLOCKS_MAX] = {false};
    sn_plan_ledger_init(&p->ledger, p->query, &p->ties);
    for (int b = p->n - 1; b >= 0 && k; b--) {
        if (p->preload.blocks[b] || p->query->costs[b].weights > largest) continue;
        p->placements[b] = streamed_to(p, x);
        if (!sn_plan_ledger_try_add(&p->ledger, b, &p->placements[b])) return false;
        streamed[b] = true;
        k--;
    }
    return k == 0 && fill_devices(p, streamed, NULL) == p->n;
}

/* The sizes of blocks that may be streamed, each once, largest first. */
static int streamable_sizes(const planner *p, size_t sizes[SN_PLAN_BLOCKS_MAX]) {
    int n = 0;
    for (int b = 0; b < p->n; b++) {
        size_t size = p->query->costs[b].weights;
        int at = 0;
        if (p->preload.blocks[b]) continue;
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
    int n_sizes = streamable_sizes(p, sizes), most = 0, fewest = 1;
    for (int b = 0; b < p->n; b++) most += !p->preload.blocks[b];
    if (p->query->offload_all) {
        fewest = most;
        n_sizes = n_sizes ? 1 : 0;
    }
    for (int k = fewest; k <= most; k++)
        for (int i = 0; i < n_sizes; i++)
            for (int x = 0; x < p->query->n_devices; x++)
                if (place_streamed(p, k, sizes[i], x)) return true;
    return false;
}

/* ---- refusing ---- */

/* Whether host memory would hold the blocks that device d has no room for. */
static bool may_rest_in_host(const planner *p, int d) {
    size_t sum = 0;
    for (int b = 0; b < p->n; b++) sum = sn_plan_add_sizes(sum, p->query->costs[b].weights);
    return p->query->devices[d].id.kind != SN_DEVICE_CPU && (!p->query->host_memory || sum <= p->query->host_memory);
}

/* Finds a device that lacks memory, and how much: all blocks that may be streamed (none where a map places the experts)
 * go to the first device, the others fill the devices in order, and blocks that fit nowhere go to the last one. */
static sn_status planner_refuse(planner *p, sn_err *err) {
    const sn_plan_query *query = p->query;
    bool streamed[SN_PLAN_BLOCKS_MAX] = {false}, offload = query->offload != SN_ON_DEVICE && !p->experts;
    char name[32];
    int d = 0;
    sn_plan_ledger_init(&p->ledger, query, &p->ties);
    for (int b = 0; offload && b < p->n; b++) {
        const sn_block_placement place = streamed_to(p, 0);
        streamed[b] = !p->preload.blocks[b];
        if (streamed[b]) sn_plan_ledger_add(&p->ledger, b, &place);
    }
    if (p->ledger.bytes[0] <= query->devices[0].budget)
        for (int b = fill_devices(p, streamed, &d); b < p->n; b++) {
            const sn_block_placement place = resident(p, b, d);
            if (!streamed[b]) sn_plan_ledger_add(&p->ledger, b, &place);
        }
    if (sn_plan_ledger_host_lacks(&p->ledger)) return sn_plan_refuse_host(&p->ledger, err);
    /* Where that one has space, another one lacks it for experts. */
    for (int i = 0; i < query->n_devices && p->ledger.bytes[d] <= query->devices[d].budget; i++) d = i;
    return sn_fail(
        err, SN_REFUSED,
        "blocks %d:%d do not fit: %s would need %zu bytes more%s; give fewer blocks, a smaller KV cache%s, or "
        "more memory",
        query->first, query->end, sn_device_id_name(query->devices[d].id, name),
        p->ledger.bytes[d] - sn_min_size(p->ledger.bytes[d], query->devices[d].budget),
        offload ? ", with all blocks streamed to it that are not preloaded" : "",
        query->offload || p->experts ? ""
        : may_rest_in_host(p, d)     ? ", --offload host or disk"
                                     : ", --offload disk");
}

/* The blocks stay on devices, and their experts rest where blocks may be offloaded. */
static bool place_without_experts(planner *p) {
    sn_block_placement experts[SN_PLAN_BLOCKS_MAX];
    bool any = false;
    for (int b = 0; b < p->n; b++) {
        experts[b] = (sn_block_placement){.experts = p->query->offload};
        any |= p->query->costs[b].n_experts && !p->preload.blocks[b];
    }
    if (!any || p->experts) return false;
    p->experts = experts;
    bool fits = place_resident(p);
    p->experts = NULL;
    return fits;
}

/* Places blocks whose experts are where `experts` says, [end - first]: experts, apart and experts_device; NULL: with
 * their blocks. */
static sn_status auto_experts(const sn_plan_query *query, const sn_block_placement *experts, sn_plan *out,
                              sn_err *err) {
    planner p = {.experts = experts};
    sn_status status = planner_init(&p, query, err);
    if (!status) status = parse_preload(query, &p.preload, err);
    if (status) return status;
    p.ledger.n_pinned = p.preload.n_experts;
    if (query->offload_all && query->offload == SN_ON_DEVICE)
        return sn_fail(err, SN_REFUSED,
                       "all blocks are to be offloaded, but not where to: give --offload host or disk");
    bool all_preloaded = true;
    for (int b = 0; b < p.n; b++) all_preloaded &= p.preload.blocks[b];
    bool fits = (!query->offload_all || all_preloaded || experts) && place_resident(&p);
    if (!fits && query->offload != SN_ON_DEVICE && !experts) /* a map is honoured as it stands */
        fits = (!query->offload_all && place_without_experts(&p)) || place_offloaded(&p);
    if (!fits) return planner_refuse(&p, err);
    return sn_plan_finish(query, &p.ties, &p.preload, p.placements, out, err);
}

sn_status sn_plan_auto(const sn_plan_query *query, sn_plan *out, sn_err *err) {
    return auto_experts(query, NULL, out, err);
}

int sn_plan_n_fitting(const sn_plan_query *query) {
    planner p = {0};
    if (planner_init(&p, query, NULL)) return 0;
    sn_plan_ledger_init(&p.ledger, &p.tight, &p.ties);
    int n = fill_devices(&p, NULL, NULL);
    if (n) return n;
    sn_plan_ledger_init(&p.ledger, query, &p.ties);
    return fill_devices(&p, NULL, NULL);
}

/* -- explicit maps -- */

typedef struct device_map {
    const sn_plan_query *query;
    sn_device_id available[SN_PLAN_DEVICES_MAX];
    bool covered[SN_PLAN_BLOCKS_MAX];
    int first_named;                                   /* the device that the map names first; -1: none so far */
    sn_block_placement placements[SN_PLAN_BLOCKS_MAX]; /* device -1: first_named */
    bool experts_named[SN_PLAN_BLOCKS_MAX];
    sn_block_placement experts[SN_PLAN_BLOCKS_MAX];
} device_map;

static sn_status parse_map_target(device_map *m, const char *text, sn_block_placement *out, sn_err *err) {
    *out = (sn_block_placement){.device = -1};
    if (strcasecmp(text, "host") == 0) out->residence = SN_IN_HOST;
    if (strcasecmp(text, "disk") == 0) out->residence = SN_ON_DISK;
    if (out->residence != SN_ON_DEVICE) return SN_OK;
    sn_device_id id;
    sn_status status = sn_device_id_match(text, m->available, (size_t)m->query->n_devices, &id, err);
    if (status) return status;
    for (out->device = 0; !sn_device_id_equal(m->available[out->device], id);) out->device++;
    if (m->first_named < 0) m->first_named = out->device;
    return SN_OK;
}

/* "*" or "10:14" */
static sn_status parse_map_blocks(const sn_plan_query *query, const char *text, int *first, int *end, sn_err *err) {
    if (strcmp(text, "*")) return parse_range(query, text, first, end, err);
    *first = 0;
    *end = query->end - query->first;
    return SN_OK;
}

/* Where the experts of blocks are: "10:14.experts=host" without ".experts". */
static sn_status parse_map_experts(device_map *m, const char *blocks, const char *target, sn_err *err) {
    int first, end, named = m->first_named; /* devices of experts do not compute what rests elsewhere */
    bool any = false;
    sn_block_placement where, place = {0};
    sn_status status = parse_map_blocks(m->query, blocks, &first, &end, err);
    if (!status) status = parse_map_target(m, target, &where, err);
    if (status) return status;
    m->first_named = named;
    place.experts = where.residence;
    place.apart = where.residence == SN_ON_DEVICE;
    if (place.apart) place.experts_device = where.device;
    for (int b = first; b < end; b++) {
        if (m->experts_named[b])
            return sn_fail(err, SN_REFUSED, "the experts of block %d are named twice: name them in one entry",
                           m->query->first + b);
        any |= m->query->costs[b].n_experts;
        m->experts_named[b] = true;
        m->experts[b] = place;
    }
    return any ? SN_OK : sn_fail(err, SN_REFUSED, "the blocks %s have no experts", blocks);
}

static sn_status parse_map_entry(device_map *m, char *entry, sn_err *err) {
    int first, end;
    sn_block_placement place;
    char *target = strchr(entry, '=');
    if (!target)
        return sn_fail(err, SN_REFUSED,
                       "\"%s\" maps nothing: write FIRST:END=DEVICE, as in 10:14=cuda:0,14:16=disk, or *.experts=disk",
                       entry);
    *target++ = 0;
    char *part = strchr(entry, '.');
    if (part && !strcmp(part, ".experts")) {
        *part = 0;
        return parse_map_experts(m, entry, target, err);
    }
    sn_status status = parse_map_blocks(m->query, entry, &first, &end, err);
    if (!status) status = parse_map_target(m, target, &place, err);
    for (int b = first; !status && b < end; b++) {
        if (m->covered[b])
            return sn_fail(err, SN_REFUSED, "block %d is covered twice: name it in one entry", m->query->first + b);
        m->covered[b] = true;
        m->placements[b] = place;
    }
    return status;
}

/* Whether the map leaves the devices of all blocks to automatic placement. */
static bool names_experts_only(const device_map *m) {
    bool covered = false, named = false;
    for (int b = 0; b < m->query->end - m->query->first; b++) {
        covered |= m->covered[b];
        named |= m->experts_named[b];
    }
    return named && !covered;
}

static sn_status check_experts_are_apart(const device_map *m, sn_err *err) {
    for (int b = 0; b < m->query->end - m->query->first; b++)
        if (m->experts_named[b] && m->query->costs[b].n_experts && m->placements[b].residence != SN_ON_DEVICE)
            return sn_fail(err, SN_REFUSED,
                           "block %d is streamed with its experts: map it to a device, or leave them out",
                           m->query->first + b);
    return SN_OK;
}

static sn_status parse_map(device_map *m, const char *map, sn_err *err) {
    char entry[96];
    int n = m->query->end - m->query->first;
    while (next_entry(&map, entry, sizeof entry)) {
        sn_status status = parse_map_entry(m, entry, err);
        if (status) return status;
    }
    if (names_experts_only(m)) return SN_OK;
    for (int b = 0; b < n; b++) {
        int end = b;
        while (end < n && !m->covered[end]) end++;
        if (end > b)
            return sn_fail(err, SN_REFUSED, "blocks %d:%d are not covered: say where they go", m->query->first + b,
                           m->query->first + end);
        if (m->placements[b].device < 0) m->placements[b].device = m->first_named < 0 ? 0 : m->first_named;
        m->placements[b].experts = m->experts[b].experts;
        m->placements[b].apart = m->experts[b].apart;
        m->placements[b].experts_device = m->experts[b].experts_device;
    }
    return check_experts_are_apart(m, err);
}

/* Refuses a map that needs more than a budget, and names each device that lacks memory. */
static sn_status map_check_memory(const device_map *m, const sn_tie_table *ties, int n_pinned, sn_err *err) {
    sn_plan_ledger ledger = {.n_pinned = n_pinned};
    char lacking[384] = "", name[32];
    size_t at = 0;
    sn_plan_ledger_init(&ledger, m->query, ties);
    for (int b = 0; b < m->query->end - m->query->first; b++) sn_plan_ledger_add(&ledger, b, &m->placements[b]);
    for (int d = 0; d < m->query->n_devices && at < sizeof lacking; d++) {
        size_t budget = m->query->devices[d].budget;
        if (ledger.used[d] && (ledger.bytes[d] > budget || ledger.bytes[d] == SIZE_MAX))
            at += (size_t)snprintf(lacking + at, sizeof lacking - at, "%s%s would need %zu bytes more", at ? ", " : "",
                                   sn_device_id_name(m->query->devices[d].id, name), ledger.bytes[d] - budget);
    }
    if (at) return sn_fail(err, SN_REFUSED, "too little memory: %s than it may use", lacking);
    return sn_plan_ledger_host_lacks(&ledger) ? sn_plan_refuse_host(&ledger, err) : SN_OK;
}

sn_status sn_plan_explicit(const sn_plan_query *query, const char *map, sn_plan *out, sn_err *err) {
    device_map m = {.query = query, .first_named = -1};
    sn_tie_table ties;
    sn_preload preload;
    sn_status status = sn_plan_check_query(query, err);
    if (!status) status = parse_preload(query, &preload, err);
    if (status) return status;
    for (int d = 0; d < query->n_devices; d++) m.available[d] = query->devices[d].id;
    status = parse_map(&m, map, err);
    if (status) return sn_err_context(err, "device map");
    if (names_experts_only(&m)) return auto_experts(query, m.experts, out, err);
    for (int b = 0; b < query->end - query->first; b++) m.placements[b].preload = preload.blocks[b];
    sn_tie_table_make(query, &ties);
    status = map_check_memory(&m, &ties, preload.n_experts, err);
    if (status) return sn_err_context(err, "device map");
    return sn_plan_finish(query, &ties, &preload, m.placements, out, err);
}
