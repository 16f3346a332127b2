/* Checkpoints: the complete state of a tuner, so that a resumed training gives the same bits as one that was never
 * interrupted. A checkpoint is a folder step-N in a parent folder. The folder gets this name only after all its files
 * are complete and synchronised to the disk, so a program that is killed while it writes leaves the previous checkpoint
 * intact. Besides the state, a checkpoint holds the files of an adapter folder (adapter_folder.h), so it can be used as
 * one, and SHA256SUMS, the SHA-256 of each file: a changed byte anywhere is refused. Files may have any size.
 *
 * `swarm tune` calls these functions on the tuner's thread. */
#ifndef SN_CLIENT_TUNE_CHECKPOINT_H
#define SN_CLIENT_TUNE_CHECKPOINT_H

#include "client/tune/tuner.h"
#include "model/base_weights.h"

#include <jansson.h>

/* Saves the tuner into step-N of `folder`, N being its number of steps. model: the id of the model. base: the weights
 * that it trains through. labels: as sn_adapter_folder_save. options: the options that determine the training, stored
 * unchanged. An older step-N is replaced. Afterwards only the newest two checkpoints
 * remain. SN_REFUSED when a file cannot be written. */
sn_status sn_checkpoint_save(const char *folder, const sn_tuner *tuner, const sn_hash *model,
                             const sn_base_weights *base, char *const *labels, const json_t *options,
                             sn_err *err) SN_MUST_USE;

/* A checkpoint whose files were compared with SHA256SUMS. Owns what it points to. */
typedef struct sn_checkpoint {
    char path[4096];
    sn_hash model;
    sn_base_weights base;
    json_t *options; /* as they were saved */
    int64_t step;
    uint64_t epoch, position, tokens;
} sn_checkpoint;

/* Opens the newest checkpoint of `folder`. SN_REFUSED when there is none, or when a file is missing or damaged (the
 * sentence names the file). Free *out in any case. */
sn_status sn_checkpoint_open(const char *folder, sn_checkpoint *out, sn_err *err) SN_MUST_USE;
void sn_checkpoint_close(sn_checkpoint *checkpoint); /* accepts a zeroed struct */

/* SN_REFUSED when the checkpoint is of another model, or of other weights: `blocks` (n_blocks) are the hashes of the
 * blocks that compute now; NULL: they are not known yet. */
sn_status sn_checkpoint_check_weights(const sn_checkpoint *checkpoint, const sn_model *model, const sn_hash *blocks,
                                      sn_err *err) SN_MUST_USE;

/* Restores parameters, optimizer state, data position and losses. The tuner must have been created with the options
 * that the checkpoint stores. After a failure the tuner holds part of the state and must not be used. */
sn_status sn_checkpoint_restore(const sn_checkpoint *checkpoint, sn_tuner *tuner, sn_err *err) SN_MUST_USE;

#endif
