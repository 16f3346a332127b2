/* Where cuBLAS is found: device/cuda/cublas.c with a version of cuBLAS that no machine has, and a library of that
 * version that does nothing. Each test is a process, and looks once. */
#include "base/program_environment.h"
#include "device/cuda/cuda_private.h" /* private: cublas.c has no other header */

#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sn_err err;

/* The library's folder, FAKE_CUBLAS, under another name: BASE/below. */
static void link_below(const char *base, const char *below) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", base);
    for (const char *part = below, *end; *part; part = end + (*end == '/')) {
        end = part + strcspn(part, "/");
        size_t n = strlen(path);
        snprintf(path + n, sizeof path - n, "/%.*s", (int)(end - part), part);
        cr_assert_eq(*end ? mkdir(path, 0700) : symlink(FAKE_CUBLAS, path), 0, "%s", path);
    }
}

static void expect_found(void) {
    cr_assert_eq(sn_cuda_cublas_load(&err), SN_OK, "%s", err.text);
    cr_assert_str_eq(cublasGetStatusString(CUBLAS_STATUS_SUCCESS), "found");
}

/* cuBLAS brings it along. */
static void expect_lt(void) {
    const sn_cuda_lt_library *lt = sn_cuda_lt_load();
    cr_assert(lt && lt->create && lt->multiply);
}

static void expect_refused(const char *part) {
    cr_assert_eq(sn_cuda_cublas_load(&err), SN_REFUSED);
    cr_assert(strstr(err.text, part), "%s", err.text);
}

static void read_environment(void) { sn_environment_use(getenv); }
TestSuite(cublas, .init = read_environment);

Test(cublas, where_it_is_not_found_the_sentence_says_how_to_name_it) {
    expect_refused("let the environment variable SWARM_CUBLAS name the folder of libcublas.so.99");
    cr_expect_null(sn_cuda_lt_load());
}

Test(cublas, a_folder_may_be_named) {
    setenv("SWARM_CUBLAS", FAKE_CUBLAS, 1);
    expect_found();
    expect_lt();
}

Test(cublas, a_file_may_be_named) {
    setenv("SWARM_CUBLAS", FAKE_CUBLAS "/libcublas.so.99", 1);
    expect_found();
}

/* A wrong name is told, and not replaced by another library. */
Test(cublas, what_is_named_is_used_or_nothing) {
    char *home = temp_folder();
    link_below(home, "lib64");
    setenv("CUDA_HOME", home, 1);
    setenv("SWARM_CUBLAS", "/nowhere", 1);
    expect_refused("/nowhere/libcublas.so.99");
    remove_tree(home);
    free(home);
}

static void expect_found_below(const char *variable, const char *below) {
    char *home = temp_folder();
    link_below(home, below);
    setenv(variable, home, 1);
    expect_found();
    remove_tree(home);
    free(home);
}

Test(cublas, it_is_found_in_a_toolkit) { expect_found_below("CUDA_HOME", "lib64"); }

Test(cublas, it_is_found_among_pythons_packages) {
    expect_found_below("VIRTUAL_ENV", "lib/python3.12/site-packages/nvidia/cu13/lib");
}
