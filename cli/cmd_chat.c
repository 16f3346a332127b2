/* swarm chat: opening, reading what the user writes, and the end.
 *
 * Where a person types (standard input and standard error are terminals), the line editor reads messages; a failed turn
 * is reported, and the chat goes on. Other input has one turn in each line, and the first failed turn ends the chat.
 * While input is awaited, the session is polled, so that a draining node can move it. Log lines wait while a person
 * reads an answer: they appear behind it, or above the prompt. */
#include "base/log.h"
#include "cli/program.h"
#include "cli/chat.h"
#include "cli/chat_conversation.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/terminal/history.h"
#include "cli/terminal/lines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PRESSES_MAX = 3 }; /* Ctrl-C: the first one stops the call in progress, the third one ends the process */

static const char *system_text;
static sn_sampling_settings *const sampling = &sn_program_settings.sampling;

static const sn_option chat_options[] = {
    SN_OPT_STRING("system", "TEXT", &system_text, "the system message (default: that of the chat template)"),
};
static const sn_option_group chat_group = SN_OPTION_GROUP("Conversation:", chat_options);

/* -- sampling -- */

/* An answer goes on until the model stops. */
static void prepare(int argc, char *const *argv) {
    (void)argc, (void)argv;
    sampling->max_tokens = 0;
}

/* As the C API samples answers: shown by /set, and changed there. */
static void fill_sampling(const json_t *answers) {
    double *const values[] = {&sampling->temperature, &sampling->top_p, &sampling->min_p, &sampling->repeat_penalty};
    static const char *const names[] = {"temperature", "top_p", "min_p", "repeat_penalty"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (isnan(*values[i])) *values[i] = json_number_value(json_object_get(answers, names[i]));
    if (sampling->top_k == SN_INT_UNSET) sampling->top_k = json_integer_value(json_object_get(answers, "top_k"));
}

/* -- a turn -- */

static sn_status take_turn(sn_chat *c, const char *text, size_t n, sn_err *err) {
    size_t before = json_array_size(c->messages);
    sn_status status = sn_conversation_add(c->messages, "user", text, n, err);
    return status ? status : sn_chat_answer(c, before, err);
}

/* "/word ..." in one line (a system message may have several); "/usr/bin is ..." and "/" followed by a star are none.
 */
static bool is_command(const char *text, size_t n) {
    size_t word = strcspn(text, " \t\n");
    if (*text != '/' || strchr("* \t\n", text[1]) || memchr(text + 1, '/', word - 1) || strlen(text) != n) return false;
    return !memchr(text, '\n', n) || !strncmp(text, "/system ", strlen("/system "));
}

/* A line or message: a command or a turn. What a person can repeat or mend is reported, and is no failure. */
static sn_status take_input(sn_chat *c, const char *text, size_t n, sn_err *err) {
    if (!n) return SN_OK;
    bool command = is_command(text, n);
    sn_status status = command ? sn_chat_run_command(c, text, err) : take_turn(c, text, n, err);
    bool mendable = c->terminal || (command && status == SN_REFUSED);
    if (status && mendable && status != SN_STOP && !ferror(stdout)) {
        fprintf(stderr, "[%s]\n", err->text);
        sn_chat_clear_interrupt(c);
        status = SN_OK;
    }
    return status ? status : sn_flush_stdout(err);
}

static void poll_session(void *chat) {
    const sn_chat *c = chat;
    swarm_error *error = NULL;
    if (swarm_session_poll(c->swarm.session, &error))
        swarm_error_free(error); /* the next turn meets the failure, too */
}

/* Ctrl-C at an empty prompt: true the second time in a row, which ends the chat. */
static bool second_interrupt(sn_chat *c, int *in_a_row) {
    sn_chat_clear_interrupt(c);
    if (++*in_a_row > 1) return true;
    fputs("[Ctrl-C again, /quit or Ctrl-D ends the chat]\n", stderr);
    return false;
}

/* -- reading from a person -- */

static void take_log(void *chat, sn_buf *out) {
    (void)chat;
    sn_log_take(out);
}

static sn_status talk(sn_chat *c, sn_editor *editor, int *code, sn_err *err) {
    int interrupts = 0;
    sn_status status = SN_OK;
    while (!status && !c->quit) {
        sn_buf message;
        sn_editor_event event;
        sn_buf_init(&message, SN_EDITOR_PASTE_MAX);
        status = sn_editor_read(editor, &message, &event, err);
        if (event == SN_EDITOR_INTERRUPT)
            c->quit = second_interrupt(c, &interrupts);
        else
            interrupts = 0;
        if (c->quit) *code = SN_EXIT_INTERRUPTED;
        if (event == SN_EDITOR_END) c->quit = true;
        if (event == SN_EDITOR_DROPPED) sn_chat_clear_interrupt(c);
        if (event == SN_EDITOR_MESSAGE && !status) status = take_input(c, (char *)message.data, message.len, err);
        sn_buf_fini(&message);
        if (status == SN_REFUSED && !ferror(stdout)) { /* a paste beyond the limit */
            fprintf(stderr, "[%s]\n", err->text);
            status = SN_OK;
        }
    }
    return status;
}

static sn_status chat_at_terminal(sn_chat *c, int *code, sn_err *err) {
    char history[SN_PATH_SIZE];
    const char *no_color = getenv("NO_COLOR");
    sn_editor *editor;
    sn_editor_options options = {.program = "swarm",
                                 .prompt = "> ",
                                 .history = sn_history_path(history) ? history : NULL,
                                 .styles = !no_color || !*no_color,
                                 .interrupt = &sn_interrupt,
                                 .ctx = c,
                                 .idle = poll_session,
                                 .notices = take_log,
                                 .complete = sn_chat_complete};
    const char *name = json_string_value(json_object_get(c->description, "name"));
    fprintf(stderr, "[%s; /help lists commands]\n", name ? name : c->path);
    sn_status status = sn_editor_open(&options, &editor, err);
    if (status) return status;
    sn_log_keep(true);
    status = talk(c, editor, code, err);
    sn_editor_close(&editor);
    sn_log_keep(false);
    return status;
}

/* -- reading lines -- */

static sn_status chat_in_lines(sn_chat *c, int *code, sn_err *err) {
    sn_lines lines;
    sn_lines_init(&lines);
    lines.interrupt = &sn_interrupt;
    lines.idle = poll_session;
    lines.ctx = c;
    int interrupts = 0;
    sn_status status = SN_OK;
    while (!status && !c->quit) {
        const char *line;
        size_t n;
        sn_line_event event;
        status = sn_lines_next(&lines, &line, &n, &event, err);
        if (status || event == SN_LINE_END) break;
        if (event == SN_LINE_INTERRUPT) {
            c->quit = second_interrupt(c, &interrupts);
            if (c->quit) *code = SN_EXIT_INTERRUPTED;
            continue;
        }
        interrupts = 0;
        status = take_input(c, line, n, err);
    }
    sn_lines_fini(&lines);
    return status;
}

/* -- opening and saving -- */

/* A model without a chat template is refused before the session is opened. */
static sn_status check_template(const sn_chat *c, sn_err *err) {
    static const char request[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}";
    char *text;
    size_t n;
    swarm_error *error = NULL;
    sn_status status = sn_cli_status(
        swarm_model_render_chat(c->swarm.model, request, sizeof request - 1, &text, &n, NULL, NULL, &error), &error,
        err);
    if (!status) swarm_free(text);
    return status;
}

static sn_status open_model(sn_chat *c, sn_err *err) {
    sn_status status = sn_cli_session_begin(&c->swarm, PRESSES_MAX, sn_editor_restore_terminal, err);
    if (!status) status = sn_cli_describe_model(c->swarm.model, &c->description, err);
    if (status) return status;
    fill_sampling(json_object_get(c->description, "answer_sampling"));
    return check_template(c, err);
}

static sn_status open_session(sn_chat *c, sn_err *err) {
    swarm_error *error = NULL;
    char *text = NULL;
    json_t *session;
    sn_status status = sn_cli_session_open(&c->swarm, sn_program_settings.api.timeline, err);
    if (status) return status;
    status = sn_cli_status(swarm_session_describe(c->swarm.session, &text, NULL, &error), &error, err);
    if (!status) status = sn_cli_json(text, &session, err);
    if (status) return status;
    c->context = (size_t)json_integer_value(json_object_get(session, "context"));
    json_decref(session);
    return SN_OK;
}

/* The conversation of --load, or a new one. */
static sn_status begin_conversation(sn_chat *c, sn_err *err) {
    size_t n;
    if (!sn_program_settings.session.load)
        return system_text ? sn_conversation_set_system(c->messages, system_text, err) : SN_OK;
    const char *extra = swarm_session_extra(c->swarm.session, &n);
    json_t *messages = extra ? json_loadb(extra, n, JSON_ALLOW_NUL, NULL) : NULL;
    if (!messages || sn_conversation_check(messages, err)) {
        json_decref(messages);
        return sn_fail(err, SN_REFUSED, "the saved session is no conversation: continue it with swarm generate --load");
    }
    json_decref(c->messages);
    c->messages = messages;
    return SN_OK;
}

static sn_status save_session(const sn_chat *c, sn_err *err) {
    char *extra = json_dumps(c->messages, JSON_COMPACT);
    sn_status status = extra ? sn_cli_session_save(&c->swarm, extra, err)
                             : sn_fail(err, SN_STOP, "out of memory for the conversation");
    free(extra);
    return status;
}

static void close_chat(sn_chat *c) {
    sn_cli_session_close(&c->swarm);
    json_decref(c->description);
    json_decref(c->messages);
    free(c->file);
    sn_answer_view_fini(&c->view);
}

static sn_status chat_main(const sn_options *options, int *code, sn_err *err) {
    sn_chat c = {.messages = json_array(),
                 .path = sn_program_settings.common.model,
                 .terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO)};
    (void)options;
    sn_answer_view_init(&c.view, sn_view_kind_of_stdout());
    sn_status status = c.messages ? open_model(&c, err) : sn_fail(err, SN_STOP, "out of memory for a chat");
    if (!status) status = open_session(&c, err);
    if (!status) status = begin_conversation(&c, err);
    if (!status) status = c.terminal ? chat_at_terminal(&c, code, err) : chat_in_lines(&c, code, err);
    if (!status) status = save_session(&c, err);
    close_chat(&c);
    return status;
}

static const sn_option_group *const groups[] = {&sn_group_chosen_model, &sn_group_adapter, &chat_group,
                                                &sn_group_sampling,     &sn_group_draft,   &sn_group_connection,
                                                &sn_group_chain,        &sn_group_session, &sn_group_force,
                                                &sn_group_audit,        &sn_group_device,  &sn_group_log};

const sn_cli_command sn_cmd_chat = {
    .command = {.program = "swarm chat",
                .summary = "chat with the model",
                .synopsis = "[--model PATH] (--join HOST:PORT... | --local all) [options]",
                .about =
                    "Chats with the model in the model's chat template. The conversation stays in one session: for "
                    "each turn, only the new tokens are computed. /help lists the commands. Ctrl-C stops an "
                    "answer, Ctrl-D ends the chat. When standard input is no terminal, each line is one turn.\n\n"
                    "What the options do not set is sampled as the model recommends (generation_config.json, or "
                    "the metadata of its GGUF file), else with temperature 0.7 and top-p 0.95. --temperature 0 "
                    "gives always the same answers. The lines that were entered are kept in swarm/history in "
                    "XDG_STATE_HOME or ~/.local/state.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .prepare = prepare,
    .run = chat_main,
};
