#include "cli/io.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IDS_FILE_MAX = 1 << 28, IDS_MAX = 1 << 24 };

/* A pipe has no size to look at first: <(command) of a shell is one. */
static bool is_stream(const char *path) {
    struct stat st;
    return !stat(path, &st) && (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode) || S_ISSOCK(st.st_mode));
}

sn_status sn_read_input(const char *path, size_t limit, sn_buf *out, sn_err *err) {
    if (!strcmp(path, "-")) return sn_read_stream(STDIN_FILENO, "standard input", limit, &sn_interrupt, out, err);
    if (!is_stream(path)) return sn_read_file(path, limit, out, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    sn_status status = sn_read_stream(fd, path, limit, &sn_interrupt, out, err);
    close(fd);
    return status;
}

/* -- results: tried before the work, and replaced only with --force -- */

static bool force;
static const sn_option force_options[] = {
    SN_OPT_FLAG("force", &force, "replace results of an earlier run"),
};
const sn_option_group sn_group_force = SN_OPTION_GROUP("Results:", force_options);

sn_status sn_check_output(const char *option, const char *path, sn_err *err) {
    struct stat st;
    sn_new_file trial;
    bool exists = !stat(path, &st);
    if (exists && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return SN_OK;
    if (exists && S_ISDIR(st.st_mode)) return sn_fail(err, SN_REFUSED, "%s: %s is a folder", option, path);
    if (exists && !force)
        return sn_fail(err, SN_REFUSED, "%s: %s exists already: give another name, or --force to replace it", option,
                       path);
    sn_status status = sn_new_file_create(path, &trial, err);
    sn_new_file_discard(&trial);
    return status ? sn_err_context(err, "%s", option) : SN_OK;
}

/* Whether it holds more than "." and ".."; false where it cannot be read. */
static bool folder_has_files(const char *path) {
    DIR *folder = opendir(path);
    int n = 0;
    while (folder && n < 3 && readdir(folder)) n++;
    if (folder) closedir(folder);
    return n > 2;
}

sn_status sn_check_output_folder(const char *option, const char *path, const char *advice, sn_err *err) {
    char file[SN_PATH_SIZE];
    sn_new_file trial;
    if (mkdir(path, 0777) && errno != EEXIST)
        return sn_fail(err, SN_REFUSED, "%s %s cannot be made: %s", option, path, strerror(errno));
    if (!force && folder_has_files(path))
        return sn_fail(err, SN_REFUSED, "%s: the folder %s is not empty: %s", option, path, advice);
    sn_status status = sn_path_join(file, path, "trial", err);
    if (status) return status;
    status = sn_new_file_create(file, &trial, err);
    sn_new_file_discard(&trial);
    return status ? sn_err_context(err, "%s", option) : SN_OK;
}

static sn_status ids_from_json(const json_t *array, const char *path, sn_token_ids *out, sn_err *err) {
    size_t n = json_array_size(array);
    if (!json_is_array(array)) return sn_fail(err, SN_REFUSED, "%s holds no JSON array of token ids", path);
    if (n > IDS_MAX) return sn_fail(err, SN_REFUSED, "%s has %zu token ids; the limit is %d", path, n, (int)IDS_MAX);
    sn_status status = sn_calloc(&out->ids, n, sizeof *out->ids, err);
    for (size_t i = 0; i < n && !status; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX)
            status = sn_fail(err, SN_REFUSED, "%s: element %zu is no token id, a whole number from 0", path, i);
        out->ids[i] = (int32_t)id;
    }
    out->n = n;
    if (status) sn_token_ids_fini(out);
    return status;
}

sn_status sn_read_ids(const char *path, sn_token_ids *out, sn_err *err) {
    sn_buf file;
    *out = (sn_token_ids){0};
    sn_status status = sn_read_input(path, IDS_FILE_MAX, &file, err);
    if (status) return status;
    json_error_t where;
    json_t *array = json_loadb((const char *)file.data, file.len, JSON_DECODE_ANY, &where);
    if (array)
        status = ids_from_json(array, path, out, err);
    else
        status = sn_fail(err, SN_REFUSED, "%s:%d holds no JSON: %s", path, where.line, where.text);
    json_decref(array);
    sn_buf_fini(&file);
    return status;
}

json_t *sn_json_ids(const int32_t *ids, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(array, json_integer(ids[i]));
    return array;
}

json_t *sn_json_text(const sn_buf *text) { return json_stringn(text->data ? (const char *)text->data : "", text->len); }

bool sn_stdout_closed;

/* ferror says that an earlier write failed, and errno may be another call's by then: the first failure is kept. */
sn_status sn_flush_stdout(sn_err *err) {
    static int first;
    bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (failed && !first) first = errno;
    if (!failed) return SN_OK;
    sn_stdout_closed = first == EPIPE;
    return sn_fail(err, SN_STOP, "standard output cannot be written: %s", strerror(first));
}

sn_status sn_print_json(json_t *object, sn_err *err) {
    size_t ascii = isatty(STDOUT_FILENO) ? JSON_ENSURE_ASCII : 0; /* nothing that a terminal would act on */
    int failed = object ? json_dumpf(object, stdout, JSON_REAL_PRECISION(12) | ascii) : -1;
    json_decref(object);
    if (failed && !ferror(stdout)) return sn_fail(err, SN_STOP, "out of memory for the JSON output");
    putchar('\n');
    return sn_flush_stdout(err);
}

sn_cancel sn_interrupt;

static struct {
    swarm_cancel *cancel;
    int presses;
    void (*restore)(void);
} at_interrupt;

static void on_interrupt(int number) {
    sn_interrupted++;
    if (at_interrupt.cancel) swarm_cancel_set(at_interrupt.cancel);
    if (sn_interrupted < at_interrupt.presses) return;
    if (at_interrupt.restore) at_interrupt.restore();
    signal(number, SIG_DFL);
    raise(number);
}

void sn_catch_interrupts_with(swarm_cancel *cancel, int presses, void (*restore)(void)) {
    struct sigaction action = {.sa_handler = on_interrupt}; /* no SA_RESTART: a blocking read returns */
    at_interrupt.cancel = cancel;
    at_interrupt.presses = presses;
    at_interrupt.restore = restore;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void sn_catch_interrupts(void) { sn_catch_interrupts_with(NULL, 2, NULL); }

void sn_release_interrupts(void) {
    signal(SIGINT, SIG_DFL);
    at_interrupt.cancel = NULL;
}
