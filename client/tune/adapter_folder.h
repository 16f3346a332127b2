/* An adapter folder: trained parameters in the files adapter_config.json and adapter_model.safetensors. LoRA and prompt
 * tuning use the layout of PEFT (https://github.com/huggingface/peft), so that other programs can load the folder. PEFT
 * has no deep prompts and no classifiers of this kind; they use the same two files with tensor names of this project.
 *
 * The central type is sn_adapter_folder, a loaded folder; it owns its parameters and labels. Checkpoints, `swarm tune`
 * and loaded adapters call these functions, each on its own thread: there is no shared state. */
#ifndef SN_CLIENT_TUNE_ADAPTER_FOLDER_H
#define SN_CLIENT_TUNE_ADAPTER_FOLDER_H

#include "client/tune/params.h"
#include "model/base_weights.h"

typedef struct sn_adapter_folder {
    sn_params *params;
    char **labels; /* names of a classifier's labels (params->shape.n_labels); NULL for other methods */
} sn_adapter_folder;

/* Writes both files into `folder`, which must exist, and swarm.json for the weights `base` (NULL: unknown, none is
 * written). An earlier adapter there is replaced as a whole: while its files change, adapter_config.json is missing,
 * and the folder is refused. Of LoRA, only the blocks that params says are trained are written. `labels`: names of a
 * classifier's labels (params->shape.n_labels); not read for other methods. SN_REFUSED when a file cannot be written.
 */
sn_status sn_adapter_folder_save(const char *folder, const sn_params *params, const sn_hparams *hp,
                                 const sn_base_weights *base, char *const *labels, sn_err *err) SN_MUST_USE;
/* Loads a folder as trainable parameters. LoRA of matrices that the model's files store fused (q, k and v in one
 * tensor) is not read here; model/peft/peft.h reads it for inference. SN_REFUSED with a sentence when a file is
 * damaged, its kind is unknown, or it does not fit the model; then *out is zeroed. */
sn_status sn_adapter_folder_load(const char *folder, const sn_hparams *hp, sn_adapter_folder *out,
                                 sn_err *err) SN_MUST_USE;
void sn_adapter_folder_fini(sn_adapter_folder *adapter); /* accepts a zeroed struct */

#endif
