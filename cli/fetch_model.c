#include "cli/fetch_model.h"

#include "cli/options.h"
#include "sharing/hub/cached.h"
#include "sharing/hub/environment.h"
#include "model/source.h"
#include "sharing/hub/trusted_manifest.h"
#include "sharing/peers/swarm_model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Whether the command computes embeddings or logits; the others read headers and the tokenizer. */
static bool computes(const char *program) {
    static const char *const readers[] = {"swarm tokenize", "swarm render", "swarm inspect", "swarm route",
                                          "swarm status"};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (!strcmp(program, readers[i])) return false;
    return true;
}

/* Whether the command, when no model is named, uses one of the swarm. */
static bool chooses(const char *program) {
    static const char *const users[] = {"swarm generate", "swarm chat", "swarm serve", "swarm eval"};
    for (size_t i = 0; i < sizeof users / sizeof *users; i++)
        if (!strcmp(program, users[i])) return true;
    return false;
}

static void notice(void *context, const char *sentence) {
    static bool told;
    (void)context;
    if (!told) fprintf(stderr, "%s\n", sentence);
    told = true;
}

/* Where models come from. */
static sn_status read_sources(sn_hub_settings *hub, sn_swarm_access *swarm, sn_err *err) {
    static sn_trusted_manifest given;
    const sn_common_settings *o = &sn_program_settings.common;
    sn_status status = sn_hub_settings_read(o->cache, hub, err);
    hub->progress = sn_hub_show_progress;
    hub->notice = notice;
    hub->cache_max = o->cache_max;
    *swarm = (sn_swarm_access){.join = o->join.items,
                               .n_join = o->join.n,
                               .swarm_key_path = o->swarm_key,
                               .cache = hub->cache,
                               .cache_max = o->cache_max,
                               .progress = sn_hub_show_progress};
    if (status || !o->manifest) return status;
    hub->manifest = &given;
    if (given.text.len) return SN_OK;
    return sn_trusted_manifest_read(o->manifest, &hub->http, &given, err) ? sn_err_context(err, "--manifest") : SN_OK;
}

/* Embedding, head and the blocks [first, end). Its folder is held until the program ends. */
static sn_status fetch(const char *name, bool ends, int first, int end, char path[SN_PATH_SIZE], sn_err *err) {
    static int held[2], n_held; /* of a model and its draft */
    sn_hub_settings hub;
    sn_swarm_access swarm;
    sn_model *model = NULL;
    sn_status status = read_sources(&hub, &swarm, err);
    if (name == sn_program_settings.draft.model) hub.manifest = NULL; /* it is that of --model */
    if (!status) status = sn_swarm_open_model(name, &swarm, &hub, path, &model, err);
    if (!status && ends) status = sn_model_need_ends(model, err);
    for (int block = first; !status && block < end && block < sn_model_hparams(model)->n_blocks; block++)
        status = sn_model_need_block(model, block, err);
    if (!status) status = sn_cached_hold_path(path, &held[n_held++ % 2], err);
    sn_model_close(&model);
    return status;
}

static sn_status choose(char name[SN_SWARM_NAME_SIZE], sn_err *err) {
    sn_hub_settings hub;
    sn_swarm_access swarm;
    char sentence[SN_SWARM_SENTENCE_SIZE];
    sn_status status = read_sources(&hub, &swarm, err);
    const sn_swarm_query query = {.id = sn_program_settings.common.model_id};
    if (!status) status = sn_swarm_choose(&swarm, &query, name, sentence, err);
    if (!status) fprintf(stderr, "chose %s\n", sentence);
    return status;
}

static bool is_fetched(const char *name) { return sn_swarm_name_is(name) || sn_model_name_is_remote(name); }

sn_status sn_cli_fetch_model(const char *program, sn_err *err) {
    static char path[SN_PATH_SIZE], draft_path[SN_PATH_SIZE], name[SN_SWARM_NAME_SIZE];
    sn_common_settings *o = &sn_program_settings.common;
    const char *draft = sn_program_settings.draft.model;
    sn_status status = SN_OK;
    if (o->model && o->model_id) return sn_fail(err, SN_REFUSED, "give --model or --model-id, and not both");
    if (!o->model && o->join.n && chooses(program)) {
        status = choose(name, err);
        if (status) return status;
        o->model = name;
    }
    if (!o->model && chooses(program))
        return sn_fail(err, SN_REFUSED, "--model PATH is missing: give a model, or --join alone for one of the swarm");
    if (o->model && is_fetched(o->model)) {
        int end = !o->local.given ? 0 : o->local.all ? SN_BLOCKS_MAX : o->local.end;
        status = fetch(o->model, computes(program), o->local.first, end, path, err);
        if (status) return sn_err_context(err, "--model");
        o->model = path;
    } else if (o->manifest)
        return sn_fail(err, SN_REFUSED,
                       "--manifest is for models that come from a hub: compare files with 'swarm hash'");
    if (!draft || !is_fetched(draft)) return SN_OK;
    status = fetch(draft, true, 0, SN_BLOCKS_MAX, draft_path, err);
    if (status) return sn_err_context(err, "--draft-model");
    sn_program_settings.draft.model = draft_path;
    return SN_OK;
}
