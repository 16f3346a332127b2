/* swarm generate: text from a prompt, printed token by token. The session of the C API does the work; here are the
 * prompt, the events as they become text on standard output, and the report. */
#include "cli/program.h"
#include "cli/chat_conversation.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"
#include "cli/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRESSES_MAX = 2, TEXT_MAX = 1 << 28 }; /* Ctrl-C: the second one ends the process */

static struct {
    const char *prompt, *prompt_file, *ids_file, *system;
    bool chat;
} given;

static const sn_option prompt_options[] = {
    SN_OPT_STRING("prompt", "TEXT", &given.prompt, "the prompt; it may contain special tokens, spelled out"),
    SN_OPT_STRING("prompt-file", "FILE", &given.prompt_file, "a file with the prompt; -: standard input"),
    SN_OPT_STRING("ids-file", "FILE", &given.ids_file, "a file with the prompt's token ids, as a JSON array"),
    SN_OPT_FLAG("chat", &given.chat, "put the prompt as a user message into the model's chat template"),
    SN_OPT_STRING("system", "TEXT", &given.system,
                  "with --chat: the system message (default: that of the chat template)"),
    SN_OPT_FLAG("json", &sn_cli_output.json, "print one JSON object at the end instead of the text"),
};
static const sn_option_group prompt_group = SN_OPTION_GROUP("Prompt:", prompt_options);

/* The prompt's text in the chat template. A loaded session continues: no begin-of-text token. */
static sn_status render_prompt(const swarm_model *model, const char *text, size_t n, sn_token_ids *out, sn_err *err) {
    json_t *messages = json_array();
    swarm_error *error = NULL;
    sn_status status = given.system ? sn_conversation_set_system(messages, given.system, err) : SN_OK;
    if (!status) status = sn_conversation_add(messages, "user", text, n, err);
    json_t *request =
        json_pack("{s:O, s:b}", "messages", messages, "continues", sn_program_settings.session.load != NULL);
    char *dumped = request ? json_dumps(request, JSON_COMPACT) : NULL;
    if (!status && !dumped) status = sn_fail(err, SN_STOP, "out of memory for the prompt");
    if (!status)
        status = sn_cli_status(
            swarm_model_render_chat(model, dumped, strlen(dumped), NULL, NULL, &out->ids, &out->n, &error), &error,
            err);
    free(dumped);
    json_decref(request);
    json_decref(messages);
    return status;
}

static sn_status encode_prompt(const swarm_model *model, const char *text, size_t n, sn_token_ids *out, sn_err *err) {
    int flags = SWARM_TEXT_SPECIAL | (sn_program_settings.session.load ? 0 : SWARM_TEXT_BEGINS);
    swarm_error *error = NULL;
    if (given.chat) return render_prompt(model, text, n, out, err);
    return sn_cli_status(swarm_model_tokenize(model, text, n, flags, &out->ids, &out->n, &error), &error, err);
}

static sn_status read_prompt(const swarm_model *model, sn_token_ids *out, sn_err *err) {
    if (given.ids_file) return sn_read_ids(given.ids_file, out, err);
    if (given.prompt) return encode_prompt(model, given.prompt, strlen(given.prompt), out, err);
    if (!given.prompt_file) return SN_OK; /* --load without a prompt continues the session */
    sn_buf text;
    sn_status status = sn_read_input(given.prompt_file, SN_INPUT_MAX, &text, err);
    if (status) return status;
    status = encode_prompt(model, (const char *)text.data, text.len, out, err);
    sn_buf_fini(&text);
    return status;
}

/* Puts the tokens of a loaded session before those of the prompt. */
static sn_status prepend_timeline(const swarm_session *session, sn_token_ids *prompt, sn_err *err) {
    size_t n;
    const int32_t *ids = swarm_session_tokens(session, &n);
    sn_token_ids all = {.n = n + prompt->n};
    sn_status status = n ? sn_calloc(&all.ids, all.n, sizeof *all.ids, err) : SN_OK;
    if (status || !n) return status;
    memcpy(all.ids, ids, n * sizeof *ids);
    if (prompt->n) memcpy(all.ids + n, prompt->ids, prompt->n * sizeof *ids);
    sn_token_ids_fini(prompt);
    *prompt = all;
    return SN_OK;
}

static sn_status check_generate_options(sn_err *err) {
    int sources = !!given.prompt + !!given.prompt_file + !!given.ids_file;
    if (sources > 1 || (!sources && !sn_program_settings.session.load))
        return sn_fail(err, SN_REFUSED, "give one of --prompt, --prompt-file and --ids-file, and only one");
    if (given.ids_file && given.chat)
        return sn_fail(err, SN_REFUSED,
                       "--chat puts text into a chat template, and --ids-file gives token ids: leave out one of them");
    if (given.system && !given.chat)
        return sn_fail(err, SN_REFUSED,
                       "--system needs --chat: give --chat too, or write the system message into the prompt");
    return SN_OK;
}

/* -- events -- */

typedef struct output {
    sn_progress_bar *bar;
    sn_buf text; /* that was printed, for the case that a part of it is retracted */
    sn_status status;
    sn_err *err;
} output;

static sn_status print_text(output *o, const char *text, size_t n) {
    sn_progress_bar_end(&o->bar); /* from here on the text shows the progress */
    sn_status status = sn_buf_append(&o->text, text, n, o->err);
    fwrite(text, 1, n, stdout);
    return status ? status : sn_flush_stdout(o->err);
}

/* An audit found that the text is wrong from byte `kept` on: what stands is printed again. */
static sn_status retract(output *o, size_t kept) {
    sn_status status = sn_flush_stdout(o->err);
    fputs("\n[audit failed: the text above is wrong, it is printed again]\n", stderr);
    o->text.len = sn_min_size(kept, o->text.len);
    if (!status && o->text.len) fwrite(o->text.data, 1, o->text.len, stdout);
    return status ? status : sn_flush_stdout(o->err);
}

static void show_progress(sn_progress_bar *bar, const swarm_event *event) {
    double reused = swarm_event_number(event, "reused"), done = swarm_event_number(event, "done") - reused,
           total = swarm_event_number(event, "total") - reused;
    if (done >= total) done = total = 0; /* what follows shows its time only */
    sn_progress_bar_set(bar, (size_t)done, (size_t)total);
}

static int on_event(void *context, const swarm_event *event) {
    output *o = context;
    size_t n;
    const char *text = swarm_event_text(event, &n);
    swarm_event_kind kind = swarm_event_get_kind(event);
    if (kind == SWARM_EVENT_PROGRESS) show_progress(o->bar, event);
    if (kind == SWARM_EVENT_TEXT && !sn_cli_output.json) o->status = print_text(o, text, n);
    if (kind == SWARM_EVENT_RETRACT && !sn_cli_output.json)
        o->status = retract(o, (size_t)swarm_event_number(event, "kept"));
    return o->status != SN_OK;
}

/* -- the generation -- */

static double number(const json_t *o, const char *name) { return json_number_value(json_object_get(o, name)); }
static long long count(const json_t *o, const char *name) { return (long long)number(o, name); }
static const char *word(const json_t *o, const char *name) { return json_string_value(json_object_get(o, name)); }

static double hop_ms(const json_t *hop) {
    return number(hop, "network_ms") + number(hop, "queue_ms") + number(hop, "compute_ms");
}

/* The object "timings" of a generation (docs/CLIENT.md) as text, with each hop's share of the time. */
static void print_report(const json_t *t, size_t n_generated) {
    const json_t *hops = json_object_get(t, "hops"), *hop;
    size_t i;
    fprintf(stderr, "prompt %lld tokens, %.1f tok/s; first token after %.0f ms; %zu tokens", count(t, "prefill_tokens"),
            number(t, "prefill_tok_s"), number(t, "ttft_ms"), n_generated);
    if (count(t, "decode_tokens")) fprintf(stderr, ", %.1f tok/s", number(t, "decode_tok_s"));
    if (count(t, "drafted"))
        fprintf(stderr,
                " in %lld windows, %lld of them sent while others were under way; %lld tokens drafted, %lld of %lld "
                "judged ones accepted: %.1f laps saved",
                count(t, "decode_steps"), count(t, "ahead"), count(t, "drafted"), count(t, "accepted"),
                count(t, "judged"), number(t, "laps_saved"));
    if (count(t, "failovers")) fprintf(stderr, "; %lld nodes replaced", count(t, "failovers"));
    double all = number(t, "client_ms") + number(t, "draft_ms");
    json_array_foreach(hops, i, hop) all += hop_ms(hop);
    double percent = all > 0 ? 100 / all : 0;
    fprintf(stderr, "\n  %4.1f %%  client: embedding, LM head, sampling\n", number(t, "client_ms") * percent);
    if (number(t, "draft_ms") > 0) fprintf(stderr, "  %4.1f %%  client: drafting\n", number(t, "draft_ms") * percent);
    json_array_foreach(hops, i, hop)
        fprintf(stderr, "  %4.1f %%  blocks %s at %s; a step: %.2f ms compute, %.2f ms queue, %.2f ms network\n",
                hop_ms(hop) * percent, word(hop, "blocks"), word(hop, "node"), number(hop, "compute_ms_per_step"),
                number(hop, "queue_ms_per_step"), number(hop, "network_ms_per_step"));
}

/* The result of the API with the prompt before it. */
static sn_status print_generation(const sn_token_ids *prompt, const json_t *result, sn_err *err) {
    const json_t *seed = json_object_get(result, "seed");
    if (sn_cli_output.json) {
        json_t *o = json_object();
        json_object_set_new(o, "prompt_ids", sn_json_ids(prompt->ids, prompt->n));
        json_object_update(o, (json_t *)(uintptr_t)result);
        return sn_print_json(o, err);
    }
    putchar('\n');
    sn_status status = sn_flush_stdout(err);
    if (seed) fprintf(stderr, "seed %lld; ", (long long)json_integer_value(seed));
    print_report(json_object_get(result, "timings"), json_array_size(json_object_get(result, "ids")));
    sn_cli_audit_print(json_object_get(result, "audit"), "", "");
    return status;
}

static sn_status generate(const sn_cli_session *s, const sn_token_ids *prompt, output *o, json_t **result,
                          sn_err *err) {
    swarm_error *error = NULL;
    char *json = NULL;
    /* A loaded session goes on with its own random numbers. */
    swarm_options *options = sn_cli_options("generation", sn_program_settings.session.load ? "seed" : NULL, err);
    if (!options) return err->status;
    swarm_code code = swarm_options_set(options, "answer", given.chat ? "true" : "false", &error);
    swarm_session_on_event(s->session, on_event, o);
    if (!code) code = swarm_session_generate(s->session, prompt->ids, prompt->n, options, &json, NULL, &error);
    swarm_session_on_event(s->session, NULL, NULL);
    swarm_options_free(options);
    if (code == SWARM_CANCELLED && json) { /* what was generated until then is a result */
        swarm_error_free(error);
        code = SWARM_OK;
    }
    sn_status status = code ? sn_cli_status(code, &error, err) : sn_cli_json(json, result, err);
    return o->status ? o->status : status;
}

static sn_status run_generation(const sn_cli_session *s, const sn_token_ids *prompt, int *code, sn_err *err) {
    sn_err failed;
    output o = {.err = &failed};
    json_t *result = NULL;
    sn_buf_init(&o.text, TEXT_MAX);
    o.bar = sn_progress_bar_begin(sn_cli_output.json ? "generating" : "prefill");
    sn_progress_bar_unit(o.bar, "tokens");
    sn_status status = generate(s, prompt, &o, &result, err);
    sn_progress_bar_end(&o.bar);
    if (o.status) *err = failed;
    if (!status && !strcmp(json_string_value(json_object_get(result, "finish_reason")), "interrupted")) {
        *code = SN_EXIT_INTERRUPTED;
        sn_interrupted = 0; /* what follows is not to be interrupted */
        swarm_cancel_clear(s->cancel);
    }
    if (!status)
        status = print_generation(prompt, result, err);
    else if (o.text.len)
        putchar('\n');
    sn_buf_fini(&o.text);
    json_decref(result);
    return status;
}

/* Tokens that the timeline gets beside those of --load. */
static int64_t expected_tokens(const sn_token_ids *prompt) {
    int64_t max_tokens = sn_program_settings.sampling.max_tokens;
    return max_tokens ? (int64_t)prompt->n + max_tokens : 1 << 30; /* then until the model's context is full */
}

static sn_status check_length(const swarm_model *model, const sn_token_ids *prompt, sn_err *err) {
    int64_t ctx = sn_program_settings.sampling.ctx, most = swarm_model_context(model);
    if (ctx && ctx < most) most = ctx;
    if ((int64_t)prompt->n <= most) return SN_OK;
    return sn_fail(err, SN_REFUSED, "the prompt has %zu tokens and the context %lld: shorten the prompt", prompt->n,
                   (long long)most);
}

static sn_status generate_main(const sn_options *options, int *code, sn_err *err) {
    (void)options;
    sn_cli_session s = {0};
    sn_token_ids prompt = {0};
    sn_status status = check_generate_options(err);
    sn_sampling_settings_fill(&sn_program_settings.sampling, NULL); /* with --chat, too: scripts want one text */
    if (!status) status = sn_cli_session_begin(&s, PRESSES_MAX, NULL, err);
    if (!status) status = read_prompt(s.model, &prompt, err);
    if (!status) status = check_length(s.model, &prompt, err);
    if (!status) status = sn_cli_session_open(&s, expected_tokens(&prompt), err);
    if (!status) status = prepend_timeline(s.session, &prompt, err);
    if (!status) status = run_generation(&s, &prompt, code, err);
    if (!status) status = sn_cli_session_save(&s, NULL, err);
    sn_token_ids_fini(&prompt);
    sn_cli_session_close(&s);
    return status;
}

static const sn_option_group *const groups[] = {&sn_group_chosen_model, &sn_group_adapter, &prompt_group,
                                                &sn_group_sampling,     &sn_group_draft,   &sn_group_connection,
                                                &sn_group_chain,        &sn_group_session, &sn_group_force,
                                                &sn_group_audit,        &sn_group_device,  &sn_group_log};

const sn_cli_command sn_cmd_generate = {
    .command = {.program = "swarm generate",
                .summary = "generate text from a prompt",
                .synopsis = "[--model PATH] (--join HOST:PORT... | --local all) --prompt TEXT [options]",
                .about =
                    "Generates text from a prompt and prints it on standard output, token by token; timings follow "
                    "on standard error.\n"
                    "Without --temperature the most likely token is chosen each time, and every run gives the "
                    "same text, also with --chat: what the model's makers recommend counts for swarm chat and swarm "
                    "serve.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .notes =
                    "--json prints {\"prompt_ids\", \"ids\", \"text\", \"finish_reason\", \"timings\"}. "
                    "finish_reason is stop (the model's end-of-text token, which is the last of ids), stop_text (a "
                    "text of --stop), length or interrupted. timings.hops lists for each hop its node, blocks, and "
                    "milliseconds in network, queue and compute; timings.drafted and timings.accepted count draft "
                    "tokens.",
                .exit_codes = sn_exit_codes},
    .run = generate_main,
};
