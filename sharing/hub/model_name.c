#include "sharing/hub/model_name.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_url(const char *text) { return !strncmp(text, "https://", 8) || !strncmp(text, "http://", 7); }

static bool is_plain(const char *text, size_t len, const char *others) {
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr(others, text[i])) return false;
    return len > 0;
}

bool sn_hub_path_is_safe(const char *path) {
    if (!is_plain(path, strlen(path), "._-+/ ")) return false;
    for (const char *part = path; part; part = strchr(part, '/')) {
        if (part != path) part++;
        size_t len = strcspn(part, "/");
        if (!len || *part == '.') return false; /* hidden files, "." and ".." */
    }
    return true;
}

/* "ORG/NAME": one slash between two names. */
static size_t repo_length(const char *text) {
    size_t org = strcspn(text, "/:@");
    if (text[org] != '/') return 0;
    size_t name = strcspn(text + org + 1, "/:@"), len = org + 1 + name;
    bool plain = is_plain(text, org, "._-") && is_plain(text + org + 1, name, "._-");
    return plain && *text != '.' && text[org + 1] != '.' && text[len] != '/' && len < SN_HUB_REPO_SIZE ? len : 0;
}

bool sn_model_name_is_remote(const char *text) {
    return is_url(text) || (access(text, F_OK) && repo_length(text) && !strstr(text, ".gguf/"));
}

static sn_status parse_url(const char *text, sn_model_name *out, sn_err *err) {
    size_t len = strlen(text);
    const char *host = strstr(text, "://") + 3;
    if (len >= sizeof out->url)
        return sn_fail(err, SN_REFUSED, "the URL is longer than %zu bytes", sizeof out->url - 1);
    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return sn_fail(err, SN_REFUSED, "the URL holds a byte that must be escaped");
    if (strcspn(host, "@") < strcspn(host, "/"))
        return sn_fail(err, SN_REFUSED, "a URL with a user's name is not taken: use a token (HF_TOKEN)");
    snprintf(out->url, sizeof out->url, "%s", text);
    return SN_OK;
}

sn_status sn_model_name_parse(const char *text, sn_model_name *out, sn_err *err) {
    *out = (sn_model_name){.revision = "main"};
    if (is_url(text)) return parse_url(text, out, err);
    size_t repo = repo_length(text);
    const char *file = text[repo] == ':' ? text + repo + 1 : "";
    const char *at = strrchr(text, '@');
    size_t file_len = at && at > file ? (size_t)(at - file) : strlen(file);
    if (!*file) file_len = 0;
    if (!repo)
        return sn_fail(err, SN_REFUSED,
                       "'%.200s' is no file, folder or name of a model: write ORG/NAME[:FILE][@REVISION]", text);
    if (file_len >= sizeof out->file)
        return sn_fail(err, SN_REFUSED, "the name of the file in '%.200s' is too long", text);
    snprintf(out->repo, sizeof out->repo, "%.*s", (int)repo, text);
    snprintf(out->file, sizeof out->file, "%.*s", (int)file_len, file);
    if (text[repo] == ':' && !sn_hub_path_is_safe(out->file))
        return sn_fail(err, SN_REFUSED, "'%s' is no path of a file in a repository", out->file);
    if (!at) return SN_OK;
    size_t len = strlen(at + 1);
    if (len >= sizeof out->revision || !is_plain(at + 1, len, "._-/") || strstr(at, ".."))
        return sn_fail(err, SN_REFUSED, "'%.200s' is no revision: give a branch, a tag or a commit", at + 1);
    snprintf(out->revision, sizeof out->revision, "%s", at + 1);
    return SN_OK;
}
