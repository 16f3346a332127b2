/* Files as a whole: all bytes are transferred, however few a call takes; hashes; new files that replace older ones when
 * they are complete. The linker replaces the system's calls by ones that are short and interrupted. */
#include "base/file.h"
#include "base/mem.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static bool is_short;
static int calls, fail_with;

/* The number of bytes that a call transfers now; 0: it is interrupted. */
static size_t take(size_t n) {
    if (!is_short) return n;
    if (calls++ % 3 == 0) return 0;
    return n < 7 ? n : 7;
}

ssize_t __real_pread(int fd, void *out, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *out, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *out, size_t n, off_t at) {
    size_t now = take(n);
    if (now && !fail_with) return __real_pread(fd, out, now, at);
    errno = now ? fail_with : EINTR;
    return -1;
}

ssize_t __real_pwrite(int fd, const void *data, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at) {
    size_t now = take(n);
    if (now && !fail_with) return __real_pwrite(fd, data, now, at);
    errno = now ? fail_with : EINTR;
    return -1;
}

static char *folder;

static void set_up(void) { folder = temp_folder(); }
static void tear_down(void) { temp_folder_remove(&folder); }
TestSuite(file, .init = set_up, .fini = tear_down);

Test(file, a_stretch_is_read_to_several_places_past_the_page_cache_and_through_it) {
    enum { PAGE = SN_FILE_PAGE, BYTES = 9 * PAGE };
    char *path = temp_path(folder, "a");
    uint8_t *data = malloc(BYTES), *back = aligned_alloc(PAGE, BYTES);
    for (size_t i = 0; i < BYTES; i++) data[i] = (uint8_t)(i * 7 + i / 1000);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    cr_assert_eq(sn_file_write_at(fd, data, BYTES, 0), 0);
    int uncached = sn_file_open_uncached(fd); /* -1 on file systems without such reads */
    for (int file = fd;; file = uncached) {
        struct iovec places[] = {{back + 5 * PAGE, 2 * PAGE}, {back, 0}, {back, PAGE}, {back + 2 * PAGE, 3 * PAGE}};
        memset(back, 0, BYTES);
        cr_expect_eq(sn_file_read_scattered(file, places, 4, PAGE), 0);
        cr_expect(!memcmp(back + 5 * PAGE, data + PAGE, 2 * PAGE) && !memcmp(back, data + 3 * PAGE, PAGE) &&
                  !memcmp(back + 2 * PAGE, data + 4 * PAGE, 3 * PAGE));
        for (size_t end = BYTES; end > 7 * PAGE; end -= 700) { /* it ends too soon */
            struct iovec rest[] = {{back, PAGE}, {back + PAGE, 2 * PAGE}};
            cr_assert_eq(ftruncate(fd, (off_t)end), 0);
            cr_expect_eq(sn_file_read_scattered(file, rest, 2, 6 * PAGE), end < BYTES ? ENODATA : 0, "%zu", end);
        }
        cr_assert_eq(sn_file_write_at(fd, data, BYTES, 0), 0);
        if (file == uncached || uncached < 0) break;
    }
    if (uncached >= 0) close(uncached);
    close(fd);
    free(back);
    free(data);
    free(path);
}

Test(file, every_byte_is_transferred_however_few_a_call_takes) {
    char *path = temp_path(folder, "a");
    uint8_t data[1000], back[1000] = {0};
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    cr_assert(fd >= 0);
    is_short = true;
    cr_expect_eq(sn_file_write_at(fd, data, sizeof data, 5000000000u), 0);
    cr_expect_eq(sn_file_read_at(fd, back, sizeof back, 5000000000u), 0);
    cr_expect(!memcmp(data, back, sizeof data));
    cr_expect_eq(sn_file_read_at(fd, back, sizeof back, 5000000001u), ENODATA, "the file ends too soon");
    fail_with = EIO;
    cr_expect_eq(sn_file_read_at(fd, back, sizeof back, 0), EIO);
    cr_expect_eq(sn_file_write_at(fd, back, sizeof back, 0), EIO);
    close(fd);
    free(path);
}

Test(file, a_hash_is_that_of_all_bytes) {
    size_t n = (3 << 20) + 17; /* several chunks and a part of one */
    uint8_t *data = malloc(n);
    for (size_t i = 0; i < n; i++) data[i] = (uint8_t)(i * i >> 7);
    char *path = temp_path(folder, "a"), *none = temp_path(folder, "none");
    sn_hash want = sn_hash_of(data, n), got;
    sn_err why = {0};
    write_file(folder, "a", data, n);
    REQUIRE(sn_file_hash(path, &got, &err));
    cr_expect(!memcmp(&want, &got, sizeof got));
    cr_expect_eq(sn_file_hash(none, &got, &why), SN_REFUSED);
    cr_expect(strstr(why.text, none), "%s", why.text);
    free(data);
    free(path);
    free(none);
}

static void expect_content(const char *path, const char *want) {
    sn_buf bytes = {0};
    REQUIRE(sn_read_file(path, 100, &bytes, &err));
    cr_expect_str_eq((const char *)bytes.data, want);
    sn_buf_fini(&bytes);
}

Test(file, a_new_file_replaces_the_old_one_when_it_is_complete) {
    char *path = temp_path(folder, "a"), *unfinished = temp_path(folder, "a.part");
    sn_new_file file;
    sn_err why = {0};
    is_short = true;
    REQUIRE(sn_file_replace(path, "the first", 9, &err));
    REQUIRE(sn_new_file_create(path, &file, &err));
    REQUIRE(sn_new_file_write(&file, "the ", 4, &err));
    REQUIRE(sn_new_file_write(&file, "second", 6, &err));
    expect_content(path, "the first");
    REQUIRE(sn_new_file_commit(&file, &err));
    sn_new_file_discard(&file);
    expect_content(path, "the second");
    fail_with = ENOSPC;
    cr_expect_eq(sn_file_replace(path, "the third", 9, &why), SN_STOP);
    cr_expect(strstr(why.text, path) && strstr(why.text, strerror(ENOSPC)), "%s", why.text);
    fail_with = 0;
    expect_content(path, "the second");
    cr_expect(access(unfinished, F_OK), "a file that failed remains");
    REQUIRE(sn_folder_sync(folder, &err));
    cr_expect_eq(sn_folder_sync(path, &why), SN_REFUSED);
    free(path);
    free(unfinished);
}

/* In a folder that a stranger made. */
Test(file, a_new_file_follows_no_link_and_takes_no_mode_from_what_is_there) {
    static const char *const others[] = {"other", "none"};
    struct stat st;
    char *path = temp_path(folder, "a"), *unfinished = temp_path(folder, "a.part");
    write_file(folder, "other", "of another", 10);
    for (int i = 0; i < 2; i++) {
        char *other = temp_path(folder, others[i]);
        cr_assert_eq(symlink(other, unfinished), 0);
        REQUIRE(sn_file_replace(path, "new", 3, &err));
        expect_content(path, "new");
        cr_expect(!lstat(path, &st) && S_ISREG(st.st_mode));
        if (i) cr_expect(access(other, F_OK), "a file was made behind the link");
        if (!i) expect_content(other, "of another");
        free(other);
    }
    write_file(folder, "a.part", "left by a process that was killed", 33);
    cr_assert_eq(chmod(unfinished, 0777), 0);
    REQUIRE(sn_file_replace(path, "newer", 5, &err));
    expect_content(path, "newer");
    cr_expect(!stat(path, &st) && !(st.st_mode & 0111), "mode %o", st.st_mode);
    free(path);
    free(unfinished);
}

/* The writer of this pipe never comes. */
Test(file, a_pipe_in_place_of_a_file_is_refused_at_once, .timeout = 20) {
    char *path = temp_path(folder, "config.json");
    sn_buf bytes = {0};
    sn_hash hash;
    sn_err why = {0};
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_eq(sn_read_file(path, 100, &bytes, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "no regular file"), "%s", why.text);
    cr_expect_eq(sn_file_hash(path, &hash, &why), SN_REFUSED);
    cr_expect(strstr(why.text, "no regular file"), "%s", why.text);
    free(path);
}
