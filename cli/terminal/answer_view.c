#include "cli/terminal/answer_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUT_MAX = 1 << 28, CLEAN_PART = 1024 };

sn_view_kind sn_view_kind_of_stdout(void) {
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if (!isatty(STDOUT_FILENO)) return SN_VIEW_EXACT;
    if (no_color && *no_color) return SN_VIEW_PLAIN;
    return term && *term && strcmp(term, "dumb") != 0 ? SN_VIEW_STYLED : SN_VIEW_PLAIN;
}

/* Shows what is in view->out. Text in it was cleaned; its escape sequences are ours. */
static sn_status flush_view(sn_answer_view *v, sn_err *err) {
    sn_status status = SN_OK;
    if (v->kind == SN_VIEW_EXACT) {
        if (v->out.len) fwrite(v->out.data, 1, v->out.len, stdout);
        fflush(stdout);
    } else if (v->out.len) {
        status = sn_buf_append(&v->out, "", 1, err);
        if (!status) sn_terminal_control(stdout, (char *)v->out.data);
    }
    v->out.len = 0;
    return status;
}

static sn_status put(sn_answer_view *v, const char *text, sn_err *err) {
    return sn_buf_append(&v->out, text, strlen(text), err);
}

/* Ends the part that is shown now, and begins another one. */
static sn_status enter_part(sn_answer_view *v, bool thought, sn_err *err) {
    sn_status status = SN_OK;
    bool styled = v->kind == SN_VIEW_STYLED;
    if (v->part == SN_VIEW_ANSWER) status = sn_markdown_end(&v->markdown, &v->out, err);
    if (!status && v->part != SN_VIEW_NOTHING) status = put(v, styled ? "\033[0m\n\n" : "\n\n", err);
    if (!status && thought) status = put(v, styled ? "\033[2m" : "[thinking]\n", err);
    if (!status && !thought && v->part == SN_VIEW_THOUGHT && !styled) status = put(v, "[answer]\n", err);
    v->part = thought ? SN_VIEW_THOUGHT : SN_VIEW_ANSWER;
    v->clean = (sn_terminal_text){0};
    return status;
}

static sn_status show_part(void *ctx, bool thought, const char *text, size_t n, sn_err *err) {
    sn_answer_view *v = ctx;
    sn_status status = SN_OK;
    if (v->kind == SN_VIEW_EXACT) return thought ? SN_OK : sn_buf_append(&v->out, text, n, err);
    if (v->part != (thought ? SN_VIEW_THOUGHT : SN_VIEW_ANSWER)) status = enter_part(v, thought, err);
    for (size_t at = 0, part; at < n && !status; at += part) {
        char clean[3 * (CLEAN_PART + 4)];
        part = sn_min_size(CLEAN_PART, n - at);
        size_t bytes = sn_terminal_clean(&v->clean, text + at, part, clean);
        if (v->kind == SN_VIEW_STYLED && !thought)
            status = sn_markdown_push(&v->markdown, clean, bytes, &v->out, err);
        else
            status = sn_buf_append(&v->out, clean, bytes, err);
    }
    return status;
}

void sn_answer_view_init(sn_answer_view *v, sn_view_kind kind) {
    *v = (sn_answer_view){.kind = kind, .reasoning = {.on_text = show_part, .ctx = v}};
    sn_markdown_init(&v->markdown);
    sn_buf_init(&v->out, OUT_MAX);
}

void sn_answer_view_fini(sn_answer_view *v) {
    sn_markdown_fini(&v->markdown);
    sn_buf_fini(&v->out);
}

void sn_answer_view_begin(sn_answer_view *v, bool thinks) {
    sn_reasoning_begin(&v->reasoning, thinks);
    v->part = SN_VIEW_NOTHING;
}

sn_status sn_answer_view_text(sn_answer_view *v, const char *text, size_t n, sn_err *err) {
    sn_status status = sn_reasoning_push(&v->reasoning, text, n, err);
    return status ? status : flush_view(v, err);
}

sn_status sn_answer_view_special(sn_answer_view *v, const char *token, sn_err *err) {
    sn_status status = sn_reasoning_special(&v->reasoning, token, err);
    return status ? status : flush_view(v, err);
}

sn_status sn_answer_view_end(sn_answer_view *v, sn_err *err) {
    sn_status status = sn_reasoning_end(&v->reasoning, err);
    if (!status && v->part == SN_VIEW_ANSWER) status = sn_markdown_end(&v->markdown, &v->out, err);
    if (!status) status = put(v, v->part == SN_VIEW_THOUGHT && v->kind == SN_VIEW_STYLED ? "\033[0m\n" : "\n", err);
    v->part = SN_VIEW_NOTHING;
    return status ? status : flush_view(v, err);
}
