/* swarm tokenize: text to token ids and back, by the C API. */
#include "cli/program.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"

#include <stdio.h>
#include <string.h>

static struct {
    const char *text, *file, *ids_file;
    bool decode, no_special, no_bos;
} given;

static const sn_option input_options[] = {
    SN_OPT_STRING("text", "TEXT", &given.text, "the text"),
    SN_OPT_STRING("file", "FILE", &given.file, "a file with the text; -: standard input, as without --text and --file"),
    SN_OPT_FLAG("decode", &given.decode, "turn token ids into text"),
    SN_OPT_STRING("ids-file", "FILE", &given.ids_file,
                  "with --decode: a file with token ids, as a JSON array (default: standard input)"),
    SN_OPT_FLAG("no-bos", &given.no_bos, "add no begin-of-text token"),
    SN_OPT_FLAG("no-special", &given.no_special,
                "treat special tokens that are spelled out as ordinary text; with --decode, leave them out"),
    SN_OPT_FLAG("json", &sn_cli_output.json, "print {\"ids\"}, with --decode {\"text\"}"),
};
static const sn_option_group input_group = SN_OPTION_GROUP("Input:", input_options);

static sn_status tokenize_text(const swarm_model *model, sn_err *err) {
    sn_buf file = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    int flags =
        SWARM_TEXT_BEGINS | (given.no_bos ? SWARM_TEXT_NO_BOS : 0) | (given.no_special ? 0 : SWARM_TEXT_SPECIAL);
    swarm_error *error = NULL;
    sn_status status = given.text ? SN_OK : sn_read_input(given.file ? given.file : "-", SN_INPUT_MAX, &file, err);
    const char *text = given.text ? given.text : (const char *)file.data;
    size_t len = given.text ? strlen(given.text) : file.len;
    if (!status) status = sn_cli_status(swarm_model_tokenize(model, text, len, flags, &ids, &n, &error), &error, err);
    if (!status && sn_cli_output.json) {
        json_t *o = json_object();
        json_object_set_new(o, "ids", sn_json_ids(ids, n));
        status = sn_print_json(o, err);
    } else if (!status) {
        for (size_t i = 0; i < n; i++) printf("%s%d", i ? " " : "", ids[i]);
        putchar('\n');
    }
    swarm_free(ids);
    sn_buf_fini(&file);
    return status;
}

static sn_status append_token(const swarm_model *model, int32_t id, int flags, sn_buf *out, sn_err *err) {
    char *bytes = NULL;
    size_t n = 0;
    swarm_error *error = NULL;
    sn_status status = sn_cli_status(swarm_model_token_bytes(model, id, flags, &bytes, &n, &error), &error, err);
    if (!status) status = sn_buf_append(out, bytes, n, err);
    swarm_free(bytes);
    return status;
}

static sn_status decode_ids(const swarm_model *model, sn_err *err) {
    sn_token_ids ids;
    sn_buf text;
    bool begins = true;
    const int flags = given.no_special ? 0 : SWARM_TEXT_SPECIAL;
    sn_buf_init(&text, (size_t)1 << 30);
    sn_status status = sn_read_ids(given.ids_file ? given.ids_file : "-", &ids, err);
    for (size_t i = 0; i < ids.n && !status; i++) {
        status = append_token(model, ids.ids[i], flags, &text, err);
        if (status || !begins || !text.len) continue;
        begins = false; /* the first token that has bytes */
        text.len = 0;
        status = append_token(model, ids.ids[i], flags | SWARM_TEXT_BEGINS, &text, err);
    }
    if (!status && sn_cli_output.json) {
        json_t *string = sn_json_text(&text);
        if (!string)
            status = sn_fail(err, SN_REFUSED,
                             "the token ids give no valid UTF-8 text, which JSON cannot hold: leave out --json to "
                             "get the bytes");
        else
            status = sn_print_json(json_pack("{so}", "text", string), err);
    } else if (!status && text.len) {
        fwrite(text.data, 1, text.len, stdout);
    }
    sn_buf_fini(&text);
    sn_token_ids_fini(&ids);
    return status;
}

static sn_status tokenize_main(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    if (given.text && given.file) return sn_fail(err, SN_REFUSED, "give --text or --file, not both");
    if (given.decode && (given.text || given.file))
        return sn_fail(err, SN_REFUSED,
                       "--decode reads token ids: give --ids-file, or the token ids on standard input");
    if (!given.decode && given.ids_file) return sn_fail(err, SN_REFUSED, "--ids-file needs --decode");
    swarm_model *model = NULL;
    sn_status status = sn_cli_open_tokenizer(sn_program_settings.common.model, &model, err);
    if (!status) status = given.decode ? decode_ids(model, err) : tokenize_text(model, err);
    swarm_model_close(model);
    return status;
}

static const sn_option_group *const groups[] = {&sn_group_model, &input_group, &sn_group_log};

const sn_cli_command sn_cmd_tokenize = {
    .command = {.program = "swarm tokenize",
                .summary = "turn text into token ids, or token ids into text",
                .synopsis = "--model PATH [--text TEXT | --file FILE | --decode] [options]",
                .about =
                    "Prints the token ids that the model's tokenizer makes of a text, or with --decode the text of "
                    "token ids. Only the tokenizer of the model is read.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .run = tokenize_main,
};
