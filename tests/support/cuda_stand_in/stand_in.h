/* A stand-in for CUDA, for tests on machines without a GPU: the calls of the runtime and of cuBLAS that the backend
 * uses, and its kernels run on the processor, thread by thread (threads.h). The backend's sources are compiled against
 * its headers and linked with it instead of NVIDIA's libraries; nothing of the backend is changed or left out but
 * cublas.c, which finds cuBLAS.
 *
 * It is strict where the real one is, or where a mistake would only show now and then:
 *
 *   - device memory lies at addresses that fault when the host touches them, and freed or foreign memory when a kernel
 *     does; new memory is filled with rubbish; allocations end at the end of a page, so reaching far beyond one faults;
 *   - queued work is done only when somebody asks whether it is done, or (cuda_stand_in_copies_first) copies on a
 *     stream without kernels at once: whoever leaves an order to chance gets the wrong one in one of the two;
 *   - memory of the host that is not pinned is copied when the call is made, pinned memory when the copy is done;
 *   - what may not be called during a capture is refused, and spoils the capture; copies and kernels are recorded with
 *     their arguments as they are;
 *   - giving memory back waits for the device.
 * Faults can be injected.
 *
 * What it does not show: that the kernels as nvcc compiles them do what their source says (it runs that source,
 * compiled by the host's C++ compiler), races between threads that no barrier separates in another order than the ones
 * tried, the GPU's memory model, cuBLAS's own rounding, the driver's real timing, errors and limits, and anything about
 * speed. */
#ifndef SN_TESTS_CUDA_STAND_IN_H
#define SN_TESTS_CUDA_STAND_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDA_STAND_IN_DEVICES = 4 };

/* Back to the beginning: faults healed, settings as below, counters 0. Memory stays. */
void cuda_stand_in_reset(void);
void cuda_stand_in_devices(int n);           /* how many there are: 2. 0: no driver */
void cuda_stand_in_capability(int sm);       /* 90 */
void cuda_stand_in_memory(size_t bytes);     /* of each device: 1 GiB */
void cuda_stand_in_copies_first(bool first); /* false */

/* -- faults; counts begin at the call */
void cuda_stand_in_fail_allocation(int nth); /* the nth cudaMalloc or cudaHostAlloc fails (first: 1), the others not */
void cuda_stand_in_fail_creation(int nth);   /* likewise of streams, events, graphs to launch, handles of cuBLAS */
void cuda_stand_in_spoil_capture(int nth);   /* the nth kernel that is launched during a capture cannot be recorded */
void cuda_stand_in_stall(int ms);            /* the next kernel or copy takes this long, once; or until healed */
void cuda_stand_in_lose(int nth);            /* from its nth kernel or copy on, the device that runs it is lost */
void cuda_stand_in_heal(void);               /* none of these any more */

/* -- counters */
size_t cuda_stand_in_used(void);   /* bytes of device memory, of all devices */
size_t cuda_stand_in_pinned(void); /* bytes of pinned host memory */
int cuda_stand_in_objects(void);   /* streams, events, graphs, graphs to launch, handles of cuBLAS */
uint64_t cuda_stand_in_captures(void);
uint64_t cuda_stand_in_launches(void); /* of kernels by themselves, not from graphs */
uint64_t cuda_stand_in_graph_launches(void);

#ifdef __cplusplus
}
#endif
#endif
