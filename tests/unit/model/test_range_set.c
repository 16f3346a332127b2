/* Sets of byte ranges, and files of which only some bytes are there. */
#include "model/partial_file.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Random additions and questions, compared with a table of bytes. */
Test(range_set, says_of_each_byte_what_a_table_says) {
    enum { BYTES = 200, ROUNDS = 300 };
    unsigned random = 1;
    for (int round = 0; round < ROUNDS; round++) {
        sn_range_set have = {0}, want = {0}, missing = {0};
        bool in[2][BYTES] = {{0}};
        for (int i = 0; i < 12; i++) {
            size_t from = (random = random * 1103515245 + 12345) >> 8, to = (random = random * 1103515245 + 12345) >> 8;
            from %= BYTES, to = from + to % 30;
            if (to > BYTES) to = BYTES;
            REQUIRE(sn_range_set_add(i % 2 ? &want : &have, from, to, &err));
            for (size_t at = from; at < to; at++) in[i % 2][at] = true;
        }
        REQUIRE(sn_range_set_missing(&want, &have, 0, &missing, &err));
        for (size_t at = 0; at < BYTES; at++) {
            cr_assert_eq(sn_range_set_covers(&have, at, at + 1), in[0][at], "byte %zu", at);
            cr_assert_eq(sn_range_set_covers(&missing, at, at + 1), in[1][at] && !in[0][at], "byte %zu", at);
        }
        for (size_t i = 1; i < have.n; i++) cr_assert_gt(have.ranges[i].from, have.ranges[i - 1].to, "not joined");
        sn_range_set_fini(&have), sn_range_set_fini(&want), sn_range_set_fini(&missing);
    }
}

Test(range_set, small_gaps_are_asked_for_with_what_is_around_them) {
    sn_range_set have = {0}, want = {0}, missing = {0};
    REQUIRE(sn_range_set_add(&want, 0, 1000, &err));
    REQUIRE(sn_range_set_add(&have, 100, 110, &err));
    REQUIRE(sn_range_set_add(&have, 500, 600, &err));
    REQUIRE(sn_range_set_missing(&want, &have, 50, &missing, &err));
    cr_assert_eq(missing.n, 2);
    cr_expect_eq(missing.ranges[0].to, 500);
    cr_expect_eq(missing.ranges[1].from, 600);
    cr_expect_eq(sn_range_set_bytes(&missing), 900);
    sn_range_set_fini(&have), sn_range_set_fini(&want), sn_range_set_fini(&missing);
}

static void write_text(sn_partial_file *f, uint64_t at, const char *text) {
    REQUIRE(sn_partial_file_write(f, at, text, strlen(text), &err));
}

Test(partial_file, what_was_saved_is_there_again_and_nothing_else) {
    char folder[] = "/tmp/sn-partial-XXXXXX", path[64], ranges[80];
    sn_partial_file f;
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(ranges, sizeof ranges, "%s.ranges", path);
    REQUIRE(sn_partial_file_open(path, 100, "v 1", NULL, &f, &err));
    write_text(&f, 10, "saved");
    REQUIRE(sn_partial_file_save(&f, &err));
    write_text(&f, 50, "lost"); /* the process is killed before PATH.ranges is written */
    cr_expect_eq(sn_partial_file_write(&f, 98, "abc", 3, NULL), SN_REFUSED);
    sn_partial_file_close(&f);

    bool partial;
    sn_range_set present = {0};
    REQUIRE(sn_partial_file_present(path, &partial, &present, &err));
    cr_expect(partial);
    cr_expect(sn_range_set_covers(&present, 10, 15) && !sn_range_set_covers(&present, 50, 51));
    sn_range_set_fini(&present);
    REQUIRE(sn_partial_file_open(path, 100, "v 1", NULL, &f, &err));
    cr_expect(sn_range_set_covers(&f.present, 10, 15) && sn_range_set_bytes(&f.present) == 5);
    sn_partial_file_close(&f);
    REQUIRE(sn_partial_file_open(path, 100, "v 2", NULL, &f, &err));
    cr_expect_eq(sn_range_set_bytes(&f.present), 0, "bytes of another version were taken");
    sn_partial_file_close(&f);
    const char *const damaged[] = {"", "100", "100 v_1\n5 500\n", "100 v_1\n20 10\nx",
                                   "99999999999999999999 v_1\n0 9\n"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        FILE *out = fopen(ranges, "w");
        fputs(damaged[i], out);
        fclose(out);
        REQUIRE(sn_partial_file_open(path, 100, "v 1", NULL, &f, &err));
        cr_expect_eq(sn_range_set_bytes(&f.present), 0, "%s", damaged[i]);
        sn_partial_file_close(&f);
    }
    unlink(path), unlink(ranges);
    snprintf(ranges, sizeof ranges, "%s.lock", path);
    unlink(ranges), rmdir(folder);
}

/* A whole file is compared with its hash before it counts, and its process may be killed in between. */
Test(partial_file, a_file_is_not_saved_as_whole_by_itself) {
    char folder[] = "/tmp/sn-partial-XXXXXX", path[64], other[80];
    const size_t size = 9 << 20; /* more than is written between two saves */
    char *bytes = calloc(1, size);
    bool partial = false;
    sn_range_set present = {0};
    sn_partial_file f;
    cr_assert(bytes && mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    REQUIRE(sn_partial_file_open(path, size, "v", NULL, &f, &err));
    REQUIRE(sn_partial_file_present(path, &partial, &present, &err));
    cr_expect(partial && !present.n, "a file in which nothing was written is taken for a whole one");
    REQUIRE(sn_partial_file_write(&f, 0, bytes, size, &err));
    cr_expect(sn_partial_file_is_whole(&f));
    sn_partial_file_close(&f);
    REQUIRE(sn_partial_file_open(path, size, "v", NULL, &f, &err));
    cr_expect(!sn_partial_file_is_whole(&f), "a file that was not compared counts as whole");
    sn_partial_file_close(&f);
    free(bytes);
    unlink(path);
    for (size_t i = 0; i < 2; i++) {
        snprintf(other, sizeof other, "%s.%s", path, i ? "lock" : "ranges");
        unlink(other);
    }
    rmdir(folder);
}
