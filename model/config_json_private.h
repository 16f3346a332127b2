/* config.json, read in parts: single fields, and what of the hyperparameters each part is about. Private to
 * model/config_json*.c; any thread. Errors are SN_REFUSED with a sentence that names the field. */
#ifndef SN_MODEL_CONFIG_JSON_PRIVATE_H
#define SN_MODEL_CONFIG_JSON_PRIVATE_H

#include "model/config.h"

#include <jansson.h>

/* -- fields
 *
 * A field that is absent, and one that is null, count alike: the value stays as it was, or SN_REFUSED when it is
 * required; of true and false, null is false, as in Python. */

const json_t *sn_config_field(const json_t *object, const char *name); /* NULL: absent or null */
sn_status sn_config_int(const json_t *object, const char *name, bool required, int *out, sn_err *err) SN_MUST_USE;
sn_status sn_config_number(const json_t *object, const char *name, bool required, double *out, sn_err *err) SN_MUST_USE;
sn_status sn_config_bool(const json_t *object, const char *name, bool *out, sn_err *err) SN_MUST_USE;
sn_status sn_config_text(const json_t *object, const char *name, bool required, const char **out,
                         sn_err *err) SN_MUST_USE;
/* The first of the names, which end with NULL, whose field is there; else the first. */
const char *sn_config_spelling(const json_t *config, const char *const *names);
/* Whether the family reads a field that is refused in others (config_fields). */
bool sn_family_reads(const sn_family *family, const char *name);
/* Fields that must have a certain value, if they are there. */
sn_status sn_config_require_text(const json_t *config, const char *field, const char *value, sn_err *err) SN_MUST_USE;
sn_status sn_config_require_bool(const json_t *config, const char *field, bool value, sn_err *err) SN_MUST_USE;
/* Whether a list has all blocks; it may have those that predict further tokens, too. */
bool sn_config_lists_blocks(const json_t *config, const json_t *list, int n_blocks);
/* A list by block of 0 and 1, where there is one; the blocks whose number is `ones` get true. */
sn_status sn_config_flags(const json_t *config, const char *name, int n_blocks, bool ones, bool *out,
                          sn_err *err) SN_MUST_USE;

/* -- parts; the sizes are read before, windows and heads before ropes, and these before latents */

sn_status sn_config_read_window(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) SN_MUST_USE;
sn_status sn_config_read_values(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) SN_MUST_USE;
sn_status sn_config_read_other_heads(const json_t *config, const sn_family *family, sn_hparams *h,
                                     sn_err *err) SN_MUST_USE;
sn_status sn_config_read_rope(const json_t *config, const sn_family *family, sn_hparams *h,
                              sn_rope_scaling s[SN_ROPES_MAX], sn_err *err) SN_MUST_USE;
sn_status sn_config_read_latent(const json_t *config, const sn_family *family, const sn_rope_scaling *scaling,
                                sn_hparams *h, sn_err *err) SN_MUST_USE;
sn_status sn_config_read_no_rope(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) SN_MUST_USE;
sn_status sn_config_read_chunks(const json_t *config, bool yarn, sn_hparams *h, sn_err *err) SN_MUST_USE;
/* How many blocks the list of kinds, or the pattern, has; 0: there is neither. */
size_t sn_config_n_listed_kinds(const json_t *config, const sn_family *family);
/* Changes *family to the variant that the file is of. */
sn_status sn_config_read_hybrid(const json_t *config, const sn_family **family, sn_hparams *h, sn_err *err) SN_MUST_USE;
sn_status sn_config_read_recurrent(const json_t *config, const sn_family *family, sn_hparams *h,
                                   sn_err *err) SN_MUST_USE;
sn_status sn_config_read_experts(const json_t *config, const sn_family *family, sn_hparams *h, sn_err *err) SN_MUST_USE;
/* Bounds of feed-forwards, block by block; null and 0: there is none. */
sn_status sn_config_read_limits(const json_t *config, const char *name, int n_blocks, float *limits,
                                sn_err *err) SN_MUST_USE;

#endif
