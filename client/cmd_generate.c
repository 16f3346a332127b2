/* swarm generate: a prompt in, text out as it comes. */
#include "client/cmd.h"
#include "client/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *prompt, *prompt_file, *ids_file, *system;
    bool chat;
} given;

static const sn_option prompt_options[] = {
    SN_OPT_STRING("prompt", "TEXT", &given.prompt, "what to go on from; special tokens may be written out"),
    SN_OPT_STRING("prompt-file", "FILE", &given.prompt_file, "the prompt is this file's text; - is standard input"),
    SN_OPT_STRING("ids-file", "FILE", &given.ids_file, "the prompt is a JSON array of token ids, taken as they are"),
    SN_OPT_FLAG("chat", &given.chat, "the prompt is what a user says: put it into the model's chat template"),
    SN_OPT_STRING("system", "TEXT", &given.system, "with --chat: the system turn, instead of the model's own"),
    SN_OPT_FLAG("json", &sn_given.json, "print one JSON object at the end, and nothing before it"),
};
static const sn_option_group prompt_group = {"Prompt:", prompt_options, sizeof prompt_options / sizeof *prompt_options};

/* The prompt's ids from text: as it is, or inside the chat template. */
static sn_status encode(const sn_setup *setup, const char *text, size_t len, sn_ids *out, sn_err *err) {
    bool begins = !sn_given_session.load; /* else it goes on, without a token for the beginning */
    if (!given.chat && !begins) return sn_tokenizer_encode_more(setup->tokenizer, text, len, true, out, err);
    if (!given.chat) return sn_tokenizer_encode(setup->tokenizer, text, len, true, true, out, err);
    sn_buf rendered;
    sn_buf_init(&rendered, SN_TEXT_MAX);
    sn_chat_turn turns[2] = {{"system", given.system}, {"user", text}};
    size_t skip = given.system ? 0 : 1;
    sn_status status = sn_tokenizer_chat(setup->tokenizer, turns + skip, 2 - skip, true, true, &rendered, err);
    if (!status)
        status = sn_tokenizer_encode(setup->tokenizer, (const char *)rendered.data, rendered.len, begins, true, out, err);
    sn_buf_fini(&rendered);
    return status;
}

static sn_status read_prompt(const sn_setup *setup, sn_ids *out, sn_err *err) {
    if (given.ids_file) return sn_read_ids(given.ids_file, out, err);
    if (given.prompt) return encode(setup, given.prompt, strlen(given.prompt), out, err);
    if (!given.prompt_file) return SN_OK; /* a saved session just goes on */
    sn_buf text;
    sn_status status = sn_read_input(given.prompt_file, SN_TEXT_MAX, &text, err);
    if (status) return status;
    status = encode(setup, (const char *)text.data, text.len, out, err);
    sn_buf_fini(&text);
    return status;
}

/* The prompt goes on from what is in the file. */
static sn_status put_before(const sn_saved *saved, sn_ids *prompt, sn_err *err) {
    size_t n;
    const int32_t *ids = sn_saved_ids(saved, &n);
    sn_ids all = {.n = n + prompt->n};
    sn_status status = sn_calloc(&all.ids, all.n, sizeof *all.ids, err);
    if (status) return status;
    memcpy(all.ids, ids, n * sizeof *ids);
    if (prompt->n) memcpy(all.ids + n, prompt->ids, prompt->n * sizeof *ids);
    sn_ids_fini(prompt);
    *prompt = all;
    return SN_OK;
}

static sn_status check_options(sn_err *err) {
    int sources = !!given.prompt + !!given.prompt_file + !!given.ids_file;
    if (sources > 1 || (!sources && !sn_given_session.load))
        return sn_fail(err, SN_REFUSED, "give one of --prompt, --prompt-file and --ids-file, and only one");
    if (given.ids_file && given.chat)
        return sn_fail(err, SN_REFUSED, "--chat puts text into a template; with --ids-file there is no text");
    if (given.system && !given.chat)
        return sn_fail(err, SN_REFUSED, "--system is a turn of a chat: give --chat too, or write it into the prompt");
    return SN_OK;
}

static sn_status print_text(void *ctx, const char *text, size_t len, sn_err *err) {
    sn_progress_end(ctx); /* from here on the text itself shows that something goes on */
    fwrite(text, 1, len, stdout);
    return sn_flush_stdout(err);
}

static sn_status print_void(void *ctx, const char *text, size_t kept, sn_err *err) {
    (void)ctx;
    return sn_void_print(text, kept, err);
}

static json_t *answer_json(const sn_ids *prompt, const sn_generation *answer, const sn_sampling *sampling,
                           const sn_chain *chain, const sn_audit *audit) {
    json_t *o = json_object();
    json_object_set_new(o, "prompt_ids", sn_json_ids(prompt->ids, prompt->n));
    json_object_set_new(o, "ids", sn_json_ids(answer->ids.ids, answer->ids.n));
    json_object_set_new(o, "text", sn_json_text(&answer->text));
    json_object_set_new(o, "finish_reason", json_string(sn_finish_name(answer->finish)));
    if (sampling->temperature > 0) json_object_set_new(o, "seed", json_integer((json_int_t)sampling->seed));
    json_object_set_new(o, "timings", sn_report_json(&answer->timings, chain));
    if (audit) json_object_set_new(o, "audit", sn_audit_json(audit));
    return o;
}

static sn_status show(const sn_ids *prompt, const sn_generation *answer, const sn_sampling *sampling,
                      const sn_chain *chain, const sn_audit *audit, sn_err *err) {
    if (sn_given.json) return sn_print_json(answer_json(prompt, answer, sampling, chain, audit), err);
    putchar('\n');
    sn_status status = sn_flush_stdout(err);
    if (sampling->temperature > 0) fprintf(stderr, "seed %llu; ", (unsigned long long)sampling->seed);
    sn_report_print(&answer->timings, chain, answer->ids.n);
    if (audit) sn_audit_print(audit);
    return status;
}

static sn_status generate(sn_setup *setup, const sn_ids *prompt, sn_saved *saved, int *code, sn_err *err) {
    const sn_sampling_options *o = &sn_given_sampling;
    sn_generator_parts parts = {setup->hp, setup->head, setup->chain, setup->tokenizer, 0, NULL};
    int64_t usual = o->max_tokens ? (int64_t)prompt->n + o->max_tokens : INT32_MAX;
    sn_status status = sn_setup_context(setup, o->ctx, usual, &parts.max_context, err);
    if (status) return status;
    if (prompt->n > (size_t)parts.max_context)
        return sn_fail(err, SN_REFUSED, "the prompt has %zu tokens, and the context holds %d: shorten it", prompt->n,
                       parts.max_context);
    sn_sampling sampling = sn_sampling_given();
    sn_generator *generator = NULL;
    sn_generation answer = {0};
    sn_progress_shown *shown = NULL;
    sn_generate_options options = {.max_tokens = (int)o->max_tokens,
                                   .stops = o->stop.items,
                                   .n_stops = o->stop.n,
                                   .ignore_end = o->ignore_end,
                                   .is_answer = given.chat,
                                   .on_text = sn_given.json ? NULL : print_text,
                                   .on_void = print_void,
                                   .ctx = &shown,
                                   .interrupt = &sn_interrupted};
    status = sn_setup_chain(setup, parts.max_context, false, err);
    if (!status) status = sn_setup_draft(setup, &sampling, parts.max_context, err);
    parts.chain = setup->chain;
    parts.draft = sn_setup_drafts(setup);
    if (!status) status = sn_generator_new(&parts, &sampling, &generator, err);
    if (!status && saved) status = sn_saved_restore(saved, setup->head, setup->chain, generator, err);
    shown = sn_progress_begin(sn_given.json ? "generating" : "reading the prompt");
    if (!status) status = sn_generator_run(generator, prompt->ids, prompt->n, &options, &answer, err);
    sn_progress_end(&shown);
    if (!status)
        status = show(prompt, &answer, &sampling, setup->chain, setup->audit, err);
    else if (answer.text.len && !sn_given.json)
        putchar('\n');
    if (!status) status = sn_session_save(setup, generator, NULL, err);
    if (!status && answer.finish == SN_FINISH_INTERRUPTED) *code = SN_EXIT_INTERRUPTED;
    sn_generation_fini(&answer);
    sn_generator_free(&generator);
    return status;
}

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    (void)options;
    sn_setup setup = {0};
    sn_ids prompt = {0};
    sn_catch_interrupts();
    sn_status status = check_options(err);
    sn_saved *saved = NULL;
    bool text = given.prompt || given.prompt_file;
    if (!status) status = sn_setup_open(&setup, text, err);
    if (!status) status = sn_setup_writes(&setup, err);
    if (!status) status = sn_session_open(&setup, &saved, err);
    if (!status) status = read_prompt(&setup, &prompt, err);
    if (!status && saved) status = put_before(saved, &prompt, err);
    if (!status) status = generate(&setup, &prompt, saved, code, err);
    sn_saved_close(&saved);
    sn_ids_fini(&prompt);
    sn_setup_close(&setup);
    return status;
}

int sn_cmd_generate(int argc, char **argv) {
    const sn_option_group groups[] = {sn_group_model,   sn_group_adapter, prompt_group,    sn_group_sampling,
                                      sn_group_draft,   sn_group_chain,  sn_group_session,
                                      sn_group_audit,   sn_group_device, sn_group_log};
    const sn_command command = {
        .program = "swarm generate",
        .synopsis = "--model PATH (--join ADDRESS... | --local all) --prompt TEXT [options]",
        .about = "Writes on from a prompt, token by token, on standard output; figures follow on standard error.\n"
                 "Without --temperature the best token is taken each time, so that every run gives the same text.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof *groups,
        .epilogue = "--json prints {\"prompt_ids\", \"ids\", \"text\", \"finish_reason\", \"timings\"}. finish_reason "
                    "is stop (the "
                    "model's end token, the last of ids), stop_text (a text of --stop), length or interrupted. "
                    "timings.hops says for each hop which node, which blocks, and milliseconds in network, queue and "
                    "compute; timings.guessed_tokens and guessed_right, what --draft did.\n\n" SN_EXIT_CODES};
    return sn_cmd_run(&command, argc, argv, body);
}
