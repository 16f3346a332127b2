#include "client/api/api_private.h"

#include "base/file.h"
#include "client/net/adapter_lookup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char PUBLISHED[] = "name:";

/* "name:NAME" becomes "name:NAME@HASH": the same adapter for every session that is opened with it. */
static sn_status find_published(swarm_adapter *a, swarm_connection *c, const char *name, sn_err *err) {
    const char *wanted = name + strlen(PUBLISHED);
    sn_hash model = sn_model_id(a->model->model), hash;
    char hex[2 * SN_HASH_SIZE + 1];
    size_t len = strcspn(wanted, "@");
    if (!c)
        return sn_fail(err, SN_REFUSED, "%.100s is an adapter that nodes publish: give --join, a connection to them",
                       name);
    pthread_mutex_lock(&c->lock);
    sn_status status = sn_connection_needs_link(c, err);
    if (!status)
        status = sn_adapter_lookup(c->link, &model, wanted, (int)c->options.settings.common.timeout_ms, &hash, err);
    pthread_mutex_unlock(&c->lock);
    size_t size = sizeof PUBLISHED + len + 1 + sizeof hex;
    if (!status) status = sn_calloc(&a->name, size, 1, err);
    if (!status)
        snprintf(a->name, size, "%s%.*s@%s", PUBLISHED, (int)len, wanted, sn_hex(hash.bytes, SN_HASH_SIZE, hex));
    return status;
}

static void keep_warning(void *adapter, const char *sentence) {
    swarm_adapter *a = adapter;
    sn_err ignored; /* without memory there is no warning */
    if (sn_api_text(sentence, strlen(sentence), &a->warning, NULL, &ignored)) a->warning = NULL;
}

static sn_status adapter_open(swarm_adapter *a, swarm_connection *c, const char *name, sn_err *err) {
    if (!a->model->model) return sn_fail(err, SN_REFUSED, "an adapter needs a model that was opened whole");
    if (strlen(name) > SN_PATH_SIZE) return sn_fail(err, SN_REFUSED, "the name of the adapter is too long");
    if (!strncmp(name, PUBLISHED, strlen(PUBLISHED))) return find_published(a, c, name, err);
    sn_settings settings;
    sn_settings_init(&settings);
    settings.common.adapter = name;
    const sn_setup setup = {.settings = &settings, .hooks = {.ctx = a, .warning = keep_warning}};
    sn_status status = sn_setup_adapter(&setup, a->model->model, &a->loaded, err);
    return status ? status : sn_api_text(name, strlen(name), &a->name, NULL, err);
}

swarm_code swarm_adapter_open(const swarm_model *model, swarm_connection *connection, const char *name,
                              swarm_adapter **adapter, swarm_error **error) {
    sn_err err;
    swarm_adapter *a = NULL;
    sn_status status = sn_calloc(&a, 1, sizeof *a, &err);
    if (!status) {
        a->model = model;
        status = adapter_open(a, connection, name, &err);
    }
    if (!status)
        *adapter = a;
    else
        swarm_adapter_close(a);
    return sn_api_end(status, &err, connection ? sn_api_flag(connection->cancel) : NULL, error);
}

const char *swarm_adapter_warning(const swarm_adapter *a) { return a->warning; }

void swarm_adapter_close(swarm_adapter *a) {
    if (!a) return;
    sn_loaded_adapter_fini(&a->loaded);
    free(a->warning);
    free(a->name);
    free(a);
}
