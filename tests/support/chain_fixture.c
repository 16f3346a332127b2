#include "tests/support/chain_fixture.h"

#include "tests/support/require.h"

#include <string.h>

enum { TIMEOUT_MS = 10000 };

void chain_default_limits(sn_chain_options *options) {
    if (options->limits.timeout_ms) return;
    options->limits = sn_chain_options_default().limits;
    options->limits.timeout_ms = TIMEOUT_MS;
}

testbed *testbed_of_halves(int others) {
    testbed *w = testbed_new(&(cluster_options){.kv_memory = 64});
    cluster_add(w->cluster, 0, 2);
    for (int i = 0; i <= others; i++) cluster_add(w->cluster, 2, 4);
    return w;
}

void chain_fixture_begin(chain_fixture *r, testbed *w) {
    *r = (chain_fixture){.w = w, .link = cluster_link(w->cluster)};
    REQUIRE(sn_model_open(w->path, &r->model, &err));
}

sn_status chain_fixture_try_open(chain_fixture *r, sn_chain_options options) {
    options.link = r->link;
    chain_default_limits(&options);
    return sn_chain_open(r->model, &options, &r->chain, &r->err);
}

static void require_ok(const chain_fixture *r, sn_status status) {
    if (!status) return;
    fprintf(stderr, "%s: %s\n", sn_status_name(status), r->err.text);
    abort();
}

void chain_fixture_open(chain_fixture *r, testbed *w, sn_chain_options options) {
    chain_fixture_begin(r, w);
    require_ok(r, chain_fixture_try_open(r, options));
}

sn_status chain_fixture_try_steps(chain_fixture *r, int position, int end, int chunk) {
    float out[TESTBED_TOKENS * 64];
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

void chain_fixture_steps(chain_fixture *r, int position, int end, int chunk) {
    require_ok(r, chain_fixture_try_steps(r, position, end, chunk));
}

void chain_fixture_close(chain_fixture *r) {
    sn_chain_close(&r->chain);
    sn_model_close(&r->model);
    sn_link_close(&r->link);
}
