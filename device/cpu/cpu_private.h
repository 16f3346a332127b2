/* Inside of the CPU backend: one open device and its scratch memory, and the operations that its files give to the
 * table in cpu.c. Private to device/cpu/.
 *
 * Everything here is called on the device's thread. An operation splits its call into items and runs them on the
 * device's thread pool; which worker takes which item changes no bit of the result. Scratch memory is allocated by
 * `prepare` (and by the first gradient of a size), so that the forward pass does not allocate. The operations are those
 * of sn_device_ops (device/device.h), which documents them. */
#ifndef SN_DEVICE_CPU_CPU_PRIVATE_H
#define SN_DEVICE_CPU_CPU_PRIVATE_H

#include "base/pool.h"
#include "device/backends.h"
#include "device/cpu/kernels.h"

enum {
    SN_ATTENTION_ROWS = 16,                /* query rows of one item of attention */
    SN_SCORE_ROWS = 2 * SN_ATTENTION_ROWS, /* query rows that a worker has scratch memory for */
    SN_CPU_HEAD_DIM_MAX = 512,             /* elements of a head */
    SN_CPU_PARALLEL_MIN = 32768, /* elements: a smaller call runs on the calling thread; sharing costs about 2 us */
};

typedef struct sn_cpu {
    sn_device base;
    const sn_cpu_kernels *kernels;
    sn_pool *pool;
    sn_batch batch; /* the open batch; n_sequences is 0 outside of a batch */
    sn_device_limits limits;
    sn_xblock *xq; /* quantised activations: limits.rows rows of sn_xq_stride blocks */
    size_t xq_bytes;
    float *scores; /* per worker SN_SCORE_ROWS rows of scores_stride */
    size_t scores_bytes, scores_stride;
    float *sums; /* per worker SN_SCORE_ROWS */
    size_t sums_bytes;
    float *grad_scratch; /* of the gradients, per worker; grows (sn_cpu_grad_scratch_reserve) */
    size_t grad_scratch_bytes;
    void *moe_scratch; /* of moe_linear (experts.c), for limits.rows rows at a time; 0 bytes without experts */
    size_t moe_scratch_bytes;
    void *moe_grad_scratch; /* of moe_linear_grad; grows */
    size_t moe_grad_scratch_bytes;
    void *chosen_scratch; /* of chosen.c; 0 bytes where nothing is chosen */
    size_t chosen_scratch_bytes;
    char description[64];
} sn_cpu;

/* Makes *pages (the address of a pointer of any type) at least `wanted` bytes; the old contents are lost when it grows.
 * SN_STOP when memory is out; *pages is then as before. */
sn_status sn_cpu_scratch_reserve(sn_cpu *cpu, void *pages, size_t *bytes, size_t wanted, sn_err *err) SN_MUST_USE;

/* -- attention.c */

SN_OPERATION(kv_page_bytes, sn_cpu_kv_page_bytes);
SN_OPERATION(kv_store, sn_cpu_kv_store);
SN_OPERATION(kv_read, sn_cpu_kv_read);
SN_OPERATION(kv_write, sn_cpu_kv_write);
SN_OPERATION(attention, sn_cpu_attention);

/* The attention of a batch, which need not be the open one: its pages may be any memory. */
void sn_cpu_attend(sn_cpu *cpu, const sn_batch *batch, const sn_attention *params, const float *q, float *out);
/* Where in a page the index keys of a block begin; and the row of a position in latent attention, with its bytes. */
size_t sn_cpu_index_offset(const sn_kv_shape *shape, int block);
size_t sn_cpu_latent_row(const sn_kv_shape *shape, int block, int position, size_t *bytes);

/* -- chosen.c */

SN_OPERATION(choose_keys, sn_cpu_choose_keys);
/* Attention where params->chosen is not NULL. */
sn_status sn_cpu_attend_chosen(sn_cpu *cpu, const sn_attention *params, const float *q, float *out,
                               sn_err *err) SN_MUST_USE;
/* Bytes of chosen_scratch that these limits need; false: too many. */
bool sn_cpu_chosen_bytes(const sn_cpu *cpu, const sn_device_limits *limits, size_t *bytes);

/* -- delta.c */

SN_OPERATION(short_conv, sn_cpu_short_conv);
SN_OPERATION(delta_rule, sn_cpu_delta_rule);

/* -- head_linear.c */

SN_OPERATION(head_linear, sn_cpu_head_linear);

/* -- grad.c */

SN_OPERATION(linear_input_grad, sn_cpu_linear_input_grad);
SN_OPERATION(linear_weight_grad, sn_cpu_linear_weight_grad);
SN_OPERATION(rms_norm_grad, sn_cpu_rms_norm_grad);
SN_OPERATION(layer_norm_grad, sn_cpu_layer_norm_grad);
SN_OPERATION(activate_grad, sn_cpu_activate_grad);
SN_OPERATION(attention_grad, sn_cpu_attention_grad);

/* Columns of a weight that are unpacked at a time, and the floats of scratch memory per worker that this takes. */
enum { SN_CPU_GRAD_COLS = 64, SN_CPU_GRAD_TILE = SN_CPU_GRAD_COLS * 4 * SN_LANES };

/* dx = dy . weight of n rows, or dx += it with `accumulate`. */
typedef struct sn_cpu_linear_input_grad_job {
    sn_cpu *cpu;
    sn_cpu_weight weight;
    size_t n;
    const float *dy;
    float *dx;
    bool accumulate;
} sn_cpu_linear_input_grad_job;
/* Item `item` of the job: SN_CPU_GRAD_COLS columns of dx from SN_CPU_GRAD_COLS * item on, all rows. The caller has
 * reserved SN_CPU_GRAD_TILE floats of scratch memory before. */
void sn_cpu_linear_input_grad_columns(const sn_cpu_linear_input_grad_job *job, size_t item, int worker);
/* Bytes of grad_scratch per worker that these limits need. */
size_t sn_cpu_grad_bytes(const sn_device_limits *limits);
/* Makes grad_scratch at least `floats` per worker. SN_REFUSED when the size overflows, SN_STOP when memory is out. */
sn_status sn_cpu_grad_scratch_reserve(sn_cpu *cpu, size_t floats, sn_err *err) SN_MUST_USE;

/* -- experts.c */

SN_OPERATION(moe_gate, sn_cpu_moe_gate);
SN_OPERATION(moe_linear, sn_cpu_moe_linear);
SN_OPERATION(moe_combine, sn_cpu_moe_combine);
SN_OPERATION(moe_linear_grad, sn_cpu_moe_linear_grad);
SN_OPERATION(moe_combine_grad, sn_cpu_moe_combine_grad);
SN_OPERATION(moe_gate_grad, sn_cpu_moe_gate_grad);
/* Bytes of moe_scratch that these limits need. SN_REFUSED when the limits are not possible. */
sn_status sn_cpu_moe_bytes(const sn_device_limits *limits, size_t *bytes, sn_err *err) SN_MUST_USE;
/* Bytes of moe_grad_scratch that these limits need; false: too many. */
bool sn_cpu_moe_grad_bytes(const sn_device_limits *limits, size_t *bytes);

#endif
