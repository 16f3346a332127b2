/* Writes the metrics page (metrics.h). */
#include "node/metrics.h"

#include "net/message.h"

#include <inttypes.h>
#include <string.h>

enum { LABEL_MAX = 256 };

/* Escapes a label's value: backslash, quote and newline get a backslash before them. */
static const char *label_escape(const char *text, char out[LABEL_MAX]) {
    size_t n = 0;
    for (; *text && n + 3 < LABEL_MAX; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n') out[n++] = '\\';
        out[n++] = *text == '\n' ? 'n' : *text;
    }
    out[n] = 0;
    return out;
}

static sn_status put_head(sn_buf *out, const char *name, const char *type, const char *help, sn_err *err) {
    return sn_buf_printf(out, err, "# HELP swarm_node_%s %s\n# TYPE swarm_node_%s %s\n", name, help, name, type);
}

static sn_status put_number(sn_buf *out, const char *name, const char *type, uint64_t value, const char *help,
                            sn_err *err) {
    sn_status status = put_head(out, name, type, help, err);
    return status ? status : sn_buf_printf(out, err, "swarm_node_%s %" PRIu64 "\n", name, value);
}

/* Microseconds, as seconds. */
static sn_status put_seconds(sn_buf *out, const char *name, const char *type, uint64_t us, const char *help,
                             sn_err *err) {
    sn_status status = put_head(out, name, type, help, err);
    return status
               ? status
               : sn_buf_printf(out, err, "swarm_node_%s %" PRIu64 ".%06" PRIu64 "\n", name, us / 1000000, us % 1000000);
}

static sn_status put_histogram(sn_buf *out, const char *name, const sn_histogram *h, const char *help, sn_err *err) {
    sn_status status = put_head(out, name, "histogram", help, err);
    uint64_t sum = 0;
    for (int i = 0; i < SN_HISTOGRAM_BOUNDS && !status; i++) {
        sum += h->counts[i];
        status = sn_buf_printf(out, err, "swarm_node_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name,
                               (double)SN_HISTOGRAM_BOUNDS_US[i] / 1e6, sum);
    }
    sum += h->counts[SN_HISTOGRAM_BOUNDS];
    if (!status) status = sn_buf_printf(out, err, "swarm_node_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, sum);
    if (!status)
        status =
            sn_buf_printf(out, err, "swarm_node_%s_sum %" PRIu64 ".%06" PRIu64 "\nswarm_node_%s_count %" PRIu64 "\n",
                          name, h->sum_us / 1000000, h->sum_us % 1000000, name, sum);
    return status;
}

static sn_status put_facts(sn_buf *out, const sn_metrics_facts *facts, const sn_node_stats *f, sn_err *err) {
    char node[LABEL_MAX], name[LABEL_MAX], model[LABEL_MAX];
    sn_status status = put_head(out, "build_info", "gauge", "Always 1; the labels name the software.", err);
    if (!status)
        status = sn_buf_printf(out, err, "swarm_node_build_info{version=\"%s\",protocol=\"%d\"} 1\n", SN_VERSION,
                               SN_PROTOCOL_VERSION);
    if (!status)
        status = put_head(out, "span_info", "gauge", "Always 1; the labels name the node and its blocks.", err);
    if (!status)
        status = sn_buf_printf(
            out, err,
            "swarm_node_span_info{node=\"%s\",name=\"%s\",model=\"%s\",first_block=\"%d\",end_block=\"%d\"} 1\n",
            label_escape(facts->node, node), label_escape(facts->name, name), label_escape(f->model, model), f->first,
            f->end);
    if (!status)
        status = put_seconds(out, "start_time_seconds", "gauge", (uint64_t)facts->started_unix_ms * 1000,
                             "Unix time at which the node started.", err);
    return status;
}

static sn_status put_refusals(sn_buf *out, const sn_node_stats *f, sn_err *err) {
    static const char *const kinds[] = {
        [SN_RETRY] = "retry", [SN_REBUILD] = "rebuild", [SN_REFUSED] = "refused", [SN_STOP] = "stop"};
    sn_status status =
        put_head(out, "refusals_total", "counter", "ERROR replies, by the reaction expected of the requester.", err);
    for (int i = SN_OK + 1; i <= SN_STOP && !status; i++)
        status =
            sn_buf_printf(out, err, "swarm_node_refusals_total{kind=\"%s\"} %" PRIu64 "\n", kinds[i], f->refusals[i]);
    return status;
}

static sn_status put_quota_refusals(sn_buf *out, const sn_node_stats *f, sn_err *err) {
    static const char *const quotas[SN_QUOTA_KINDS] = {"sessions", "kv", "steps"};
    sn_status status =
        put_head(out, "quota_refusals_total", "counter",
                 "ERROR replies because of a per-client quota, by the option --client-... that sets it.", err);
    for (int i = 0; i < SN_QUOTA_KINDS && !status; i++)
        status = sn_buf_printf(out, err, "swarm_node_quota_refusals_total{quota=\"%s\"} %" PRIu64 "\n", quotas[i],
                               f->quota_refusals[i]);
    return status;
}

sn_status sn_metrics_write(const sn_metrics_facts *facts, const sn_node_stats *f, sn_buf *out, sn_err *err) {
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } numbers[] = {
        {"sessions", "gauge", "Open sessions.", f->sessions},
        {"sessions_max", "gauge", "Limit of open sessions.", f->sessions_max},
        {"kv_bytes", "gauge", "KV pages in use.", f->engine.kv_bytes},
        {"kv_max_bytes", "gauge", "Size of the KV pool.", f->kv_bytes_max},
        {"weight_bytes", "gauge", "Weights of the span.", f->weight_bytes},
        {"queued_steps", "gauge", "Steps and other jobs in the engine.", f->engine.queued_steps},
        {"lost_devices", "gauge", "Devices that are lost and tried again.",
         (uint64_t)__builtin_popcount(f->engine.lost_devices)},
        {"draining", "gauge", "1 while the node drains.", f->draining},
        {"announcements", "gauge", "Nodes with a live announcement.", f->announcements},
        {"joined_addresses", "gauge", "Addresses given with --join.", f->joined},
        {"bootstrap_peers", "gauge", "Bootstrap peers that have answered.", f->bootstrap_peers},
        {"relayed_nodes", "gauge", "Nodes behind routers whose connections this one passes on.",
         f->relay.relayed_nodes},
        {"relay_places", "gauge", "Further nodes that it would relay for.", f->relay.places},
        {"relayed_connections", "gauge", "Connections that it passes on.", f->relay.relayed_connections},
        {"relayed_bytes_total", "counter", "Bytes that it has passed on, both directions together.",
         f->relay.relayed_bytes},
        {"shared_pages", "gauge", "KV pages that two or more sessions share.", f->engine.shared_pages},
        {"swapped_bytes", "gauge", "KV pages of idle sessions, swapped out.", f->engine.swapped_bytes},
        {"swap_max_bytes", "gauge", "Limit of them.", f->swap_bytes_max},
        {"steps_total", "counter", "Steps computed.", f->steps},
        {"sessions_opened_total", "counter", "Sessions opened.", f->sessions_opened},
        {"shared_bytes_total", "counter", "Bytes of the model's files, given to others.", f->shared_bytes},
        {"tokens_total", "counter", "Tokens computed or attached.", f->tokens},
        {"prefix_cached_tokens_total", "counter", "Tokens attached from the prefix cache instead of computed.",
         f->engine.prefix_cached_tokens},
        {"forward_passes_total", "counter", "Forward passes.", f->engine.forward_passes},
        {"device_transfer_bytes_total", "counter", "Hidden states copied between devices.",
         f->engine.device_transfer_bytes},
        {"expert_hits_total", "counter", "Chosen experts that were on the device, of those that rest elsewhere.",
         f->engine.experts.hits},
        {"experts_ahead_total", "counter", "Chosen experts that were foreseen, and there or on the way.",
         f->engine.experts.ahead},
        {"expert_misses_total", "counter", "Chosen experts that had to be brought.", f->engine.experts.misses},
        {"expert_bytes_total", "counter", "Experts brought to devices.", f->engine.experts.bytes},
        {"experts_first", "gauge", "Experts held of each mixture: the first, and", f->experts_first},
        {"experts_end", "gauge", "the one behind the last.", f->experts_end},
        {"experts_missing", "gauge", "1 while some experts are held by no node of its group: clients are not served.",
         f->experts_missing},
        {"expert_rounds_total", "counter", "Times that a forward pass asked other nodes for experts of a block.",
         f->experts.rounds},
        {"expert_rounds_failed_total", "counter", "Of these, those to which no node answered.", f->experts.failed},
        {"expert_pairs_asked_total", "counter", "Pairs of a row and an expert that other nodes were asked for.",
         f->experts.pairs_asked},
        {"expert_pairs_computed_total", "counter", "Pairs that were computed for other nodes.",
         f->experts.pairs_computed},
        {"expert_holders_dropped_total", "counter",
         "Nodes that did not answer as asked, and were not asked for a while.", f->experts.dropped},
        {"sessions_migrated_total", "counter", "Sessions whose KV pages another node received.", f->sessions_migrated},
    };
    sn_status status = put_facts(out, facts, f, err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !status; i++)
        status = put_number(out, numbers[i].name, numbers[i].type, numbers[i].value, numbers[i].help, err);
    if (!status)
        status = put_seconds(out, "compute_seconds_total", "counter", f->engine.compute_us,
                             "Time spent in forward passes.", err);
    if (!status)
        status = put_seconds(out, "expert_wait_seconds_total", "counter", f->engine.expert_wait_us,
                             "Time in which forward passes waited for experts of other nodes.", err);
    if (!status) status = put_refusals(out, f, err);
    if (!status) status = put_quota_refusals(out, f, err);
    if (!status) status = put_histogram(out, "step_seconds", &f->step, "From the arrival of a step to its reply.", err);
    if (!status)
        status = put_histogram(out, "queue_seconds", &f->queue,
                               "From the arrival of a step to the start of its computation.", err);
    return status;
}
