/* How many kernels a decode step launches on an emulated device. */
#ifndef SN_TESTS_DECODE_LAUNCHES_H
#define SN_TESTS_DECODE_LAUNCHES_H

#include "device/device.h"

/* One decode step behind n_past rows through a made model of so many blocks, with matrices of one type and heads of 32
 * elements. `launches`: kernels launched so far. A failure ends the test. */
int decode_launches(sn_device_id id, sn_dtype dtype, int n_blocks, int n_past, uint64_t (*launches)(void));

#endif
