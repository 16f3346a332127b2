/* What sessions, blocks and training runs have in common: a setup over the parts of a model. */
#include "client/api/api_private.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

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
