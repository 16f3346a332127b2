/* The input's first byte chooses the kind of a body, the rest is the body. It is refused with a sentence that is UTF-8,
 * or gives a request whose numbers are in their ranges. */
#include "tests/support/openai_fixture.h"

#include <stdlib.h>
#include <string.h>

static void expect_ranges(const sn_request *r, const sn_request_limits *limits) {
    if (r->n < 1 || r->n > limits->n_max || sn_request_choices(r) > 64) abort();
    if (!(r->temperature >= 0 && r->temperature <= 2) || !(r->top_p > 0 || r->kind >= SN_REQUEST_EMBEDDING)) abort();
    if (r->logprobs > SN_REQUEST_TOP_MAX || r->n_stops > SN_REQUEST_STOPS_MAX) abort();
    for (size_t i = 0; i < r->n_biases; i++)
        if (r->biases[i].id < 0 || r->biases[i].id >= limits->vocab) abort();
    for (size_t i = 0; i < r->n_prompts; i++)
        for (size_t k = 0; k < r->prompts[i].n; k++)
            if (r->prompts[i].ids[k] < 0 || r->prompts[i].ids[k] >= limits->vocab) abort();
    if ((r->kind == SN_REQUEST_CHAT || r->kind == SN_REQUEST_RESPONSE) && !r->chat) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const sn_request_limits limits = OPENAI_LIMITS(100, 64);
    sn_request *request = NULL;
    sn_openai_error error = {0};
    if (!size) return 0;
    sn_request_kind kind = (sn_request_kind)(data[0] % (SN_REQUEST_DETOKENIZE + 1));
    if (sn_request_parse(kind, (const char *)data + 1, size - 1, &limits, &request, &error)) {
        expect_ranges(request, &limits);
        if (sn_request_check_length(request, size, &limits, &error) && size > 64) abort();
    } else {
        char *text = sn_openai_error_text(&error); /* NULL: it is not UTF-8 */
        if (!*error.message || !text || request) abort();
        free(text);
    }
    sn_request_free(&request);
    return 0;
}
