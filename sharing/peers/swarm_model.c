/* A model of a swarm is a folder with its manifest and its files, which have holes; the fetcher fills them when the
 * model's source (model/source.h) is asked for bytes. */
#include "sharing/peers/swarm_model.h"

#include "base/file.h"
#include "model/config.h"
#include "model/gguf_parts.h"
#include "sharing/hub/cached.h"
#include "model/source.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char prefix[] = "swarm:";

bool sn_swarm_name_is(const char *name) { return !strncmp(name, prefix, sizeof prefix - 1); }

/* What a model needs to fetch the rest of it; freed with the model. */
typedef struct swarm_source {
    sn_fetcher *fetcher;
    sn_manifest manifest;
    int held;               /* its folder in the cache */
    sn_fetcher_part *parts; /* (manifest.n_files) */
    pthread_mutex_t lock;   /* any thread may need tensors */
} swarm_source;

static void source_free(void *context) {
    swarm_source *s = context;
    for (size_t i = 0; s->parts && i < s->manifest.n_files; i++) sn_range_set_fini(&s->parts[i].wanted);
    free(s->parts);
    sn_manifest_fini(&s->manifest);
    sn_fetcher_free(&s->fetcher);
    sn_cached_release(&s->held);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static sn_status source_want(void *context, const char *path, uint64_t from, uint64_t bytes, sn_err *err) {
    swarm_source *s = context;
    sn_status status = SN_OK;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->manifest.n_files; i++)
        if (!strcmp(s->parts[i].path, path)) status = sn_range_set_add(&s->parts[i].wanted, from, from + bytes, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static sn_status source_fetch(void *context, const char *what, sn_err *err) {
    swarm_source *s = context;
    pthread_mutex_lock(&s->lock);
    sn_status status = sn_fetcher_fetch(s->fetcher, &s->manifest, s->parts, what, err);
    for (size_t i = 0; !status && i < s->manifest.n_files; i++) s->parts[i].wanted.n = 0;
    pthread_mutex_unlock(&s->lock);
    return status ? sn_err_context(err, "%s", what) : SN_OK;
}

/* The manifest of the folder, or else of the swarm. */
static sn_status get_manifest(swarm_source *s, const char *folder, const sn_hash *id, sn_err *err) {
    char path[SN_PATH_SIZE];
    sn_buf text = {0};
    sn_status status = sn_path_join(path, folder, SN_MANIFEST_NAME, err);
    bool here = !status && !sn_read_file(path, SN_MANIFEST_MAX, &text, NULL);
    sn_hash hash = here ? sn_hash_of(text.data, text.len) : (sn_hash){0};
    here = here && !memcmp(&hash, id, sizeof hash);
    if (!status && !here) {
        sn_buf_fini(&text);
        sn_buf_init(&text, SN_MANIFEST_MAX);
        status = sn_fetcher_manifest(s->fetcher, id, 0, &text, err);
    }
    if (!status) status = sn_manifest_parse((const char *)text.data, text.len, &s->manifest, err);
    if (!status && !here) status = sn_file_replace(path, text.data, text.len, err);
    sn_buf_fini(&text);
    return status;
}

/* All that opening the model reads: configuration, tokenizer, headers. */
static sn_status fetch_headers(swarm_source *s, const char *folder, char path[SN_PATH_SIZE], sn_err *err) {
    sn_status status = sn_calloc(&s->parts, s->manifest.n_files, sizeof *s->parts, err);
    for (size_t i = 0; !status && i < s->manifest.n_files; i++) {
        const sn_manifest_file *file = &s->manifest.files[i];
        status = sn_path_join(s->parts[i].path, folder, file->name, err);
        if (!status) status = sn_range_set_add(&s->parts[i].wanted, 0, file->header, err);
    }
    if (!status) status = source_fetch(s, "header", err);
    for (size_t i = 0; !status && i < s->manifest.n_files; i++) {
        uint64_t from, bytes;
        size_t len = strlen(s->parts[i].path);
        if (len < 5 || strcmp(s->parts[i].path + len - 5, ".gguf")) continue;
        status = sn_config_tensor_of_gguf(s->parts[i].path, &from, &bytes, err);
        if (!status) status = sn_range_set_add(&s->parts[i].wanted, from, from + bytes, err);
        if (!status) status = source_fetch(s, "header", err);
    }
    bool gguf = s->manifest.n_files == 1 || sn_gguf_parts_of(s->manifest.files[0].name, NULL) > 1;
    snprintf(path, SN_PATH_SIZE, "%s", gguf ? s->parts[0].path : folder);
    return status;
}

static sn_status open_swarm_model(const sn_hash *id, const sn_swarm_access *access, char path[SN_PATH_SIZE],
                                  sn_model **out, sn_err *err) {
    char folder[SN_PATH_SIZE], hex[2 * SN_HASH_SIZE + 1];
    swarm_source *s = NULL;
    if (snprintf(folder, sizeof folder, "%s/models/swarm/%s", access->cache, sn_hex(id->bytes, SN_HASH_SIZE, hex)) >=
        (int)sizeof folder)
        return sn_fail(err, SN_REFUSED, "the path of the cache is too long");
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (status) return status;
    pthread_mutex_init(&s->lock, NULL);
    status = sn_cached_hold(folder, &s->held, err);
    if (!status) status = sn_fetcher_new(access, &s->fetcher, err);
    if (!status) status = get_manifest(s, folder, id, err);
    if (!status) status = fetch_headers(s, folder, path, err);
    if (!status) status = sn_model_open(path, out, err);
    const sn_hash model = status ? (sn_hash){0} : sn_model_id(*out);
    if (!status && memcmp(&model, &s->manifest.model, sizeof model)) {
        sn_model_close(out);
        status = sn_fail(err, SN_REFUSED, "the manifest names another model than its files hold: choose another one");
    }
    if (!status)
        sn_model_set_source(*out, &(sn_model_source){source_want, source_fetch, source_free, s});
    else
        source_free(s);
    return status;
}

sn_status sn_swarm_open_model(const char *name, const sn_swarm_access *access, const sn_hub_settings *hub,
                              char path[SN_PATH_SIZE], sn_model **out, sn_err *err) {
    sn_hash id;
    *out = NULL;
    if (hub && hub->manifest && !sn_model_name_is_remote(name))
        return sn_fail(err, SN_REFUSED,
                       "--manifest is for models that come from a hub: compare files with 'swarm hash'");
    if (!sn_swarm_name_is(name)) return sn_hub_open_model(name, hub, path, out, err);
    const char *hex = name + sizeof prefix - 1;
    if (sn_unhex(hex, id.bytes, SN_HASH_SIZE, err))
        return sn_fail(err, SN_REFUSED, "'%.80s' is no model of a swarm: write swarm: and 64 hexadecimal digits", name);
    return open_swarm_model(&id, access, path, out, err);
}
