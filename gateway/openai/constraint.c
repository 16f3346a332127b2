/* Penalties and biases change logits; a mask then takes away the tokens that are not allowed.
 *
 * What is allowed is a walk through places: the tokens before a forced call's arguments, the states of a schema's
 * grammar, the tokens behind the arguments, and the end. An answer in a response format is the middle part alone. The
 * place after each token of the answer is kept, so that a draft which was not accepted only shortens the list. */
#include "gateway/openai/constraint.h"

#include "base/mem.h"
#include "gateway/openai/call_form.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What may be written: a text of a schema; of a call, what stands around it, too. */
typedef struct way {
    sn_call_form form; /* empty: the text alone */
    sn_compiled_schema *schema;
} way;

typedef enum phase { PHASE_BEFORE, PHASE_SCHEMA, PHASE_AFTER } phase;

/* Behind a token of the answer. */
typedef struct place {
    int32_t id;
    phase phase;
    size_t way; /* from PHASE_SCHEMA on */
    size_t at;  /* tokens of form.before or form.after that are written */
    int state;  /* of the grammar, from PHASE_SCHEMA on */
} place;

struct sn_constraint {
    const sn_request *request;
    sn_served_model *served;
    size_t n_prompt;
    way *ways; /* (n_ways) one of them; 0: all texts are allowed */
    size_t n_ways;
    sn_buf places;     /* place: of the answer so far */
    uint32_t *count;   /* (vocab) how often each token occurs in the answer, 0 between calls; NULL: no penalties */
    uint64_t *allowed; /* (vocab) bits, while a mask is made */
    size_t words;      /* of allowed */
    bool failed;
    sn_openai_error error;
};

/* -- making one -- */

static bool take_schema(sn_constraint *c, const json_t *schema, const char *param, sn_compiled_schema **out,
                        sn_openai_error *error) {
    sn_err err;
    sn_status status = sn_served_model_take_schema(c->served, schema, out, &err);
    if (!status) return true;
    sn_openai_fail_err(error, &err);
    if (status == SN_REFUSED) sn_openai_fail(error, 400, "unsupported_schema", param, "%s", err.text);
    return false;
}

/* The arguments follow the tool's schema; one that cannot be kept exactly, and need not be, stands for any object. */
static bool add_call(sn_constraint *c, const json_t *function, sn_openai_error *error) {
    way *w = &c->ways[c->n_ways++];
    if (!sn_call_form_init(&w->form, c->request, c->served, function, error)) return false;
    json_t *parameters = json_copy(json_object_get(function, "parameters"));
    json_object_set_new(parameters, "type", json_string("object"));
    bool ok = take_schema(c, parameters, "tools", &w->schema, error);
    json_decref(parameters);
    if (ok || json_is_true(json_object_get(function, "strict")) || error->status != 400) return ok;
    json_t *any = json_pack("{s:s}", "type", "object");
    ok = take_schema(c, any, "tools", &w->schema, error);
    json_decref(any);
    return ok;
}

static bool add_calls(sn_constraint *c, sn_openai_error *error) {
    const sn_request *q = c->request;
    for (size_t i = 0; i < json_array_size(q->functions); i++) {
        const json_t *function = json_array_get(q->functions, i);
        const char *name = json_string_value(json_object_get(function, "name"));
        if (q->tool_choice == SN_TOOLS_NAMED && strcmp(name, q->tool_name)) continue;
        if (!add_call(c, function, error)) return false;
    }
    return true;
}

bool sn_constraint_new(const sn_request *request, sn_served_model *served, size_t n_prompt, bool thinks,
                       sn_constraint **out, sn_openai_error *error) {
    sn_err err;
    sn_constraint *c = NULL;
    bool penalties = request->presence_penalty != 0 || request->frequency_penalty != 0;
    bool calls = request->tool_choice >= SN_TOOLS_REQUIRED, masks = request->schema || calls;
    size_t vocab = (size_t)swarm_model_vocab(sn_served_model_get(served));
    *out = NULL;
    if (masks && thinks)
        return sn_openai_fail(
            error, 400, "unsupported_parameter", calls ? "tool_choice" : "response_format",
            "this model's answers begin with a thought, whose end is not known: switch thinking off, as "
            "by 'chat_template_kwargs': {\"enable_thinking\": false}");
    if (!penalties && !request->n_biases && !masks) return true;
    if (sn_calloc(&c, 1, sizeof *c, &err)) return sn_openai_fail_err(error, &err);
    c->request = request;
    c->served = served;
    c->n_prompt = n_prompt;
    c->words = (vocab + 63) / 64;
    sn_buf_init(&c->places, SIZE_MAX);
    sn_status status = sn_calloc(&c->ways, calls ? json_array_size(request->functions) : 1, sizeof *c->ways, &err);
    if (!status && penalties) status = sn_calloc(&c->count, vocab, sizeof *c->count, &err);
    if (!status) status = sn_calloc(&c->allowed, c->words, sizeof *c->allowed, &err);
    bool ok = !status || sn_openai_fail_err(error, &err);
    if (ok && calls) ok = add_calls(c, error);
    if (ok && request->schema) {
        const char *param =
            request->kind == SN_REQUEST_CHAT ? "response_format.json_schema.schema" : "text.format.schema";
        ok = take_schema(c, request->schema, param, &c->ways[c->n_ways++].schema, error);
    }
    if (!ok) sn_constraint_free(&c);
    *out = c;
    return ok;
}

void sn_constraint_free(sn_constraint **constraint) {
    sn_constraint *c = *constraint;
    if (!c) return;
    for (size_t i = 0; i < c->n_ways; i++) {
        sn_call_form_fini(&c->ways[i].form);
        sn_served_model_return_schema(c->served, &c->ways[i].schema, !c->failed);
    }
    sn_buf_fini(&c->places);
    free(c->ways);
    free(c->count);
    free(c->allowed);
    free(c);
    *constraint = NULL;
}

bool sn_constraint_failed(const sn_constraint *c, sn_openai_error *error) {
    if (!c || !c->failed) return false;
    *error = c->error;
    return true;
}

/* -- penalties -- */

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

/* -- the walk -- */

/* Whether the first n tokens of the answer begin what stands before this way's text. */
static bool begins(const way *w, const int32_t *answer, size_t n) {
    return n <= w->form.n_before && (!n || !memcmp(w->form.before, answer, n * sizeof *answer));
}

/* The place behind the first n tokens of the answer, all of which are `before` some way's text. */
static place before_text(const sn_constraint *c, const int32_t *answer, size_t n) {
    for (size_t i = 0; i < c->n_ways; i++)
        if (n == c->ways[i].form.n_before && begins(&c->ways[i], answer, n))
            return (place){.phase = PHASE_SCHEMA, .way = i, .state = sn_grammar_begin(c->ways[i].schema->grammar)};
    return (place){.phase = PHASE_BEFORE, .at = n};
}

static sn_status take_step(const sn_constraint *c, const int32_t *answer, size_t n, const place *from, place *to,
                           sn_err *err) {
    const int32_t id = answer[n - 1];
    size_t len;
    if (from->phase == PHASE_BEFORE) {
        *to = before_text(c, answer, n);
    } else {
        const way *w = &c->ways[from->way];
        sn_grammar *grammar = w->schema->grammar;
        *to = *from;
        bool leaves = from->phase == PHASE_SCHEMA && w->form.n_after && w->form.after[0] == id &&
                      sn_grammar_may_end(grammar, from->state);
        if (leaves || from->phase == PHASE_AFTER) {
            to->phase = PHASE_AFTER;
            to->at++;
        } else {
            const char *bytes = sn_token_bytes_of(sn_served_model_tokens(c->served), (size_t)id, &len);
            sn_status status = sn_grammar_advance(grammar, from->state, bytes, len, &to->state, err);
            if (status) return status;
        }
    }
    to->id = id;
    return SN_OK;
}

/* The place behind the answer. */
static sn_status follow(sn_constraint *c, const int32_t *answer, size_t n, place *out, sn_err *err) {
    size_t known = 0, have = c->places.len / sizeof(place);
    const place *places = (const place *)(const void *)c->places.data;
    while (known < have && known < n && places[known].id == answer[known]) known++;
    *out = known ? places[known - 1] : before_text(c, answer, 0);
    c->places.len = known * sizeof(place);
    for (; known < n; known++) {
        const place from = *out;
        sn_status status = take_step(c, answer, known + 1, &from, out, err);
        if (!status) status = sn_buf_append(&c->places, out, sizeof *out, err);
        if (status) return status;
    }
    return SN_OK;
}

static void allow(sn_constraint *c, int32_t id) { c->allowed[id / 64] |= UINT64_C(1) << (id % 64); }

static void allow_end(sn_constraint *c) {
    size_t n;
    const int32_t *ending = sn_served_model_ending(c->served, &n);
    for (size_t i = 0; i < n; i++) allow(c, ending[i]);
}

static sn_status collect_allowed(sn_constraint *c, const int32_t *answer, size_t n, const place *here, sn_err *err) {
    const way *w = &c->ways[here->way];
    const uint64_t *mask = NULL;
    memset(c->allowed, 0, c->words * sizeof *c->allowed);
    if (here->phase == PHASE_BEFORE) {
        for (size_t i = 0; i < c->n_ways; i++)
            if (n < c->ways[i].form.n_before && begins(&c->ways[i], answer, n)) allow(c, c->ways[i].form.before[n]);
        return SN_OK;
    }
    size_t at = here->phase == PHASE_AFTER ? here->at : 0;
    bool text_may_end = here->phase == PHASE_AFTER || sn_grammar_may_end(w->schema->grammar, here->state);
    if (here->phase == PHASE_SCHEMA) {
        sn_status status = sn_token_masks_get(w->schema->masks, here->state, &mask, err);
        if (status) return status;
        memcpy(c->allowed, mask, c->words * sizeof *mask);
    }
    if (text_may_end && at < w->form.n_after) allow(c, w->form.after[at]);
    if (text_may_end && at == w->form.n_after) allow_end(c);
    return SN_OK;
}

static void apply_mask(sn_constraint *c, const int32_t *answer, size_t n, float *logits, size_t vocab) {
    sn_err err;
    place here;
    sn_status status = follow(c, answer, n, &here, &err);
    if (!status) status = collect_allowed(c, answer, n, &here, &err);
    if (status) {
        c->failed = true;
        sn_openai_fail_err(&c->error, &err);
        return;
    }
    for (size_t id = 0; id < vocab; id++)
        if (!(c->allowed[id / 64] >> (id % 64) & 1)) logits[id] = -INFINITY;
}

void sn_constraint_apply(void *constraint, const int32_t *ids, size_t n, float *logits, size_t vocab) {
    sn_constraint *c = constraint;
    const sn_request *q = c->request;
    if (c->failed || n < c->n_prompt) return;
    if (c->count) apply_penalties(c, ids + c->n_prompt, n - c->n_prompt, logits);
    for (size_t i = 0; i < q->n_biases; i++) logits[q->biases[i].id] += q->biases[i].bias;
    if (c->n_ways) apply_mask(c, ids + c->n_prompt, n - c->n_prompt, logits, vocab);
}
