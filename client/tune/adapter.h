/* Trained tensors as files that others know: adapter_config.json and adapter_model.safetensors as PEFT
 * (https://github.com/huggingface/peft) lays them out for LoRA and for prompt tuning; deep prompts and classifiers,
 * which it has not, the same way under names of our own. */
#ifndef SN_CLIENT_TUNE_ADAPTER_H
#define SN_CLIENT_TUNE_ADAPTER_H

#include "client/tune/params.h"

typedef struct sn_adapter {
    sn_params *params;
    char **labels; /* of a classifier, params->shape.n_labels */
} sn_adapter;

/* Writes both files into a folder that is there. Each appears whole or not at all. */
sn_status sn_adapter_save(const char *folder, const sn_params *params, const sn_hparams *hp, char *const *labels,
                          sn_err *err) SN_MUST_USE;
/* To train on from it; LoRA of matrices that the model's files hold as one is read by model/peft.h only. SN_REFUSED with a sentence for
 * what is damaged, of a kind that is not known, or does not fit the model. */
sn_status sn_adapter_load(const char *folder, const sn_hparams *hp, sn_adapter *out, sn_err *err) SN_MUST_USE;
void sn_adapter_fini(sn_adapter *adapter); /* harmless when zeroed */

#endif
