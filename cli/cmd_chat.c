/* swarm chat: a conversation in one session.
 *
 * The conversation is a list of turns. For each new turn of the user, the chat template renders the whole list, and the
 * generator computes only the tokens that its session does not hold yet; the reply becomes the next turn. Input is read
 * line by line from stdin, one turn a line; while the program waits for a line it polls the chain, so that a draining
 * node can migrate its KV cache. On a terminal a prompt mark ("> ") and figures are shown on stderr, and a failed turn
 * is reported and can be repeated; with other input the first failure ends the chat. --save stores the turns as the
 * extra JSON of the session file, and --load restores them. */
#include "cli/command.h"
#include "cli/io.h"
#include "cli/progress.h"
#include "cli/setup.h"
#include "client/api/report.h"
#include "model/chat/chat_template.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POLL_MS = 200, TURNS_MAX = 4096, LINE_MAX_BYTES = 1 << 20, DEFAULT_CONTEXT = 8192, NEARLY_FULL = 8 };

static const char *system_text;

static const sn_option chat_options[] = {
    SN_OPT_STRING("system", "TEXT", &system_text, "the system message (default: that of the chat template)"),
};
static const sn_option_group chat_group = SN_OPTION_GROUP("Conversation:", chat_options);

typedef struct chat {
    sn_setup *setup;
    sn_generator *generator;
    int context;
    bool terminal;
    sn_buf input; /* read from stdin, and not yet used */
    bool input_ended;
    sn_chat_template *template;
    json_t *messages; /* the turns so far */
} chat;

/* -- turns -- */

static void drop_turns(chat *c, size_t from) {
    while (json_array_size(c->messages) > from) json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

static sn_status add_turn(chat *c, const char *role, const char *text, size_t len, sn_err *err) {
    if (json_array_size(c->messages) == TURNS_MAX)
        return sn_fail(err, SN_REFUSED, "the conversation has %d turns, which is the limit; /reset begins a new one",
                       (int)TURNS_MAX);
    return sn_chat_add_message(c->messages, role, text, len, err);
}

static sn_status reset_turns(chat *c, sn_err *err) {
    drop_turns(c, 0);
    return system_text ? add_turn(c, "system", system_text, strlen(system_text), err) : SN_OK;
}

/* -- reading -- */

/* Moves the first line of c->input to *line (free with free()); false when there is no whole line yet. */
static bool pop_line(chat *c, char **line) {
    char *end = c->input.len ? memchr(c->input.data, '\n', c->input.len) : NULL;
    size_t len = end ? (size_t)(end - (char *)c->input.data) : c->input.len;
    if (!end && !(c->input_ended && c->input.len)) return false;
    *line = strndup((char *)c->input.data, len);
    size_t used = len + (end != NULL);
    memmove(c->input.data, c->input.data + used, c->input.len - used);
    c->input.len -= used;
    return true;
}

typedef enum line_event { LINE_READ, LINE_END, LINE_INTERRUPT } line_event;

/* Waits a moment for input. Polls the chain meanwhile: a draining node migrates its sessions in time. */
static bool wait_for_input(chat *c) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    int ready = poll(&in, 1, POLL_MS);
    if (!ready) sn_chain_poll(c->setup->chain);
    return ready > 0 && !sn_interrupted; /* also true at the end of the input and for errors, which read() reports */
}

/* The next line; LINE_INTERRUPT: Ctrl-C was pressed during the wait. */
static sn_status read_line(chat *c, char **line, line_event *event, sn_err *err) {
    char chunk[4096];
    *line = NULL;
    for (;;) {
        *event = LINE_READ;
        if (pop_line(c, line)) return *line ? SN_OK : sn_fail(err, SN_STOP, "out of memory for a line");
        *event = sn_interrupted ? LINE_INTERRUPT : LINE_END;
        if (c->input_ended || sn_interrupted) return SN_OK;
        if (!wait_for_input(c)) continue;
        ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
        if (n == 0) c->input_ended = true;
        if (n < 0 && errno != EINTR) return sn_fail(err, SN_REFUSED, "the input cannot be read: %s", strerror(errno));
        if (n > 0) {
            sn_status status = sn_buf_append(&c->input, chunk, (size_t)n, err);
            if (status) return sn_err_context(err, "a line of the chat is too long");
        }
    }
}

/* -- replies -- */

static sn_status print_text(void *ctx, const char *text, size_t len, sn_err *err) {
    sn_progress_bar_end(ctx);
    fwrite(text, 1, len, stdout);
    return sn_flush_stdout(err);
}

static sn_status print_retracted(void *ctx, const char *text, size_t kept, sn_err *err) {
    (void)ctx;
    return sn_retract_print(text, kept, err);
}

/* The token ids of the whole conversation. The generator reuses what the session already holds of them. */
static sn_status encode_turns(chat *c, sn_token_ids *out, sn_err *err) {
    const sn_chat_request request = {.messages = c->messages};
    return sn_chat_template_encode(c->template, c->setup->tokenizer, &request, true, out, err);
}

static void print_context_use(const chat *c, const sn_generation *reply) {
    size_t used = sn_generator_length(c->generator), all = (size_t)c->context;
    if (reply->finish == SN_FINISH_LENGTH && used + 1 >= all)
        fprintf(stderr, "[the context of %zu tokens is full and the reply is cut; /reset begins a new conversation]\n",
                all);
    else if (reply->finish == SN_FINISH_LENGTH)
        fprintf(stderr, "[the reply is cut after %zu tokens; --max-tokens sets the limit]\n", reply->ids.n);
    else if (all - used <= all / NEARLY_FULL)
        fprintf(stderr, "[%zu of %zu tokens of the context are used; /reset begins a new conversation]\n", used, all);
}

static sn_status generate_reply(chat *c, const sn_token_ids *prompt, sn_err *err) {
    const sn_sampling_settings *o = &sn_program_settings.sampling;
    sn_generation out;
    sn_progress_bar *bar = sn_progress_bar_begin("prefill");
    sn_generate_options options = {.max_tokens = (int)o->max_tokens,
                                   .stops = o->stop.items,
                                   .n_stops = o->stop.n,
                                   .ignore_eos = o->ignore_eos,
                                   .is_answer = true,
                                   .on_text = print_text,
                                   .when_checked = sn_cli_holds_text(),
                                   .on_retract = print_retracted,
                                   .ctx = &bar,
                                   .cancel = &sn_interrupted};
    sn_status status = sn_generator_run(c->generator, prompt->ids, prompt->n, &options, &out, err);
    sn_progress_bar_end(&bar);
    if (!status)
        status = sn_chat_add_answer(c->messages, c->setup->tokenizer, &out.ids, (const char *)out.text.data,
                                    out.text.len, err);
    putchar('\n');
    if (!status) status = sn_flush_stdout(err);
    if (!status) {
        if (out.finish == SN_FINISH_INTERRUPTED) fprintf(stderr, "[interrupted]\n");
        if (c->setup->audit) sn_audit_print(c->setup->audit);
        print_context_use(c, &out);
        if (c->terminal)
            fprintf(stderr, "[%zu tokens, %.1f tok/s]\n", out.ids.n,
                    sn_tokens_per_second(out.timings.decode_tokens, out.timings.decode_us));
    }
    sn_generation_fini(&out);
    sn_interrupted = 0;
    return status;
}

/* A turn of the user and the reply. After a failure the conversation is as it was before the turn. */
static sn_status chat_turn(chat *c, const char *line, sn_err *err) {
    size_t before = json_array_size(c->messages);
    sn_token_ids prompt = {0};
    sn_status status = add_turn(c, "user", line, strlen(line), err);
    if (!status) status = encode_turns(c, &prompt, err);
    if (!status) status = generate_reply(c, &prompt, err);
    sn_token_ids_fini(&prompt);
    if (status) drop_turns(c, before);
    return status;
}

/* -- the conversation -- */

static void print_chat_help(void) {
    puts("/reset  begin a new conversation\n/help   show this text\n/quit   end the chat, as Ctrl-D does\n"
         "Ctrl-C  stop a reply; twice in a row while the program waits for input: end the chat");
}

/* Runs a line that begins with a slash. False when the line is no command, but a turn. */
static bool run_chat_command(chat *c, const char *line, bool *quit, sn_status *status, sn_err *err) {
    if (*line != '/') return false;
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit"))
        *quit = true;
    else if (!strcmp(line, "/reset"))
        *status = reset_turns(c, err);
    else if (!strcmp(line, "/help"))
        print_chat_help();
    else
        fprintf(stderr, "[there is no command %.40s; /help lists them]\n", line);
    return true;
}

/* Ctrl-C while the program waits for input: true the second time in a row, which ends the chat. */
static bool second_interrupt(int *in_a_row) {
    sn_interrupted = 0;
    if (++*in_a_row > 1) return true;
    fprintf(stderr, "\n[Ctrl-C again, /quit or Ctrl-D ends the chat]\n");
    return false;
}

/* -- in a file -- */

/* The turns of a saved session. The chat template checks what they hold. */
static sn_status restore_turns(chat *c, const json_t *turns, sn_err *err) {
    for (size_t i = 0; i < json_array_size(turns); i++) {
        json_t *turn = json_array_get(turns, i);
        if (!json_is_string(json_object_get(turn, "role")) || !json_is_string(json_object_get(turn, "content")))
            return sn_fail(err, SN_REFUSED, "the saved session is no conversation");
        json_array_append(c->messages, turn);
    }
    return SN_OK;
}

static sn_status begin_chat(chat *c, sn_session_file *saved, sn_err *err) {
    if (!saved) return reset_turns(c, err);
    if (!sn_session_file_extra(saved))
        return sn_fail(err, SN_REFUSED, "the saved session is no conversation: continue it with swarm generate --load");
    sn_status status = restore_turns(c, sn_session_file_extra(saved), err);
    return status ? status : sn_session_file_restore(saved, c->setup->lm_head, c->setup->chain, c->generator, err);
}

static sn_status chat_loop(chat *c, sn_session_file *saved, int *code, sn_err *err) {
    bool quit = false;
    int interrupts = 0;
    line_event event = LINE_READ;
    sn_status status = begin_chat(c, saved, err);
    if (!status && c->terminal) fprintf(stderr, "[%s; /help lists commands]\n", c->setup->hp->name);
    while (!status && !quit) {
        char *line;
        if (c->terminal) fputs("> ", stderr);
        status = read_line(c, &line, &event, err);
        if (status || event == LINE_END) break;
        if (event == LINE_INTERRUPT) {
            quit = second_interrupt(&interrupts);
            if (quit) *code = SN_EXIT_INTERRUPTED;
            continue;
        }
        interrupts = 0;
        if (*line && !run_chat_command(c, line, &quit, &status, err)) status = chat_turn(c, line, err);
        free(line);
        if (status && c->terminal && status != SN_STOP && !ferror(stdout)) { /* the user can try again */
            fprintf(stderr, "[%s]\n", err->text);
            sn_interrupted = 0;
            status = SN_OK;
        }
    }
    if (c->terminal && event != LINE_READ) fputc('\n', stderr);
    return status ? status : sn_session_save(c->setup, c->generator, c->messages, err);
}

static sn_status open_chat(chat *c, sn_session_file *saved, int *code, sn_err *err) {
    sn_generator_parts parts = {c->setup->hp, c->setup->lm_head, NULL, c->setup->tokenizer, 0, NULL};
    sn_sampling sampling = sn_settings_sampling(&sn_program_settings);
    sn_status status =
        sn_setup_context(c->setup, sn_program_settings.sampling.ctx, DEFAULT_CONTEXT, &parts.max_context, err);
    if (!status) status = sn_setup_chain(c->setup, parts.max_context, false, err);
    if (!status) status = sn_setup_open_draft(c->setup, &sampling, parts.max_context, err);
    parts.chain = c->setup->chain;
    parts.draft = sn_setup_get_draft(c->setup);
    c->context = parts.max_context;
    if (!status) status = sn_generator_new(&parts, &sampling, &c->generator, err);
    if (!status) status = chat_loop(c, saved, code, err);
    sn_generator_free(&c->generator);
    return status;
}

static sn_status chat_main(const sn_options *options, int *code, sn_err *err) {
    (void)options;
    sn_setup setup = sn_cli_setup();
    chat *c = NULL;
    sn_catch_interrupts();
    sn_status status = sn_calloc(&c, 1, sizeof *c, err);
    if (!status) status = sn_setup_open(&setup, true, err);
    if (!status) status = sn_setup_refuse_classifier(&setup, err);
    if (!status) status = sn_chat_template_open(setup.tokenizer, &c->template, err);
    if (!status) {
        c->setup = &setup;
        c->messages = json_array();
        c->terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
        sn_buf_init(&c->input, LINE_MAX_BYTES);
        sn_session_file *saved = NULL;
        status = sn_session_open(&setup, &saved, err);
        if (!status) status = open_chat(c, saved, code, err);
        sn_session_file_close(&saved);
        sn_buf_fini(&c->input);
        json_decref(c->messages);
        sn_chat_template_close(&c->template);
    }
    free(c);
    sn_setup_close(&setup);
    return status;
}

static const sn_option_group *const groups[] = {
    &sn_group_model, &sn_group_adapter, &chat_group,     &sn_group_sampling, &sn_group_draft, &sn_group_connection,
    &sn_group_chain, &sn_group_session, &sn_group_audit, &sn_group_device,   &sn_group_log};

const sn_cli_command sn_cmd_chat = {
    .command = {.program = "swarm chat",
                .summary = "chat with the model",
                .synopsis = "--model PATH (--join HOST:PORT... | --local all) [options]",
                .about =
                    "Chats with the model in the model's chat template. The conversation stays in one session: for "
                    "each turn, only the new tokens are computed. Ctrl-C stops a reply, Ctrl-D ends the chat, "
                    "/help lists the commands. When standard input is no terminal, each line is one turn.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .run = chat_main,
};
