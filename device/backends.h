/* What device.c knows of the backends. Each gives three functions; those of a backend that is not linked are not
 * called. The CPU's are in cpu/.
 *
 * SN_HAVE_CUDA and SN_HAVE_XPU are defined (for the whole of device/, by cmake/cuda.cmake and cmake/xpu.cmake) when the
 * functions of that backend are linked, be it the backend itself or something that stands for it and says why it cannot
 * work. */
#ifndef SN_DEVICE_BACKENDS_H
#define SN_DEVICE_BACKENDS_H

#include "device/device.h"

/* open: SN_REFUSED with the reason when there is no such device (not built, no driver, no such ordinal); options may be
 *     NULL.
 * describe: as sn_device_describe.
 * list: adds the backend's devices, by ordinal, to out[*n] on while there is room. SN_REFUSED with the reason when it
 *     has none; nothing is added then. May be called many times, before open and after, by one thread at a time. */
sn_status sn_cpu_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) SN_MUST_USE;

sn_status sn_cuda_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) SN_MUST_USE;
const char *sn_cuda_describe(const sn_device *device);
sn_status sn_cuda_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) SN_MUST_USE;

sn_status sn_xpu_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) SN_MUST_USE;
const char *sn_xpu_describe(const sn_device *device);
sn_status sn_xpu_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) SN_MUST_USE;

#endif
