/* Opening what a command works with, as the options say: model, tokenizer, device, LM head, link, chain. */
#include "cli/setup.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "cli/io.h"
#include "cli/progress.h"
#include "client/net/adapter_lookup.h"
#include "model/peft/peft.h"

#include <stdio.h>
#include <string.h>

/* The name in "name:NAME", an adapter that nodes publish; NULL when --adapter is a folder or missing. */
static const char *published_adapter_name(void) {
    bool named = sn_cli_options.adapter && !strncmp(sn_cli_options.adapter, "name:", strlen("name:"));
    return named ? sn_cli_options.adapter + strlen("name:") : NULL;
}

static sn_status open_device(sn_device **out, sn_err *err) {
    sn_device_id id;
    sn_device_options options = {.threads = (int)sn_cli_options.threads, .isa = sn_cli_options.isa};
    sn_status status = sn_device_id_parse(sn_cli_options.device, &id, err);
    if (status) return sn_err_context(err, "--device");
    return sn_device_open(id, &options, out, err);
}

static sn_status open_tokenizer(sn_setup *setup, bool needed, sn_err *err) {
    sn_err reason = {0};
    sn_status status = sn_tokenizer_open(sn_cli_options.model, &setup->tokenizer, needed ? err : &reason);
    if (status && needed) return sn_err_context(err, "text needs the model's tokenizer");
    if (!status) return SN_OK;
    return reason.status == SN_STOP ? sn_fail(err, SN_STOP, "%s", reason.text) : SN_OK;
}

sn_status sn_setup_adapter(const sn_model *model, sn_loaded_adapter *out, sn_err *err) {
    char name[SN_PEFT_NAME_SIZE];
    sn_status status = sn_loaded_adapter_load(sn_cli_options.adapter, sn_model_hparams(model), out, err);
    if (!status) status = sn_base_weights_check_client(&out->base, model, err);
    if (status || out->base.n_blocks) return status;
    sn_peft_base_name(sn_cli_options.adapter, name);
    fprintf(stderr, "swarm: %s does not say which weights it was trained for%s%s\n", sn_cli_options.adapter,
            *name ? ", only the name of a model: " : "", name);
    return SN_OK;
}

sn_status sn_setup_open(sn_setup *setup, bool needs_tokenizer, sn_err *err) {
    *setup = (sn_setup){0};
    if (!sn_cli_has_swarm() && !sn_cli_options.local.given)
        return sn_fail(err, SN_REFUSED,
                       "no node is given to compute the model: give --join HOST:PORT of a node, or --local all to "
                       "compute the whole model in this process");
    sn_progress_bar *bar = sn_progress_bar_begin("loading the embedding and the LM head");
    sn_status status = sn_model_open(sn_cli_options.model, &setup->model, err);
    if (!status) setup->hp = sn_model_hparams(setup->model);
    if (!status && sn_cli_options.adapter && !published_adapter_name())
        status = sn_setup_adapter(setup->model, &setup->adapter, err);
    if (!status) status = open_tokenizer(setup, needs_tokenizer, err);
    if (!status) status = open_device(&setup->device, err);
    if (!status) status = sn_lm_head_load(setup->model, setup->device, &setup->lm_head, err);
    sn_progress_bar_end(&bar);
    return status;
}

sn_status sn_setup_refuse_classifier(const sn_setup *setup, sn_err *err) {
    if (!setup->adapter.folder.params || setup->adapter.method != SN_METHOD_HEAD) return SN_OK;
    return sn_fail(err, SN_REFUSED,
                   "%s is a classifier and generates no text: swarm eval --adapter %s --data FILE.jsonl measures its "
                   "accuracy",
                   sn_cli_options.adapter, sn_cli_options.adapter);
}

sn_status sn_setup_context(const sn_setup *setup, int64_t asked, int64_t default_tokens, int *out, sn_err *err) {
    int before = sn_loaded_adapter_for_chain(&setup->adapter).n_prompt, most = setup->hp->n_ctx - before;
    if (asked > most || most < 1)
        return sn_fail(err, SN_REFUSED, "--ctx %lld is more than the %d tokens that this model was made for%s",
                       (long long)asked, most, before ? ", less the adapter's virtual tokens" : "");
    int64_t wanted = asked ? asked : default_tokens;
    *out = wanted < most ? (int)wanted : most;
    return SN_OK;
}

sn_status sn_setup_bootstrap(sn_bootstrap *out, const sn_hash *model, sn_err *err) {
    sn_bootstrap_options options = {sn_cli_options.join.items, sn_cli_options.join.n, sn_cli_options.dht,
                                    &sn_interrupted};
    return sn_bootstrap_find(out, &options, model, (int)sn_cli_options.timeout_ms, err);
}

sn_status sn_setup_link(sn_setup *setup, sn_err *err) {
    sn_emulated_link emulated = {0};
    sn_bootstrap bootstrap;
    sn_hash id = sn_model_id(setup->model);
    sn_status status =
        sn_cli_options.emulated_link ? sn_emulated_link_parse(sn_cli_options.emulated_link, &emulated, err) : SN_OK;
    if (status) return sn_err_context(err, "--emulate-link");
    status = sn_setup_bootstrap(&bootstrap, &id, err);
    if (status || !bootstrap.n) return status;
    return sn_link_open(bootstrap.items, bootstrap.n, sn_cli_options.identity, sn_cli_options.swarm_key, &emulated,
                        &setup->link, err);
}

static sn_status find_published_adapter(sn_setup *setup, sn_chain_adapter *out, sn_err *err) {
    sn_hash model = sn_model_id(setup->model);
    if (!setup->link)
        return sn_fail(err, SN_REFUSED, "--adapter %.100s is an adapter that nodes publish: give --join",
                       sn_cli_options.adapter);
    return sn_adapter_lookup(setup->link, &model, published_adapter_name(), (int)sn_cli_options.timeout_ms, &out->hash,
                             err);
}

static sn_status check_request_id(const char *id, sn_err *err) {
    char word[SN_REQUEST_ID_MAX + 2];
    if (!id || (*id && !strcmp(sn_log_sanitize(id, word, sizeof word), id) && strlen(word) <= SN_REQUEST_ID_MAX))
        return SN_OK;
    return sn_fail(err, SN_REFUSED, "--request-id must have 1 to %d letters, digits or characters of . : - _ +",
                   SN_REQUEST_ID_MAX);
}

static sn_status set_local_blocks(const sn_setup *setup, sn_chain_options *options, sn_err *err) {
    const sn_block_range *local = &sn_cli_options.local;
    if (!local->given) return SN_OK;
    options->local.first = local->all ? 0 : local->first;
    options->local.end = local->all ? setup->hp->n_blocks : local->end;
    if (sn_cli_options.kv_memory != SN_SIZE_UNSET) options->local.kv_memory = sn_cli_options.kv_memory;
    if (options->local.end <= setup->hp->n_blocks) return SN_OK;
    return sn_fail(err, SN_REFUSED, "--local %d:%d: this model has blocks 0:%d", options->local.first,
                   options->local.end, setup->hp->n_blocks);
}

static uint64_t route_seed(void) {
    uint64_t seed = (uint64_t)sn_cli_options.route_seed;
    if (sn_cli_options.route_seed == SN_INT_UNSET) sn_random(&seed, sizeof seed);
    return seed;
}

sn_status sn_setup_chain(sn_setup *setup, int max_tokens, bool every_block, sn_err *err) {
    const sn_cli_common_options *o = &sn_cli_options;
    sn_chain_options options = sn_chain_options_default();
    options.max_tokens = max_tokens;
    options.request_id = o->request_id;
    options.plan_only = setup->plan_only;
    options.limits = (sn_chain_limits){
        .timeout_ms = (int)o->timeout_ms, .max_retries = (int)o->max_retries, .prefill_depth = (int)o->prefill_depth};
    options.local.device = setup->device;
    options.kv = (sn_chain_kv){.dtype = (sn_kv_dtype)o->kv_dtype, .replica = o->kv_replica};
    options.wire.dtype = (sn_dtype)o->wire_dtype;
    options.routing = (sn_chain_routing){.push = o->push,
                                         .throughput = o->route == SN_CLI_ROUTE_THROUGHPUT,
                                         .seed = route_seed(),
                                         .measure = true,
                                         .reroute_every_ms = (int)o->reroute_every_ms,
                                         .every_block = every_block,
                                         .node_filter = {o->only.items, o->only.n, o->deny.items, o->deny.n}};
    options.adapter = sn_loaded_adapter_for_chain(&setup->adapter);
    sn_status status = check_request_id(o->request_id, err);
    if (!status) status = set_local_blocks(setup, &options, err);
    if (!status) status = sn_setup_link(setup, err);
    if (status) return status;
    options.link = setup->link;
    char path[1024];
    if (setup->link)
        status = sn_slow_nodes_new(sn_slow_nodes_path(path, sizeof path), sn_unix_ms(), &setup->slow_nodes, err);
    if (status) return status;
    options.routing.slow_nodes = setup->slow_nodes;
    if (published_adapter_name()) status = find_published_adapter(setup, &options.adapter, err);
    if (!status) status = sn_setup_audit(setup, &options, err);
    if (status) return status;
    options.verification.verifier = sn_audit_verifier(setup->audit);
    sn_progress_bar *bar = sn_progress_bar_begin(setup->plan_only ? "asking the swarm"
                                                 : setup->link    ? "opening the chain"
                                                                  : "loading the blocks");
    status = sn_chain_open(setup->model, &options, &setup->chain, err);
    sn_progress_bar_end(&bar);
    return status;
}

void sn_setup_close(sn_setup *setup) {
    sn_chain_close(&setup->chain);
    sn_audit_free(&setup->audit);
    sn_draft_model_close(&setup->draft_model);
    sn_slow_nodes_free(&setup->slow_nodes);
    sn_link_close(&setup->link);
    sn_loaded_adapter_fini(&setup->adapter);
    sn_lm_head_free(&setup->lm_head);
    sn_device_close(&setup->device);
    sn_tokenizer_close(&setup->tokenizer);
    sn_model_close(&setup->model);
}
