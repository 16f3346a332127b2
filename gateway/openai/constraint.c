/* Penalties and biases change logits; a mask then takes away the tokens that the schema does not allow. The state of
 * the grammar after each token of the answer is kept: a draft that was not accepted only shortens the list. */
#include "gateway/openai/constraint.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A token of the answer, and the grammar's state after it. */
typedef struct place {
    int32_t id;
    int state;
} place;

struct sn_constraint {
    const sn_request *request;
    sn_served_model *served;
    size_t n_prompt;
    sn_compiled_schema *schema;
    sn_buf places;   /* place: of the answer so far */
    uint32_t *count; /* (vocab) how often each token occurs in the answer; all 0 between calls; NULL: no penalties */
    bool failed;
    sn_openai_error error;
};

bool sn_constraint_new(const sn_request *request, sn_served_model *served, size_t n_prompt, bool thinks,
                       sn_constraint **out, sn_openai_error *error) {
    sn_err err;
    sn_constraint *c = NULL;
    bool penalties = request->presence_penalty != 0 || request->frequency_penalty != 0;
    (void)thinks;
    *out = NULL;
    if (!penalties && !request->n_biases && !request->schema) return true;
    sn_status status = sn_calloc(&c, 1, sizeof *c, &err);
    if (status) return sn_openai_fail_err(error, &err);
    c->request = request;
    c->served = served;
    c->n_prompt = n_prompt;
    sn_buf_init(&c->places, SIZE_MAX);
    if (penalties)
        status = sn_calloc(&c->count, (size_t)swarm_model_vocab(sn_served_model_get(served)), sizeof *c->count, &err);
    if (!status && request->schema) status = sn_served_model_take_schema(served, request->schema, &c->schema, &err);
    if (!status) {
        *out = c;
        return true;
    }
    sn_constraint_free(&c);
    sn_openai_fail_err(error, &err);
    if (status == SN_REFUSED)
        sn_openai_fail(error, 400, "unsupported_schema",
                       request->kind == SN_REQUEST_CHAT ? "response_format.json_schema.schema" : "text.format.schema",
                       "%s", err.text);
    return false;
}

void sn_constraint_free(sn_constraint **constraint) {
    sn_constraint *c = *constraint;
    if (!c) return;
    sn_served_model_return_schema(c->served, &c->schema, !c->failed);
    sn_buf_fini(&c->places);
    free(c->count);
    free(c);
    *constraint = NULL;
}

bool sn_constraint_failed(const sn_constraint *c, sn_openai_error *error) {
    if (!c || !c->failed) return false;
    *error = c->error;
    return true;
}

static void fail(sn_constraint *c, const sn_err *err) {
    c->failed = true;
    sn_openai_fail_err(&c->error, err);
}

/* As OpenAI defines them: over the tokens of the answer. */
static void apply_penalties(sn_constraint *c, const int32_t *answer, size_t n, float *logits) {
    for (size_t i = 0; i < n; i++) c->count[answer[i]]++;
    for (size_t i = 0; i < n; i++) {
        uint32_t count = c->count[answer[i]];
        if (!count) continue; /* done at its first occurrence */
        logits[answer[i]] -= (float)(c->request->presence_penalty + c->request->frequency_penalty * count);
        c->count[answer[i]] = 0;
    }
}

/* The grammar's state after the answer. */
static sn_status follow(sn_constraint *c, const int32_t *answer, size_t n, int *state, sn_err *err) {
    size_t known = 0, have = c->places.len / sizeof(place), len;
    const place *places = (const place *)(const void *)c->places.data;
    while (known < have && known < n && places[known].id == answer[known]) known++;
    *state = known ? places[known - 1].state : sn_grammar_begin(c->schema->grammar);
    c->places.len = known * sizeof(place);
    for (; known < n; known++) {
        const char *bytes = sn_token_bytes_of(sn_served_model_tokens(c->served), (size_t)answer[known], &len);
        sn_status status = sn_grammar_advance(c->schema->grammar, *state, bytes, len, state, err);
        const place here = {answer[known], *state};
        if (!status) status = sn_buf_append(&c->places, &here, sizeof here, err);
        if (status) return status;
    }
    return SN_OK;
}

static void apply_mask(sn_constraint *c, const int32_t *answer, size_t n, float *logits, size_t vocab) {
    sn_err err;
    int state;
    const uint64_t *mask = NULL;
    size_t n_ending;
    const int32_t *ending = sn_served_model_ending(c->served, &n_ending);
    sn_status status = follow(c, answer, n, &state, &err);
    if (!status) status = sn_token_masks_get(c->schema->masks, state, &mask, &err);
    if (status) {
        fail(c, &err);
        return;
    }
    float kept[16]; /* the logits of tokens that end the answer, which are in no mask */
    size_t n_kept = sn_grammar_may_end(c->schema->grammar, state) ? sn_min_size(n_ending, 16) : 0;
    for (size_t i = 0; i < n_kept; i++) kept[i] = logits[ending[i]];
    for (size_t id = 0; id < vocab; id++)
        if (!(mask[id / 64] >> (id % 64) & 1)) logits[id] = -INFINITY;
    for (size_t i = 0; i < n_kept; i++) logits[ending[i]] = kept[i];
}

void sn_constraint_apply(void *constraint, const int32_t *ids, size_t n, float *logits, size_t vocab) {
    sn_constraint *c = constraint;
    const sn_request *q = c->request;
    if (c->failed || n < c->n_prompt) return;
    if (c->count) apply_penalties(c, ids + c->n_prompt, n - c->n_prompt, logits);
    for (size_t i = 0; i < q->n_biases; i++) logits[q->biases[i].id] += q->biases[i].bias;
    if (c->schema) apply_mask(c, ids + c->n_prompt, n - c->n_prompt, logits, vocab);
}
