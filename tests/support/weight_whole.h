/* One weight with memory of its own on a device. */
#ifndef SN_TESTS_SUPPORT_WEIGHT_WHOLE_H
#define SN_TESTS_SUPPORT_WEIGHT_WHOLE_H

#include "device/weight.h"

/* `host`: rows x cols elements of `dtype` as in the model file; not needed after the call. sn_weight_unload frees it.
 */
static inline sn_status weight_load(sn_device *device, sn_dtype dtype, size_t rows, size_t cols, const void *host,
                                    sn_weight *out, sn_err *err) {
    size_t bytes;
    void *place = NULL;
    *out = (sn_weight){0};
    sn_status status = device->ops->weight_size(device, dtype, rows, cols, &bytes, err);
    if (!status) status = device->ops->alloc(device, bytes, &place, err);
    if (!status) status = sn_weight_upload(device, dtype, rows, cols, host, place, out, err);
    if (status && place) device->ops->free(device, place, bytes);
    return status;
}

#endif
