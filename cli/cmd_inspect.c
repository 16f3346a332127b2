/* swarm inspect: what a model file holds.
 *
 * One pass reads container, hyperparameters and tokenizer; sizes are sums over the roles of a block, and hashes are
 * read block by block only when they are asked for. The same facts are printed as text or as one JSON object. */
#include "cli/command.h"
#include "cli/io.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

static struct {
    bool hashes, tensors;
} given;

static const sn_option options_table[] = {
    SN_OPT_FLAG("tensors", &given.tensors, "list every tensor: type, shape, bytes"),
    SN_OPT_FLAG("hashes", &given.hashes, "show the SHA-256 of each block's weights; this reads the whole file"),
    SN_OPT_FLAG("json", &sn_cli_output.json, "print one JSON object"),
};
static const sn_option_group output_group = SN_OPTION_GROUP("Output:", options_table);

/* Bytes of the tensors with roles [first_role, end_role) of a block, or of the client's part (embedding, LM head). */
static sn_status model_part_bytes(const sn_model *model, int first_role, int end_role, int block, size_t *bytes,
                                  sn_err *err) {
    const void *seen = NULL; /* a tied LM head is the embedding again, and is counted once */
    *bytes = 0;
    for (int role = first_role; role < end_role; role++) {
        for (int i = 0; i < sn_role_n_matrices(sn_model_hparams(model), (sn_role)role); i++) {
            sn_model_tensor t;
            sn_status status = sn_model_find_expert(model, (sn_role)role, block, i, &t, err);
            if (status) return status;
            if (t.data && t.data != seen) *bytes += t.bytes;
            if (role == SN_ROLE_TOKEN_EMBEDDING) seen = t.data;
        }
    }
    return SN_OK;
}

/* One block: its size (0 when it is not in the file) and, with --hashes, its hash in hexadecimal. */
static sn_status inspect_block(const sn_model *model, int block, size_t *bytes, char hex[2 * SN_HASH_SIZE + 1],
                               sn_err *err) {
    sn_hash hash;
    *bytes = 0;
    *hex = 0;
    if (!sn_model_has_block(model, block)) return SN_OK;
    sn_status status = model_part_bytes(model, SN_ROLE_FIRST_OF_BLOCK, SN_ROLE_COUNT, block, bytes, err);
    if (!status && given.hashes) status = sn_model_block_hash(model, block, &hash, err);
    if (!status && given.hashes) sn_hex(hash.bytes, SN_HASH_SIZE, hex);
    return status;
}

/* -- for people -- */

static void print_window(const sn_hparams *hp) {
    int with = 0;
    for (int b = 0; b < hp->n_blocks; b++) with += sn_window_of(hp, b) > 0;
    if (with) printf("window      %d tokens, in %d of %d blocks\n", hp->window, with, hp->n_blocks);
}

static void print_hparams(const sn_model *model, const sn_tokenizer *tokenizer, const char *no_tokenizer) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_hash id = sn_model_id(model);
    char hex[2 * SN_HASH_SIZE + 1];
    printf("name        %s\ncontainer   %s\nfamily      %s\nmodel id    %s\n", hp->name, sn_model_container(model),
           hp->family, sn_hex(id.bytes, SN_HASH_SIZE, hex));
    printf("blocks      %d\nwidth       %d, feed-forward %d\n", hp->n_blocks, hp->n_embd, hp->n_ff);
    printf("attention   %d heads of %d over %d key/value heads%s%s\n", hp->n_heads, hp->head_dim, hp->n_kv_heads,
           hp->qkv_bias ? ", biases" : "",
           hp->qk_norm_wide ? ", q/k norms over all heads"
           : hp->qk_norm    ? ", q/k norms"
                            : "");
    if (hp->n_experts) printf("experts     %d, %d for each token\n", hp->n_experts, hp->n_experts_used);
    print_window(hp);
    printf("context     %d tokens\nvocabulary  %d, LM head %s\n", hp->n_ctx, hp->n_vocab,
           hp->tied_output ? "tied to the embedding" : "separate");
    printf("rope        %d dimensions, %s%s\nnorm        eps %g%s\n", hp->rope_dim,
           hp->rope_style == SN_ROPE_INTERLEAVED ? "neighbouring pairs" : "halves",
           hp->n_ropes > 1 ? ", other frequencies in blocks with the window" : "", (double)hp->norm_eps,
           hp->post_norm ? ", after attention and feed-forward" : "");
    if (tokenizer)
        printf("tokenizer   %d tokens\n", sn_tokenizer_n_vocab(tokenizer));
    else
        printf("tokenizer   none: %s\n", no_tokenizer);
}

static sn_status print_sizes(const sn_model *model, sn_err *err) {
    char size[32], hex[2 * SN_HASH_SIZE + 1];
    size_t bytes, all = 0;
    int n = sn_model_hparams(model)->n_blocks, held = 0;
    sn_status status = model_part_bytes(model, 0, SN_ROLE_FIRST_OF_BLOCK, 0, &bytes, err);
    if (!status) printf("client      %s: embedding, output norm and LM head\n", sn_format_size(bytes, size));
    for (int b = 0; b < n && !status; b++) {
        status = inspect_block(model, b, &bytes, hex, err);
        if (status) break;
        all += bytes;
        held += bytes > 0;
        if (given.hashes)
            printf("block %-5d %s  %s\n", b, bytes ? hex : "not in this file", sn_format_size(bytes, size));
    }
    if (!status && held)
        printf("blocks      %d of %d in this file, %s in all", held, n, sn_format_size(all, size)),
            printf(", %s each on average\n", sn_format_size(all / (size_t)held, size));
    else if (!status)
        printf("blocks      0 of %d in this file\n", n);
    return status;
}

static void print_tensors(const sn_model *model) {
    size_t n = sn_model_n_tensors(model);
    char size[32], shape[48];
    printf("tensors     %zu\n", n);
    for (size_t i = 0; i < n && given.tensors; i++) {
        const char *name, *type;
        sn_model_tensor t;
        sn_model_tensor_at(model, i, &name, &type, &t);
        snprintf(shape, sizeof shape, "%zu x %zu", t.rows, t.cols);
        printf("  %-6s %16s %10s  %s\n", type, shape, sn_format_size(t.bytes, size), name);
    }
}

/* -- for scripts -- */

static json_t *hparams_json(const sn_hparams *hp) {
    json_t *o = json_object();
    const struct {
        const char *name;
        int value;
    } numbers[] = {
        {"n_blocks", hp->n_blocks},     {"n_embd", hp->n_embd},       {"n_heads", hp->n_heads},
        {"n_kv_heads", hp->n_kv_heads}, {"head_dim", hp->head_dim},   {"n_ff", hp->n_ff},
        {"n_vocab", hp->n_vocab},       {"n_ctx", hp->n_ctx},         {"window", hp->window},
        {"rope_dim", hp->rope_dim},     {"n_experts", hp->n_experts}, {"n_experts_used", hp->n_experts_used}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(o, numbers[i].name, json_integer(numbers[i].value));
    json_object_set_new(o, "norm_eps", json_real((double)hp->norm_eps));
    json_object_set_new(o, "rope_style", json_string(hp->rope_style == SN_ROPE_INTERLEAVED ? "pairs" : "halves"));
    json_object_set_new(o, "qkv_bias", json_boolean(hp->qkv_bias));
    json_object_set_new(o, "qk_norm", json_boolean(hp->qk_norm));
    json_object_set_new(o, "post_norm", json_boolean(hp->post_norm));
    json_object_set_new(o, "tied_output", json_boolean(hp->tied_output));
    json_t *windows = json_array(); /* of each block; 0: no window */
    for (int b = 0; b < hp->n_blocks; b++) json_array_append_new(windows, json_integer(sn_window_of(hp, b)));
    json_object_set_new(o, "windows", windows);
    return o;
}

static json_t *tensors_json(const sn_model *model) {
    json_t *list = json_array();
    for (size_t i = 0, n = sn_model_n_tensors(model); i < n; i++) {
        const char *name, *type;
        sn_model_tensor t;
        sn_model_tensor_at(model, i, &name, &type, &t);
        json_array_append_new(list, json_pack("{ss ss s[II] sI}", "name", name, "dtype", type, "shape",
                                              (json_int_t)t.rows, (json_int_t)t.cols, "bytes", (json_int_t)t.bytes));
    }
    return list;
}

static sn_status blocks_json(const sn_model *model, json_t *list, sn_err *err) {
    char hex[2 * SN_HASH_SIZE + 1];
    size_t bytes;
    for (int b = 0; b < sn_model_hparams(model)->n_blocks; b++) {
        sn_status status = inspect_block(model, b, &bytes, hex, err);
        if (status) return status;
        json_t *o = json_pack("{si sI}", "block", b, "bytes", (json_int_t)bytes);
        if (*hex) json_object_set_new(o, "hash", json_string(hex));
        json_array_append_new(list, o);
    }
    return SN_OK;
}

static sn_status print_all_json(const sn_model *model, const sn_tokenizer *tokenizer, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    char hex[2 * SN_HASH_SIZE + 1];
    sn_hash id = sn_model_id(model);
    json_t *blocks = json_array();
    sn_status status = blocks_json(model, blocks, err);
    if (status) {
        json_decref(blocks);
        return status;
    }
    json_t *o =
        json_pack("{ss ss ss ss so so}", "name", hp->name, "container", sn_model_container(model), "family", hp->family,
                  "id", sn_hex(id.bytes, SN_HASH_SIZE, hex), "hparams", hparams_json(hp), "blocks", blocks);
    json_object_set_new(o, "tokenizer_vocab", tokenizer ? json_integer(sn_tokenizer_n_vocab(tokenizer)) : json_null());
    json_object_set_new(o, "n_tensors", json_integer((json_int_t)sn_model_n_tensors(model)));
    if (given.tensors) json_object_set_new(o, "tensors", tensors_json(model));
    return sn_print_json(o, err);
}

/* -- the command -- */

static sn_status inspect_main(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    sn_err no_tokenizer = {0};
    sn_model *model = NULL;
    sn_tokenizer *tokenizer = NULL;
    const char *path = sn_program_settings.common.model;
    sn_progress_bar *bar = sn_progress_bar_begin(given.hashes ? "hashing the blocks" : "reading");
    sn_status status = sn_model_open(path, &model, err);
    if (!status && sn_tokenizer_open(path, &tokenizer, &no_tokenizer)) tokenizer = NULL; /* shown, and no failure */
    if (!status && sn_cli_output.json) {
        status = print_all_json(model, tokenizer, err);
    } else if (!status) {
        print_hparams(model, tokenizer, no_tokenizer.text);
        status = print_sizes(model, err);
        if (!status) print_tensors(model);
    }
    sn_progress_bar_end(&bar);
    sn_tokenizer_close(&tokenizer);
    sn_model_close(&model);
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
