/* How the model writes calls of one tool, as its chat template shows: the texts around the arguments, in which special
 * tokens are spelled out.
 *
 * Central type: sn_call_form, made for one request. */
#ifndef SN_GATEWAY_OPENAI_CALL_FORM_H
#define SN_GATEWAY_OPENAI_CALL_FORM_H

#include "gateway/openai/request.h"
#include "gateway/openai/served_model.h"

typedef struct sn_call_form {
    char *before, *after; /* heap */
    char *again;          /* between the arguments of two calls; NULL: the template shows one call at most */
} sn_call_form;

/* variables: of the request's conversation, NULL: none. function: one of the request's functions. False: the template
 * writes calls otherwise than with JSON arguments behind the prompt, or not at all. */
bool sn_call_form_init(sn_call_form *form, const json_t *variables, const sn_served_model *served,
                       const json_t *function) SN_MUST_USE;
void sn_call_form_fini(sn_call_form *form);

#endif
