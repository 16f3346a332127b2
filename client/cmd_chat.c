/* swarm chat: a conversation in one session. On a terminal it asks with a mark; piped, each line is one turn. */
#include "client/cmd.h"
#include "client/report.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ATTEND_MS = 200, TURNS_MAX = 4096, LINE_MAX_BYTES = 1 << 20, USUAL_CONTEXT = 8192, NEARLY_FULL = 8 };

static const char *system_text;

static const sn_option chat_options[] = {
    SN_OPT_STRING("system", "TEXT", &system_text, "the system turn, instead of the model's own"),
};

typedef struct chat {
    sn_setup *setup;
    sn_generator *generator;
    int context;
    bool terminal;
    sn_buf input; /* read from stdin, not yet used */
    bool input_ended;
    sn_chat_turn turns[TURNS_MAX]; /* texts are owned */
    size_t n_turns;
} chat;

/* -- turns -----------------------------------------------------------------------------------------------------------
 */

static void drop_turns(chat *c, size_t from) {
    while (c->n_turns > from) free((char *)c->turns[--c->n_turns].text);
}

static sn_status add_turn(chat *c, const char *role, const char *text, size_t len, sn_err *err) {
    if (c->n_turns == TURNS_MAX)
        return sn_fail(err, SN_REFUSED, "the conversation has %d turns; /reset begins a new one", (int)TURNS_MAX);
    char *copy = strndup(len ? text : "", len);
    if (!copy) return sn_fail(err, SN_STOP, "out of memory for the conversation");
    c->turns[c->n_turns++] = (sn_chat_turn){role, copy};
    return SN_OK;
}

static sn_status reset(chat *c, sn_err *err) {
    drop_turns(c, 0);
    return system_text ? add_turn(c, "system", system_text, strlen(system_text), err) : SN_OK;
}

/* -- reading ---------------------------------------------------------------------------------------------------------
 */

/* Moves the first line of c->input to *line, NUL-terminated, malloc'd; false when there is no whole line yet. */
static bool take_line(chat *c, char **line) {
    char *end = c->input.len ? memchr(c->input.data, '\n', c->input.len) : NULL;
    size_t len = end ? (size_t)(end - (char *)c->input.data) : c->input.len;
    if (!end && !(c->input_ended && c->input.len)) return false;
    *line = strndup((char *)c->input.data, len);
    size_t used = len + (end != NULL);
    memmove(c->input.data, c->input.data + used, c->input.len - used);
    c->input.len -= used;
    return true;
}

typedef enum heard { HEARD_LINE, HEARD_END, HEARD_INTERRUPT } heard;

/* Waits a moment for something to read. Meanwhile a node may leave: the session is moved in time. */
static bool is_typed(chat *c) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    int ready = poll(&in, 1, ATTEND_MS);
    if (!ready) sn_chain_attend(c->setup->chain);
    return ready > 0 && !sn_interrupted; /* the end and errors are read, too */
}

/* The next line. HEARD_INTERRUPT: Ctrl-C while waiting for one. */
static sn_status read_line(chat *c, char **line, heard *what, sn_err *err) {
    char chunk[4096];
    *line = NULL;
    for (;;) {
        *what = HEARD_LINE;
        if (take_line(c, line)) return *line ? SN_OK : sn_fail(err, SN_STOP, "out of memory for a line");
        *what = sn_interrupted ? HEARD_INTERRUPT : HEARD_END;
        if (c->input_ended || sn_interrupted) return SN_OK;
        if (!is_typed(c)) continue;
        ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
        if (n == 0) c->input_ended = true;
        if (n < 0 && errno != EINTR) return sn_fail(err, SN_REFUSED, "the input cannot be read: %s", strerror(errno));
        if (n > 0) {
            sn_status status = sn_buf_append(&c->input, chunk, (size_t)n, err);
            if (status) return sn_err_context(err, "a line of the chat is too long");
        }
    }
}

/* -- answering -------------------------------------------------------------------------------------------------------
 */

static sn_status print_text(void *ctx, const char *text, size_t len, sn_err *err) {
    sn_progress_end(ctx);
    fwrite(text, 1, len, stdout);
    return sn_flush_stdout(err);
}

static sn_status print_void(void *ctx, const char *text, size_t kept, sn_err *err) {
    (void)ctx;
    return sn_void_print(text, kept, err);
}

/* The whole conversation as ids. What the session has already seen of it is found again by the generator. */
static sn_status encode(chat *c, sn_ids *out, sn_err *err) {
    sn_buf text;
    sn_buf_init(&text, SN_TEXT_MAX);
    const sn_tokenizer *tokenizer = c->setup->tokenizer;
    sn_status status = sn_tokenizer_chat(tokenizer, c->turns, c->n_turns, true, true, &text, err);
    if (!status) status = sn_tokenizer_encode(tokenizer, (const char *)text.data, text.len, true, true, out, err);
    sn_buf_fini(&text);
    return status;
}

static void say_room(const chat *c, const sn_generation *answer) {
    size_t used = sn_generator_length(c->generator), all = (size_t)c->context;
    if (answer->finish == SN_FINISH_LENGTH && used + 1 >= all)
        fprintf(stderr, "[the context of %zu tokens is full: the answer is cut; /reset begins anew]\n", all);
    else if (answer->finish == SN_FINISH_LENGTH)
        fprintf(stderr, "[cut after %zu tokens; --max-tokens allows more]\n", answer->ids.n);
    else if (all - used <= all / NEARLY_FULL)
        fprintf(stderr, "[%zu of %zu tokens of context are used; /reset begins anew]\n", used, all);
}

static sn_status answer(chat *c, const sn_ids *prompt, sn_err *err) {
    const sn_sampling_options *o = &sn_given_sampling;
    sn_generation out;
    sn_progress_shown *shown = sn_progress_begin("reading");
    sn_generate_options options = {.max_tokens = (int)o->max_tokens,
                                   .stops = o->stop.items,
                                   .n_stops = o->stop.n,
                                   .ignore_end = o->ignore_end,
                                   .is_answer = true,
                                   .on_text = print_text,
                                   .on_void = print_void,
                                   .ctx = &shown,
                                   .interrupt = &sn_interrupted};
    sn_status status = sn_generator_run(c->generator, prompt->ids, prompt->n, &options, &out, err);
    sn_progress_end(&shown);
    if (!status) status = add_turn(c, "assistant", (const char *)out.text.data, out.text.len, err);
    putchar('\n');
    if (!status) status = sn_flush_stdout(err);
    if (!status) {
        if (out.finish == SN_FINISH_INTERRUPTED) fprintf(stderr, "[interrupted]\n");
        if (c->setup->audit) sn_audit_print(c->setup->audit);
        say_room(c, &out);
        if (c->terminal)
            fprintf(stderr, "[%zu tokens, %.1f tok/s]\n", out.ids.n,
                    sn_rate(out.timings.decode_tokens, out.timings.decode_us));
    }
    sn_generation_fini(&out);
    sn_interrupted = 0;
    return status;
}

/* One turn of each. A failure that another try may mend leaves the conversation as it was before the turn. */
static sn_status turn(chat *c, const char *line, sn_err *err) {
    size_t before = c->n_turns;
    sn_ids prompt = {0};
    sn_status status = add_turn(c, "user", line, strlen(line), err);
    if (!status) status = encode(c, &prompt, err);
    if (!status) status = answer(c, &prompt, err);
    sn_ids_fini(&prompt);
    if (status) drop_turns(c, before);
    return status;
}

/* -- the conversation ------------------------------------------------------------------------------------------------
 */

static void help(void) {
    puts("/reset  begin a new conversation\n/help   this text\n/quit   leave; Ctrl-D does too\n"
         "Ctrl-C  stops an answer; twice at the mark it leaves");
}

/* A line that begins with a slash. False when it is no command but something to say. */
static bool command_line(chat *c, const char *line, bool *leave, sn_status *status, sn_err *err) {
    if (*line != '/') return false;
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit"))
        *leave = true;
    else if (!strcmp(line, "/reset"))
        *status = reset(c, err);
    else if (!strcmp(line, "/help"))
        help();
    else
        fprintf(stderr, "[there is no command %.40s; /help lists them]\n", line);
    return true;
}

/* Ctrl-C at the mark: the first time it says how to leave, the second time in a row it leaves. */
static bool second_interrupt(int *in_a_row) {
    sn_interrupted = 0;
    if (++*in_a_row > 1) return true;
    fprintf(stderr, "\n[Ctrl-C again, /quit or Ctrl-D leaves]\n");
    return false;
}

/* -- in a file ------------------------------------------------------------------------------------------------------- */

static json_t *turns_json(const chat *c) {
    json_t *turns = json_array();
    for (size_t i = 0; i < c->n_turns; i++)
        json_array_append_new(turns, json_pack("{s:s, s:s}", "role", c->turns[i].role, "text", c->turns[i].text));
    return turns;
}

/* The conversation of a saved session; its roles become those that we know. */
static sn_status take_turns(chat *c, const json_t *turns, sn_err *err) {
    static const char *const roles[] = {"system", "user", "assistant"};
    sn_status status = SN_OK;
    for (size_t i = 0; i < json_array_size(turns) && !status; i++) {
        const char *role = json_string_value(json_object_get(json_array_get(turns, i), "role"));
        const char *text = json_string_value(json_object_get(json_array_get(turns, i), "text"));
        size_t k = 0;
        while (k < 3 && (!role || strcmp(roles[k], role))) k++;
        if (k == 3 || !text) return sn_fail(err, SN_REFUSED, "the saved session is no chat");
        status = add_turn(c, roles[k], text, strlen(text), err);
    }
    return status;
}

static sn_status begin(chat *c, sn_saved *saved, sn_err *err) {
    if (!saved) return reset(c, err);
    if (!sn_saved_more(saved)) return sn_fail(err, SN_REFUSED, "the saved session is no chat: go on with swarm generate --load");
    sn_status status = take_turns(c, sn_saved_more(saved), err);
    return status ? status : sn_saved_restore(saved, c->setup->head, c->setup->chain, c->generator, err);
}

static sn_status save(chat *c, sn_err *err) {
    json_t *turns = turns_json(c);
    sn_status status = sn_session_save(c->setup, c->generator, turns, err);
    json_decref(turns);
    return status;
}

static sn_status converse(chat *c, sn_saved *saved, int *code, sn_err *err) {
    bool leave = false;
    int interrupts = 0;
    heard what = HEARD_LINE;
    sn_status status = begin(c, saved, err);
    if (!status && c->terminal) fprintf(stderr, "[%s; /help lists commands]\n", c->setup->hp->name);
    while (!status && !leave) {
        char *line;
        if (c->terminal) fputs("> ", stderr);
        status = read_line(c, &line, &what, err);
        if (status || what == HEARD_END) break;
        if (what == HEARD_INTERRUPT) {
            leave = second_interrupt(&interrupts);
            if (leave) *code = SN_EXIT_INTERRUPTED;
            continue;
        }
        interrupts = 0;
        if (*line && !command_line(c, line, &leave, &status, err)) status = turn(c, line, err);
        free(line);
        if (status && c->terminal && status != SN_STOP && !ferror(stdout)) { /* a person can try again, or shorten it */
            fprintf(stderr, "[%s]\n", err->text);
            sn_interrupted = 0;
            status = SN_OK;
        }
    }
    if (c->terminal && what != HEARD_LINE) fputc('\n', stderr);
    return status ? status : save(c, err);
}

static sn_status run(chat *c, sn_saved *saved, int *code, sn_err *err) {
    sn_generator_parts parts = {c->setup->hp, c->setup->head, NULL, c->setup->tokenizer, 0, NULL};
    sn_sampling sampling = sn_sampling_given();
    sn_status status = sn_setup_context(c->setup, sn_given_sampling.ctx, USUAL_CONTEXT, &parts.max_context, err);
    if (!status) status = sn_setup_chain(c->setup, parts.max_context, false, err);
    if (!status) status = sn_setup_draft(c->setup, &sampling, parts.max_context, err);
    parts.chain = c->setup->chain;
    parts.draft = sn_setup_drafts(c->setup);
    c->context = parts.max_context;
    if (!status) status = sn_generator_new(&parts, &sampling, &c->generator, err);
    if (!status) status = converse(c, saved, code, err);
    sn_generator_free(&c->generator);
    return status;
}

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    (void)options;
    sn_setup setup = {0};
    chat *c = NULL;
    sn_catch_interrupts();
    sn_status status = sn_calloc(&c, 1, sizeof *c, err);
    if (!status) status = sn_setup_open(&setup, true, err);
    if (!status) status = sn_setup_writes(&setup, err);
    if (!status) {
        c->setup = &setup;
        c->terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
        sn_buf_init(&c->input, LINE_MAX_BYTES);
        sn_saved *saved = NULL;
        status = sn_session_open(&setup, &saved, err);
        if (!status) status = run(c, saved, code, err);
        sn_saved_close(&saved);
        sn_buf_fini(&c->input);
        drop_turns(c, 0);
    }
    free(c);
    sn_setup_close(&setup);
    return status;
}

int sn_cmd_chat(int argc, char **argv) {
    const sn_option_group groups[] = {
        sn_group_model,    sn_group_adapter,   {"Conversation:", chat_options, sizeof chat_options / sizeof *chat_options},
        sn_group_sampling, sn_group_draft,     sn_group_chain, sn_group_session, sn_group_audit,
        sn_group_device,   sn_group_log};
    const sn_command command = {
        .program = "swarm chat",
        .synopsis = "--model PATH (--join ADDRESS... | --local all) [options]",
        .about =
            "Talks with the model in its own chat template. The conversation stays in one session: each turn computes "
            "only "
            "what is new. Ctrl-C stops an answer, Ctrl-D leaves; /help lists the commands. Without a terminal each "
            "line of standard input is one turn.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof *groups,
        .epilogue = SN_EXIT_CODES};
    return sn_cmd_run(&command, argc, argv, body);
}
