/* Opening what a command works with: model, tokenizer, device, head, link, chain. */
#include "client/cmd.h"
#include "blocks/weights_id.h"
#include "client/contacts.h"
#include "client/published.h"

#include "base/log.h"
#include "base/wire.h"
#include "model/peft.h"

#include <stdio.h>
#include <string.h>

/* "name:NAME": one that nodes publish. */
static const char *published_name(void) {
    bool named = sn_given.adapter && !strncmp(sn_given.adapter, "name:", strlen("name:"));
    return named ? sn_given.adapter + strlen("name:") : NULL;
}

static sn_status open_device(sn_device **out, sn_err *err) {
    sn_device_id id;
    sn_device_options options = {.threads = (int)sn_given.threads, .isa = sn_given.isa};
    sn_status status = sn_device_id_parse(sn_given.device ? sn_given.device : "cpu", &id, err);
    if (status) return sn_err_context(err, "--device");
    return sn_device_open(id, &options, out, err);
}

static sn_status open_tokenizer(sn_setup *setup, bool needed, sn_err *err) {
    sn_err reason = {0};
    sn_status status = sn_tokenizer_open(sn_given.model, &setup->tokenizer, needed ? err : &reason);
    if (status && needed) return sn_err_context(err, "text needs the model's tokenizer");
    if (!status) return SN_OK;
    return reason.status == SN_STOP ? sn_fail(err, SN_STOP, "%s", reason.text) : SN_OK;
}

sn_status sn_setup_adapter(const sn_model *model, sn_trained *out, sn_err *err) {
    sn_hash weights;
    char unsaid[SN_PEFT_NAME_SIZE];
    bool marked;
    sn_status status = sn_trained_load(sn_given.adapter, sn_model_hparams(model), out, err);
    if (!status) status = sn_weights_id(model, &weights, err);
    if (!status) status = sn_peft_check(sn_given.adapter, &weights, sn_model_hparams(model)->name, &marked, unsaid, err);
    if (!status && !marked)
        fprintf(stderr, "swarm: %s does not say which weights it was trained for%s%s\n", sn_given.adapter,
                *unsaid ? ", but a name: " : "", unsaid);
    return status;
}

sn_status sn_setup_open(sn_setup *setup, bool needs_tokenizer, sn_err *err) {
    *setup = (sn_setup){0};
    if (!sn_given.join.n && !sn_given.dht && !sn_given.local.given)
        return sn_fail(err, SN_REFUSED,
                       "nobody is there to compute: give --join ADDRESS of a node, or --local all to hold "
                       "the whole model here");
    sn_progress_shown *shown = sn_progress_begin("loading the model's ends");
    sn_status status = sn_model_open(sn_given.model, &setup->model, err);
    if (!status) setup->hp = sn_model_hparams(setup->model);
    if (!status && sn_given.adapter && !published_name()) status = sn_setup_adapter(setup->model, &setup->trained, err);
    if (!status) status = open_tokenizer(setup, needs_tokenizer, err);
    if (!status) status = open_device(&setup->device, err);
    if (!status) status = sn_head_load(setup->model, setup->device, &setup->head, err);
    sn_progress_end(&shown);
    return status;
}

sn_status sn_setup_writes(const sn_setup *setup, sn_err *err) {
    if (!setup->trained.adapter.params || setup->trained.method != SN_METHOD_HEAD) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%s is a classifier and writes nothing: swarm eval --adapter %s --data FILE.jsonl says how "
                   "often it is right", sn_given.adapter, sn_given.adapter);
}

sn_status sn_setup_context(const sn_setup *setup, int64_t asked, int64_t usual, int *out, sn_err *err) {
    int before = sn_trained_for_chain(&setup->trained).n_prompt, most = setup->hp->n_ctx - before;
    if (asked > most || most < 1)
        return sn_fail(err, SN_REFUSED, "--ctx %lld is more than the %d tokens that this model was made for%s",
                       (long long)asked, most, before ? " beside the adapter's own" : "");
    int64_t wanted = asked ? asked : usual;
    *out = wanted < most ? (int)wanted : most;
    return SN_OK;
}

sn_status sn_setup_link(sn_setup *setup, sn_err *err) {
    sn_shape shape = {0};
    sn_contacts contacts;
    sn_hash id = sn_model_id(setup->model);
    sn_status status = sn_given.link ? sn_shape_parse(sn_given.link, &shape, err) : SN_OK;
    if (status) return sn_err_context(err, "--link");
    status = sn_contacts_find(&contacts, &id, (int)sn_given.timeout_s * 1000, err);
    if (status || !contacts.n) return status;
    return sn_link_open(contacts.items, contacts.n, sn_given.identity, sn_given.swarm_key, &shape, &setup->link, err);
}

static sn_status find_published(sn_setup *setup, sn_chain_tuned *out, sn_err *err) {
    sn_hash model = sn_model_id(setup->model);
    if (!setup->link) return sn_fail(err, SN_REFUSED, "--adapter %.100s is published by nodes: give --join", sn_given.adapter);
    return sn_published_find(setup->link, &model, published_name(), (int)sn_given.timeout_s * 1000, &out->hash, err);
}

sn_status sn_setup_chain(sn_setup *setup, int max_tokens, bool every_block, sn_err *err) {
    sn_chain_options options = {.device = setup->device,
                                .max_tokens = max_tokens,
                                .timeout_ms = (int)sn_given.timeout_s * 1000,
                                .max_retries = sn_given.max_retries ? (int)sn_given.max_retries : -1,
                                .push = sn_given.push,
                                .replica = sn_given.kv_replica,
                                .steps_ahead = sn_given.steps_ahead ? (int)sn_given.steps_ahead : -1,
                                .flow = sn_given.request_id,
                                .measure = true,
                                .replan_ms = (int)sn_given.replan_s * 1000,
                                .every_block = every_block,
                                .plan_only = setup->plan_only,
                                .tuned = sn_trained_for_chain(&setup->trained),
                                .pick = {sn_given.only.items, sn_given.only.n, sn_given.deny.items, sn_given.deny.n}};
    char word[SN_FLOW_MAX + 2];
    if (options.flow && (!*options.flow || strcmp(sn_log_word(options.flow, word, sizeof word), options.flow) ||
                         strlen(word) > SN_FLOW_MAX))
        return sn_fail(err, SN_REFUSED, "--request-id takes 1 to %d letters, digits and the signs . : - _ +",
                       SN_FLOW_MAX);
    sn_status status = sn_given.kv_dtype ? sn_kv_dtype_parse(sn_given.kv_dtype, &options.kv_dtype, err) : SN_OK;
    if (status) return sn_err_context(err, "--kv-dtype");
    if (sn_given.wire && (status = sn_wire_dtype_parse(sn_given.wire, &options.wire, err))) return sn_err_context(err, "--wire");
    status = sn_route_given(&options.throughput, &options.route_seed, err);
    if (status) return status;
    if (sn_given.local.given) {
        options.local_first = sn_given.local.all ? 0 : sn_given.local.first;
        options.local_end = sn_given.local.all ? setup->hp->n_blocks : sn_given.local.end;
        if (options.local_end > setup->hp->n_blocks)
            return sn_fail(err, SN_REFUSED, "--local %d:%d: this model has blocks 0:%d", options.local_first,
                           options.local_end, setup->hp->n_blocks);
        options.kv_memory = sn_given.kv_memory;
    }
    status = sn_setup_link(setup, err);
    if (status) return status;
    options.link = setup->link;
    if (published_name()) status = find_published(setup, &options.tuned, err);
    if (status) return status;
    if ((status = sn_setup_audit(setup, &options, err))) return status;
    options.audit = setup->audit;
    sn_progress_shown *shown = sn_progress_begin(setup->plan_only ? "asking the swarm"
                                                 : setup->link    ? "opening the chain"
                                                                  : "loading the blocks");
    status = sn_chain_open(setup->model, &options, &setup->chain, err);
    sn_progress_end(&shown);
    return status;
}

void sn_setup_close(sn_setup *setup) {
    sn_chain_close(&setup->chain);
    sn_audit_free(&setup->audit);
    sn_draft_model_close(&setup->draft_model);
    sn_link_close(&setup->link);
    sn_trained_fini(&setup->trained);
    sn_head_free(&setup->head);
    sn_device_close(&setup->device);
    sn_tokenizer_close(&setup->tokenizer);
    sn_model_close(&setup->model);
}
