/* What all requests of one served model share: the bytes of its tokens, which tokens end an answer, and compiled
 * schemas.
 *
 * Central type: sn_served_model; any thread may use it. */
#ifndef SN_GATEWAY_OPENAI_SERVED_MODEL_H
#define SN_GATEWAY_OPENAI_SERVED_MODEL_H

#include "gateway/grammar/token_mask.h"
#include "gateway/openai/error.h"

typedef struct sn_served_model sn_served_model;

/* Borrows the model. `name` (copied) is what replies call it. Reads the bytes of all tokens: a fraction of a second. */
sn_status sn_served_model_new(const swarm_model *model, const char *name, sn_served_model **out,
                              sn_err *err) SN_MUST_USE;
void sn_served_model_free(sn_served_model **served); /* accepts NULL */

const swarm_model *sn_served_model_get(const sn_served_model *served);
const char *sn_served_model_name(const sn_served_model *served);
const sn_token_bytes *sn_served_model_tokens(const sn_served_model *served);
bool sn_served_model_ends(const sn_served_model *served, int32_t id);            /* as swarm_model_ends, from a table */
const int32_t *sn_served_model_ending(const sn_served_model *served, size_t *n); /* those that do */

/* Whether the model's chat template shows tools, or calls of them: else requests with tools can only be refused. */
bool sn_served_model_calls_tools(const sn_served_model *served);

/* A compiled schema and its masks, for one constraint at a time. Those that were given back are kept (a few, by the
 * text of the schema), so that a schema which many requests name is compiled once for each that runs at once. */
typedef struct sn_compiled_schema {
    char *text;
    sn_grammar *grammar;
    sn_token_masks *masks;
} sn_compiled_schema;
sn_status sn_served_model_take_schema(sn_served_model *served, const json_t *schema, sn_compiled_schema **out,
                                      sn_err *err) SN_MUST_USE;
/* usable: false when it failed, so that it is not used again. Accepts NULL. */
void sn_served_model_return_schema(sn_served_model *served, sn_compiled_schema **compiled, bool usable);

#endif
