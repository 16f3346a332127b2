#include "sharing/hub/cached.h"

#include "base/clock.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { FILES = 300, ROUNDS = 100 };

static int count_files(const char *folder) {
    int n = 0;
    DIR *listed = opendir(folder);
    for (const struct dirent *entry; listed && (entry = readdir(listed));) n += *entry->d_name == 'f';
    if (listed) closedir(listed);
    return n;
}

static void make_files(const char *folder) {
    char path[SN_PATH_SIZE + 16];
    for (int i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "%s/f%d", folder, i);
        FILE *file = fopen(path, "w");
        cr_assert(file);
        fclose(file);
    }
}

typedef struct remover {
    sn_cached_model model;
    atomic_bool ends;
} remover;

static void *remove_again_and_again(void *context) {
    remover *r = context;
    while (!r->ends) (void)!sn_cached_model_remove(&r->model, NULL); /* refused while it is held */
    return NULL;
}

Test(cached, files_of_a_model_stay_from_the_moment_it_is_held) {
    char top[] = "/tmp/sn-cached-XXXXXX";
    remover r = {.model.name = "model"};
    pthread_t thread;
    cr_assert(mkdtemp(top));
    snprintf(r.model.path, sizeof r.model.path, "%s/model", top);
    cr_assert_eq(pthread_create(&thread, NULL, remove_again_and_again, &r), 0);
    for (int i = 0; i < ROUNDS; i++) {
        int held;
        REQUIRE(sn_cached_hold(r.model.path, &held, &err));
        int before = count_files(r.model.path);
        if (before == 0) make_files(r.model.path);
        sn_sleep_us(200);
        cr_assert_eq(count_files(r.model.path), before == 0 ? FILES : before, "files went while the model was held");
        cr_assert(before == 0 || before == FILES, "a model that was removed in part was held");
        sn_cached_release(&held);
        sn_sleep_us(i * 30); /* the next call comes at each point of a removal */
    }
    r.ends = true;
    pthread_join(thread, NULL);
    int held;
    REQUIRE(sn_cached_hold(r.model.path, &held, &err)); /* perhaps it is not there now */
    sn_cached_release(&held);
    REQUIRE(sn_cached_model_remove(&r.model, &err));
    cr_expect_eq(rmdir(top), 0, "something is left beside the model");
}

/* As a program that was stopped while it removed the model. */
Test(cached, a_removal_that_does_not_end_is_waited_for_with_a_limit, .timeout = 60) {
    char folder[] = "/tmp/sn-cached-XXXXXX", path[64];
    int held;
    sn_err why;
    virtual_clock_begin_still();
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/.use", folder);
    int stopped = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_eq(flock(stopped, LOCK_EX), 0);
    cr_expect_eq(sn_cached_hold(folder, &held, &why), SN_RETRY);
    cr_expect(strstr(why.text, "does not end: stop it"), "%s", why.text);
    close(stopped);
    REQUIRE(sn_cached_hold(folder, &held, &err));
    sn_cached_release(&held);
    unlink(path);
    cr_expect_eq(rmdir(folder), 0);
}
