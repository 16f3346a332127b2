/* Hashes of blocks that are kept over starts, in files CACHE/hashes/KEY of some bytes each.
 *
 * The key is the hash of all that a block's hash depends on but its bytes, and in their place of where they lie: of
 * each matrix the place in its file, and of each of the files device, inode, size and times. So a kept hash is found
 * again only for the same bytes read in the same way, by whatever program; one of a file that was changed, replaced or
 * copied is never looked for. A hash is kept only if the files are those that were opened, before and after it was
 * computed, and old enough that the next change will show in their times. What is written there by others, or damaged,
 * counts as not there. Private to model/; any thread. */
#ifndef SN_MODEL_KEPT_HASH_H
#define SN_MODEL_KEPT_HASH_H

#include "model/mapped_file.h"
#include "model/model.h"

typedef struct sn_kept_hash {
    sn_hash key;
    bool keeps; /* whether one that is computed now may be kept */
} sn_kept_hash;

/* The hash of the block, if it is kept; else *kept says under which key to keep it. */
bool sn_kept_hash_find(const sn_model *model, int block, sn_kept_hash *kept, sn_hash *out);
/* kept: as sn_kept_hash_find said before the hash was computed. Failures are not told: it is computed again then. */
void sn_kept_hash_keep(const sn_model *model, int block, const sn_kept_hash *kept, const sn_hash *hash);

/* model.c */
const char *sn_model_cache(const sn_model *model);                      /* NULL: no hashes are kept */
const sn_mapped_file *sn_model_files(const sn_model *model, size_t *n); /* those that are open */

#endif
