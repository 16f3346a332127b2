#include "tests/support/liar.h"

#include "base/clock.h"
#include "node/core.h"
#include "tests/support/fake.h"
#include "tests/support/need.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { SESSIONS = 32, KV_BYTES = 16 << 20 };

struct liar {
    liar_ways ways;
    int n_embd;
    sn_identity identity;
    sn_transport *transport;
    sn_device *device;
    sn_span *span;
    sn_kv_pool *pool;
    sn_engine *engine;
    sn_core *core;
    sn_buf sealed;
    float *before; /* (n_embd): what the newest step of one token gave */
    bool has_before;
    pthread_t thread;
    atomic_bool stop;
    atomic_int steps;
};

static void wake(void *ctx) { sn_transport_wake(((liar *)ctx)->transport); }
static bool submit(void *ctx, sn_job *job) { return sn_engine_submit(((liar *)ctx)->engine, job); }
static sn_engine_figures read_figures(void *ctx) { return sn_engine_read(((liar *)ctx)->engine); }

/* rows (n, n_embd): one value, or with `much` all of the last row. */
static void alter(const liar *l, float *rows, size_t n, int step) {
    size_t width = (size_t)l->n_embd;
    uint32_t bits;
    float *value = &rows[(size_t)step % (n * width)];
    memcpy(&bits, value, sizeof bits);
    bits ^= 1;
    memcpy(value, &bits, sizeof bits);
    for (size_t i = (n - 1) * width; i < n * width && l->ways.much; i++) rows[i] = -rows[i];
}

static void tamper(liar *l, sn_job *job) {
    if (job->kind != SN_JOB_STEP || job->status) return;
    float *out = sn_shared_data(job->output), now[4096];
    size_t row = (size_t)l->n_embd * sizeof *out;
    int step = atomic_fetch_add(&l->steps, 1) + 1;
    if (step == l->ways.alters_step || (l->ways.alters_every && step % l->ways.alters_every == 0))
        alter(l, out, (size_t)job->n_tokens, step);
    if (!l->ways.stale || job->n_tokens != 1) return;
    memcpy(now, out, row);
    if (l->has_before) memcpy(out, l->before, row);
    memcpy(l->before, now, row);
    l->has_before = true;
}

static void *run(void *ctx) {
    liar *l = ctx;
    while (!atomic_load(&l->stop)) {
        sn_event event;
        NEED(sn_transport_recv(l->transport, sn_core_tick(l->core, sn_now_us(), sn_unix_ms()), &event, &err));
        if (event.peer) sn_core_handle(l->core, &event, sn_now_us(), sn_unix_ms());
        for (sn_job *job = sn_engine_take(l->engine); job; job = sn_engine_take(l->engine)) {
            tamper(l, job);
            sn_core_done(l->core, job, sn_now_us());
        }
    }
    return NULL;
}

static void load(liar *l, const char *path, int first, int end) {
    sn_model *model = NULL;
    sn_device_options options = {.threads = 1};
    NEED(sn_model_open(path, &model, &err));
    l->n_embd = sn_model_hparams(model)->n_embd;
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &l->device, &err));
    NEED(sn_span_load(model, l->device, first, end, NULL, NULL, &l->span, &err));
    NEED(sn_span_kv_pool(l->span, KV_BYTES, &l->pool, &err));
    sn_model_close(&model);
}

liar *liar_new(world *w, const char *address, int first, int end, liar_ways ways) {
    liar *l = calloc(1, sizeof *l);
    char bound[SN_ADDRESS_MAX + 1];
    if (!l) abort();
    l->ways = ways;
    l->transport = cluster_transport(w->cluster, &l->identity);
    NEED(sn_transport_listen(l->transport, address, bound, &err));
    load(l, ways.model ? ways.model : w->path, first, end);
    NEED(sn_calloc(&l->before, (size_t)l->n_embd, sizeof *l->before, &err));
    NEED(sn_engine_new(l->span, l->pool, SESSIONS, (sn_speed){0}, wake, l, &l->engine, &err));
    sn_core_setup setup = {.transport = l->transport,
                           .identity = &l->identity,
                           .address = address,
                           .name = "liar",
                           .span = sn_span_describe(l->span),
                           .model = w->model,
                           .kv_bytes_max = sn_kv_pool_bytes(l->pool),
                           .sessions_max = SESSIONS,
                           .idle_us_max = 600000000,
                           .room_us_max = 1000000,
                           .tune_bytes_max = 64 << 20,
                           .submit = submit,
                           .read = read_figures,
                           .ctx = l};
    setup.span.block_hash = &w->block_hash[first]; /* whatever its weights are */
    NEED(sn_core_new(&setup, sn_now_us(), &l->core, &err));
    fake_announce(w, &l->identity, address, first, end, ways.shy ? -1 : 1, &l->sealed);
    if (pthread_create(&l->thread, NULL, run, l)) abort();
    return l;
}

void liar_free(liar **l) {
    if (!*l) return;
    atomic_store(&(*l)->stop, true);
    sn_transport_wake((*l)->transport);
    pthread_join((*l)->thread, NULL);
    sn_engine_free(&(*l)->engine);
    sn_core_free(&(*l)->core);
    sn_transport_free(&(*l)->transport);
    sn_kv_pool_free(&(*l)->pool);
    sn_span_free(&(*l)->span);
    sn_device_close(&(*l)->device);
    sn_buf_fini(&(*l)->sealed);
    free((*l)->before);
    free(*l);
    *l = NULL;
}

void liar_tell(const liar *l, sn_link *link) {
    NEED(sn_directory_take(sn_link_directory(link), l->sealed.data, l->sealed.len, sn_unix_ms(), &err));
}

const uint8_t *liar_id(const liar *l) { return l->identity.id; }
int liar_steps(const liar *l) { return atomic_load(&l->steps); }
