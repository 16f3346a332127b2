/* Prints a plan as a table. */
#include "base/parse.h"
#include "blocks/plan.h"

#include <stdio.h>
#include <string.h>

static const char *residence_text(const sn_plan *plan, const sn_block_placement *place, char slots[64]) {
    static const char *const streamed[] = {"on it", "in host memory, streamed", "on disk, streamed"};
    static const char *const preloaded[] = {"on it, preloaded", "in host memory, preloaded", "on disk, preloaded"};
    if (place->apart) {
        char name[32];
        snprintf(slots, 64, "on it, experts on %s", sn_device_id_name(plan->devices[place->experts_device], name));
        return slots;
    }
    if (place->n_slots) {
        snprintf(slots, 64, "on it, %d experts at a time, all %s", place->n_slots,
                 place->experts == SN_ON_DISK ? "on disk" : "in host memory");
        return slots;
    }
    return place->preload ? preloaded[place->residence] : streamed[place->residence];
}

static bool same_placement(const sn_block_placement *a, const sn_block_placement *b) {
    return a->device == b->device && a->residence == b->residence && a->preload == b->preload &&
           a->n_slots == b->n_slots && a->experts == b->experts && a->apart == b->apart &&
           a->experts_device == b->experts_device;
}

static sn_status print_runs(const sn_plan *plan, const sn_plan_query *query, sn_buf *out, sn_err *err) {
    int n = plan->end - plan->first;
    for (int b = 0, end; b < n; b = end) {
        size_t weights = 0;
        char range[32], name[32], size[32], slots[64];
        for (end = b; end < n && same_placement(&plan->placements[b], &plan->placements[end]); end++)
            weights += query->costs[end].weights;
        snprintf(range, sizeof range, "%d:%d", plan->first + b, plan->first + end);
        sn_status status =
            sn_buf_printf(out, err, "%-10s %-12s %12s  %s\n", range,
                          sn_device_id_name(plan->devices[plan->placements[b].device], name),
                          sn_format_size(weights, size), residence_text(plan, &plan->placements[b], slots));
        if (status) return status;
    }
    return SN_OK;
}

static size_t device_budget(const sn_plan_query *query, sn_device_id id) {
    for (int d = 0; d < query->n_devices; d++)
        if (sn_device_id_equal(query->devices[d].id, id)) return query->devices[d].budget;
    return 0;
}

static sn_status print_devices(const sn_plan *plan, const sn_plan_query *query, sn_buf *out, sn_err *err) {
    char name[32], planned[32], budget[32];
    sn_status status = SN_OK;
    for (int d = 0; d < plan->n_devices && !status; d++)
        status = sn_buf_printf(out, err, "%-10s %25s of %s\n", sn_device_id_name(plan->devices[d], name),
                               sn_format_size(plan->device_bytes[d], planned),
                               sn_format_size(device_budget(query, plan->devices[d]), budget));
    if (!status && plan->host_bytes)
        status = sn_buf_printf(out, err, "%-10s %25s\n", "host", sn_format_size(plan->host_bytes, planned));
    if (!status && plan->disk_bytes)
        status = sn_buf_printf(out, err, "%-10s %25s\n", "disk", sn_format_size(plan->disk_bytes, planned));
    return status;
}

sn_status sn_plan_print(const sn_plan *plan, const sn_plan_query *query, sn_buf *out, sn_err *err) {
    sn_status status = sn_buf_printf(out, err, "%-10s %-12s %12s  %s\n", "blocks", "computed on", "weights", "stored");
    if (!status && plan->experts.end)
        status = sn_buf_printf(out, err, "%-10s experts %d:%d of each mixture\n", "", plan->experts.first,
                               plan->experts.end);
    if (!status) status = print_runs(plan, query, out, err);
    if (!status) status = sn_buf_printf(out, err, "\n%-10s %25s\n", "memory", "planned");
    return status ? status : print_devices(plan, query, out, err);
}
