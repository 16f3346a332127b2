#include "gateway/grammar/answer_grammar.h"

#include "base/mem.h"
#include "gateway/grammar/grammar_private.h"

#include <stdlib.h>
#include <string.h>

enum { SPACES_MAX = 4 }; /* between a thought and what must follow it */

typedef struct builder {
    sn_grammar *g;
    const sn_answer_shape *shape;
    int *arguments; /* (n_calls) rules */
    int tail;       /* rule: what follows a call's arguments */
    int end;        /* where free text may end */
} builder;

static int add_text(builder *b, const char *text, int next) { return sn_add_literal(b->g, text, strlen(text), next); }

/* -- calls -- */

static int add_arguments(builder *b, const sn_call_shape *call) {
    sn_err err;
    sn_grammar *probe = NULL;
    sn_status status = call->strict ? SN_OK : sn_grammar_from_schema(call->schema, &probe, &err);
    sn_grammar_free(&probe);
    if (status != SN_REFUSED) return sn_add_schema(b->g, call->schema, SN_END);
    json_t *any = json_pack("{s:s}", "type", "object");
    int at = any ? sn_add_schema(b->g, any, SN_END) : sn_grammar_fail(b->g, SN_STOP, "out of memory for a grammar");
    json_decref(any);
    return at;
}

static int add_call(builder *b, size_t i, const char *before, int otherwise) {
    if (!before) return otherwise;
    int arguments = sn_add_call(b->g, b->arguments[i], sn_add_call(b->g, b->tail, SN_END));
    return sn_add_split(b->g, add_text(b, before, arguments), otherwise);
}

/* One call or more, each from behind this mark on. */
static int add_calls(builder *b, size_t mark) {
    int at = sn_add_fail(b->g);
    for (size_t i = 0; i < b->shape->n_calls; i++) at = add_call(b, i, b->shape->calls[i].before[mark], at);
    return at;
}

static void make_call_rules(builder *b) {
    const sn_answer_shape *s = b->shape;
    b->tail = sn_add_rule(b->g);
    for (size_t i = 0; i < s->n_calls; i++) {
        b->arguments[i] = sn_add_rule(b->g);
        sn_set_rule(b->g, b->arguments[i], add_arguments(b, &s->calls[i]));
    }
    int at = s->n_calls ? add_text(b, s->after, SN_END) : SN_END;
    for (size_t i = 0; i < s->n_calls; i++) at = add_call(b, i, s->calls[i].again, at);
    sn_set_rule(b->g, b->tail, at);
}

/* -- the parts of an answer -- */

/* Free text, from its beginning on. begins: marks that count at the beginning alone. */
static int add_free_text(builder *b, const sn_search_mark *begins, size_t n_begins) {
    const sn_answer_shape *s = b->shape;
    sn_search_mark marks[SN_CALL_MARKS_MAX + 2];
    size_t n = 0;
    for (; n < s->n_marks; n++) marks[n] = (sn_search_mark){s->marks[n], false, add_calls(b, n)};
    if (!n) marks[n++] = (sn_search_mark){"{", true, add_calls(b, 0)};
    for (size_t i = 0; i < n_begins; i++) marks[n++] = begins[i];
    return sn_add_search(b->g, marks, n, b->end);
}

static int add_thought(builder *b, int next) {
    const sn_search_mark mark = {b->shape->thought_end, false, next};
    return sn_add_search(b->g, &mark, 1, b->end);
}

/* What is not free: a call, or JSON of the schema. */
static int add_form(builder *b) {
    int calls = add_calls(b, 0);
    return b->shape->schema ? sn_add_split(b->g, sn_add_schema(b->g, b->shape->schema, SN_END), calls) : calls;
}

static int add_answer(builder *b) {
    const sn_answer_shape *s = b->shape;
    b->end = s->text ? SN_END : sn_add_fail(b->g);
    make_call_rules(b);
    int space = sn_add_rule(b->g), content = s->text ? add_free_text(b, NULL, 0) : add_form(b);
    sn_set_rule(b->g, space,
                sn_add_split(b->g, sn_add_bytes(b->g, ' ', ' ', SN_END), sn_add_bytes(b->g, '\n', '\n', SN_END)));
    if (!s->thought_end) return content;
    int behind = s->text ? content : sn_add_repeat(b->g, space, 0, SPACES_MAX, content);
    if (s->thinks) return add_thought(b, behind);
    if (!s->text) return content;
    const sn_search_mark begins[] = {{s->thought, true, add_thought(b, content)}, {s->thought_end, true, content}};
    return add_free_text(b, begins, 2);
}

sn_status sn_grammar_from_answer(const sn_answer_shape *shape, sn_grammar **out, sn_err *err) {
    builder b = {.shape = shape};
    *out = NULL;
    sn_status status = sn_calloc(&b.arguments, shape->n_calls, sizeof *b.arguments, err);
    if (!status) status = sn_grammar_new(out, err);
    if (!status) {
        b.g = *out;
        sn_set_begin(b.g, add_answer(&b));
        status = sn_grammar_finish(b.g, err);
    }
    free(b.arguments);
    if (status) sn_grammar_free(out);
    return status;
}
