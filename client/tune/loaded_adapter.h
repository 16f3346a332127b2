/* A loaded adapter: the content of an adapter folder, prepared for inference. It holds the parameters that a chain adds
 * to the frozen blocks, the virtual tokens that precede every session's tokens, and a classifier's tensors.
 * sn_loaded_adapter owns all of them and is immutable after loading. The programs load it and pass it to chains. */
#ifndef SN_CLIENT_TUNE_LOADED_ADAPTER_H
#define SN_CLIENT_TUNE_LOADED_ADAPTER_H

#include "client/chain/chain.h"
#include "client/tune/adapter_folder.h"
#include "model/base_weights.h"

typedef struct sn_loaded_adapter {
    sn_method method;
    sn_buf image;             /* adapter of all blocks (blocks/adapter.h); empty: the blocks have no adapter */
    sn_base_weights base;     /* the weights that it was trained for */
    sn_adapter_folder folder; /* parameters that the client uses itself: virtual tokens, classifier; else zeroed */
} sn_loaded_adapter;

/* Loads a folder that `swarm tune` wrote, or a PEFT folder with LoRA or prompt tuning. SN_REFUSED with a sentence when
 * a file is damaged, its kind cannot be used, or it does not fit the model. */
sn_status sn_loaded_adapter_load(const char *folder, const sn_hparams *hp, sn_loaded_adapter *out,
                                 sn_err *err) SN_MUST_USE;
/* An adapter of values that are trained here, those of blocks [params->first, params->end): a copy. with_prompt: its
 * virtual tokens, too, if the method has any; else deep prompts are added to the first rows of a timeline. base: the
 * weights of these blocks, taken, also on failure. */
sn_status sn_loaded_adapter_of(const sn_params *params, const sn_hparams *hp, bool with_prompt, sn_base_weights *base,
                               sn_loaded_adapter *out, sn_err *err) SN_MUST_USE;
void sn_loaded_adapter_fini(sn_loaded_adapter *loaded); /* accepts a zeroed struct */

/* The chain's view of the adapter. Its pointers are borrowed and stay valid as long as `loaded`. */
sn_chain_adapter sn_loaded_adapter_for_chain(const sn_loaded_adapter *loaded);

#endif
