/* What people write about placement: explicit maps and preload ranges. */
#include "base/text.h"
#include "blocks/plan_ledger.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Cuts the next of several entries off *text; false at the end. One too long to mean anything is cut so that it does
 * not. */
static bool next_entry(const char **text, char *entry, size_t room) {
    if (!*text) return false;
    size_t len = strcspn(*text, ",");
    snprintf(entry, room, "%.*s", (int)sn_min_size(len, room - 1), *text);
    if (len >= room) memcpy(entry + room - 4, "...", 4);
    *text = (*text)[len] ? *text + len + 1 : NULL;
    return true;
}

/* "10:12" as indices into the wish's blocks. */
static sn_status parse_range(const sn_plan_wish *wish, const char *text, int *first, int *end, sn_err *err) {
    sn_status status = sn_parse_blocks(text, first, end, err);
    if (status) return status;
    if (*first < wish->first || *end > wish->end)
        return sn_fail(err, SN_REFUSED, "the blocks %d:%d are not all of this span, which is %d:%d", *first, *end,
                       wish->first, wish->end);
    *first -= wish->first;
    *end -= wish->first;
    return SN_OK;
}

sn_status sn_plan_preload(const sn_plan_wish *wish, bool preload[SN_PLAN_BLOCKS_MAX], sn_err *err) {
    char entry[96];
    const char *text = wish->preload;
    bool all = text && strcmp(text, "all") == 0;
    for (int b = 0; b < wish->end - wish->first; b++) preload[b] = all;
    if (all) return SN_OK;
    while (next_entry(&text, entry, sizeof entry)) {
        int first, end;
        if (parse_range(wish, entry, &first, &end, err)) return sn_err_context(err, "preload");
        for (int b = first; b < end; b++) preload[b] = true;
    }
    return SN_OK;
}

/* -- explicit maps */

typedef struct mapping {
    const sn_plan_wish *wish;
    sn_device_id there[SN_PLAN_DEVICES_MAX];
    bool covered[SN_PLAN_BLOCKS_MAX];
    int first_named;                     /* the device that the first entry with one names; -1 so far */
    sn_place places[SN_PLAN_BLOCKS_MAX]; /* device -1: the first one that is named */
} mapping;

static sn_status parse_target(mapping *m, const char *text, sn_place *out, sn_err *err) {
    *out = (sn_place){.device = -1};
    if (strcasecmp(text, "host") == 0) out->residence = SN_IN_HOST;
    if (strcasecmp(text, "disk") == 0) out->residence = SN_ON_DISK;
    if (out->residence != SN_ON_DEVICE) return SN_OK;
    sn_device_id id;
    sn_status status = sn_device_id_among(text, m->there, (size_t)m->wish->n_devices, &id, err);
    if (status) return status;
    for (out->device = 0; !sn_device_same(m->there[out->device], id);) out->device++;
    if (m->first_named < 0) m->first_named = out->device;
    return SN_OK;
}

static sn_status map_entry(mapping *m, char *entry, sn_err *err) {
    int first, end;
    sn_place place;
    char *target = strchr(entry, '=');
    if (!target)
        return sn_fail(err, SN_REFUSED, "\"%s\" maps nothing: write FIRST:END=DEVICE, as in 10:14=cuda:0,14:16=disk",
                       entry);
    *target++ = 0;
    sn_status status = parse_range(m->wish, entry, &first, &end, err);
    if (!status) status = parse_target(m, target, &place, err);
    for (int b = first; !status && b < end; b++) {
        if (m->covered[b])
            return sn_fail(err, SN_REFUSED, "block %d is covered twice: name it in one entry", m->wish->first + b);
        m->covered[b] = true;
        m->places[b] = place;
    }
    return status;
}

static sn_status parse_map(mapping *m, const char *map, sn_err *err) {
    char entry[96];
    int n = m->wish->end - m->wish->first;
    while (next_entry(&map, entry, sizeof entry)) {
        sn_status status = map_entry(m, entry, err);
        if (status) return status;
    }
    for (int b = 0; b < n; b++) {
        int end = b;
        while (end < n && !m->covered[end]) end++;
        if (end > b)
            return sn_fail(err, SN_REFUSED, "blocks %d:%d are not covered: say where they go", m->wish->first + b,
                           m->wish->first + end);
        if (m->places[b].device < 0) m->places[b].device = m->first_named < 0 ? 0 : m->first_named;
    }
    return SN_OK;
}

/* Refuses a map that plans more than a budget, naming each device that lacks memory. */
static sn_status check_memory(const mapping *m, const sn_tie_table *ties, sn_err *err) {
    sn_plan_ledger ledger;
    char lacking[384] = "", name[32];
    size_t at = 0;
    sn_plan_ledger_begin(&ledger, m->wish, ties);
    for (int b = 0; b < m->wish->end - m->wish->first; b++)
        sn_plan_ledger_add(&ledger, b, m->places[b].device, sn_place_streamed(&m->places[b]));
    for (int d = 0; d < m->wish->n_devices && at < sizeof lacking; d++) {
        size_t budget = m->wish->devices[d].budget;
        if (ledger.used[d] && (ledger.bytes[d] > budget || ledger.bytes[d] == SIZE_MAX))
            at += (size_t)snprintf(lacking + at, sizeof lacking - at, "%s%s would need %zu bytes more", at ? ", " : "",
                                   sn_device_id_name(m->wish->devices[d].id, name), ledger.bytes[d] - budget);
    }
    if (at) return sn_fail(err, SN_REFUSED, "too little memory: %s than it may use", lacking);
    return SN_OK;
}

sn_status sn_plan_explicit(const sn_plan_wish *wish, const char *map, sn_plan *out, sn_err *err) {
    mapping m = {.wish = wish, .first_named = -1};
    sn_tie_table ties;
    bool preload[SN_PLAN_BLOCKS_MAX];
    sn_status status = sn_plan_check(wish, err);
    if (!status) status = sn_plan_preload(wish, preload, err);
    if (status) return status;
    for (int d = 0; d < wish->n_devices; d++) m.there[d] = wish->devices[d].id;
    status = parse_map(&m, map, err);
    if (status) return sn_err_context(err, "device map");
    for (int b = 0; b < wish->end - wish->first; b++) m.places[b].preload = preload[b];
    sn_tie_table_make(wish, &ties);
    status = check_memory(&m, &ties, err);
    if (status) return sn_err_context(err, "device map");
    sn_plan_finish(wish, &ties, m.places, out);
    return SN_OK;
}
