#include "cli/terminal/history.h"

#include "base/mem.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file is read up to FILE_MAX; one that holds this many entries more than its bound is written anew. */
enum { FILE_MAX = 64 << 20, SLACK = SN_HISTORY_ENTRIES };

static bool make_folder(const char *path, mode_t mode) { return !mkdir(path, mode) || errno == EEXIST; }

bool sn_history_path(char out[SN_PATH_SIZE]) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char folder[SN_PATH_SIZE / 2];
    int n;
    if (state && *state == '/') {
        n = snprintf(folder, sizeof folder, "%s", state);
    } else {
        if (!home || *home != '/') return false;
        n = snprintf(folder, sizeof folder, "%s/.local", home);
        if (n < 0 || n >= (int)sizeof folder || !make_folder(folder, 0755)) return false;
        n = snprintf(folder, sizeof folder, "%s/.local/state", home);
    }
    if (n < 0 || n >= (int)sizeof folder || !make_folder(folder, 0700)) return false;
    snprintf(out, SN_PATH_SIZE, "%s/swarm", folder);
    if (!make_folder(out, 0700)) return false;
    snprintf(out, SN_PATH_SIZE, "%s/swarm/history", folder);
    return true;
}

/* Undoes what sn_history_append did to the text, in place. */
static void unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (*from == '\\' && from[1])
            *to++ = *++from == 'n' ? '\n' : *from;
        else
            *to++ = *from;
    }
    *to = 0;
}

/* Writes the last entries to a new file in place of the old one. What another process appends meanwhile is lost. */
static void shorten(const char *path, const char *text, size_t n) {
    char fresh[SN_PATH_SIZE];
    if (snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid()) >= (int)sizeof fresh) return;
    int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    bool written = !sn_file_write_at(fd, text, n, 0);
    close(fd);
    if (!written || rename(fresh, path)) unlink(fresh);
}

bool sn_history_read(const char *path, void (*entry)(void *ctx, const char *text), void *ctx) {
    sn_buf file;
    struct stat info;
    if (stat(path, &info) || !S_ISREG(info.st_mode) || sn_read_file(path, FILE_MAX, &file, NULL)) return false;
    if (info.st_mode & 077) chmod(path, 0600);
    char *text = (char *)file.data, *end = text + file.len;
    size_t entries = 0, skip;
    for (char *at = text; at < end; at++) entries += *at == '\n';
    skip = entries > SN_HISTORY_ENTRIES ? entries - SN_HISTORY_ENTRIES : 0;
    char *line = text;
    for (; skip; skip--) line = (char *)memchr(line, '\n', (size_t)(end - line)) + 1;
    if (entries > SN_HISTORY_ENTRIES + SLACK) shorten(path, line, (size_t)(end - line));
    while (line < end) {
        char *line_end = memchr(line, '\n', (size_t)(end - line));
        if (!line_end) break; /* a line that was not written whole */
        *line_end = 0;
        unescape(line);
        if (*line) entry(ctx, line);
        line = line_end + 1;
    }
    sn_buf_fini(&file);
    return true;
}

bool sn_history_append(const char *path, const char *text) {
    size_t n = strlen(text), used = 0;
    char *line = n && n <= SN_HISTORY_ENTRY_BYTES ? malloc(2 * n + 1) : NULL;
    if (!line) return false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n' || text[i] == '\\') line[used++] = '\\';
        line[used++] = text[i] == '\n' ? 'n' : text[i];
    }
    line[used++] = '\n';
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    bool written = fd >= 0 && write(fd, line, used) == (ssize_t)used;
    if (fd >= 0) close(fd);
    free(line);
    return written;
}
