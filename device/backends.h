/* The functions by which device.c reaches the backends: each backend defines three. device.c does not call the
 * functions of a backend that is not linked. Private to device/ and its backends.
 *
 * SN_HAVE_CUDA and SN_HAVE_XPU are defined (for the whole of device/, by cmake/cuda.cmake and cmake/xpu.cmake) when the
 * functions of that backend are linked: those of the backend itself, or of a stand-in of the tests. */
#ifndef SN_DEVICE_BACKENDS_H
#define SN_DEVICE_BACKENDS_H

#include "device/device.h"

/* - open: SN_REFUSED with the reason when there is no such device (no driver, no such ordinal). options may be NULL.
 * - describe: as sn_device_describe.
 * - list: appends the backend's devices in the order of their ordinals to out and counts *n up, at most to
 *   SN_DEVICES_MAX. SN_REFUSED with the reason when it has no device; it appends nothing then. May be called often,
 *   before and after open, by one thread at a time. */
/* SN_REFUSED where a recurrent block of this shape is not possible, or a sequence of the batch has no state. */
sn_status sn_device_check_delta(const sn_delta_shape *shape, int n_sequences, const sn_sequence *sequences,
                                sn_err *err) SN_MUST_USE;
/* SN_REFUSED where the groups of a router's experts are not possible. */
sn_status sn_device_check_groups(const sn_moe_router *router, sn_err *err) SN_MUST_USE;

/* Declares a function as the operation `name`, which sn_device_ops documents. */
#define SN_OPERATION(name, function) __typeof__(*((const sn_device_ops *)0)->name) function

/* composed.c: the operations of the same names, by those that each consists of, for the tables of backends that have no
 * kernel for them, or not for this call. */
SN_OPERATION(norm_linear, sn_composed_norm_linear);
SN_OPERATION(rope_store, sn_composed_rope_store);
SN_OPERATION(attention_linear, sn_composed_attention_linear);
SN_OPERATION(activate_linear, sn_composed_activate_linear);
SN_OPERATION(activate_moe_linear, sn_composed_activate_moe_linear);

sn_status sn_cpu_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) SN_MUST_USE;
const char *sn_cpu_describe(const sn_device *device);
sn_status sn_cpu_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) SN_MUST_USE;

sn_status sn_cuda_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) SN_MUST_USE;
const char *sn_cuda_describe(const sn_device *device);
sn_status sn_cuda_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) SN_MUST_USE;

sn_status sn_xpu_open(sn_device_id id, const sn_device_options *options, sn_device **out, sn_err *err) SN_MUST_USE;
const char *sn_xpu_describe(const sn_device *device);
sn_status sn_xpu_list(sn_device_info out[SN_DEVICES_MAX], size_t *n, sn_err *err) SN_MUST_USE;

#endif
