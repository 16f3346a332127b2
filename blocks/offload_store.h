/* The offload store: images of offloaded blocks as files with hashes.
 *
 * An image is one block's weights in its device's layout (block.h), named by a key. Central type: sn_offload_store, one
 * folder; the caller owns it and closes it after the segments that use it. Several processes may use one folder at the
 * same time. Used by the devices' thread. */
#ifndef SN_BLOCKS_OFFLOAD_STORE_H
#define SN_BLOCKS_OFFLOAD_STORE_H

#include "base/hash.h"
#include "base/mem.h"
#include "base/tag.h"

typedef struct sn_offload_store sn_offload_store;

/* Opens a folder, made with mode 0700 if it is missing. SN_REFUSED when it is world-writable or cannot be written to.
 * Each file is named by its key: the hash of the block's weights, the kind of device and the version of the layout.
 * Removes files that an earlier process left unfinished. */
sn_status sn_offload_store_open(const char *folder, sn_offload_store **out, sn_err *err) SN_MUST_USE;
void sn_offload_store_close(sn_offload_store **store); /* accepts NULL */

/* Whether the store has an image of `bytes` bytes under the key whose hash is right. A stale, short or damaged file is
 * removed, with a log line, so that the caller puts the image again. part: the bytes of the parts that are read one by
 * one, of which the last may be shorter. */
bool sn_offload_store_has(sn_offload_store *store, const sn_hash *key, size_t bytes, size_t part);
/* Writes an image to a new file, syncs it and renames it. SN_STOP when the disk is full (the sentence names folder and
 * size) or fails; a file that was there before is then unchanged. */
sn_status sn_offload_store_put(sn_offload_store *store, const sn_hash *key, const void *image, size_t bytes,
                               sn_err *err) SN_MUST_USE;
/* The same in pieces: for an image that is larger than memory. The caller adds exactly `bytes` bytes, then commits; it
 * discards after any failure. */
typedef struct sn_new_image {
    int file; /* -1: none */
    size_t bytes, at;
    sn_hash key;
    char name[2 * SN_HASH_SIZE + 40];
} sn_new_image;
sn_status sn_offload_store_begin(sn_offload_store *store, const sn_hash *key, size_t bytes, size_t part,
                                 sn_new_image *out, sn_err *err) SN_MUST_USE;
sn_status sn_offload_store_add(sn_offload_store *store, sn_new_image *image, const void *data, size_t bytes,
                               sn_err *err) SN_MUST_USE;
sn_status sn_offload_store_commit(sn_offload_store *store, sn_new_image *image, sn_err *err) SN_MUST_USE;
void sn_offload_store_discard(sn_offload_store *store, sn_new_image *image); /* nothing after a commit */

/* The file of an image that `has` or `put` verified in this run, where the image begins in it (at a multiple of
 * SN_FILE_PAGE), and the tag of each part, for readers of parts that any thread may be: a descriptor of the caller's
 * own, which closes it; -1: there is none. */
int sn_offload_store_file(const sn_offload_store *store, const sn_hash *key, size_t bytes, uint64_t *at, sn_tag *tags);
/* Reads the image that `has` or `put` verified in this run into `image`: that very file, even if another one has taken
 * its name since. SN_STOP when there is none or its hash differs; `image` is then undefined. */
sn_status sn_offload_store_get(sn_offload_store *store, const sn_hash *key, void *image, size_t bytes,
                               sn_err *err) SN_MUST_USE;

#endif
