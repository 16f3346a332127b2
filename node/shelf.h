/* The shelf: what a node has of its model's files, for others (node/protocol/weights.c gives it to them).
 *
 * A thread of its own, which lets others go first, finds the manifest: that beside the model's files (by which they
 * were fetched) if it is of this model, one that was made earlier and is in the cache, or a new one, for which it reads
 * the whole model once the node serves (sn_shelf_begin). What was hashed is kept, and the next start goes on there.
 * Until it is done the shelf is empty. A model that a hub gave in part has no manifest unless
 * --manifest names one, and then its shelf stays empty.
 *
 * Central type: sn_shelf, of the network thread. Its reads do not wait for a disk. */
#ifndef SN_NODE_SHELF_H
#define SN_NODE_SHELF_H

#include "sharing/hub/manifest.h"
#include "node/protocol/protocol.h"

typedef struct sn_shelf sn_shelf;

/* Starts the thread. path: of the model. cache: our folder of caches. `done` is called on the thread at its end; it may
 * only wake another one. */
sn_status sn_shelf_new(const char *path, const char *cache, void (*done)(void *), void *ctx, sn_shelf **out,
                       sn_err *err) SN_MUST_USE;
/* From now on it may read the whole model: the node has loaded its blocks. */
void sn_shelf_begin(sn_shelf *shelf);
void sn_shelf_free(sn_shelf **shelf); /* accepts NULL; ends the thread */
/* True once, when the manifest is known: its id. */
bool sn_shelf_take(sn_shelf *shelf, sn_hash *manifest);
/* The functions of sn_share; ctx: the shelf. */
sn_status sn_shelf_offer(void *ctx, uint64_t file, sn_range_set *out, sn_err *err);
sn_status sn_shelf_read(void *ctx, uint64_t file, uint64_t from, size_t bytes, void *out, uint64_t *size, sn_err *err);

#endif
