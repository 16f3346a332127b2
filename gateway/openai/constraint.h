/* What a request demands of each token before it is sampled: biases, penalties, a schema that the text must follow, a
 * tool that must be called. A swarm_logits_callback applies it.
 *
 * Central type: sn_constraint, one for each choice while it is generated, used by the thread of its session. */
#ifndef SN_GATEWAY_OPENAI_CONSTRAINT_H
#define SN_GATEWAY_OPENAI_CONSTRAINT_H

#include "gateway/openai/request.h"
#include "gateway/openai/served_model.h"

typedef struct sn_constraint sn_constraint;

typedef struct sn_constraint_setup {
    size_t n_prompt; /* tokens of the prompt, which the answer follows */
    bool thinks;     /* the answer begins within a thought, which is free */
    bool later;      /* its grammar is compiled when it is first applied: a choice whose like was compiled already */
} sn_constraint_setup;
/* *out is NULL if the request demands nothing: then the session needs no callback. Borrows request and model. False: a
 * schema cannot be kept exactly, or the model's template does not show how calls are written. */
bool sn_constraint_new(const sn_request *request, sn_served_model *served, const sn_constraint_setup *setup,
                       sn_constraint **out, sn_openai_error *error) SN_MUST_USE;
void sn_constraint_free(sn_constraint **constraint); /* accepts NULL */

/* For swarm_session_on_logits, with the constraint as its context. */
void sn_constraint_apply(void *constraint, const int32_t *ids, size_t n, float *logits, size_t vocab);
/* Whether it could not be applied, and why: then the generation failed, whatever the session says. */
bool sn_constraint_failed(const sn_constraint *constraint, sn_openai_error *error);

#endif
