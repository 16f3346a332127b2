/* sn_device_placement_make lists the devices (device_set), applies --device-memory to their budgets, opens them with
 * these limits, asks the span what blocks and scratch cost on each (blocks_count_costs), and plans. Devices that the
 * plan does not use are closed again. */
#include "node/placement/device_placement.h"

#include "base/cgroup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parse.h"

#include <stdlib.h>
#include <string.h>

/* The devices that may be used, each with its memory budget. */
typedef struct device_set {
    sn_plan_device devices[SN_PLAN_DEVICES_MAX];
    size_t limits[SN_PLAN_DEVICES_MAX]; /* of --device-memory, or of a driver's reserve; 0: none */
    sn_device *open[SN_PLAN_DEVICES_MAX];
    int n;
} device_set;

static sn_status device_set_add(device_set *c, sn_device_id id, const sn_device_info *there, size_t n_there,
                                sn_err *err) {
    char name[32];
    for (int i = 0; i < c->n; i++)
        if (sn_device_id_equal(c->devices[i].id, id))
            return sn_fail(err, SN_REFUSED, "--device names %s twice: name it once", sn_device_id_name(id, name));
    for (size_t i = 0; i < n_there; i++)
        if (sn_device_id_equal(there[i].id, id)) {
            if (c->n == SN_PLAN_DEVICES_MAX) return sn_fail(err, SN_REFUSED, "at most %d devices are used", c->n);
            size_t reserve = sn_min_size(there[i].memory_reserve, there[i].memory_free);
            c->devices[c->n] = (sn_plan_device){.id = id, .budget = there[i].memory_free - reserve};
            c->limits[c->n] = reserve ? c->devices[c->n].budget : 0;
            c->n++;
            return SN_OK;
        }
    return sn_fail(err, SN_REFUSED, "this machine has no device %s: --list-devices shows its devices",
                   sn_device_id_name(id, name));
}

/* Accelerators first, the CPU last. */
static sn_status device_set_add_all(device_set *c, sn_err *err) {
    sn_device_info there[SN_DEVICES_MAX];
    size_t n_there = 0;
    sn_status status = sn_devices_list(there, &n_there, err);
    for (int cpu = 0; cpu < 2; cpu++)
        for (size_t i = 0; i < n_there && !status; i++)
            if ((there[i].id.kind == SN_DEVICE_CPU) == cpu)
                status = device_set_add(c, there[i].id, there, n_there, err);
    return status;
}

/* The devices of --device; only these may occur in --device-map. */
static sn_status device_set_parse(const sn_device_placement_options *options, device_set *c, sn_err *err) {
    if (!strcmp(options->device, "auto")) return device_set_add_all(c, err);
    char *names = strdup(options->device), *rest = names, *name;
    if (!names) return sn_fail(err, SN_STOP, "out of memory");
    sn_status status = SN_OK;
    while (!status && (name = strsep(&rest, ","))) {
        sn_device_info there[SN_DEVICES_MAX];
        size_t n_there = 0;
        sn_device_id id;
        status = sn_device_id_parse(name, &id, err);
        if (!status) status = sn_devices_list_kind(id.kind, there, &n_there, err);
        if (!status) status = device_set_add(c, id, there, n_there, err);
    }
    free(names);
    return status;
}

/* "cuda:0=20GiB" */
static sn_status device_set_limit_memory(const char *text, device_set *c, sn_err *err) {
    const char *equals = strchr(text, '=');
    char name[64];
    sn_device_id id;
    size_t bytes;
    if (!equals || (size_t)(equals - text) >= sizeof name)
        return sn_fail(err, SN_REFUSED, "--device-memory '%.80s' is wrong: write DEVICE=SIZE, as in cuda:0=20GiB",
                       text);
    memcpy(name, text, (size_t)(equals - text));
    name[equals - text] = 0;
    sn_status status = sn_device_id_parse(name, &id, err);
    if (!status) status = sn_parse_size(equals + 1, &bytes, err);
    if (status) return status;
    if (bytes <= SN_DEVICE_TRY_BYTES)
        return sn_fail(err, SN_REFUSED, "--device-memory '%.80s' is too little for any block", text);
    bytes -= SN_DEVICE_TRY_BYTES; /* they stay free for a try of a lost device, whose memory is still in use */
    for (int i = 0; i < c->n; i++)
        if (sn_device_id_equal(c->devices[i].id, id)) {
            c->devices[i].budget = sn_min_size(c->devices[i].budget, bytes);
            c->limits[i] = c->limits[i] ? sn_min_size(c->limits[i], bytes) : bytes;
        }
    return SN_OK;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Bytes of a block in a page on the device that keeps keys and values in fewest, and in most; a block with a recurrent
 * state counts as if it had keys and values. */
static void block_page_bytes(const sn_hparams *hp, const device_set *c, int block, size_t *least, size_t *most) {
    sn_kv_shape shape = sn_kv_shape_of(hp, block, block + 1, SN_KV_F32);
    shape.n_blocks = 1;
    *least = SIZE_MAX, *most = 0;
    for (int i = 0; i < c->n; i++) {
        size_t bytes = c->open[i]->ops->kv_page_bytes(c->open[i], &shape);
        *least = sn_min_size(*least, bytes);
        *most = larger(*most, bytes);
    }
}

/* The KV memory of blocks [first, first + n), which share the pool by the bytes of their pages. On a device that keeps
 * keys and values in more bytes than others, a block takes more than its share. */
static void share_cache(const sn_device_placement_options *options, const sn_hparams *hp, const device_set *c,
                        int first, size_t n, sn_block_cost *costs) {
    size_t total = 0, least, most;
    for (size_t b = 0; b < n; b++) {
        block_page_bytes(hp, c, first + (int)b, &least, &most);
        total += least;
    }
    for (size_t b = 0; b < n; b++) {
        block_page_bytes(hp, c, first + (int)b, &least, &most);
        costs[b].cache = options->kv_memory / total * most + options->kv_memory % total * most / total;
    }
}

static void device_set_remove(device_set *c, int i) {
    c->n--;
    memmove(&c->devices[i], &c->devices[i + 1], (size_t)(c->n - i) * sizeof *c->devices);
    memmove(&c->limits[i], &c->limits[i + 1], (size_t)(c->n - i) * sizeof *c->limits);
}

/* With --device auto, an accelerator that cannot be opened is left out. */
static sn_status device_set_open(const sn_device_placement_options *options, device_set *c, sn_err *err) {
    for (int i = 0; i < c->n;) {
        char name[32];
        sn_device_options own = options->device_options;
        own.memory_max = c->limits[i];
        sn_status status = sn_device_open(c->devices[i].id, &own, &c->open[i], err);
        if (status && (c->devices[i].id.kind == SN_DEVICE_CPU || strcmp(options->device, "auto"))) return status;
        if (status) {
            sn_log(SN_LOG_WARN, "device left out", "device=%s text=%s", sn_device_id_name(c->devices[i].id, name),
                   err->text);
            device_set_remove(c, i);
        } else
            i++;
    }
    return SN_OK;
}

/* Of each part of a block, the cost is that on the device that needs most memory for it. */
static sn_status blocks_count_costs(const sn_device_placement_options *options, const sn_model *model, int first,
                                    int end, device_set *c, sn_block_cost *costs, sn_err *err) {
    const sn_span_part part = {first, end, options->experts};
    sn_block_cost *on_device = NULL;
    size_t n = (size_t)(end - first);
    sn_status status = sn_calloc(&on_device, n, sizeof *on_device, err);
    for (int i = 0; i < c->n && !status; i++) {
        status = sn_span_costs(model, c->open[i], &part, options->kv_memory, on_device, &c->devices[i].scratch, err);
        for (size_t b = 0; b < n && !status; b++) {
            const sn_block_cost before = costs[b];
            costs[b] = on_device[b];
            costs[b].weights = larger(costs[b].weights, before.weights);
            costs[b].without_experts = larger(costs[b].without_experts, before.without_experts);
            costs[b].experts = larger(costs[b].experts, before.experts);
            costs[b].slot = larger(costs[b].slot, before.slot);
        }
    }
    if (!status) share_cache(options, sn_model_hparams(model), c, first, n, costs);
    free(on_device);
    return status;
}

/* The largest number of blocks from query->first on that fit, when they share the KV memory among themselves. */
static sn_status plan_fit_blocks(const sn_device_placement_options *options, const sn_hparams *hp, const device_set *c,
                                 sn_block_cost *costs, sn_plan_query *query, sn_err *err) {
    for (int n = query->end - query->first; n > 0; n--) {
        share_cache(options, hp, c, query->first, (size_t)n, costs);
        query->end = query->first + n;
        if (sn_plan_n_fitting(query) >= n) return SN_OK;
    }
    return sn_fail(err, SN_REFUSED, "not even one block fits: lower --kv-memory, or use devices with more memory");
}

/* What is free of it, without what idle sessions may be swapped out to. */
static size_t host_memory(const sn_device_placement_options *options) {
    size_t total, available;
    sn_memory_read(&total, &available);
    available -= sn_min_size(available, options->host_reserved);
    return available ? available : 1;
}

static sn_status plan_make(const sn_device_placement_options *options, const sn_hparams *hp, const device_set *c,
                           sn_block_cost *costs, sn_plan_query *query, sn_plan *plan, int *end, sn_err *err) {
    query->devices = c->devices;
    query->n_devices = c->n;
    query->preload = options->preload;
    query->offload = options->offload;
    query->offload_all = options->offload_all;
    query->expert_memory = options->expert_memory;
    query->host_memory = host_memory(options);
    query->keep_free = options->tune_memory;
    for (int i = 0; i < c->n; i++)
        if (c->open[i]->memory_extra && !sn_add(options->tune_memory, c->open[i]->memory_extra, &query->keep_free))
            query->keep_free = SIZE_MAX;
    if (*end == query->first) {
        sn_status status = plan_fit_blocks(options, hp, c, costs, query, err);
        if (status) return status;
        while (query->end > query->first && !sn_may_cut(hp, query->end)) query->end--;
        *end = query->end;
        if (query->end == query->first) return sn_check_cuts(hp, query->first, query->first + 1, err);
    }
    return options->device_map ? sn_plan_explicit(query, options->device_map, plan, err)
                               : sn_plan_auto(query, plan, err);
}

static bool plan_uses_disk(const sn_plan *plan) {
    for (int b = plan->first; b < plan->end; b++)
        if (plan->placements[b - plan->first].residence == SN_ON_DISK ||
            plan->placements[b - plan->first].experts == SN_ON_DISK)
            return true;
    return false;
}

/* Moves the devices that the plan uses to `out`, in its order; the caller closes the others. */
static void placement_take_devices(device_set *c, sn_device_placement *out) {
    for (int p = 0; p < out->plan.n_devices; p++)
        for (int i = 0; i < c->n; i++)
            if (c->open[i] && sn_device_id_equal(c->open[i]->id, out->plan.devices[p])) {
                out->devices[p] = c->open[i];
                c->open[i] = NULL;
            }
}

sn_status sn_device_placement_make(const sn_device_placement_options *options, const sn_model *model, int first,
                                   int *end, sn_device_placement *out, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    device_set c = {0};
    sn_block_cost *costs = NULL;
    *out = (sn_device_placement){0};
    int last = *end == first ? hp->n_blocks : *end;
    if (first < 0 || first >= last || last > hp->n_blocks || last - first > SN_PLAN_BLOCKS_MAX)
        return sn_fail(err, SN_REFUSED,
                       "blocks %d:%d cannot be served: the model has blocks 0:%d, and a node serves %d at most", first,
                       last, hp->n_blocks, SN_PLAN_BLOCKS_MAX);
    SN_TRY(sn_check_cuts(hp, first, last, err));
    sn_status status = sn_calloc(&costs, (size_t)(last - first), sizeof *costs, err);
    if (!status) status = device_set_parse(options, &c, err);
    for (size_t i = 0; i < options->n_device_memory && !status; i++)
        status = device_set_limit_memory(options->device_memory[i], &c, err);
    if (!status) status = device_set_open(options, &c, err);
    if (!status) status = blocks_count_costs(options, model, first, last, &c, costs, err);
    bool some =
        options->experts.end - options->experts.first < hp->n_experts; /* else nothing is asked of the span's blocks */
    sn_plan_query query = {
        .first = first, .end = last, .experts = some ? options->experts : (sn_expert_range){0}, .costs = costs};
    if (!status) status = plan_make(options, hp, &c, costs, &query, &out->plan, end, err);
    if (!status) placement_take_devices(&c, out);
    sn_buf_init(&out->table, 1 << 20);
    if (!status) status = sn_plan_print(&out->plan, &query, &out->table, err);
    if (!status) status = sn_buf_append(&out->table, "", 1, err); /* terminates the text */
    if (!status && plan_uses_disk(&out->plan))
        status = options->offload_dir
                     ? sn_offload_store_open(options->offload_dir, &out->store, err)
                     : sn_fail(err, SN_REFUSED, "blocks are to be offloaded to disk: give --offload-dir");
    for (int i = 0; i < c.n; i++) sn_device_close(&c.open[i]);
    free(costs);
    if (status) sn_device_placement_close(out);
    return status;
}

void sn_device_placement_close(sn_device_placement *placement) {
    for (int i = 0; i < SN_PLAN_DEVICES_MAX; i++) sn_device_close(&placement->devices[i]);
    sn_offload_store_close(&placement->store);
    sn_buf_fini(&placement->table);
}
