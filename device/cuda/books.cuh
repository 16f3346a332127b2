/* The codebooks of the IQ types as kernels read them, in the memory of the device: words of codebooks.inc.h. */
#ifndef SN_DEVICE_CUDA_BOOKS_CUH
#define SN_DEVICE_CUDA_BOOKS_CUH

#include "device/codebooks.h"

#include <cuda_fp16.h>

namespace {

/* First the entries of eight weights, in the order of codebooks.h, then those of four. */
#define SN_BOOK(name, ...) __VA_ARGS__,
__device__ constexpr uint32_t BOOKS[SN_BOOKS_OF_8 + SN_BOOKS_OF_4] = {
#include "device/codebooks.inc.h"
};
#undef SN_BOOK

} // namespace

#endif
