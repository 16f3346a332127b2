#include "cli/serve_name.h"

#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMMIT_DIGITS = 40 };

/* Takes the last part of a path off it, which ends at `*len` then; returns its bytes. "": there is none. */
static const char *take_part(const char *path, size_t *len, int *n) {
    while (*len && path[*len - 1] == '/') --*len;
    const size_t end = *len;
    while (*len && path[*len - 1] != '/') --*len;
    *n = (int)(end - *len);
    return path + *len;
}

static bool is_commit(const char *part, int n) {
    return n == COMMIT_DIGITS && strspn(part, "0123456789abcdef") >= COMMIT_DIGITS;
}

/* "[models--]ORG--NAME" -> "ORG/NAME"; false: it is no such folder. */
static bool repository_name(const char *part, int n, char out[SN_SERVE_NAME_SIZE]) {
    static const char kind[] = "models--";
    const int skip = !strncmp(part, kind, strlen(kind)) ? (int)strlen(kind) : 0;
    snprintf(out, SN_SERVE_NAME_SIZE, "%.*s", n - skip, part + skip);
    char *between = strstr(out, "--");
    if (!between || between == out || !between[2]) return false;
    *between = '/';
    memmove(between + 1, between + 2, strlen(between + 2) + 1);
    return true;
}

static bool cached_name(const char *path, size_t len, char out[SN_SERVE_NAME_SIZE]) {
    static const char snapshots[] = "snapshots";
    int n;
    const char *part = take_part(path, &len, &n);
    if (n == (int)strlen(snapshots) && !memcmp(part, snapshots, strlen(snapshots))) part = take_part(path, &len, &n);
    return repository_name(part, n, out);
}

static void drop_endings(char *name) {
    static const char suffix[] = ".gguf";
#define FIVE "[0-9][0-9][0-9][0-9][0-9]"
    static const char part[] = "-" FIVE "-of-" FIVE;
    enum { PART_BYTES = 15 };
    size_t len = strlen(name);
    if (len > strlen(suffix) && !strcmp(name + len - strlen(suffix), suffix)) name[len -= strlen(suffix)] = 0;
    if (len > PART_BYTES && !fnmatch(part, name + len - PART_BYTES, 0)) name[len - PART_BYTES] = 0;
}

const char *sn_serve_name(const char *path, char out[SN_SERVE_NAME_SIZE]) {
    char *whole = NULL;
    size_t len = strlen(path);
    int n;
    const char *part = take_part(path, &len, &n);
    const bool dots = n && strspn(part, ".") >= (size_t)n; /* "." and "..", which name nothing */
    if ((dots || is_commit(part, n)) && (whole = realpath(path, NULL))) {
        len = strlen(whole);
        part = take_part(whole, &len, &n);
        path = whole;
    }
    if (!is_commit(part, n) || !cached_name(path, len, out)) {
        snprintf(out, SN_SERVE_NAME_SIZE, "%.*s", n, part);
        drop_endings(out);
    }
    free(whole);
    return out;
}
