#include "net/identity.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/sn-identity-XXXXXX", path[64];

static void setup(void) {
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/node.key", folder);
}

static void teardown(void) {
    unlink(path);
    rmdir(folder);
}

static bool disk_is_full; /* the linker replaces pwrite */

ssize_t __real_pwrite(int fd, const void *data, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t at) {
    if (!disk_is_full) return __real_pwrite(fd, data, n, at);
    errno = ENOSPC;
    return -1;
}

TestSuite(identity, .init = setup, .fini = teardown);

static sn_identity make_identity(void) {
    sn_err err = {0};
    sn_identity identity;
    cr_assert_eq(sn_identity_new(&identity, &err), SN_OK, "%s", err.text);
    return identity;
}

static void write_file(const char *text, size_t len, mode_t mode) {
    unlink(path);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    cr_assert(file >= 0);
    cr_assert_eq(write(file, text, len), (ssize_t)len);
    cr_assert_eq(fchmod(file, mode), 0);
    close(file);
}

static void expect_refusal(const char *error_part) {
    sn_err err = {0};
    sn_identity identity;
    cr_assert_eq(sn_identity_load(path, &identity, &err), SN_REFUSED, "no word of '%s'", error_part);
    cr_assert(strstr(err.text, error_part), "'%s' is not about '%s'", err.text, error_part);
}

Test(identity, is_the_same_after_save_and_load) {
    sn_err err = {0};
    sn_identity made = make_identity(), loaded;
    cr_assert_eq(sn_identity_save(&made, path, &err), SN_OK, "%s", err.text);
    struct stat info;
    cr_assert_eq(stat(path, &info), 0);
    cr_assert_eq(info.st_mode & 0777, 0600);
    cr_assert_eq(sn_identity_load(path, &loaded, &err), SN_OK, "%s", err.text);
    cr_assert_arr_eq(&made, &loaded, sizeof made);
}

Test(identity, new_identities_differ) {
    sn_identity one = make_identity(), two = make_identity();
    cr_assert_arr_neq(one.id, two.id, SN_KEY_SIZE);
    cr_assert_arr_neq(one.curve_key, two.curve_key, SN_KEY_SIZE);
}

Test(identity, is_never_overwritten) {
    sn_err err = {0};
    sn_identity first = make_identity(), second = make_identity(), loaded;
    cr_assert_eq(sn_identity_save(&first, path, &err), SN_OK, "%s", err.text);
    cr_assert_eq(sn_identity_save(&second, path, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "never overwritten"), "%s", err.text);
    cr_assert_eq(sn_identity_load(path, &loaded, &err), SN_OK, "%s", err.text);
    cr_assert_arr_eq(loaded.id, first.id, SN_KEY_SIZE);
    cr_assert_eq(sn_identity_save(&first, "/no/such/folder/key", &err), SN_REFUSED);
    cr_assert(strstr(err.text, "cannot be written"), "%s", err.text);
}

Test(identity, a_full_disk_is_told_from_a_wrong_path_and_leaves_no_file) {
    sn_err err = {0};
    sn_identity made = make_identity();
    disk_is_full = true;
    cr_assert_eq(sn_identity_save(&made, path, &err), SN_STOP);
    cr_assert(strstr(err.text, "No space left"), "%s", err.text);
    cr_assert_eq(access(path, F_OK), -1);
}

Test(identity, refuses_a_file_that_others_can_read) {
    sn_err err = {0};
    sn_identity made = make_identity();
    cr_assert_eq(sn_identity_save(&made, path, &err), SN_OK, "%s", err.text);
    static const mode_t modes[] = {0640, 0604, 0620, 0601};
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(chmod(path, modes[i]), 0);
        expect_refusal("by others");
    }
    cr_assert_eq(chmod(path, 0400), 0);
    cr_assert_eq(sn_identity_load(path, &made, &err), SN_OK, "%s", err.text);
}

Test(identity, file_is_read_strictly) {
    static const char *const zeros = "0000000000000000000000000000000000000000000000000000000000000000";
    char good[300], text[400];
    snprintf(good, sizeof good, "swarm identity 1\nsign %s\ncurve %s\n", zeros, zeros);
    size_t len = strlen(good);
    sn_err err = {0};
    sn_identity identity;
    write_file(good, len, 0600);
    cr_assert_eq(sn_identity_load(path, &identity, &err), SN_OK, "%s", err.text);
    for (size_t cut = 0; cut < len; cut++) {
        write_file(good, cut, 0600);
        expect_refusal("is no identity file");
    }
    for (size_t i = 0; i < len; i++) {
        memcpy(text, good, len + 1);
        text[i] = 'z';
        write_file(text, len, 0600);
        expect_refusal("is no identity file");
        text[i] = 0;
        write_file(text, len, 0600);
        expect_refusal("is no identity file");
    }
    snprintf(text, sizeof text, "%s\n", good);
    write_file(text, len + 1, 0600);
    expect_refusal("is no identity file");
    char *large = calloc(1, 100000);
    memset(large, 'a', 100000);
    write_file(large, 100000, 0600);
    expect_refusal("is no identity file");
    free(large);
}

Test(identity, refuses_a_path_that_is_not_a_file) {
    expect_refusal("cannot be opened");
    cr_assert_eq(mkdir(path, 0700), 0);
    expect_refusal("no regular file");
    rmdir(path);
    cr_assert_eq(mkfifo(path, 0600), 0);
    expect_refusal("no regular file"); /* and opening it does not wait for a writer */
}

Test(identity, verifies_only_unchanged_signatures) {
    sn_err err = {0};
    sn_identity one = make_identity(), two = make_identity();
    uint8_t signature[SN_SIGNATURE_SIZE], data[100] = "some bytes";
    cr_assert_eq(sn_sign(&one, data, sizeof data, signature, &err), SN_OK, "%s", err.text);
    cr_assert(sn_verify(one.id, data, sizeof data, signature));
    cr_assert_not(sn_verify(two.id, data, sizeof data, signature));
    cr_assert_not(sn_verify(one.id, data, sizeof data - 1, signature));
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] ^= 1;
        cr_assert_not(sn_verify(one.id, data, sizeof data, signature));
        data[i] ^= 1;
    }
    for (size_t i = 0; i < sizeof signature; i++) {
        signature[i] ^= 1;
        cr_assert_not(sn_verify(one.id, data, sizeof data, signature));
        signature[i] ^= 1;
    }
    cr_assert_not(sn_verify((const uint8_t[SN_KEY_SIZE]){0xff}, data, sizeof data, signature));
}

/* RFC 8032, section 7.1, test 2. */
Test(identity, matches_the_rfc_8032_test_vector) {
    sn_err err = {0};
    sn_identity identity = {0};
    uint8_t signature[SN_SIGNATURE_SIZE], expected[SN_SIGNATURE_SIZE], key[SN_KEY_SIZE];
    cr_assert_eq(
        sn_unhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", identity.sign_secret, 32, &err),
        SN_OK);
    cr_assert_eq(sn_unhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", key, 32, &err), SN_OK);
    cr_assert_eq(sn_unhex("92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
                          "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
                          expected, 64, &err),
                 SN_OK);
    cr_assert_eq(sn_sign(&identity, "\x72", 1, signature, &err), SN_OK, "%s", err.text);
    cr_assert_arr_eq(signature, expected, SN_SIGNATURE_SIZE);
    cr_assert(sn_verify(key, "\x72", 1, signature));
}
