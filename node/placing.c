#include "node/placing.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* The devices that may be used, with what may be used of each. */
typedef struct choice {
    sn_plan_device devices[SN_PLAN_DEVICES_MAX];
    sn_device *open[SN_PLAN_DEVICES_MAX];
    int n;
} choice;

static sn_status add_device(choice *c, sn_device_id id, const sn_device_info *there, size_t n_there, sn_err *err) {
    char name[32];
    for (int i = 0; i < c->n; i++)
        if (sn_device_same(c->devices[i].id, id))
            return sn_fail(err, SN_REFUSED, "device %s is named twice: name it once", sn_device_id_name(id, name));
    for (size_t i = 0; i < n_there; i++)
        if (sn_device_same(there[i].id, id)) {
            if (c->n == SN_PLAN_DEVICES_MAX) return sn_fail(err, SN_REFUSED, "at most %d devices are used", c->n);
            c->devices[c->n++] = (sn_plan_device){.id = id, .budget = there[i].memory_free};
            return SN_OK;
        }
    return sn_fail(err, SN_REFUSED, "there is no device %s here: --list-devices shows what there is",
                   sn_device_id_name(id, name));
}

/* Accelerators first, the CPU last. */
static sn_status choose_all(choice *c, sn_err *err) {
    sn_device_info there[SN_DEVICES_MAX];
    size_t n_there = 0;
    sn_status status = sn_devices_list(there, &n_there, err);
    for (int cpu = 0; cpu < 2; cpu++)
        for (size_t i = 0; i < n_there && !status; i++)
            if ((there[i].id.kind == SN_DEVICE_CPU) == cpu) status = add_device(c, there[i].id, there, n_there, err);
    return status;
}

/* An explicit map may name those that are chosen here. */
static sn_status choose_devices(const sn_placing_wish *wish, choice *c, sn_err *err) {
    if (!strcmp(wish->device, "auto")) return choose_all(c, err);
    char *names = strdup(wish->device), *rest = names, *name;
    if (!names) return sn_fail(err, SN_STOP, "out of memory");
    sn_status status = SN_OK;
    while (!status && (name = strsep(&rest, ","))) {
        sn_device_info there[SN_DEVICES_MAX];
        size_t n_there = 0;
        sn_device_id id;
        status = sn_device_id_parse(name, &id, err);
        if (!status) status = sn_devices_list_kind(id.kind, there, &n_there, err);
        if (!status) status = add_device(c, id, there, n_there, err);
    }
    free(names);
    return status;
}

/* "cuda:0=20GiB" */
static sn_status limit_memory(const char *text, choice *c, sn_err *err) {
    const char *equals = strchr(text, '=');
    char name[64];
    sn_device_id id;
    size_t bytes;
    if (!equals || (size_t)(equals - text) >= sizeof name)
        return sn_fail(err, SN_REFUSED, "'%.80s' is no limit of a device's memory: write DEVICE=SIZE, as in cuda:0=20GiB", text);
    memcpy(name, text, (size_t)(equals - text));
    name[equals - text] = 0;
    sn_status status = sn_device_id_parse(name, &id, err);
    if (!status) status = sn_parse_size(equals + 1, &bytes, err);
    for (int i = 0; i < c->n && !status; i++)
        if (sn_device_same(c->devices[i].id, id) && bytes < c->devices[i].budget) c->devices[i].budget = bytes;
    return status;
}

/* A block costs what it costs on the device that needs most for it. */
static sn_status count_costs(const sn_placing_wish *wish, const sn_model *model, int first, int end, choice *c,
                             sn_block_cost *costs, sn_err *err) {
    sn_block_cost *on_device = NULL;
    size_t n = (size_t)(end - first);
    sn_status status = sn_calloc(&on_device, n, sizeof *on_device, err);
    for (int i = 0; i < c->n && !status; i++) {
        status = sn_device_open(c->devices[i].id, &wish->options, &c->open[i], err);
        if (!status)
            status = sn_span_costs(model, c->open[i], first, end, wish->kv_memory, on_device, &c->devices[i].scratch, err);
        for (size_t b = 0; b < n && !status; b++)
            if (on_device[b].weights > costs[b].weights) costs[b] = on_device[b];
    }
    free(on_device);
    return status;
}

static sn_status parse_offload(const sn_placing_wish *wish, sn_plan_wish *out, sn_err *err) {
    out->offload = SN_ON_DEVICE;
    if (!wish->offload) return SN_OK;
    if (!strcmp(wish->offload, "host")) out->offload = SN_IN_HOST;
    else if (!strcmp(wish->offload, "disk")) out->offload = SN_ON_DISK;
    else return sn_fail(err, SN_REFUSED, "--offload %.40s is unknown: use host or disk", wish->offload);
    return SN_OK;
}

/* The most blocks from wish->first on that fit, the whole cache shared among those alone. */
static sn_status fit_blocks(const sn_placing_wish *wish, sn_block_cost *costs, sn_plan_wish *plan_wish, sn_err *err) {
    for (int n = plan_wish->end - plan_wish->first; n > 0; n--) {
        for (int b = 0; b < n; b++) costs[b].cache = wish->kv_memory / (size_t)n;
        plan_wish->end = plan_wish->first + n;
        if (sn_plan_fitting(plan_wish) >= n) return SN_OK;
    }
    return sn_fail(err, SN_REFUSED, "not one block fits: give --kv-memory less, or the devices more");
}

static sn_status make_plan(const sn_placing_wish *wish, const choice *c, sn_block_cost *costs, sn_plan_wish *plan_wish,
                           sn_plan *plan, int *end, sn_err *err) {
    plan_wish->devices = c->devices;
    plan_wish->n_devices = c->n;
    plan_wish->preload = wish->preload;
    plan_wish->all_offloaded = wish->offload_all;
    sn_status status = parse_offload(wish, plan_wish, err);
    if (status) return status;
    if (*end == plan_wish->first) {
        status = fit_blocks(wish, costs, plan_wish, err);
        if (status) return status;
        *end = plan_wish->end;
    }
    return wish->device_map ? sn_plan_explicit(plan_wish, wish->device_map, plan, err) : sn_plan_auto(plan_wish, plan, err);
}

static bool uses_disk(const sn_plan *plan) {
    for (int b = plan->first; b < plan->end; b++)
        if (plan->places[b - plan->first].residence == SN_ON_DISK) return true;
    return false;
}

/* Keeps the devices that the plan uses, in its order, and closes the others. */
static void take_devices(choice *c, sn_placing *out) {
    for (int p = 0; p < out->plan.n_devices; p++)
        for (int i = 0; i < c->n; i++)
            if (c->open[i] && sn_device_same(c->open[i]->id, out->plan.devices[p])) {
                out->devices[p] = c->open[i];
                c->open[i] = NULL;
            }
}

sn_status sn_placing_make(const sn_placing_wish *wish, const sn_model *model, int first, int *end, sn_placing *out,
                          sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    choice c = {0};
    sn_block_cost *costs = NULL;
    *out = (sn_placing){0};
    int last = *end == first ? hp->n_blocks : *end;
    if (first < 0 || first >= last || last > hp->n_blocks || last - first > SN_PLAN_BLOCKS_MAX)
        return sn_fail(err, SN_REFUSED, "blocks %d:%d cannot be served: the model has blocks 0:%d, a node takes %d at most",
                       first, last, hp->n_blocks, SN_PLAN_BLOCKS_MAX);
    sn_status status = sn_calloc(&costs, (size_t)(last - first), sizeof *costs, err);
    if (!status) status = choose_devices(wish, &c, err);
    for (size_t i = 0; i < wish->n_device_memory && !status; i++) status = limit_memory(wish->device_memory[i], &c, err);
    if (!status) status = count_costs(wish, model, first, last, &c, costs, err);
    sn_plan_wish plan_wish = {.first = first, .end = last, .costs = costs};
    if (!status) status = make_plan(wish, &c, costs, &plan_wish, &out->plan, end, err);
    if (!status) take_devices(&c, out);
    sn_buf_init(&out->table, 1 << 20);
    if (!status) status = sn_plan_print(&out->plan, &plan_wish, &out->table, err);
    if (!status) status = sn_buf_append(&out->table, "", 1, err); /* it is read as a string */
    if (!status && uses_disk(&out->plan))
        status = wish->offload_dir ? sn_store_open(wish->offload_dir, &out->store, err)
                                   : sn_fail(err, SN_REFUSED, "blocks are to rest on disk: give --offload-dir");
    for (int i = 0; i < c.n; i++) sn_device_close(&c.open[i]);
    free(costs);
    if (status) sn_placing_close(out);
    return status;
}

void sn_placing_close(sn_placing *placing) {
    for (int i = 0; i < SN_PLAN_DEVICES_MAX; i++) sn_device_close(&placing->devices[i]);
    sn_store_close(&placing->store);
    sn_buf_fini(&placing->table);
}
