/* Errors as clients of the OpenAI API expect them: an HTTP status, and a body {"error": {"message", "type", "param",
 * "code"}}. Any thread may call these functions. */
#ifndef SN_GATEWAY_OPENAI_ERROR_H
#define SN_GATEWAY_OPENAI_ERROR_H

#include "base/err.h"
#include "include/swarm.h"

#include <jansson.h>
#include <stdbool.h>

typedef struct sn_openai_error {
    int status;             /* of HTTP: 400, 401, 404, 413, 429, 500, 503 */
    const char *code;       /* static, such as "context_length_exceeded"; NULL: none */
    int64_t retry_after_ms; /* with 429 and 503, where it is known; else 0: for the header "retry-after" */
    char param[96];         /* the field, such as "messages[2].content"; "": none */
    char message[512];      /* one sentence */
} sn_openai_error;

/* Fills *error and returns false, so that a failure is one line. param may be NULL. What the sentence quotes is made
 * valid UTF-8. */
bool sn_openai_fail(sn_openai_error *error, int status, const char *code, const char *param, const char *format, ...)
    SN_PRINTF(5, 6);
/* The same for an error of the library: SWARM_REFUSED is 400, SWARM_RETRY and SWARM_REBUILD are 503, others are 500.
 * Frees `cause`. */
bool sn_openai_fail_swarm(sn_openai_error *error, swarm_error *cause);
bool sn_openai_fail_err(sn_openai_error *error, const sn_err *cause);

/* The body, with its "type" made from the status; a new reference. */
json_t *sn_openai_error_json(const sn_openai_error *error);
/* The same as a text, freed with free(); NULL: memory is out. */
char *sn_openai_error_text(const sn_openai_error *error);

#endif
