/* What was trained, ready to be used: of an adapter's folder, what a chain adds to the frozen blocks, what stands before
 * every timeline, and a classifier's tensors. Immutable. */
#ifndef SN_CLIENT_TUNE_TRAINED_H
#define SN_CLIENT_TUNE_TRAINED_H

#include "client/chain.h"
#include "client/tune/adapter.h"

typedef struct sn_trained {
    sn_method method;
    sn_buf image;       /* a tuning of all blocks (blocks/tuning.h); empty: nothing is added to them */
    sn_adapter adapter; /* what is the client's own: virtual tokens, a classifier; zeroed for LoRA */
} sn_trained;

/* A folder of `swarm tune`, or one of PEFT's with LoRA or prompt tuning. SN_REFUSED with a sentence for what is damaged, of
 * a kind that cannot be used, or does not fit the model. */
sn_status sn_trained_load(const char *folder, const sn_hparams *hp, sn_trained *out, sn_err *err) SN_MUST_USE;
void sn_trained_fini(sn_trained *trained); /* harmless when zeroed */

/* For sn_chain_options.tuned: views, valid as long as `trained`. */
sn_chain_tuned sn_trained_for_chain(const sn_trained *trained);

#endif
