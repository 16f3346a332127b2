/* Spans over different devices: the CPU, an emulated Intel XPU (the real Level Zero loader, with a driver over
 * OpenCL) and an emulated CUDA device (a stand-in of the runtime that runs the source of the kernels). Device memory
 * of both faults when the host touches it, so that any access that bypasses the device guard crashes here.
 * tests/support/ says what emulation does not show. A failure here ends the process. */
#ifndef SN_TESTS_EMULATED_SPAN_H
#define SN_TESTS_EMULATED_SPAN_H

#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"
#endif

#include "blocks/span.h"

#include <criterion/criterion.h>
#include <stdio.h>

enum { CPU, CUDA, XPU, N_DEVICES };

extern sn_device *emulated_devices[N_DEVICES];
extern size_t emulated_expert_memory; /* of the plans that are made; 0: what experts like */
extern sn_kv_dtype emulated_kv_dtype; /* of the KV caches that are made */

void emulated_devices_open(void);
void emulated_devices_close(void);

/* For .init of a suite; its .fini is emulated_devices_close. */
static inline void emulated_devices_begin(void) {
#ifndef SN_ZE_TEST_DRIVER
    printf("skipped: emulated devices need libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
#endif
    emulated_devices_open();
}

/* A span with a device map, its KV cache, one session. */
typedef struct emulated_span {
    sn_model *model;
    sn_offload_store *store;
    char *folder;
    sn_span *span;
    sn_kv_pool *pool;
    sn_kv_cache *kv;
    const sn_hparams *hp;
} emulated_span;

sn_status emulated_span_try_open(emulated_span *w, const char *path, const char *map, const char *preload,
                                 sn_err *err) SN_MUST_USE;
emulated_span emulated_span_open(const char *path, const char *map, const char *preload);
void emulated_span_close(emulated_span *w);

/* A step of n rows from `in` to `out` through blocks [first, end). */
sn_status step_blocks(emulated_span *w, int first, int end, int n, const float *in, float *out,
                      sn_err *err) SN_MUST_USE;
/* n rows in steps of `chunk`, in place. */
void run_rows(emulated_span *w, float *rows, int n, int chunk);
float *make_rows(int n, int n_embd); /* the caller frees them */
/* The largest difference of a and b, as a share of the largest magnitude in b. */
double largest_distance(const float *a, const float *b, size_t n);

#endif
