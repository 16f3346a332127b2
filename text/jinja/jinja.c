/* The two entries of the room: parsing and rendering. Failures below return here by longjmp (run_private.h). */
#include "text/jinja/jinja.h"

#include "text/jinja/render_private.h"
#include "text/tokenizer/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { PARSE_STEPS = 1 << 24, PARSE_MEMORY = 512 << 20, PARSE_DEPTH = 400 };

struct sn_jinja {
    sn_jrun run; /* owns the memory of the tree */
    sn_jnodes body;
};

static void parse_source(sn_jinja *t, const char *source, size_t len) {
    if (setjmp(t->run.out)) return;
    sn_jparser p = {.run = &t->run, .at = sn_jlex(&t->run, source, len)};
    t->body = sn_jparse(&p);
}

sn_status sn_jinja_parse(const char *source, size_t len, sn_jinja **out, sn_err *err) {
    sn_err ignored;
    *out = NULL;
    if (len > SN_JINJA_SOURCE_MAX)
        return sn_fail(err, SN_REFUSED, "the chat template has %zu bytes; at most %d are taken", len,
                       SN_JINJA_SOURCE_MAX);
    if (len && !sn_utf8_valid(source, len)) return sn_fail(err, SN_REFUSED, "the chat template is not valid UTF-8");
    sn_jinja *t;
    sn_status status = sn_calloc(&t, 1, sizeof *t, err);
    if (status) return status;
    t->run.limits = (sn_jinja_limits){.steps = PARSE_STEPS, .memory = PARSE_MEMORY, .depth = PARSE_DEPTH};
    t->run.err = err ? err : &ignored;
    parse_source(t, source, len);
    t->run.err = NULL;
    status = t->run.status;
    if (status) sn_jinja_free(&t);
    *out = t;
    return status;
}

void sn_jinja_free(sn_jinja **template) {
    if (!*template) return;
    sn_jrun_free(&(*template)->run);
    free(*template);
    *template = NULL;
}

sn_jinja_limits sn_jinja_default_limits(void) {
    return (sn_jinja_limits){.steps = 20000000, .memory = (size_t)512 << 20, .output = (size_t)32 << 20, .depth = 800};
}

void sn_jinja_text_fini(sn_jinja_text *text) {
    free(text->text);
    free(text->marks);
    *text = (sn_jinja_text){0};
}

static void render_body(sn_jrun *run, const sn_jinja *template, const sn_jinja_input *input, sn_jtext *out) {
    if (setjmp(run->out)) return;
    *out = sn_jtext_new(run);
    sn_jvalue variables = sn_jfrom_json(run, input->variables, input->is_own, SN_JINJA_DATA);
    sn_jvalue own = input->own ? sn_jfrom_json(run, input->own, NULL, 0) : sn_jnone();
    sn_jrender r = {.run = run,
                    .variables = variables.dict,
                    .own = own.kind == SN_J_DICT ? own.dict : NULL,
                    .now = input->now,
                    .out = out};
    r.scope = sn_jscope_new(&r, NULL);
    sn_jrun_body(&r, &template->body);
}

sn_status sn_jinja_render(const sn_jinja *template, const sn_jinja_input *input, sn_jinja_text *out, sn_err *err) {
    sn_err ignored;
    *out = (sn_jinja_text){0};
    if (!json_is_object(input->variables))
        return sn_fail(err, SN_REFUSED, "the variables of a chat template are not a JSON object");
    sn_jrun *run;
    sn_jtext text = {0};
    sn_status status = sn_calloc(&run, 1, sizeof *run, err);
    if (status) return status;
    run->limits = input->limits;
    run->err = err ? err : &ignored;
    run->line = 1;
    render_body(run, template, input, &text);
    status = run->status;
    if (!status) status = sn_calloc(&out->text, text.len + 1, 1, err);
    if (!status) status = sn_calloc(&out->marks, text.len + 1, 1, err);
    if (!status && text.len) {
        memcpy(out->text, text.text, text.len);
        memcpy(out->marks, text.marks, text.len);
        out->len = text.len;
    }
    if (status) sn_jinja_text_fini(out);
    sn_jrun_free(run);
    free(run);
    return status;
}
