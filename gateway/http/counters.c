#include "gateway/http/counters.h"

#include <inttypes.h>

static const int64_t first_token_bounds_ms[SN_FIRST_TOKEN_BOUNDS] = {25,   50,   100,  250,   500,
                                                                     1000, 2500, 5000, 15000, 60000};

void sn_counters_first_token(sn_counters *c, int64_t us) {
    size_t i = 0;
    while (i < SN_FIRST_TOKEN_BOUNDS && us > first_token_bounds_ms[i] * 1000) i++;
    atomic_fetch_add(&c->first_token[i], 1);
    atomic_fetch_add(&c->first_token_us, (uint_fast64_t)us);
}

static sn_status put_head(sn_buf *out, const char *name, const char *type, const char *help, sn_err *err) {
    return sn_buf_printf(out, err, "# HELP swarm_serve_%s %s\n# TYPE swarm_serve_%s %s\n", name, help, name, type);
}

static sn_status put_requests(sn_counters *c, sn_buf *out, sn_err *err) {
    sn_status status =
        put_head(out, "requests_total", "counter", "Requests, by the status of their reply; 0: the client left.", err);
    for (int code = 0; code < SN_STATUS_CODES && !status; code++) {
        uint64_t n = atomic_load(&c->requests[code]);
        if (n) status = sn_buf_printf(out, err, "swarm_serve_requests_total{code=\"%d\"} %" PRIu64 "\n", code, n);
    }
    return status;
}

static sn_status put_first_token(sn_counters *c, sn_buf *out, sn_err *err) {
    static const char name[] = "first_token_seconds";
    uint64_t sum = 0, us = atomic_load(&c->first_token_us);
    sn_status status = put_head(out, name, "histogram", "From the arrival of a request to its first token.", err);
    for (int i = 0; i < SN_FIRST_TOKEN_BOUNDS && !status; i++) {
        sum += atomic_load(&c->first_token[i]);
        status = sn_buf_printf(out, err, "swarm_serve_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name,
                               (double)first_token_bounds_ms[i] / 1000, sum);
    }
    sum += atomic_load(&c->first_token[SN_FIRST_TOKEN_BOUNDS]);
    if (status) return status;
    return sn_buf_printf(out, err,
                         "swarm_serve_%s_bucket{le=\"+Inf\"} %" PRIu64 "\nswarm_serve_%s_sum %" PRIu64 ".%06" PRIu64
                         "\nswarm_serve_%s_count %" PRIu64 "\n",
                         name, sum, name, us / 1000000, us % 1000000, name, sum);
}

sn_status sn_counters_write(sn_counters *c, const sn_server_queue_load *load, size_t held, sn_buf *out, sn_err *err) {
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } numbers[] = {
        {"running", "gauge", "Answers that are generated now.", load->running},
        {"queued", "gauge", "Answers that wait for a session.", load->queued},
        {"sessions", "gauge", "Sessions that are open, with those kept for their prefixes.", load->sessions},
        {"held_bytes", "gauge", "Memory of large requests, and of large answers that were not read yet.", held},
        {"draining", "gauge", "1 while the server shuts down.", load->draining},
        {"prompt_tokens_total", "counter", "Tokens of prompts.", atomic_load(&c->prompt_tokens)},
        {"cached_tokens_total", "counter", "Tokens of prompts that an open session had.",
         atomic_load(&c->cached_tokens)},
        {"generated_tokens_total", "counter", "Tokens generated.", atomic_load(&c->generated_tokens)},
        {"drafted_tokens_total", "counter", "Draft tokens.", atomic_load(&c->drafted_tokens)},
        {"judged_tokens_total", "counter", "Draft tokens that were compared with the text.",
         atomic_load(&c->judged_tokens)},
        {"accepted_tokens_total", "counter", "Draft tokens that were equal.", atomic_load(&c->accepted_tokens)},
        {"windows_ahead_total", "counter", "Windows of draft tokens, sent while others were under way, and right.",
         atomic_load(&c->windows_ahead)},
        {"laps_saved_total", "counter", "Laps over all nodes that draft tokens saved.", atomic_load(&c->laps_saved)},
        {"failovers_total", "counter", "Nodes that failed during an answer and were replaced.",
         atomic_load(&c->failovers)},
        {"retractions_total", "counter", "Answers of which an audit withdrew a part.", atomic_load(&c->retractions)},
        {"cancelled_total", "counter", "Answers whose client left.", atomic_load(&c->cancelled)},
    };
    sn_status status = put_requests(c, out, err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !status; i++) {
        status = put_head(out, numbers[i].name, numbers[i].type, numbers[i].help, err);
        if (!status)
            status = sn_buf_printf(out, err, "swarm_serve_%s %" PRIu64 "\n", numbers[i].name, numbers[i].value);
    }
    return status ? status : put_first_token(c, out, err);
}
