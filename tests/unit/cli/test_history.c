/* The file of the lines that were entered: what it holds, how much, and who can read it. */
#include "cli/terminal/history.h"

#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *folder, path[SN_PATH_SIZE];
static char entries[4][64];
static size_t n_entries;

static void begin(void) {
    folder = temp_folder();
    setenv("XDG_STATE_HOME", folder, 1);
    cr_assert(sn_history_path(path));
}

static void end(void) {
    remove_tree(folder);
    free(folder);
}

static void keep(void *ctx, const char *text) {
    (void)ctx;
    if (n_entries < 4) snprintf(entries[n_entries], sizeof *entries, "%s", text);
    n_entries++;
}

static mode_t mode_of(const char *name) {
    struct stat info = {0};
    stat(name, &info);
    return info.st_mode & 0777;
}

Test(history, entries_come_back_in_order_with_their_lines, .init = begin, .fini = end) {
    cr_expect(!sn_history_read(path, keep, NULL), "there is none yet");
    cr_expect(sn_history_append(path, "first"));
    cr_expect(sn_history_append(path, "two\nlines \\n with \\ and \xc3\xa4"));
    cr_expect(sn_history_read(path, keep, NULL));
    cr_expect_eq(n_entries, 2);
    cr_expect_str_eq(entries[0], "first");
    cr_expect_str_eq(entries[1], "two\nlines \\n with \\ and \xc3\xa4");
}

Test(history, only_its_owner_can_read_it, .init = begin, .fini = end) {
    umask(0);
    cr_expect(sn_history_append(path, "private"));
    cr_expect_eq(mode_of(path), 0600, "%o", mode_of(path));
    chmod(path, 0644);
    cr_expect(sn_history_read(path, keep, NULL));
    cr_expect_eq(mode_of(path), 0600, "a file that others could read stays so: %o", mode_of(path));
    *strrchr(path, '/') = 0;
    cr_expect_eq(mode_of(path), 0700);
    path[strlen(path)] = '/';
}

static void remember_last(void *ctx, const char *text) {
    snprintf(ctx, 64, "%s", text);
    n_entries++;
}

Test(history, it_is_bounded_and_keeps_the_newest, .init = begin, .fini = end) {
    char text[32], last[64] = "";
    int all = 2 * SN_HISTORY_ENTRIES + 1;
    for (int i = 1; i <= all; i++) {
        snprintf(text, sizeof text, "entry %d", i);
        cr_assert(sn_history_append(path, text));
    }
    cr_expect(sn_history_read(path, keep, NULL));
    cr_expect_eq(n_entries, SN_HISTORY_ENTRIES);
    cr_expect_str_eq(entries[0], "entry 1002");
    struct stat info;
    cr_assert_eq(stat(path, &info), 0);
    cr_expect_lt(info.st_size, (off_t)SN_HISTORY_ENTRIES * 12, "the file has %lld bytes", (long long)info.st_size);
    cr_expect_eq(mode_of(path), 0600);
    n_entries = 0;
    cr_expect(sn_history_read(path, remember_last, last));
    cr_expect_eq(n_entries, SN_HISTORY_ENTRIES);
    cr_expect_str_eq(last, "entry 2001");
    char *long_text = calloc(1, SN_HISTORY_ENTRY_BYTES + 2);
    memset(long_text, 'x', SN_HISTORY_ENTRY_BYTES + 1);
    cr_expect(!sn_history_append(path, long_text), "a text that is too long is kept");
    free(long_text);
}

Test(history, a_damaged_file_or_none_is_no_failure, .init = begin, .fini = end) {
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    cr_assert_eq(write(fd, "one\n\n\\\na\0b\ncut", 14), 14);
    close(fd);
    cr_expect(sn_history_read(path, keep, NULL));
    cr_expect_eq(n_entries, 3);
    cr_expect_str_eq(entries[1], "\\");
    cr_expect(!sn_history_read("/nowhere/history", keep, NULL));
    cr_expect(!sn_history_append("/nowhere/history", "x"));
    setenv("XDG_STATE_HOME", "/proc/none", 1);
    char none[SN_PATH_SIZE];
    cr_expect(!sn_history_path(none));
}
