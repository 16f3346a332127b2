#include "sharing/hub/environment.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The variable's value with what is below it; "" where it is not set, or names the root, the HOME of services. */
static void folder_of(const char *name, const char *below, char out[SN_PATH_SIZE]) {
    const char *value = variable(name);
    if (!value || !strcmp(value, "/") || snprintf(out, SN_PATH_SIZE, "%s%s", value, below) >= SN_PATH_SIZE) *out = 0;
}

static void find_token(const char *hf_home, char out[SN_HTTP_TOKEN_SIZE]) {
    char path[SN_PATH_SIZE];
    sn_buf text = {0};
    const char *token = variable("HF_TOKEN");
    sn_buf_init(&text, SN_HTTP_TOKEN_SIZE);
    if (!token && !sn_path_join(path, hf_home, "token", NULL) &&
        !sn_read_file(path, SN_HTTP_TOKEN_SIZE - 1, &text, NULL))
        token = (const char *)text.data;
    size_t len = token ? strcspn(token, " \t\r\n") : 0;
    if (len < SN_HTTP_TOKEN_SIZE) snprintf(out, SN_HTTP_TOKEN_SIZE, "%.*s", (int)len, token ? token : "");
    sn_buf_fini(&text);
}

sn_status sn_hub_settings_read(const char *cache, sn_hub_settings *out, sn_err *err) {
    char hf_home[SN_PATH_SIZE] = "";
    const char *endpoint = variable("HF_ENDPOINT");
    *out = (sn_hub_settings){0};
    folder_of("HF_HOME", "", hf_home);
    if (!*hf_home) folder_of("XDG_CACHE_HOME", "/huggingface", hf_home);
    if (!*hf_home) folder_of("HOME", "/.cache/huggingface", hf_home);
    folder_of("HF_HUB_CACHE", "", out->hf_cache);
    if (!*out->hf_cache && *hf_home && sn_path_join(out->hf_cache, hf_home, "hub", err)) return SN_REFUSED;
    if (cache && snprintf(out->cache, sizeof out->cache, "%s", cache) >= (int)sizeof out->cache) out->cache[0] = 0;
    if (!*out->cache) folder_of("SWARM_CACHE", "", out->cache);
    if (!*out->cache) folder_of("XDG_CACHE_HOME", "/swarm-node", out->cache);
    if (!*out->cache) folder_of("HOME", "/.cache/swarm-node", out->cache);
    if (!*out->cache)
        return sn_fail(err, SN_REFUSED,
                       "there is no folder for fetched models: give --cache FOLDER, or set SWARM_CACHE or HOME");
    if (sn_hub_set_endpoint(out, endpoint, err)) return sn_err_context(err, "HF_ENDPOINT");
    find_token(hf_home, out->http.token);
    return SN_OK;
}
