#include "blocks/plan_ledger.h"

#include <string.h>

sn_status sn_plan_check(const sn_plan_wish *wish, sn_err *err) {
    char name[32];
    if (wish->first < 0 || wish->end <= wish->first || wish->end - wish->first > SN_PLAN_BLOCKS_MAX)
        return sn_fail(err, SN_REFUSED, "a span %d:%d cannot be placed: it has to have 1 to %d blocks", wish->first,
                       wish->end, SN_PLAN_BLOCKS_MAX);
    if (wish->n_devices < 1 || wish->n_devices > SN_PLAN_DEVICES_MAX)
        return sn_fail(err, SN_REFUSED, "blocks cannot be placed on %d devices: give 1 to %d", wish->n_devices,
                       SN_PLAN_DEVICES_MAX);
    for (int i = 0; i < wish->n_devices; i++)
        for (int j = 0; j < i; j++)
            if (sn_device_same(wish->devices[i].id, wish->devices[j].id))
                return sn_fail(err, SN_REFUSED, "the device %s is given twice: name each once",
                               sn_device_id_name(wish->devices[i].id, name));
    for (int i = 0; i < wish->end - wish->first; i++)
        if (wish->costs[i].n_ties < 0 || wish->costs[i].n_ties > SN_TIES_MAX)
            return sn_fail(err, SN_REFUSED, "block %d shares %d weights with others, and may share %d", wish->first + i,
                           wish->costs[i].n_ties, SN_TIES_MAX);
    return SN_OK;
}

/* The number of the group; a new one if no earlier block has it. */
static int number_of(sn_tie_table *table, uint64_t *groups, uint64_t group, size_t bytes) {
    for (int i = 0; i < table->n; i++)
        if (groups[i] == group && table->bytes[i] == bytes) return i;
    groups[table->n] = group;
    table->bytes[table->n] = bytes;
    return table->n++;
}

void sn_tie_table_make(const sn_plan_wish *wish, sn_tie_table *out) {
    uint64_t groups[SN_TIE_GROUPS_MAX];
    out->n = 0;
    for (int b = 0; b < wish->end - wish->first; b++) {
        const sn_block_cost *cost = &wish->costs[b];
        out->n_of[b] = 0;
        for (int t = 0; t < cost->n_ties; t++) {
            int number = number_of(out, groups, cost->ties[t].group, cost->ties[t].bytes), same = 0;
            while (same < out->n_of[b] && out->of[b][same] != number) same++;
            if (same == out->n_of[b]) out->of[b][out->n_of[b]++] = (uint16_t)number;
        }
    }
}

void sn_plan_ledger_begin(sn_plan_ledger *ledger, const sn_plan_wish *wish, const sn_tie_table *ties) {
    ledger->wish = wish;
    ledger->ties = ties;
    memset(ledger->used, 0, sizeof ledger->used);
    memset(ledger->bytes, 0, sizeof ledger->bytes);
    memset(ledger->slot, 0, sizeof ledger->slot);
    memset(ledger->held, 0, (size_t)ties->n * sizeof *ledger->held);
}

size_t sn_plan_ledger_tied(const sn_plan_ledger *ledger, int index, int device) {
    size_t sum = 0;
    for (int t = 0; t < ledger->ties->n_of[index]; t++) {
        int tie = ledger->ties->of[index][t];
        if (!(ledger->held[tie] >> device & 1)) sum = sn_plan_sum(sum, ledger->ties->bytes[tie]);
    }
    return sum;
}

size_t sn_plan_ledger_extra(const sn_plan_ledger *ledger, int index, int device, bool streamed) {
    const sn_block_cost *cost = &ledger->wish->costs[index];
    size_t slot = ledger->slot[device], sum = cost->cache;
    if (!ledger->used[device]) sum = sn_plan_sum(sum, ledger->wish->devices[device].scratch);
    if (!streamed)
        sum = sn_plan_sum(sum, cost->weights);
    else if (cost->weights > slot)
        sum = sn_plan_sum(sn_plan_sum(sum, cost->weights - slot), cost->weights - slot);
    return sn_plan_sum(sum, sn_plan_ledger_tied(ledger, index, device));
}

void sn_plan_ledger_add(sn_plan_ledger *ledger, int index, int device, bool streamed) {
    size_t weights = ledger->wish->costs[index].weights;
    ledger->bytes[device] = sn_plan_sum(ledger->bytes[device], sn_plan_ledger_extra(ledger, index, device, streamed));
    ledger->used[device] = true;
    if (streamed && weights > ledger->slot[device]) ledger->slot[device] = weights;
    for (int t = 0; t < ledger->ties->n_of[index]; t++)
        ledger->held[ledger->ties->of[index][t]] |= (uint16_t)(1u << device);
}

bool sn_plan_ledger_fit(sn_plan_ledger *ledger, int index, int device, bool streamed) {
    size_t budget = ledger->wish->devices[device].budget, used = ledger->bytes[device];
    size_t extra = sn_plan_ledger_extra(ledger, index, device, streamed);
    if (extra == SIZE_MAX || used > budget || extra > budget - used) return false;
    sn_plan_ledger_add(ledger, index, device, streamed);
    return true;
}

void sn_plan_finish(const sn_plan_wish *wish, const sn_tie_table *ties, const sn_place *places, sn_plan *out) {
    sn_plan_ledger ledger;
    int number[SN_PLAN_DEVICES_MAX] = {0};
    sn_plan_ledger_begin(&ledger, wish, ties);
    *out = (sn_plan){.first = wish->first, .end = wish->end};
    for (int b = 0; b < wish->end - wish->first; b++) {
        int d = places[b].device;
        if (!ledger.used[d]) {
            number[d] = out->n_devices++;
            out->devices[number[d]] = wish->devices[d].id;
        }
        sn_plan_ledger_add(&ledger, b, d, sn_place_streamed(&places[b]));
        out->places[b] = places[b];
        out->places[b].device = number[d];
        if (places[b].residence == SN_IN_HOST) out->host_bytes = sn_plan_sum(out->host_bytes, wish->costs[b].weights);
        if (places[b].residence == SN_ON_DISK) out->disk_bytes = sn_plan_sum(out->disk_bytes, wish->costs[b].weights);
        out->device_bytes[number[d]] = ledger.bytes[d];
    }
}
