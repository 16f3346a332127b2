/* swarm forward: logits and hidden states of given tokens, written to a file. */
#include "cli/command.h"
#include "cli/io.h"
#include "cli/progress.h"
#include "cli/setup.h"
#include "model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *ids_file, *out;
    bool every_block;
} given;

static const sn_option options_table[] = {
    SN_OPT_REQUIRED("ids-file", "FILE", &given.ids_file, "a file with token ids, as a JSON array; -: standard input"),
    SN_OPT_REQUIRED("out", "FILE", &given.out, "the safetensors file to write"),
    SN_OPT_FLAG("every-block", &given.every_block, "hidden states at every block, not only between hops"),
};
static const sn_option_group files_group = SN_OPTION_GROUP("Input and output:", options_table);

/* What the chain's observer collects: hidden states (n_tokens, n_embd) at each boundary between hops. */
typedef struct collector {
    size_t n_tokens, n_embd, n_blocks;
    int n_virtual;  /* virtual tokens of the adapter, which are not collected */
    float **hidden; /* (n_blocks + 1), NULL where there is no boundary */
    bool failed;    /* out of memory */
} collector;

static void collect_hidden(void *ctx, int block, int position, int n, const float *rows) {
    collector *c = ctx;
    float **at = &c->hidden[block];
    sn_err err;
    position -= c->n_virtual;
    if (position < 0) return; /* virtual tokens are in steps of their own */
    if (!*at && sn_calloc(at, c->n_tokens * c->n_embd, sizeof **at, &err)) {
        c->failed = true;
        return;
    }
    memcpy(*at + (size_t)position * c->n_embd, rows, (size_t)n * c->n_embd * sizeof *rows);
}

/* Runs the tokens through chain and LM head; the observer collects meanwhile. logits: (n_tokens, n_vocab). */
static sn_status run_tokens(sn_setup *setup, const sn_token_ids *ids, collector *c, float *logits, sn_err *err) {
    float *hidden = NULL;
    sn_progress_bar *bar = sn_progress_bar_begin("computing");
    sn_progress_bar_unit(bar, "tokens");
    sn_status status = sn_calloc(&hidden, c->n_tokens * c->n_embd, sizeof *hidden, err);
    if (!status) status = sn_lm_head_embed(setup->lm_head, ids->ids, (int)ids->n, hidden, err);
    sn_chain_observe(setup->chain, collect_hidden, c);
    for (size_t done = 0, n; done < ids->n && !status && !sn_interrupted; done += n) {
        n = sn_min_size(SN_SPAN_ROWS, ids->n - done);
        float *rows = hidden + done * c->n_embd;
        status = sn_chain_step(setup->chain, (int)done, (int)n, rows, rows, err);
        if (!status)
            status = sn_lm_head_logits(setup->lm_head, rows, (int)n, logits + done * (size_t)setup->hp->n_vocab, err);
        if (!status && c->failed) status = sn_fail(err, SN_STOP, "out of memory for the hidden states");
        sn_progress_bar_set(bar, done + n, ids->n);
    }
    sn_progress_bar_end(&bar);
    free(hidden);
    if (!status && sn_interrupted) status = sn_fail(err, SN_RETRY, "interrupted");
    return status;
}

static sn_status write_file(const collector *c, const float *logits, size_t n_vocab, sn_err *err) {
    size_t capacity = c->n_blocks + 2, n = 0;
    sn_safetensors_entry *entries = NULL;
    char(*names)[32] = NULL;
    sn_status status = sn_calloc(&entries, capacity, sizeof *entries, err);
    if (!status) status = sn_calloc(&names, capacity, sizeof *names, err);
    for (size_t block = 0; block <= c->n_blocks && !status; block++) {
        if (!c->hidden[block]) continue;
        snprintf(names[n], sizeof names[n], "hidden.%zu", block);
        entries[n] = (sn_safetensors_entry){names[n], SN_F32, 2, {c->n_tokens, c->n_embd}, c->hidden[block]};
        n++;
    }
    if (!status) {
        entries[n++] = (sn_safetensors_entry){"logits", SN_F32, 2, {c->n_tokens, n_vocab}, logits};
        status = sn_safetensors_write(given.out, entries, n, err);
    }
    free(names);
    free(entries);
    return status;
}

static sn_status forward_ids(sn_setup *setup, const sn_token_ids *ids, sn_err *err) {
    collector c = {.n_tokens = ids->n,
                   .n_embd = (size_t)setup->hp->n_embd,
                   .n_blocks = (size_t)setup->hp->n_blocks,
                   .n_virtual = sn_loaded_adapter_for_chain(&setup->adapter).n_prompt};
    float *logits = NULL;
    size_t n_vocab = (size_t)setup->hp->n_vocab, cells;
    if (!ids->n) return sn_fail(err, SN_REFUSED, "%s has no token", given.ids_file);
    if (ids->n > (size_t)(setup->hp->n_ctx - c.n_virtual))
        return sn_fail(err, SN_REFUSED, "%s has %zu tokens; this model's context holds %d", given.ids_file, ids->n,
                       setup->hp->n_ctx - c.n_virtual);
    if (!sn_mul(ids->n, n_vocab, &cells)) return sn_fail(err, SN_STOP, "the logits are too large for this machine");
    sn_status status = sn_setup_chain(setup, (int)ids->n, given.every_block, err);
    if (!status) status = sn_calloc(&logits, cells, sizeof *logits, err);
    if (!status) status = sn_calloc(&c.hidden, c.n_blocks + 1, sizeof *c.hidden, err);
    if (!status) status = run_tokens(setup, ids, &c, logits, err);
    if (!status) status = write_file(&c, logits, n_vocab, err);
    for (size_t block = 0; c.hidden && block <= c.n_blocks; block++) free(c.hidden[block]);
    free(c.hidden);
    free(logits);
    return status;
}

static sn_status forward_main(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    sn_setup setup = sn_cli_setup();
    sn_token_ids ids = {0};
    sn_catch_interrupts();
    sn_status status = sn_check_output("--out", given.out, err);
    if (!status) status = sn_setup_open(&setup, false, err);
    if (!status) status = sn_read_ids(given.ids_file, &ids, err);
    if (!status) status = forward_ids(&setup, &ids, err);
    sn_token_ids_fini(&ids);
    sn_setup_close(&setup);
    return status;
}

/* Long inputs and no user who waits for a token: throughput counts. */
static void forward_prepare(int argc, char *const *argv) {
    (void)argc, (void)argv;
    sn_program_settings.common.route = SN_ROUTE_THROUGHPUT;
}

static const sn_option_group *const groups[] = {&sn_group_model,  &sn_group_adapter,    &files_group,
                                                &sn_group_force,  &sn_group_connection, &sn_group_chain,
                                                &sn_group_device, &sn_group_log};

const sn_cli_command sn_cmd_forward = {
    .command = {.program = "swarm forward",
                .summary = "write logits and hidden states of given tokens to a file",
                .synopsis = "--model PATH (--join HOST:PORT... | --local all) --ids-file FILE --out FILE",
                .about = "Runs tokens through the model and writes a safetensors file, all float32: logits (tokens, "
                         "vocabulary), and hidden.<block> (tokens, width), the hidden states that enter that block, "
                         "at every boundary between hops; the one of the highest number leaves the last block, before "
                         "the final norm.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .prepare = forward_prepare,
    .run = forward_main,
};
