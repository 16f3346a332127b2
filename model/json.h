/* JSON as Python's json module writes it, which is how the files of models come about (config.json, tokenizer.json,
 * indices, adapters). Besides JSON it takes what that module writes and reads, and strict readers refuse:
 *
 *   - whole numbers beyond 64 bits become real numbers (transformers writes int(1e30) for "no limit");
 *   - NaN, Infinity, -Infinity and reals beyond a double become strings of these words: nothing that needs a number
 *     takes them, and what is not used does not matter;
 *   - of a field that is given twice the last one counts.
 *
 * A header of safetensors is not read by this: its format forbids all three. */
#ifndef SN_MODEL_JSON_H
#define SN_MODEL_JSON_H

#include <jansson.h>
#include <stddef.h>

/* The value, an object or an array, which the caller releases by json_decref; NULL: it is not JSON, or memory is out,
 * as `wrong` says (NULL: it is not asked for). Any thread. */
json_t *sn_json_read(const char *text, size_t len, json_error_t *wrong);

#endif
