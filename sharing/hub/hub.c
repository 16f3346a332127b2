/* A model that is fetched is a list of parts, one for each file that it may read, and a fetcher that owns them. Opening
 * adds the parts and brings configuration, tokenizer and headers; after that the model calls fetcher_want and
 * fetcher_fetch, from any thread. The fetcher holds the folder of the cache (cached.h) until the model is closed. */
#include "sharing/hub/hub_private.h"

#include "model/gguf_parts.h"
#include "sharing/hub/cached.h"
#include "sharing/hub/http_private.h"
#include "model/source.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SMALL_MAX = 256 << 20, PARTS_MAX = 4096 };

/* What a model that is here in part needs to fetch the rest; freed with the model. */
typedef struct fetcher {
    sn_hub_settings settings;
    sn_http *http;
    int held; /* the folder in the cache */
    sn_hub_snapshot snapshot;
    sn_manifest manifest; /* by which the files are verified, if there is one */
    bool has_manifest;
    bool is_new, in_folder; /* it is the given one, to be kept; the model is a folder */
    bool brought, told;     /* bytes came that are not verified; it was said */
    pthread_mutex_t lock;   /* any thread may need tensors */
    size_t n_parts;
    sn_hub_part *parts; /* [PARTS_MAX], n_parts used */
} fetcher;

static void fetcher_free(void *context) {
    fetcher *f = context;
    for (size_t i = 0; i < f->n_parts; i++) sn_range_set_fini(&f->parts[i].wanted);
    pthread_mutex_destroy(&f->lock);
    sn_http_free(&f->http);
    sn_manifest_fini(&f->manifest);
    sn_cached_release(&f->held);
    free(f->parts);
    free(f);
}

static sn_status fetcher_new(const sn_hub_settings *settings, fetcher **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    fetcher *f = *out;
    f->settings = *settings;
    f->held = -1;
    pthread_mutex_init(&f->lock, NULL);
    status = sn_http_new(&settings->http, &f->http, err);
    if (!status) status = sn_calloc(&f->parts, PARTS_MAX, sizeof *f->parts, err);
    if (!status) return SN_OK;
    fetcher_free(f);
    *out = NULL;
    return status;
}

static sn_status fetcher_want(void *context, const char *path, uint64_t from, uint64_t bytes, sn_err *err) {
    fetcher *f = context;
    sn_status status = SN_OK;
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < f->n_parts; i++)
        if (!strcmp(f->parts[i].path, path)) status = sn_range_set_add(&f->parts[i].wanted, from, from + bytes, err);
    pthread_mutex_unlock(&f->lock);
    return status;
}

/* Once, after bytes came that nothing but the hub vouches for. */
static void tell_unverified(fetcher *f) {
    if (!f->brought || f->told || !f->settings.notice) return;
    f->told = true;
    f->settings.notice(
        f->settings.context,
        "what was fetched is compared with no manifest, so only its sender vouches for it: make one with "
        "'swarm hash' where you trust the files, and give it with --manifest");
}

static sn_status fetcher_fetch(void *context, const char *what, sn_err *err) {
    fetcher *f = context;
    sn_status status = SN_OK;
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; !status && i < f->n_parts; i++)
        status = sn_hub_part_fetch(&f->settings, f->http, &f->parts[i], what, err);
    tell_unverified(f);
    pthread_mutex_unlock(&f->lock);
    return status ? sn_err_context(err, "%s", what) : SN_OK;
}

/* The manifest's file of this name (the folder it is in does not count); of a model that is one file, its file. NULL:
 * it has none. */
static const sn_manifest_file *file_of(const fetcher *f, const char *name, bool single) {
    const char *slash = strrchr(name, '/');
    if (slash) name = slash + 1;
    for (size_t i = 0; f->has_manifest && i < f->manifest.n_files; i++)
        if (single || !strcmp(f->manifest.files[i].name, name)) return &f->manifest.files[i];
    return NULL;
}

/* How a part begins: its path, size and version. single: it is the model's only file. */
typedef struct new_part {
    const char *path, *url, *name, *etag;
    uint64_t size;
    bool single;
} new_part;

static sn_status fetcher_add(fetcher *f, const new_part *new, sn_hub_part **out, sn_err *err) {
    if (f->n_parts == PARTS_MAX) return sn_fail(err, SN_REFUSED, "the model has more than %d files", PARTS_MAX);
    sn_hub_part *part = &f->parts[f->n_parts];
    char shown[SN_URL_SIZE];
    *part = (sn_hub_part){.size = new->size, .brought = &f->brought};
    if (snprintf(part->path, sizeof part->path, "%s", new->path) >= (int)sizeof part->path ||
        snprintf(part->url, sizeof part->url, "%s", new->url) >= (int)sizeof part->url)
        return sn_fail(err, SN_REFUSED, "the path of the cache or the URL is too long");
    snprintf(part->etag, sizeof part->etag, "%s", new->etag);
    snprintf(part->name, sizeof part->name, "%s", new->name);
    if (*new->name) part->snapshot = &f->snapshot;
    part->of = file_of(f, new->name, new->single);
    part->manifest = part->of ? &f->manifest : NULL;
    if (f->has_manifest && (!part->of || part->of->size != part->size))
        return sn_fail(err, SN_REFUSED,
                       "%.200s is no file of the manifest: the manifest is of another model, or version",
                       sn_http_show(part->url, shown));
    f->n_parts++;
    *out = part;
    return SN_OK;
}

static sn_status make_folder_of(const char *path, sn_err *err) {
    char folder[SN_PATH_SIZE];
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    return sn_hub_make_folders(folder, err);
}

/* The size of a file of which the hub's list says none: what the hub says of the file alone; without the hub, that of
 * the file as it is here, which has its whole size from the beginning. */
static sn_status ask_size(const fetcher *f, const char *url, const char *path, uint64_t *out, sn_err *err) {
    sn_http_file file;
    struct stat here;
    sn_status status = sn_http_describe(f->http, url, &file, err);
    bool known = status == SN_RETRY && !stat(path, &here) && here.st_size > 0;
    *out = known ? (uint64_t)here.st_size : file.size;
    return known ? SN_OK : status;
}

/* The part of a file of the repository; its folder exists afterwards. */
static sn_status add_repo_file(fetcher *f, const sn_hub_repo *repo, const char *file, bool single, sn_hub_part **out,
                               sn_err *err) {
    char url[SN_URL_SIZE], path[SN_PATH_SIZE];
    const char *etag;
    uint64_t size;
    if (!sn_hub_repo_has(repo, file, &size, &etag))
        return sn_fail(err, SN_REFUSED, "%s has no file %s", repo->name.repo, file);
    if (snprintf(url, sizeof url, "%s/%s/resolve/%s/%s", f->settings.http.endpoint, repo->name.repo, repo->commit,
                 file) >= (int)sizeof url)
        return sn_fail(err, SN_REFUSED, "the hub's address is too long");
    sn_status status = sn_path_join(path, repo->folder, file, err);
    if (status) return status;
    status = make_folder_of(path, err);
    if (!status && (!size || size == SN_SIZE_NOT_SAID)) status = ask_size(f, url, path, &size, err);
    return status ? status : fetcher_add(f, &(new_part){path, url, file, etag, size, single}, out, err);
}

/* Finds the manifest of the model at `path`: the given one, or that which was kept. What is here already is compared
 * with a manifest that is new. */
static sn_status find_manifest(fetcher *f, const char *path, bool folder, sn_err *err) {
    const sn_trusted_manifest *given = f->settings.manifest;
    uint64_t here, missing;
    sn_status status = sn_manifest_read_beside(path, &f->has_manifest, NULL, &f->manifest, err);
    const size_t n_files = (size_t)sn_gguf_parts_of(path, NULL);
    if (!folder && f->has_manifest && f->manifest.n_files != n_files) f->has_manifest = false; /* of a folder */
    if (status || !given) return status;
    if (!folder && given->manifest.n_files != n_files)
        return sn_fail(err, SN_REFUSED, "--manifest is that of a model of %zu files, and this one has %zu",
                       given->manifest.n_files, n_files);
    if (f->has_manifest && !memcmp(&f->manifest.id, &given->manifest.id, sizeof given->manifest.id)) return SN_OK;
    f->has_manifest = f->is_new = true;
    f->in_folder = folder;
    sn_manifest_fini(&f->manifest);
    status = sn_manifest_parse((const char *)given->text.data, given->text.len, &f->manifest, err);
    if (!status && !access(path, F_OK)) status = sn_manifest_check(&f->manifest, path, &here, &missing, err);
    return status ? sn_err_context(err, "--manifest") : SN_OK;
}

/* Fetches a file whole. */
static sn_status fetch_whole(fetcher *f, const sn_hub_repo *repo, const char *file, sn_err *err) {
    sn_hub_part *part;
    sn_status status = add_repo_file(f, repo, file, false, &part, err);
    if (status) return status;
    if (part->size > SMALL_MAX)
        return sn_fail(err, SN_REFUSED, "%s of %s is too large for its kind", file, repo->name.repo);
    status = sn_range_set_add(&part->wanted, 0, part->size, err);
    return status ? status : sn_hub_part_fetch(&f->settings, f->http, part, file, err);
}

static const char *const small[] = {"config.json",         "generation_config.json",
                                    "tokenizer.json",      "tokenizer_config.json",
                                    "chat_template.jinja", "model.safetensors.index.json",
                                    "tiktoken.model",      "tekken.json",
                                    "tokenizer.model",     "added_tokens.json"};

/* What is read only where there is no tokenizer.json, of up to 20 MB. */
static bool is_second_choice(const char *name) {
    static const char *const others[] = {"tiktoken.model", "tekken.json", "tokenizer.model", "added_tokens.json"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i])) return true;
    return false;
}

static bool is_shard(const char *name) {
    static const char ending[] = ".safetensors";
    size_t len = strlen(name), n = sizeof ending - 1;
    return !strncmp(name, "model", 5) && !strchr(name, '/') && len >= n && !strcmp(name + len - n, ending);
}

bool sn_hub_is_model_file(const char *name) {
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        if (!strcmp(name, small[i])) return true;
    return is_shard(name);
}

/* With a manifest a folder has the files that it names and no others: a hub could add a chat template, or leave one
 * out. What a call without the manifest has fetched beside them is removed. */
static sn_status compare_names(const fetcher *f, const sn_hub_repo *repo, sn_err *err) {
    char path[SN_PATH_SIZE];
    const char *etag;
    uint64_t size;
    for (size_t i = 0; f->has_manifest && i < f->manifest.n_files; i++) {
        const sn_manifest_file *file = &f->manifest.files[i];
        if (!sn_hub_repo_has(repo, file->name, &size, &etag) || (size != SN_SIZE_NOT_SAID && size != file->size))
            return sn_fail(err, SN_REFUSED,
                           "%s of the manifest is no file of %s, or has another size there: the manifest is of another "
                           "model, or version",
                           file->name, repo->name.repo);
    }
    DIR *listed = f->has_manifest ? opendir(repo->folder) : NULL;
    for (const struct dirent *entry; listed && (entry = readdir(listed));)
        if (sn_hub_is_model_file(entry->d_name) && !file_of(f, entry->d_name, false) &&
            !sn_path_join(path, repo->folder, entry->d_name, NULL))
            unlink(path);
    if (listed) closedir(listed);
    return SN_OK;
}

static bool is_wanted(const fetcher *f, const sn_hub_repo *repo, const char *name) {
    const char *etag;
    uint64_t size;
    return sn_hub_repo_has(repo, name, &size, &etag) && size && (!f->has_manifest || file_of(f, name, false));
}

/* Configuration and tokenizer of a folder, then the headers of its shards. */
static sn_status fetch_folder(fetcher *f, const sn_hub_repo *repo, sn_err *err) {
    const char *name;
    json_t *entry;
    sn_status status = compare_names(f, repo, err);
    for (size_t i = 0; !status && i < sizeof small / sizeof *small; i++)
        if (is_wanted(f, repo, small[i]) && !(is_second_choice(small[i]) && is_wanted(f, repo, "tokenizer.json")))
            status = fetch_whole(f, repo, small[i], err);
    json_object_foreach(repo->files, name, entry) {
        sn_hub_part *part;
        if (status || !is_shard(name)) continue;
        status = add_repo_file(f, repo, name, false, &part, err);
        if (!status) status = sn_hub_part_fetch_header(&f->settings, f->http, part, err);
    }
    return status;
}

/* The header of a GGUF file, or of each part of it. */
static sn_status fetch_gguf(fetcher *f, const sn_hub_repo *repo, const char *file, sn_err *err) {
    char name[SN_PATH_SIZE];
    sn_hub_part *part;
    const int n = sn_gguf_parts_of(file, NULL);
    sn_status status = SN_OK;
    for (int i = 1; !status && i <= n; i++) {
        status = sn_gguf_part_path(file, i, name, err);
        if (!status) status = add_repo_file(f, repo, name, n == 1, &part, err);
        if (!status) status = sn_hub_part_fetch_header(&f->settings, f->http, part, err);
    }
    return status;
}

static sn_status fetch_repo(fetcher *f, const sn_model_name *name, char path[SN_PATH_SIZE], sn_err *err) {
    sn_hub_repo repo;
    char file[SN_HUB_FILE_SIZE];
    sn_status status = sn_hub_repo_open(&f->settings, f->http, name, &repo, err);
    if (status) return status;
    status = sn_hub_repo_choose(&repo, file, err);
    if (!status) status = sn_cached_hold(repo.folder, &f->held, err);
    if (!status) status = sn_hub_snapshot_of(&repo, &f->snapshot, err);
    if (!status) status = sn_path_join(path, repo.folder, file, err);
    if (!*file) snprintf(path, SN_PATH_SIZE, "%s", repo.folder);
    if (!status) status = make_folder_of(path, err);
    if (!status) status = find_manifest(f, path, !*file, err);
    if (!status) status = *file ? fetch_gguf(f, &repo, file, err) : fetch_folder(f, &repo, err);
    sn_hub_repo_close(&repo);
    return status;
}

/* The URL of part `number` of the model whose part `url` names; what follows the name stays. */
static sn_status url_of_part(const char *url, int number, char out[SN_URL_SIZE], sn_err *err) {
    char path[SN_PATH_SIZE], shown[SN_URL_SIZE];
    snprintf(shown, sizeof shown, "%.*s", (int)strcspn(url, "?#"), url);
    sn_status status = sn_gguf_part_path(shown, number, path, err);
    if (!status && snprintf(out, SN_URL_SIZE, "%s%s", path, url + strlen(shown)) >= SN_URL_SIZE)
        return sn_fail(err, SN_REFUSED, "the URL is too long");
    return status;
}

/* Adds part `number` of the model at `path`, by the URL of the first, whose size and version are known. */
static sn_status add_url_part(fetcher *f, const char *url, int number, const char *path, const sn_http_file *first,
                              sn_err *err) {
    char own[SN_URL_SIZE], here[SN_PATH_SIZE];
    sn_http_file file = *first;
    sn_hub_part *part;
    bool single = sn_gguf_parts_of(path, NULL) == 1;
    sn_status status = url_of_part(url, number, own, err);
    if (!status) status = sn_gguf_part_path(path, number, here, err);
    if (!status && number > 1) status = sn_http_describe(f->http, own, &file, err);
    if (!status) status = fetcher_add(f, &(new_part){here, own, "", file.etag, file.size, single}, &part, err);
    return status ? status : sn_hub_part_fetch_header(&f->settings, f->http, part, err);
}

/* The folder of a URL's file is named by URL and version, of a model in parts those of the first, so another version
 * never mixes with it. */
static sn_status fetch_url(fetcher *f, const char *url, char path[SN_PATH_SIZE], sn_err *err) {
    sn_http_file file;
    char first[SN_URL_SIZE], folder[SN_PATH_SIZE], shown[SN_URL_SIZE], version[SN_URL_SIZE + SN_ETAG_SIZE + 2];
    sn_status status = url_of_part(url, 1, first, err);
    if (status) return status;
    snprintf(shown, sizeof shown, "%.*s", (int)strcspn(first, "?#"), first);
    const char *name = strrchr(shown, '/') + 1;
    size_t len = strlen(name);
    if (len < 6 || len >= SN_HUB_FILE_SIZE || strcmp(name + len - 5, ".gguf") || !sn_hub_path_is_safe(name))
        return sn_fail(err, SN_REFUSED, "the URL of a model ends with the name of a .gguf file, and %.200s does not",
                       shown);
    status = sn_http_describe(f->http, first, &file, err);
    if (status) return status;
    snprintf(version, sizeof version, "%s %s", first, file.etag);
    sn_hash hash = sn_hash_of(version, strlen(version));
    if (snprintf(folder, sizeof folder, "%s/models/url/%02x%02x%02x%02x%02x%02x%02x%02x", f->settings.cache,
                 hash.bytes[0], hash.bytes[1], hash.bytes[2], hash.bytes[3], hash.bytes[4], hash.bytes[5],
                 hash.bytes[6], hash.bytes[7]) >= (int)sizeof folder)
        return sn_fail(err, SN_REFUSED, "the path of the cache is too long");
    status = sn_cached_hold(folder, &f->held, err);
    if (!status) status = sn_path_join(path, folder, name, err);
    if (!status) status = find_manifest(f, path, false, err);
    for (int i = 1; !status && i <= sn_gguf_parts_of(path, NULL); i++)
        status = add_url_part(f, first, i, path, &file, err);
    return status;
}

static sn_status check_model(const fetcher *f, sn_model **model, sn_err *err) {
    const sn_hash id = sn_model_id(*model);
    if (!memcmp(&id, &f->manifest.model, sizeof id)) return SN_OK;
    sn_model_close(model);
    return sn_fail(err, SN_REFUSED, "the manifest names another model than its files hold: make a new one");
}

sn_status sn_hub_open_model(const char *name, const sn_hub_settings *settings, char path[SN_PATH_SIZE], sn_model **out,
                            sn_err *err) {
    sn_model_name parsed;
    fetcher *f = NULL;
    *out = NULL;
    if (!settings || !sn_model_name_is_remote(name)) {
        if (snprintf(path, SN_PATH_SIZE, "%s", name) >= SN_PATH_SIZE)
            return sn_fail(err, SN_REFUSED, "the path is too long");
        return sn_model_open(path, out, err);
    }
    sn_status status = sn_model_name_parse(name, &parsed, err);
    if (!status) status = fetcher_new(settings, &f, err);
    if (!status) status = *parsed.url ? fetch_url(f, parsed.url, path, err) : fetch_repo(f, &parsed, path, err);
    if (!status) status = sn_model_open(path, out, err);
    if (!status && f->has_manifest) status = check_model(f, out, err);
    if (!status && f->is_new) /* not before: a manifest of another model would stay in the way */
        status = sn_manifest_write_beside(path, f->in_folder, &settings->manifest->text, err);
    if (!status) tell_unverified(f);
    if (f) f->settings.manifest = NULL; /* the caller's; `manifest` is a copy of it */
    if (!status)
        sn_model_set_source(*out, &(sn_model_source){fetcher_want, fetcher_fetch, fetcher_free, f});
    else if (f)
        fetcher_free(f);
    return status;
}

sn_status sn_hub_set_endpoint(sn_hub_settings *settings, const char *endpoint, sn_err *err) {
    if (!endpoint) endpoint = "https://huggingface.co";
    size_t len = strlen(endpoint);
    while (len && endpoint[len - 1] == '/') len--;
    if (len >= sizeof settings->http.endpoint || (strncmp(endpoint, "https://", 8) && strncmp(endpoint, "http://", 7)))
        return sn_fail(err, SN_REFUSED, "it must be the URL of a hub");
    snprintf(settings->http.endpoint, sizeof settings->http.endpoint, "%.*s", (int)len, endpoint);
    return SN_OK;
}

sn_status sn_hub_pin(const char *name, const sn_hub_settings *settings, char out[SN_URL_SIZE], sn_err *err) {
    sn_model_name parsed = {0};
    sn_hub_repo repo = {0};
    sn_http *http = NULL;
    char file[SN_HUB_FILE_SIZE];
    if (strlen(name) >= SN_URL_SIZE) return sn_fail(err, SN_REFUSED, "the name of the model is too long");
    snprintf(out, SN_URL_SIZE, "%s", name);
    if (!sn_model_name_is_remote(name)) return SN_OK;
    sn_status status = sn_model_name_parse(name, &parsed, err);
    if (status || *parsed.url) return status;
    status = sn_http_new(&settings->http, &http, err);
    if (!status) status = sn_hub_repo_open(settings, http, &parsed, &repo, err);
    if (!status) status = sn_hub_repo_choose(&repo, file, err);
    if (!status) snprintf(out, SN_URL_SIZE, "%s%s%s@%s", parsed.repo, *file ? ":" : "", file, repo.commit);
    sn_hub_repo_close(&repo);
    sn_http_free(&http);
    return status;
}
