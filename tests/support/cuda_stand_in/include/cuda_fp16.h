/* In place of CUDA's header of this name, which device/cuda/kernels.cuh includes: the emulated threads and types of
 * CUDA C++, SN_LAUNCH, and the functions of device/cuda/mma.cuh. */
#ifndef SN_TESTS_CUDA_STAND_IN_CUDA_FP16_H
#define SN_TESTS_CUDA_STAND_IN_CUDA_FP16_H

#include "tests/support/cuda_stand_in/mma.h"

#endif
