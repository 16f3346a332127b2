#include "node/serving.h"

#include "base/mem.h"
#include "blocks/weights_id.h"
#include "kvcache/idle.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static sn_status open_idle(sn_kv_pool *pool, const sn_node_config *config, sn_err *err) {
    if (!config->idle_to) return SN_OK;
    bool disk = !strcmp(config->idle_to, "disk");
    if (!disk && strcmp(config->idle_to, "host"))
        return sn_fail(err, SN_REFUSED, "--idle-to %.40s is unknown: use host or disk", config->idle_to);
    if (disk && !config->idle_dir) return sn_fail(err, SN_REFUSED, "idle sessions are to rest on disk: give --idle-dir");
    return sn_idle_open(pool, disk ? config->idle_dir : NULL, config->idle_memory,
                        (int64_t)config->idle_after_s * 1000000, err);
}

sn_status sn_serving_load(sn_serving *serving, const sn_node_config *config, int first, int end, sn_progress progress,
                          void *ctx, sn_err *err) {
    sn_model *model = NULL;
    sn_placing *placing = &serving->placing;
    sn_hash weights;
    bool known = false;
    sn_status status = sn_model_open(config->model_path, &model, err);
    if (!status) known = !sn_weights_id(model, &weights, &(sn_err){0}); /* a folder without this shard: adapters are believed */
    if (!status) status = sn_placing_make(&config->placing, model, first, &end, placing, err);
    if (!status && config->planned) config->planned((const char *)placing->table.data);
    if (!status)
        status = sn_span_load_plan(model, &placing->plan, placing->devices, placing->store, progress, ctx,
                                   &serving->span, err);
    sn_model_close(&model);
    if (!status) sn_span_keep_as(serving->span, config->kv_dtype);
    if (!status) status = sn_span_kv_pool(serving->span, config->placing.kv_memory, &serving->pool, err);
    if (!status && config->adapters) status = sn_published_load(config->adapters, serving->span, known ? &weights : NULL, &serving->published, err);
    if (!status) serving->speed = sn_speed_test(serving->span, serving->pool);
    if (!status) status = open_idle(serving->pool, config, err);
    if (!status)
        status = sn_prefix_share(serving->pool, sn_span_hparams(serving->span)->n_embd, config->prefix_memory, err);
    return status;
}

void sn_serving_free(sn_serving *serving) {
    sn_engine_free(&serving->engine);
    sn_kv_pool_free(&serving->pool);
    sn_published_free(&serving->published);
    sn_span_free(&serving->span);
    sn_placing_close(&serving->placing);
    *serving = (sn_serving){0};
}

/* -- in a thread --------------------------------------------------------------------------------------------------- */

struct sn_loader {
    sn_serving *serving;
    const sn_node_config *config;
    int first, end;
    sn_progress progress;
    void (*finished)(void *);
    void *progress_ctx, *ctx;
    pthread_t thread;
    atomic_bool done;
    sn_status status;
    sn_err err;
};

static void *load(void *arg) {
    sn_loader *l = arg;
    l->status = sn_serving_load(l->serving, l->config, l->first, l->end, l->progress, l->progress_ctx, &l->err);
    atomic_store(&l->done, true);
    l->finished(l->ctx);
    return NULL;
}

sn_status sn_loader_start(sn_serving *serving, const sn_node_config *config, int first, int end, sn_progress progress,
                          void *progress_ctx, void (*finished)(void *), void *ctx, sn_loader **out, sn_err *err) {
    sn_loader *l = NULL;
    sn_status status = sn_calloc(&l, 1, sizeof *l, err);
    if (status) return status;
    l->serving = serving;
    l->config = config;
    l->first = first;
    l->end = end;
    l->progress = progress;
    l->progress_ctx = progress_ctx;
    l->finished = finished;
    l->ctx = ctx;
    if (pthread_create(&l->thread, NULL, load, l)) {
        free(l);
        return sn_fail(err, SN_STOP, "no thread is to be had");
    }
    *out = l;
    return SN_OK;
}

bool sn_loader_done(const sn_loader *loader) { return atomic_load(&loader->done); }

sn_status sn_loader_take(sn_loader **loader, sn_err *err) {
    sn_loader *l = *loader;
    if (!l) return SN_OK;
    pthread_join(l->thread, NULL);
    sn_status status = l->status;
    if (status && err) *err = l->err;
    free(l);
    *loader = NULL;
    return status;
}
