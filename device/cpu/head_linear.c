/* Linear with a matrix for each head, on the CPU. An item is a head and up to ROWS rows: their elements are gathered,
 * multiplied by the head's matrix with the kernel of linear, and put in their places. A row's result has the same bits
 * as if it were alone. */
#include "device/cpu/cpu_private.h"

#include "base/mem.h"

#include <string.h>

enum { ROWS = 16, BLOCKS = SN_LATENT_DIM_MAX / SN_QUANT_GROUP + 1 };

typedef struct head_job {
    const sn_cpu_kernels *kernels;
    const sn_experts *heads;
    size_t n, x_width, y_width;
    const float *x;
    float *y;
} head_job;

static void head_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const head_job *job = ctx;
    _Alignas(64) float x[ROWS * SN_LATENT_DIM_MAX], y[ROWS * SN_LATENT_DIM_MAX];
    _Alignas(64) sn_xblock xq[ROWS * BLOCKS];
    size_t n_heads = (size_t)job->heads->n, head = item % n_heads, first = item / n_heads * ROWS;
    size_t n = sn_min_size(ROWS, job->n - first);
    sn_weight own = job->heads->first;
    own.device = (const char *)own.device + head * job->heads->stride;
    const sn_cpu_weight w = sn_cpu_weight_view(&own);
    bool quantised = sn_cpu_quantised(w.dtype);
    size_t stride = sn_xq_stride(w.cols), rest = job->x_width - w.cols;
    for (size_t i = 0; i < n; i++) {
        const float *from = job->x + ((first + i) * n_heads + head) * job->x_width;
        if (quantised)
            job->kernels->quantize(w.cols, from, xq + i * stride);
        else
            memcpy(x + i * w.cols, from, w.cols * sizeof *x);
    }
    const sn_linear_job linear = {w, NULL, y, (int)n, x, xq, stride, sn_cpu_prefetch(&w, (int)n)};
    job->kernels->linear(&linear, 0, w.n_panels);
    for (size_t i = 0; i < n; i++) {
        size_t at = (first + i) * n_heads + head;
        float *to = job->y + at * job->y_width;
        memcpy(to, y + i * w.rows, w.rows * sizeof *to);
        if (rest) memcpy(to + w.rows, job->x + at * job->x_width + w.cols, rest * sizeof *to);
    }
}

sn_status sn_cpu_head_linear(sn_device *d, int n, const float *x, int x_width, const sn_experts *heads, float *y,
                             sn_err *err) {
    const sn_cpu *cpu = (sn_cpu *)d;
    size_t rows = heads->first.rows, cols = heads->first.cols;
    if (n <= 0) return SN_OK;
    if (rows > SN_LATENT_DIM_MAX || cols > SN_LATENT_DIM_MAX || (size_t)x_width < cols)
        return sn_fail(err, SN_REFUSED, "heads of %d elements with matrices of %zu by %zu are not possible", x_width,
                       rows, cols);
    head_job job = {cpu->kernels, heads, (size_t)n, (size_t)x_width, rows + (size_t)x_width - cols, x, y};
    sn_pool_run(cpu->pool, (job.n + ROWS - 1) / ROWS * (size_t)heads->n, head_item, &job);
    return SN_OK;
}
