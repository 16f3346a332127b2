/* What the node tells about itself: to other nodes (its announcement), to clients (STATUS_REPLY), and to its owner (the
 * statistics that the metrics page shows). */
#include "node/protocol/protocol_private.h"

#include "base/wire.h"

#include <stdio.h>
#include <string.h>

/* -- the announcement ---------------------------------------------------------------------------------------------- */

enum { KV_TOKENS_SAID_MAX = 1 << 30 }; /* a message says no more */

static sn_node_state announced_state(const sn_protocol *protocol) {
    if (protocol->leaving) return SN_NODE_OFFLINE;
    const sn_placement *p = &protocol->placement;
    if (!sn_placement_serving(p) || p->working_first == p->working_end || sn_protocol_experts_lacking(protocol))
        return SN_NODE_JOINING;
    return protocol->draining || p->state == SN_PLACEMENT_REBALANCE_PENDING ? SN_NODE_DRAINING : SN_NODE_ONLINE;
}

/* Bytes that one token takes through the network, in and out, as float32. */
static uint64_t token_bytes(const sn_protocol *protocol) { return 2 * sizeof(float) * (uint64_t)protocol->hp->n_embd; }

/* Tokens per second that the node adds to the swarm: the lesser of what it computes and what its network carries. */
static void announce_rates(const sn_protocol *protocol, const sn_engine_stats *stats, sn_announcement *a) {
    a->decode_us = stats->decode_us;
    a->prompt_tokens_per_s = stats->prompt_tokens_per_s;
    if (!a->decode_us) return;
    uint64_t network_tokens_per_s = a->network_bytes_per_s / token_bytes(protocol);
    a->tokens_per_s = 1000000 / a->decode_us;
    if (a->network_bytes_per_s && network_tokens_per_s < a->tokens_per_s) a->tokens_per_s = network_tokens_per_s;
    if (!a->tokens_per_s) a->tokens_per_s = 1; /* 0 means not measured */
}

void sn_protocol_describe(const sn_protocol *protocol, sn_announcement *a) {
    const sn_span_info *span = &protocol->setup.span;
    const sn_placement *placement = &protocol->placement;
    sn_engine_stats stats = protocol->setup.read_stats(protocol->setup.ctx);
    a->state = announced_state(protocol);
    memcpy(a->model, protocol->setup.model.bytes, SN_HASH_SIZE);
    if (protocol->sharing.shares && !protocol->leaving)
        memcpy(a->manifest, protocol->sharing.manifest.bytes, SN_HASH_SIZE);
    a->first_block = (uint64_t)placement->working_first;
    a->end_block = (uint64_t)placement->working_end;
    a->n_blocks = (uint64_t)protocol->hp->n_blocks;
    for (int b = placement->working_first; span->block_hash && b < placement->working_end; b++)
        memcpy(a->block_hash[b - placement->working_first], span->block_hash[b - placement->first].bytes, SN_HASH_SIZE);
    a->kv_dtype = (uint64_t)sn_kv_dtype_element(span->kv_dtype);
    if (span->block_hash && sn_span_info_is_part(span)) {
        a->n_experts = 3;
        a->experts[0] = (uint64_t)span->experts.first;
        a->experts[1] = (uint64_t)span->experts.end;
        a->experts[2] = (uint64_t)protocol->hp->n_experts;
    }
    snprintf(a->device, sizeof a->device, "%s", span->devices);
    announce_rates(protocol, &stats, a);
    for (int i = 0; i < SN_WIRE_DTYPES; i++)
        if ((size_t)protocol->hp->n_embd % sn_dtype_block(sn_wire_dtypes[i]) == 0)
            a->wire_dtype[a->n_wire_dtype++] = sn_wire_dtypes[i];
    sn_adapter_table_announce(&protocol->adapters, a);
    a->kv_bytes_free = protocol->setup.kv.bytes_max - stats.kv_bytes;
    a->kv_tokens_max = sn_min_size(protocol->setup.kv.tokens_max, KV_TOKENS_SAID_MAX);
    a->sessions = sn_sessions_count(protocol->sessions);
    a->queued_steps = stats.queued_steps;
}

/* -- STATUS and statistics ----------------------------------------------------------------------------------------- */

/* A name from a file, of which a message takes no control characters. */
static void copy_printable(const char *text, char *out, size_t capacity) {
    size_t n = 0;
    for (; *text && n + 1 < capacity; text++) out[n++] = *text;
    for (out[n] = 0; n-- > 0;)
        if (out[n] < ' ' || out[n] > '~') out[n] = '?';
}

void sn_protocol_on_status(sn_protocol *protocol, const sn_event *event, int64_t now_us) {
    sn_msg *msg = sn_protocol_new_msg(SN_MSG_STATUS_REPLY, event->msg->correlation_id);
    if (!msg) return;
    sn_engine_stats stats = protocol->setup.read_stats(protocol->setup.ctx);
    msg->status_reply = (sn_msg_status_reply){
        .uptime_ms = (uint64_t)(now_us - protocol->started_us) / 1000,
        .sessions = sn_sessions_count(protocol->sessions),
        .sessions_max = protocol->setup.sessions_max,
        .kv_bytes = stats.kv_bytes,
        .kv_bytes_max = protocol->setup.kv.bytes_max,
        .weight_bytes = protocol->setup.span.bytes,
        .queued_steps = stats.queued_steps,
        .steps = protocol->counters.steps,
        .tokens = protocol->counters.tokens,
        .forward_passes = stats.forward_passes,
        .compute_us = stats.compute_us,
        .device_transfer_bytes = stats.device_transfer_bytes,
        .draining = protocol->draining,
        .shared_pages = stats.shared_pages,
        .prefix_cached_tokens = stats.prefix_cached_tokens,
        .swapped_bytes = stats.swapped_bytes,
        .swap_bytes_max = protocol->setup.kv.swap_bytes_max,
        .joined = protocol->setup.n_joined,
        .bootstrap_peers = sn_membership_bootstrap_answered(protocol->membership),
    };
    const char *lacking = sn_protocol_experts_lacking(protocol);
    if (lacking) snprintf(msg->status_reply.lacking, sizeof msg->status_reply.lacking, "%s", lacking);
    copy_printable(protocol->hp->name, msg->status_reply.model_name, sizeof msg->status_reply.model_name);
    sn_protocol_send(protocol, event->peer, &msg);
}

void sn_protocol_read_stats(const sn_protocol *protocol, sn_node_stats *out) {
    const sn_protocol_setup *setup = &protocol->setup;
    *out = (sn_node_stats){
        .first = protocol->placement.working_first,
        .end = protocol->placement.working_end,
        .engine = setup->read_stats(setup->ctx),
        .kv_bytes_max = setup->kv.bytes_max,
        .swap_bytes_max = setup->kv.swap_bytes_max,
        .weight_bytes = setup->span.bytes,
        .sessions = sn_sessions_count(protocol->sessions),
        .sessions_max = setup->sessions_max,
        .draining = protocol->draining,
        .steps = protocol->counters.steps,
        .tokens = protocol->counters.tokens,
        .sessions_opened = protocol->counters.sessions,
        .shared_bytes = protocol->counters.shared_bytes,
        .started_us = protocol->started_us,
        .sessions_migrated = protocol->counters.sessions_migrated,
        .announcements = sn_directory_count(sn_membership_directory(protocol->membership)),
        .bootstrap_peers = sn_membership_bootstrap_answered(protocol->membership),
        .joined = setup->n_joined,
        .experts = protocol->experts.counters,
        .experts_first = (uint64_t)setup->span.experts.first,
        .experts_end = (uint64_t)setup->span.experts.end,
        .n_experts = (uint64_t)protocol->hp->n_experts,
        .experts_missing = sn_protocol_experts_lacking(protocol) != NULL,
        .step = protocol->counters.step_us,
        .queue = protocol->counters.queue_us,
    };
    if (setup->transport->portal) out->relay = sn_portal_read_stats(setup->transport->portal);
    snprintf(out->model, sizeof out->model, "%s", protocol->hp->name);
    memcpy(out->refusals, protocol->counters.refusals, sizeof out->refusals);
    for (int i = 0; i < SN_QUOTA_KINDS; i++)
        out->quota_refusals[i] = sn_quota_refusals(protocol->quota, (sn_quota_kind)i);
}

const int64_t SN_HISTOGRAM_BOUNDS_US[SN_HISTOGRAM_BOUNDS] = {
    1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000, 30000000};

void sn_histogram_add(sn_histogram *histogram, int64_t us) {
    int i = 0;
    while (i < SN_HISTOGRAM_BOUNDS && us > SN_HISTOGRAM_BOUNDS_US[i]) i++;
    histogram->counts[i]++;
    histogram->sum_us += (uint64_t)(us > 0 ? us : 0);
}
