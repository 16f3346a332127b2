/* One weight on a device: conversion and copy in one call. Called on the device's thread. SN_REFUSED for a type or size
 * that the device cannot use, SN_STOP when its memory is out. */
#ifndef SN_DEVICE_WEIGHT_H
#define SN_DEVICE_WEIGHT_H

#include "device/device.h"

void sn_weight_unload(sn_device *device, sn_weight *weight); /* accepts a zeroed weight; zeroes it */

/* Converts a matrix and copies it to `place` on the device (weight_size bytes, the caller's), through host memory where
 * the device's memory is not visible to the host. */
sn_status sn_weight_upload(sn_device *device, sn_dtype dtype, size_t rows, size_t cols, const void *host, void *place,
                           sn_weight *out, sn_err *err) SN_MUST_USE;

#endif
