/* A connection to a swarm. Its link answers questions about the swarm; the first session that is opened soon after the
 * connection takes it over, so that a program with one session has one link. */
#include "client/api/api_private.h"

#include "base/clock.h"
#include "client/api/status.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <string.h>

enum { FRESH_US = 10 * 1000 * 1000 }; /* what the link knows of the swarm is new for so long */

static sn_status open_link(void *ctx, sn_link **out, sn_err *err) {
    const swarm_connection *c = ctx;
    return sn_link_open(&c->entry.link, out, err);
}

static sn_status read_model_id(const char *path, sn_hash *out, sn_err *err) {
    sn_model *model = NULL;
    sn_status status = sn_model_open(path, &model, err);
    if (!status) *out = sn_model_id(model);
    sn_model_close(&model);
    return status;
}

sn_status sn_connection_new(const swarm_options *options, swarm_cancel *cancel, swarm_connection **out, sn_err *err) {
    swarm_connection *c = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&c, 1, sizeof *c, err);
    if (status) return status;
    pthread_mutex_init(&c->lock, NULL);
    c->cancel = cancel;
    c->open_link = open_link;
    c->open_link_ctx = c;
    status = sn_api_options_init(&c->options, options, "connection", NULL, err);
    const char *model = c->options.settings.common.model;
    c->has_model = model != NULL;
    if (!status && model) status = read_model_id(model, &c->model, err);
    if (!status) status = sn_known_prefixes_new(SN_KNOWN_PREFIXES_BYTES, NULL, &c->prefixes, err);
    if (status) {
        swarm_disconnect(c);
        return status;
    }
    *out = c;
    return SN_OK;
}

/* Nodes find what they kept for an earlier process by its key: what is known of it is in a file of that name. */
static sn_status read_prefixes(swarm_connection *c, sn_err *err) {
    enum { NAME_KEY = 8 }; /* bytes of the key */
    const sn_common_settings *o = &c->options.settings.common;
    char path[SN_PATH_SIZE], folder[SN_PATH_SIZE], name[2 * NAME_KEY + 1];
    if (!o->identity || !o->cache) return SN_OK;
    sn_status status = sn_path_join(folder, o->cache, "prefixes", err);
    if (!status) status = sn_path_join(path, folder, sn_hex(c->entry.identity.curve_key, NAME_KEY, name), err);
    if (status) return status;
    if (mkdir(o->cache, 0700)) {} /* it is there already, or saving fails; the folder below, too */
    if (mkdir(folder, 0700)) {}
    sn_known_prefixes_free(&c->prefixes);
    return sn_known_prefixes_new(SN_KNOWN_PREFIXES_BYTES, path, &c->prefixes, err);
}

static sn_status connection_open(swarm_connection *c, sn_err *err) {
    const sn_settings *s = &c->options.settings;
    if (!sn_settings_has_swarm(s)) return sn_fail(err, SN_REFUSED, "give join, the HOST:PORT of a node, or dht");
    if (s->common.dht && !c->has_model)
        return sn_fail(err, SN_REFUSED, "dht finds the nodes of one model: give the path of this model, too");
    sn_status status = sn_entry_find(&c->entry, s, &c->model, sn_api_flag(c->cancel), err);
    if (!status) status = read_prefixes(c, err);
    if (!status) status = sn_connection_needs_link(c, err);
    if (!status) status = sn_link_discover(c->link, c->has_model ? &c->model : NULL, (int)s->common.timeout_ms, err);
    c->discovered = !status;
    c->discovered_us = sn_now_us();
    return status;
}

sn_status sn_connection_needs_link(swarm_connection *c, sn_err *err) {
    if (c->link) return SN_OK;
    sn_status status = c->open_link(c->open_link_ctx, &c->link, err);
    if (!status) sn_link_set_cancel(c->link, sn_api_flag(c->cancel));
    return status;
}

/* A thread that asks the swarm meanwhile needs the link for seconds, where nodes are silent: no session waits for it.
 */
sn_status sn_connection_give_link(swarm_connection *c, sn_link **out, sn_err *err) {
    const bool idle = !pthread_mutex_trylock(&c->lock);
    const bool fresh = idle && c->discovered && sn_now_us() - c->discovered_us < FRESH_US;
    *out = fresh ? c->link : NULL;
    if (fresh) c->link = NULL;
    if (fresh) c->discovered = false;
    if (idle) pthread_mutex_unlock(&c->lock);
    return *out ? SN_OK : c->open_link(c->open_link_ctx, out, err);
}

swarm_code swarm_connect(const swarm_options *options, swarm_cancel *cancel, swarm_connection **connection,
                         swarm_error **error) {
    sn_err err;
    swarm_connection *c = NULL;
    sn_status status = sn_connection_new(options, cancel, &c, &err);
    if (!status) status = connection_open(c, &err);
    if (!status)
        *connection = c;
    else
        swarm_disconnect(c);
    return sn_api_end(status, &err, sn_api_flag(cancel), error);
}

void swarm_disconnect(swarm_connection *c) {
    if (!c) return;
    sn_link_close(&c->link);
    sn_known_prefixes_save(c->prefixes);
    sn_known_prefixes_free(&c->prefixes);
    explicit_bzero(&c->entry.identity, sizeof c->entry.identity);
    sn_api_options_fini(&c->options);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* The directory is asked for again before each status but the first, which follows the discovery of the connection.
 * When no node answers now, those that are known are asked. */
static sn_status connection_status(swarm_connection *c, json_t **out, sn_err *err) {
    sn_status_row *rows = NULL;
    size_t n = 0;
    const int64_t timeout_ms = c->options.settings.common.timeout_ms;
    sn_status status = sn_connection_needs_link(c, err);
    if (!status && !c->discovered)
        status = sn_link_discover(c->link, c->has_model ? &c->model : NULL, (int)timeout_ms, err);
    c->discovered = false;
    if (status == SN_RETRY && c->link && sn_directory_count(sn_link_directory(c->link))) status = SN_OK;
    if (!status) status = sn_status_query(c->link, &rows, &n, err);
    if (!status) *out = sn_status_json(rows, n);
    sn_status_free(&rows, n);
    return status;
}

swarm_code swarm_connection_status(swarm_connection *c, char **json, size_t *length, swarm_error **error) {
    sn_err err;
    json_t *value = NULL;
    pthread_mutex_lock(&c->lock);
    sn_status status = connection_status(c, &value, &err);
    pthread_mutex_unlock(&c->lock);
    if (!status) status = sn_api_json(value, json, length, &err);
    return sn_api_end(status, &err, sn_api_flag(c->cancel), error);
}
