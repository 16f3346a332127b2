/* Penalties and biases change logits; a mask then takes away the tokens that are not allowed.
 *
 * What is allowed is a grammar of the whole answer, from a free thought to the end. Its state behind each token of the
 * answer is kept, so that a draft which was not accepted only shortens the list. */
#include "gateway/openai/constraint.h"

#include "base/mem.h"
#include "base/wide_json.h"
#include "gateway/openai/call_form.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VARIABLES_MAX = 16 << 10 }; /* bytes: the template is rendered three times with them for each tool */

/* Behind a token of the answer. */
typedef struct place {
    int32_t id;
    int state;
} place;

struct sn_constraint {
    const sn_request *request;
    sn_served_model *served;
    size_t n_prompt;
    sn_compiled_answer *answer; /* NULL: all texts are allowed */
    sn_buf places;              /* place: of the answer so far */
    uint32_t *count;    /* (vocab) how often each token occurs in the answer, 0 between calls; NULL: no penalties */
    bool forms, thinks; /* forms: the answer has a grammar, which may not be compiled yet */
    bool failed;
    sn_openai_error error;
};

/* -- what the answer may be -- */

/* A text as grammars know it: special tokens between their edges. NULL: memory is out. */
static char *mark_special(const sn_served_model *served, const char *text) {
    int32_t *ids = NULL;
    size_t n = 0, len;
    sn_err err;
    sn_buf out;
    sn_buf_init(&out, SIZE_MAX);
    bool ok =
        !swarm_model_tokenize(sn_served_model_get(served), text, strlen(text), SWARM_TEXT_SPECIAL, &ids, &n, NULL);
    for (size_t i = 0; i < n && ok; i++) {
        const char *bytes = sn_token_bytes_of(sn_served_model_tokens(served), (size_t)ids[i], &len);
        bool begins = !out.len && len && *bytes == ' ' && *text != ' '; /* the space that a tokenizer adds */
        ok = !sn_buf_append(&out, bytes + begins, len - begins, &err);
    }
    ok = ok && !sn_buf_append(&out, "", 1, &err);
    swarm_free(ids);
    if (ok) return (char *)out.data;
    sn_buf_fini(&out);
    return NULL;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Behind a mark in the text, white space of the mark standing for any or none; NULL: it is not there. */
static const char *behind_mark(const char *text, const char *mark) {
    for (; *text; text++) {
        const char *at = text, *m = mark;
        while (*m && (is_space(*m) || *m == *at)) {
            if (!is_space(*m)) at++;
            while (is_space(*m) && is_space(*at)) at++;
            m++;
        }
        if (!*m) return at;
    }
    return NULL;
}

static bool cannot_call(const sn_request *q, sn_openai_error *error) {
    if (q->tool_choice >= SN_TOOLS_REQUIRED)
        return sn_openai_fail(error, 400, "unsupported_parameter", "tool_choice",
                              "with this model's chat template a call cannot be forced: set 'tool_choice' to \"auto\"");
    return sn_openai_fail(error, 400, "unsupported_parameter", q->schema ? "response_format" : "tools",
                          "this model's chat template does not show where a call begins and ends: leave out %s",
                          q->schema ? "the tools or the form of the answer" : "'strict'");
}

/* One tool's call; false: memory is out, or nothing shows how it is written. */
static bool add_call(sn_answer_shape *s, const sn_request *q, const sn_served_model *served, const json_t *variables,
                     const json_t *function) {
    sn_call_shape *call = &s->calls[s->n_calls++];
    sn_call_form form;
    bool one = q->tool_choice >= SN_TOOLS_REQUIRED || !q->parallel_calls, known = false;
    call->strict = json_is_true(json_object_get(function, "strict"));
    call->schema = json_copy(json_object_get(function, "parameters"));
    if (json_object_set_new(call->schema, "type", json_string("object")) ||
        !sn_call_form_init(&form, variables, served, function))
        return false;
    for (size_t i = 0; i < (s->n_marks ? s->n_marks : 1); i++) {
        const char *before = form.before;
        while (s->thinks && !s->text && is_space(*before)) before++;
        if (s->text) before = behind_mark(before, s->n_marks ? s->marks[i] : "{");
        call->before[i] = before ? mark_special(served, before) : NULL;
        known |= call->before[i] != NULL;
    }
    call->again = form.again && !one ? mark_special(served, form.again) : NULL;
    char *after = mark_special(served, form.after);
    known = known && after && (!s->after || !strcmp(s->after, after));
    if (s->after)
        free(after);
    else
        s->after = after;
    sn_call_form_fini(&form);
    return known;
}

static bool add_calls(sn_answer_shape *s, const sn_request *q, const sn_served_model *served, sn_openai_error *error) {
    sn_err err;
    if (sn_calloc(&s->calls, json_array_size(q->functions), sizeof *s->calls, &err))
        return sn_openai_fail_err(error, &err);
    json_t *chat = sn_wide_json_load(q->chat, q->chat_len, 0, NULL); /* once for all tools: it may be large */
    const json_t *variables = json_object_get(chat, "variables");
    bool ok = json_dumpb(variables, NULL, 0, 0) <= VARIABLES_MAX ||
              sn_openai_fail(error, 400, "invalid_value", "chat_template_kwargs",
                             "beside tools whose calls are forced or strict 'chat_template_kwargs' have %d bytes at "
                             "most: make them smaller",
                             VARIABLES_MAX);
    for (size_t i = 0; i < json_array_size(q->functions) && ok; i++) {
        const json_t *function = json_array_get(q->functions, i);
        const char *name = json_string_value(json_object_get(function, "name"));
        if (q->tool_choice == SN_TOOLS_NAMED && strcmp(name, q->tool_name)) continue;
        ok = add_call(s, q, served, variables, function) || cannot_call(q, error);
    }
    json_decref(chat);
    return ok;
}

static void shape_fini(sn_answer_shape *s) {
    for (size_t i = 0; i < s->n_calls; i++) {
        for (size_t k = 0; k < SN_CALL_MARKS_MAX; k++) free(s->calls[i].before[k]);
        free(s->calls[i].again);
        json_decref(s->calls[i].schema);
    }
    free(s->calls);
    free(s->after);
}

static bool any_strict(const sn_request *q) {
    for (size_t i = 0; i < json_array_size(q->functions); i++)
        if (json_is_true(json_object_get(json_array_get(q->functions, i), "strict"))) return true;
    return false;
}

/* Who demands what: a call that is forced is the whole answer; a form counts for answers that are no calls. */
static bool take_answer(sn_constraint *c, sn_openai_error *error) {
    const sn_request *q = c->request;
    const sn_answer_marks *marks = sn_served_model_marks(c->served);
    const bool forced = q->tool_choice >= SN_TOOLS_REQUIRED, calls = forced || q->tool_choice == SN_TOOLS_AUTO;
    sn_answer_shape shape = {.thought = marks->thought,
                             .thought_end = marks->thought_end,
                             .thinks = c->thinks,
                             .text = !forced && !q->schema,
                             .schema = forced ? NULL : q->schema};
    sn_err err;
    if (c->thinks && !marks->thought_end)
        return sn_openai_fail(error, 400, "unsupported_parameter", forced ? "tool_choice" : "response_format",
                              "this model's answers begin with a thought, whose end is not known: switch thinking off, "
                              "as by 'chat_template_kwargs': {\"enable_thinking\": false}");
    if (shape.text) {
        if (!marks->calls_known) return cannot_call(q, error);
        memcpy(shape.marks, marks->calls, sizeof shape.marks);
        shape.n_marks = marks->n_calls;
    }
    bool ok = !calls || add_calls(&shape, q, c->served, error);
    sn_status status = ok ? sn_served_model_take_answer(c->served, &shape, &c->answer, &err) : SN_OK;
    if (status) ok = sn_openai_fail_err(error, &err);
    if (status == SN_REFUSED) {
        sn_grammar *alone = NULL;
        bool form = shape.schema && sn_grammar_from_schema(shape.schema, &alone, &err) == SN_REFUSED;
        const char *param = q->kind == SN_REQUEST_CHAT ? "response_format.json_schema.schema" : "text.format.schema";
        sn_openai_fail(error, 400, "unsupported_schema", form ? param : "tools", "%s", err.text);
        sn_grammar_free(&alone);
    }
    shape_fini(&shape);
    return ok;
}

bool sn_constraint_new(const sn_request *request, sn_served_model *served, const sn_constraint_setup *setup,
                       sn_constraint **out, sn_openai_error *error) {
    sn_err err;
    sn_constraint *c = NULL;
    bool penalties = request->presence_penalty != 0 || request->frequency_penalty != 0;
    bool forms = request->schema || request->tool_choice >= SN_TOOLS_REQUIRED ||
                 (request->tool_choice == SN_TOOLS_AUTO && any_strict(request));
    *out = NULL;
    if (!penalties && !request->n_biases && !forms) return true;
    if (sn_calloc(&c, 1, sizeof *c, &err)) return sn_openai_fail_err(error, &err);
    c->request = request;
    c->served = served;
    c->n_prompt = setup->n_prompt;
    c->thinks = setup->thinks;
    c->forms = forms;
    sn_buf_init(&c->places, SIZE_MAX);
    size_t vocab = (size_t)swarm_model_vocab(sn_served_model_get(served));
    bool ok = !penalties || !sn_calloc(&c->count, vocab, sizeof *c->count, &err) || sn_openai_fail_err(error, &err);
    if (ok && forms && !setup->later) ok = take_answer(c, error);
    if (!ok) sn_constraint_free(&c);
    *out = c;
    return ok;
}

void sn_constraint_free(sn_constraint **constraint) {
    sn_constraint *c = *constraint;
    if (!c) return;
    sn_served_model_return_answer(c->served, &c->answer, !c->failed);
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

/* -- the mask -- */

/* The state behind the answer. */
static sn_status follow(sn_constraint *c, const int32_t *answer, size_t n, int *state, sn_err *err) {
    sn_grammar *grammar = c->answer->grammar;
    size_t known = 0, have = c->places.len / sizeof(place), len;
    const place *places = (const place *)(const void *)c->places.data;
    while (known < have && known < n && places[known].id == answer[known]) known++;
    *state = known ? places[known - 1].state : sn_grammar_begin(grammar);
    c->places.len = known * sizeof(place);
    for (; known < n; known++) {
        const char *bytes = sn_token_bytes_of(sn_served_model_tokens(c->served), (size_t)answer[known], &len);
        sn_status status = sn_grammar_advance(grammar, *state, bytes, len, state, err);
        const place here = {answer[known], *state};
        if (!status) status = sn_buf_append(&c->places, &here, sizeof here, err);
        if (status) return status;
    }
    return SN_OK;
}

static void apply_mask(sn_constraint *c, const int32_t *answer, size_t n, float *logits, size_t vocab) {
    sn_err err;
    int state;
    const uint64_t *mask;
    sn_status status = follow(c, answer, n, &state, &err);
    if (!status) status = sn_token_masks_get(c->answer->masks, state, &mask, &err);
    if (status) {
        c->failed = true;
        sn_openai_fail_err(&c->error, &err);
        return;
    }
    const bool may_end = sn_grammar_may_end(c->answer->grammar, state);
    for (size_t id = 0; id < vocab; id++)
        if (!(mask[id / 64] >> (id % 64) & 1) && !(may_end && sn_served_model_ends(c->served, (int32_t)id)))
            logits[id] = -INFINITY;
}

void sn_constraint_apply(void *constraint, const int32_t *ids, size_t n, float *logits, size_t vocab) {
    sn_constraint *c = constraint;
    const sn_request *q = c->request;
    if (c->failed || n < c->n_prompt) return;
    if (c->count) apply_penalties(c, ids + c->n_prompt, n - c->n_prompt, logits);
    for (size_t i = 0; i < q->n_biases; i++) logits[q->biases[i].id] += q->biases[i].bias;
    if (c->forms && !c->answer) c->failed = !take_answer(c, &c->error);
    if (c->answer) apply_mask(c, ids + c->n_prompt, n - c->n_prompt, logits, vocab);
}
