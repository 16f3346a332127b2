/* In place of CUDA's header of this name, which device/cuda/kernels.cuh includes: the emulated threads and types of
 * CUDA C++, and SN_LAUNCH. */
#ifndef SN_TESTS_CUDA_STAND_IN_CUDA_FP16_H
#define SN_TESTS_CUDA_STAND_IN_CUDA_FP16_H

#include "tests/support/cuda_stand_in/threads.h"

#endif
