/* What a hub says of a repository becomes one object, name to size and version (read_tree), which is kept in the cache
 * for the time when the hub cannot be reached; the model is chosen among those names (sn_hub_repo_choose). */
#include "sharing/hub/hub_private.h"

#include "base/cgroup.h"
#include "base/file.h"
#include "base/parse.h"
#include "model/gguf_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TREE_MAX = 64 << 20, FILES_MAX = 1 << 16, LISTED = 40 };

sn_status sn_hub_make_folders(const char *path, sn_err *err) {
    char part[SN_PATH_SIZE];
    for (size_t i = 1;; i++) {
        if (path[i] && path[i] != '/') continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0755) && errno != EEXIST)
            return sn_fail(err, errno == ENOSPC ? SN_STOP : SN_REFUSED, "%s cannot be made: %s", part, strerror(errno));
        if (!path[i]) return SN_OK;
    }
}

/* Takes name, size and version of each file whose name is safe; others cannot be fetched. */
static sn_status read_files(sn_hub_repo *repo, const json_t *siblings, sn_err *err) {
    size_t i;
    json_t *file;
    repo->files = json_object();
    if (!repo->files || json_array_size(siblings) > FILES_MAX)
        return sn_fail(err, SN_REFUSED, "the repository has more than %d files", FILES_MAX);
    json_array_foreach(siblings, i, file) {
        const char *name = json_string_value(json_object_get(file, "rfilename"));
        const json_t *lfs = json_object_get(file, "lfs");
        const char *etag = json_string_value(json_object_get(lfs, "sha256"));
        const json_t *said = json_object_get(file, "size");
        const json_int_t size = json_is_integer(said) ? json_integer_value(said) : -1;
        if (!etag) etag = json_string_value(json_object_get(file, "blobId"));
        if (!name || strlen(name) >= SN_HUB_FILE_SIZE || !sn_hub_path_is_safe(name)) continue;
        if (etag && (strlen(etag) >= SN_ETAG_SIZE || strspn(etag, "0123456789abcdef") != strlen(etag))) etag = NULL;
        json_t *entry = json_pack("[I, s]", size < 0 ? -1 : size, etag ? etag : "");
        if (!entry || json_object_set_new(repo->files, name, entry))
            return sn_fail(err, SN_STOP, "out of memory for the list of files");
    }
    return SN_OK;
}

/* tree: what the hub says, or said; consumed. */
static sn_status read_tree(sn_hub_repo *repo, json_t *tree, sn_err *err) {
    const char *commit = json_string_value(json_object_get(tree, "sha"));
    sn_status status = SN_OK;
    bool right = commit && strlen(commit) >= 7 && strlen(commit) < sizeof repo->commit &&
                 strspn(commit, "0123456789abcdef") == strlen(commit) &&
                 json_is_array(json_object_get(tree, "siblings"));
    if (!right)
        status = sn_fail(err, SN_REFUSED, "%s does not answer as a hub about %s: check HF_ENDPOINT",
                         repo->settings->http.endpoint, repo->name.repo);
    if (!status) snprintf(repo->commit, sizeof repo->commit, "%s", commit);
    if (!status) status = read_files(repo, json_object_get(tree, "siblings"), err);
    json_decref(tree);
    return status;
}

/* "CACHE/models/ORG--NAME", and inside it "revision-REVISION.json": what the hub said last of a revision. */
static sn_status remembered_path(const sn_hub_repo *repo, const char *of, char folder[SN_PATH_SIZE],
                                 char out[SN_PATH_SIZE], sn_err *err) {
    char revision[SN_HUB_REVISION_SIZE + 32];
    const char *slash = strchr(repo->name.repo, '/');
    if (snprintf(folder, SN_PATH_SIZE, "%s/models/%.*s--%s", repo->settings->cache, (int)(slash - repo->name.repo),
                 repo->name.repo, slash + 1) >= SN_PATH_SIZE)
        return sn_fail(err, SN_REFUSED, "the path of the cache is too long");
    snprintf(revision, sizeof revision, "revision-%s.json", of);
    for (char *c = revision; *c; c++)
        if (*c == '/') *c = '_';
    return sn_path_join(out, folder, revision, err);
}

static sn_status read_remembered(const char *path, sn_buf *text, sn_err *err) {
    sn_buf_init(text, TREE_MAX);
    return sn_read_file(path, TREE_MAX - 1, text, err);
}

static bool is_commit(const char *revision) {
    return strlen(revision) == 40 && strspn(revision, "0123456789abcdef") == 40;
}

/* The revision that was asked for; where that is a commit, main, if it was this commit when the hub was asked last. */
static void find_ref(sn_hub_repo *repo) {
    char folder[SN_PATH_SIZE], path[SN_PATH_SIZE];
    sn_buf text = {0};
    const char *ref = repo->name.revision;
    if (is_commit(ref)) {
        json_t *tree = NULL;
        if (!remembered_path(repo, "main", folder, path, NULL) && !read_remembered(path, &text, NULL))
            tree = json_loadb((const char *)text.data, text.len, 0, NULL);
        const char *commit = json_string_value(json_object_get(tree, "sha"));
        ref = commit && !strcmp(commit, repo->commit) ? "main" : "";
        json_decref(tree);
        sn_buf_fini(&text);
    }
    snprintf(repo->ref, sizeof repo->ref, "%s", ref);
    if (*ref && !remembered_path(repo, ref, folder, path, NULL)) repo->ref_ns = sn_hub_file_time_ns(path);
}

sn_status sn_hub_repo_open(const sn_hub_settings *settings, sn_http *http, const sn_model_name *name, sn_hub_repo *repo,
                           sn_err *err) {
    char url[SN_URL_SIZE], folder[SN_PATH_SIZE], remembered[SN_PATH_SIZE];
    sn_buf text = {0};
    *repo = (sn_hub_repo){.settings = settings, .name = *name};
    if (snprintf(url, sizeof url, "%s/api/models/%s/revision/%s?blobs=true", settings->http.endpoint, name->repo,
                 name->revision) >= (int)sizeof url)
        return sn_fail(err, SN_REFUSED, "the hub's address is too long");
    sn_status status = remembered_path(repo, name->revision, folder, remembered, err);
    if (status) return status;
    bool known = is_commit(name->revision) && !access(remembered, R_OK); /* a commit never changes */
    if (!known) status = sn_http_get(http, url, TREE_MAX, &text, err);
    bool fresh = !known && !status;
    if (known || (status == SN_RETRY && !access(remembered, R_OK))) status = read_remembered(remembered, &text, err);
    if (status == SN_REFUSED) sn_err_context(err, "model %s, revision %s", name->repo, name->revision);
    json_t *tree = status == SN_RETRY ? sn_hub_snapshot_describe(repo) : NULL;
    if (tree) status = SN_OK;
    if (!status && !tree) tree = json_loadb((const char *)text.data, text.len, JSON_REJECT_DUPLICATES, NULL);
    if (!status) status = read_tree(repo, tree, err);
    if (!status && snprintf(repo->folder, sizeof repo->folder, "%s/%s", folder, repo->commit) >= SN_PATH_SIZE)
        status = sn_fail(err, SN_REFUSED, "the path of the cache is too long");
    if (!status) status = sn_hub_make_folders(repo->folder, err);
    if (!status && fresh) status = sn_file_replace(remembered, text.data, text.len, err);
    if (!status && fresh) status = remembered_path(repo, repo->commit, folder, remembered, err);
    if (!status && fresh) status = sn_file_replace(remembered, text.data, text.len, err);
    sn_buf_fini(&text);
    if (!status) find_ref(repo);
    if (status) sn_hub_repo_close(repo);
    return status;
}

void sn_hub_repo_close(sn_hub_repo *repo) {
    json_decref(repo->files);
    repo->files = NULL;
}

bool sn_hub_repo_has(const sn_hub_repo *repo, const char *file, uint64_t *size, const char **etag) {
    const json_t *entry = json_object_get(repo->files, file);
    if (!entry) return false;
    const json_int_t said = json_integer_value(json_array_get(entry, 0));
    *size = said < 0 ? SN_SIZE_NOT_SAID : (uint64_t)said;
    *etag = json_string_value(json_array_get(entry, 1));
    return true;
}

static bool is_gguf(const char *name) {
    size_t len = strlen(name);
    return len > 5 && !strcmp(name + len - 5, ".gguf");
}

/* A name stands for a model unless it is a part of one and not the first. */
static bool is_gguf_model(const char *name) {
    int number;
    sn_gguf_parts_of(name, &number);
    return is_gguf(name) && number == 1;
}

/* The first part's name, of a model in parts; all of them must be there. */
static sn_status choose_parts(const sn_hub_repo *repo, char out[SN_HUB_FILE_SIZE], sn_err *err) {
    char name[SN_PATH_SIZE];
    const char *etag;
    uint64_t size;
    for (int n = sn_gguf_parts_of(out, NULL), i = n; i > 0; i--) {
        sn_status status = sn_gguf_part_path(out, i, name, err);
        if (status) return status;
        if (!sn_hub_repo_has(repo, name, &size, &etag))
            return sn_fail(err, SN_REFUSED, "%s lacks %.200s, part %d of %d of the model, at revision %s",
                           repo->name.repo, name, i, n, repo->name.revision);
    }
    memcpy(out, name, strlen(out)); /* of the same length */
    return SN_OK;
}

/* The bytes of a model, of all its parts; below 0: the hub does not say them. */
static json_int_t model_bytes(const sn_hub_repo *repo, const char *name) {
    char part[SN_PATH_SIZE];
    json_int_t sum = 0;
    for (int n = sn_gguf_parts_of(name, NULL), i = 1; i <= n; i++) {
        if (sn_gguf_part_path(name, i, part, NULL)) return -1;
        const json_int_t bytes = json_integer_value(json_array_get(json_object_get(repo->files, part), 0));
        if (bytes < 0) return -1;
        sum += bytes;
    }
    return sum;
}

/* The files with their sizes, and whether this machine's memory holds them as a whole. */
static sn_status list_models(const sn_hub_repo *repo, sn_err *err) {
    char text[512] = "", size[64], bytes_text[32];
    const char *name;
    json_t *entry;
    size_t used = 0, memory, available;
    int n = 0;
    sn_memory_read(&memory, &available);
    json_object_foreach(repo->files, name, entry) {
        const json_int_t bytes = model_bytes(repo, name);
        if (!is_gguf_model(name) || n++ >= LISTED || used >= sizeof text) continue;
        snprintf(size, sizeof size, " (%s%s)", sn_format_size(bytes < 0 ? 0 : (size_t)bytes, bytes_text),
                 (uint64_t)bytes < memory / 10 * 8 ? ", fits here" : "");
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%s%s", used ? ", " : "", name, bytes < 0 ? "" : size);
    }
    if (!n) return sn_fail(err, SN_REFUSED, "%s has neither safetensors nor a GGUF file", repo->name.repo);
    return sn_fail(err, SN_REFUSED, "%s has %d models, take one as %s:FILE: %s", repo->name.repo, n, repo->name.repo,
                   text);
}

sn_status sn_hub_repo_choose(const sn_hub_repo *repo, char out[SN_HUB_FILE_SIZE], sn_err *err) {
    const char *name, *etag;
    json_t *entry;
    uint64_t size;
    int n = 0;
    out[0] = 0;
    if (*repo->name.file) {
        snprintf(out, SN_HUB_FILE_SIZE, "%s", repo->name.file);
        if (!sn_hub_repo_has(repo, out, &size, &etag))
            return sn_fail(err, SN_REFUSED, "%s has no file %s at revision %s", repo->name.repo, out,
                           repo->name.revision);
        return is_gguf(out)
                   ? choose_parts(repo, out, err)
                   : sn_fail(err, SN_REFUSED, "%s is no GGUF file: give the repository alone for safetensors", out);
    }
    if (sn_hub_repo_has(repo, "config.json", &size, &etag) &&
        (sn_hub_repo_has(repo, "model.safetensors", &size, &etag) ||
         sn_hub_repo_has(repo, "model.safetensors.index.json", &size, &etag)))
        return SN_OK;
    json_object_foreach(repo->files, name, entry) if (is_gguf_model(name) && !n++)
        snprintf(out, SN_HUB_FILE_SIZE, "%s", name);
    return n == 1 ? choose_parts(repo, out, err) : list_models(repo, err);
}
