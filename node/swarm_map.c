#include "node/swarm_map.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/parse.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *text_json(const char *text) {
    char printable[256];
    snprintf(printable, sizeof printable, "%s", text);
    sn_sanitize_text(printable);
    return json_string(printable);
}

static json_t *hex_json(const uint8_t key[SN_KEY_SIZE]) {
    char hex[2 * SN_KEY_SIZE + 1];
    return json_string(sn_hex(key, SN_KEY_SIZE, hex));
}

static json_t *range_json(uint64_t first, uint64_t end) {
    return json_sprintf("%llu:%llu", (unsigned long long)first, (unsigned long long)end);
}

static json_t *node_json(const sn_announcement *a, uint64_t rtt_us) {
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"tokens_per_s", a->tokens_per_s},
                   {"decode_us", a->decode_us},
                   {"prompt_tokens_per_s", a->prompt_tokens_per_s},
                   {"kv_bytes_free", a->kv_bytes_free},
                   {"sessions", a->sessions},
                   {"queued_steps", a->queued_steps}};
    json_t *adapters = json_array();
    for (size_t i = 0; i < a->n_adapters; i++)
        json_array_append_new(adapters,
                              json_pack("{so}", "name", json_sprintf("@%016llx", (unsigned long long)a->adapters[i])));
    json_t *o = json_pack("{so so so so ss so so so so}", "id", hex_json(a->node), "name", text_json(a->name),
                          "address", text_json(a->address), "blocks", range_json(a->first_block, a->end_block), "state",
                          sn_node_state_name(a->state), "model", hex_json(a->model), "version", text_json(a->version),
                          "device", text_json(a->device), "adapters", adapters);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(o, numbers[i].name, json_integer((json_int_t)numbers[i].value));
    if (a->n_experts) json_object_set_new(o, "experts", range_json(a->experts[0], a->experts[1]));
    if (rtt_us) json_object_set_new(o, "rtt_ms", json_real((double)rtt_us / 1000));
    return o;
}

/* As `from` has measured it, in microseconds; 0: it has not. */
static uint64_t round_trip(const sn_announcement *from, const sn_announcement *to) {
    for (size_t i = 0; from && i < from->n_round_trip; i++)
        if (from->round_trip[i].node == sn_node_tag(to->node)) return from->round_trip[i].us;
    return 0;
}

static json_t *nodes_json(const sn_directory *directory, const uint8_t viewer[SN_KEY_SIZE]) {
    const sn_announcement *self = sn_directory_find(directory, viewer);
    json_t *nodes = json_array();
    for (size_t i = 0; i < sn_directory_count(directory) && i < SN_SWARM_MAP_NODES_MAX; i++) {
        const sn_announcement *a = sn_directory_at(directory, i);
        json_array_append_new(nodes, node_json(a, round_trip(self, a)));
    }
    return nodes;
}

/* holders, rates (n_blocks): of each block the nodes that serve it, and their tokens per second together. */
static void count_blocks(const sn_directory *directory, const sn_swarm_map_view *view, uint64_t *holders,
                         uint64_t *rates) {
    for (size_t i = 0; i < sn_directory_count(directory); i++) {
        const sn_announcement *a = sn_directory_at(directory, i);
        if (a->state != SN_NODE_ONLINE || memcmp(a->model, view->model, SN_KEY_SIZE)) continue;
        for (uint64_t b = a->first_block; b < a->end_block && b < (uint64_t)view->n_blocks; b++) {
            holders[b]++;
            rates[b] += a->tokens_per_s;
        }
    }
}

static json_t *numbers_json(const uint64_t *numbers, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_integer((json_int_t)numbers[i]));
    return list;
}

/* Runs of blocks without a node, with the command that fills them. */
static json_t *gaps_json(const sn_swarm_map_view *view, const uint64_t *holders) {
    json_t *gaps = json_array();
    for (int first = 0, end; first < view->n_blocks; first = end) {
        for (end = first + 1; end < view->n_blocks && !holders[end] == !holders[first];) end++;
        if (holders[first]) continue;
        json_t *command = json_sprintf("swarm-node --model PATH --blocks %d:%d --join %s", first, end, view->address);
        json_array_append_new(
            gaps, json_pack("{so so}", "blocks", range_json((uint64_t)first, (uint64_t)end), "command", command));
    }
    return gaps;
}

static json_t *given_json(const sn_node_given *given) {
    return json_pack("{sf sI sI sI sI}", "hours", given->hours, "tokens", (json_int_t)given->tokens, "sessions",
                     (json_int_t)given->sessions, "weights_bytes", (json_int_t)given->weights_bytes, "relayed_bytes",
                     (json_int_t)given->relayed_bytes);
}

sn_status sn_swarm_map(const sn_directory *directory, const sn_swarm_map_view *view, char **json, sn_err *err) {
    uint64_t *holders = NULL, *rates = NULL;
    *json = NULL;
    sn_status status = sn_calloc(&holders, (size_t)view->n_blocks, sizeof *holders, err);
    if (!status) status = sn_calloc(&rates, (size_t)view->n_blocks, sizeof *rates, err);
    if (!status) {
        count_blocks(directory, view, holders, rates);
        json_t *coverage = json_pack("{so si so so}", "model", hex_json(view->model), "n_blocks", view->n_blocks,
                                     "nodes_per_block", numbers_json(holders, view->n_blocks), "tokens_per_s_per_block",
                                     numbers_json(rates, view->n_blocks));
        json_t *map = json_pack(
            "{so so s{so so si} si so s[o] so s[] sI}", "self", hex_json(view->node), "given", given_json(&view->given),
            "model", "name", text_json(view->model_name), "id", hex_json(view->model), "blocks", view->n_blocks,
            "blocks", view->n_blocks, "nodes", nodes_json(directory, view->node), "coverage", coverage, "gaps",
            gaps_json(view, holders), "errors", "nodes_known", (json_int_t)sn_directory_count(directory));
        *json = map ? json_dumps(map, JSON_COMPACT) : NULL;
        json_decref(map);
        if (!*json) status = sn_fail(err, SN_STOP, "no memory for the map of the swarm");
    }
    free(holders);
    free(rates);
    return status;
}
