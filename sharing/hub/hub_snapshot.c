/* The cache of Hugging Face's tools: blobs/ETAG has the bytes, snapshots/COMMIT/FILE is a link to them, refs/BRANCH
 * says which commit a branch is. Only whole files are there, so a file comes in by a rename, and our own path becomes a
 * link to it. Where the two caches lie in different file systems, whole files stay in ours. */
#include "sharing/hub/hub_private.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHA1_DIGITS = 40, SHA256_DIGITS = 64, CHUNK = 1 << 20 };

sn_status sn_hub_snapshot_of(const sn_hub_repo *repo, sn_hub_snapshot *out, sn_err *err) {
    const char *root = repo->settings->hf_cache, *slash = strchr(repo->name.repo, '/');
    char here[SN_PATH_SIZE] = "";
    *out = (sn_hub_snapshot){0};
    snprintf(out->commit, sizeof out->commit, "%s", repo->commit);
    if (!*root) return SN_OK;
    if (*root != '/' && !getcwd(here, sizeof here)) /* links lead to the folder from elsewhere */
        return sn_fail(err, SN_REFUSED, "the folder of this process cannot be found: %s", strerror(errno));
    if (snprintf(out->folder, sizeof out->folder, "%s%s%s/models--%.*s--%s", here, *here ? "/" : "", root,
                 (int)(slash - repo->name.repo), repo->name.repo, slash + 1) >= (int)sizeof out->folder)
        return sn_fail(err, SN_REFUSED, "the path of the cache is too long");
    snprintf(out->ref, sizeof out->ref, "%s", repo->ref);
    out->ref_ns = repo->ref_ns;
    return SN_OK;
}

/* The commit of the repository's revision, by the refs. */
static bool find_commit(const sn_hub_repo *repo, const char *folder, char out[SN_HTTP_COMMIT_SIZE]) {
    char path[SN_PATH_SIZE];
    sn_buf text = {0};
    snprintf(out, SN_HTTP_COMMIT_SIZE, "%.*s", SN_HTTP_COMMIT_SIZE - 1, repo->name.revision);
    if (snprintf(path, sizeof path, "%s/refs/%s", folder, repo->name.revision) < (int)sizeof path &&
        !sn_read_file(path, SN_HTTP_COMMIT_SIZE - 1, &text, NULL))
        snprintf(out, SN_HTTP_COMMIT_SIZE, "%.*s", (int)text.len, (const char *)text.data);
    sn_buf_fini(&text);
    return strlen(out) == SHA1_DIGITS && strspn(out, "0123456789abcdef") == SHA1_DIGITS;
}

/* Name, size and version of a file in a snapshot, as a hub says them. */
static json_t *describe_file(const char *folder, const char *name) {
    char path[SN_PATH_SIZE], blob[SN_PATH_SIZE] = "";
    struct stat st;
    if (sn_path_join(path, folder, name, NULL) || stat(path, &st) || !S_ISREG(st.st_mode)) return NULL;
    ssize_t len = readlink(path, blob, sizeof blob - 1);
    const char *slash = len > 0 ? strrchr(blob, '/') : NULL;
    return json_pack("{ss sI ss}", "rfilename", name, "size", (json_int_t)st.st_size, "blobId", slash ? slash + 1 : "");
}

json_t *sn_hub_snapshot_describe(const sn_hub_repo *repo) {
    sn_hub_snapshot s;
    char folder[SN_PATH_SIZE];
    if (sn_hub_snapshot_of(repo, &s, NULL) || !*s.folder || !find_commit(repo, s.folder, s.commit) ||
        snprintf(folder, sizeof folder, "%s/snapshots/%s", s.folder, s.commit) >= (int)sizeof folder)
        return NULL;
    json_t *files = json_array();
    DIR *listed = opendir(folder);
    for (const struct dirent *entry; listed && (entry = readdir(listed));) {
        json_t *file = describe_file(folder, entry->d_name);
        if (file) json_array_append_new(files, file);
    }
    if (listed) closedir(listed);
    json_t *deeper = strchr(repo->name.file, '/') ? describe_file(folder, repo->name.file) : NULL;
    if (deeper) json_array_append_new(files, deeper);
    if (json_array_size(files)) return json_pack("{ss so}", "sha", s.commit, "siblings", files);
    json_decref(files);
    return NULL;
}

static sn_status snapshot_path(const sn_hub_part *part, char out[SN_PATH_SIZE], sn_err *err) {
    const sn_hub_snapshot *s = part->snapshot;
    if (snprintf(out, SN_PATH_SIZE, "%s/snapshots/%s/%s", s->folder, s->commit, part->name) >= SN_PATH_SIZE)
        return sn_fail(err, SN_REFUSED, "the path of the cache is too long");
    return SN_OK;
}

sn_status sn_hub_snapshot_take(const sn_hub_part *part, sn_partial_file *file, sn_err *err) {
    char path[SN_PATH_SIZE];
    struct stat st;
    if (!part->snapshot || !*part->snapshot->folder || sn_partial_file_is_whole(file)) return SN_OK;
    sn_status status = snapshot_path(part, path, err);
    if (status || stat(path, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != part->size) return status;
    return sn_partial_file_link(file, path, err);
}

/* The name that git or its large files give to these bytes, in hexadecimal digits. */
static sn_status hash_file(const sn_partial_file *file, size_t digits, char out[SHA256_DIGITS + 1], sn_err *err) {
    uint8_t digest[EVP_MAX_MD_SIZE], *bytes = malloc(CHUNK);
    char header[64];
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    int n = snprintf(header, sizeof header, "blob %llu", (unsigned long long)file->size) + 1, error = 0;
    bool right = bytes && hash && EVP_DigestInit_ex(hash, digits == SHA1_DIGITS ? EVP_sha1() : EVP_sha256(), NULL);
    if (right && digits == SHA1_DIGITS) right = EVP_DigestUpdate(hash, header, (size_t)n);
    for (uint64_t at = 0; right && !error && at < file->size; at += CHUNK) {
        size_t part = file->size - at < CHUNK ? (size_t)(file->size - at) : CHUNK;
        error = sn_file_read_at(file->fd, bytes, part, at);
        right = error || EVP_DigestUpdate(hash, bytes, part);
    }
    right = right && EVP_DigestFinal_ex(hash, digest, NULL);
    for (size_t i = 0; right && i < digits / 2; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
    EVP_MD_CTX_free(hash);
    free(bytes);
    if (error) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", file->path, strerror(error));
    return right ? SN_OK : sn_fail(err, SN_STOP, "out of memory for a hash");
}

/* The digits of the SHA by which the hub names the file; 0: it has none. */
static size_t sha_digits(const sn_hub_part *part) {
    size_t digits = part->snapshot ? strlen(part->etag) : 0;
    return digits == SHA1_DIGITS || digits == SHA256_DIGITS ? digits : 0;
}

sn_status sn_hub_snapshot_check(const sn_hub_part *part, sn_partial_file *file, sn_err *err) {
    char said[SHA256_DIGITS + 1];
    size_t digits = sha_digits(part);
    sn_status status = digits ? hash_file(file, digits, said, err) : SN_OK;
    if (status || !digits || !strcmp(said, part->etag)) return status;
    file->present.n = 0;
    return sn_fail(err, SN_REFUSED,
                   "%.300s is not the file that the hub names by its SHA: it was dropped, fetch it again", part->url);
}

/* "../../blobs/ETAG" as a link at `path`, in the place of what is there and was not taken; one more "../" for each
 * folder in the file's name. */
static sn_status link_blob(const sn_hub_part *part, const char *path, sn_err *err) {
    char target[SN_PATH_SIZE] = "../../";
    size_t used = strlen(target);
    for (const char *c = part->name; *c; c++)
        if (*c == '/' && used < sizeof target) used += (size_t)snprintf(target + used, sizeof target - used, "../");
    if (used < sizeof target) used += (size_t)snprintf(target + used, sizeof target - used, "blobs/%s", part->etag);
    if (used >= sizeof target) return sn_fail(err, SN_REFUSED, "the path of the cache is too long");
    if (symlink(target, path) && (errno != EEXIST || unlink(path) || symlink(target, path)))
        return sn_fail(err, SN_REFUSED, "%s cannot be made: %s", path, strerror(errno));
    return SN_OK;
}

int64_t sn_hub_file_time_ns(const char *path) {
    struct stat st;
    return stat(path, &st) ? 0 : (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}

/* What other tools have written since the hub was asked stays. */
static sn_status write_ref(const sn_hub_snapshot *s, sn_err *err) {
    char path[SN_PATH_SIZE], folder[SN_PATH_SIZE];
    if (!*s->ref) return SN_OK;
    if (snprintf(path, sizeof path, "%s/refs/%s", s->folder, s->ref) >= (int)sizeof path)
        return sn_fail(err, SN_REFUSED, "the path of the cache is too long");
    if (sn_hub_file_time_ns(path) > s->ref_ns) return SN_OK;
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    sn_status status = sn_hub_make_folders(folder, err);
    return status ? status : sn_file_replace(path, s->commit, strlen(s->commit), err);
}

sn_status sn_hub_snapshot_give(const sn_hub_part *part, sn_partial_file *file, sn_err *err) {
    char path[SN_PATH_SIZE], folder[SN_PATH_SIZE], blob[SN_PATH_SIZE];
    if (!sha_digits(part) || !*part->snapshot->folder) return SN_OK;
    sn_status status = snapshot_path(part, path, err);
    if (!status && snprintf(blob, sizeof blob, "%s/blobs/%s", part->snapshot->folder, part->etag) >= (int)sizeof blob)
        status = sn_fail(err, SN_REFUSED, "the path of the cache is too long");
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    if (!status) status = sn_hub_make_folders(folder, err);
    snprintf(folder, sizeof folder, "%s", blob);
    *strrchr(folder, '/') = 0;
    if (!status) status = sn_hub_make_folders(folder, err);
    if (status) return status;
    if (rename(file->path, blob))
        return errno == EXDEV
                   ? SN_OK
                   : sn_fail(err, SN_REFUSED, "%s cannot be moved to %s: %s", file->path, blob, strerror(errno));
    status = link_blob(part, path, err);
    if (!status) status = write_ref(part->snapshot, err);
    return status ? status : sn_partial_file_link(file, blob, err);
}
