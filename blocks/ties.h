/* Parameters that several blocks or modules share are held once a device, counted.
 *
 * A tie group is named by a stable id (where the tensor stands in the model's files), never by an address, and a device
 * by its canonical id; so the same parameter is the same everywhere, whoever asks. The first taker loads, the last
 * giver frees. Giving back twice, after a failed load, or on a device where it never was, does nothing. Used by the
 * devices' thread. */
#ifndef SN_BLOCKS_TIES_H
#define SN_BLOCKS_TIES_H

#include "device/device.h"

typedef struct sn_ties sn_ties;
/* What a taker holds; zero when it holds nothing. A value: copies count as one holder. */
typedef struct sn_tie {
    uint64_t group, holder;
    sn_device_id device;
    void *memory; /* device */
} sn_tie;

sn_status sn_ties_new(sn_ties **out, sn_err *err) SN_MUST_USE;
void sn_ties_free(sn_ties **ties); /* NULL-safe; frees what is still held. Before the devices are closed */

/* Fills the parameter's memory (bytes, on the device); called for the first taker only. */
typedef sn_status (*sn_tie_load)(void *ctx, sn_device *device, void *memory, sn_err *err);
sn_status sn_ties_take(sn_ties *ties, uint64_t group, sn_device *device, size_t bytes, sn_tie_load load, void *ctx,
                       sn_tie *out, sn_err *err) SN_MUST_USE;
void sn_ties_give(sn_ties *ties, sn_tie *tie); /* sets *tie zero */

int sn_ties_holders(const sn_ties *ties, uint64_t group, sn_device_id device);
size_t sn_ties_bytes(const sn_ties *ties, sn_device_id device);

#endif
