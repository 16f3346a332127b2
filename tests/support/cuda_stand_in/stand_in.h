/* A stand-in for CUDA, for tests on machines without a GPU: the calls of the runtime and of cuBLAS that the backend
 * uses, and the backend's kernels, which run on the processor thread by thread (threads.h). The backend's sources
 * are compiled against its headers and linked with it instead of NVIDIA's libraries; they are unchanged and complete
 * except for cublas.c, which finds cuBLAS.
 *
 * It is strict where CUDA is strict, and where a mistake would show only sometimes:
 * - Device memory lies at addresses that fault when the host touches them, and freed or foreign memory faults when a
 *   kernel touches it. New memory is filled with rubbish. Allocations end at the end of a page, so that an access
 *   far beyond the end faults.
 * - Queued work is executed only when the program asks whether it is done, or (cuda_stand_in_copies_first) copies on
 *   a stream without kernels at once: an order that the program leaves to chance is wrong in one of the two cases.
 * - Host memory that is not pinned is copied when the call is made, pinned memory when the copy is executed.
 * - A call that is not allowed during a capture is refused and spoils the capture. Copies and kernels are recorded
 *   with their arguments.
 * - Freeing memory waits for the device.
 * - Faults can be injected.
 *
 * It does not show: that the kernels as nvcc compiles them do what their source says (it runs that source, compiled
 * by the host's C++ compiler); races between threads that no barrier separates, in orders other than the ones tried;
 * the GPU's memory model; cuBLAS's own rounding; timing, errors and limits of the real driver; anything about speed. */
#ifndef SN_TESTS_CUDA_STAND_IN_H
#define SN_TESTS_CUDA_STAND_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDA_STAND_IN_DEVICES = 4 };

/* Resets everything but memory: faults healed, settings to the defaults below, counters to 0. */
void cuda_stand_in_reset(void);
void cuda_stand_in_devices(int n);         /* number of devices: 2. 0: no driver */
void cuda_stand_in_capability(int sm);     /* compute capability: 90 */
void cuda_stand_in_multiprocessors(int n); /* 20 */
/* bytes of each device beside those that the driver takes by itself (a context, once a device is used, and cuBLAS):
 * 1 GiB, in programs those of the environment variable CUDA_STAND_IN_MEMORY */
void cuda_stand_in_memory(size_t bytes);
/* The driver's version as cudaDriverGetVersion tells it: 13000. An older one than the runtime's refuses. */
void cuda_stand_in_driver(int version);
/* A device that cannot be used: it cannot be asked for its properties, or (answers) no context can be made on it. -1:
 * none, as at first */
void cuda_stand_in_break(int device, bool answers);
void cuda_stand_in_copies_first(bool first); /* false */

/* -- faults; counts begin at the call. In programs: while the file exists that the environment variable
 * CUDA_STAND_IN_STALL names, no kernel and no copy ends. */
void cuda_stand_in_fail_allocation(int nth); /* the nth cudaMalloc or cudaHostAlloc fails (first: 1), no other */
void cuda_stand_in_fail_creation(int nth);   /* likewise for streams, events, executable graphs, cuBLAS handles */
void cuda_stand_in_spoil_capture(int nth);   /* the nth kernel launch during a capture cannot be recorded */
void cuda_stand_in_capture_error(int error); /* with this error: 900 */
/* cuBLASLt: whether it is missing, or its heuristic knows no algorithm; how often that was asked, and products. */
void cuda_stand_in_lt(bool is_missing, bool is_clueless);
int cuda_stand_in_lt_asked(void);
int cuda_stand_in_lt_multiplied(void);
void cuda_stand_in_fail_product(int nth); /* the nth product of cuBLAS fails, and spoils a capture */
void cuda_stand_in_stall(int ms);         /* the next kernel or copy takes this long, once; or until healed */
void cuda_stand_in_lose(int nth);         /* from its nth kernel or copy on, the device is lost */
void cuda_stand_in_heal(void);            /* ends all of these */

/* -- counters */
size_t cuda_stand_in_used(void);      /* bytes of device memory, of all devices, executable graphs included */
size_t cuda_stand_in_peak(void);      /* the most that one device had in use, since the reset or the next call */
void cuda_stand_in_peak_reset(void);  /* from what is in use now */
size_t cuda_stand_in_pinned(void);    /* bytes of pinned host memory */
uint64_t cuda_stand_in_mallocs(void); /* allocations of device memory so far */
int cuda_stand_in_contexts(void);     /* devices on which there is a context */
int cuda_stand_in_objects(void);      /* streams, events, graphs, executable graphs, cuBLAS handles */
uint64_t cuda_stand_in_atomics(void); /* atomic operations of kernels so far */
/* Products of matrices by warps of kernels so far; cuBLAS does not count. */
typedef enum cuda_number { CUDA_BF16, CUDA_F16, CUDA_TF32, CUDA_NUMBERS } cuda_number;
uint64_t cuda_stand_in_products(cuda_number type);
uint64_t cuda_stand_in_loaded(void); /* bytes of the device's memory that kernels have loaded so far */
uint64_t cuda_stand_in_captures(void);
uint64_t cuda_stand_in_graph_launches(void);
uint64_t cuda_stand_in_kernels(void); /* launches of kernels and products of cuBLAS, those that a graph repeats once */

#ifdef __cplusplus
}
#endif
#endif
