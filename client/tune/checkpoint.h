/* Checkpoints: everything that a tuner needs to go on as if nothing had happened. A checkpoint is a folder step-N of
 * DIR; it appears under its name only when it is whole and on the disk, so a kill at any byte leaves the one before.
 * Besides the state it holds the adapter's files as the tuned folder does, so it is one, too; and the SHA-256 of each. */
#ifndef SN_CLIENT_TUNE_CHECKPOINT_H
#define SN_CLIENT_TUNE_CHECKPOINT_H

#include "client/tune/tuner.h"

#include <jansson.h>

/* `model`: what it may be resumed with; `weights`: of blocks/weights_id.h, for swarm.json. `options`: whatever decided how training goes, kept as it is. Older checkpoints but the last one go. */
sn_status sn_checkpoint_save(const char *folder, const sn_tuner *tuner, const sn_hash *model, const sn_hash *weights,
                             char *const *labels, const json_t *options, sn_err *err) SN_MUST_USE;

/* The newest whole checkpoint of the folder: its path, and the options kept in it (the caller's to decref). SN_REFUSED,
 * saying which file is missing or damaged, or that there is none, or that it is of another model (NULL: not asked yet). */
sn_status sn_checkpoint_find(const char *folder, const sn_hash *model, char path[4096], json_t **options,
                             sn_err *err) SN_MUST_USE;

/* Weights first, then the optimizer's state, then where it stood. The tuner was made with the same options. */
sn_status sn_checkpoint_load(const char *path, sn_tuner *tuner, sn_err *err) SN_MUST_USE;

#endif
