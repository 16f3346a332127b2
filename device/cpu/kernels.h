/* The table of kernels of the CPU backend: the arithmetic of every operation, for one item of work on one thread.
 *
 * kernels.inc.c defines the table once per instruction set (kernels_c.c, kernels_avx2.c, kernels_neon.c, ...); isa.c
 * chooses one when a device is opened. The operations (cpu.c, attention.c, experts.c, grad.c) split a call into items
 * and call the kernels on the threads of the device's pool. Kernels do not allocate, do not fail and keep no state: any
 * thread may call them at the same time on different outputs. All tables give the same bits (the top of kernels.inc.c
 * says why). Private to device/cpu/. */
#ifndef SN_DEVICE_CPU_KERNELS_H
#define SN_DEVICE_CPU_KERNELS_H

#include "device/cpu/kv_layout.h"
#include "device/cpu/pack.h"

/* -- linear */

/* 32 quantised elements of a row of activations: x[i] ~ d * q[i]. One cache line. */
typedef struct sn_xblock {
    int8_t q[32];
    float d;
    float sum;            /* d * (sum of q) */
    float half_sum[2];    /* d * (sum of q) of each half */
    int32_t bias;         /* -128 * (sum of q): corrects a product with unsigned weights q + 128 */
    int32_t half_bias[2]; /* -32 * (sum of q) of each half */
    int32_t nibble_bias;  /* -8 * (sum of q) */
} sn_xblock;
_Static_assert(sizeof(sn_xblock) == 64, "an activation block is a cache line");

/* Blocks from one row of quantised activations to the next. One more than a row needs, because rows that lie a power of
 * two apart would fall on the same lines of the cache. */
static inline size_t sn_xq_stride(size_t cols) { return cols / SN_QUANT_GROUP + 1; }

/* How far ahead of their use weights are prefetched, and into which cache. */
typedef struct sn_prefetch {
    size_t distance; /* bytes */
    bool to_l1;      /* else to the second level */
} sn_prefetch;

/* y = x . weight^T + bias for rows 0..n-1 of x and some panels of the weight. */
typedef struct sn_linear_job {
    sn_cpu_weight weight;
    const float *bias; /* may be NULL */
    float *y;          /* (n, weight.rows) */
    int n;
    const float *x;      /* (n, cols), for float types */
    const sn_xblock *xq; /* (n, xq_stride), for quantised types */
    size_t xq_stride;    /* sn_xq_stride(cols) */
    sn_prefetch prefetch;
} sn_linear_job;

/* y (rows, width) += a (rows, depth) . b (depth, width): each element is one fma chain over depth. Element (r, k) of a
 * lies at a[r * a_row + k * a_depth]; rows of b and y lie b_row and y_row elements apart. */
typedef struct sn_multiply_job {
    size_t rows, depth, width;
    const float *a, *b;
    float *y;
    size_t a_row, a_depth, b_row, y_row;
    /* What the next call reads, for prefetching: prefetch_n ranges of prefetch_bytes, prefetch_stride bytes apart. */
    const uint8_t *prefetch;
    size_t prefetch_n, prefetch_bytes, prefetch_stride;
} sn_multiply_job;

/* -- attention */

/* Some query heads of one key-value head for consecutive tokens of one sequence: n_tokens * n_heads query rows. */
typedef struct sn_attention_job {
    void *const *pages;
    size_t k_offset, v_offset; /* bytes from the beginning of a page to the keys and values of this block and head */
    sn_kv_dtype dtype;
    int page_tokens, head_dim, value_dim;
    int row_dim;  /* elements of a row at v_offset: head_dim where they hold both, else value_dim */
    bool latent;  /* rows of head_dim elements at v_offset hold both: a value is the first value_dim elements of its key
                   */
    int position; /* of the first token */
    int n_tokens, n_heads;
    int window; /* as in sn_attention */
    float scale, softcap;
    const float *slopes, *sinks; /* (n_heads), or NULL */
    const float *q; /* first token's first head; heads are head_dim elements apart, tokens token_heads heads */
    float *out;     /* laid out as q, with heads of value_dim elements */
    size_t token_heads;
    float *scores;        /* scratch: scores_stride floats per query row, from position sn_attention_base on */
    size_t scores_stride; /* a multiple of 16 */
    float *sums;          /* scratch: one per query row */
} sn_attention_job;

/* The first position that any row of the job attends to, rounded down to a multiple of 16. */
static inline int sn_attention_base(const sn_attention_job *job) {
    return sn_window_first(job->position, job->window) / SN_LANES * SN_LANES;
}
/* The end of the positions that the last row attends to. */
static inline int sn_attention_end(const sn_attention_job *job) { return job->position + job->n_tokens; }

/* y (n) = the sum over the heads of weights[h] * max(scores, 0), in their order, from y on unless they are the first.
 */
typedef struct sn_weigh_job {
    int n_heads;
    const float *scores; /* (n_heads, stride) */
    size_t stride, n;    /* both rows have room for n rounded up to 16 */
    const float *weights;
    bool first;
    float *y;
} sn_weigh_job;

/* The backward pass of the query heads of one key-value head. */
typedef struct sn_attention_grad_job {
    const sn_attention_grad *grad;
    int kv_head;
    float *keys, *values;   /* scratch: this head's keys and values, transposed: (head_dim, n_padded) each */
    float *p, *dp, *capped; /* scratch: (n_padded) each */
    size_t n_padded;        /* grad->first + grad->n, rounded up to 16 */
} sn_attention_grad_job;

/* -- recurrent blocks */

/* The short convolution over n rows of one sequence, in place. */
typedef struct sn_conv_job {
    const float *taps; /* (channels, n_taps) */
    const float *bias; /* (channels), or NULL */
    bool plain;        /* without an activation */
    size_t channels, state_channels;
    int n_taps, n;
    float *x;            /* (n, channels) */
    const float *before; /* (n_taps - 1, channels), rows state_channels apart, or NULL: zero */
    float *after;        /* the same; not `before` */
    float *snapshot;     /* the same, after snapshot_rows rows; or NULL */
    int snapshot_rows;
} sn_conv_job;

/* The delta rule, or another recurrence, over n rows of one sequence and value head. */
typedef struct sn_delta_job {
    sn_recurrence kind;
    int n, key_dim, value_dim;
    const float *q, *k, *v; /* of the first row */
    size_t key_stride, value_stride;
    const float *a, *b; /* of the first row; rows of b are n_heads elements apart, those of a a_stride */
    size_t n_heads, a_stride;
    const float *time_bias; /* one, or SN_KEYED_DELTA: (key_dim) */
    float rate, skip, floor;
    float *out;          /* of the first row; rows are n_heads * value_dim elements apart */
    const float *before; /* (key_dim, value_dim), or NULL: zero */
    float *after;        /* the same; not `before` */
    float *snapshot;     /* the same, after snapshot_rows rows; or NULL */
    int snapshot_rows;
} sn_delta_job;

/* -- the table. Operations mean what they mean in device/device.h, for one row unless a job says otherwise. */

typedef struct sn_cpu_kernels {
    const char *name; /* "c"; x86-64: "avx2", "avx512", "amx"; AArch64: "neon", "dotprod", "i8mm" */
    void (*quantize)(size_t cols, const float *x, sn_xblock *out); /* cols: a multiple of 32 */
    void (*linear)(const sn_linear_job *job, size_t first_panel, size_t end_panel);
    void (*rms_norm)(int width, const float *x, const float *weight, float eps, float *y);
    void (*layer_norm)(int width, const float *x, const float *weight, const float *bias, float eps, float *y);
    void (*rope)(int n_heads, int head_dim, float *x, bool rotate_half, int dim, const float *cos_sin);
    /* The three steps of attention; each begins after the step before it has finished for the whole job. scores:
     * against the keys of positions [first, end), where first is a multiple of 16 from sn_attention_base on. softmax:
     * of all rows. values: dimensions [first, end) of the result, where first is a multiple of 16. */
    void (*scores)(const sn_attention_job *job, int first, int end);
    void (*softmax)(const sn_attention_job *job);
    void (*values)(const sn_attention_job *job, int first, int end);
    void (*weigh)(const sn_weigh_job *job);
    void (*activate)(sn_activation kind, size_t n, const float *gate, const float *up, float *y);
    void (*add)(size_t n, float *y, const float *x);
    void (*scale)(size_t n, const float *x, float factor, float *y);
    float (*dot)(size_t n, const float *a, const float *b);
    void (*multiply)(const sn_multiply_job *job);
    /* Columns [first, end) of a panel's rows as float32, with the bits of sn_cpu_weight_dequantize_row: out (SN_LANES,
     * stride). first is a multiple of 32, and so is end where the type is quantised. */
    void (*unpack)(const sn_cpu_weight *weight, size_t panel, size_t first, size_t end, float *out, size_t stride);
    void (*rms_norm_grad)(int width, const float *x, const float *weight, float eps, const float *dy, bool accumulate,
                          float *dx);
    void (*layer_norm_grad)(int width, const float *x, const float *weight, float eps, const float *dy, bool accumulate,
                            float *dx);
    void (*activate_grad)(sn_activation kind, size_t n, const float *gate, const float *up, const float *dy,
                          float *dgate, float *dup);
    void (*attention_grad)(const sn_attention_grad_job *job);
    void (*moe_gate)(const sn_moe_router *router, const float *logits, int32_t *ids, float *weights);
    void (*moe_combine)(int k, size_t width, const float *weights, const float *x, float *y);
    void (*moe_combine_grad)(int k, size_t width, const float *weights, const float *x, const float *dy, float *dx,
                             float *dweights);
    void (*moe_gate_grad)(const sn_moe_router *router, const float *logits, const int32_t *ids, const float *weights,
                          const float *dweights, float *dlogits);
    void (*short_conv)(const sn_conv_job *job, size_t first, size_t end); /* channels [first, end) */
    void (*delta_rule)(const sn_delta_job *job);
} sn_cpu_kernels;

extern const sn_cpu_kernels sn_cpu_kernels_c;
#if defined(__aarch64__)
extern const sn_cpu_kernels sn_cpu_kernels_neon, sn_cpu_kernels_dotprod, sn_cpu_kernels_i8mm;
#endif
#if defined(__x86_64__)
extern const sn_cpu_kernels sn_cpu_kernels_avx2, sn_cpu_kernels_avx512;
/* `linear` for processors with AMX (isa.c detects it): many rows by tiles, everything else by the AVX-512 kernels. */
void sn_cpu_linear_amx(const sn_linear_job *job, size_t first_panel, size_t end_panel);
#endif

/* -- isa.c: the choice of a table */

/* The kernels named `isa`, or the best of this machine when NULL; SN_REFUSED with the names that this machine has. */
sn_status sn_cpu_kernels_find(const char *isa, const sn_cpu_kernels **out, sn_err *err) SN_MUST_USE;
/* Whether `fast` may be used because it gives the bits of `known`; logs a warning when it does not. */
bool sn_cpu_kernels_self_check(const sn_cpu_kernels *fast, const sn_cpu_kernels *known);
/* The best prefetch on this machine for a product of the weight with n_rows rows. */
sn_prefetch sn_cpu_prefetch(const sn_cpu_weight *w, int n_rows);

/* -- self_check.c */

/* Whether both tables give the same bits for small products that meet every shape of tile. */
bool sn_cpu_kernels_bit_equal(const sn_cpu_kernels *a, const sn_cpu_kernels *b);

#endif
