#include "tests/support/run.h"

#include "tests/support/need.h"

#include <string.h>

enum { TIMEOUT_MS = 10000 };

void run_begin(run *r, world *w) {
    *r = (run){.w = w, .link = cluster_link(w->cluster)};
    NEED(sn_model_open(w->path, &r->model, &err));
}

sn_status run_chain(run *r, sn_chain_options options) {
    options.link = r->link;
    if (!options.timeout_ms) options.timeout_ms = TIMEOUT_MS;
    return sn_chain_open(r->model, &options, &r->chain, &r->err);
}

static void need(const run *r, sn_status status) {
    if (!status) return;
    fprintf(stderr, "%s: %s\n", sn_status_name(status), r->err.text);
    abort();
}

void run_open(run *r, world *w, sn_chain_options options) {
    run_begin(r, w);
    need(r, run_chain(r, options));
}

sn_status run_steps(run *r, int position, int end, int chunk) {
    float out[WORLD_TOKENS * 64];
    size_t row = (size_t)r->w->n_embd;
    for (int at = position, n; at < end; at += n) {
        n = chunk < end - at ? chunk : end - at;
        sn_status status = sn_chain_step(r->chain, at, n, r->w->inputs + (size_t)at * row, out, &r->err);
        if (status) return sn_err_context(&r->err, "at %d", at);
        if (memcmp(out, r->w->hidden + (size_t)at * row, (size_t)n * row * sizeof *out))
            return sn_fail(&r->err, SN_STOP, "other bits at %d", at);
    }
    return SN_OK;
}

void run_on(run *r, int position, int end, int chunk) { need(r, run_steps(r, position, end, chunk)); }

void run_close(run *r) {
    sn_chain_close(&r->chain);
    sn_model_close(&r->model);
    sn_link_close(&r->link);
}
