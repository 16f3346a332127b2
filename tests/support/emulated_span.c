#include "tests/support/emulated_span.h"

#include "tests/support/files.h"
#include "tests/support/require.h"

#include <math.h>

sn_device *emulated_devices[N_DEVICES];
size_t emulated_expert_memory;
sn_kv_dtype emulated_kv_dtype;

void emulated_devices_open(void) {
    const sn_device_options options = {.threads = 2, .timeout_ms = 180000};
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &emulated_devices[CPU], &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, &options, &emulated_devices[CUDA], &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_XPU, 0}, &options, &emulated_devices[XPU], &err));
}

void emulated_devices_close(void) {
    for (int i = 0; i < N_DEVICES; i++) sn_device_close(&emulated_devices[i]);
}

sn_status emulated_span_try_open(emulated_span *w, const char *path, const char *map, const char *preload,
                                 sn_err *err) {
    sn_block_cost costs[64];
    sn_plan_device all[N_DEVICES];
    sn_plan plan;
    sn_device *used[SN_PLAN_DEVICES_MAX];
    *w = (emulated_span){0};
    sn_status status = sn_model_open(path, &w->model, err);
    if (status) return status;
    w->hp = sn_model_hparams(w->model);
    w->folder = temp_folder();
    for (int i = 0; i < N_DEVICES; i++)
        all[i] = (sn_plan_device){.id = emulated_devices[i]->id, .budget = (size_t)1 << 40};
    status = sn_span_costs(w->model, emulated_devices[CPU], &(sn_span_part){0, w->hp->n_blocks, {0}}, 1 << 20, costs,
                           &all[0].scratch, err);
    sn_plan_query query = {.end = w->hp->n_blocks,
                           .costs = costs,
                           .devices = all,
                           .n_devices = N_DEVICES,
                           .preload = preload,
                           .expert_memory = emulated_expert_memory};
    if (!status) status = sn_plan_explicit(&query, map, &plan, err);
    if (!status) status = sn_offload_store_open(w->folder, &w->store, err);
    for (int i = 0; i < plan.n_devices && !status; i++)
        for (int d = 0; d < N_DEVICES; d++)
            if (emulated_devices[d]->id.kind == plan.devices[i].kind) used[i] = emulated_devices[d];
    if (!status) status = sn_span_load_plan(w->model, &plan, used, w->store, NULL, NULL, &w->span, err);
    if (!status) sn_span_set_kv_dtype(w->span, emulated_kv_dtype);
    if (!status) status = sn_span_kv_pool(w->span, 3u << 20, &w->pool, err);
    return status ? status : sn_kv_cache_new(w->pool, &w->kv, err);
}

emulated_span emulated_span_open(const char *path, const char *map, const char *preload) {
    emulated_span w;
    REQUIRE(emulated_span_try_open(&w, path, map, preload, &err));
    return w;
}

void emulated_span_close(emulated_span *w) {
    sn_kv_cache_free(&w->kv);
    sn_kv_pool_free(&w->pool);
    sn_span_free(&w->span);
    sn_offload_store_close(&w->store);
    if (w->folder) temp_folder_remove(&w->folder);
    sn_model_close(&w->model);
}

sn_status step_blocks(emulated_span *w, int first, int end, int n, const float *in, float *out, sn_err *err) {
    sn_tensor input = {.name = "hidden states", .data = in, .dtype = SN_F32, .rank = 2, .shape = {n, w->hp->n_embd}};
    sn_span_sequence part = {w->kv, &input, 0, n, out};
    sn_status status = sn_kv_cache_reserve(w->kv, n, err);
    return status ? status : sn_span_forward(w->span, first, end, 1, &part, NULL, err);
}

void run_rows(emulated_span *w, float *rows, int n, int chunk) {
    for (int at = 0, now; at < n; at += now) {
        float *here = rows + (size_t)at * (size_t)w->hp->n_embd;
        now = chunk < n - at ? chunk : n - at;
        REQUIRE(step_blocks(w, 0, w->hp->n_blocks, now, here, here, &err));
    }
}

float *make_rows(int n, int n_embd) {
    float *rows = malloc((size_t)n * (size_t)n_embd * sizeof *rows);
    for (int i = 0; i < n * n_embd; i++) rows[i] = (float)((i * 37 + i / 64 * 11) % 201 - 100) * 0.01f;
    return rows;
}

double largest_distance(const float *a, const float *b, size_t n) {
    double furthest = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(fabs((double)a[i] - b[i]) <= furthest)) furthest = fabs((double)a[i] - b[i]);
        largest = fmax(largest, fabs(b[i]));
    }
    return furthest / largest;
}
