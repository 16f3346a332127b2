/* A ledger counts, for each device, what blocks need of it: scratch once, the KV pages and the weights of each block
 * (all of them, or those without experts and the fewest slots, or none), two slots of the largest streamed block, tied
 * weights once. The plan that sn_plan_finish makes of placements gives what is left of a device to the slots of
 * experts. */
#include "blocks/plan_ledger.h"

#include "base/parse.h"

#include <string.h>

sn_status sn_plan_check_query(const sn_plan_query *query, sn_err *err) {
    char name[32];
    if (query->first < 0 || query->end <= query->first || query->end - query->first > SN_PLAN_BLOCKS_MAX)
        return sn_fail(err, SN_REFUSED, "a span %d:%d cannot be placed: it must have 1 to %d blocks", query->first,
                       query->end, SN_PLAN_BLOCKS_MAX);
    if (query->n_devices < 1 || query->n_devices > SN_PLAN_DEVICES_MAX)
        return sn_fail(err, SN_REFUSED, "blocks cannot be placed on %d devices: give 1 to %d", query->n_devices,
                       SN_PLAN_DEVICES_MAX);
    for (int i = 0; i < query->n_devices; i++)
        for (int j = 0; j < i; j++)
            if (sn_device_id_equal(query->devices[i].id, query->devices[j].id))
                return sn_fail(err, SN_REFUSED, "the device %s is given twice: name each once",
                               sn_device_id_name(query->devices[i].id, name));
    for (int i = 0; i < query->end - query->first; i++)
        if (query->costs[i].n_ties < 0 || query->costs[i].n_ties > SN_TIES_MAX)
            return sn_fail(err, SN_REFUSED, "block %d shares %d weights with others, and may share %d",
                           query->first + i, query->costs[i].n_ties, SN_TIES_MAX);
    return SN_OK;
}

/* The number of the group in the table; adds it if it is new. */
static int tie_group_number(sn_tie_table *table, uint64_t *groups, uint64_t group, size_t bytes) {
    for (int i = 0; i < table->n; i++)
        if (groups[i] == group && table->bytes[i] == bytes) return i;
    groups[table->n] = group;
    table->bytes[table->n] = bytes;
    return table->n++;
}

void sn_tie_table_make(const sn_plan_query *query, sn_tie_table *out) {
    uint64_t groups[SN_TIE_GROUPS_MAX];
    out->n = 0;
    for (int b = 0; b < query->end - query->first; b++) {
        const sn_block_cost *cost = &query->costs[b];
        out->n_of[b] = 0;
        for (int t = 0; t < cost->n_ties; t++) {
            int number = tie_group_number(out, groups, cost->ties[t].group, cost->ties[t].bytes), same = 0;
            while (same < out->n_of[b] && out->of[b][same] != number) same++;
            if (same == out->n_of[b]) out->of[b][out->n_of[b]++] = (uint16_t)number;
        }
    }
}

void sn_plan_ledger_init(sn_plan_ledger *ledger, const sn_plan_query *query, const sn_tie_table *ties) {
    ledger->query = query;
    ledger->ties = ties;
    memset(ledger->used, 0, sizeof ledger->used);
    memset(ledger->bytes, 0, sizeof ledger->bytes);
    memset(ledger->slot, 0, sizeof ledger->slot);
    ledger->host = ledger->disk = 0;
    memset(ledger->held, 0, (size_t)ties->n * sizeof *ledger->held);
}

size_t sn_plan_ledger_tied_cost(const sn_plan_ledger *ledger, int index, int device) {
    size_t sum = 0;
    for (int t = 0; t < ledger->ties->n_of[index]; t++) {
        int tie = ledger->ties->of[index][t];
        if (!(ledger->held[tie] >> device & 1)) sum = sn_plan_add_sizes(sum, ledger->ties->bytes[tie]);
    }
    return sum;
}

/* The fewest slots of a block: for the pinned experts, and those that one row uses. */
static int slots_min(const sn_block_cost *cost, int n_pinned) {
    int n = n_pinned + cost->n_experts_used;
    return n < cost->n_experts ? n : cost->n_experts;
}

static size_t slots_bytes(const sn_block_cost *cost, int n) {
    size_t bytes;
    return sn_mul(cost->slot, (size_t)n, &bytes) ? bytes : SIZE_MAX;
}

/* The bytes that the device needs in addition when it takes the block. */
static size_t cost_of(const sn_plan_ledger *ledger, int index, const sn_block_placement *place) {
    const sn_block_cost *cost = &ledger->query->costs[index];
    int device = place->device;
    size_t slot = ledger->slot[device], sum = cost->cache;
    if (!ledger->used[device]) sum = sn_plan_add_sizes(sum, ledger->query->devices[device].scratch);
    if (sn_block_is_apart(cost, place))
        sum = sn_plan_add_sizes(sum, cost->without_experts);
    else if (sn_block_has_slots(cost, place))
        sum = sn_plan_add_sizes(sn_plan_add_sizes(sum, cost->without_experts),
                                slots_bytes(cost, slots_min(cost, ledger->n_pinned)));
    else if (!sn_block_is_streamed(place))
        sum = sn_plan_add_sizes(sum, cost->weights);
    else if (cost->weights > slot)
        sum = sn_plan_add_sizes(sn_plan_add_sizes(sum, cost->weights - slot), cost->weights - slot);
    return sn_plan_add_sizes(sum, sn_plan_ledger_tied_cost(ledger, index, device));
}

/* The bytes that the device of the experts needs in addition, where it is another one. */
static size_t cost_of_experts(const sn_plan_ledger *ledger, int index, const sn_block_placement *place) {
    const sn_block_cost *cost = &ledger->query->costs[index];
    if (!sn_block_is_apart(cost, place)) return 0;
    size_t scratch = ledger->used[place->experts_device] ? 0 : ledger->query->devices[place->experts_device].scratch;
    return sn_plan_add_sizes(scratch, cost->experts);
}

/* The bytes of the block that rest in host memory, or on disk. */
static size_t resting_in(const sn_block_cost *cost, const sn_block_placement *place, sn_residence where) {
    bool slots = sn_block_has_slots(cost, place);
    return (slots ? place->experts : place->residence) != where ? 0 : slots ? cost->resting : cost->weights;
}

/* What the device takes of host memory. */
static size_t of_host(const sn_plan_ledger *ledger, int device, size_t bytes) {
    return ledger->query->devices[device].id.kind == SN_DEVICE_CPU ? bytes : 0;
}

static size_t host_taken(const sn_plan_ledger *ledger) {
    size_t sum = ledger->host;
    for (int d = 0; d < ledger->query->n_devices; d++)
        sum = sn_plan_add_sizes(sum, of_host(ledger, d, ledger->bytes[d]));
    return sum;
}

static bool host_holds(const sn_plan_ledger *ledger, size_t more) {
    size_t limit = ledger->query->host_memory;
    return !limit || sn_plan_add_sizes(host_taken(ledger), more) <= limit;
}

size_t sn_plan_ledger_host_lacks(const sn_plan_ledger *ledger) {
    return host_holds(ledger, 0) || !ledger->host ? 0 : host_taken(ledger) - ledger->query->host_memory;
}

sn_status sn_plan_refuse_host(const sn_plan_ledger *ledger, sn_err *err) {
    char takes[32], room[32];
    return sn_fail(err, SN_REFUSED,
                   "host memory has room for %s, and what is to rest or to be computed there takes %s: let blocks or "
                   "experts rest on disk (--offload disk, or =disk in the device map), or serve fewer blocks",
                   sn_format_size(ledger->query->host_memory, room), sn_format_size(host_taken(ledger), takes));
}

void sn_plan_ledger_add(sn_plan_ledger *ledger, int index, const sn_block_placement *place) {
    size_t weights = ledger->query->costs[index].weights, experts = cost_of_experts(ledger, index, place);
    int device = place->device, other = place->experts_device;
    ledger->bytes[device] = sn_plan_add_sizes(ledger->bytes[device], cost_of(ledger, index, place));
    ledger->used[device] = true;
    if (experts) ledger->bytes[other] = sn_plan_add_sizes(ledger->bytes[other], experts);
    if (experts) ledger->used[other] = true;
    ledger->host = sn_plan_add_sizes(ledger->host, resting_in(&ledger->query->costs[index], place, SN_IN_HOST));
    ledger->disk = sn_plan_add_sizes(ledger->disk, resting_in(&ledger->query->costs[index], place, SN_ON_DISK));
    if (sn_block_is_streamed(place) && weights > ledger->slot[device]) ledger->slot[device] = weights;
    for (int t = 0; t < ledger->ties->n_of[index]; t++)
        ledger->held[ledger->ties->of[index][t]] |= (uint16_t)(1u << device);
}

bool sn_plan_ledger_try_add(sn_plan_ledger *ledger, int index, const sn_block_placement *place) {
    size_t budget = ledger->query->devices[place->device].budget, used = ledger->bytes[place->device];
    size_t extra = cost_of(ledger, index, place);
    size_t experts = cost_of_experts(ledger, index, place), other = (size_t)place->experts_device;
    size_t host = resting_in(&ledger->query->costs[index], place, SN_IN_HOST);
    host = sn_plan_add_sizes(host, of_host(ledger, place->device, extra));
    if (experts) host = sn_plan_add_sizes(host, of_host(ledger, place->experts_device, experts));
    if (!host_holds(ledger, host)) return false;
    if (extra == SIZE_MAX || used > budget || extra > budget - used) return false;
    if (experts && (experts == SIZE_MAX || ledger->bytes[other] > ledger->query->devices[other].budget ||
                    experts > ledger->query->devices[other].budget - ledger->bytes[other]))
        return false;
    sn_plan_ledger_add(ledger, index, place);
    return true;
}

/* ---- the finished plan ---- */

/* Sets the slots of the blocks on device d of the query: equally many for each, as its memory allows. */
static sn_status share_slots(const sn_plan_query *query, const sn_plan_ledger *ledger, int d, size_t host_bytes,
                             sn_block_placement *placements, size_t *bytes, sn_err *err) {
    const sn_plan_device *device = &query->devices[d];
    size_t one = 0, taken = *bytes, slots_taken = 0;
    int n = query->end - query->first;
    if (device->id.kind == SN_DEVICE_CPU) taken = sn_plan_add_sizes(taken, host_bytes); /* the same memory */
    for (int b = 0; b < n; b++) {
        const sn_block_cost *cost = &query->costs[b];
        if (placements[b].device != d || !sn_block_has_slots(cost, &placements[b])) continue;
        one = sn_plan_add_sizes(one, cost->slot);
        slots_taken = sn_plan_add_sizes(slots_taken, slots_bytes(cost, slots_min(cost, ledger->n_pinned)));
    }
    if (!one) return SN_OK;
    if (query->expert_memory && query->expert_memory < slots_taken)
        return sn_fail(err, SN_REFUSED, "the experts that a step needs take %zu bytes: give --expert-memory as much",
                       slots_taken);
    size_t left = sn_plan_add_sizes(taken, query->keep_free);
    left = device->budget - sn_min_size(device->budget, left);
    if (query->expert_memory) left = sn_min_size(device->budget - *bytes, query->expert_memory - slots_taken);
    for (int b = 0; b < n; b++) {
        const sn_block_cost *cost = &query->costs[b];
        if (placements[b].device != d || !sn_block_has_slots(cost, &placements[b])) continue;
        int least = slots_min(cost, ledger->n_pinned),
            more = (int)sn_min_size(left / one, (size_t)(cost->n_experts - least));
        placements[b].n_slots = least + more;
        *bytes = sn_plan_add_sizes(*bytes, slots_bytes(cost, more));
    }
    return SN_OK;
}

/* The number of a device of the query in the plan, which gets it if it is new. */
static int number_of(const sn_plan_query *query, int device, int number[SN_PLAN_DEVICES_MAX], sn_plan *out) {
    if (number[device] >= 0) return number[device];
    out->devices[out->n_devices] = query->devices[device].id;
    return number[device] = out->n_devices++;
}

static void finish_block(const sn_plan_query *query, sn_plan_ledger *ledger, int b, sn_plan *out) {
    const sn_block_cost *cost = &query->costs[b];
    sn_block_placement *place = &out->placements[b];
    sn_plan_ledger_add(ledger, b, place);
    if (!sn_block_has_slots(cost, place)) place->experts = SN_ON_DEVICE;
    place->apart = sn_block_is_apart(cost, place);
}

/* Some of a block's experts are there for other spans too, which ask for them at any time. */
static sn_status check_stays(const sn_plan_query *query, int b, const sn_block_placement *place, sn_err *err) {
    bool streamed = sn_block_is_streamed(place);
    if (!query->costs[b].n_experts || (!streamed && !place->apart)) return SN_OK;
    return sn_fail(
        err, SN_REFUSED,
        "block %d, of which this span has some experts, is %s: let its experts rest in host memory or on disk",
        query->first + b, streamed ? "streamed" : "not on the device of its experts");
}

sn_status sn_plan_finish(const sn_plan_query *query, const sn_tie_table *ties, const sn_preload *preload,
                         const sn_block_placement *placements, sn_plan *out, sn_err *err) {
    sn_plan_ledger ledger = {.n_pinned = preload->n_experts};
    int number[SN_PLAN_DEVICES_MAX];
    char name[32];
    sn_status status = SN_OK;
    sn_plan_ledger_init(&ledger, query, ties);
    *out = (sn_plan){.first = query->first, .end = query->end, .experts = query->experts};
    memcpy(out->pinned, preload->experts, sizeof out->pinned);
    for (int d = 0; d < query->n_devices; d++) number[d] = -1;
    for (int b = 0; b < query->end - query->first; b++) {
        out->placements[b] = placements[b];
        finish_block(query, &ledger, b, out);
        if (query->experts.end) status = check_stays(query, b, &out->placements[b], err);
        if (status) return status;
        number_of(query, placements[b].device, number, out);
        if (out->placements[b].apart) number_of(query, placements[b].experts_device, number, out);
    }
    if (sn_plan_ledger_host_lacks(&ledger)) return sn_plan_refuse_host(&ledger, err);
    out->host_bytes = ledger.host;
    out->disk_bytes = ledger.disk;
    for (int d = 0; d < query->n_devices && !status; d++) {
        if (!ledger.used[d]) continue;
        if (ledger.bytes[d] > query->devices[d].budget)
            return sn_fail(err, SN_REFUSED, "too little memory: %s would need %zu bytes more than it may use",
                           sn_device_id_name(query->devices[d].id, name), ledger.bytes[d] - query->devices[d].budget);
        out->device_bytes[number[d]] = ledger.bytes[d];
        status = share_slots(query, &ledger, d, out->host_bytes, out->placements, &out->device_bytes[number[d]], err);
    }
    for (int b = 0; b < query->end - query->first; b++) {
        sn_block_placement *place = &out->placements[b];
        place->experts_device = number[place->apart ? place->experts_device : place->device];
        place->device = number[place->device];
    }
    return status;
}
