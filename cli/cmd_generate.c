/* swarm generate: text from a prompt, printed token by token. */
#include "cli/command.h"
#include "cli/io.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/setup.h"
#include "client/api/report.h"
#include "model/chat/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* The token ids of the prompt's text, plain or in the chat template. */
static sn_status encode_prompt(const sn_setup *setup, const char *text, size_t len, sn_token_ids *out, sn_err *err) {
    bool begins = !sn_program_settings.session.load; /* a loaded session continues: no begin-of-text token */
    if (!given.chat && !begins) return sn_tokenizer_encode_continuation(setup->tokenizer, text, len, true, out, err);
    if (!given.chat) return sn_tokenizer_encode(setup->tokenizer, text, len, true, true, out, err);
    sn_chat_template *chat = NULL;
    json_t *messages = json_array();
    sn_status status = sn_chat_template_open(setup->tokenizer, &chat, err);
    if (!status && given.system)
        status = sn_chat_add_message(messages, "system", given.system, strlen(given.system), err);
    if (!status) status = sn_chat_add_message(messages, "user", text, len, err);
    const sn_chat_request request = {.messages = messages};
    if (!status) status = sn_chat_template_encode(chat, setup->tokenizer, &request, begins, out, err);
    json_decref(messages);
    sn_chat_template_close(&chat);
    return status;
}

static sn_status read_prompt(const sn_setup *setup, sn_token_ids *out, sn_err *err) {
    if (given.ids_file) return sn_read_ids(given.ids_file, out, err);
    if (given.prompt) return encode_prompt(setup, given.prompt, strlen(given.prompt), out, err);
    if (!given.prompt_file) return SN_OK; /* --load without a prompt continues the session */
    sn_buf text;
    sn_status status = sn_read_input(given.prompt_file, SN_TEXT_MAX, &text, err);
    if (status) return status;
    status = encode_prompt(setup, (const char *)text.data, text.len, out, err);
    sn_buf_fini(&text);
    return status;
}

/* Puts the token ids of a saved session before those of the prompt. */
static sn_status prepend_saved_ids(const sn_session_file *saved, sn_token_ids *prompt, sn_err *err) {
    size_t n;
    const int32_t *ids = sn_session_file_ids(saved, &n);
    sn_token_ids all = {.n = n + prompt->n};
    sn_status status = sn_calloc(&all.ids, all.n, sizeof *all.ids, err);
    if (status) return status;
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

static sn_status print_text(void *ctx, const char *text, size_t len, sn_err *err) {
    sn_progress_bar_end(ctx); /* from here on the text shows the progress */
    fwrite(text, 1, len, stdout);
    return sn_flush_stdout(err);
}

static void show_prefill(void *ctx, size_t done, size_t total) {
    sn_progress_bar **bar = ctx;
    sn_progress_bar_set(*bar, done < total ? done : 0, done < total ? total : 0); /* what follows shows its time only */
}

static sn_status print_retracted(void *ctx, const char *text, size_t kept, sn_err *err) {
    (void)ctx;
    return sn_retract_print(text, kept, err);
}

static json_t *generation_json(const sn_token_ids *prompt, const sn_generation *result, const sn_sampling *sampling,
                               const sn_chain *chain, const sn_audit *audit) {
    json_t *o = json_object();
    json_object_set_new(o, "prompt_ids", sn_json_ids(prompt->ids, prompt->n));
    json_object_set_new(o, "ids", sn_json_ids(result->ids.ids, result->ids.n));
    json_object_set_new(o, "text", sn_json_text(&result->text));
    json_object_set_new(o, "finish_reason", json_string(sn_finish_name(result->finish)));
    if (sampling->temperature > 0) json_object_set_new(o, "seed", json_integer((json_int_t)sampling->seed));
    json_object_set_new(o, "timings", sn_report_json(&result->timings, chain));
    if (audit) json_object_set_new(o, "audit", sn_audit_json(audit));
    return o;
}

static sn_status print_generation(const sn_token_ids *prompt, const sn_generation *result, const sn_sampling *sampling,
                                  const sn_chain *chain, const sn_audit *audit, sn_err *err) {
    if (sn_cli_output.json) return sn_print_json(generation_json(prompt, result, sampling, chain, audit), err);
    putchar('\n');
    sn_status status = sn_flush_stdout(err);
    if (sampling->temperature > 0) fprintf(stderr, "seed %llu; ", (unsigned long long)sampling->seed);
    json_t *timings = sn_report_json(&result->timings, chain);
    sn_report_print(timings, result->ids.n);
    json_decref(timings);
    if (audit) sn_audit_print(audit);
    return status;
}

static sn_status run_generation(sn_setup *setup, const sn_token_ids *prompt, sn_session_file *saved, int *code,
                                sn_err *err) {
    const sn_sampling_settings *o = &sn_program_settings.sampling;
    sn_generator_parts parts = {setup->hp, setup->lm_head, setup->chain, setup->tokenizer, 0, NULL};
    int64_t default_tokens = o->max_tokens ? (int64_t)prompt->n + o->max_tokens : INT32_MAX;
    sn_status status = sn_setup_context(setup, o->ctx, default_tokens, &parts.max_context, err);
    if (status) return status;
    if (prompt->n > (size_t)parts.max_context)
        return sn_fail(err, SN_REFUSED, "the prompt has %zu tokens and the context %d: shorten the prompt", prompt->n,
                       parts.max_context);
    sn_sampling sampling = sn_settings_sampling(&sn_program_settings);
    sn_generator *generator = NULL;
    sn_generation result = {0};
    sn_progress_bar *bar = NULL;
    sn_generate_options options = {.max_tokens = (int)o->max_tokens,
                                   .stops = o->stop.items,
                                   .n_stops = o->stop.n,
                                   .ignore_eos = o->ignore_eos,
                                   .is_answer = given.chat,
                                   .on_text = sn_cli_output.json ? NULL : print_text,
                                   .when_checked = sn_cli_holds_text(),
                                   .on_retract = print_retracted,
                                   .on_prefill = show_prefill,
                                   .ctx = &bar,
                                   .cancel = &sn_interrupt};
    status = sn_setup_chain(setup, parts.max_context, false, err);
    if (!status) status = sn_setup_open_draft(setup, &sampling, parts.max_context, err);
    parts.chain = setup->chain;
    parts.draft = sn_setup_get_draft(setup);
    if (!status) status = sn_generator_new(&parts, &sampling, &generator, err);
    if (!status && saved) status = sn_session_file_restore(saved, setup->lm_head, setup->chain, generator, err);
    bar = sn_progress_bar_begin(sn_cli_output.json ? "generating" : "prefill");
    sn_progress_bar_unit(bar, "tokens");
    if (!status) status = sn_generator_run(generator, prompt->ids, prompt->n, &options, &result, err);
    sn_progress_bar_end(&bar);
    if (!status && result.finish == SN_FINISH_INTERRUPTED) {
        *code = SN_EXIT_INTERRUPTED;
        sn_interrupted = 0; /* what follows is not to be interrupted */
    }
    if (!status)
        status = print_generation(prompt, &result, &sampling, setup->chain, setup->audit, err);
    else if (result.text.len && !sn_cli_output.json)
        putchar('\n');
    if (!status) status = sn_session_save(setup, generator, NULL, err);
    sn_generation_fini(&result);
    sn_generator_free(&generator);
    return status;
}

static sn_status generate_main(const sn_options *options, int *code, sn_err *err) {
    (void)options;
    sn_setup setup = sn_cli_setup();
    sn_token_ids prompt = {0};
    sn_catch_interrupts();
    sn_status status = check_generate_options(err);
    sn_session_file *saved = NULL;
    bool text = given.prompt || given.prompt_file;
    if (!status) status = sn_setup_open(&setup, text, err);
    if (!status) status = sn_setup_refuse_classifier(&setup, err);
    if (!status) status = sn_session_open(&setup, &saved, err);
    if (!status) status = read_prompt(&setup, &prompt, err);
    if (!status && saved) status = prepend_saved_ids(saved, &prompt, err);
    if (!status) status = run_generation(&setup, &prompt, saved, code, err);
    sn_session_file_close(&saved);
    sn_token_ids_fini(&prompt);
    sn_setup_close(&setup);
    return status;
}

static const sn_option_group *const groups[] = {
    &sn_group_model, &sn_group_adapter, &prompt_group,   &sn_group_sampling, &sn_group_draft,  &sn_group_connection,
    &sn_group_chain, &sn_group_session, &sn_group_force, &sn_group_audit,    &sn_group_device, &sn_group_log};

const sn_cli_command sn_cmd_generate = {
    .command = {.program = "swarm generate",
                .summary = "generate text from a prompt",
                .synopsis = "--model PATH (--join HOST:PORT... | --local all) --prompt TEXT [options]",
                .about =
                    "Generates text from a prompt and prints it on standard output, token by token; timings follow "
                    "on standard error.\n"
                    "Without --temperature the most likely token is chosen each time, and every run gives the "
                    "same text.",
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
