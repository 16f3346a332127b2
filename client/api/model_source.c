/* A model that is opened by name: the options of the model's handle as settings of a hub. */
#include "client/api/api_private.h"
#include "sharing/hub/hub.h"
#include "sharing/hub/trusted_manifest.h"

#include <stdio.h>
#include <string.h>

static sn_status take(char *out, size_t size, const char *value, const char *key, sn_err *err) {
    if (snprintf(out, size, "%s", value ? value : "") < (int)size) return SN_OK;
    return sn_fail(err, SN_REFUSED, "%s is too long", key);
}

static sn_status read_settings(const sn_settings *o, sn_hub_settings *hub, sn_err *err) {
    *hub = (sn_hub_settings){.cache_max = o->common.cache_max};
    sn_status status = sn_hub_set_endpoint(hub, o->api.hub, err);
    if (!status) status = take(hub->http.token, sizeof hub->http.token, o->api.hub_token, "hub-token", err);
    if (!status) status = take(hub->cache, sizeof hub->cache, o->common.cache, "cache", err);
    return status ? status : take(hub->hf_cache, sizeof hub->hf_cache, o->api.hub_cache, "hub-cache", err);
}

sn_status sn_api_open_named(const char *name, const sn_settings *o, char path[SN_PATH_SIZE], sn_model **out,
                            sn_err *err) {
    sn_trusted_manifest manifest = {0};
    sn_hub_settings hub;
    bool fetches = o->common.cache && sn_model_name_is_remote(name);
    *out = NULL;
    if (o->common.manifest && !fetches)
        return sn_fail(err, SN_REFUSED, "manifest is for models that come from a hub: give ORG/NAME and the key cache");
    sn_status status = read_settings(o, &hub, err);
    if (!status && o->common.manifest) {
        status = sn_trusted_manifest_read(o->common.manifest, &hub.http, &manifest, err);
        if (status) sn_err_context(err, "manifest");
        hub.manifest = &manifest;
    }
    if (!status) status = sn_hub_open_model(name, fetches ? &hub : NULL, path, out, err);
    sn_trusted_manifest_fini(&manifest);
    return status;
}
