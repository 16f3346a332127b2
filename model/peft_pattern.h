/* rank_pattern and alpha_pattern of an adapter's configuration, read as PEFT does: {"pattern": number}, each a regular
 * expression that the end of a module's name matches, from its beginning or from behind a dot; the first that does counts. */
#ifndef SN_MODEL_PEFT_PATTERN_H
#define SN_MODEL_PEFT_PATTERN_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

typedef struct sn_peft_pattern sn_peft_pattern;

/* `object`: NULL and null are empty; borrowed only here. `what` names it in errors. */
sn_status sn_peft_pattern_new(const json_t *object, const char *what, sn_peft_pattern **out, sn_err *err) SN_MUST_USE;
void sn_peft_pattern_free(sn_peft_pattern **pattern); /* NULL-safe */

/* *value: of the module, or left as it is when no pattern matches its name. */
sn_status sn_peft_pattern_find(const sn_peft_pattern *pattern, const char *module, double *value, sn_err *err) SN_MUST_USE;

#endif
