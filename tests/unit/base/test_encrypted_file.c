/* Encrypted files: nothing comes out of a file that was changed, cut, reordered or made with another key. */
#include "base/encrypted_file.h"
#include "base/file.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD = 32, CHUNK = 4 + (1 << 18) + 16, DATA = (1 << 18) + 1000 }; /* two chunks, the second one short */
static const char magic[] = "a test's file 01";

static char *folder, *path;
static uint8_t *data, *file;
static size_t file_len;
static sn_file_key key;

static void setup(void) {
    static uint8_t secret[32] = "a secret of some bytes";
    folder = temp_folder();
    path = temp_path(folder, "file");
    key = (sn_file_key){secret, sizeof secret};
    data = malloc(DATA);
    for (size_t i = 0; i < DATA; i++) data[i] = (uint8_t)(i * 7 + i / 256);
    sn_encrypted_file *f = NULL;
    REQUIRE(sn_encrypted_file_create(path, magic, &key, &f, &err));
    REQUIRE(sn_encrypted_file_write(f, data, DATA, &err));
    REQUIRE(sn_encrypted_file_commit(f, &err));
    sn_encrypted_file_close(&f);
    sn_buf all = {0};
    REQUIRE(sn_read_file(path, 1 << 20, &all, &err));
    file = all.data;
    file_len = all.len;
}

static void teardown(void) {
    free(data);
    free(file);
    free(path);
    temp_folder_remove(&folder);
}

TestSuite(encrypted_file, .init = setup, .fini = teardown);

/* Writes the bytes and reads them back as far as they go. The bytes that came out must be those that went in. */
static sn_status read_changed(const uint8_t *bytes, size_t len, const sn_file_key *secret, size_t *out) {
    FILE *to = fopen(path, "w");
    cr_assert(to && fwrite(bytes, 1, len, to) == len && !fclose(to));
    sn_encrypted_file *f = NULL;
    sn_err why = {0};
    uint8_t *got = malloc(DATA);
    *out = 0;
    sn_status status = sn_encrypted_file_open(path, magic, secret, &f, &why);
    for (size_t n; !status && *out < DATA; *out += n) {
        n = DATA - *out < 1000 ? DATA - *out : 1000;
        status = sn_encrypted_file_read(f, got + *out, n, &why);
        if (status) break;
        cr_assert(!memcmp(got + *out, data + *out, n), "changed bytes came out at %zu", *out);
    }
    if (!status) status = sn_encrypted_file_expect_end(f, &why);
    sn_encrypted_file_close(&f);
    free(got);
    return status;
}

Test(encrypted_file, returns_what_was_written) {
    size_t n;
    cr_expect_eq(file_len, (size_t)HEAD + CHUNK + 4 + 1000 + 16);
    cr_expect_eq(read_changed(file, file_len, &key, &n), SN_OK);
    cr_expect(!memmem(file, file_len, data, 64), "the data lie in the file as they are");
}

Test(encrypted_file, refuses_any_changed_byte) {
    const size_t places[] = {
        0, 15, 16, 31, 32, 35, 36, 5000, HEAD + CHUNK - 1, HEAD + CHUNK, HEAD + CHUNK + 4, file_len - 1};
    for (size_t i = 0, n; i < sizeof places / sizeof *places; i++) {
        file[places[i]] ^= 1;
        cr_expect_eq(read_changed(file, file_len, &key, &n), SN_REFUSED, "byte %zu", places[i]);
        cr_expect(n < DATA);
        file[places[i]] ^= 1;
    }
}

Test(encrypted_file, refuses_a_file_that_was_cut_or_has_grown) {
    const size_t lengths[] = {0, 31, HEAD, HEAD + 3, HEAD + CHUNK - 1, HEAD + CHUNK, HEAD + CHUNK + 4, file_len - 1};
    size_t n;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        cr_expect_eq(read_changed(file, lengths[i], &key, &n), SN_REFUSED, "cut at %zu", lengths[i]);
    uint8_t *longer = malloc(file_len + 1);
    memcpy(longer, file, file_len);
    longer[file_len] = 0;
    cr_expect_eq(read_changed(longer, file_len + 1, &key, &n), SN_REFUSED);
    free(longer);
}

Test(encrypted_file, knows_its_last_chunk) {
    static uint8_t chunk[1 << 18];
    sn_encrypted_file *f = NULL;
    sn_err why = {0};
    cr_assert(!truncate(path, HEAD + CHUNK)); /* the first chunk is whole, the reader wants no more than it holds */
    REQUIRE(sn_encrypted_file_open(path, magic, &key, &f, &err));
    REQUIRE(sn_encrypted_file_read(f, chunk, sizeof chunk, &err));
    cr_expect_eq(sn_encrypted_file_expect_end(f, &why), SN_REFUSED);
    sn_encrypted_file_close(&f);
}

Test(encrypted_file, refuses_chunks_in_another_order) {
    size_t first = HEAD, second = HEAD + CHUNK, n;
    uint8_t *other = malloc(file_len);
    memcpy(other, file, HEAD);
    memcpy(other + HEAD, file + second, file_len - second);
    memcpy(other + HEAD + (file_len - second), file + first, CHUNK);
    cr_expect_eq(read_changed(other, file_len, &key, &n), SN_REFUSED);
    cr_expect_eq(n, 0);
    free(other);
}

Test(encrypted_file, refuses_another_key_and_another_kind_of_file) {
    static uint8_t secret[32] = "another secret of some bytes";
    sn_encrypted_file *f = NULL;
    sn_err err = {0};
    size_t n;
    cr_expect_eq(read_changed(file, file_len, &(sn_file_key){secret, sizeof secret}, &n), SN_REFUSED);
    cr_expect_eq(n, 0);
    cr_expect_eq(sn_encrypted_file_open(path, "a test's file 02", &key, &f, &err), SN_REFUSED);
}

Test(encrypted_file, that_is_not_committed_leaves_what_was_there) {
    sn_encrypted_file *f = NULL;
    size_t n;
    REQUIRE(sn_encrypted_file_create(path, magic, &key, &f, &err));
    REQUIRE(sn_encrypted_file_write(f, "other data", 10, &err));
    sn_encrypted_file_close(&f);
    sn_buf now = {0};
    REQUIRE(sn_read_file(path, 1 << 20, &now, &err));
    cr_expect(now.len == file_len && !memcmp(now.data, file, file_len));
    cr_expect_eq(read_changed(now.data, now.len, &key, &n), SN_OK);
    free(now.data);
}

static size_t count_files(void) {
    size_t n = 0;
    DIR *dir = opendir(folder);
    cr_assert(dir);
    for (struct dirent *e; (e = readdir(dir));) n += *e->d_name != '.';
    closedir(dir);
    return n;
}

/* What a killed program leaves is what lies there before it commits or closes. */
Test(encrypted_file, leaves_nothing_when_the_program_is_killed_while_it_writes) {
    int nameless = open(folder, O_TMPFILE | O_WRONLY, 0600);
    if (nameless < 0) cr_skip_test("this file system has no files without a name");
    close(nameless);
    sn_encrypted_file *f = NULL;
    REQUIRE(sn_encrypted_file_create(path, magic, &key, &f, &err));
    REQUIRE(sn_encrypted_file_write(f, data, DATA, &err));
    cr_expect_eq(count_files(), 1, "an unfinished file has a name");
    REQUIRE(sn_encrypted_file_commit(f, &err));
    sn_encrypted_file_close(&f);
    cr_expect_eq(count_files(), 1, "a temporary name is left");
    struct stat info;
    cr_assert_eq(stat(path, &info), 0);
    cr_expect_eq(info.st_mode & 0777, 0600);
}

Test(encrypted_file, needs_a_key_that_nobody_else_can_read) {
    char *key_path = temp_path(folder, "key");
    sn_file_key loaded;
    sn_err err = {0};
    FILE *to = fopen(key_path, "w");
    cr_assert(to && fputs("sixteen bytes or more", to) >= 0 && !fclose(to));
    const mode_t refused[] = {0640, 0604, 0620, 0602, 0601};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cr_assert(!chmod(key_path, refused[i]));
        cr_expect_eq(sn_file_key_load(key_path, &loaded, &err), SN_REFUSED, "mode %o", (unsigned)refused[i]);
        cr_expect(strstr(err.text, "chmod 600"), "%s", err.text);
    }
    cr_assert(!chmod(key_path, 0600));
    cr_expect_eq(sn_file_key_load(key_path, &loaded, &err), SN_OK, "%s", err.text);
    cr_expect_eq(loaded.len, strlen("sixteen bytes or more"));
    sn_file_key_fini(&loaded);
    cr_assert(!truncate(key_path, 15));
    cr_expect_eq(sn_file_key_load(key_path, &loaded, &err), SN_REFUSED);
    free(key_path);
}
