/* Models whose GGUF file is cut into parts: names, and what the parts say of themselves.
 * tests/system/test_split_gguf.sh runs such models. */
#include "model/gguf.h"
#include "model/gguf_parts.h"
#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is wrong with a part; zeroed: nothing. */
typedef struct fault {
    uint32_t no, count, total;
    const char *tensor;
} fault;

/* Writes part `number` of `count` of a model with one tensor a part, and the metadata in the first. */
static void write_part(const char *folder, int number, int count, const fault *f) {
    char name[64], tensor[64];
    sn_buf b = {0};
    put_gguf_header(&b, 3, 1, number == 1 ? 4 : 3);
    if (number == 1) put_gguf_u32(&b, "general.number", 7);
    put_gguf_u32(&b, "split.no", f->no ? f->no - 1 : (uint32_t)number - 1);
    put_gguf_u32(&b, "split.count", f->count ? f->count : (uint32_t)count);
    put_gguf_u32(&b, "split.tensors.count", f->total ? f->total : (uint32_t)count);
    snprintf(tensor, sizeof tensor, "tensor.%d", number);
    put_gguf_tensor(&b, f->tensor ? f->tensor : tensor, 1, 1, 0, 0);
    pad_to(&b, 32);
    put_f32(&b, (float)number);
    snprintf(name, sizeof name, "a-%05d-of-%05d.gguf", number, count);
    write_file(folder, name, b.data, b.len);
    sn_buf_fini(&b);
}

static sn_status open_in(const char *folder, const char *name, sn_gguf **out, sn_err *err) {
    char *path = temp_path(folder, name);
    sn_status status = sn_gguf_open(path, out, err);
    free(path);
    return status;
}

Test(gguf_parts, any_part_opens_all_of_them) {
    char *folder = temp_folder();
    for (int i = 1; i <= 3; i++) write_part(folder, i, 3, &(fault){0});
    static const char *const names[] = {"a-00001-of-00003.gguf", "a-00003-of-00003.gguf"};
    for (size_t k = 0; k < 2; k++) {
        sn_gguf *g;
        sn_err err;
        uint32_t number = 0;
        size_t n;
        cr_assert_eq(open_in(folder, names[k], &g, &err), SN_OK, "%s", err.text);
        cr_assert(!sn_gguf_u32(g, "general.number", true, &number, &err) && number == 7);
        cr_assert(sn_gguf_n_tensors(g) == 3 && (sn_gguf_files(g, &n), n == 3));
        for (int i = 1; i <= 3; i++) {
            char name[64];
            const char *path;
            uint64_t at;
            float value;
            snprintf(name, sizeof name, "tensor.%d", i);
            const sn_gguf_tensor *t = sn_gguf_tensor_find(g, name);
            cr_assert_not_null(t);
            memcpy(&value, t->data, sizeof value);
            cr_assert_eq(value, (float)i);
            snprintf(name, sizeof name, "a-%05d-of-00003.gguf", i);
            cr_assert(sn_gguf_file_of(g, t->data, &path, &at) && strstr(path, name), "%s lies in %s", name, path);
        }
        sn_gguf_close(&g);
    }
    temp_folder_remove(&folder);
}

static void expect_refused(const fault *second, const char *open, const char *part_of_error) {
    char *folder = temp_folder();
    sn_gguf *g;
    sn_err err = {0};
    write_part(folder, 1, 2, &(fault){0});
    if (second) write_part(folder, 2, 2, second);
    cr_expect_eq(open_in(folder, open, &g, &err), SN_REFUSED);
    cr_expect_null(g);
    cr_expect(strstr(err.text, part_of_error), "'%s' does not say '%s'", err.text, part_of_error);
    temp_folder_remove(&folder);
}

Test(gguf_parts, parts_that_are_no_model_are_refused) {
    static const char first[] = "a-00001-of-00002.gguf", second[] = "a-00002-of-00002.gguf";
    expect_refused(NULL, first, "a-00002-of-00002.gguf is missing, part 2 of the 2");
    expect_refused(&(fault){.no = 1}, first, "a-00002-of-00002.gguf holds part 1 of 2");
    expect_refused(&(fault){.count = 3}, first, "holds part 2 of 3");
    expect_refused(&(fault){.count = 3}, second, "is part 2 of 3 of a model: name it NAME-00002-of-00003.gguf");
    expect_refused(&(fault){.no = 3}, second, "it is part 3 of 2");
    expect_refused(&(fault){.count = 1 << 20}, second, "up to 4096 parts");
    expect_refused(&(fault){.tensor = "tensor.1"}, first, "'tensor.1' is in the file twice");
}

Test(gguf_parts, parts_of_different_models_are_refused) {
    char *folder = temp_folder();
    sn_gguf *g;
    sn_err err = {0};
    write_part(folder, 1, 2, &(fault){.total = 3});
    write_part(folder, 2, 2, &(fault){0});
    cr_assert_eq(open_in(folder, "a-00001-of-00002.gguf", &g, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "the parts hold 2 tensors where the first says 3"), "%s", err.text);
    temp_folder_remove(&folder);
}

Test(gguf_parts, are_known_by_their_names) {
    static const struct {
        const char *path;
        int count, number;
    } names[] = {{"x/a-00002-of-00003.gguf", 3, 2},
                 {"a-00000-of-00003.gguf", 1, 1},
                 {"a-00004-of-00003.gguf", 1, 1},
                 {"a-0001-of-0003.gguf", 1, 1},
                 {"a-00001-of-00003.bin", 1, 1},
                 {"a.gguf", 1, 1},
                 {"", 1, 1},
                 {"a-00001-of-99999.gguf", 1, 1},
                 {"-00001-of-00002.gguf", 2, 1}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int number;
        cr_expect_eq(sn_gguf_parts_of(names[i].path, &number), names[i].count, "%s", names[i].path);
        cr_expect_eq(number, names[i].number, "%s", names[i].path);
    }
    char path[SN_PATH_SIZE];
    cr_assert(!sn_gguf_part_path("x/a-00002-of-00003.gguf", 3, path, NULL) && !strcmp(path, "x/a-00003-of-00003.gguf"));
    cr_assert(!sn_gguf_part_path("x/a.gguf", 1, path, NULL) && !strcmp(path, "x/a.gguf"));
}
