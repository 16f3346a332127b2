/* swarm verify: whether the signed statements in a file of evidence are correct.
 *
 * Evidence holds the inputs of a step, and what nodes signed about its outputs. The command checks that the evidence is
 * about the blocks of the given model file (and about the given adapter), opens a chain of these blocks in this process
 * that is cut and rounded exactly as the evidence says, recomputes the step, and compares the hashes that were signed.
 */
#include "cli/command.h"
#include "cli/io.h"
#include "cli/progress.h"
#include "cli/setup.h"
#include "client/audit/evidence.h"
#include "model/source.h"
#include "net/directory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const sn_option options_table[] = {
    SN_OPT_FLAG("json", &sn_cli_output.json, "print {\"model\", \"blocks\", \"tokens\", \"proven\", \"statements\"}"),
};
static const sn_option_group output_group = SN_OPTION_GROUP("Output:", options_table);

/* The element type of the KV cache in a block that has these weights and this name. */
static sn_kv_dtype evidence_kv_dtype(const sn_hash *weights, const sn_hash *name) {
    for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) {
        sn_hash hash = sn_block_hash_with_kv_dtype(weights, (sn_kv_dtype)t);
        if (!memcmp(&hash, name, sizeof hash)) return (sn_kv_dtype)t;
    }
    return SN_KV_F32;
}

/* Checks that the evidence is about the blocks of this model file. */
static sn_status check_evidence_model(const sn_evidence *e, const sn_model *model, sn_kv_dtype *dtype, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_hash id = sn_model_id(model), hash;
    if (memcmp(&id, &e->model, sizeof id))
        return sn_fail(err, SN_REFUSED, "the evidence is about another model (%.100s): give that model's file",
                       e->name);
    if (e->end > hp->n_blocks || e->n_embd != hp->n_embd || e->n_tokens > hp->n_ctx)
        return sn_fail(err, SN_REFUSED,
                       "the evidence is about blocks %d:%d and %d tokens, which this model does not have", e->first,
                       e->end, e->n_tokens);
    for (int b = e->first; b < e->end; b++) {
        if (!sn_model_holds_block(model, b))
            return sn_fail(err, SN_REFUSED, "block %d is not in this file: give a file with the whole model", b);
        sn_status status = sn_model_block_hash(model, b, &hash, err);
        if (status) return status;
        if (b == e->first) *dtype = evidence_kv_dtype(&hash, &e->block_hash[0]);
        hash = sn_block_hash_with_kv_dtype(&hash, *dtype);
        if (memcmp(&hash, &e->block_hash[b - e->first], sizeof hash))
            return sn_fail(err, SN_REFUSED, "block %d has other weights in this file than in the evidence", b);
    }
    return SN_OK;
}

/* Loads the adapter of the evidence's session. */
static sn_status check_evidence_adapter(const sn_evidence *e, const sn_model *model, sn_loaded_adapter *out,
                                        sn_err *err) {
    static const sn_hash none; /* also of an adapter with virtual tokens only: these are part of the inputs */
    if (!sn_program_settings.common.adapter && !memcmp(&e->adapter_hash, &none, sizeof none)) return SN_OK;
    if (!sn_program_settings.common.adapter)
        return sn_fail(err, SN_REFUSED,
                       "the evidence is about a model with an adapter: give the adapter's folder as --adapter");
    const sn_setup setup = sn_cli_setup();
    sn_status status = sn_setup_adapter(&setup, model, out, err);
    sn_hash hash = sn_loaded_adapter_for_chain(out).hash;
    if (!status && memcmp(&hash, &e->adapter_hash, sizeof hash))
        return sn_fail(err, SN_REFUSED, "the evidence is about another adapter than %s",
                       sn_program_settings.common.adapter);
    return status;
}

static sn_status recompute(const sn_evidence *e, const sn_model *model, const sn_loaded_adapter *adapter,
                           sn_kv_dtype dtype, sn_verdict *out, sn_err *err) {
    sn_device *device = NULL;
    sn_chain *reference = NULL;
    bool *cut_at = NULL, *round_at = NULL;
    int n_blocks = sn_model_hparams(model)->n_blocks;
    sn_device_options device_options = {.threads = (int)sn_program_settings.common.threads,
                                        .isa = sn_program_settings.common.isa};
    sn_progress_bar *bar = sn_progress_bar_begin("recomputing the step");
    sn_status status = sn_calloc(&cut_at, (size_t)n_blocks, sizeof *cut_at, err);
    if (!status) status = sn_calloc(&round_at, (size_t)n_blocks + 1, sizeof *round_at, err);
    if (!status) status = sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &device_options, &device, err);
    if (!status) sn_evidence_cuts(e, cut_at, n_blocks);
    sn_chain_options options = sn_chain_options_default();
    options.first = e->first;
    options.end = e->end;
    options.max_tokens = e->n_tokens;
    int long_after = sn_model_hparams(model)->long_after;
    if (e->is_long && options.max_tokens <= long_after) options.max_tokens = long_after + 1;
    options.local = (sn_chain_local){.device = device, .first = e->first, .end = e->end};
    options.kv.dtype = dtype;
    options.routing.cut_at = cut_at;
    options.adapter = sn_loaded_adapter_for_chain(adapter);
    options.adapter.n_prompt = 0; /* virtual tokens are part of the inputs */
    if (!status) options.wire = (sn_chain_wire){sn_evidence_wire(e, round_at, n_blocks), round_at};
    if (!status) status = sn_chain_open(model, &options, &reference, err);
    if (!status) status = sn_evidence_judge(e, reference, out, err);
    sn_progress_bar_end(&bar);
    sn_chain_close(&reference);
    sn_device_close(&device);
    free(cut_at);
    free(round_at);
    return status;
}

/* Name and address in the announcement that was signed with the same key, or that there is none. */
static const char *signer_name(const sn_statement *s, char out[400]) {
    sn_announcement *a = calloc(1, sizeof *a);
    const sn_blob *announced = &s->announcement;
    size_t map = announced->len > SN_SIGNATURE_SIZE ? announced->len - SN_SIGNATURE_SIZE : 0;
    bool valid = a && map && !sn_announcement_parse(announced->data, map, a, NULL) &&
                 !memcmp(a->node, s->receipt.node, SN_KEY_SIZE) &&
                 sn_verify(a->node, announced->data, map, announced->data + map);
    if (valid)
        snprintf(out, 400, "%s at %s", *a->name ? a->name : "no name", a->address);
    else
        snprintf(out, 400, "no announcement");
    free(a);
    return out;
}

static const char *const verdict_names[] = {"correct", "incorrect", "inconclusive"};

static json_t *statement_json(const sn_statement *s, const sn_verdict *j) {
    char id[2 * SN_KEY_SIZE + 1], blocks[32], signer[400];
    json_t *o = json_object();
    snprintf(blocks, sizeof blocks, "%u:%u", s->receipt.first_block, s->receipt.end_block);
    json_object_set_new(o, "node", json_string(sn_hex(s->receipt.node, SN_KEY_SIZE, id)));
    json_object_set_new(o, "announced", json_string(signer_name(s, signer)));
    json_object_set_new(o, "blocks", json_string(blocks));
    json_object_set_new(o, "position", json_integer((json_int_t)s->receipt.position));
    json_object_set_new(o, "tokens", json_integer((json_int_t)s->receipt.n));
    json_object_set_new(o, "unix_ms", json_integer((json_int_t)s->receipt.unix_ms));
    json_object_set_new(o, "verdict", json_string(verdict_names[j->kind]));
    json_object_set_new(o, "reason", json_string(j->why));
    return o;
}

static void print_statement(const sn_statement *s, const sn_verdict *j) {
    char id[2 * SN_KEY_SIZE + 1], signer[400], when[32] = "?";
    time_t seconds = (time_t)(s->receipt.unix_ms / 1000);
    struct tm tm;
    if (gmtime_r(&seconds, &tm)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &tm);
    printf("node %s (%s)\n  signed on %s: blocks %u:%u, tokens %llu:%llu\n  %s: %s\n",
           sn_hex(s->receipt.node, SN_KEY_SIZE, id), signer_name(s, signer), when, s->receipt.first_block,
           s->receipt.end_block, (unsigned long long)s->receipt.position,
           (unsigned long long)(s->receipt.position + s->receipt.n), verdict_names[j->kind], j->why);
}

static sn_status print_verdicts(const sn_evidence *e, const sn_verdict *verdicts, bool proven, sn_err *err) {
    if (!sn_cli_output.json) {
        for (size_t i = 0; i < e->n; i++) print_statement(&e->statements[i], &verdicts[i]);
        puts(proven ? "Proven: a node signed wrong results. Every copy of this file shows the same."
                    : "Not proven: no statement is incorrect.");
        return SN_OK;
    }
    char blocks[32];
    json_t *o = json_object(), *list = json_array();
    snprintf(blocks, sizeof blocks, "%d:%d", e->first, e->end);
    for (size_t i = 0; i < e->n; i++) json_array_append_new(list, statement_json(&e->statements[i], &verdicts[i]));
    json_object_set_new(o, "model", json_string(e->name));
    json_object_set_new(o, "blocks", json_string(blocks));
    json_object_set_new(o, "tokens", json_integer(e->n_tokens));
    json_object_set_new(o, "proven", json_boolean(proven));
    json_object_set_new(o, "statements", list);
    return sn_print_json(o, err);
}

static sn_status verify_main(const sn_options *options, int *code, sn_err *err) {
    sn_evidence e = {0};
    sn_model *model = NULL;
    sn_verdict verdicts[SN_STATEMENTS_MAX];
    sn_kv_dtype dtype = SN_KV_F32;
    bool proven = false;
    sn_loaded_adapter adapter = {0};
    if (options->positionals.n != 1)
        return sn_fail(err, SN_REFUSED, "give a file of evidence: swarm verify FILE --model PATH");
    sn_status status = sn_evidence_load(options->positionals.items[0], &e, err);
    if (!status) status = sn_model_open(sn_program_settings.common.model, &model, err);
    if (!status) status = check_evidence_model(&e, model, &dtype, err);
    if (!status) status = check_evidence_adapter(&e, model, &adapter, err);
    if (!status) status = recompute(&e, model, &adapter, dtype, verdicts, err);
    for (size_t i = 0; i < e.n && !status; i++) proven = proven || verdicts[i].kind == SN_VERDICT_WRONG;
    if (!status) status = print_verdicts(&e, verdicts, proven, err);
    if (!status && !proven) *code = SN_EXIT_NETWORK;
    sn_loaded_adapter_fini(&adapter);
    sn_model_close(&model);
    sn_evidence_fini(&e);
    return status;
}

static const sn_exit_code exit_codes[] = {{SN_EXIT_OK, "a statement is proven to be incorrect"},
                                          {SN_EXIT_NETWORK, "no statement is"},
                                          {SN_EXIT_USAGE, "the file is damaged, forged, or about another model"},
                                          {SN_EXIT_RESOURCES, "out of memory"},
                                          {0, NULL}};

static const sn_option_group *const groups[] = {&sn_group_model, &sn_group_adapter, &output_group, &sn_group_device,
                                                &sn_group_log};

const sn_cli_command sn_cmd_verify = {
    .command = {.program = "swarm verify",
                .summary = "check the evidence of an audit",
                .synopsis = "FILE --model PATH [options]",
                .about =
                    "Checks the evidence that 'swarm generate --audit' has stored about a node with wrong results: "
                    "verifies the signatures, recomputes the step from the model's file on this CPU, and compares.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .max_positionals = 1,
                .exit_codes = exit_codes},
    .run = verify_main,
};
