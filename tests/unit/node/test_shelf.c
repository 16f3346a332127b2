/* Which manifest a node shares its files by. */
#include "base/file.h"
#include "node/shelf.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct fixture {
    char folder[32], model[64];
    sn_buf text; /* the manifest beside the model: that of its files, under another name */
} fixture;

static void copy(const char *name, const fixture *f, size_t change_from) {
    char from[SN_PATH_SIZE], to[SN_PATH_SIZE];
    sn_buf bytes = {0};
    REQUIRE(sn_path_join(from, SN_FIXTURES "/golden/llama", name, &err));
    REQUIRE(sn_path_join(to, f->model, name, &err));
    REQUIRE(sn_read_file(from, 1 << 20, &bytes, &err));
    for (size_t i = change_from; i < bytes.len; i += 64) bytes.data[i] ^= 1;
    REQUIRE(sn_file_replace(to, bytes.data, bytes.len, &err));
    sn_buf_fini(&bytes);
}

static void write_manifest(const fixture *f) { REQUIRE(sn_manifest_write_beside(f->model, true, &f->text, &err)); }

static char *line_of(const fixture *f, const char *key) {
    char *at = memmem(f->text.data, f->text.len, key, strlen(key));
    cr_assert(at);
    return at + strlen(key);
}

static fixture begin(void) {
    fixture f = {.folder = "/tmp/sn-shelf-XXXXXX"};
    cr_assert(mkdtemp(f.folder));
    snprintf(f.model, sizeof f.model, "%s/model", f.folder);
    cr_assert(!mkdir(f.model, 0700));
    copy("config.json", &f, SIZE_MAX);
    copy("model.safetensors", &f, SIZE_MAX);
    sn_buf_init(&f.text, SN_MANIFEST_MAX);
    REQUIRE(sn_manifest_make(f.model, NULL, &f.text, &err));
    *line_of(&f, "name ") ^= 1;
    write_manifest(&f);
    return f;
}

static void post(void *ctx) { sem_post(ctx); }

/* Whether the shelf shares the files by the manifest beside them. */
static bool uses_manifest_beside(const fixture *f) {
    sn_shelf *shelf;
    sn_manifest beside;
    sn_hash id;
    sem_t done;
    sem_init(&done, 0, 0);
    REQUIRE(sn_manifest_parse((const char *)f->text.data, f->text.len, &beside, &err));
    REQUIRE(sn_shelf_new(f->model, f->folder, post, &done, &shelf, &err));
    sn_shelf_begin(shelf);
    sem_wait(&done);
    cr_assert(sn_shelf_take(shelf, &id), "the node shares nothing");
    bool same = !memcmp(&id, &beside.id, sizeof id);
    sn_manifest_fini(&beside);
    sn_shelf_free(&shelf);
    sem_destroy(&done);
    return same;
}

static void end(fixture *f) {
    sn_buf_fini(&f->text);
    remove_tree(f->folder);
}

Test(shelf, the_manifest_beside_the_files_counts) {
    fixture f = begin();
    cr_expect(uses_manifest_beside(&f));
    end(&f);
}

Test(shelf, a_manifest_of_another_model_is_made_anew) {
    fixture f = begin();
    char *digit = line_of(&f, "model ");
    *digit = *digit == '0' ? '1' : '0';
    write_manifest(&f);
    cr_expect_not(uses_manifest_beside(&f));
    end(&f);
}

Test(shelf, a_manifest_of_weights_that_were_replaced_is_made_anew) {
    fixture f = begin();
    copy("model.safetensors", &f, 1 << 19); /* of the last block only */
    cr_expect_not(uses_manifest_beside(&f));
    end(&f);
}
