/* Inside of the CPU backend: how weights and activations lie in memory, and the table of kernels that every instruction
 * set fills from one source (kernels.inc.c). */
#ifndef SN_DEVICE_CPU_CPU_H
#define SN_DEVICE_CPU_CPU_H

#include "base/pool.h"
#include "device/device.h"
#include "device/quant.h"

enum {
    SN_LANES = 16,          /* output rows that lie interleaved; the width of a vector in every instruction set */
    SN_ATTENTION_ROWS = 16, /* query rows of one item of attention */
    SN_SCORE_ROWS = 2 * SN_ATTENTION_ROWS, /* query rows that a worker has scratch for */
    SN_KV_WIDTH_MAX = 512,                 /* elements of a head */
};

/* A packed weight is a row of panels; a panel holds SN_LANES output rows, those beyond the weight's rows being zero. A
 * panel is a row of blocks of some k:
 *   float layouts: w[k][lane]; of 16 bits, two panels are w[k][panel][lane], a last odd one is by itself: one row's chains of
 *   fma wait for themselves, and those of two panels for each other's, while memory is still read as one stream
 *   others: quants of 32 k, then their scales; SUPER: a head, then 8 such groups. Scales lie by their quants because memory
 *   is then read in equal steps, which its prefetcher follows: at the block's begin they cost Q4_K a quarter of its speed.
 * Quants of 32 k: Q4: 256 bytes, byte 64 * c + 4 * lane + i holds k = 4c + i in its low nibble, k = 16 + 4c + i in its
 * high one; of Q4_TABLE they are places in sn_q4_table. Q8: 512 bytes, byte 64 * c + 4 * lane + i is q + 128 of k = 4c + i.
 * Scales: d[lane], then m[lane] if there are offsets; FINE: of both halves of the 32. In SUPER they are int8, to be
 * multiplied by the head's f16 d[lane] and m[lane]: as in the file, for the products are exact in float32. */
/*        name       k   bytes      types                     scales                                                   */
#define SN_LAYOUTS(X)                                                                                                  \
    X(F32, 1, 64)          /* F32                                                                              */      \
    X(F16, 1, 32)          /* F16                                                                              */      \
    X(BF16, 1, 32)         /* BF16                                                                             */      \
    X(Q4_HALF, 32, 320)    /* Q4_1                      f16 d, m                                               */      \
    X(Q4_SIGNED, 32, 288)  /* Q4_0                      f16 d; the offset is -8 d: integers again              */      \
    X(Q4_SUPER, 256, 2368) /* Q4_K                      f16 d, m; int8 d[8], m[8]                              */      \
    X(Q4_TABLE, 32, 288)   /* MXFP4                     bf16 d                                                 */      \
    X(Q8_HALF, 32, 544)    /* Q8_0 Q5_0 IQ4_NL          f16 d                                                  */      \
    X(Q8_WIDE, 32, 640)    /* Q5_1 IQ4_XS               f32 d, m                                               */      \
    X(Q8_SUPER, 256, 4416) /* Q5_K                      f16 d, m; int8 d[8], m[8]                              */      \
    X(Q8_FINE, 32, 768)    /* Q2_K Q3_K                 f32 d[2], m[2]                                         */      \
    X(Q8_FINE_SUPER, 256, 4416) /* Q6_K                 f16 d, nothing; int8 d[16]                             */

typedef enum sn_layout {
#define X(name, k, bytes) SN_LAYOUT_##name,
    SN_LAYOUTS(X)
#undef X
        SN_LAYOUT_COUNT
} sn_layout;

enum {
    SN_Q4_BYTES = 256, /* of the quants of 32 k */
    SN_Q8_BYTES = 512,
    SN_SUPER_HEAD = 64,             /* d[lane], m[lane] */
    SN_SUPER_SCALES = 2 * SN_LANES, /* of a group */
    SN_SUPER_GROUPS = 8,
};

static inline bool sn_layout_quantised(sn_layout layout) { return layout >= SN_LAYOUT_Q4_HALF; }
static inline bool sn_layout_nibbles(sn_layout layout) {
    return layout >= SN_LAYOUT_Q4_HALF && layout <= SN_LAYOUT_Q4_TABLE;
}
static inline bool sn_layout_fine(sn_layout layout) {
    return layout == SN_LAYOUT_Q8_FINE || layout == SN_LAYOUT_Q8_FINE_SUPER;
}
static inline bool sn_layout_super(sn_layout layout) {
    return layout == SN_LAYOUT_Q4_SUPER || layout == SN_LAYOUT_Q8_SUPER || layout == SN_LAYOUT_Q8_FINE_SUPER;
}
static inline bool sn_layout_offsets(sn_layout layout) {
    return layout != SN_LAYOUT_Q4_SIGNED && layout != SN_LAYOUT_Q4_TABLE && layout != SN_LAYOUT_Q8_HALF &&
           layout != SN_LAYOUT_Q8_FINE_SUPER;
}

/* What the nibbles of Q4_TABLE stand for: twice the numbers of E2M1 (OCP Microscaling 1.0), 12 at most. */
static const int8_t sn_q4_table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* A weight as the kernels see it: what follows from its sn_weight. */
typedef struct sn_cpu_weight {
    sn_layout layout;
    size_t rows, cols;
    size_t n_blocks;    /* of a panel */
    size_t panel_bytes; /* n_blocks * bytes of a block */
    size_t n_panels;
    const uint8_t *data;
} sn_cpu_weight;

/* A panel of a float layout: its k = 0 lies *offset bytes into the weight, and its k are *step bytes apart. */
static inline bool sn_layout_pairs(sn_layout layout) { return layout == SN_LAYOUT_F16 || layout == SN_LAYOUT_BF16; }
static inline void sn_cpu_float_panel(const sn_cpu_weight *w, size_t panel, size_t *offset, size_t *step) {
    size_t k_bytes = SN_LANES * (w->layout == SN_LAYOUT_F32 ? 4 : 2);
    bool paired = sn_layout_pairs(w->layout) && (panel | 1) < w->n_panels;
    *offset = paired ? (panel & ~(size_t)1) * w->panel_bytes + (panel & 1) * k_bytes : panel * w->panel_bytes;
    *step = paired ? 2 * k_bytes : k_bytes;
}

/* 32 elements of an activation row: x[i] ~ d * q[i]. One cache line. */
typedef struct sn_xblock {
    int8_t q[32];
    float d;
    float sum;         /* d * (sum of q) */
    float half_sum[2]; /* d * (sum of q of each half) */
    int32_t bias;      /* -128 * (sum of q): what u8 weights of q + 128 are too much */
    int32_t half_bias[2];
    int32_t nibble_bias; /* -8 * (sum of q) */
} sn_xblock;
_Static_assert(sizeof(sn_xblock) == 64, "an activation block is a cache line");

/* How many bytes before their use weights are asked for, and into which cache. */
typedef struct sn_ahead {
    size_t bytes;
    bool first_level;
} sn_ahead;

/* Rows 0..n-1 of x against some panels of a weight. */
typedef struct sn_linear_job {
    sn_cpu_weight weight;
    const float *bias; /* may be NULL */
    float *y;          /* (n, weight rows) */
    int n;
    const float *x;      /* (n, cols), for float layouts */
    const sn_xblock *xq; /* n rows of xq_stride blocks, for quantised layouts */
    size_t xq_stride;
    sn_ahead ahead;
} sn_linear_job;

/* Some query heads of one key-value head for consecutive tokens of one sequence: n_tokens * n_heads query rows. */
typedef struct sn_attention_job {
    void *const *pages;
    size_t k_offset, v_offset; /* of this block and head, from a page's begin */
    sn_kv_dtype dtype;
    int page_tokens, head_dim;
    int position; /* of the first token */
    int n_tokens, n_heads;
    int window;
    float scale;
    const float *slopes, *sinks; /* of the heads, or NULL */
    const float *q; /* first token's first head; heads are head_dim apart, tokens `stride` */
    float *out;     /* likewise */
    size_t stride;
    float *scores; /* scratch: for each query row scores_room floats (a multiple of 16), from position `base` on */
    size_t scores_room;
    float *sums; /* scratch: one for each query row */
} sn_attention_job;

/* The first position that any row of the job looks at, down to a multiple of 16; and the end of the last row's. */
static inline int sn_attention_base(const sn_attention_job *job) {
    int first = job->window > 0 && job->position + 1 > job->window ? job->position + 1 - job->window : 0;
    return first / SN_LANES * SN_LANES;
}
static inline int sn_attention_end(const sn_attention_job *job) { return job->position + job->n_tokens; }

/* y (rows, width) += a (rows, depth) . b (depth, width): each element one chain over depth. Element (r, k) of a lies at
 * a[r * a_row + k * a_depth]; rows of b and y are `b_row` and `y_row` apart. */
typedef struct sn_multiply_job {
    size_t rows, depth, width;
    const float *a, *b;
    float *y;
    size_t a_row, a_depth, b_row, y_row;
    const uint8_t *soon; /* what the next call will read: soon_n times soon_bytes, soon_apart from each other */
    size_t soon_n, soon_bytes, soon_apart;
} sn_multiply_job;

/* The query heads of one key-value head, backwards. */
typedef struct sn_attention_grad_job {
    const sn_attention_grad *grad;
    int kv_head;
    float *keys, *values; /* scratch: (head_dim, room) each: this head's, turned */
    float *p, *dp;        /* scratch: (room) each */
    size_t room;          /* n rounded up to 16 */
} sn_attention_grad_job;

typedef struct sn_cpu_kernels {
    const char *name;
    void (*quantize)(size_t cols, const float *x, sn_xblock *out); /* cols: a multiple of 32 */
    void (*linear)(const sn_linear_job *job, size_t first_panel, size_t end_panel);
    void (*rms_norm)(int width, const float *x, const float *weight, float eps, float *y);
    void (*layer_norm)(int width, const float *x, const float *weight, const float *bias, float eps, float *y);
    void (*rope)(int n_heads, int head_dim, float *x, bool halves, int dim, const float *cos_sin); /* one row */
    /* The three steps of attention, each after the whole of the one before. Scores against the keys of positions
     * [first, end), first a multiple of 16 from base on; softmax of all rows; dimensions [first, end) of the result,
     * first a multiple of 16. */
    void (*scores)(const sn_attention_job *job, int first, int end);
    void (*softmax)(const sn_attention_job *job);
    void (*values)(const sn_attention_job *job, int first, int end);
    void (*activate)(sn_activation kind, size_t n, const float *gate, const float *up, float *y);
    void (*add)(size_t n, float *y, const float *x);
    void (*multiply)(const sn_multiply_job *job);
    /* Columns [first, end) of a panel's rows, with the bits of sn_cpu_weight_row: out (SN_LANES, stride). first: a multiple of
     * 32; end too, where the layout is quantised. */
    void (*unpack)(const sn_cpu_weight *weight, size_t panel, size_t first, size_t end, float *out, size_t stride);
    void (*rms_norm_grad)(int width, const float *x, const float *weight, float eps, const float *dy, bool grow, float *dx);
    void (*layer_norm_grad)(int width, const float *x, const float *weight, float eps, const float *dy, bool grow, float *dx);
    void (*activate_grad)(sn_activation kind, size_t n, const float *gate, const float *up, const float *dy, float *dgate,
                          float *dup);
    void (*attention_grad)(const sn_attention_grad_job *job);
    /* Mixtures of experts, one row each; as in device.h. */
    void (*route)(int n_experts, int k, bool over_all, const float *logits, int32_t *ids, float *weights);
    void (*combine)(int k, size_t width, const float *weights, const float *x, float *y);
    void (*combine_grad)(int k, size_t width, const float *weights, const float *x, const float *dy, float *dx, float *dweights);
    void (*route_grad)(int n_experts, int k, bool over_all, const float *logits, const int32_t *ids, const float *weights,
                       const float *dweights, float *dlogits);
} sn_cpu_kernels;

extern const sn_cpu_kernels sn_cpu_kernels_c;
#if defined(__x86_64__)
extern const sn_cpu_kernels sn_cpu_kernels_avx2, sn_cpu_kernels_avx512;
/* kernels_amx.c: many rows by tiles, the rest as AVX-512's. Only for processors that have AMX, which isa.c knows. */
void sn_cpu_linear_amx(const sn_linear_job *job, size_t first_panel, size_t end_panel);
#endif

/* isa.c. The kernels named `isa`, or the best this machine has when NULL; SN_REFUSED names those there are. */
sn_status sn_cpu_kernels_find(const char *isa, const sn_cpu_kernels **out, sn_err *err) SN_MUST_USE;

/* agree.c. Whether small products of every shape of tile are the same bits with both. */
bool sn_cpu_kernels_agree(const sn_cpu_kernels *a, const sn_cpu_kernels *b);

/* Whether `fast` may be used, because it agrees with `known`; a warning in the log if not. */
bool sn_cpu_kernels_trusted(const sn_cpu_kernels *fast, const sn_cpu_kernels *known);

/* How this machine likes weights to be asked for when so many rows take them. */
sn_ahead sn_cpu_ahead(const sn_cpu_weight *w, int n_rows);

/* pack.c. */
sn_status sn_cpu_weight_size(const sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t *bytes,
                             sn_err *err) SN_MUST_USE;
sn_status sn_cpu_weight_pack(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *image,
                             sn_err *err) SN_MUST_USE; /* `host` may lie unaligned */
sn_cpu_weight sn_cpu_weight_view(const sn_weight *weight);
void sn_cpu_weight_row(const sn_cpu_weight *weight, size_t row, float *out); /* unpacked, as float32 */

/* cpu.c */
sn_status sn_cpu_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) SN_MUST_USE;
const char *sn_cpu_describe(const sn_device *device);

/* One block more than a row needs: rows a power of two apart would fall on the same lines of the cache. */
static inline size_t sn_xq_stride(size_t cols) { return cols / SN_QUANT_GROUP + 1; }
/* *pages becomes `wanted` bytes at least, of which nothing is kept. */
sn_status sn_cpu_grow(void *pages, size_t *bytes, size_t wanted, sn_err *err) SN_MUST_USE;

/* attention.c: the past's layout. In a page: for each block, for each key-value head, keys as (tile of 16 positions,
 * head_dim, 16), then values as (position, head_dim rounded up to 16). In 8 bits the scales, bfloat16, lie behind the integers
 * of each tile as (blocks of 32 dimensions, 16), and behind those of each value. */
enum { SN_KV_BLOCK = 32 };
static inline size_t sn_kv_scales(int head_dim) { return ((size_t)head_dim + SN_KV_BLOCK - 1) / SN_KV_BLOCK; }
static inline size_t sn_kv_element(sn_kv_dtype dtype) { return dtype == SN_KV_F32 ? 4 : dtype == SN_KV_F16 ? 2 : 1; }
static inline size_t sn_kv_tile_bytes(sn_kv_dtype dtype, int head_dim) {
    return SN_LANES * ((size_t)head_dim * sn_kv_element(dtype) + (dtype == SN_KV_Q8 ? 2 * sn_kv_scales(head_dim) : 0));
}
static inline size_t sn_kv_value_bytes(sn_kv_dtype dtype, int head_dim) {
    size_t width = ((size_t)head_dim + SN_LANES - 1) / SN_LANES * SN_LANES;
    return width * sn_kv_element(dtype) + (dtype == SN_KV_Q8 ? 2 * sn_kv_scales(head_dim) : 0);
}
size_t sn_cpu_kv_page_bytes(const sn_device *d, const sn_kv_shape *shape);
sn_status sn_cpu_kv_store(sn_device *d, int block, const float *k, const float *v, sn_err *err);
sn_status sn_cpu_kv_read(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                         float *k, float *v, sn_err *err);
sn_status sn_cpu_kv_write(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                          const float *k, const float *v, sn_err *err);
sn_status sn_cpu_attention(sn_device *d, const sn_attention *how, const float *q, float *out, sn_err *err);

/* grad.c */
sn_status sn_cpu_linear_grad(sn_device *d, int n, const float *dy, const sn_weight *weight, bool grow, float *dx,
                             sn_err *err);
sn_status sn_cpu_outer_grad(sn_device *d, int n, int rows, int cols, const float *dy, const float *x, float *dw,
                            sn_err *err);
sn_status sn_cpu_rms_norm_grad(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                               const float *dy, bool grow, float *dx, sn_err *err);
sn_status sn_cpu_layer_norm_grad(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                 const float *dy, bool grow, float *dx, sn_err *err);
sn_status sn_cpu_activate_grad(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up,
                               const float *dy, float *dgate, float *dup, sn_err *err);
sn_status sn_cpu_attention_grad(sn_device *d, const sn_attention_grad *grad, sn_err *err);

/* A tile of dx = dy . weight, or dx growing by it, of n rows: columns 64 * item on. sn_cpu_grad_scratch comes before: for each
 * worker so many floats, of SN_CPU_GRAD_TILE here. */
typedef struct sn_cpu_linear_grad_job {
    struct sn_cpu *cpu;
    sn_cpu_weight weight;
    size_t n;
    const float *dy;
    float *dx;
    bool grow;
} sn_cpu_linear_grad_job;
enum { SN_CPU_GRAD_COLS = 64, SN_CPU_GRAD_TILE = SN_CPU_GRAD_COLS * 4 * SN_LANES };
void sn_cpu_linear_grad_columns(const sn_cpu_linear_grad_job *job, size_t item, int worker);
sn_status sn_cpu_grad_scratch(struct sn_cpu *cpu, size_t floats, sn_err *err) SN_MUST_USE;

/* experts.c */
sn_status sn_cpu_route(sn_device *d, int n, int n_experts, int k, bool over_all, const float *logits, int32_t *ids,
                       float *weights, sn_err *err);
sn_status sn_cpu_linear_routed(sn_device *d, const sn_choice *choice, bool each, const float *x, int n_routed,
                               const sn_routed *routed, sn_err *err);
sn_status sn_cpu_combine(sn_device *d, const sn_choice *choice, int width, const float *x, float *y, sn_err *err);
sn_status sn_cpu_linear_routed_grad(sn_device *d, const sn_choice *choice, bool each, const float *dy,
                                    const sn_experts *experts, bool grow, float *dx, sn_err *err);
sn_status sn_cpu_combine_grad(sn_device *d, const sn_choice *choice, int width, const float *x, const float *dy, float *dx,
                              float *dweights, sn_err *err);
sn_status sn_cpu_route_grad(sn_device *d, const sn_choice *choice, bool over_all, const float *logits,
                            const float *dweights, float *dlogits, sn_err *err);
/* What linear_routed works in: room for limits.rows rows at a time. SN_REFUSED when that is too much. */
sn_status sn_cpu_experts_prepare(struct sn_cpu *cpu, const sn_device_limits *limits, sn_err *err) SN_MUST_USE;

typedef struct sn_cpu {
    sn_device base;
    const sn_cpu_kernels *kernels;
    sn_pool *pool;
    sn_pass pass; /* the present one; n_sequences 0 outside */
    sn_device_limits limits;
    sn_xblock *xq; /* limits.rows rows of quantised activations */
    size_t xq_bytes;
    float *scores; /* for each worker SN_SCORE_ROWS rows of scores_room */
    size_t scores_bytes, scores_room;
    float *sums; /* for each worker SN_SCORE_ROWS */
    size_t sums_bytes;
    float *grad; /* for each worker what a gradient needs; grows when it is asked for more */
    size_t grad_bytes;
    void *mixture; /* experts.c: what a mixture's forward works in; 0 bytes until one is prepared for */
    size_t mixture_bytes;
    void *mixture_grad; /* and its gradient; grows */
    size_t mixture_grad_bytes;
    char description[64];
} sn_cpu;

#endif
