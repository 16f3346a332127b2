/* Opening, closing, preparing and listing CUDA devices; the table of operations.
 *
 * Opening checks the device (sm_80 or newer), loads cuBLAS, creates both streams, their events, the pinned stages of
 * uploads and downloads, and cuBLAS. `prepare` reserves all memory that the device itself takes. Closing waits for both
 * streams with the device's timeout. A device that hangs keeps its memory, streams and events: CUDA's functions that
 * free them would wait for it without limit. */
#include "base/log.h"
#include "base/mem.h"
#include "device/cuda/cuda_private.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if CUDART_VERSION < 12000
#error "the CUDA backend needs CUDA 12 or newer: its cudaGraphInstantiate takes three arguments"
#endif

/* A bit for each ordinal that this process has opened: the driver has what it takes of the device. */
static atomic_uint opened;
static unsigned bit_of(int ordinal) { return 1u << (unsigned)ordinal % 32; }

enum { TIMEOUT_MS = 60000, SM_MIN = 80 /* sm_80 */, CUDA_MAJOR = CUDART_VERSION / 1000 };

/* The driver is absent, or older than the runtime that we are built with. */
static sn_status fail_driver(sn_err *err) {
    int there = 0;
    if (cudaDriverGetVersion(&there) != cudaSuccess) there = 0;
    if (!there) return sn_fail(err, SN_REFUSED, "no CUDA device answers here: there is no NVIDIA driver");
    return sn_fail(
        err, SN_REFUSED,
        "no CUDA device answers here: the NVIDIA driver is one for CUDA %d.%d, and this program needs one for "
        "CUDA %d or newer (nvidia-smi shows it): update the driver, or use cpu",
        there / 1000, there % 1000 / 10, CUDA_MAJOR);
}

/* Counts the devices that answer; SN_REFUSED when none does. */
static sn_status count_devices(int *n, sn_err *err) {
    cudaError_t error = cudaGetDeviceCount(n);
    if (error == cudaSuccess && *n > 0) return SN_OK;
    *n = 0;
    if (error != cudaSuccess) cudaGetLastError();
    if (error == cudaErrorInsufficientDriver) return fail_driver(err);
    return sn_fail(err, SN_REFUSED, "no CUDA device answers here: %s",
                   error == cudaSuccess ? "there is none" : cudaGetErrorString(error));
}

/* What is known of a device without a context on it. SN_REFUSED: it cannot be used. */
static sn_status describe_device(int ordinal, sn_device_info *info, int *n_multiprocessors, sn_err *err) {
    struct cudaDeviceProp prop = {0};
    cudaError_t error = cudaGetDeviceProperties(&prop, ordinal);
    *n_multiprocessors = prop.multiProcessorCount;
    *info = (sn_device_info){.id = {SN_DEVICE_CUDA, ordinal}, .memory_reserve = SN_CUDA_RESERVE_BYTES};
    if (error != cudaSuccess) {
        cudaGetLastError();
        return sn_fail(err, SN_REFUSED, "cuda:%d cannot be used: %s", ordinal, cudaGetErrorString(error));
    }
    snprintf(info->name, sizeof info->name, "%.63s", prop.name);
    snprintf(info->features, sizeof info->features, "sm_%d%d", prop.major, prop.minor);
    info->memory = prop.totalGlobalMem;
    if (prop.major * 10 + prop.minor >= SM_MIN) return SN_OK;
    return sn_fail(err, SN_REFUSED, "cuda:%d (%s) is %s: sm_%d or newer is needed", ordinal, info->name, info->features,
                   SM_MIN);
}

/* A buffer of the device itself, and the bytes that certain limits need. */
typedef struct buffer_need {
    sn_cuda_buffer *buffer;
    size_t bytes;
} buffer_need;

enum { BUFFERS = 11 };

/* The bytes of all buffers for these limits. */
static sn_status buffer_needs(sn_cuda *cuda, const sn_device_limits *l, buffer_need out[BUFFERS], sn_err *err) {
    size_t rows = (size_t)l->rows, width = sn_cuda_pad((size_t)l->width, 8), x = sn_cuda_x_bytes(l);
    if (l->rows < 0 || l->width < 0 || l->context < 0 || l->sequences < 0 || l->grad_tokens < 0 || x > PTRDIFF_MAX)
        return sn_fail(err, SN_REFUSED, "limits of %d rows, %d elements, %d positions are not possible", l->rows,
                       l->width, l->context);
    size_t tile = sn_min_size(width * width * sizeof(uint16_t), SN_CUDA_TILE_BYTES);
    tile = tile > width * sizeof(uint16_t) ? tile : width * sizeof(uint16_t); /* one row at least */
    const buffer_need all[BUFFERS] = {
        {&cuda->blas_workspace, SN_CUDA_BLAS_BYTES},
        {&cuda->x, x},
        {&cuda->tile, l->rows > SN_CUDA_CHUNK_ROWS ? tile : 0},
        {&cuda->ids, rows * sizeof(int32_t)},
        {&cuda->kv_staging, sn_cuda_kv_staging_bytes(l)},
        {&cuda->partial, sn_cuda_partial_bytes(cuda, l)},
        {&cuda->arrivals, sn_cuda_arrivals_bytes(l)},
        {&cuda->groups, sn_cuda_groups_bytes(l)},
        {&cuda->index_scores, sn_cuda_index_scores_bytes(l)},
        {&cuda->grad, 3 * sizeof(float) * (size_t)l->grad_tokens * (size_t)l->heads},
        {&cuda->batch_table, sn_cuda_table_bytes(cuda, rows, (size_t)l->sequences, sn_cuda_table_pages(l))},
    };
    memcpy(out, all, sizeof all);
    return SN_OK;
}

static size_t cuda_prepare_bytes(const sn_device *d, const sn_device_limits *limits) {
    sn_cuda *cuda = (sn_cuda *)(uintptr_t)d; /* only read */
    const sn_device_limits all = sn_device_limits_join(&cuda->limits, limits);
    buffer_need needs[BUFFERS];
    size_t sum = 0;
    if (buffer_needs(cuda, &all, needs, NULL)) return SIZE_MAX;
    for (int i = 0; i < BUFFERS; i++)
        if (needs[i].bytes > needs[i].buffer->bytes && !sn_add(sum, needs[i].bytes, &sum)) return SIZE_MAX;
    return sum;
}

/* A workspace and a stream of its own: cuBLAS then gives the same bits from run to run. */
static sn_status blas_prepare(sn_cuda *cuda, sn_err *err) {
    sn_status status = sn_cuda_buffer_reserve(cuda, &cuda->blas_workspace, SN_CUDA_BLAS_BYTES, err);
    if (status) return status;
    cublasStatus_t result = cublasSetWorkspace_v2(cuda->blas, cuda->blas_workspace.at, SN_CUDA_BLAS_BYTES);
    if (result == CUBLAS_STATUS_SUCCESS) return SN_OK;
    return sn_fail(err, SN_STOP, "%s: cuBLAS takes no workspace: %s", cuda->description, cublasGetStatusString(result));
}

static sn_status cuda_prepare(sn_device *d, const sn_device_limits *limits, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    const sn_device_limits all = sn_device_limits_join(&cuda->limits, limits);
    buffer_need needs[BUFFERS];
    sn_status status = sn_cuda_enter_uncaptured(cuda, "prepare", err);
    if (!status) status = buffer_needs(cuda, &all, needs, err);
    if (!status) status = blas_prepare(cuda, err);
    if (!status)
        status = sn_cuda_table_reserve(cuda, (size_t)all.rows, (size_t)all.sequences, sn_cuda_table_pages(&all), err);
    for (int i = 0; i < BUFFERS && !status; i++)
        if (needs[i].buffer != &cuda->batch_table)
            status = sn_cuda_buffer_reserve(cuda, needs[i].buffer, needs[i].bytes, err);
    if (!status) cuda->limits = all;
    return status;
}

/* Frees everything that belongs to the device's context. */
static void free_resources(sn_cuda *cuda) {
    sn_cuda_buffer *const buffers[] = {&cuda->blas_workspace, &cuda->x,       &cuda->tile,        &cuda->ids,
                                       &cuda->kv_staging,     &cuda->partial, &cuda->grad,        &cuda->batch_table,
                                       &cuda->arrivals,       &cuda->groups,  &cuda->index_scores};
    sn_cuda_graphs_clear(cuda);
    sn_cuda_lt_close(cuda);
    if (cuda->blas) cublasDestroy_v2(cuda->blas);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (buffers[i]->at) cudaFree(buffers[i]->at);
    for (int i = 0; i < SN_CUDA_STAGES; i++) {
        if (cuda->stages[i].host) cudaFreeHost(cuda->stages[i].host);
        if (cuda->stages[i].done) cudaEventDestroy(cuda->stages[i].done);
    }
    for (int i = 0; i < SN_CUDA_COPY_EVENTS; i++)
        if (cuda->copy_events[i]) cudaEventDestroy(cuda->copy_events[i]);
    for (int i = 0; i < SN_CUDA_LAUNCH_EVENTS; i++)
        if (cuda->launch_events[i]) cudaEventDestroy(cuda->launch_events[i]);
    if (cuda->queue_event) cudaEventDestroy(cuda->queue_event);
    if (cuda->copies) cudaStreamDestroy(cuda->copies);
    if (cuda->work) cudaStreamDestroy(cuda->work);
}

/* A device that hangs keeps its resources: freeing them would wait for it without limit. */
static void cuda_close(sn_device *d) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_err ignored;
    sn_cuda_batch_abort(cuda);
    bool ready = !sn_cuda_enter(cuda, &ignored);
    if (ready && cuda->work) ready = !sn_cuda_wait_stream(cuda, cuda->work, &ignored);
    if (ready && cuda->copies) ready = !sn_cuda_wait_stream(cuda, cuda->copies, &ignored);
    if (ready || !cuda->work || !cuda->copies || sn_cuda_idle(cuda)) free_resources(cuda);
    sn_allocations_fini(&cuda->allocations);
    free(cuda->batch_table_host);
    free(cuda);
}

static const sn_device_ops cuda_ops = {
    .alloc = sn_cuda_alloc,
    .free = sn_cuda_free,
    .owns = sn_cuda_owns,
    .upload = sn_cuda_upload,
    .download = sn_cuda_download,
    .finish = sn_cuda_finish,
    .prepare = cuda_prepare,
    .prepare_bytes = cuda_prepare_bytes,
    .host_alloc = sn_cuda_host_alloc,
    .host_free = sn_cuda_host_free,
    .copy_begin = sn_cuda_copy_begin,
    .copy_join = sn_cuda_copy_join,
    .copy_wait = sn_cuda_copy_wait,
    .weight_size = sn_cuda_weight_size,
    .weight_pack = sn_cuda_weight_pack,
    .batch_begin = sn_cuda_batch_begin,
    .batch_end = sn_cuda_batch_end,
    .linear = sn_cuda_linear_op,
    .rms_norm = sn_cuda_rms_norm_op,
    .group_norm = sn_cuda_group_norm_op,
    .layer_norm = sn_cuda_layer_norm_op,
    .rope = sn_cuda_rope_op,
    .kv_store = sn_cuda_kv_store_op,
    .kv_read = sn_cuda_kv_read,
    .kv_write = sn_cuda_kv_write,
    .attention = sn_cuda_attention_op,
    .choose_keys = sn_cuda_choose_keys,
    .short_conv = sn_cuda_short_conv_op,
    .delta_rule = sn_cuda_delta_rule_op,
    .activate = sn_cuda_activate_op,
    .add = sn_cuda_add_op,
    .scale = sn_cuda_scale_op,
    .clamp = sn_cuda_clamp_op,
    .dot_rows = sn_cuda_dot_rows_op,
    .head_linear = sn_cuda_head_linear_op,
    .get_rows = sn_cuda_get_rows_op,
    .norm_linear = sn_cuda_norm_linear_op,
    .rope_store = sn_cuda_rope_store_op,
    .attention_linear = sn_cuda_attention_linear_op,
    .activate_linear = sn_cuda_activate_linear_op,
    .activate_moe_linear = sn_composed_activate_moe_linear,
    .linear_input_grad = sn_cuda_linear_input_grad_op,
    .linear_weight_grad = sn_cuda_linear_weight_grad_op,
    .rms_norm_grad = sn_cuda_rms_norm_grad_op,
    .layer_norm_grad = sn_cuda_layer_norm_grad_op,
    .activate_grad = sn_cuda_activate_grad_op,
    .attention_grad = sn_cuda_attention_grad_op,
    .moe_gate = sn_cuda_moe_gate_op,
    .moe_linear = sn_cuda_moe_linear_op,
    .moe_combine = sn_cuda_moe_combine_op,
    .moe_linear_grad = sn_cuda_moe_linear_grad_op,
    .moe_combine_grad = sn_cuda_moe_combine_grad_op,
    .moe_gate_grad = sn_cuda_moe_gate_grad_op,
    .kv_page_bytes = sn_cuda_kv_page_bytes,
    .close = cuda_close,
};

static sn_status open_event(sn_cuda *cuda, cudaEvent_t *event, sn_err *err) {
    return sn_cuda_check(cuda, cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event", err);
}

static sn_status open_streams(sn_cuda *cuda, sn_err *err) {
    sn_status status =
        sn_cuda_check(cuda, cudaStreamCreateWithFlags(&cuda->work, cudaStreamNonBlocking), "making a stream", err);
    if (!status)
        status = sn_cuda_check(cuda, cudaStreamCreateWithFlags(&cuda->copies, cudaStreamNonBlocking), "making a stream",
                               err);
    if (!status) status = open_event(cuda, &cuda->queue_event, err);
    for (int i = 0; i < SN_CUDA_COPY_EVENTS && !status; i++) status = open_event(cuda, &cuda->copy_events[i], err);
    for (int i = 0; i < SN_CUDA_LAUNCH_EVENTS && !status; i++) status = open_event(cuda, &cuda->launch_events[i], err);
    for (int i = 0; i < SN_CUDA_STAGES && !status; i++) {
        status = open_event(cuda, &cuda->stages[i].done, err);
        if (!status) status = sn_cuda_host_alloc(&cuda->base, SN_CUDA_STAGE_BYTES, &cuda->stages[i].host, err);
    }
    return status;
}

static sn_status open_blas(sn_cuda *cuda, sn_err *err) {
    cublasStatus_t result = cublasCreate_v2(&cuda->blas);
    if (result == CUBLAS_STATUS_SUCCESS) result = cublasSetStream_v2(cuda->blas, cuda->work);
    if (result == CUBLAS_STATUS_SUCCESS && cuda->products_lt) sn_cuda_lt_open(cuda);
    if (result == CUBLAS_STATUS_SUCCESS) return SN_OK;
    return sn_fail(err, SN_STOP, "%s: cuBLAS could not start: %s", cuda->description, cublasGetStatusString(result));
}

/* Rows that gain (docs/BENCHMARKS.md, products of many rows), where the activations of so many take a small part of
 * the memory. */
static int batch_rows(size_t memory, size_t memory_max) {
    const size_t gib = (size_t)1 << 30, usable = sn_min_size(memory, memory_max);
    return usable >= 20 * gib ? 2048 : usable >= 10 * gib ? 1024 : 0;
}

static sn_status open_device(sn_cuda *cuda, sn_err *err) {
    int n, ordinal = cuda->base.id.ordinal;
    sn_device_info info;
    sn_status status = count_devices(&n, err);
    if (!status && ordinal >= n)
        status = sn_fail(err, SN_REFUSED, "cuda:%d does not exist: the last one is cuda:%d", ordinal, n - 1);
    if (!status) status = describe_device(ordinal, &info, &cuda->n_multiprocessors, err);
    if (!status) status = sn_cuda_cublas_load(err);
    if (status) return status;
    cuda->base.batch_rows = batch_rows(info.memory, cuda->base.memory_max);
    snprintf(cuda->description, sizeof cuda->description, "cuda:%d (%s, %s)", ordinal, info.name, info.features);
    if (!status) status = sn_cuda_enter(cuda, err);
    if (!status) status = sn_cuda_products_open(cuda, err);
    if (!status) status = open_streams(cuda, err);
    if (!status) status = open_blas(cuda, err);
    if (!status) atomic_fetch_or(&opened, bit_of(ordinal));
    return status;
}

sn_status sn_cuda_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) {
    sn_cuda *cuda = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&cuda, 1, sizeof *cuda, err);
    if (status) return status;
    cuda->base = (sn_device){.ops = &cuda_ops,
                             .id = id,
                             .kv_dtypes = 1 << SN_KV_F16 | 1 << SN_KV_Q8,
                             .timeout_ms = options && options->timeout_ms ? options->timeout_ms : TIMEOUT_MS,
                             .memory_max = sn_device_memory_max(options),
                             .memory_extra = SN_CUDA_GRAPHS_BYTES};
    status = open_device(cuda, err);
    if (status)
        cuda_close(&cuda->base);
    else
        *out = &cuda->base;
    return status;
}

const char *sn_cuda_describe(const sn_device *device) { return ((const sn_cuda *)device)->description; }

/* Appends a device that can be used; one that cannot is left out, and the log says why. */
static void list_device(int ordinal, sn_device_info out[SN_DEVICES_MAX], size_t *n) {
    sn_device_info *info = &out[*n];
    sn_err why;
    int n_multiprocessors;
    if (describe_device(ordinal, info, &n_multiprocessors, &why)) {
        static atomic_uint told; /* a bit for each ordinal */
        if (!(atomic_fetch_or(&told, bit_of(ordinal)) & bit_of(ordinal)))
            sn_log(SN_LOG_WARN, "device left out", "device=cuda:%d text=%s", ordinal, why.text);
        return;
    }
    size_t len = strlen(info->features);
    snprintf(info->features + len, sizeof info->features - len, ", graphs, concurrent copies");
    if (!sn_cuda_free_memory(ordinal, &info->memory_free) || info->memory_free > info->memory)
        info->memory_free = info->memory;
    if (atomic_load(&opened) & bit_of(ordinal)) info->memory_reserve = 0;
    ++*n;
}

sn_status sn_cuda_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) {
    int count;
    size_t before = *n;
    sn_status status = count_devices(&count, err);
    for (int i = 0; i < count && *n < SN_DEVICES_MAX && !status; i++) list_device(i, out, n);
    if (status || *n > before) return status;
    return sn_fail(err, SN_REFUSED, "none of the %d CUDA devices here can be used: the log says why", count);
}
