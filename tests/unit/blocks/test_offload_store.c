#include "blocks/offload_store.h"
#include "base/log.h"
#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 5000, HEADER = 4096, PART = 700 };

static sn_err err;
static char *folder;
static sn_offload_store *store;
static uint8_t image[BYTES], back[BYTES];
static sn_hash key;

static void set_up(void) {
    folder = temp_folder();
    sn_log_setup(SN_LOG_ERROR, false);
    for (int i = 0; i < BYTES; i++) image[i] = (uint8_t)(i * 7 + i / 251);
    key = sn_hash_of("block 3", 7);
    cr_assert_eq(sn_offload_store_open(folder, &store, &err), SN_OK, "%s", err.text);
}
static void tear_down(void) {
    sn_offload_store_close(&store);
    sn_offload_store_close(&store);
    temp_folder_remove(&folder);
}
TestSuite(offload_store, .init = set_up, .fini = tear_down);

static void reopen_store(void) {
    sn_offload_store_close(&store);
    cr_assert_eq(sn_offload_store_open(folder, &store, &err), SN_OK, "%s", err.text);
}

static int count_files(void) {
    int n = 0;
    DIR *dir = opendir(folder);
    cr_assert(dir);
    for (struct dirent *entry; (entry = readdir(dir));) n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

static char *path_of(const sn_hash *k) {
    char hex[2 * SN_HASH_SIZE + 1], name[100];
    sn_hex(k->bytes, SN_HASH_SIZE, hex);
    snprintf(name, sizeof name, "%s.block", hex);
    return temp_path(folder, name);
}

static void put_image(void) {
    cr_assert_eq(sn_offload_store_put(store, &key, image, BYTES, &err), SN_OK, "%s", err.text);
}
static void expect_image(void) {
    memset(back, 0, BYTES);
    cr_assert_eq(sn_offload_store_get(store, &key, back, BYTES, &err), SN_OK, "%s", err.text);
    cr_assert_arr_eq(back, image, BYTES);
}

Test(offload_store, returns_stored_blocks_in_this_run_and_the_next) {
    cr_assert(!sn_offload_store_has(store, &key, BYTES, PART));
    cr_assert_eq(sn_offload_store_get(store, &key, back, BYTES, &err), SN_STOP);
    put_image();
    expect_image();
    expect_image();
    reopen_store();
    cr_assert_eq(sn_offload_store_get(store, &key, back, BYTES, &err), SN_STOP,
                 "a file that was not verified in this run is read");
    cr_assert(strstr(err.text, "in this run"));
    cr_assert(sn_offload_store_has(store, &key, BYTES, PART));
    expect_image();
    cr_assert_eq(count_files(), 1);
}

Test(offload_store, keeps_blocks_apart_by_key_and_takes_any_size) {
    sn_hash other = sn_hash_of("block 4", 7), none = sn_hash_of("block 5", 7);
    put_image();
    cr_assert_eq(sn_offload_store_put(store, &other, image + 1, BYTES - 1, &err), SN_OK);
    cr_assert_eq(sn_offload_store_put(store, &none, NULL, 0, &err), SN_OK);
    expect_image();
    cr_assert_eq(sn_offload_store_get(store, &other, back, BYTES - 1, &err), SN_OK);
    cr_assert_arr_eq(back, image + 1, BYTES - 1);
    cr_assert_eq(sn_offload_store_get(store, &other, back, BYTES, &err), SN_STOP, "a block of another size is read");
    cr_assert_eq(sn_offload_store_get(store, &none, NULL, 0, &err), SN_OK);
    enum { LARGE = (3 << 20) + 17 }; /* more than is hashed at once */
    uint8_t *large = calloc(LARGE, 1);
    large[LARGE - 1] = 9;
    cr_assert_eq(sn_offload_store_put(store, &key, large, LARGE, &err), SN_OK);
    cr_assert(sn_offload_store_has(store, &key, LARGE, PART));
    large[LARGE - 1] = 0;
    cr_assert_eq(sn_offload_store_get(store, &key, large, LARGE, &err), SN_OK);
    cr_assert_eq(large[LARGE - 1], 9);
    free(large);
    cr_assert_eq(count_files(), 3);
}

Test(offload_store, many_blocks_are_kept) {
    for (int i = 0; i < 100; i++) {
        sn_hash k = sn_hash_of(&i, sizeof i);
        cr_assert_eq(sn_offload_store_put(store, &k, &i, sizeof i, &err), SN_OK);
    }
    reopen_store();
    for (int i = 0, got; i < 100; i++) {
        sn_hash k = sn_hash_of(&i, sizeof i);
        cr_assert(sn_offload_store_has(store, &k, sizeof i, PART) && sn_offload_store_has(store, &k, sizeof i, PART));
        cr_assert_eq(sn_offload_store_get(store, &k, &got, sizeof got, &err), SN_OK);
        cr_assert_eq(got, i);
    }
}

Test(offload_store, a_stale_file_is_removed_and_rebuilt) {
    put_image();
    reopen_store();
    cr_assert(!sn_offload_store_has(store, &key, BYTES - 1, PART), "a file of another layout size is found");
    cr_assert_eq(count_files(), 0);
    put_image();
    char *old = path_of(&key);
    sn_hash other = sn_hash_of("block 4", 7);
    char *wrong = path_of(&other);
    cr_assert_eq(rename(old, wrong), 0);
    cr_assert(!sn_offload_store_has(store, &other, BYTES, PART), "the file of another block is found");
    cr_assert_eq(count_files(), 0);
    cr_assert_eq(symlink("/etc/passwd", old), 0);
    cr_assert(!sn_offload_store_has(store, &key, BYTES, PART));
    cr_assert_eq(count_files(), 0);
    cr_assert_eq(mkfifo(old, 0600), 0); /* opening it must not block either */
    cr_assert(!sn_offload_store_has(store, &key, BYTES, PART));
    cr_assert_eq(count_files(), 0);
    put_image();
    expect_image();
    free(old);
    free(wrong);
}

Test(offload_store, a_file_cut_short_anywhere_is_refused) {
    static const off_t lengths[] = {
        0, 1, 7, 8, 16, 24, 56, HEADER - 1, HEADER, HEADER + 1, 1000, HEADER + BYTES - 1, HEADER + BYTES + 1};
    char *path = path_of(&key);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        put_image();
        cr_assert_eq(truncate(path, lengths[i]), 0);
        cr_assert(!sn_offload_store_has(store, &key, BYTES, PART), "%d", (int)lengths[i]);
        cr_assert_eq(count_files(), 0);
    }
    free(path);
}

static void flip_bit(const char *path, long at, int bit) {
    FILE *f = fopen(path, "r+b");
    cr_assert(f && !fseek(f, at, SEEK_SET));
    int c = fgetc(f);
    cr_assert(c >= 0 && !fseek(f, at, SEEK_SET));
    fputc(c ^ 1 << bit, f);
    cr_assert_eq(fclose(f), 0);
}

Test(offload_store, one_flipped_bit_anywhere_is_detected) {
    char *path = path_of(&key);
    for (long at = 0; at < HEADER + BYTES; at += at < 96 ? 1 : 391) {
        put_image();
        flip_bit(path, at, (int)(at % 8));
        cr_assert(!sn_offload_store_has(store, &key, BYTES, PART), "%ld", at);
        cr_assert_eq(count_files(), 0);
    }
    put_image();
    flip_bit(path, HEADER + BYTES - 1, 0);
    cr_assert_eq(sn_offload_store_get(store, &key, back, BYTES, &err), SN_STOP, "damage after the put is not detected");
    cr_assert(strstr(err.text, "was changed") && strstr(err.text, folder), "%s", err.text);
    put_image();
    expect_image();
    flip_bit(path, HEADER + 5, 2);
    cr_assert_eq(sn_offload_store_get(store, &key, back, BYTES, &err), SN_STOP, "damage after a get is not detected");
    flip_bit(path, HEADER + 5, 2);
    expect_image();
    cr_assert(sn_offload_store_has(store, &key, BYTES, PART));
    for (long at = HEADER; at < HEADER + BYTES; at += PART / 2) {
        flip_bit(path, at, 3);
        cr_assert_eq(sn_offload_store_get(store, &key, back, BYTES, &err), SN_STOP, "damage at %ld is not detected",
                     at);
        flip_bit(path, at, 3);
    }
    expect_image();
    put_image();
    cr_assert_eq(truncate(path, HEADER + 10), 0);
    cr_assert_eq(sn_offload_store_get(store, &key, back, BYTES, &err), SN_STOP);
    cr_assert(strstr(err.text, "was cut short"), "%s", err.text);
    free(path);
}

Test(offload_store, readers_of_parts_get_a_descriptor_of_their_own_and_the_tag_of_each_part) {
    sn_tag tags[BYTES / PART + 1];
    sn_tagger *tagger = sn_tagger_new();
    uint64_t at;
    put_image();
    cr_assert(sn_offload_store_has(store, &key, BYTES, PART));
    cr_assert_eq(sn_offload_store_file(store, &key, BYTES - 1, &at, tags), -1);
    int file = sn_offload_store_file(store, &key, BYTES, &at, tags);
    cr_assert(sn_offload_store_has(store, &key, BYTES, PART)); /* another reader, which opens the file anew */
    cr_assert_eq(pread(file, back, BYTES, (off_t)at), BYTES);
    cr_assert_arr_eq(back, image, BYTES);
    for (size_t done = 0, n, i = 0; done < BYTES; done += n, i++) {
        n = BYTES - done < PART ? BYTES - done : PART;
        sn_tagger_begin(tagger, &tags[i]);
        sn_tagger_add(tagger, image + done, n);
        const sn_tag tag = sn_tagger_end(tagger);
        cr_expect(sn_tag_equal(&tag, &tags[i]), "part %zu", i);
    }
    close(file);
    expect_image();
    sn_tagger_free(tagger);
}

Test(offload_store, a_removed_or_replaced_file_is_still_read) {
    char *path = path_of(&key);
    put_image();
    cr_assert_eq(unlink(path), 0);
    expect_image();
    write_file(folder, strrchr(path, '/') + 1, "something else", 14);
    expect_image();
    cr_assert(!sn_offload_store_has(store, &key, BYTES, PART), "a removed file is still found");
    cr_assert_eq(sn_offload_store_get(store, &key, back, BYTES, &err), SN_STOP);
    free(path);
}

Test(offload_store, folders_that_cannot_be_used_are_refused_at_once) {
    sn_offload_store *other;
    char *file = temp_path(folder, "file"), *deep = temp_path(folder, "a/b");
    write_file(folder, "file", "x", 1);
    const char *const wrong[] = {file, deep, "", "/proc", "/proc/none", "/dev/null/x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(sn_offload_store_open(wrong[i], &other, &err), SN_REFUSED, "%s", wrong[i]);
        cr_assert_null(other);
        cr_assert(strstr(err.text, "offload folder") && strstr(err.text, wrong[i]), "%s", err.text);
    }
    cr_assert_eq(chmod(folder, 0777), 0);
    cr_assert_eq(sn_offload_store_open(folder, &other, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "world-writable"), "%s", err.text);
    free(file);
    free(deep);
}

Test(offload_store, a_missing_folder_is_created_private) {
    sn_offload_store *other;
    struct stat st;
    char *path = temp_path(folder, "new");
    cr_assert_eq(sn_offload_store_open(path, &other, &err), SN_OK);
    cr_assert(!stat(path, &st) && (st.st_mode & 0777) == 0700);
    sn_offload_store_close(&other);
    cr_assert_eq(rmdir(path), 0, "files are left");
    free(path);
}

/* Runs fn in a child process, so that its limits end with it. */
static int child_exit(void (*fn)(void)) {
    int status;
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        fn();
        _exit(99);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void put_with_little_space(void) {
    struct rlimit limit = {HEADER + 2000, HEADER + 2000};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit)) _exit(1);
    if (sn_offload_store_put(store, &key, image, BYTES, &err) != SN_STOP) _exit(2);
    if (!strstr(err.text, "is full") || !strstr(err.text, folder) || !strstr(err.text, "5000 bytes")) _exit(3);
    if (sn_offload_store_get(store, &key, back, BYTES, &err) || memcmp(back, image, BYTES)) _exit(4);
    if (sn_offload_store_put(store, &key, image, 1000, &err)) _exit(5);
    _exit(0);
}

Test(offload_store, a_full_disk_is_reported_and_stored_blocks_stay) {
    put_image();
    cr_assert_eq(child_exit(put_with_little_space), 0);
    cr_assert_eq(count_files(), 1, "an unfinished file is left");
    cr_assert(sn_offload_store_has(store, &key, 1000, PART));
}

static void use_without_descriptors(void) {
    struct rlimit limit = {0, 0};
    if (setrlimit(RLIMIT_NOFILE, &limit)) _exit(1);
    if (sn_offload_store_put(store, &key, image, BYTES, &err) != SN_STOP || !strstr(err.text, "cannot be written"))
        _exit(2);
    if (sn_offload_store_has(store, &key, BYTES, PART)) _exit(3);
    _exit(0);
}

Test(offload_store, a_good_file_is_not_removed_for_lack_of_descriptors) {
    put_image();
    cr_assert_eq(child_exit(use_without_descriptors), 0);
    cr_assert(sn_offload_store_has(store, &key, BYTES, PART));
}

Test(offload_store, unfinished_files_are_removed_unless_being_written) {
    write_file(folder, "0123456789abcdef.new", "half", 4);
    write_file(folder, "fedcba9876543210.new", "in work", 7);
    write_file(folder, "notes.txt", "mine", 4);
    char *path = temp_path(folder, "fedcba9876543210.new");
    int busy = open(path, O_RDONLY);
    cr_assert(busy >= 0 && !flock(busy, LOCK_EX));
    reopen_store();
    cr_assert_eq(count_files(), 2);
    cr_assert_eq(access(path, F_OK), 0);
    close(busy);
    reopen_store();
    cr_assert_eq(count_files(), 1);
    free(path);
}

/* Replaces the block's file by a damaged one. */
static void put_damaged(const sn_hash *k) {
    char name[32], *path = path_of(k);
    snprintf(name, sizeof name, "damaged.%d", (int)getpid());
    write_file(folder, name, image, 100);
    char *damaged = temp_path(folder, name);
    if (rename(damaged, path)) _exit(4);
    free(damaged);
    free(path);
}

/* Puts, verifies and reads all blocks again and again, as another node on the machine would. */
static void use_store(void) {
    sn_offload_store *own;
    if (sn_offload_store_open(folder, &own, &err)) _exit(1);
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 4; i++) {
            sn_hash k = sn_hash_of(&i, sizeof i);
            bool there = sn_offload_store_has(own, &k, (size_t)(BYTES - i), PART);
            if ((!there || round % 3 == i % 3) && sn_offload_store_put(own, &k, image + i, (size_t)(BYTES - i), &err))
                _exit(2);
            if (sn_offload_store_get(own, &k, back, (size_t)(BYTES - i), &err) ||
                memcmp(back, image + i, (size_t)(BYTES - i)))
                _exit(3);
            if (round % 7 == 0) put_damaged(&k);
        }
        sn_offload_store_close(&own);
        if (sn_offload_store_open(folder, &own, &err)) _exit(5);
    }
    sn_offload_store_close(&own);
    _exit(0);
}

Test(offload_store, two_processes_share_a_folder, .timeout = 60) {
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        cr_assert(pids[i] >= 0);
        if (pids[i] == 0) use_store();
    }
    for (int i = 0; i < 2; i++) {
        int status;
        cr_assert_eq(waitpid(pids[i], &status, 0), pids[i]);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d: %d", i, WEXITSTATUS(status));
    }
    for (int i = 0; i < 4; i++) {
        sn_hash k = sn_hash_of(&i, sizeof i);
        if (!sn_offload_store_has(store, &k, (size_t)(BYTES - i), PART))
            cr_assert_eq(sn_offload_store_put(store, &k, image + i, (size_t)(BYTES - i), &err), SN_OK);
    }
    cr_assert_eq(count_files(), 4, "an unfinished file is left");
}
