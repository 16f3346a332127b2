/* swarm verify: who lied, by evidence that a client kept and the model's file. */
#include "client/cmd.h"
#include "client/evidence.h"

#include "net/codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const sn_option options_table[] = {
    SN_OPT_FLAG("json", &sn_given.json, "print {\"model\", \"blocks\", \"tokens\", \"proven\", \"statements\"}"),
};

/* What a block with these weights keeps keys and values as when it is called so. */
static sn_kv_dtype kept_as(const sn_hash *weights, const sn_hash *name) {
    for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) {
        sn_hash hash = sn_span_hash_of(weights, (sn_kv_dtype)t);
        if (!memcmp(&hash, name, sizeof hash)) return (sn_kv_dtype)t;
    }
    return SN_KV_F32;
}

/* What holds of the evidence before anything is computed: it is about this file. */
static sn_status check_file(const sn_evidence *e, const sn_model *model, sn_kv_dtype *dtype, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_hash id = sn_model_id(model), hash;
    if (memcmp(&id, &e->model, sizeof id))
        return sn_fail(err, SN_REFUSED, "the evidence is about another model (%.100s): give its file", e->name);
    if (e->end > hp->n_blocks || e->n_embd != hp->n_embd || e->n_tokens > hp->n_ctx)
        return sn_fail(err, SN_REFUSED, "the evidence is about blocks %d:%d and %d tokens, which this model does not have",
                       e->first, e->end, e->n_tokens);
    for (int b = e->first; b < e->end; b++) {
        if (!sn_model_has_block(model, b))
            return sn_fail(err, SN_REFUSED, "block %d is not in this file: give the whole model's", b);
        sn_status status = sn_model_block_hash(model, b, &hash, err);
        if (status) return status;
        if (b == e->first) *dtype = kept_as(&hash, &e->block_hash[0]);
        hash = sn_span_hash_of(&hash, *dtype);
        if (memcmp(&hash, &e->block_hash[b - e->first], sizeof hash))
            return sn_fail(err, SN_REFUSED, "block %d has other weights in this file than the evidence is about", b);
    }
    return SN_OK;
}

/* What was added to the weights in the evidence's sessions. */
static sn_status check_adapter(const sn_evidence *e, const sn_model *model, sn_trained *out, sn_err *err) {
    static const sn_hash none; /* also where virtual tokens were all: they stand in the inputs */
    if (!sn_given.adapter && !memcmp(&e->tuned, &none, sizeof none)) return SN_OK;
    if (!sn_given.adapter)
        return sn_fail(err, SN_REFUSED, "the evidence is about the model with an adapter: give its folder as --adapter");
    sn_status status = sn_setup_adapter(model, out, err);
    sn_hash hash = sn_trained_for_chain(out).hash;
    if (!status && memcmp(&hash, &e->tuned, sizeof hash))
        return sn_fail(err, SN_REFUSED, "the evidence is about another adapter than %s", sn_given.adapter);
    return status;
}

static sn_status judge(const sn_evidence *e, const sn_model *model, const sn_trained *trained, sn_kv_dtype dtype,
                       sn_judgement *out, sn_err *err) {
    sn_device *device = NULL;
    sn_chain *truth = NULL;
    bool *cut_at = NULL, *round_at = NULL;
    int n_blocks = sn_model_hparams(model)->n_blocks;
    sn_device_options how = {.threads = (int)sn_given.threads, .isa = sn_given.isa};
    sn_progress_shown *shown = sn_progress_begin("computing it again");
    sn_status status = sn_calloc(&cut_at, (size_t)n_blocks, sizeof *cut_at, err);
    if (!status) status = sn_calloc(&round_at, (size_t)n_blocks + 1, sizeof *round_at, err);
    if (!status) status = sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &how, &device, err);
    if (!status) sn_evidence_cuts(e, cut_at, n_blocks);
    sn_chain_options options = {.device = device,
                                .first = e->first,
                                .end = e->end,
                                .local_first = e->first,
                                .local_end = e->end,
                                .cut_at = cut_at,
                                .round_at = round_at,
                                .kv_dtype = dtype,
                                .max_tokens = e->n_tokens,
                                .tuned = sn_trained_for_chain(trained)};
    options.tuned.n_prompt = 0; /* virtual tokens stand in the inputs */
    if (!status) options.wire = sn_evidence_wire(e, round_at, n_blocks);
    if (!status) status = sn_chain_open(model, &options, &truth, err);
    if (!status) status = sn_evidence_judge(e, truth, out, err);
    sn_progress_end(&shown);
    sn_chain_close(&truth);
    sn_device_close(&device);
    free(cut_at);
    free(round_at);
    return status;
}

/* Who announced himself with the key that signed: "name at address", or what is wrong. */
static const char *speaker(const sn_statement *s, char out[400]) {
    sn_announcement *a = calloc(1, sizeof *a);
    const sn_blob *told = &s->announcement;
    size_t map = told->len > SN_SIGNATURE_SIZE ? told->len - SN_SIGNATURE_SIZE : 0;
    bool holds = a && map && !sn_announcement_parse(told->data, map, a, NULL) &&
                 !memcmp(a->node, s->receipt.node, SN_KEY_SIZE) && sn_verify(a->node, told->data, map, told->data + map);
    if (holds)
        snprintf(out, 400, "%s at %s", *a->name ? a->name : "no name", a->address);
    else
        snprintf(out, 400, "without an announcement");
    free(a);
    return out;
}

static const char *const findings[] = {"true", "lie", "nothing"};

static json_t *statement_json(const sn_statement *s, const sn_judgement *j) {
    char id[2 * SN_KEY_SIZE + 1], blocks[32], who[400];
    json_t *o = json_object();
    snprintf(blocks, sizeof blocks, "%u:%u", s->receipt.first_block, s->receipt.end_block);
    json_object_set_new(o, "node", json_string(sn_hex(s->receipt.node, SN_KEY_SIZE, id)));
    json_object_set_new(o, "announced", json_string(speaker(s, who)));
    json_object_set_new(o, "blocks", json_string(blocks));
    json_object_set_new(o, "position", json_integer((json_int_t)s->receipt.position));
    json_object_set_new(o, "tokens", json_integer((json_int_t)s->receipt.n));
    json_object_set_new(o, "unix_ms", json_integer((json_int_t)s->receipt.unix_ms));
    json_object_set_new(o, "finding", json_string(findings[j->finding]));
    json_object_set_new(o, "why", json_string(j->why));
    return o;
}

static void print_statement(const sn_statement *s, const sn_judgement *j) {
    static const char *const words[] = {"told the truth", "LIED", "proves nothing"};
    char id[2 * SN_KEY_SIZE + 1], who[400], when[32] = "?";
    time_t seconds = (time_t)(s->receipt.unix_ms / 1000);
    struct tm tm;
    if (gmtime_r(&seconds, &tm)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &tm);
    printf("node %s (%s)\n  signed on %s: blocks %u:%u, tokens %llu:%llu\n  %s: %s\n",
           sn_hex(s->receipt.node, SN_KEY_SIZE, id), speaker(s, who), when, s->receipt.first_block, s->receipt.end_block,
           (unsigned long long)s->receipt.position, (unsigned long long)(s->receipt.position + s->receipt.n),
           words[j->finding], j->why);
}

static sn_status show(const sn_evidence *e, const sn_judgement *judgements, bool proven, sn_err *err) {
    if (!sn_given.json) {
        for (size_t i = 0; i < e->n; i++) print_statement(&e->statements[i], &judgements[i]);
        puts(proven ? "The lie is proven: whoever has this file comes to the same." : "No lie is proven.");
        return SN_OK;
    }
    char blocks[32];
    json_t *o = json_object(), *list = json_array();
    snprintf(blocks, sizeof blocks, "%d:%d", e->first, e->end);
    for (size_t i = 0; i < e->n; i++) json_array_append_new(list, statement_json(&e->statements[i], &judgements[i]));
    json_object_set_new(o, "model", json_string(e->name));
    json_object_set_new(o, "blocks", json_string(blocks));
    json_object_set_new(o, "tokens", json_integer(e->n_tokens));
    json_object_set_new(o, "proven", json_boolean(proven));
    json_object_set_new(o, "statements", list);
    return sn_print_json(o, err);
}

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    sn_evidence e = {0};
    sn_model *model = NULL;
    sn_judgement judgements[SN_STATEMENTS_MAX];
    sn_kv_dtype dtype = SN_KV_F32;
    bool proven = false;
    sn_trained trained = {0};
    if (options->words.n != 1) return sn_fail(err, SN_REFUSED, "give the evidence file: swarm verify FILE --model PATH");
    sn_status status = sn_evidence_load(options->words.items[0], &e, err);
    if (!status) status = sn_model_open(sn_given.model, &model, err);
    if (!status) status = check_file(&e, model, &dtype, err);
    if (!status) status = check_adapter(&e, model, &trained, err);
    if (!status) status = judge(&e, model, &trained, dtype, judgements, err);
    for (size_t i = 0; i < e.n && !status; i++) proven = proven || judgements[i].finding == SN_FOUND_LIE;
    if (!status) status = show(&e, judgements, proven, err);
    if (!status && !proven) *code = SN_EXIT_NETWORK;
    sn_trained_fini(&trained);
    sn_model_close(&model);
    sn_evidence_fini(&e);
    return status;
}

int sn_cmd_verify(int argc, char **argv) {
    const sn_option_group groups[] = {
        sn_group_model, sn_group_adapter, {"Output:", options_table, sizeof options_table / sizeof *options_table}, sn_group_device,
        sn_group_log};
    const sn_command command = {
        .program = "swarm verify",
        .synopsis = "FILE --model PATH [options]",
        .about = "Says who lied, by the evidence that 'swarm generate --audit' has kept: checks who signed what, computes "
                 "the step again from the model's file on this CPU, and compares.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof *groups,
        .max_words = 1,
        .epilogue = "Exit codes: 0 a lie is proven; 1 none is; 2 the file is damaged, forged, or about another model; 3 out of "
                    "memory."};
    return sn_cmd_run(&command, argc, argv, body);
}
