/* How the model writes a call of one tool, as its chat template shows: the tokens before and after the arguments. With
 * them an answer can be made to be this call.
 *
 * Central type: sn_call_form, made for one request. */
#ifndef SN_GATEWAY_OPENAI_CALL_FORM_H
#define SN_GATEWAY_OPENAI_CALL_FORM_H

#include "gateway/openai/request.h"
#include "gateway/openai/served_model.h"

typedef struct sn_call_form {
    int32_t *before, *after; /* (n_before, n_after), heap */
    size_t n_before, n_after;
} sn_call_form;

/* function: one of the request's functions. False: the template writes calls otherwise than with JSON arguments behind
 * the prompt, or not at all, so that none can be forced. */
bool sn_call_form_init(sn_call_form *form, const sn_request *request, const sn_served_model *served,
                       const json_t *function, sn_openai_error *error) SN_MUST_USE;
void sn_call_form_fini(sn_call_form *form);

#endif
