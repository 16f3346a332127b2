/* Where offloaded blocks rest: host memory, or files with hashes. A block comes as one image, the bytes in its device's
 * layout. Used by the device's thread. */
#ifndef SN_BLOCKS_STORE_H
#define SN_BLOCKS_STORE_H

#include "base/hash.h"
#include "base/mem.h"

typedef struct sn_store sn_store;

/* Files go into `folder` (made if missing, mode 0700; refused if anybody may write to it), one a block, named by `key`:
 * the hash of the block's weights, the device's kind and the layout's version. Several processes may use one folder.
 * What an earlier run left half written is removed. */
sn_status sn_store_open(const char *folder, sn_store **out, sn_err *err) SN_MUST_USE;
void sn_store_close(sn_store **store); /* NULL-safe */

/* True if a whole, undamaged image of `bytes` bytes lies there under the key (its hash is checked). A stale, short or
 * damaged file is removed, with a log line, so that it is made again. */
bool sn_store_has(sn_store *store, const sn_hash *key, size_t bytes);
/* Writes an image: to a new file, synced, renamed. SN_STOP when the disk is full, naming folder and size; what was
 * there before is then as it was. */
sn_status sn_store_put(sn_store *store, const sn_hash *key, const void *image, size_t bytes, sn_err *err) SN_MUST_USE;
/* Reads an image that `has` or `put` has seen in this run into `image`: that file, even if another took its place
 * since. SN_STOP when there is none or its hash differs; `image` is then undefined. */
sn_status sn_store_get(sn_store *store, const sn_hash *key, void *image, size_t bytes, sn_err *err) SN_MUST_USE;

#endif
