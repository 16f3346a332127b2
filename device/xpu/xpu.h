/* The Intel XPU backend over the Level Zero loader: inside view, shared by the files of this folder.
 *
 * Two immediate command lists: one for the queue of work, one for copies beside it, on a copy engine of its own where
 * the device has one. Commands of a list may overlap, so each operation begins with a barrier (sn_xpu_order); the
 * launches within one operation are independent of each other. Every wait is for an event and has a limit. Passes are
 * never recorded: an immediate list takes a launch in microseconds, and what changes from pass to pass lies in the
 * pass's table.
 *
 * Only what Level Zero 1.3 has is used. Kernels are OpenCL C, compiled to SPIR-V when the project is built: block.cl
 * once, linear.cl once per form of weight; the driver compiles a form when the first weight of it comes. */
#ifndef SN_DEVICE_XPU_XPU_H
#define SN_DEVICE_XPU_XPU_H

#include "device/device.h"
#include "device/holdings.h"

#include <level_zero/ze_api.h>

/* name, number of its group's items in x and y */
#define SN_XPU_KERNELS(X)                                                                                              \
    X(rms_norm, 64, 1)                                                                                                 \
    X(layer_norm, 64, 1)                                                                                               \
    X(rope, 64, 1)                                                                                                     \
    X(activate, 64, 1)                                                                                                 \
    X(add, 64, 1)                                                                                                      \
    X(kv_store, 64, 1)                                                                                                 \
    X(kv_move, 64, 1)                                                                                                  \
    X(attention_row, 64, 1)                                                                                            \
    X(attention_tile, 8, 16)                                                                                           \
    X(route, 64, 1)                                                                                                    \
    X(combine, 64, 1)

typedef enum sn_xpu_kernel {
#define X(name, x, y) SN_XPU_##name,
    SN_XPU_KERNELS(X)
#undef X
        SN_XPU_KERNEL_COUNT
} sn_xpu_kernel;

/* Those of grad.cl, which is compiled when the first gradient is asked for; 64 items a group. */
#define SN_XPU_GRADS(X)                                                                                                \
    X(outer_grad) X(rms_norm_grad) X(layer_norm_grad) X(activate_grad) X(attention_grad_q) X(attention_grad_kv)        \
    X(combine_grad) X(route_grad)

typedef enum sn_xpu_grad {
#define X(name) SN_XPU_GRAD_##name,
    SN_XPU_GRADS(X)
#undef X
        SN_XPU_GRAD_COUNT
} sn_xpu_grad;

/* The forms of weights that linear.cl is compiled for; weights.c says which type takes which. cmake/xpu.cmake holds the
 * same list with the compiler's flags. */
#define SN_XPU_FORMS(X) X(f32) X(f16) X(bf16) X(q4z) X(q4h) X(q4k) X(iq4d) X(iq4k) X(mxfp4) X(q8d) X(q8h) X(q8k) X(q8s)

typedef enum sn_xpu_form {
#define X(name) SN_XPU_FORM_##name,
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
sn_xpu_spirv sn_xpu_spirv_linear(sn_xpu_form form);

typedef struct sn_xpu_linear_kernels {
    ze_module_handle_t module; /* NULL: not loaded yet */
    ze_kernel_handle_t few1, few4, tile, gather, grad, routed, routed_grad;
} sn_xpu_linear_kernels;

enum {
    SN_XPU_COPIES = 32,       /* beside the queue at a time; one more waits for the oldest */
    SN_XPU_STAGING = 4 << 20, /* bytes */
    SN_XPU_PIECE = SN_XPU_STAGING / 4,
    SN_XPU_HEAD_DIM_MAX = 256, /* as in block.cl */
    SN_XPU_TILE_ROWS = 16,
};

typedef struct sn_xpu_copy {
    sn_ticket ticket;
    ze_event_handle_t before, done, joined; /* queue reached it; copied; queue went past its join */
    bool used, is_joined;
} sn_xpu_copy;

/* Device memory that was freed while the device did not answer: it may still write there. */
typedef struct sn_xpu_orphan {
    struct sn_xpu_orphan *next;
    void *memory;
} sn_xpu_orphan;

/* Device memory that grows. */
typedef struct sn_xpu_room {
    void *device;
    size_t bytes;
} sn_xpu_room;

typedef struct sn_xpu {
    sn_device base;
    char name[32], description[192];
    ze_driver_handle_t driver;
    ze_device_handle_t device;
    ze_context_handle_t context;
    size_t allocation_max; /* bytes */
    size_t memory;
    ze_command_list_handle_t queue, copies;
    ze_event_pool_handle_t pool;
    ze_event_handle_t idle; /* for waits */
    bool busy;              /* work was queued since the last wait */
    sn_xpu_copy copy[SN_XPU_COPIES];
    sn_ticket next_ticket;
    ze_module_handle_t module;
    ze_kernel_handle_t kernels[SN_XPU_KERNEL_COUNT];
    ze_module_handle_t grad_module; /* NULL: not loaded yet */
    ze_kernel_handle_t grads[SN_XPU_GRAD_COUNT];
    sn_xpu_linear_kernels linear[SN_XPU_FORM_COUNT];
    uint8_t *staging; /* uploads lie here until they are done */
    size_t staged;    /* bytes of it that may be in use */
    sn_xpu_room ids, table, rows, grad_stats;
    /* -- the pass */
    sn_kv_shape shape;
    int pass_rows, pass_tiles;
    bool pass_decodes;         /* every sequence has at most one row */
    size_t tiles_at, pages_at; /* in table */
    /* -- after SN_STOP */
    bool stopped, hanging;
    char why[sizeof(((sn_err *)0)->text)];
    sn_xpu_orphan *orphans;
    sn_holdings held; /* what alloc gave */
} sn_xpu;

static inline sn_xpu *sn_xpu_of(const sn_device *d) { return (sn_xpu *)d; }

/* -- queue.c. SN_STOP with the device's sentence when it has stopped; else what the result of a call means: anything
 * but success stops the device. `what` was being done: "adding rows". */
sn_status sn_xpu_alive(const sn_xpu *x, sn_err *err);
sn_status sn_xpu_check(sn_xpu *x, ze_result_t result, const char *what, sn_err *err);
const char *sn_xpu_result(ze_result_t result); /* words for it */

sn_status sn_xpu_queue_open(sn_xpu *x, sn_err *err);
void sn_xpu_queue_close(sn_xpu *x);
sn_status sn_xpu_order(sn_xpu *x, sn_err *err); /* what follows begins when all before it is done */
sn_status sn_xpu_wait_event(sn_xpu *x, ze_event_handle_t event, const char *what, sn_err *err);
sn_status sn_xpu_wait(sn_xpu *x, sn_err *err); /* until the queue is empty */
void sn_xpu_settle(sn_xpu *x);                 /* the same after a stop, as far as it goes */
sn_status sn_xpu_finish(sn_device *d, sn_err *err);
sn_status sn_xpu_copy_begin(sn_device *d, void *device, const void *host, size_t bytes, sn_ticket *ticket, sn_err *err);
sn_status sn_xpu_copy_join(sn_device *d, sn_ticket ticket, sn_err *err);
sn_status sn_xpu_copy_wait(sn_device *d, sn_ticket ticket, sn_err *err);

/* A kernel's argument: bytes that are copied, or with data NULL so many bytes of local memory. */
typedef struct sn_xpu_arg {
    size_t bytes;
    const void *data;
} sn_xpu_arg;
#define SN_XPU_ARG(variable) ((sn_xpu_arg){sizeof(variable), &(variable)})
#define SN_XPU_LOCAL(size)   ((sn_xpu_arg){(size), NULL})
/* Queues `groups_x` x `groups_y` groups; nothing when either is 0. */
sn_status sn_xpu_launch(sn_xpu *x, ze_kernel_handle_t kernel, size_t groups_x, size_t groups_y, int n_args,
                        const sn_xpu_arg *args, sn_err *err);

/* -- memory.c */
sn_status sn_xpu_alloc(sn_device *d, size_t bytes, void **device, sn_err *err);
void sn_xpu_free(sn_device *d, void *device, size_t bytes);
bool sn_xpu_owns(const sn_device *d, const void *device, size_t bytes);
sn_status sn_xpu_upload(sn_device *d, void *device, const void *host, size_t bytes, sn_err *err);
sn_status sn_xpu_download(sn_device *d, void *host, const void *device, size_t bytes, sn_err *err);
sn_status sn_xpu_host_alloc(sn_device *d, size_t bytes, void **host, sn_err *err);
void sn_xpu_host_free(sn_device *d, void *host, size_t bytes);
sn_status sn_xpu_reserve(sn_xpu *x, sn_xpu_room *room, size_t bytes,
                         sn_err *err); /* what it held is gone when it grows */
void sn_xpu_release_orphans(sn_xpu *x);

/* -- modules.c */
sn_status sn_xpu_load_block(sn_xpu *x, sn_err *err);
sn_status sn_xpu_load_grad(sn_xpu *x, sn_err *err);
sn_status sn_xpu_load_linear(sn_xpu *x, sn_xpu_form form, sn_err *err);
void sn_xpu_unload(sn_xpu *x);

/* -- weights.c. Where the planes of a weight begin. */
typedef struct sn_xpu_layout {
    sn_xpu_form form;
    size_t steps; /* of 8 elements in a row, padded */
    size_t scales, supers, bytes;
} sn_xpu_layout;
sn_status sn_xpu_layout_of(sn_dtype dtype, size_t rows, size_t cols, sn_xpu_layout *out, sn_err *err);
sn_status sn_xpu_weight_size(const sn_device *d, sn_dtype dtype, size_t rows, size_t cols, size_t *bytes, sn_err *err);
sn_status sn_xpu_weight_pack(sn_device *d, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *image,
                             sn_err *err);

/* -- operations.c */
sn_status sn_xpu_linear(sn_device *d, int n, const float *x, int n_linears, const sn_linear *linears, sn_err *err);
sn_status sn_xpu_rms_norm(sn_device *d, int n, int width, const float *x, const float *weight, float eps, float *y,
                          sn_err *err);
sn_status sn_xpu_rope(sn_device *d, int n, int n_heads, int head_dim, float *x, const sn_rope *rope, sn_err *err);
sn_status sn_xpu_layer_norm(sn_device *d, int n, int width, const float *x, const float *weight, const float *bias, float eps,
                            float *y, sn_err *err);
sn_status sn_xpu_activate(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up, float *y, sn_err *err);
sn_status sn_xpu_add(sn_device *d, size_t n, float *y, const float *x, sn_err *err);
sn_status sn_xpu_gather(sn_device *d, const sn_weight *weight, int n, const int32_t *ids, float *y, sn_err *err);

/* -- grad.c */
sn_status sn_xpu_linear_grad(sn_device *d, int n, const float *dy, const sn_weight *weight, bool grow, float *dx, sn_err *err);
sn_status sn_xpu_outer_grad(sn_device *d, int n, int rows, int cols, const float *dy, const float *x, float *dw, sn_err *err);
sn_status sn_xpu_rms_norm_grad(sn_device *d, int n, int width, const float *x, const float *weight, float eps, const float *dy,
                               bool grow, float *dx, sn_err *err);
sn_status sn_xpu_layer_norm_grad(sn_device *d, int n, int width, const float *x, const float *weight, float eps, const float *dy,
                                 bool grow, float *dx, sn_err *err);
sn_status sn_xpu_activate_grad(sn_device *d, size_t n, sn_activation kind, const float *gate, const float *up, const float *dy,
                               float *dgate, float *dup, sn_err *err);
sn_status sn_xpu_attention_grad(sn_device *d, const sn_attention_grad *grad, sn_err *err);

/* -- experts.c */
sn_status sn_xpu_route(sn_device *d, int n, int n_experts, int k, bool over_all, const float *logits, int32_t *ids,
                       float *weights, sn_err *err);
sn_status sn_xpu_linear_routed(sn_device *d, const sn_choice *choice, bool each, const float *x, int n_routed,
                               const sn_routed *routed, sn_err *err);
sn_status sn_xpu_combine(sn_device *d, const sn_choice *choice, int width, const float *x, float *y, sn_err *err);
sn_status sn_xpu_linear_routed_grad(sn_device *d, const sn_choice *choice, bool each, const float *dy,
                                    const sn_experts *experts, bool grow, float *dx, sn_err *err);
sn_status sn_xpu_combine_grad(sn_device *d, const sn_choice *choice, int width, const float *x, const float *dy, float *dx,
                              float *dweights, sn_err *err);
sn_status sn_xpu_route_grad(sn_device *d, const sn_choice *choice, bool over_all, const float *logits,
                            const float *dweights, float *dlogits, sn_err *err);

/* -- past.c */
size_t sn_xpu_kv_page_bytes(const sn_device *d, const sn_kv_shape *shape);
sn_status sn_xpu_pass_begin(sn_device *d, const sn_pass *pass, bool *recorded, sn_err *err);
sn_status sn_xpu_pass_end(sn_device *d, sn_err *err);
sn_status sn_xpu_kv_store(sn_device *d, int block, const float *k, const float *v, sn_err *err);
sn_status sn_xpu_kv_read(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                         float *k, float *v, sn_err *err);
sn_status sn_xpu_kv_write(sn_device *d, const sn_kv_shape *shape, int block, void *const *pages, int position, int n,
                          const float *k, const float *v, sn_err *err);
sn_status sn_xpu_attention(sn_device *d, const sn_attention *how, const float *q, float *out, sn_err *err);

#endif
