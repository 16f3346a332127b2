/* Manifests: what is made of a model's files can be read, and nothing else can. */
#include "base/file.h"
#include "sharing/hub/manifest.h"
#include "model/model.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char folder[] = SN_FIXTURES "/golden/llama";

static sn_buf make(void) {
    sn_buf text;
    sn_buf_init(&text, SN_MANIFEST_MAX);
    REQUIRE(sn_manifest_make(folder, NULL, &text, &err));
    return text;
}

Test(manifest, names_every_byte_of_the_files) {
    sn_buf text = make();
    sn_manifest m;
    REQUIRE(sn_manifest_parse((const char *)text.data, text.len, &m, &err));
    cr_assert_geq(m.n_files, 2);
    for (size_t i = 0; i < m.n_files; i++) {
        const sn_manifest_file *file = &m.files[i];
        char path[SN_PATH_SIZE];
        sn_buf bytes = {0};
        uint64_t at = 0;
        REQUIRE(sn_path_join(path, folder, file->name, &err));
        REQUIRE(sn_read_file(path, 1 << 30, &bytes, &err));
        cr_assert_eq(bytes.len, file->size);
        for (size_t p = file->first_piece; p < file->first_piece + file->n_pieces; p++) {
            const sn_piece *piece = &m.pieces[p];
            sn_hash hash = sn_hash_of(bytes.data + piece->from, (size_t)(piece->to - piece->from));
            cr_assert_eq(piece->from, at);
            cr_assert(!memcmp(&hash, &piece->hash, sizeof hash));
            cr_assert_eq(sn_manifest_piece_at(&m, file, piece->from), piece);
            cr_assert_eq(sn_manifest_piece_at(&m, file, piece->to - 1), piece);
            at = piece->to;
        }
        cr_assert_eq(at, file->size);
        sn_buf_fini(&bytes);
    }
    sn_manifest_fini(&m);
    sn_buf_fini(&text);
}

Test(manifest, says_what_the_model_says) {
    sn_buf text = make();
    sn_manifest m;
    sn_model *model = NULL;
    sn_hash hash;
    REQUIRE(sn_manifest_parse((const char *)text.data, text.len, &m, &err));
    REQUIRE(sn_model_open(folder, &model, &err));
    sn_hash id = sn_model_id(model);
    cr_expect(!memcmp(&id, &m.model, sizeof id));
    cr_expect_eq(m.n_blocks, sn_model_hparams(model)->n_blocks);
    for (int b = 0; b < m.n_blocks; b++) {
        REQUIRE(sn_model_block_hash(model, b, &hash, &err));
        cr_expect(!memcmp(&hash, &m.blocks[b], sizeof hash));
    }
    REQUIRE(sn_model_client_hash(model, &hash, &err));
    cr_expect(!memcmp(&hash, &m.ends, sizeof hash));
    sn_model_close(&model);
    sn_manifest_fini(&m);
    sn_buf_fini(&text);
}

/* Whether the manifest with one text in place of another is refused. */
static bool is_refused(const sn_buf *text, const char *old, const char *new) {
    char *copy = malloc(text->len + strlen(new) + 1);
    const char *at = memmem(text->data, text->len, old, strlen(old));
    sn_manifest m;
    sn_err err = {0};
    cr_assert(at && copy, "the manifest has no '%s'", old);
    size_t before = (size_t)(at - (const char *)text->data), rest = text->len - before - strlen(old);
    memcpy(copy, text->data, before);
    memcpy(copy + before, new, strlen(new));
    memcpy(copy + before + strlen(new), at + strlen(old), rest);
    bool refused = sn_manifest_parse(copy, before + strlen(new) + rest, &m, &err) == SN_REFUSED && *err.text;
    sn_manifest_fini(&m);
    free(copy);
    return refused;
}

/* Further training changes the weights and neither names nor shapes: the model's id is the same. */
Test(manifest, of_other_weights_of_the_same_shapes_tells_nothing) {
    char *copy = temp_folder(), *weights = temp_path(copy, "model.safetensors");
    static const char *const names[] = {"config.json", "model.safetensors"};
    sn_buf text = make();
    sn_hash hash;
    for (int i = 0; i < 2; i++) {
        char from[SN_PATH_SIZE];
        sn_buf bytes = {0};
        REQUIRE(sn_path_join(from, folder, names[i], &err));
        REQUIRE(sn_read_file(from, 1 << 30, &bytes, &err));
        write_file(copy, names[i], bytes.data, bytes.len);
        sn_buf_fini(&bytes);
    }
    write_file(copy, SN_MANIFEST_NAME, text.data, text.len);
    for (int trained = 0; trained < 2; trained++) {
        sn_model *model = NULL;
        FILE *file = trained ? fopen(weights, "r+b") : NULL;
        cr_assert(!trained || (file && !fseek(file, -1000, SEEK_END) && fputc('x', file) == 'x' && !fclose(file)));
        REQUIRE(sn_model_open(copy, &model, &err));
        sn_manifest_tell(copy, model);
        cr_expect_eq(sn_model_told_block_hash(model, 0, &hash), !trained);
        sn_model_close(&model);
    }
    sn_buf_fini(&text);
    free(weights);
    temp_folder_remove(&copy);
}

Test(manifest, refuses_names_that_leave_the_folder) {
    sn_buf text = make();
    const char *const names[] = {
        "../config.json", "/etc/passwd", "a/config.json", ".hidden", "..", "con\\fig.json", "", "model.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char line[64];
        snprintf(line, sizeof line, " %s\n", names[i]);
        cr_expect(is_refused(&text, " config.json\n", line), "'%s' was taken", names[i]);
    }
    sn_buf_fini(&text);
}

/* A manifest with so many more lines of this kind. */
static bool is_refused_with(const sn_buf *text, const char *line, size_t n) {
    const char *at = memmem(text->data, text->len, line, strlen(line));
    cr_assert(at);
    const size_t len = (size_t)(strchr(at + 1, '\n') - at);
    char *lines = malloc(n * len + strlen(line) + 1);
    for (size_t i = 0; i < n; i++) memcpy(lines + i * len, at, len);
    memcpy(lines + n * len, line, strlen(line) + 1);
    const bool refused = is_refused(text, line, lines);
    free(lines);
    return refused;
}

Test(manifest, refuses_more_blocks_than_a_model_has_and_other_bytes) {
    sn_buf text = make();
    cr_expect(!is_refused_with(&text, "\nblock ", SN_BLOCKS_MAX - 4));
    cr_expect(is_refused_with(&text, "\nblock ", SN_BLOCKS_MAX - 3));
    const char *name = memmem(text.data, text.len, "\nname ", 6);
    cr_assert(name);
    text.data[name + 7 - (const char *)text.data] = 0;
    cr_expect(is_refused(&text, "swarm", "swarm"), "a zero byte was taken");
    static const char empty[] = "swarm manifest 1\n";
    sn_manifest m;
    sn_err err = {0};
    cr_expect_eq(sn_manifest_parse(empty, sizeof empty - 1, &m, &err), SN_REFUSED);
    cr_expect(strstr(err.text, "swarm hash"), "%s", err.text);
    sn_manifest_fini(&m);
    sn_buf_fini(&text);
}

Test(manifest, refuses_what_does_not_add_up) {
    sn_buf text = make();
    cr_expect(is_refused(&text, "swarm manifest 1", "swarm manifest 2"));
    cr_expect(is_refused(&text, "model ", "model x"));
    cr_expect(is_refused(&text, "\nends ", "\nEnds "));
    cr_expect(is_refused(&text, "\nblock ", "\nblock 0"));
    cr_expect(is_refused(&text, "\npiece ", "\npiece 1"));
    cr_expect(is_refused(&text, "\npiece ", "\npiece 99999999999999999999 "));
    cr_expect(is_refused(&text, "\npiece ", "\npiece -"));
    cr_expect(is_refused(&text, "\nfile ", "\nfile 1"));
    cr_expect(is_refused(&text, "\nfile ", "\nfile 9223372036854775808 0 x\nfile "));
    cr_expect(is_refused(&text, "\nfile ", "\nx\nfile "));
    for (size_t len = 0; len < text.len; len += 7) { /* a text that breaks off */
        sn_manifest m;
        sn_err err = {0};
        bool at_a_file = len && !memcmp(text.data + len - 1, "\nfile", sn_min_size(5, text.len - len));
        cr_expect(at_a_file || sn_manifest_parse((const char *)text.data, len, &m, &err), "%zu bytes were taken", len);
        if (!at_a_file) sn_manifest_fini(&m);
    }
    sn_buf_fini(&text);
}

/* -- made in parts */

static char *copy_model(void) {
    char *copy = temp_folder();
    copy_file(folder, copy, "config.json");
    copy_file(folder, copy, "model.safetensors");
    return copy;
}

static sn_buf make_in_parts(const char *model, const char *log) {
    sn_buf text;
    sn_buf_init(&text, SN_MANIFEST_MAX);
    REQUIRE(sn_manifest_make(model, &(sn_manifest_making){.resumed = log, .threads = 2}, &text, &err));
    return text;
}

/* The lines of the pieces. */
static bool has_same_pieces(const sn_buf *a, const sn_buf *b) {
    const char *x = memmem(a->data, a->len, "\npiece ", 7), *y = memmem(b->data, b->len, "\npiece ", 7);
    size_t n = a->len - (size_t)(x - (const char *)a->data);
    return n == b->len - (size_t)(y - (const char *)b->data) && !memcmp(x, y, n);
}

/* That hashes are taken from the log shows in files that were changed under its name. */
Test(manifest, goes_on_with_the_pieces_that_were_hashed) {
    char *model = copy_model(), *other = temp_folder(), *log = temp_path(other, "pieces"),
         *weights = temp_path(model, "model.safetensors");
    sn_buf first = make_in_parts(model, log);
    FILE *file = fopen(weights, "r+b");
    cr_assert(file && !fseek(file, -1000, SEEK_END) && fputc('x', file) == 'x' && !fclose(file));
    sn_buf resumed = make_in_parts(model, log), plain = make_in_parts(model, NULL);
    cr_expect(has_same_pieces(&first, &resumed));
    cr_expect_not(has_same_pieces(&first, &plain));
    sn_buf_fini(&resumed);
    file = fopen(log, "r+b"); /* what is damaged does not count, and is written anew */
    cr_assert(file && fputc('x', file) == 'x' && !fclose(file));
    for (int i = 0; i < 2; i++) {
        resumed = make_in_parts(model, log);
        cr_expect(has_same_pieces(&plain, &resumed));
        sn_buf_fini(&resumed);
    }
    sn_buf_fini(&first);
    sn_buf_fini(&plain);
    free(weights);
    free(log);
    temp_folder_remove(&other);
    temp_folder_remove(&model);
}

Test(manifest, that_is_cancelled_hashes_no_further_piece) {
    char *other = temp_folder(), *log = temp_path(other, "pieces");
    const sn_cancel cancel = {.set = 1};
    sn_buf text;
    sn_err err;
    struct stat st;
    sn_buf_init(&text, SN_MANIFEST_MAX);
    cr_expect_eq(sn_manifest_make(folder, &(sn_manifest_making){.cancel = &cancel, .resumed = log}, &text, &err),
                 SN_RETRY);
    cr_expect(!stat(log, &st) && !st.st_size);
    sn_buf_fini(&text);
    free(log);
    temp_folder_remove(&other);
}

Test(manifest, of_a_terabyte_is_read) {
    sn_buf small = make(), text;
    sn_manifest m;
    const size_t n = (size_t)1 << 20;
    const char *files = memmem(small.data, small.len, "\nfile ", 6);
    sn_buf_init(&text, SN_MANIFEST_MAX);
    REQUIRE(sn_buf_append(&text, small.data, (size_t)(files - (const char *)small.data) + 1, &err));
    REQUIRE(sn_buf_printf(&text, &err, "file %zu 1000 model.gguf\n", n << 20));
    for (size_t i = 0; i < n; i++) REQUIRE(sn_buf_printf(&text, &err, "piece 1048576 %064zx\n", i));
    REQUIRE(sn_manifest_parse((const char *)text.data, text.len, &m, &err));
    cr_expect_eq(m.n_pieces, n);
    sn_manifest_fini(&m);
    sn_buf_fini(&text);
    sn_buf_fini(&small);
}
