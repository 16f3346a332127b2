/* swarm tokenize: text to token ids and back. */
#include "client/cmd.h"

#include <stdio.h>
#include <string.h>

static struct {
    const char *text, *file, *ids_file;
    bool decode, plain, no_bos;
} given;

static const sn_option input_options[] = {
    SN_OPT_STRING("text", "TEXT", &given.text, "the text"),
    SN_OPT_STRING("file", "FILE", &given.file, "a file of text; - or nothing: standard input"),
    SN_OPT_FLAG("decode", &given.decode, "the other way: ids to text"),
    SN_OPT_STRING("ids-file", "FILE", &given.ids_file,
                  "with --decode: a JSON array of ids; - or nothing: standard input"),
    SN_OPT_FLAG("no-bos", &given.no_bos, "no begin-of-text token in front, though the model wants one"),
    SN_OPT_FLAG("plain", &given.plain,
                "special tokens: written out in the text they are ordinary text, decoded nothing"),
    SN_OPT_FLAG("json", &sn_given.json, "print {\"ids\"}, with --decode {\"text\"}"),
};

static sn_status encode(const sn_tokenizer *tokenizer, sn_err *err) {
    sn_buf file = {0};
    sn_ids ids = {0};
    sn_status status = given.text ? SN_OK : sn_read_input(given.file ? given.file : "-", SN_TEXT_MAX, &file, err);
    const char *text = given.text ? given.text : (const char *)file.data;
    size_t len = given.text ? strlen(given.text) : file.len;
    if (!status) status = sn_tokenizer_encode(tokenizer, text, len, !given.no_bos, !given.plain, &ids, err);
    if (!status && sn_given.json) {
        json_t *o = json_object();
        json_object_set_new(o, "ids", sn_json_ids(ids.ids, ids.n));
        status = sn_print_json(o, err);
    } else if (!status) {
        for (size_t i = 0; i < ids.n; i++) printf("%s%d", i ? " " : "", ids.ids[i]);
        putchar('\n');
    }
    sn_ids_fini(&ids);
    sn_buf_fini(&file);
    return status;
}

static sn_status decode(const sn_tokenizer *tokenizer, sn_err *err) {
    sn_ids ids;
    sn_buf text;
    sn_buf_init(&text, (size_t)1 << 30);
    sn_status status = sn_read_ids(given.ids_file ? given.ids_file : "-", &ids, err);
    for (size_t i = 0; i < ids.n && !status; i++)
        status = sn_tokenizer_decode(tokenizer, ids.ids[i], !given.plain, &text, err);
    if (!status && text.len && text.data[0] == ' ' && sn_tokenizer_drops_lead(tokenizer)) memmove(text.data, text.data + 1, --text.len);
    if (!status && sn_given.json) {
        json_t *string = sn_json_text(&text);
        if (!string)
            status = sn_fail(err, SN_REFUSED,
                             "the ids are no whole UTF-8 text, which JSON cannot hold: leave out "
                             "--json to get the bytes");
        else
            status = sn_print_json(json_pack("{so}", "text", string), err);
    } else if (!status && text.len) {
        fwrite(text.data, 1, text.len, stdout);
    }
    sn_buf_fini(&text);
    sn_ids_fini(&ids);
    return status;
}

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    if (given.text && given.file) return sn_fail(err, SN_REFUSED, "give --text or --file, not both");
    if (given.decode && (given.text || given.file))
        return sn_fail(err, SN_REFUSED, "--decode takes ids: give --ids-file, or the ids on standard input");
    if (!given.decode && given.ids_file) return sn_fail(err, SN_REFUSED, "--ids-file is for --decode");
    sn_tokenizer *tokenizer = NULL;
    sn_status status = sn_tokenizer_open(sn_given.model, &tokenizer, err);
    if (!status) status = given.decode ? decode(tokenizer, err) : encode(tokenizer, err);
    sn_tokenizer_close(&tokenizer);
    return status;
}

int sn_cmd_tokenize(int argc, char **argv) {
    const sn_option_group groups[] = {
        sn_group_model, {"Input:", input_options, sizeof input_options / sizeof *input_options}, sn_group_log};
    const sn_command command = {.program = "swarm tokenize",
                                .synopsis = "--model PATH [--text TEXT | --file FILE | --decode]",
                                .about = "Prints the token ids of a text as the model's tokenizer makes them, or with "
                                         "--decode the text of ids. Only "
                                         "the tokenizer of the model is read.",
                                .groups = groups,
                                .n_groups = sizeof groups / sizeof *groups,
                                .epilogue = SN_EXIT_CODES};
    return sn_cmd_run(&command, argc, argv, body);
}
