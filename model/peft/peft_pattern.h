/* rank_pattern and alpha_pattern of an adapter's configuration, as PEFT reads them: {"pattern": number}. Each pattern
 * is a regular expression that must match the end of a module's name, from its beginning or from after a dot; the first
 * pattern that matches counts. Private to model/peft/. */
#ifndef SN_MODEL_PEFT_PEFT_PATTERN_H
#define SN_MODEL_PEFT_PEFT_PATTERN_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

typedef struct sn_peft_pattern sn_peft_pattern;

/* `object`: NULL and null are empty; not kept. `what`: its name in errors; kept, not copied. */
sn_status sn_peft_pattern_new(const json_t *object, const char *what, sn_peft_pattern **out, sn_err *err) SN_MUST_USE;
void sn_peft_pattern_free(sn_peft_pattern **pattern); /* accepts NULL */

/* Sets *value to that of the first pattern that matches the module's name; leaves it if none does. */
sn_status sn_peft_pattern_find(const sn_peft_pattern *pattern, const char *module, double *value,
                               sn_err *err) SN_MUST_USE;

#endif
