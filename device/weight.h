/* A weight by itself on a device: memory, layout and copy in one. Spans place the weights of a block together instead. */
#ifndef SN_DEVICE_WEIGHT_H
#define SN_DEVICE_WEIGHT_H

#include "device/device.h"

/* `host`: rows x cols elements of `dtype` as in the file; not needed after the call. */
sn_status sn_weight_load(sn_device *device, sn_dtype dtype, size_t rows, size_t cols, const void *host, sn_weight *out,
                         sn_err *err) SN_MUST_USE;
void sn_weight_unload(sn_device *device, sn_weight *weight); /* harmless on a zeroed one, and twice */

/* Brings the tensor to `place` on the device (weight_size bytes), through host memory where it must. */
sn_status sn_weight_put(sn_device *device, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *place,
                        sn_weight *out, sn_err *err) SN_MUST_USE;

#endif
