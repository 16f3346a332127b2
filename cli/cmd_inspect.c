/* swarm inspect: what a model file holds, as the description of the C API has it, for people or as JSON. */
#include "base/parse.h"
#include "cli/program.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"
#include "cli/progress.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const sn_option options_table[] = {
    SN_OPT_FLAG("tensors", &sn_program_settings.api.tensors, "list every tensor: type, shape, bytes"),
    SN_OPT_FLAG("hashes", &sn_program_settings.api.hashes,
                "show the SHA-256 of each block's weights; this reads the whole file"),
    SN_OPT_FLAG("json", &sn_cli_output.json, "print one JSON object"),
};
static const sn_option_group output_group = SN_OPTION_GROUP("Output:", options_table);

static int number(const json_t *o, const char *name) { return (int)json_integer_value(json_object_get(o, name)); }
static bool is(const json_t *o, const char *name) { return json_is_true(json_object_get(o, name)); }
static const char *word(const json_t *o, const char *name) {
    const char *text = json_string_value(json_object_get(o, name));
    return text ? text : "";
}
static const char *bytes_of(const json_t *o, const char *name, char size[32]) {
    return sn_format_size((size_t)json_integer_value(json_object_get(o, name)), size);
}

static void print_window(const json_t *hp) {
    const json_t *windows = json_object_get(hp, "windows"), *window;
    size_t b, with = 0;
    json_array_foreach(windows, b, window) with += json_integer_value(window) > 0;
    if (with)
        printf("window      %d tokens, in %zu of %d blocks\n", number(hp, "window"), with, number(hp, "n_blocks"));
}

/* `of`: the blocks that have them. */
static void print_heads(const json_t *hp, const char *of) {
    printf("attention   %d heads of %d", number(hp, "n_heads"), number(hp, "head_dim"));
    if (number(hp, "value_dim") != number(hp, "head_dim")) printf(" (values %d)", number(hp, "value_dim"));
    printf(" over %d key/value heads%s", number(hp, "n_kv_heads"), of);
}

static void print_hparams(const json_t *o) {
    const json_t *hp = json_object_get(o, "hparams");
    printf("name        %s\ncontainer   %s\nfamily      %s\nmodel id    %s\n", word(o, "name"), word(o, "container"),
           word(o, "family"), word(o, "id"));
    printf("blocks      %d\nwidth       %d, feed-forward %d\n", number(hp, "n_blocks"), number(hp, "n_embd"),
           number(hp, "n_ff"));
    const json_t *full = json_object_get(hp, "full_heads");
    print_heads(hp, full ? ", in blocks with the window" : "");
    printf("%s%s\n", is(hp, "qkv_bias") ? ", biases" : "",
           is(hp, "qk_norm_wide") ? ", q/k norms over all heads"
           : is(hp, "qk_norm")    ? ", q/k norms"
                                  : "");
    if (full) print_heads(full, ", in the others\n");
    if (number(hp, "n_experts"))
        printf("experts     %d, %d for each token\n", number(hp, "n_experts"), number(hp, "n_experts_used"));
    print_window(hp);
    printf("context     %d tokens\nvocabulary  %d, LM head %s\n", number(hp, "n_ctx"), number(hp, "n_vocab"),
           is(hp, "tied_output") ? "tied to the embedding" : "separate");
    printf("rope        %d dimensions, %s%s\nnorm        eps %g%s\n", number(hp, "rope_dim"),
           strcmp(word(hp, "rope_style"), "pairs") ? "halves" : "neighbouring pairs",
           number(hp, "n_ropes") > 1 ? ", other frequencies in blocks with the window" : "",
           json_number_value(json_object_get(hp, "norm_eps")),
           is(hp, "post_norm") ? ", after attention and feed-forward" : "");
    if (json_is_integer(json_object_get(o, "tokenizer_vocab")))
        printf("tokenizer   %d tokens\n", number(o, "tokenizer_vocab"));
    else
        printf("tokenizer   none: %s\n", word(o, "no_tokenizer"));
    if (json_is_integer(json_object_get(o, "chat_template_bytes")))
        printf("chat        a template of %d bytes%s\n", number(o, "chat_template_bytes"),
               is(o, "tool_template") ? ", and another one for tools" : "");
    else
        puts("chat        no template");
    printf("training    %s\n", !is(o, "trains")          ? word(o, "no_training")
                               : number(hp, "n_experts") ? "prompts, classifiers and LoRA of q, k, v and o"
                                                         : "prompts, classifiers and LoRA");
}

/* "135 M": with three digits. */
static void print_parameters(double n) {
    static const char *const units[] = {"", " k", " M", " G", " T"};
    int unit = 0;
    for (; n >= 999.5 && unit < 4; unit++) n /= 1000;
    printf("parameters  %.*f%s\n", !unit || n >= 99.95 ? 0 : n >= 9.995 ? 1 : 2, n, units[unit]);
}

/* The types of the weights, with their share of the bytes; the largest first. */
static void print_types(const json_t *types) {
    double shares[64], all = 0;
    const char *names[64], *name;
    json_t *value;
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)types, name, value) {
        double bytes = json_number_value(value);
        size_t at = n;
        all += bytes;
        if (n == 64) continue;
        for (n++; at && shares[at - 1] < bytes; at--) {
            shares[at] = shares[at - 1];
            names[at] = names[at - 1];
        }
        shares[at] = bytes;
        names[at] = name;
    }
    printf("weights     ");
    for (size_t i = 0; i < n; i++) printf("%s%s %.3g %%", i ? ", " : "", names[i], all > 0 ? 100 * shares[i] / all : 0);
    putchar('\n');
}

static void print_sizes(const json_t *o) {
    const json_t *blocks = json_object_get(o, "blocks"), *block;
    char size[32], average[32];
    size_t b, all = 0, held = 0, n = json_array_size(blocks);
    print_parameters(json_number_value(json_object_get(o, "parameters")));
    print_types(json_object_get(o, "type_bytes"));
    printf("client      %s: embedding, output norm and LM head\n", bytes_of(o, "client_bytes", size));
    json_array_foreach(blocks, b, block) {
        size_t bytes = (size_t)json_integer_value(json_object_get(block, "bytes"));
        all += bytes;
        held += bytes > 0;
        if (sn_program_settings.api.hashes)
            printf("block %-5zu %s  %s\n", b, bytes ? word(block, "hash") : "not in this file",
                   sn_format_size(bytes, size));
    }
    if (held)
        printf("blocks      %zu of %zu in this file, %s in all, %s each on average\n", held, n,
               sn_format_size(all, size), sn_format_size(all / held, average));
    else
        printf("blocks      0 of %zu in this file\n", n);
}

static void print_tensors(const json_t *o) {
    const json_t *tensors = json_object_get(o, "tensors"), *t;
    char size[32], shape[48];
    size_t i;
    printf("tensors     %d\n", number(o, "n_tensors"));
    json_array_foreach(tensors, i, t) {
        const json_t *dims = json_object_get(t, "shape");
        snprintf(shape, sizeof shape, "%lld x %lld", (long long)json_integer_value(json_array_get(dims, 0)),
                 (long long)json_integer_value(json_array_get(dims, 1)));
        printf("  %-6s %16s %10s  %s\n", word(t, "dtype"), shape, bytes_of(t, "bytes", size), word(t, "name"));
    }
}

static sn_status inspect_main(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    json_t *o = NULL;
    swarm_model *model = NULL;
    sn_progress_bar *bar = sn_progress_bar_begin(sn_program_settings.api.hashes ? "hashing the blocks" : "reading");
    sn_status status = sn_cli_open_model(&model, err);
    if (!status) status = sn_cli_describe_model(model, &o, err);
    sn_progress_bar_end(&bar);
    if (!status && sn_cli_output.json) {
        status = sn_print_json(json_incref(o), err);
    } else if (!status) {
        print_hparams(o);
        print_sizes(o);
        print_tensors(o);
    }
    json_decref(o);
    swarm_model_close(model);
    return status;
}

static const sn_option_group *const groups[] = {&sn_group_model, &output_group, &sn_group_log};

const sn_cli_command sn_cmd_inspect = {
    .command = {.program = "swarm inspect",
                .summary = "show what a model file holds",
                .synopsis = "--model PATH [options]",
                .about = "Shows what a model file or folder holds: container, family, hyperparameters, sizes of its "
                         "blocks, tokenizer. Reads headers only, unless --hashes is given.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .run = inspect_main,
};
