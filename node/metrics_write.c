/* The page that Prometheus reads: see metrics.h. */
#include "node/metrics.h"

#include "net/message.h"

#include <inttypes.h>
#include <string.h>

enum { WORD_MAX = 256 };

const int64_t SN_HISTOGRAM_BOUNDS_US[SN_HISTOGRAM_BOUNDS] = {
    1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000, 30000000};

void sn_histogram_add(sn_histogram *histogram, int64_t us) {
    int i = 0;
    while (i < SN_HISTOGRAM_BOUNDS && us > SN_HISTOGRAM_BOUNDS_US[i]) i++;
    histogram->counts[i]++;
    histogram->sum_us += (uint64_t)(us > 0 ? us : 0);
}

/* A label's value: backslashes, quotes and line ends with a backslash before them. */
static const char *escape(const char *text, char out[WORD_MAX]) {
    size_t n = 0;
    for (; *text && n + 3 < WORD_MAX; text++) {
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

static sn_status put_facts(sn_buf *out, const sn_metrics_facts *facts, const sn_figures *f, sn_err *err) {
    char node[WORD_MAX], name[WORD_MAX], model[WORD_MAX];
    sn_status status = put_head(out, "build_info", "gauge", "Always 1; the labels say which software this is.", err);
    if (!status)
        status = sn_buf_printf(out, err, "swarm_node_build_info{version=\"%s\",protocol=\"%d\"} 1\n", SN_VERSION,
                               SN_PROTOCOL);
    if (!status) status = put_head(out, "span_info", "gauge", "Always 1; the labels say who serves which blocks.", err);
    if (!status)
        status = sn_buf_printf(
            out, err,
            "swarm_node_span_info{node=\"%s\",name=\"%s\",model=\"%s\",first_block=\"%d\",end_block=\"%d\"} 1\n",
            escape(facts->node, node), escape(facts->name, name), escape(f->model, model), f->first, f->end);
    if (!status)
        status = put_seconds(out, "start_time_seconds", "gauge", (uint64_t)facts->started_unix_ms * 1000,
                             "When the node started, since 1970.", err);
    return status;
}

static sn_status put_refusals(sn_buf *out, const sn_figures *f, sn_err *err) {
    static const char *const kinds[] = {
        [SN_RETRY] = "retry", [SN_REBUILD] = "rebuild", [SN_REFUSED] = "refused", [SN_STOP] = "stop"};
    sn_status status = put_head(out, "refusals_total", "counter", "Errors answered, by what the asker is to do.", err);
    for (int i = SN_OK + 1; i <= SN_STOP && !status; i++)
        status =
            sn_buf_printf(out, err, "swarm_node_refusals_total{kind=\"%s\"} %" PRIu64 "\n", kinds[i], f->refusals[i]);
    return status;
}

static sn_status put_quota_refusals(sn_buf *out, const sn_figures *f, sn_err *err) {
    static const char *const quotas[SN_QUOTA_KINDS] = {"sessions", "kv", "steps"};
    sn_status status = put_head(out, "quota_refusals_total", "counter",
                                "Errors answered because of a quota for one client, by the option --client-... that sets it.", err);
    for (int i = 0; i < SN_QUOTA_KINDS && !status; i++)
        status = sn_buf_printf(out, err, "swarm_node_quota_refusals_total{quota=\"%s\"} %" PRIu64 "\n", quotas[i], f->quota_refusals[i]);
    return status;
}

sn_status sn_metrics_write(const sn_metrics_facts *facts, const sn_figures *f, sn_buf *out, sn_err *err) {
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } numbers[] = {
        {"sessions", "gauge", "Sessions that are open.", f->sessions},
        {"sessions_max", "gauge", "Sessions served at once at most.", f->sessions_max},
        {"kv_bytes", "gauge", "Memory in use for keys and values.", f->engine.kv_bytes},
        {"kv_max_bytes", "gauge", "Memory for keys and values.", f->kv_bytes_max},
        {"weight_bytes", "gauge", "Memory of the span's weights.", f->weight_bytes},
        {"queue_steps", "gauge", "Steps that wait to be computed.", f->engine.queue},
        {"draining", "gauge", "1 while the node is leaving.", f->draining},
        {"announcements", "gauge", "Nodes of which a live announcement is known.", f->announcements},
        {"peers", "gauge", "Nodes that were joined and have answered.", f->joined},
        {"shared_pages", "gauge", "Pages of keys and values that two sessions or more share.", f->engine.shared_pages},
        {"idle_bytes", "gauge", "Keys and values of sessions at rest, set aside.", f->engine.idle_bytes},
        {"steps_total", "counter", "Steps done.", f->steps},
        {"tokens_total", "counter", "Tokens done.", f->tokens},
        {"shared_tokens_total", "counter", "Tokens taken over from another session instead of computed.",
         f->engine.shared_tokens},
        {"passes_total", "counter", "Passes over the span's weights.", f->engine.passes},
        {"guard_bytes_total", "counter", "Hidden states that crossed a device's border.", f->engine.guard_bytes},
        {"handed_over_sessions_total", "counter", "Sessions whose past another node got.", f->handed_over},
    };
    sn_status status = put_facts(out, facts, f, err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !status; i++)
        status = put_number(out, numbers[i].name, numbers[i].type, numbers[i].value, numbers[i].help, err);
    if (!status)
        status = put_seconds(out, "compute_seconds_total", "counter", f->engine.compute_us, "Time in passes.", err);
    if (!status) status = put_refusals(out, f, err);
    if (!status) status = put_quota_refusals(out, f, err);
    if (!status) status = put_histogram(out, "step_seconds", &f->step, "From a step's arrival to its answer.", err);
    if (!status)
        status = put_histogram(out, "queue_seconds", &f->queue, "From a step's arrival to its computation's beginning.",
                               err);
    return status;
}
