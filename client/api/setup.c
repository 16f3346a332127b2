/* Opening what a session works with, as the settings say: model, tokenizer, device, LM head, link, chain,
 * audit, draft tokens, backbone. */
#include "client/api/setup.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "client/api/api_private.h"
#include "client/net/adapter_lookup.h"
#include "model/peft/peft.h"
#include "model/source.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

void sn_setup_phase(const sn_setup *setup, const char *what) {
    if (setup->hooks.phase) setup->hooks.phase(setup->hooks.ctx, what);
}

/* The name in "name:NAME", an adapter that nodes publish; NULL when the adapter is a folder or missing. */
static const char *published_adapter_name(const sn_setup *setup) {
    const char *adapter = setup->settings->common.adapter;
    bool named = adapter && !strncmp(adapter, "name:", strlen("name:"));
    return named ? adapter + strlen("name:") : NULL;
}

sn_status sn_setup_device(const sn_settings *settings, const sn_cancel *cancel, sn_device **out, sn_err *err) {
    const sn_common_settings *o = &settings->common;
    sn_device_id id;
    sn_device_options options = {.threads = (int)o->threads, .isa = o->isa};
    sn_status status = sn_device_id_parse(o->device, &id, err);
    if (status) return sn_err_context(err, "--device");
    status = sn_device_open(id, &options, out, err);
    if (!status && (*out)->host_visible) (*out)->cancel = cancel;
    return status;
}

sn_status sn_setup_need_device(sn_setup *setup, sn_err *err) {
    return setup->device ? SN_OK : sn_setup_device(setup->settings, setup->cancel, &setup->device, err);
}

static sn_status open_tokenizer(sn_setup *setup, bool needed, sn_err *err) {
    sn_err reason = {0};
    sn_status status = sn_tokenizer_open(setup->settings->common.model, &setup->tokenizer, needed ? err : &reason);
    if (status && needed) return sn_err_context(err, "text needs the model's tokenizer");
    if (!status) return SN_OK;
    return reason.status == SN_STOP ? sn_fail(err, SN_STOP, "%s", reason.text) : SN_OK;
}

sn_status sn_setup_adapter(const sn_setup *setup, const sn_model *model, sn_loaded_adapter *out, sn_err *err) {
    const char *folder = setup->settings->common.adapter;
    char name[SN_PEFT_NAME_SIZE], sentence[SN_PEFT_NAME_SIZE + 1200];
    sn_status status = sn_loaded_adapter_load(folder, sn_model_hparams(model), out, err);
    if (!status) status = sn_base_weights_check_client(&out->base, model, err);
    if (status || out->base.n_blocks || !setup->hooks.warning) return status;
    sn_peft_base_name(folder, name);
    snprintf(sentence, sizeof sentence, "%.1000s does not say which weights it was trained for%s%s", folder,
             *name ? ", only the name of a model: " : "", name);
    setup->hooks.warning(setup->hooks.ctx, sentence);
    return SN_OK;
}

sn_status sn_setup_open(sn_setup *setup, bool needs_tokenizer, sn_err *err) {
    const sn_settings *s = setup->settings;
    if (!sn_settings_has_swarm(s) && !s->common.local.given)
        return sn_fail(err, SN_REFUSED,
                       "no node is given to compute the model: give --join HOST:PORT of a node, or --local all to "
                       "compute the whole model in this process");
    sn_setup_phase(setup, "loading the embedding and the LM head");
    sn_status status = sn_model_open(s->common.model, &setup->model, err);
    if (!status) sn_model_keep_hashes(setup->model, s->common.cache);
    if (!status) setup->hp = sn_model_hparams(setup->model);
    if (!status && s->common.adapter && !published_adapter_name(setup))
        status = sn_setup_adapter(setup, setup->model, &setup->adapter, err);
    if (!status) status = open_tokenizer(setup, needs_tokenizer, err);
    if (!status) status = sn_setup_need_device(setup, err);
    if (!status) status = sn_lm_head_load(setup->model, setup->device, &setup->lm_head, err);
    sn_setup_phase(setup, NULL);
    return status;
}

sn_status sn_setup_refuse_classifier(const sn_setup *setup, sn_err *err) {
    const char *adapter = setup->settings->common.adapter;
    if (!setup->adapter.folder.params || setup->adapter.method != SN_METHOD_HEAD) return SN_OK;
    return sn_fail(err, SN_REFUSED,
                   "%s is a classifier and generates no text: swarm eval --adapter %s --data FILE.jsonl measures its "
                   "accuracy",
                   adapter, adapter);
}

sn_status sn_setup_context(const sn_setup *setup, int64_t asked, int64_t default_tokens, int *out, sn_err *err) {
    int before = sn_loaded_adapter_for_chain(&setup->adapter).n_prompt, most = setup->hp->n_ctx - before;
    if (asked > most || most < 1)
        return sn_fail(err, SN_REFUSED, "--ctx %lld is more than the %d tokens that this model takes%s",
                       (long long)asked, most, before ? ", less the adapter's virtual tokens" : "");
    int64_t wanted = asked ? asked : default_tokens;
    *out = wanted < most ? (int)wanted : most;
    return SN_OK;
}

/* -- entering a swarm -- */

sn_status sn_entry_find(sn_entry *entry, const sn_settings *settings, const sn_hash *model, const sn_cancel *cancel,
                        sn_err *err) {
    const sn_common_settings *o = &settings->common;
    *entry = (sn_entry){.link = {.swarm_key_path = o->swarm_key}};
    sn_status status = o->emulated_link ? sn_emulated_link_parse(o->emulated_link, &entry->link.shape, err) : SN_OK;
    if (status) return sn_err_context(err, "--emulate-link");
    status =
        o->identity ? sn_identity_load(o->identity, &entry->identity, err) : sn_identity_new(&entry->identity, err);
    if (status) return status;
    const sn_bootstrap_options options = {o->join.items, o->join.n, o->dht, cancel};
    status = sn_bootstrap_find(&entry->bootstrap, &options, model, (int)o->timeout_ms, err);
    entry->link.identity = &entry->identity;
    entry->link.join = entry->bootstrap.items;
    entry->link.n_join = entry->bootstrap.n;
    return status;
}

sn_status sn_setup_link(sn_setup *setup, sn_err *err) {
    sn_entry entry;
    sn_hash id = sn_model_id(setup->model);
    sn_status status = sn_entry_find(&entry, setup->settings, &id, setup->cancel, err);
    if (status || !entry.link.n_join) return status;
    return sn_link_open(&entry.link, &setup->link, err);
}

static sn_status find_published_adapter(sn_setup *setup, sn_chain_adapter *out, sn_err *err) {
    sn_hash model = sn_model_id(setup->model);
    const sn_common_settings *o = &setup->settings->common;
    if (!setup->link)
        return sn_fail(err, SN_REFUSED, "--adapter %.100s is an adapter that nodes publish: give --join", o->adapter);
    return sn_adapter_lookup(setup->link, &model, published_adapter_name(setup), (int)o->timeout_ms, &out->hash, err);
}

/* The nodes that were slow in earlier runs, from a file in the folder of the settings. */
static sn_status open_slow_nodes(sn_setup *setup, sn_err *err) {
    const char *folder = setup->settings->common.cache;
    char path[SN_PATH_SIZE];
    if (folder && mkdir(folder, 0700)) {} /* it is there already, or saving fails */
    sn_status status = folder ? sn_path_join(path, folder, "slow-nodes", err) : SN_OK;
    return status ? status : sn_slow_nodes_new(folder ? path : NULL, sn_unix_ms(), &setup->slow_nodes, err);
}

static sn_status check_request_id(const char *id, sn_err *err) {
    char word[SN_REQUEST_ID_MAX + 2];
    if (!id || (*id && !strcmp(sn_log_sanitize(id, word, sizeof word), id) && strlen(word) <= SN_REQUEST_ID_MAX))
        return SN_OK;
    return sn_fail(err, SN_REFUSED, "--request-id must have 1 to %d letters, digits or characters of . : - _ +",
                   SN_REQUEST_ID_MAX);
}

static sn_status set_local_blocks(sn_setup *setup, sn_chain_options *options, sn_err *err) {
    const sn_common_settings *o = &setup->settings->common;
    const sn_block_range *local = &o->local;
    if (!local->given) return SN_OK;
    options->local.first = local->all ? 0 : local->first;
    options->local.end = local->all ? setup->hp->n_blocks : local->end;
    if (o->kv_memory != SN_SIZE_UNSET) options->local.kv_memory = o->kv_memory;
    if (options->local.end > setup->hp->n_blocks)
        return sn_fail(err, SN_REFUSED, "--local %d:%d: this model has blocks 0:%d", options->local.first,
                       options->local.end, setup->hp->n_blocks);
    sn_status status = sn_setup_need_device(setup, err);
    options->local.device = setup->device;
    return status;
}

static uint64_t route_seed(const sn_common_settings *o) {
    uint64_t seed = (uint64_t)o->route_seed;
    if (o->route_seed == SN_INT_UNSET) sn_random(&seed, sizeof seed);
    return seed;
}

sn_status sn_setup_chain(sn_setup *setup, int max_tokens, bool every_block, sn_err *err) {
    const sn_common_settings *o = &setup->settings->common;
    sn_chain_options options = sn_chain_options_default();
    options.max_tokens = max_tokens;
    options.first = setup->settings->api.blocks.first;
    options.end = setup->settings->api.blocks.end;
    options.request_id = o->request_id;
    options.plan_only = setup->plan_only;
    options.limits = (sn_chain_limits){.timeout_ms = (int)o->timeout_ms,
                                       .max_retries = (int)o->max_retries,
                                       .prefill_depth = (int)o->prefill_depth,
                                       .replay_memory = o->replay_memory};
    options.kv = (sn_chain_kv){.dtype = (sn_kv_dtype)o->kv_dtype, .replica = o->kv_replica};
    options.wire.dtype = (sn_dtype)o->wire_dtype;
    options.routing = (sn_chain_routing){.push = o->push,
                                         .throughput = o->route == SN_ROUTE_THROUGHPUT,
                                         .seed = route_seed(o),
                                         .measure = true,
                                         .reroute_every_ms = (int)o->reroute_every_ms,
                                         .every_block = every_block,
                                         .node_filter = {o->only.items, o->only.n, o->deny.items, o->deny.n}};
    options.adapter = sn_loaded_adapter_for_chain(&setup->adapter);
    options.prefixes = setup->prefixes;
    sn_status status = check_request_id(o->request_id, err);
    if (!status && options.end > setup->hp->n_blocks)
        status = sn_fail(err, SN_REFUSED, "blocks %d:%d: this model has blocks 0:%d", options.first, options.end,
                         setup->hp->n_blocks);
    if (!status) status = set_local_blocks(setup, &options, err);
    if (!status && !setup->link) status = sn_setup_link(setup, err);
    if (status) return status;
    if (setup->link) sn_link_set_cancel(setup->link, setup->cancel);
    options.link = setup->link;
    if (setup->link) status = open_slow_nodes(setup, err);
    if (status) return status;
    options.routing.slow_nodes = setup->slow_nodes;
    if (published_adapter_name(setup)) status = find_published_adapter(setup, &options.adapter, err);
    if (!status) status = sn_setup_audit(setup, &options, err);
    if (status) return status;
    options.verification.verifier = sn_audit_verifier(setup->audit);
    sn_setup_phase(setup, setup->plan_only ? "asking the swarm"
                          : setup->link    ? "opening the chain"
                                           : "loading the blocks");
    status = sn_chain_open(setup->model, &options, &setup->chain, err);
    sn_setup_phase(setup, NULL);
    return status;
}

void sn_setup_close(sn_setup *setup) {
    sn_chain_close(&setup->chain);
    sn_audit_free(&setup->audit);
    sn_draft_model_close(&setup->draft_model);
    sn_slow_nodes_free(&setup->slow_nodes);
    sn_link_close(&setup->link);
    if (!setup->borrows_model) {
        sn_loaded_adapter_fini(&setup->adapter);
        sn_lm_head_free(&setup->lm_head);
        sn_tokenizer_close(&setup->tokenizer);
        sn_model_close(&setup->model);
    }
    sn_device_close(&setup->device);
    sn_device_close(&setup->exact);
}

/* -- the audit -- */

/* Only a CPU gives the bits that receipts of exact nodes are compared with, whatever --device says. */
static sn_status open_exact_device(sn_setup *setup, sn_device **out, sn_err *err) {
    sn_settings settings = *setup->settings;
    settings.common.device = "cpu";
    if (setup->device && setup->device->id.kind == SN_DEVICE_CPU) {
        *out = setup->device;
        return SN_OK;
    }
    sn_status status = setup->exact ? SN_OK : sn_setup_device(&settings, setup->cancel, &setup->exact, err);
    *out = setup->exact;
    return status;
}

sn_status sn_setup_audit(sn_setup *setup, const sn_chain_options *chain, sn_err *err) {
    const sn_audit_settings *given = &setup->settings->audit;
    if (!(given->share > 0)) {
        bool alone = given->seed != SN_INT_UNSET || given->local || given->hold || given->evidence;
        return alone ? sn_fail(err, SN_REFUSED,
                               "--audit-seed, --audit-local, --audit-hold and --evidence need --audit SHARE")
                     : SN_OK;
    }
    if (!setup->link) return sn_fail(err, SN_REFUSED, "--audit checks nodes: give --join, or leave out --audit");
    for (int b = 0; b < setup->hp->n_blocks && given->local; b++)
        if (!sn_model_holds_block(setup->model, b))
            return sn_fail(err, SN_REFUSED,
                           "--audit-local needs every block in the model's file; block %d is not in it", b);
    sn_device *device;
    sn_status status = open_exact_device(setup, &device, err);
    const sn_audit_options options = {.model = setup->model,
                                      .link = setup->link,
                                      .device = device,
                                      .local = given->local,
                                      .share = given->share,
                                      .seed = (uint64_t)(given->seed == SN_INT_UNSET ? sn_random_seed() : given->seed),
                                      .evidence = given->evidence,
                                      .max_tokens = chain->max_tokens,
                                      .timeout_ms = chain->limits.timeout_ms,
                                      .node_filter = chain->routing.node_filter};
    return status ? status : sn_audit_new(&options, &setup->audit, err);
}

json_t *sn_audit_json(const sn_audit *audit) {
    sn_audit_report r = sn_audit_get_report(audit);
    json_t *o = json_object();
    json_object_set_new(o, "seed", json_integer((json_int_t)r.seed));
    json_object_set_new(o, "steps", json_integer((json_int_t)r.steps));
    json_object_set_new(o, "checked", json_integer((json_int_t)r.checked));
    json_object_set_new(o, "unchecked", json_integer((json_int_t)r.unchecked));
    json_object_set_new(o, "unchecked_failed", json_integer((json_int_t)r.unchecked_failed));
    json_object_set_new(o, "timeline_checked", json_boolean(sn_audit_timeline_is_checked(audit)));
    json_object_set_new(o, "checks", json_integer((json_int_t)r.checks));
    json_object_set_new(o, "nodes_banned", json_integer((json_int_t)r.nodes_banned));
    json_object_set_new(o, "verdict", *r.verdict ? json_string(r.verdict) : json_null());
    json_object_set_new(o, "evidence", *r.evidence ? json_string(r.evidence) : json_null());
    return o;
}

/* -- draft tokens -- */

sn_status sn_setup_open_draft(sn_setup *setup, const sn_sampling *sampling, int max_context, sn_err *err) {
    const sn_draft_settings *o = &setup->settings->draft;
    bool ngram = o->method == SN_DRAFT_NGRAM;
    if (ngram && o->model) return sn_fail(err, SN_REFUSED, "give --draft ngram or --draft-model, not both");
    if (ngram) setup->draft = sn_draft_make(sn_draft_ngram, NULL, (int)o->tokens);
    if (!o->model) return SN_OK;
    sn_status status = sn_setup_need_device(setup, err);
    if (status) return status;
    const sn_draft_model_options model_options = {.path = o->model,
                                                  .device = setup->device,
                                                  .hp = setup->hp,
                                                  .tokenizer = setup->tokenizer,
                                                  .sampling = *sampling,
                                                  .max_context = max_context,
                                                  .kv_dtype = (sn_kv_dtype)setup->settings->common.kv_dtype};
    sn_setup_phase(setup, "loading the draft model");
    status = sn_draft_model_open(&model_options, &setup->draft_model, err);
    sn_setup_phase(setup, NULL);
    setup->draft = sn_draft_make(sn_draft_model_propose, setup->draft_model, (int)o->tokens);
    return status;
}

sn_draft *sn_setup_get_draft(sn_setup *setup) { return setup->draft.source ? &setup->draft : NULL; }

/* -- training -- */

static sn_status open_backbone(sn_setup *setup, sn_backbone_blocks blocks, const sn_base_weights *base,
                               sn_backbone **out, sn_err *err) {
    const sn_common_settings *o = &setup->settings->common;
    int end = blocks.end ? blocks.end : setup->hp->n_blocks;
    if (o->local.given && !o->local.all && (o->local.first > blocks.first || o->local.end < end))
        return sn_fail(err, SN_REFUSED,
                       "training needs nodes (--join) or the whole model in this process (--local all)");
    if (o->local.given) {
        sn_status opened = sn_setup_need_device(setup, err);
        if (opened) return opened;
        const sn_backbone_local_options local = {.device = setup->device, .blocks = blocks, .cancel = setup->cancel};
        return sn_backbone_local(setup->model, &local, out, err);
    }
    if (o->wire_dtype != SN_F32)
        return sn_fail(err, SN_REFUSED, "training sends hidden states as float32 only: leave out --wire-dtype");
    sn_status status = sn_setup_link(setup, err);
    if (setup->link) sn_link_set_cancel(setup->link, setup->cancel);
    const sn_backbone_swarm_options options = {.link = setup->link,
                                               .node_filter = {o->only.items, o->only.n, o->deny.items, o->deny.n},
                                               .timeout_ms = (int)o->timeout_ms,
                                               .max_retries = (int)o->max_retries,
                                               .blocks = blocks,
                                               .cancel = setup->cancel,
                                               .base = base};
    return status ? status : sn_backbone_swarm(setup->model, &options, out, err);
}

sn_status sn_setup_backbone(sn_setup *setup, sn_backbone_blocks blocks, const sn_base_weights *base, sn_backbone **out,
                            sn_err *err) {
    *out = NULL;
    sn_setup_phase(setup, "comparing and opening the blocks");
    sn_status status = open_backbone(setup, blocks, base, out, err);
    sn_setup_phase(setup, NULL);
    return status;
}

/* -- handles of the C API -- */

sn_status sn_api_setup(sn_setup *out, const swarm_model *model, swarm_connection *connection, const sn_cancel *cancel,
                       sn_settings *settings, sn_err *err) {
    sn_common_settings *o = &settings->common;
    if (!connection && !o->local.given) {
        o->local = settings->api.blocks;
        o->local.all = !settings->api.blocks.end;
        o->local.given = true;
    }
    o->cache = connection ? connection->options.settings.common.cache : NULL;
    *out = (sn_setup){.settings = settings,
                      .cancel = cancel,
                      .borrows_model = true,
                      .model = model->model,
                      .hp = model->hp,
                      .tokenizer = model->tokenizer};
    sn_status status = sn_model_open_head(model, &out->lm_head, err);
    if (!status && connection) status = sn_connection_give_link(connection, &out->link, err);
    if (connection) out->prefixes = connection->prefixes;
    if (!status && connection) sn_link_set_cancel(out->link, cancel);
    return status;
}

sn_status sn_api_folder(const char *path, sn_err *err) {
    if (!mkdir(path, 0777) || errno == EEXIST) return SN_OK;
    return sn_fail(err, SN_REFUSED, "the folder %.200s cannot be made: %s", path, strerror(errno));
}
