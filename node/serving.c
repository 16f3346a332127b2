#include "node/serving.h"

#include "base/cgroup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/options.h"
#include "kvcache/swap.h"
#include "model/source.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SWAP_SHARE = 4, SWAP_KV_TIMES = 4 };

size_t sn_serving_swap_default(size_t kv_memory, bool disk, bool kv_in_host, size_t available) {
    size_t most;
    if (!sn_mul(kv_memory, SWAP_KV_TIMES, &most)) most = SIZE_MAX;
    if (disk) return most;
    if (kv_in_host) available -= sn_min_size(available, kv_memory);
    return sn_min_size(available / SWAP_SHARE, most);
}

/* After the blocks were loaded: what they leave of the memory is known. */
static size_t swap_default(const sn_serving *serving, const sn_serving_options *options) {
    size_t total, available;
    bool in_host = false;
    const sn_device_placement *placement = &serving->device_placement;
    for (int i = 0; i < placement->plan.n_devices; i++)
        in_host = in_host || placement->devices[i]->id.kind == SN_DEVICE_CPU;
    sn_memory_read(&total, &available);
    return sn_serving_swap_default(options->device_placement.kv_memory, options->swap_to == SN_ON_DISK, in_host,
                                   available);
}

static sn_status swap_open(const sn_serving *serving, const sn_serving_options *options, sn_err *err) {
    const bool disk = options->swap_to == SN_ON_DISK, unset = options->swap_memory == SN_SIZE_UNSET;
    const size_t page = sn_kv_pool_bytes(serving->pool) / (sn_kv_pool_tokens(serving->pool) / SN_KV_PAGE_TOKENS);
    if (options->swap_to == SN_ON_DEVICE) return SN_OK;
    if (disk && !options->swap_dir)
        return sn_fail(err, SN_REFUSED, "idle sessions are to be swapped out to disk: give --swap-dir");
    const size_t budget = unset ? swap_default(serving, options) : options->swap_memory;
    if (unset && budget < page) {
        sn_log(SN_LOG_WARN, "idle sessions stay in the KV cache",
               "text=the blocks leave no host memory for them, and sessions beyond --kv-memory wait: give --swap-to "
               "disk, or less --kv-memory");
        return SN_OK;
    }
    return sn_swap_enable(serving->pool, disk ? options->swap_dir : NULL, budget,
                          (int64_t)options->swap_after_s * 1000000, err);
}

sn_status sn_serving_load(sn_serving *serving, const sn_load_request *request, sn_err *err) {
    const sn_serving_options *options = request->options;
    int end = request->end;
    sn_model *model = NULL;
    sn_device_placement *placement = &serving->device_placement;
    char path[SN_PATH_SIZE];
    sn_status status = sn_swarm_open_model(options->model_path, options->swarm, options->hub, path, &model, err);
    if (!status && options->swarm) sn_model_keep_hashes(model, options->swarm->cache);
    if (!status && options->keep_ends && sn_swarm_name_is(options->model_path)) status = sn_model_need_ends(model, err);
    if (!status)
        status = sn_device_placement_make(&options->device_placement, model, request->first, &end, placement, err);
    if (!status && options->on_plan) options->on_plan((const char *)placement->table.data);
    if (!status)
        status = sn_span_load_plan(model, &placement->plan, placement->devices, placement->store, request->progress,
                                   request->progress_ctx, &serving->span, err);
    sn_model_close(&model);
    if (!status) sn_span_set_kv_dtype(serving->span, options->kv_dtype);
    if (!status) status = sn_span_kv_pool(serving->span, options->device_placement.kv_memory, &serving->pool, err);
    if (!status && options->adapters)
        status = sn_adapter_store_load(options->adapters, serving->span, &serving->adapter_store, err);
    if (!status) serving->throughput = sn_throughput_measure(serving->span, serving->pool);
    if (!status) status = swap_open(serving, options, err);
    if (!status)
        status = sn_prefix_cache_enable(serving->pool, sn_span_hparams(serving->span)->n_embd,
                                        options->prefix_cache_memory, err);
    return status;
}

void sn_serving_free(sn_serving *serving) {
    sn_engine_free(&serving->engine);
    sn_kv_pool_free(&serving->pool);
    sn_adapter_store_free(&serving->adapter_store);
    sn_span_free(&serving->span);
    sn_device_placement_close(&serving->device_placement);
    *serving = (sn_serving){0};
}

/* -- on a thread of its own
 * --------------------------------------------------------------------------------------------------- */

struct sn_loader {
    sn_serving *serving;
    sn_load_request request;
    void (*finished)(void *);
    void *ctx;
    pthread_t thread;
    atomic_bool done;
    sn_status status;
    sn_err err;
};

static void *loader_run(void *arg) {
    sn_loader *l = arg;
    l->status = sn_serving_load(l->serving, &l->request, &l->err);
    atomic_store(&l->done, true);
    l->finished(l->ctx);
    return NULL;
}

sn_status sn_loader_start(sn_serving *serving, const sn_load_request *request, void (*finished)(void *), void *ctx,
                          sn_loader **out, sn_err *err) {
    sn_loader *l = NULL;
    sn_status status = sn_calloc(&l, 1, sizeof *l, err);
    if (status) return status;
    l->serving = serving;
    l->request = *request;
    l->finished = finished;
    l->ctx = ctx;
    if (pthread_create(&l->thread, NULL, loader_run, l)) {
        free(l);
        return sn_fail(err, SN_STOP, "the system has no thread left");
    }
    *out = l;
    return SN_OK;
}

bool sn_loader_done(const sn_loader *loader) { return atomic_load(&loader->done); }

sn_status sn_loader_join(sn_loader **loader, sn_err *err) {
    sn_loader *l = *loader;
    if (!l) return SN_OK;
    pthread_join(l->thread, NULL);
    sn_status status = l->status;
    if (status && err) *err = l->err;
    free(l);
    *loader = NULL;
    return status;
}
