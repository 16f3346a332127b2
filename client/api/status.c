/* The nodes of a swarm: asking them, counting which blocks they cover, and the JSON object of both. */
#include "client/api/status.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/parse.h"
#include "client/routing/candidates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An announcement may claim any number of blocks, and each another model. */
enum { QUERY_TIMEOUT_MS = 2000, BLOCKS_SHOWN_MAX = 1024, MODELS_SHOWN_MAX = 16 };

static void sanitize_announcement(sn_announcement *a) {
    sn_sanitize_text(a->name);
    sn_sanitize_text(a->version);
    sn_sanitize_text(a->device);
    sn_sanitize_text(a->address);
}

static void sanitize_reply(sn_node_reply *reply) {
    sn_sanitize_text(reply->status.model_name);
    sn_sanitize_text(reply->status.lacking);
    sn_sanitize_text(reply->error);
    for (size_t i = 0; reply->adapters && i < reply->adapters->adapters_reply.n_adapters; i++)
        sn_sanitize_text(reply->adapters->adapters_reply.adapters[i].name);
}

sn_status sn_status_query(sn_link *link, sn_status_row **rows, size_t *n, sn_err *err) {
    const sn_directory *directory = sn_link_directory(link);
    const sn_announcement **nodes = NULL;
    sn_node_reply *replies = NULL;
    size_t *row_of = NULL; /* of the nodes in the order in which they are asked */
    *n = sn_directory_count(directory);
    sn_status status = sn_calloc(rows, *n, sizeof **rows, err);
    if (!status) status = sn_calloc(&nodes, *n, sizeof *nodes, err);
    if (!status) status = sn_calloc(&replies, *n, sizeof *replies, err);
    if (!status) status = sn_calloc(&row_of, *n, sizeof *row_of, err);
    int64_t now_ms = sn_unix_ms();
    /* proven nodes first: a stranger may have announced any number of nodes */
    for (int proven = 1, k = 0; proven >= 0 && !status; proven--)
        for (size_t i = 0; i < *n; i++) {
            if (sn_directory_is_proven_at(directory, i, now_ms) != proven) continue;
            row_of[k] = i;
            nodes[k++] = sn_directory_at(directory, i);
        }
    for (size_t i = 0; i < *n && !status; i++) {
        sn_announcement_copy(&(*rows)[i].announcement, sn_directory_at(directory, i));
        sanitize_announcement(&(*rows)[i].announcement);
    }
    const sn_link_query query = {nodes, *n, .status = true, .adapters = true, .timeout_ms = QUERY_TIMEOUT_MS};
    if (!status) status = sn_link_query_nodes(link, &query, replies, err);
    for (size_t i = 0; i < *n && row_of && replies; i++) {
        sn_status_row *row = &(*rows)[row_of[i]];
        row->reply = replies[i];
        sanitize_reply(&row->reply);
    }
    free(row_of);
    free(nodes);
    free(replies);
    return status;
}

void sn_status_free(sn_status_row **rows, size_t n) {
    for (size_t i = 0; *rows && i < n; i++) sn_msg_free(&(*rows)[i].reply.adapters);
    free(*rows);
    *rows = NULL;
}

static sn_status_coverage block_coverage(const sn_status_row *rows, size_t n, const uint8_t model[SN_KEY_SIZE],
                                         uint64_t block) {
    sn_status_coverage cover = {0};
    for (size_t i = 0; i < n; i++) {
        const sn_announcement *a = &rows[i].announcement;
        if (!rows[i].reply.answered || a->state != SN_NODE_ONLINE || memcmp(a->model, model, SN_KEY_SIZE)) continue;
        if (block < a->first_block || block >= a->end_block) continue;
        cover.nodes++;
        cover.tokens_per_s += a->tokens_per_s;
    }
    return cover;
}

static int blocks_shown(const sn_announcement *a) {
    return a->n_blocks < BLOCKS_SHOWN_MAX ? (int)a->n_blocks : BLOCKS_SHOWN_MAX;
}

static bool is_first_of_model(const sn_status_row *rows, size_t i) {
    for (size_t k = 0; k < i; k++)
        if (!memcmp(rows[k].announcement.model, rows[i].announcement.model, SN_KEY_SIZE)) return false;
    return true;
}

static bool model_answers(const sn_status_row *rows, size_t n, const sn_announcement *of) {
    for (size_t i = 0; i < n; i++)
        if (rows[i].reply.answered && !memcmp(rows[i].announcement.model, of->model, SN_KEY_SIZE)) return true;
    return false;
}

/* The end of the run of blocks from `block` on that have the same coverage. */
static int run_end(const sn_status_row *rows, size_t n, const uint8_t model[SN_KEY_SIZE], int block, int end) {
    sn_status_coverage cover = block_coverage(rows, n, model, (uint64_t)block);
    for (block++; block < end; block++) {
        sn_status_coverage next = block_coverage(rows, n, model, (uint64_t)block);
        if (next.nodes != cover.nodes || next.tokens_per_s != cover.tokens_per_s) break;
    }
    return block;
}

static void set_number(json_t *o, const char *name, uint64_t value) {
    json_object_set_new(o, name, json_integer((json_int_t)value));
}

static json_t *node_json(const sn_status_row *r) {
    const sn_announcement *a = &r->announcement;
    const sn_msg_status_reply *s = &r->reply.status;
    char id[2 * SN_KEY_SIZE + 1], model[2 * SN_KEY_SIZE + 1], key[2 * SN_KEY_SIZE + 1], blocks[48];
    snprintf(blocks, sizeof blocks, "%llu:%llu", (unsigned long long)a->first_block, (unsigned long long)a->end_block);
    json_t *o = json_pack("{ss ss ss ss ss ss ss ss ss sb}", "id", sn_hex(a->node, SN_KEY_SIZE, id), "name", a->name,
                          "address", a->address, "curve_key", sn_hex(a->curve_key, SN_KEY_SIZE, key), "blocks", blocks,
                          "state", sn_node_state_name(a->state), "model", sn_hex(a->model, SN_KEY_SIZE, model),
                          "version", a->version, "device", a->device, "answered", r->reply.answered);
    if (a->n_experts) {
        json_object_set_new(
            o, "experts",
            json_sprintf("%llu:%llu", (unsigned long long)a->experts[0], (unsigned long long)a->experts[1]));
        set_number(o, "n_experts", a->experts[2]);
    }
    set_number(o, "kv_tokens_max", a->kv_tokens_max);
    set_number(o, "tokens_per_s", a->tokens_per_s);
    set_number(o, "decode_us", a->decode_us);
    set_number(o, "prompt_tokens_per_s", a->prompt_tokens_per_s);
    if (!r->reply.answered) {
        json_object_set_new(o, "error", json_string(r->reply.error));
        return o;
    }
    json_object_set_new(o, "rtt_ms", json_real((double)r->reply.rtt_us / 1000));
    const struct {
        const char *name;
        uint64_t value;
    } stats[] = {{"uptime_ms", s->uptime_ms},
                 {"sessions", s->sessions},
                 {"sessions_max", s->sessions_max},
                 {"kv_bytes", s->kv_bytes},
                 {"kv_bytes_max", s->kv_bytes_max},
                 {"weight_bytes", s->weight_bytes},
                 {"queued_steps", s->queued_steps},
                 {"steps", s->steps},
                 {"tokens", s->tokens},
                 {"forward_passes", s->forward_passes},
                 {"compute_us", s->compute_us},
                 {"device_transfer_bytes", s->device_transfer_bytes},
                 {"shared_pages", s->shared_pages},
                 {"prefix_cached_tokens", s->prefix_cached_tokens},
                 {"swapped_bytes", s->swapped_bytes},
                 {"swap_bytes_max", s->swap_bytes_max},
                 {"joined", s->joined},
                 {"bootstrap_peers", s->bootstrap_peers}};
    for (size_t i = 0; i < sizeof stats / sizeof *stats; i++) set_number(o, stats[i].name, stats[i].value);
    json_t *adapters = json_array();
    for (size_t i = 0; r->reply.adapters && i < r->reply.adapters->adapters_reply.n_adapters; i++) {
        const struct sn_adapter_info *adapter = &r->reply.adapters->adapters_reply.adapters[i];
        char hash[2 * SN_HASH_SIZE + 1];
        json_array_append_new(
            adapters, json_pack("{ss ss}", "name", adapter->name, "hash", sn_hex(adapter->hash, SN_HASH_SIZE, hash)));
    }
    json_object_set_new(o, "adapters", adapters);
    json_object_set_new(o, "lacking", json_string(s->lacking));
    json_object_set_new(o, "model_name", json_string(s->model_name));
    json_object_set_new(o, "draining", json_boolean(s->draining));
    return o;
}

static json_t *coverage_json(const sn_status_row *rows, size_t n, const sn_announcement *of) {
    char model[2 * SN_KEY_SIZE + 1];
    json_t *counts = json_array(), *rates = json_array(), *gaps = json_array();
    int end = blocks_shown(of);
    for (int b = 0; b < end; b++) {
        sn_status_coverage cover = block_coverage(rows, n, of->model, (uint64_t)b);
        json_array_append_new(counts, json_integer(cover.nodes));
        json_array_append_new(rates, json_integer((json_int_t)cover.tokens_per_s));
    }
    for (int b = 0, e; b < end; b = e) {
        char blocks[32];
        e = run_end(rows, n, of->model, b, end);
        snprintf(blocks, sizeof blocks, "%d:%d", b, e);
        if (!block_coverage(rows, n, of->model, (uint64_t)b).nodes) json_array_append_new(gaps, json_string(blocks));
    }
    return json_pack("{ss sI so so so}", "model", sn_hex(of->model, SN_KEY_SIZE, model), "n_blocks",
                     (json_int_t)of->n_blocks, "nodes_per_block", counts, "tokens_per_s_per_block", rates, "gaps",
                     gaps);
}

json_t *sn_status_json(const sn_status_row *rows, size_t n) {
    json_t *nodes = json_array(), *coverage = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(nodes, node_json(&rows[i]));
    for (int answers = 1; answers >= 0; answers--)
        for (size_t i = 0; i < n && json_array_size(coverage) < MODELS_SHOWN_MAX; i++) {
            const sn_announcement *a = &rows[i].announcement;
            if (is_first_of_model(rows, i) && model_answers(rows, n, a) == answers)
                json_array_append_new(coverage, coverage_json(rows, n, a));
        }
    return json_pack("{so so}", "nodes", nodes, "coverage", coverage);
}
