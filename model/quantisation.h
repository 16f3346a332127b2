/* The quantization_config of a folder's config.json: what wrote the weights, and how. What a method says and is not
 * known here is refused; which matrices it left out, and how it rounds activations, does not matter: the tensors say
 * the first themselves (model/packed.h), and activations are not rounded here as it says. */
#ifndef SN_MODEL_QUANTISATION_H
#define SN_MODEL_QUANTISATION_H

#include "model/model.h"

#include <jansson.h>

/* about: the object, not NULL. mxfp4: the family reads that method itself. Sets what hparams has of it. */
sn_status sn_quantisation_read(const json_t *about, bool mxfp4, sn_hparams *hparams, sn_err *err) SN_MUST_USE;

#endif
