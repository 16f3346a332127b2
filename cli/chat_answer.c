/* An answer: the prompt is rendered, the session generates, and events bring tokens and text.
 *
 * Text goes to the view as it becomes final. The token ids are collected beside it, because they say more than the
 * text: special tokens part thoughts from answers, and swarm_model_read_answer makes the message of the next turns from
 * ids. Ctrl-C sets the cancel flag: the call then ends within a second, wherever it is, and what was generated stays.
 */
#include "base/clock.h"
#include "base/log.h"
#include "cli/program.h"
#include "cli/chat.h"
#include "cli/chat_conversation.h"
#include "cli/io.h"
#include "cli/progress.h"
#include "client/api/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPECIALS_MAX = 256, TEXT_MAX = 1 << 30, NEARLY_FULL = 8 };

typedef struct special {
    size_t at; /* bytes of text before it */
    char token[32];
} special;

typedef struct answer {
    sn_chat *chat;
    int32_t *ids;
    size_t n, capacity;
    sn_buf text;
    special specials[SPECIALS_MAX]; /* what the view must see again after a retraction */
    size_t n_specials;
    char *prompt; /* its text, n_prompt bytes */
    size_t n_prompt;
    bool thinks; /* it ends within a thought */
    int32_t *prompt_ids;
    size_t n_prompt_ids;
    size_t n_reused; /* of these, tokens that the session knew */
    int64_t began_us, first_us, last_us;
    sn_progress_bar *bar;
    json_t *audit;    /* its report, of a call that ended; NULL: none */
    sn_status status; /* of the callback */
    sn_err *err;
} answer;

/* -- events -- */

/* The spelling of a token that has no text of its own; false for all others. */
static bool find_special(const swarm_model *model, int32_t id, char *out, size_t capacity) {
    char *plain = NULL, *spelled = NULL;
    size_t n_plain = 1, n = 0;
    bool found = !swarm_model_detokenize(model, &id, 1, 0, &plain, &n_plain, NULL) && !n_plain &&
                 !swarm_model_detokenize(model, &id, 1, SWARM_TEXT_SPECIAL, &spelled, &n, NULL) && n && n < capacity;
    if (found) memcpy(out, spelled, n + 1);
    swarm_free(plain);
    swarm_free(spelled);
    return found;
}

static sn_status take_token(answer *a, int32_t id) {
    SN_TRY(sn_grow(&a->ids, &a->capacity, a->n + 1, sizeof *a->ids, a->err));
    a->ids[a->n++] = id;
    a->last_us = sn_now_us();
    if (a->n == 1) a->first_us = a->last_us;
    special *s = &a->specials[a->n_specials];
    if (a->n_specials == SPECIALS_MAX || !find_special(a->chat->swarm.model, id, s->token, sizeof s->token))
        return SN_OK;
    s->at = a->text.len;
    a->n_specials++;
    return sn_answer_view_special(&a->chat->view, s->token, a->err);
}

static sn_status take_text(answer *a, const char *text, size_t n) {
    sn_status status = sn_buf_append(&a->text, text, n, a->err);
    if (!status) status = sn_answer_view_text(&a->chat->view, text, n, a->err);
    return status || a->chat->terminal ? status : sn_flush_stdout(a->err);
}

/* An audit found that the text is wrong from byte `kept` on: what stands is shown again. */
static sn_status retract(answer *a, size_t kept, size_t kept_tokens) {
    sn_answer_view *view = &a->chat->view;
    sn_status status = sn_answer_view_end(view, a->err);
    fputs("[audit failed: the text above is wrong, it is printed again]\n", stderr);
    sn_answer_view_begin(view, a->thinks);
    a->n = sn_min_size(kept_tokens, a->n);
    a->text.len = sn_min_size(kept, a->text.len);
    while (a->n_specials && a->specials[a->n_specials - 1].at > a->text.len) a->n_specials--;
    size_t at = 0;
    for (size_t i = 0; i <= a->n_specials && !status; i++) {
        size_t end = i < a->n_specials ? a->specials[i].at : a->text.len;
        status = sn_answer_view_text(view, (char *)a->text.data + at, end - at, a->err);
        if (!status && i < a->n_specials) status = sn_answer_view_special(view, a->specials[i].token, a->err);
        at = end;
    }
    return status;
}

static int on_event(void *context, const swarm_event *event) {
    answer *a = context;
    size_t n;
    const char *text = swarm_event_text(event, &n);
    switch (swarm_event_get_kind(event)) {
    case SWARM_EVENT_PROGRESS:
        sn_progress_bar_set(a->bar, (size_t)swarm_event_number(event, "done"),
                            (size_t)swarm_event_number(event, "total"));
        a->n_reused = (size_t)swarm_event_number(event, "reused");
        break;
    case SWARM_EVENT_TOKEN:
        sn_progress_bar_end(&a->bar);
        a->status = take_token(a, (int32_t)swarm_event_number(event, "id"));
        break;
    case SWARM_EVENT_TEXT:
        a->status = take_text(a, text, n);
        break;
    case SWARM_EVENT_RETRACT:
        a->status =
            retract(a, (size_t)swarm_event_number(event, "kept"), (size_t)swarm_event_number(event, "kept_tokens"));
        break;
    default: /* what else happens is in the log */
        break;
    }
    return a->status || sn_interrupted;
}

/* -- one answer -- */

static sn_status render(answer *a) {
    swarm_error *error = NULL;
    json_t *request = json_pack("{s:O}", "messages", a->chat->messages);
    char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
    sn_status status =
        text ? sn_cli_status(swarm_model_render_chat(a->chat->swarm.model, text, strlen(text), &a->prompt, &a->n_prompt,
                                                     &a->prompt_ids, &a->n_prompt_ids, &error),
                             &error, a->err)
             : sn_fail(a->err, SN_STOP, "out of memory for the conversation");
    free(text);
    json_decref(request);
    return status;
}

/* Runs the generation. *finish: its finish_reason, "interrupted" when it was stopped. */
static sn_status generate(answer *a, char finish[32]) {
    sn_chat *c = a->chat;
    swarm_error *error = NULL;
    char *json = NULL;
    size_t n = 0;
    swarm_options *options = sn_cli_options("generation", NULL, a->err);
    if (!options) return a->err->status;
    swarm_code code = swarm_options_set(options, "answer", "true", &error);
    swarm_session_on_event(c->swarm.session, on_event, a);
    a->thinks = swarm_model_prompt_thinks(c->swarm.model, a->prompt, a->n_prompt);
    sn_answer_view_begin(&c->view, a->thinks);
    a->bar = sn_progress_bar_begin("prompt");
    sn_progress_bar_unit(a->bar, "tokens");
    a->began_us = sn_now_us();
    if (!code)
        code = swarm_session_generate(c->swarm.session, a->prompt_ids, a->n_prompt_ids, options, &json, &n, &error);
    sn_progress_bar_end(&a->bar);
    swarm_session_on_event(c->swarm.session, NULL, NULL);
    swarm_options_free(options);
    snprintf(finish, 32, "interrupted");
    c->last = (sn_chat_figures){.prompt_tokens = a->n_prompt_ids,
                                .reused_tokens = a->n_reused,
                                .answer_tokens = a->n,
                                .first_token_us = a->n ? a->first_us - a->began_us : 0,
                                .decode_us = a->n ? a->last_us - a->first_us : 0};
    if (a->status || (code == SWARM_CANCELLED && sn_interrupted)) {
        swarm_error_free(error);
        swarm_free(json); /* the events have told it */
        return a->status;
    }
    sn_status status = sn_cli_status(code, &error, a->err);
    json_t *result = !json ? NULL : json_loadb(json, n, JSON_ALLOW_NUL, NULL);
    const char *reason = json_string_value(json_object_get(result, "finish_reason"));
    if (reason) snprintf(finish, 32, "%s", reason);
    json_t *timings = json_object_get(result, "timings");
    c->last.reused_tokens = (size_t)json_integer_value(json_object_get(timings, "reused_tokens"));
    a->audit = json_incref(json_object_get(result, "audit"));
    json_decref(result);
    swarm_free(json);
    return status;
}

/* Appends the answer as a message. *empty: it has no text, and nothing was appended. */
static sn_status append_answer(answer *a, bool *empty) {
    char *json;
    size_t n;
    swarm_error *error = NULL;
    int flags = SWARM_ANSWER_ENDS | (a->thinks ? SWARM_ANSWER_THINKS : 0);
    sn_status status = sn_cli_status(
        swarm_model_read_answer(a->chat->swarm.model, NULL, 0, flags, a->ids, a->n, &json, &n, &error), &error, a->err);
    if (status) return status;
    json_t *message = json_loadb(json, n, JSON_ALLOW_NUL, NULL);
    swarm_free(json);
    *empty = !a->n || !json_string_length(json_object_get(message, "content"));
    if (*empty)
        json_decref(message);
    else if (json_array_append_new(a->chat->messages, message))
        return sn_fail(a->err, SN_STOP, "out of memory for the conversation");
    return SN_OK;
}

double sn_chat_tokens_per_second(const sn_chat_figures *f) {
    return f->answer_tokens > 1 && f->decode_us > 0 ? (double)(f->answer_tokens - 1) * 1e6 / (double)f->decode_us : 0;
}

static void print_outcome(const sn_chat *c, const char *finish, bool stopped, bool empty) {
    size_t used, all = c->context;
    const sn_chat_figures *f = &c->last;
    swarm_session_tokens(c->swarm.session, &used);
    if (stopped && empty)
        fputs("[stopped before the answer began: the message is not in the conversation]\n", stderr);
    else if (stopped)
        fprintf(stderr, "[stopped after %zu tokens: they stay in the conversation, /undo removes the turn]\n",
                f->answer_tokens);
    else if (empty)
        fputs("[the model answered nothing: the message is not in the conversation]\n", stderr);
    else if (!strcmp(finish, "length"))
        fprintf(stderr,
                used + 1 >= all ? "[the context of %zu tokens is full and the answer is cut; /reset begins anew]\n"
                                : "[the answer is cut after %zu tokens; /set max-tokens changes the limit]\n",
                used + 1 >= all ? all : f->answer_tokens);
    else if (all - used <= all / NEARLY_FULL)
        fprintf(stderr, "[%zu of %zu tokens of the context are used; /reset begins anew]\n", used, all);
    if (c->terminal && !stopped && !empty)
        fprintf(stderr, "[%zu tokens, %.1f tok/s]\n", f->answer_tokens, sn_chat_tokens_per_second(f));
}

/* Shows the log lines that were kept. */
static void show_log(void) {
    sn_buf lines;
    sn_buf_init(&lines, (size_t)2 * SN_LOG_KEPT_BYTES);
    sn_log_take(&lines);
    if (lines.len) fwrite(lines.data, 1, lines.len, stderr);
    sn_buf_fini(&lines);
}

void sn_chat_clear_interrupt(sn_chat *c) {
    sn_interrupted = 0;
    swarm_cancel_clear(c->swarm.cancel);
}

sn_status sn_chat_answer(sn_chat *c, size_t kept, sn_err *err) {
    answer *a = NULL;
    char finish[32] = "";
    bool empty = true;
    sn_status status = sn_calloc(&a, 1, sizeof *a, err);
    if (status) return status;
    a->chat = c;
    a->err = err;
    sn_buf_init(&a->text, TEXT_MAX);
    status = render(a);
    if (!status) {
        status = generate(a, finish);
        sn_err ended; /* the first failure is the one to be told */
        bool any = a->text.len || (!status && strcmp(finish, "interrupted") != 0);
        sn_status shown = any ? sn_answer_view_end(&c->view, &ended) : SN_OK;
        if (!status && shown) status = sn_fail(err, shown, "%s", ended.text);
    }
    if (!status) status = sn_flush_stdout(err);
    if (!status) status = append_answer(a, &empty);
    if (status || empty) sn_conversation_cut(c->messages, kept);
    show_log();
    if (!status) sn_cli_audit_print(a->audit, "[", "]");
    if (!status) print_outcome(c, finish, !strcmp(finish, "interrupted"), empty);
    sn_chat_clear_interrupt(c);
    sn_buf_fini(&a->text);
    swarm_free(a->prompt);
    swarm_free(a->prompt_ids);
    json_decref(a->audit);
    free(a->ids);
    free(a);
    return status;
}
