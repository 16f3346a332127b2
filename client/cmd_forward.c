/* swarm forward: logits and hidden states of given tokens, into a file. */
#include "client/cmd.h"

#include "model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *ids_file, *out;
    bool every_block;
} given;

static const sn_option options_table[] = {
    SN_OPT_REQUIRED("ids-file", "FILE", &given.ids_file, "the tokens: a JSON array of ids; - is standard input"),
    SN_OPT_REQUIRED("out", "FILE", &given.out, "the safetensors file to write"),
    SN_OPT_FLAG("every-block", &given.every_block, "hidden states at every block, not only where the chain is cut"),
};

/* What the chain shows while it steps: hidden states (n_tokens, n_embd) at each boundary that it comes by. */
typedef struct collector {
    size_t n_tokens, n_embd, n_blocks;
    int before;     /* virtual tokens, which are not shown */
    float **hidden; /* (n_blocks + 1), NULL where no boundary is */
    bool failed;    /* memory is out */
} collector;

static void collect(void *ctx, int block, int position, int n, const float *rows) {
    collector *c = ctx;
    float **at = &c->hidden[block];
    sn_err err;
    position -= c->before;
    if (position < 0) return; /* they go by themselves */
    if (!*at && sn_calloc(at, c->n_tokens * c->n_embd, sizeof **at, &err)) {
        c->failed = true;
        return;
    }
    memcpy(*at + (size_t)position * c->n_embd, rows, (size_t)n * c->n_embd * sizeof *rows);
}

/* The tokens through the chain, boundaries collected on the way, then the head. logits: (n_tokens, n_vocab). */
static sn_status forward(sn_setup *setup, const sn_ids *ids, collector *c, float *logits, sn_err *err) {
    float *hidden = NULL;
    sn_progress_shown *shown = sn_progress_begin("computing");
    sn_status status = sn_calloc(&hidden, c->n_tokens * c->n_embd, sizeof *hidden, err);
    if (!status) status = sn_head_embed(setup->head, ids->ids, (int)ids->n, hidden, err);
    sn_chain_observe(setup->chain, collect, c);
    for (size_t done = 0, n; done < ids->n && !status && !sn_interrupted; done += n) {
        n = sn_min_size(SN_SPAN_ROWS_MAX, ids->n - done);
        float *rows = hidden + done * c->n_embd;
        status = sn_chain_step(setup->chain, (int)done, (int)n, rows, rows, err);
        if (!status)
            status = sn_head_logits(setup->head, rows, (int)n, logits + done * (size_t)setup->hp->n_vocab, err);
        if (!status && c->failed) status = sn_fail(err, SN_STOP, "out of memory for the hidden states");
        sn_progress_set(shown, done + n, ids->n);
    }
    sn_progress_end(&shown);
    free(hidden);
    if (!status && sn_interrupted) status = sn_fail(err, SN_RETRY, "interrupted");
    return status;
}

static sn_status write_file(const collector *c, const float *logits, size_t n_vocab, sn_err *err) {
    size_t room = c->n_blocks + 2, n = 0;
    sn_safetensors_entry *entries = NULL;
    char(*names)[32] = NULL;
    sn_status status = sn_calloc(&entries, room, sizeof *entries, err);
    if (!status) status = sn_calloc(&names, room, sizeof *names, err);
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

static sn_status run(sn_setup *setup, const sn_ids *ids, sn_err *err) {
    collector c = {.n_tokens = ids->n,
                   .n_embd = (size_t)setup->hp->n_embd,
                   .n_blocks = (size_t)setup->hp->n_blocks,
                   .before = sn_trained_for_chain(&setup->trained).n_prompt};
    float *logits = NULL;
    size_t n_vocab = (size_t)setup->hp->n_vocab, cells;
    if (!ids->n) return sn_fail(err, SN_REFUSED, "%s has no token", given.ids_file);
    if (ids->n > (size_t)(setup->hp->n_ctx - c.before))
        return sn_fail(err, SN_REFUSED, "%s has %zu tokens; this model's context holds %d", given.ids_file, ids->n,
                       setup->hp->n_ctx - c.before);
    if (!sn_mul(ids->n, n_vocab, &cells)) return sn_fail(err, SN_STOP, "the logits are too large for this machine");
    sn_status status = sn_setup_chain(setup, (int)ids->n, given.every_block, err);
    if (!status) status = sn_calloc(&logits, cells, sizeof *logits, err);
    if (!status) status = sn_calloc(&c.hidden, c.n_blocks + 1, sizeof *c.hidden, err);
    if (!status) status = forward(setup, ids, &c, logits, err);
    if (!status) status = write_file(&c, logits, n_vocab, err);
    for (size_t block = 0; c.hidden && block <= c.n_blocks; block++) free(c.hidden[block]);
    free(c.hidden);
    free(logits);
    return status;
}

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    sn_setup setup = {0};
    sn_ids ids = {0};
    sn_catch_interrupts();
    sn_status status = sn_setup_open(&setup, false, err);
    if (!status) status = sn_read_ids(given.ids_file, &ids, err);
    if (!status) status = run(&setup, &ids, err);
    sn_ids_fini(&ids);
    sn_setup_close(&setup);
    return status;
}

int sn_cmd_forward(int argc, char **argv) {
    sn_given.route = "throughput"; /* much at once, and nobody waits for a token */
    const sn_option_group groups[] = {
        sn_group_model,
        sn_group_adapter,
        {"Input and output:", options_table, sizeof options_table / sizeof *options_table},
        sn_group_chain,
        sn_group_device,
        sn_group_log};
    const sn_command command = {
        .program = "swarm forward",
        .synopsis = "--model PATH (--join ADDRESS... | --local all) --ids-file F --out OUT.safetensors",
        .about =
            "Runs tokens through the model and writes a safetensors file, all float32: logits (tokens, vocabulary), "
            "and "
            "hidden.<block> (tokens, width), the hidden states as they enter that block, wherever the chain is cut; "
            "the highest is what leaves the last block, before the final norm.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof *groups,
        .epilogue = SN_EXIT_CODES};
    return sn_cmd_run(&command, argc, argv, body);
}
