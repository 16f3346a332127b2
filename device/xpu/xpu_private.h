/* Inside of the Intel XPU backend over the Level Zero loader: the state of one open device, and the functions that the
 * files of device/xpu/ call of each other. Private to device/xpu/.
 *
 * Two immediate command lists: one is the queue of work, the other runs concurrent copies, on a copy engine of its own
 * where the device has one. Commands of a list may overlap, so each operation begins with a barrier (sn_xpu_barrier);
 * the launches behind it are independent of each other. Every wait is for an event and has a limit. All functions are
 * called on the device's thread. The operations are those of sn_device_ops (device/device.h), which
 * documents them.
 *
 * Batches are never captured: an immediate list takes a launch within microseconds, and what changes from batch to
 * batch lies in the batch table.
 *
 * Only Level Zero 1.3 is used. Kernels are OpenCL C, compiled to SPIR-V when the project is built: block.cl and grad.cl
 * once, linear.cl once per form of weight, linear_dot.cl and linear_xmx.cl once per quantised form, kv.cl once per type
 * of KV cache; the driver compiles these when the first weight of that form, or the first batch with that cache, comes.
 * A driver that refuses linear_dot.cl or linear_xmx.cl costs only these. */
#ifndef SN_DEVICE_XPU_XPU_PRIVATE_H
#define SN_DEVICE_XPU_XPU_PRIVATE_H

#include "device/allocations.h"
#include "device/backends.h"
#include "device/quant.h"

#include <level_zero/ze_api.h>

/* name, items of a group in x and in y */
#define SN_XPU_KERNELS(X)                                                                                              \
    X(rms_norm, 64, 1)                                                                                                 \
    X(quantise, 64, 1)                                                                                                 \
    X(layer_norm, 64, 1)                                                                                               \
    X(rope, 64, 1)                                                                                                     \
    X(activate, 64, 1)                                                                                                 \
    X(add, 64, 1)                                                                                                      \
    X(scale, 64, 1)                                                                                                    \
    X(clamp_all, 64, 1)                                                                                                \
    X(dot_rows, 64, 1)                                                                                                 \
    X(moe_gate, 64, 1)                                                                                                 \
    X(moe_group, 128, 1)                                                                                               \
    X(moe_combine, 64, 1)                                                                                              \
    X(index_store, 64, 1)                                                                                              \
    X(index_copy, 64, 1)                                                                                               \
    X(index_scores, 64, 1)                                                                                             \
    X(choose_keys, 64, 1)                                                                                              \
    X(short_conv, 64, 1)                                                                                               \
    X(delta_rule4, 64, 1)                                                                                              \
    X(delta_rule16, 64, 1)                                                                                             \
    X(keyed_delta4, 64, 1)                                                                                             \
    X(keyed_delta16, 64, 1)                                                                                            \
    X(state_space4, 64, 1)                                                                                             \
    X(state_space16, 64, 1)

typedef enum sn_xpu_kernel {
#define X(name, x, y) SN_XPU_##name,
    SN_XPU_KERNELS(X)
#undef X
        SN_XPU_KERNEL_COUNT
} sn_xpu_kernel;

/* The kernels of grad.cl, which is compiled when the first gradient is computed; 64 items per group. */
#define SN_XPU_GRADS(X)                                                                                                \
    X(linear_weight_grad)                                                                                              \
    X(rms_norm_grad)                                                                                                   \
    X(layer_norm_grad) X(activate_grad) X(attention_grad_q) X(attention_grad_kv) X(moe_combine_grad) X(moe_gate_grad)

typedef enum sn_xpu_grad {
#define X(name) SN_XPU_GRAD_##name,
    SN_XPU_GRADS(X)
#undef X
        SN_XPU_GRAD_COUNT
} sn_xpu_grad;

/* The forms of weights that linear.cl is compiled for, by their types, but FLOAT4 for NF4 and FP4; cmake/xpu.cmake has
 * the same list, with the compiler's flags. */
#define SN_XPU_FORMS(X) X(F32) X(F16) X(BF16) X(F8_E4M3) X(F8_E5M2) X(FLOAT4) SN_ALL_QUANT_TYPES(X)

typedef enum sn_xpu_form {
#define X(name, ...) SN_XPU_FORM_##name,
    SN_XPU_FORMS(X)
#undef X
        SN_XPU_FORM_COUNT
} sn_xpu_form;

/* A module's SPIR-V, embedded when the project is built. */
typedef struct sn_xpu_spirv {
    const uint8_t *data;
    size_t bytes;
} sn_xpu_spirv;
sn_xpu_spirv sn_xpu_spirv_block(void);
sn_xpu_spirv sn_xpu_spirv_grad(void);
sn_xpu_spirv sn_xpu_spirv_kv(sn_kv_dtype dtype);
sn_xpu_spirv sn_xpu_spirv_linear(sn_xpu_form form);
sn_xpu_spirv sn_xpu_spirv_dot(sn_xpu_form form);            /* data NULL: of a form that is not quantised */
sn_xpu_spirv sn_xpu_spirv_xmx(sn_xpu_form form, int lanes); /* likewise; lanes: 8 or 16 */

typedef struct sn_xpu_linear_kernels {
    ze_module_handle_t module; /* NULL: not loaded yet */
    ze_kernel_handle_t matvec1, matvec4, matvec8, matmul_tile32, matmul_tile64, get_rows, input_grad, moe_linear1,
        moe_linear8, moe_linear_grad, head_linear;
} sn_xpu_linear_kernels;

/* The kernels of linear_dot.cl for one quantised form. */
typedef struct sn_xpu_dot_kernels {
    ze_module_handle_t module; /* NULL: not loaded yet */
    ze_kernel_handle_t matvec1, matvec4, matvec8, moe1, moe8;
} sn_xpu_dot_kernels;

/* The kernel of linear_xmx.cl for one quantised form. */
typedef struct sn_xpu_xmx_kernels {
    ze_module_handle_t module; /* NULL: not loaded yet */
    ze_kernel_handle_t matmul;
} sn_xpu_xmx_kernels;

/* The kernels of kv.cl for one type of KV cache, compiled when the first batch or copy of that type comes. */
typedef struct sn_xpu_kv_kernels {
    ze_module_handle_t module; /* NULL: not loaded yet */
    ze_kernel_handle_t store, rope_store, copy, attention_row, attention_join, attention_tile;
    ze_kernel_handle_t latent_store, latent_copy, latent_attention;
} sn_xpu_kv_kernels;

enum {
    SN_XPU_COPIES = 32,       /* concurrent copies; one more waits for the oldest */
    SN_XPU_STAGING = 4 << 20, /* bytes */
    SN_XPU_STAGING_CHUNK = SN_XPU_STAGING / 4,
    SN_XPU_HEAD_DIM_MAX = 256, /* as in kv.cl */
    SN_XPU_TILE_ROWS = 16,
    SN_XPU_ROW_HEADS = 4, /* as in kv.cl: heads of a group of attention_row */
};

typedef struct sn_xpu_copy {
    sn_fence fence;
    /* the queue has reached the copy; the copy is done; the queue has passed its join */
    ze_event_handle_t before, done, joined;
    bool used, is_joined;
} sn_xpu_copy;

/* Device memory that was freed while the device did not answer: the device may still write to it. */
typedef struct sn_xpu_orphan {
    struct sn_xpu_orphan *next;
    void *memory;
} sn_xpu_orphan;

/* Device memory of the backend itself that grows. */
typedef struct sn_xpu_buffer {
    void *device;
    size_t bytes;
} sn_xpu_buffer;

/* Rows (n, cols) in 8 bits: quantise_group of formulas.clh. NULL: none. */
typedef struct sn_xpu_rows8 {
    void *q, *scales;
} sn_xpu_rows8;

/* The parts that the contexts of single rows are divided into. */
typedef struct sn_xpu_parts {
    uint32_t n, tokens; /* of a part: a multiple of 64 */
} sn_xpu_parts;

typedef struct sn_xpu {
    sn_device base;
    char name[32], description[192];
    ze_driver_handle_t driver;
    ze_device_handle_t device;
    ze_context_handle_t context;
    size_t memory;
    bool relaxed; /* the driver allocates more than base.allocation_max at once, if it is asked to */
    ze_command_list_handle_t queue, copies;
    ze_event_pool_handle_t pool;
    ze_event_handle_t idle; /* for waits until the queue is empty */
    bool busy;              /* work was queued since the last wait */
    sn_xpu_copy copy[SN_XPU_COPIES];
    sn_fence next_fence;
    ze_module_handle_t module;
    ze_kernel_handle_t kernels[SN_XPU_KERNEL_COUNT];
    ze_module_handle_t grad_module; /* NULL: not loaded yet */
    ze_kernel_handle_t grads[SN_XPU_GRAD_COUNT];
    sn_xpu_linear_kernels linear[SN_XPU_FORM_COUNT];
    bool dp4a; /* the device multiplies and adds four pairs of bytes at once, and the driver compiles that */
    sn_xpu_dot_kernels dots[SN_XPU_FORM_COUNT];
    int xmx_lanes; /* of a subgroup that shares a matrix unit: 8 or 16; 0: no such units, or the driver refuses them */
    sn_xpu_xmx_kernels xmx[SN_XPU_FORM_COUNT];
    sn_xpu_kv_kernels kv[SN_KV_DTYPE_COUNT];
    uint8_t *staging; /* uploads and downloads go through it */
    size_t staged;    /* bytes of it that may be in use */
    sn_xpu_buffer ids, batch_table, kv_staging, partial, rows8, groups, grad_stats, index_scores;
    sn_device_limits limits; /* for which these are prepared */
    /* -- the batch */
    sn_kv_shape shape;
    int batch_rows, batch_tiles, batch_singles; /* tiles of several rows; after them, of one row */
    int longest;                                /* positions that a single row attends to, without a window */
    size_t tiles_at, states_at, pages_at;       /* offsets in batch_table */
    int n_sequences;
    const sn_sequence *sequences; /* the caller's, until batch_end */
    /* -- after SN_STOP */
    bool hung;
    char stop_reason[sizeof(((sn_err *)0)->text)]; /* base.lost points to it */
    sn_xpu_orphan *orphans;
    sn_allocations allocations; /* of alloc */
} sn_xpu;

static inline sn_xpu *sn_xpu_of(const sn_device *d) { return (sn_xpu *)d; }

/* -- queue.c
 *
 * sn_xpu_check_alive: SN_STOP with the device's sentence when it has stopped. sn_xpu_check: also evaluates the result
 * of a call; any error stops the device. `what` names the activity: "adding rows". */
sn_status sn_xpu_check_alive(const sn_xpu *x, sn_err *err);
sn_status sn_xpu_check(sn_xpu *x, ze_result_t result, const char *what, sn_err *err);
const char *sn_xpu_result_text(ze_result_t result); /* the result in words */

sn_status sn_xpu_queue_open(sn_xpu *x, sn_err *err);
void sn_xpu_queue_close(sn_xpu *x);
/* Work queued later starts when all earlier work is done. */
sn_status sn_xpu_barrier(sn_xpu *x, sn_err *err);
sn_status sn_xpu_wait(sn_xpu *x, sn_err *err); /* waits until the queue is empty */
void sn_xpu_wait_stopped(sn_xpu *x);           /* the same after a stop, as far as possible */
SN_OPERATION(finish, sn_xpu_finish);
SN_OPERATION(copy_begin, sn_xpu_copy_begin);
SN_OPERATION(copy_join, sn_xpu_copy_join);
SN_OPERATION(copy_wait, sn_xpu_copy_wait);

/* An argument of a kernel: bytes that are copied; or, with data NULL, that many bytes of local memory. */
typedef struct sn_xpu_arg {
    size_t bytes;
    const void *data;
} sn_xpu_arg;
#define SN_XPU_ARG(variable) ((sn_xpu_arg){sizeof(variable), &(variable)})
#define SN_XPU_LOCAL(size)   ((sn_xpu_arg){(size), NULL})
/* Queues `groups_x` x `groups_y` groups; no launch when either is 0. */
sn_status sn_xpu_launch(sn_xpu *x, ze_kernel_handle_t kernel, size_t groups_x, size_t groups_y, int n_args,
                        const sn_xpu_arg *args, sn_err *err);

/* -- sysman.c
 *
 * *bytes: the device's memory that is free now. False: the driver does not tell, as Intel's without rights to it, or
 * loaders before zesInit unless ZES_ENABLE_SYSMAN=1 is in the environment. */
bool sn_xpu_free_memory(ze_device_handle_t device, size_t *bytes);

/* -- memory.c */
SN_OPERATION(alloc, sn_xpu_alloc);
SN_OPERATION(free, sn_xpu_free);
SN_OPERATION(owns, sn_xpu_owns);
SN_OPERATION(upload, sn_xpu_upload);
SN_OPERATION(download, sn_xpu_download);
SN_OPERATION(host_alloc, sn_xpu_host_alloc);
SN_OPERATION(host_free, sn_xpu_host_free);
size_t sn_xpu_buffer_bytes(size_t bytes); /* that a buffer of at least `bytes` takes */
/* Makes the buffer at least `bytes`; its old contents are lost when it grows. After a failure it is as before. */
sn_status sn_xpu_buffer_reserve(sn_xpu *x, sn_xpu_buffer *buffer, size_t bytes, sn_err *err);
void sn_xpu_release_orphans(sn_xpu *x);

/* -- kv.c: bytes of batch_table and kv_staging for calls within these limits */
size_t sn_xpu_table_bytes(const sn_device_limits *limits);
size_t sn_xpu_kv_staging_bytes(const sn_device_limits *limits);
size_t sn_xpu_partial_bytes(const sn_device_limits *limits); /* and of `partial` */

/* -- modules.c */
sn_status sn_xpu_load_block(sn_xpu *x, sn_err *err);
sn_status sn_xpu_load_grad(sn_xpu *x, sn_err *err);
sn_status sn_xpu_load_kv(sn_xpu *x, sn_kv_dtype dtype, sn_err *err);
sn_status sn_xpu_load_linear(sn_xpu *x, sn_xpu_form form, sn_err *err);
/* Nothing where there is no such kernel; clears dp4a where the driver does not compile it. */
sn_status sn_xpu_load_dot(sn_xpu *x, sn_xpu_form form, sn_err *err);
/* The same for xmx_lanes, which becomes 0. */
sn_status sn_xpu_load_xmx(sn_xpu *x, sn_xpu_form form, sn_err *err);
void sn_xpu_unload(sn_xpu *x);

/* -- weights.c. Offsets of the planes of a weight, and its size. */
typedef struct sn_xpu_layout {
    sn_xpu_form form;
    size_t steps; /* of 8 elements in a row, padded */
    size_t highs, scales, supers, bytes;
} sn_xpu_layout;
sn_status sn_xpu_layout_of(sn_dtype dtype, size_t rows, size_t cols, sn_xpu_layout *out, sn_err *err);
SN_OPERATION(weight_size, sn_xpu_weight_size);
SN_OPERATION(weight_pack, sn_xpu_weight_pack);

/* -- linear.c */
enum { SN_XPU_MATRICES = 3, SN_XPU_OUTPUTS = 4 }; /* of a launch; of a group of matvec: as in planes.clh */

/* What a kernel wants to know of a matrix: MATRIX of planes.clh. */
typedef struct sn_xpu_matrix {
    const void *weight;
    uint64_t at[4]; /* offsets of highs, scales and supers; rows */
    const float *bias;
    float *y;
} sn_xpu_matrix;
/* Writes the arguments of SN_XPU_MATRICES matrices; returns how many arguments these are. */
int sn_xpu_matrix_args(const sn_xpu_matrix *matrices, sn_xpu_arg *args);
size_t sn_xpu_rows8_bytes(const sn_xpu *x,
                          const sn_device_limits *limits);            /* of rows8, for calls within these limits */
sn_xpu_rows8 sn_xpu_rows8_of(const sn_xpu *x, size_t n, size_t cols); /* where rows8_make has written them */
/* Makes room for them. */
sn_status sn_xpu_rows8_reserve(sn_xpu *x, size_t n, size_t cols, sn_xpu_rows8 *rows, sn_err *err);
/* Writes the n rows of x to rows8, behind a barrier. */
sn_status sn_xpu_rows8_make(sn_xpu *x, int n, size_t cols, const float *in, sn_err *err);
SN_OPERATION(linear, sn_xpu_linear);
SN_OPERATION(norm_linear, sn_xpu_norm_linear);
SN_OPERATION(attention_linear, sn_xpu_attention_linear);
SN_OPERATION(activate_linear, sn_xpu_activate_linear);

/* -- operations.c */
/* rms_norm of norm->x, to which it may add first, and activate; the result is written to `rows` besides. */
sn_status sn_xpu_launch_norm(sn_xpu *x, int n, const sn_norm *norm, sn_xpu_rows8 rows, sn_err *err);
sn_status sn_xpu_launch_activate(sn_xpu *x, size_t n, const sn_gated *gated, sn_xpu_rows8 rows, sn_err *err);
SN_OPERATION(rms_norm, sn_xpu_rms_norm);
SN_OPERATION(group_norm, sn_xpu_group_norm);
SN_OPERATION(rope, sn_xpu_rope);
SN_OPERATION(layer_norm, sn_xpu_layer_norm);
SN_OPERATION(activate, sn_xpu_activate);
SN_OPERATION(add, sn_xpu_add);
SN_OPERATION(scale, sn_xpu_scale);
SN_OPERATION(clamp, sn_xpu_clamp);
SN_OPERATION(dot_rows, sn_xpu_dot_rows);
SN_OPERATION(get_rows, sn_xpu_get_rows);

/* -- grad.c */
SN_OPERATION(linear_input_grad, sn_xpu_linear_input_grad);
SN_OPERATION(linear_weight_grad, sn_xpu_linear_weight_grad);
SN_OPERATION(rms_norm_grad, sn_xpu_rms_norm_grad);
SN_OPERATION(layer_norm_grad, sn_xpu_layer_norm_grad);
SN_OPERATION(activate_grad, sn_xpu_activate_grad);
SN_OPERATION(attention_grad, sn_xpu_attention_grad);

/* -- experts.c */
size_t sn_xpu_groups_bytes(const sn_device_limits *limits); /* of `groups`, for calls within these limits */
SN_OPERATION(moe_gate, sn_xpu_moe_gate);
SN_OPERATION(moe_linear, sn_xpu_moe_linear);
SN_OPERATION(activate_moe_linear, sn_xpu_activate_moe_linear);
SN_OPERATION(moe_combine, sn_xpu_moe_combine);
SN_OPERATION(moe_linear_grad, sn_xpu_moe_linear_grad);
SN_OPERATION(moe_combine_grad, sn_xpu_moe_combine_grad);
SN_OPERATION(moe_gate_grad, sn_xpu_moe_gate_grad);

/* -- kv.c */
SN_OPERATION(kv_page_bytes, sn_xpu_kv_page_bytes);
SN_OPERATION(batch_begin, sn_xpu_batch_begin);
SN_OPERATION(batch_end, sn_xpu_batch_end);
SN_OPERATION(kv_store, sn_xpu_kv_store);
SN_OPERATION(rope_store, sn_xpu_rope_store);
SN_OPERATION(kv_read, sn_xpu_kv_read);
SN_OPERATION(kv_write, sn_xpu_kv_write);
SN_OPERATION(attention, sn_xpu_attention);
/* Whether attention of the open batch can write its rows in 8 bits besides. */
bool sn_xpu_attends_in_8_bits(const sn_xpu *x, int block);
/* attention, which writes its rows to rows8 besides. */
sn_status sn_xpu_attend(sn_xpu *x, const sn_attention *params, const float *q, float *out, sn_xpu_rows8 rows8,
                        sn_err *err);
/* Divides the contexts of single rows; `groups`: of all rows with one part each. */
sn_xpu_parts sn_xpu_divide_context(const sn_xpu *x, int32_t window, size_t groups);
/* Bytes of x->partial for n results of this many elements. */
size_t sn_xpu_slot_bytes(size_t n, int elements);
/* Joins the parts of single rows, with results of `elements` elements. */
sn_status sn_xpu_join_parts(sn_xpu *x, const sn_attention *params, int elements, sn_xpu_parts parts, float *out,
                            sn_xpu_rows8 rows8, sn_err *err);

/* -- latent.c */
sn_status sn_xpu_latent_attention(sn_xpu *x, const sn_attention *params, const float *q, float *out, sn_err *err);
SN_OPERATION(head_linear, sn_xpu_head_linear);

/* -- chosen.c */
uint64_t sn_xpu_index_at(const sn_kv_shape *shape, int block); /* kv.c: where its index keys begin in a page */
size_t sn_xpu_index_scores_bytes(const sn_device_limits *limits);
SN_OPERATION(choose_keys, sn_xpu_choose_keys);
/* kv_store of index keys. */
sn_status sn_xpu_index_store(sn_xpu *x, int block, const float *keys, sn_err *err);
/* Copies n positions between pages, of which `pages` has the addresses, and keys (n, head_dim): both device. */
typedef struct sn_xpu_index_copy_of {
    const sn_kv_shape *shape; /* of the block */
    uint64_t at;              /* where it begins in a page */
    int position, n;
    bool store; /* into the pages */
    const uint8_t *pages;
    float *keys;
} sn_xpu_index_copy_of;
sn_status sn_xpu_index_copy(sn_xpu *x, const sn_xpu_index_copy_of *copy, sn_err *err);

/* -- delta.c */
SN_OPERATION(short_conv, sn_xpu_short_conv);
SN_OPERATION(delta_rule, sn_xpu_delta_rule);

#endif
