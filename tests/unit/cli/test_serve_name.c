/* The name of a served model, by its path. */
#include "cli/serve_name.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static void expect_name(const char *path, const char *expected) {
    char name[SN_SERVE_NAME_SIZE];
    cr_expect_str_eq(sn_serve_name(path, name), expected, "%s: %s", path, name);
}

Test(serve_name, is_that_of_the_file_or_folder) {
    expect_name("Name.gguf", "Name");
    expect_name("/models/Name.gguf", "Name");
    expect_name("/models/Name-Q4-00001-of-00003.gguf", "Name-Q4");
    expect_name("folder/Name/", "Name");
    expect_name("folder//Name///", "Name");
    expect_name(".gguf", ".gguf");
}

Test(serve_name, of_a_folder_of_a_cache_is_the_repositorys) {
    expect_name("/c/models/Org--Name/" COMMIT, "Org/Name");
    expect_name("/c/models/Org--Name/" COMMIT "/", "Org/Name");
    expect_name("models--Org--Name-1.5/snapshots/" COMMIT, "Org/Name-1.5");
    expect_name("/c/models/Org--Name/" COMMIT "/Name.gguf", "Name");
    expect_name("/c/other/" COMMIT, COMMIT); /* no repository is named */
    expect_name(COMMIT, COMMIT);
}

Test(serve_name, of_the_folder_in_which_one_stands_is_its_own) {
    char folder[] = "/tmp/sn-name-XXXXXX", whole[128];
    cr_assert(mkdtemp(folder));
    snprintf(whole, sizeof whole, "%s/Org--Name/" COMMIT, folder);
    cr_assert(!chdir(folder) && !mkdir("Org--Name", 0700) && !mkdir("Org--Name/" COMMIT, 0700) && !chdir(whole));
    expect_name(".", "Org/Name");
    expect_name("./", "Org/Name");
    expect_name("../" COMMIT, "Org/Name");
    expect_name("..", "Org--Name");
    cr_assert(!chdir("/") && !rmdir(whole));
    *strrchr(whole, '/') = 0;
    cr_expect(!rmdir(whole) && !rmdir(folder));
}
