/* Hashes that are kept over starts: found for files that are as they were, and never for others. That a kept hash was
 * taken, and none computed, shows in a hash that no weights have. */
#include "base/file.h"
#include "base/file_facts.h"
#include "model/model.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct fixture {
    char *folder, *weights, *cache, *kept; /* kept: the folder of kept hashes */
} fixture;

static void settle(void) { usleep(100000); } /* steps of a file's times */

static fixture begin_with(const char *model) {
    static const char *const names[] = {"config.json", "model.safetensors"};
    fixture f = {.folder = temp_folder(), .cache = temp_folder()};
    f.weights = temp_path(f.folder, names[1]);
    f.kept = temp_path(f.cache, "hashes");
    for (int i = 0; i < 2; i++) copy_file(model, f.folder, names[i]);
    settle();
    return f;
}
static fixture begin(void) { return begin_with(SN_FIXTURES "/golden/llama"); }

static void end(fixture *f) {
    free(f->weights);
    free(f->kept);
    temp_folder_remove(&f->folder);
    remove_tree(f->cache);
    free(f->cache);
}

static sn_model *open_model(const fixture *f, bool keeps) {
    sn_model *model = NULL;
    REQUIRE(sn_model_open(f->folder, &model, &err));
    if (keeps) sn_model_keep_hashes(model, f->cache);
    return model;
}

/* Of block 0, by a program that starts now. */
static sn_hash hash_now(const fixture *f, bool keeps) {
    sn_hash hash;
    sn_model *model = open_model(f, keeps);
    REQUIRE(sn_model_block_hash(model, 0, &hash, &err));
    sn_model_close(&model);
    return hash;
}

/* Calls `change` for each kept hash. Returns how many there are. */
static int each_kept(const fixture *f, void (*change)(const char *path, const char *name)) {
    int n = 0;
    DIR *folder = opendir(f->kept);
    for (const struct dirent *e; folder && (e = readdir(folder));) {
        if (*e->d_name == '.') continue;
        char *path = temp_path(f->kept, e->d_name);
        if (change) change(path, e->d_name);
        free(path);
        n++;
    }
    if (folder) closedir(folder);
    return n;
}

/* A hash of no weights in a file that is whole. */
static void replace_by_another(const char *path, const char *name) {
    sn_hash r[3] = {0}; /* key, hash, check */
    REQUIRE(sn_unhex(name, r[0].bytes, SN_HASH_SIZE, &err));
    memset(&r[1], 7, sizeof r[1]);
    r[2] = sn_hash_of(r, 2 * sizeof *r);
    REQUIRE(sn_file_replace(path, &r[1], 2 * sizeof *r, &err));
}

static bool is_another(const sn_hash *hash) {
    sn_hash other;
    memset(&other, 7, sizeof other);
    return !memcmp(hash, &other, sizeof other);
}

static void keep_another(const fixture *f) {
    hash_now(f, true);
    cr_assert_eq(each_kept(f, replace_by_another), 1);
    const sn_hash hash = hash_now(f, true);
    cr_assert(is_another(&hash), "the kept hash was not used");
}

Test(kept_hash, is_used_by_the_next_start_for_the_same_file) {
    fixture f = begin();
    const sn_hash plain = hash_now(&f, false), first = hash_now(&f, true), second = hash_now(&f, true);
    cr_expect_arr_eq(&plain, &first, sizeof first);
    cr_expect_arr_eq(&plain, &second, sizeof second);
    keep_another(&f);
    end(&f);
}

/* The same bytes are other weights where config.json says otherwise what they mean. */
Test(kept_hash, of_weights_that_another_configuration_reads_otherwise_is_not_used) {
    static const char was[] = "\"damp_percent\": 0.01,", is[] = "\"format\":\"gptq_v2\"  ,";
    fixture f = begin_with(SN_FIXTURES "/packed/gptq4_64_zeros");
    char *path = temp_path(f.folder, "config.json");
    sn_buf text;
    keep_another(&f);
    REQUIRE(sn_read_file(path, 1 << 20, &text, &err));
    char *at = strstr((char *)text.data, was);
    cr_assert(at && sizeof is == sizeof was);
    memcpy(at, is, strlen(is));
    REQUIRE(sn_file_replace(path, text.data, text.len, &err));
    const sn_hash hash = hash_now(&f, true);
    cr_expect(!is_another(&hash), "the hash of other weights was used");
    sn_buf_fini(&text);
    free(path);
    end(&f);
}

static void change_byte(const char *path) {
    struct stat st;
    uint8_t byte;
    int fd = open(path, O_RDWR);
    cr_assert(fd >= 0 && !fstat(fd, &st));
    for (off_t at = st.st_size / 4; at < st.st_size; at += 64) { /* in every block */
        cr_assert_eq(pread(fd, &byte, 1, at), 1);
        byte ^= 1;
        cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

/* Gives the file the time of its last change that it had. */
static void restore_time(const char *path, const struct stat *st) {
    const struct timespec times[2] = {st->st_atim, st->st_mtim};
    cr_assert(!utimensat(AT_FDCWD, path, times, 0));
}

Test(kept_hash, of_a_file_that_was_changed_is_never_used) {
    for (int way = 0; way < 3; way++) {
        fixture f = begin();
        struct stat before;
        keep_another(&f);
        cr_assert(!stat(f.weights, &before));
        if (way == 2) { /* a copy in its place: another inode */
            sn_buf bytes = {0};
            REQUIRE(sn_read_file(f.weights, 1 << 30, &bytes, &err));
            REQUIRE(sn_file_replace(f.weights, bytes.data, bytes.len, &err));
            sn_buf_fini(&bytes);
        }
        change_byte(f.weights);
        if (way) restore_time(f.weights, &before);
        const sn_hash kept = hash_now(&f, true), right = hash_now(&f, false);
        cr_expect_arr_eq(&kept, &right, sizeof kept, "change %d", way);
        end(&f);
    }
}

Test(kept_hash, is_not_used_when_the_file_is_changed_under_the_program) {
    fixture f = begin();
    sn_hash before, after;
    keep_another(&f);
    sn_model *model = open_model(&f, true);
    change_byte(f.weights);
    const sn_hash right = hash_now(&f, false);
    REQUIRE(sn_model_block_hash(model, 0, &before, &err));
    cr_expect_arr_eq(&before, &right, sizeof before);
    sn_model_close(&model);
    settle();
    after = hash_now(&f, true); /* and was not kept for what the file was */
    cr_expect_arr_eq(&after, &right, sizeof after);
    end(&f);
}

Test(kept_hash, of_a_file_that_was_written_just_now_is_not_kept) {
    fixture f = begin();
    /* A time to come is that of a clock that went back, or of another machine: no change after it would show. */
    sn_file_facts facts;
    cr_assert(sn_file_facts_read(-1, f.weights, &facts));
    cr_expect(sn_file_facts_are_settled(&facts));
    facts.changed_ns += (int64_t)3600 * 1000000000;
    cr_expect_not(sn_file_facts_are_settled(&facts));
    end(&f);
}

static void damage(const char *path, const char *name) {
    (void)name;
    int fd = open(path, O_WRONLY);
    cr_assert(fd >= 0 && pwrite(fd, "x", 1, 3) == 1 && !close(fd));
}
static void shorten(const char *path, const char *name) {
    (void)name;
    cr_assert(!truncate(path, 40));
}
static void open_to_all(const char *path, const char *name) {
    (void)name;
    cr_assert(!chmod(path, 0666));
}

Test(kept_hash, that_is_damaged_or_may_be_of_others_is_computed_again) {
    void (*const ways[])(const char *, const char *) = {damage, shorten, open_to_all};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        fixture f = begin();
        keep_another(&f);
        cr_assert_eq(each_kept(&f, ways[i]), 1);
        const sn_hash hash = hash_now(&f, true), right = hash_now(&f, false);
        cr_expect_arr_eq(&hash, &right, sizeof hash, "way %zu", i);
        end(&f);
    }
}

Test(kept_hash, of_blocks_that_are_known_is_told_without_reading) {
    fixture f = begin();
    sn_model *model = open_model(&f, true);
    cr_expect_not(sn_model_knows_block_hash(model, 0));
    hash_now(&f, true);
    cr_expect(sn_model_knows_block_hash(model, 0));
    cr_expect_not(sn_model_knows_block_hash(model, 1));
    sn_model_close(&model);
    end(&f);
}

/* -- stopping */

typedef struct counter {
    int asked, until;
} counter;

static bool is_enough(void *ctx) {
    counter *c = ctx;
    return ++c->asked >= c->until;
}

Test(kept_hash, a_hash_ends_when_it_is_told_to_and_is_not_kept) {
    fixture f = begin();
    sn_model *model = open_model(&f, true);
    counter c = {0, 3};
    const sn_halt stop = {is_enough, &c};
    sn_hash hash;
    sn_err why;
    cr_expect_eq(sn_model_hash_block(model, 0, &stop, &hash, &why), SN_RETRY);
    cr_expect_eq(c.asked, 3);
    cr_expect_eq(each_kept(&f, NULL), 0);
    sn_model_close(&model);
    end(&f);
}

/* The embedding of a large vocabulary is one matrix. */
Test(kept_hash, is_asked_about_its_end_at_least_once_a_mib) {
    fixture f = begin();
    sn_model *model = open_model(&f, false);
    counter c = {0, 1 << 30};
    const sn_halt stop = {is_enough, &c};
    sn_hash hash;
    uint64_t bytes;
    REQUIRE(sn_model_block_bytes(model, 0, &bytes, &err));
    REQUIRE(sn_model_hash_block(model, 0, &stop, &hash, &err));
    cr_expect_geq((uint64_t)c.asked, (bytes + SN_HALT_BYTES - 1) / SN_HALT_BYTES);
    sn_model_close(&model);
    end(&f);
}
