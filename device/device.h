/* A device: memory, an ordered queue of work, and the operations of a transformer block. Backends: cpu (cpu/); the table
 * below is what another one implements, whole: no entry is optional, and one conformance suite runs over all of them with
 * the plain-C CPU kernels as the reference.
 *
 * Activations are float32 in the device's memory, row-major, rows contiguous. Pointers called `device` point into memory of
 * this device (on the CPU that is plain memory), `host` ones into plain memory. A device belongs to one thread: the one
 * that calls it. Operations are queued in order and may return before they are done; finish waits, download too.
 *
 * On the CPU every result is the same bits for the same row of input, whatever the number of rows or sequences in the
 * call, the threads, and the instruction set: see cpu/kernels.inc.c for how. */
#ifndef SN_DEVICE_DEVICE_H
#define SN_DEVICE_DEVICE_H

#include "base/activation.h"
#include "base/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum sn_device_kind { SN_DEVICE_CPU, SN_DEVICE_CUDA, SN_DEVICE_XPU } sn_device_kind;

/* A device's name, made canonical once at the edge; below, nothing compares strings. "CUDA" is cuda:0; "gpu", "gpu:1", "0"
 * and "1" are the accelerator of that number: of kind cuda where there is one, else xpu. */
typedef struct sn_device_id {
    sn_device_kind kind;
    int ordinal;
} sn_device_id;

/* SN_REFUSED, saying what there is, when the name means nothing or the device is not on this machine. */
sn_status sn_device_id_parse(const char *name, sn_device_id *out, sn_err *err) SN_MUST_USE;
/* Likewise, among the n devices of a list instead of the machine's. */
sn_status sn_device_id_among(const char *name, const sn_device_id *there, size_t n, sn_device_id *out,
                             sn_err *err) SN_MUST_USE;
static inline bool sn_device_same(sn_device_id a, sn_device_id b) { return a.kind == b.kind && a.ordinal == b.ordinal; }
char *sn_device_id_name(sn_device_id id, char out[32]); /* "cpu", "cuda:0"; returns out */

/* A matrix of weights in the device's own layout. A plain value: who placed the bytes at `device` owns them. */
typedef struct sn_weight {
    sn_dtype dtype;
    size_t rows, cols;
    size_t bytes;       /* that it takes of the device's memory: weight_size */
    const void *device; /* aligned to 64 bytes */
} sn_weight;

/* y (n, weight->rows) = x (n, weight->cols) . weight^T + bias. */
typedef struct sn_linear {
    const sn_weight *weight;
    const float *bias; /* device, (rows), or NULL */
    float *y;          /* device */
    bool exact;        /* what comes of y chooses experts: x keeps 16 bits at least, where many rows might be rounded to fewer */
} sn_linear;

/* Matrices of one type and shape, of which each row of an input goes through a few (a mixture of experts, Shazeer et al.
 * 2017). Expert e lies e * stride bytes behind `first`, which is that of expert 0. */
typedef struct sn_experts {
    sn_weight first;
    size_t stride; /* bytes: a multiple of 64, first.bytes at least */
    int n;
} sn_experts;

enum { SN_EXPERTS_MAX = 1024, SN_EXPERTS_USED_MAX = 64 };

/* Which rows go through which experts, and what each counts: made by route. */
typedef struct sn_choice {
    int n, n_experts, k;  /* rows; experts that there are; experts of a row, no two the same */
    const int32_t *ids;   /* device, (n, k) */
    const float *weights; /* device, (n, k) */
} sn_choice;

/* y (n, k, rows of an expert) of the experts that were chosen. */
typedef struct sn_routed {
    const sn_experts *experts;
    const float *bias; /* device, (experts, rows of one), or NULL */
    float *y;          /* device */
} sn_routed;

/* One rotated head: pairs (2i, 2i+1) or (i, i + dim/2); same meaning as the model's sn_rope_style. */
typedef struct sn_rope {
    bool halves;
    int dim;              /* rotated dimensions, even, <= head_dim; the others stay */
    const float *cos_sin; /* device, (tokens, dim/2, 2) */
} sn_rope;

/* What keys and values are kept as. F16: rounded to the nearest half, at most 65504. Q8: each 32 elements of a head's key or
 * value (the last ones may be fewer) as integers up to 127 times a bfloat16. Both are read back exactly, and what was read back
 * is kept again as the same bytes; attention is computed in float32 on what is read back. */
typedef enum sn_kv_dtype { SN_KV_F32, SN_KV_F16, SN_KV_Q8, SN_KV_DTYPE_COUNT } sn_kv_dtype;
sn_status sn_kv_dtype_parse(const char *name, sn_kv_dtype *out, sn_err *err) SN_MUST_USE; /* "f32", "f16", "q8" */
const char *sn_kv_dtype_name(sn_kv_dtype dtype);

/* The past of a session on this device lies in pages of `page_tokens` positions, each holding keys and values of all
 * n_blocks blocks in the backend's own layout (kv_page_bytes of it). Position p lies in page p / page_tokens. */
typedef struct sn_kv_shape {
    int n_blocks, n_kv_heads, head_dim, page_tokens; /* page_tokens: a multiple of 16 */
    sn_kv_dtype dtype;                               /* one that the device has in kv_dtypes */
} sn_kv_shape;

/* The rows of one session in a pass: rows [first_row, first_row + n_rows) are its positions [position, position + n_rows). */
typedef struct sn_sequence {
    void *const *pages; /* host array of device addresses, enough for position + n_rows */
    int position, first_row, n_rows;
} sn_sequence;

/* One pass over some blocks: whose rows go through. Told once (pass_begin), used by kv_store and attention of every block. */
typedef struct sn_pass {
    const sn_kv_shape *shape;
    int n_rows, n_sequences;
    const sn_sequence *sequences; /* host; must stay until pass_end */
    /* Names the operations that follow, with all their pointers: two passes of equal `graph` and equal n_rows and
     * n_sequences issue the same calls. A device may then record them once and run the record. 0: never recorded. */
    uint64_t graph;
} sn_pass;

/* A copy to the device that goes on beside the queue. */
typedef uint64_t sn_ticket;

/* What will be asked of a device at most, told before the first operation so that none of them allocates. */
typedef struct sn_device_limits {
    int rows;    /* of one call */
    int width;   /* elements of a row of any input or output */
    int context; /* positions attention looks back on */
    int experts, experts_used; /* of a mixture, and of them for one row; 0: there is none */
} sn_device_limits;

/* Attention over the past of one block. */
typedef struct sn_attention {
    int block, n_heads; /* n_heads: of the queries, a multiple of n_kv_heads (GQA) */
    int window;         /* only the last so many positions, a row's own among them, are looked at; 0: all */
    float scale;
    const float *slopes; /* device, (n_heads), or NULL. A key that lies n positions back scores n times its head's slope less
                          * (ALiBi: Press et al. 2021) */
    const float *sinks; /* device, (n_heads), or NULL: what a head could look at besides, a score of which nothing comes. It takes
                         * its share of the softmax (Xiao et al. 2023; learned: gpt-oss, 2025) */
} sn_attention;

/* One sequence's attention, to be gone through backwards: rows 0..n-1 at positions 0..n-1, as attention saw them (q and k
 * rotated). All on the device. */
typedef struct sn_attention_grad {
    int n, n_heads, n_kv_heads, head_dim;
    int window;  /* this, scale, slopes and sinks as of attention */
    float scale;
    const float *slopes, *sinks;
    const float *q, *dout;   /* (n, n_heads, head_dim); dout: gradient of attention's result */
    const float *k, *v;      /* (n, n_kv_heads, head_dim) */
    float *dq, *dk, *dv;     /* shaped like q, k, v; overwritten */
} sn_attention_grad;

typedef struct sn_device sn_device;

typedef struct sn_device_ops {
    /* -- memory. alloc: zeroed, aligned to 64 bytes; SN_STOP when there is none. free: NULL-safe, `bytes` as in alloc. */
    sn_status (*alloc)(sn_device *d, size_t bytes, void **device, sn_err *err);
    void (*free)(sn_device *d, void *device, size_t bytes);
    /* Whether the bytes lie in memory that alloc of this device gave: for assertions, once per pass. The CPU's memory is
     * the host's, all of it: there every address but NULL is its own. */
    bool (*owns)(const sn_device *d, const void *device, size_t bytes);
    /* The host memory may be changed as soon as these return; download waits for all work queued before it. */
    sn_status (*upload)(sn_device *d, void *device, const void *host, size_t bytes, sn_err *err);
    sn_status (*download)(sn_device *d, void *host, const void *device, size_t bytes, sn_err *err);
    /* Waits until the queue is empty. This and every other wait ends after device->timeout_ms with SN_STOP and a sentence
     * that names the device: it did not answer, or is lost. After SN_STOP every call fails at once with the same sentence;
     * only free and close still work. */
    sn_status (*finish)(sn_device *d, sn_err *err);
    /* Makes room for the largest calls that will come. May be called again with larger limits. */
    sn_status (*prepare)(sn_device *d, const sn_device_limits *limits, sn_err *err);

    /* -- memory of the host that the device copies from at full speed (pinned). Free with the same bytes. */
    sn_status (*host_alloc)(sn_device *d, size_t bytes, void **host, sn_err *err);
    void (*host_free)(sn_device *d, void *host, size_t bytes);
    /* Begins a copy to the device as soon as all work queued so far is done, beside the work queued after it. The host
     * memory (of host_alloc) must stay as it is until copy_wait, or finish. */
    sn_status (*copy_begin)(sn_device *d, void *device, const void *host, size_t bytes, sn_ticket *ticket, sn_err *err);
    /* Work queued from now on begins after that copy is done. Does not wait itself. */
    sn_status (*copy_join)(sn_device *d, sn_ticket ticket, sn_err *err);
    /* Waits until that copy is done: then its host memory may be changed. */
    sn_status (*copy_wait)(sn_device *d, sn_ticket ticket, sn_err *err);

    /* -- weights. Bytes of the device's layout of such a matrix; SN_REFUSED for a type that it cannot use. */
    sn_status (*weight_size)(const sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t *bytes, sn_err *err);
    /* Brings rows x cols elements of `dtype`, as in the file, into the device's layout in host memory (`image`, weight_size
     * bytes, aligned to 64), ready to be copied to the device as it is. Where device->host_visible, image may be the
     * device's memory itself. */
    sn_status (*weight_pack)(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *image,
                             sn_err *err);

    /* -- a pass. *recorded (out): the device will run a record of this pass by itself at pass_end, and the caller issues no
     * operations between the two. What a record reads from fixed addresses (rows, rope table) is uploaded before. */
    sn_status (*pass_begin)(sn_device *d, const sn_pass *pass, bool *recorded, sn_err *err);
    sn_status (*pass_end)(sn_device *d, sn_err *err);

    /* -- mathematics. y[i] = x . w[i]^T + bias[i] for several weights of equal cols over the same x (n, cols). */
    sn_status (*linear)(sn_device *d, int n, const float *x, int n_linears, const sn_linear *linears, sn_err *err);
    /* y (n, width) = x / sqrt(mean(x^2) + eps) * weight (width). y may be x. Zhang & Sennrich 2019. */
    sn_status (*rms_norm)(sn_device *d, int n, int width, const float *x, const float *weight, float eps, float *y,
                          sn_err *err);
    /* y (n, width) = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias. bias may be NULL, y may be x. Ba et al. 2016. */
    sn_status (*layer_norm)(sn_device *d, int n, int width, const float *x, const float *weight, const float *bias, float eps,
                            float *y, sn_err *err);
    /* x (n, n_heads, head_dim) is rotated in place. Su et al. 2021. */
    sn_status (*rope)(sn_device *d, int n, int n_heads, int head_dim, float *x, const sn_rope *rope, sn_err *err);
    /* Stores k and v (n_rows, n_kv_heads, head_dim) of the pass at its sequences' positions of block `block`. */
    sn_status (*kv_store)(sn_device *d, int block, const float *k, const float *v, sn_err *err);
    /* Reads positions [position, position + n) of a past back, host, (n, n_kv_heads, head_dim) each: export. And puts them
     * there: import. Outside of passes; both wait. */
    sn_status (*kv_read)(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                         float *k, float *v, sn_err *err);
    sn_status (*kv_write)(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                          const float *k, const float *v, sn_err *err);
    /* out (n_rows, n_heads, head_dim) = softmax(q . K^T * scale) . V for each row of the pass over the positions of its
     * sequence up to its own, stored before. */
    sn_status (*attention)(sn_device *d, const sn_attention *how, const float *q, float *out, sn_err *err);
    /* y (n) = activation(gate) * up (base/activation.h says where it is not just up); without `* up` where that is NULL. y may be
     * gate or up. */
    sn_status (*activate)(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up, float *y, sn_err *err);
    sn_status (*add)(sn_device *d, size_t n, float *y, const float *x, sn_err *err); /* y += x */
    /* y (n, cols) = row ids[i] of the weight, as float32. ids: host, each below weight->rows (checked). */
    sn_status (*gather)(sn_device *d, const sn_weight *weight, int n, const int32_t *ids, float *y, sn_err *err);

    /* -- mixtures of experts. ids and weights (n, k): the k experts of a row's largest logits (n, n_experts), the largest
     * first, of equal ones the lower; and the softmax of these logits, over the chosen ones or over all. Up to
     * SN_EXPERTS_MAX, of these SN_EXPERTS_USED_MAX. A row of NaN gets experts that there are, and weights of NaN. */
    sn_status (*route)(sn_device *d, int n, int n_experts, int k, bool over_all, const float *logits, int32_t *ids,
                       float *weights, sn_err *err);
    /* y (n, k, rows) = x . expert ids[i, j]^T + bias, for several matrices over the same x: (n, cols), one row for all k
     * experts, or where `each` (n, k, cols). The bits of linear, on the CPU. */
    sn_status (*linear_routed)(sn_device *d, const sn_choice *choice, bool each, const float *x, int n_routed,
                               const sn_routed *routed, sn_err *err);
    /* y (n, width) = the sum over j of weights[i, j] * x[i, j], x (n, k, width), in the order of j. */
    sn_status (*combine)(sn_device *d, const sn_choice *choice, int width, const float *x, float *y, sn_err *err);

    /* -- gradients, to train through frozen weights. d... is the gradient of a loss with respect to the tensor of that name.
     * Not during a recorded pass. On the CPU a row's results depend on that row alone, and sums over rows are one chain in
     * their order: the same bits whatever the threads and the instruction set. These may allocate, once for each size. */
    /* dx (n, cols) = dy (n, rows) . weight, or grows by it; the weight as float32, as gather gives it. A quantised linear
     * rounds its inputs: that is not differentiated (straight-through, Bengio et al. 2013). */
    sn_status (*linear_grad)(sn_device *d, int n, const float *dy, const sn_weight *weight, bool grow, float *dx,
                             sn_err *err);
    /* dw (rows, cols) grows by dy^T (rows, n) . x (n, cols). */
    sn_status (*outer_grad)(sn_device *d, int n, int rows, int cols, const float *dy, const float *x, float *dw,
                            sn_err *err);
    /* dx (n, width) = the gradient of rms_norm's x, or grows by it; not growing, dx may be dy. */
    sn_status (*rms_norm_grad)(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                               const float *dy, bool grow, float *dx, sn_err *err);
    /* The same of layer_norm's x. */
    sn_status (*layer_norm_grad)(sn_device *d, int n, int width, const float *x, const float *weight, float eps,
                                 const float *dy, bool grow, float *dx, sn_err *err);
    /* dgate, dup (n) from activate's inputs; dy may be dgate or dup. up NULL: dup is not touched. */
    sn_status (*activate_grad)(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up, const float *dy,
                               float *dgate, float *dup, sn_err *err);
    /* Takes memory for a row of scores, never for a matrix of them (Dao et al. 2022). */
    sn_status (*attention_grad)(sn_device *d, const sn_attention_grad *grad, sn_err *err);

    /* dx (n, cols), what all k experts of a row give, or where `each` (n, k, cols); or grows by it. */
    sn_status (*linear_routed_grad)(sn_device *d, const sn_choice *choice, bool each, const float *dy,
                                    const sn_experts *experts, bool grow, float *dx, sn_err *err);
    /* dx (n, k, width) and dweights (n, k) from combine's x and dy (n, width). dx may be x. */
    sn_status (*combine_grad)(sn_device *d, const sn_choice *choice, int width, const float *x, const float *dy,
                              float *dx, float *dweights, sn_err *err);
    /* dlogits (n, n_experts) from what came out of route; which experts are chosen counts as fixed. dlogits may be
     * logits. */
    sn_status (*route_grad)(sn_device *d, const sn_choice *choice, bool over_all, const float *logits,
                            const float *dweights, float *dlogits, sn_err *err);

    size_t (*kv_page_bytes)(const sn_device *d, const sn_kv_shape *shape);
    void (*close)(sn_device *d);
} sn_device_ops;

struct sn_device {
    const sn_device_ops *ops; /* first member of every backend's device */
    sn_device_id id;
    bool host_visible; /* device memory is host memory */
    unsigned kv_dtypes; /* 1 << sn_kv_dtype of what it can keep beside float32 */
    int timeout_ms;    /* for every wait on it; may be changed */
    uint64_t recorded; /* passes recorded so far: for tests that nothing is recorded twice */
};

typedef struct sn_device_options {
    int threads;     /* cpu: workers, the caller among them; 0: as many as cores */
    const char *isa; /* cpu: "c", "avx2", "avx512", "amx" or NULL: the best this machine has. For tests and reports */
    int timeout_ms;  /* for every wait on the device; 0: 60,000 */
} sn_device_options;

sn_status sn_device_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) SN_MUST_USE;
void sn_device_close(sn_device **device); /* NULL-safe; everything allocated from it must be freed before */

/* What there is on this machine, in the order cpu, cuda:0, cuda:1, ..., xpu:0, ...; for --list-devices and placement. A
 * backend that is not built, or has no driver, lists nothing and says why in the log once. */
typedef struct sn_device_info {
    sn_device_id id;
    char name[64];
    char can[96];                /* "avx512, 2 threads"; "sm_90, graphs" */
    size_t memory, memory_free;  /* bytes */
} sn_device_info;
enum { SN_DEVICES_MAX = 32 };
sn_status sn_devices_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) SN_MUST_USE;
/* Those of one kind only: no other kind's driver is woken. */
sn_status sn_devices_list_kind(sn_device_kind kind, sn_device_info out[SN_DEVICES_MAX], size_t *n,
                               sn_err *err) SN_MUST_USE;

/* A line for people: "cpu: 2 threads, avx512". Static or owned by the device. */
const char *sn_device_describe(const sn_device *device);

#endif
