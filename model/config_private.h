/* For the files that read config.json (config_json.c and those it calls): its fields, checked one by one, and the parts
 * that have a file of their own. A field that is absent, and one that is null, count alike: the value stays as it was,
 * or SN_REFUSED when it is required; of true and false, null is false, as in Python. Errors name the field. Functions
 * without state. Private to model/. */
#ifndef SN_MODEL_CONFIG_PRIVATE_H
#define SN_MODEL_CONFIG_PRIVATE_H

#include "model/config.h"

#include <jansson.h>

/* NULL: absent or null. */
const json_t *sn_config_field(const json_t *object, const char *name);
sn_status sn_config_int(const json_t *object, const char *name, bool required, int *out, sn_err *err) SN_MUST_USE;
sn_status sn_config_number(const json_t *object, const char *name, bool required, double *out, sn_err *err) SN_MUST_USE;
sn_status sn_config_bool(const json_t *object, const char *name, bool *out, sn_err *err) SN_MUST_USE;
sn_status sn_config_text(const json_t *object, const char *name, bool required, const char **out,
                         sn_err *err) SN_MUST_USE; /* *out is borrowed from the object */

/* The mixture of experts (config_experts.c): which blocks have one, and what its router does. */
sn_status sn_config_read_experts(const json_t *config, const sn_family *family, sn_hparams *hparams,
                                 sn_err *err) SN_MUST_USE;

/* Which blocks are recurrent, and their sizes (config_recurrent.c). */
sn_status sn_config_read_recurrent(const json_t *config, const sn_family *family, sn_hparams *hparams,
                                   sn_err *err) SN_MUST_USE;

/* Latent attention (config_latent.c), after the sizes and the rope were read. */
sn_status sn_config_read_latent(const json_t *config, const sn_family *family, const sn_rope_scaling *scaling,
                                sn_hparams *hparams, sn_err *err) SN_MUST_USE;

#endif
