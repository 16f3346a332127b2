/* How many kernels a decode step launches on an emulated device. */
#ifndef SN_TESTS_DECODE_LAUNCHES_H
#define SN_TESTS_DECODE_LAUNCHES_H

#include "device/device.h"

/* One decode step behind n_past rows through a made model of so many blocks, with matrices of one type and heads of 32
 * elements. `launches`: kernels launched so far. A failure ends the test. */
int decode_launches(sn_device_id id, sn_dtype dtype, int n_blocks, int n_past, uint64_t (*launches)(void));
/* Through what belongs together in a block, with its own operations: a norm that adds and q, k, v, rope and store,
 * attention and o, an activation and down, of n rows behind n_past, with quantised matrices. */
int together_launches(sn_device_id id, sn_kv_dtype dtype, int n_past, int n, uint64_t (*launches)(void));

#endif
