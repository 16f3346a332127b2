#include "device/weight.h"

#include "base/mem.h"

sn_status sn_weight_upload(sn_device *device, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *place,
                           sn_weight *out, sn_err *err) {
    size_t bytes;
    void *image = NULL;
    const sn_device_ops *ops = device->ops;
    sn_status status = ops->weight_size(device, dtype, rows, cols, &bytes, err);
    if (status) return status;
    if (device->host_visible) {
        status = ops->weight_pack(device, dtype, rows, cols, host, place, err);
    } else {
        status = sn_pages_alloc(&image, bytes, err);
        if (!status) status = ops->weight_pack(device, dtype, rows, cols, host, image, err);
        if (!status) status = ops->upload(device, place, image, bytes, err);
        sn_pages_free(&image, bytes);
    }
    if (!status) *out = (sn_weight){dtype, rows, cols, bytes, place, NULL};
    return status;
}

void sn_weight_unload(sn_device *device, sn_weight *weight) {
    if (weight->device) device->ops->free(device, (void *)weight->device, weight->bytes);
    *weight = (sn_weight){0};
}
