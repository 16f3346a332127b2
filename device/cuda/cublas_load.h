/* Finds cuBLAS. Before this has succeeded none of its functions may be called. From any thread. */
#ifndef SN_DEVICE_CUDA_CUBLAS_LOAD_H
#define SN_DEVICE_CUDA_CUBLAS_LOAD_H

#include "base/err.h"

sn_status sn_cuda_cublas_load(sn_err *err) SN_MUST_USE;

#endif
