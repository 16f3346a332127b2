/* Tied weights: parameters that several blocks or modules share are loaded once per device and reference-counted.
 *
 * A tie group has a stable id (where the tensor stands in the model's files, never an address), and a device its
 * canonical id; so all holders agree on what is the same parameter. Central types: sn_ties, the table of all shared
 * parameters, and sn_tie, one holder's reference. The first holder loads the parameter, the last one to release it
 * frees it. To release twice, after a failed load, or on another device does nothing. Used by the devices' thread. */
#ifndef SN_BLOCKS_TIES_H
#define SN_BLOCKS_TIES_H

#include "device/device.h"

typedef struct sn_ties sn_ties;
/* A reference to a parameter on a device; zeroed: none. A plain value: copies count as one holder. */
typedef struct sn_tie {
    uint64_t group, holder;
    sn_device_id device;
    void *memory; /* device */
} sn_tie;

sn_status sn_ties_new(sn_ties **out, sn_err *err) SN_MUST_USE;
void sn_ties_free(sn_ties **ties); /* accepts NULL; frees what is still held; call it before the devices are closed */

/* Fills the parameter's memory on the device; called for the first holder only. */
typedef sn_status (*sn_tie_load)(void *ctx, sn_device *device, void *memory, sn_err *err);
/* Takes a reference to the parameter of `bytes` bytes. SN_REFUSED when it is there with another size. */
sn_status sn_ties_acquire(sn_ties *ties, uint64_t group, sn_device *device, size_t bytes, sn_tie_load load, void *ctx,
                          sn_tie *out, sn_err *err) SN_MUST_USE;
void sn_ties_release(sn_ties *ties, sn_tie *tie); /* sets *tie zero */

int sn_ties_holders(const sn_ties *ties, uint64_t group, sn_device_id device);
size_t sn_ties_bytes(const sn_ties *ties, sn_device_id device);

#endif
