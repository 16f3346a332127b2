/* Checkpoints: the complete state of a tuner, so that a resumed training gives the same bits as one that was never
 * interrupted. A checkpoint is a folder step-N in a parent folder. The folder gets this name only after all its files
 * are complete and synchronised to the disk, so a program that is killed while it writes leaves the previous checkpoint
 * intact. Besides the state, a checkpoint holds the files of an adapter folder (adapter_folder.h), so it can be used as
 * one, and the SHA-256 of each file.
 *
 * `swarm tune` calls these functions on the tuner's thread. */
#ifndef SN_CLIENT_TUNE_CHECKPOINT_H
#define SN_CLIENT_TUNE_CHECKPOINT_H

#include "client/tune/tuner.h"

#include <jansson.h>

/* Saves the tuner into step-N of `folder`, N being its number of steps. model: the id of the model that a resume
 * requires. weights: the id of its weights (blocks/weights.h), for swarm.json. labels: as sn_adapter_folder_save.
 * options: the options that determine the training, stored unchanged. Afterwards only the newest two checkpoints
 * remain. SN_REFUSED when a file cannot be written. */
sn_status sn_checkpoint_save(const char *folder, const sn_tuner *tuner, const sn_hash *model, const sn_hash *weights,
                             char *const *labels, const json_t *options, sn_err *err) SN_MUST_USE;

/* Finds the newest checkpoint of `folder`, checks its files and gives its path and its stored options (the caller
 * decrefs them). model: the id that the checkpoint must name; NULL: not checked. SN_REFUSED when there is no
 * checkpoint, when a file is missing or damaged (the sentence names the file), or when the checkpoint is of another
 * model. */
sn_status sn_checkpoint_find(const char *folder, const sn_hash *model, char path[4096], json_t **options,
                             sn_err *err) SN_MUST_USE;

/* Restores parameters, optimizer state, data position and losses. The tuner must have been created with the options
 * that the checkpoint stores. After a failure the tuner holds part of the state and must not be used. */
sn_status sn_checkpoint_load(const char *path, sn_tuner *tuner, sn_err *err) SN_MUST_USE;

#endif
