/* Parses what users write about placement: explicit maps (--device-map), and ranges of blocks and experts (--preload).
 */
#include "base/parse.h"
#include "blocks/plan_ledger.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

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

sn_status sn_plan_parse_preload(const sn_plan_query *query, sn_preload *out, sn_err *err) {
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

/* ---- explicit maps ---- */

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
    if (!status) status = sn_plan_parse_preload(query, &preload, err);
    if (status) return status;
    for (int d = 0; d < query->n_devices; d++) m.available[d] = query->devices[d].id;
    status = parse_map(&m, map, err);
    if (status) return sn_err_context(err, "device map");
    if (names_experts_only(&m)) return sn_plan_auto_experts(query, m.experts, out, err);
    for (int b = 0; b < query->end - query->first; b++) m.placements[b].preload = preload.blocks[b];
    sn_tie_table_make(query, &ties);
    status = map_check_memory(&m, &ties, preload.n_experts, err);
    if (status) return sn_err_context(err, "device map");
    return sn_plan_finish(query, &ties, &preload, m.placements, out, err);
}
