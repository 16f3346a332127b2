/* The stand-in for CUDA sees what kernels do wrong with memory: each mistake ends the program, and the same kernel
 * without it runs to its end. */
#include "tests/support/cuda_stand_in/mistakes.h"
#include "tests/support/cuda_stand_in/stand_in.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <unistd.h>

static void run_kernel(cuda_mistake which, bool make) {
    enum { BYTES = 64 * sizeof(float) };
    cudaStream_t stream;
    void *memory, *around, *host;
    cr_assert_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    cr_assert_eq(cudaMalloc(&memory, BYTES), cudaSuccess);
    cr_assert_eq(cudaMalloc(&around, BYTES), cudaSuccess);
    cr_assert_eq(cudaHostAlloc(&host, BYTES, cudaHostAllocDefault), cudaSuccess);
    cr_assert_eq(cudaMemsetAsync(memory, 0, BYTES, stream), cudaSuccess);
    cr_assert_eq(cuda_mistake_launch(stream, which, make, memory, host), cudaSuccess);
    while (cudaStreamQuery(stream) == cudaErrorNotReady) continue;
    cudaGetLastError();
}

Test(cuda_watch, kernels_without_a_mistake_run) {
    for (int which = 0; which < CUDA_MISTAKES; which++) run_kernel((cuda_mistake)which, false);
}

#define MISTAKE(name, which)                                                                                           \
    Test(cuda_watch, name, .signal = SIGABRT) { run_kernel(which, true); }
MISTAKE(a_load_that_is_not_aligned_is_seen, CUDA_MISTAKE_ALIGNMENT)
MISTAKE(a_store_beyond_an_allocation_is_seen, CUDA_MISTAKE_BEYOND_ALLOCATION)
MISTAKE(a_load_before_an_allocation_is_seen, CUDA_MISTAKE_BEFORE_ALLOCATION)
MISTAKE(shared_memory_that_was_not_asked_for_is_seen, CUDA_MISTAKE_BEYOND_SHARED)
MISTAKE(a_load_that_no_barrier_orders_is_seen, CUDA_MISTAKE_READ_OF_A_STORE)
MISTAKE(a_store_over_what_is_still_read_is_seen, CUDA_MISTAKE_STORE_OVER_A_READ)
MISTAKE(two_stores_to_one_address_are_seen, CUDA_MISTAKE_STORE_OVER_A_STORE)
MISTAKE(a_race_in_a_shared_array_is_seen, CUDA_MISTAKE_IN_AN_ARRAY)
MISTAKE(a_shuffle_is_no_barrier, CUDA_MISTAKE_A_SHUFFLE_ORDERS)
MISTAKE(host_memory_is_not_a_kernels, CUDA_MISTAKE_HOST_MEMORY)
MISTAKE(stores_of_two_blocks_to_one_address_are_seen, CUDA_MISTAKE_OTHERS_MEMORY)
MISTAKE(a_block_that_counts_before_its_stores_is_seen, CUDA_MISTAKE_NO_STORE_FENCE)
MISTAKE(a_block_that_loads_before_others_have_counted_is_seen, CUDA_MISTAKE_NO_LOAD_FENCE)
MISTAKE(a_block_that_waits_for_no_other_is_seen, CUDA_MISTAKE_NO_COUNTER)

/* Also behind an operation that has touched it. The kernel says so without ending the program. */
Test(cuda_watch, the_host_cannot_touch_a_devices_memory) {
    int ends[2];
    cudaStream_t stream;
    void *memory;
    cr_assert_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    cr_assert_eq(cudaMalloc(&memory, 1), cudaSuccess);
    cr_assert_eq(cudaMemsetAsync(memory, 0, 1, stream), cudaSuccess);
    while (cudaStreamQuery(stream) == cudaErrorNotReady) continue;
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(write(ends[1], memory, 1), -1);
    cr_assert_eq(errno, EFAULT);
}
