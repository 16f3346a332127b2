#include "model/gguf.h"
#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { F32 = 0, Q8_0 = 8, T_U32 = 4, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9 };

/* A small file with every type of value and two tensors; its last byte belongs to the last tensor. */
static sn_buf small_file(uint32_t version) {
    sn_buf b = {0};
    put_gguf_header(&b, version, 2, 16);
    put_gguf_key(&b, "v.u8", 0), put_bytes(&b, &(uint8_t){200}, 1);
    put_gguf_key(&b, "v.i8", 1), put_bytes(&b, &(int8_t){-5}, 1);
    put_gguf_key(&b, "v.u16", 2), put_bytes(&b, &(uint16_t){60000}, 2);
    put_gguf_key(&b, "v.i16", 3), put_bytes(&b, &(int16_t){-300}, 2);
    put_gguf_u32(&b, "v.u32", 4000000000u);
    put_gguf_key(&b, "v.i32", 5), put_bytes(&b, &(int32_t){-70000}, 4);
    put_gguf_f32(&b, "v.f32", 0.5f);
    put_gguf_key(&b, "v.bool", T_BOOL), put_bytes(&b, "\1", 1);
    put_gguf_text(&b, "v.string", "na\xc3\xafve");
    put_gguf_key(&b, "v.u64", 10), put_u64(&b, 1ull << 40);
    put_gguf_key(&b, "v.i64", 11), put_u64(&b, 77);
    put_gguf_key(&b, "v.f64", 12), put_bytes(&b, &(double){0.25}, 8);
    put_gguf_key(&b, "a.strings", T_ARRAY), put_u32(&b, T_STRING), put_u64(&b, 3);
    put_gguf_string(&b, "one"), put_gguf_string(&b, ""), put_gguf_string(&b, "three");
    put_gguf_key(&b, "a.i32", T_ARRAY), put_u32(&b, 5), put_u64(&b, 2), put_u32(&b, 7), put_u32(&b, 0xffffffff);
    put_gguf_key(&b, "a.f32", T_ARRAY), put_u32(&b, T_F32), put_u64(&b, 2), put_f32(&b, 1.5f), put_f32(&b, -2);
    put_gguf_key(&b, "a.empty", T_ARRAY), put_u32(&b, T_STRING), put_u64(&b, 0);
    put_gguf_tensor(&b, "first", 3, 2, F32, 0);
    put_gguf_tensor(&b, "second", 32, 0, Q8_0, 32);
    pad_to(&b, 32);
    for (int i = 0; i < 6; i++) put_f32(&b, (float)i);
    pad_to(&b, 32);
    put_zeros(&b, 34);
    return b;
}

/* A file with tensors and at most one metadata value, whose key and value the caller appends. */
static sn_buf file_of(uint64_t n_tensors, uint64_t n_values) {
    sn_buf b = {0};
    put_gguf_header(&b, 3, n_tensors, n_values);
    return b;
}

/* Opens bytes in an allocation of exactly their size, so that the sanitizers see a read beyond them. */
static sn_status open_bytes(const void *data, size_t len, sn_err *err) {
    sn_gguf *g = NULL;
    void *exact = malloc(len ? len : 1);
    memcpy(exact, data, len);
    sn_status status = sn_gguf_open_memory(exact, len, "bytes", &g, err);
    cr_assert_eq(status == SN_OK, g != NULL);
    sn_gguf_close(&g);
    free(exact);
    return status;
}

static void expect_refused(sn_buf *b, const char *error_part) {
    sn_err err = {0};
    cr_assert_eq(open_bytes(b->data, b->len, &err), SN_REFUSED);
    cr_assert(strstr(err.text, error_part), "'%s' does not say '%s'", err.text, error_part);
    sn_buf_fini(b);
}

static sn_gguf *open_small(sn_buf *b) {
    sn_gguf *g = NULL;
    sn_err err = {0};
    *b = small_file(3);
    cr_assert_eq(sn_gguf_open_memory(b->data, b->len, "small", &g, &err), SN_OK, "%s", err.text);
    return g;
}

Test(gguf, reads_numbers_of_every_type) {
    sn_buf b;
    sn_gguf *g = open_small(&b);
    const struct {
        const char *key;
        int32_t value;
    } expected[] = {{"v.u8", 200}, {"v.i8", -5}, {"v.u16", 60000}, {"v.i16", -300}, {"v.i32", -70000}, {"v.i64", 77}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        int32_t got;
        cr_assert_eq(sn_gguf_i32(g, expected[i].key, true, &got, NULL), SN_OK);
        cr_assert_eq(got, expected[i].value);
    }
    uint32_t u;
    float f;
    bool flag = false;
    sn_gguf_str text;
    cr_assert_eq(sn_gguf_u32(g, "v.u32", true, &u, NULL), SN_OK);
    cr_assert_eq(u, 4000000000u);
    cr_assert_eq(sn_gguf_f32(g, "v.f32", true, &f, NULL), SN_OK);
    cr_assert_eq(f, 0.5f);
    cr_assert_eq(sn_gguf_f32(g, "v.f64", true, &f, NULL), SN_OK);
    cr_assert_eq(f, 0.25f);
    cr_assert_eq(sn_gguf_bool(g, "v.bool", true, &flag, NULL), SN_OK);
    cr_assert(flag);
    cr_assert_eq(sn_gguf_string(g, "v.string", true, &text, NULL), SN_OK);
    cr_assert(text.len == 6 && !memcmp(text.data, "na\xc3\xafve", 6));
    cr_assert_eq(sn_gguf_n_values(g), 16);
    sn_gguf_close(&g);
    sn_buf_fini(&b);
}

Test(gguf, reads_elements_of_arrays) {
    sn_buf b;
    sn_gguf *g = open_small(&b);
    const sn_gguf_value *v = NULL;
    cr_assert_eq(sn_gguf_array(g, "a.strings", SN_GGUF_STRING, true, &v, NULL), SN_OK);
    cr_assert_eq(v->n, 3);
    sn_gguf_str third = sn_gguf_string_at(v, 2);
    cr_assert(third.len == 5 && !memcmp(third.data, "three", 5));
    cr_assert_eq(sn_gguf_string_at(v, 1).len, 0);
    cr_assert_eq(sn_gguf_array(g, "a.i32", SN_GGUF_I32, true, &v, NULL), SN_OK);
    cr_assert_eq(sn_gguf_i32_at(v, 1), -1);
    cr_assert_eq(sn_gguf_array(g, "a.f32", SN_GGUF_F32, true, &v, NULL), SN_OK);
    cr_assert_eq(sn_gguf_f32_at(v, 1), -2);
    cr_assert_eq(sn_gguf_array(g, "a.empty", SN_GGUF_STRING, true, &v, NULL), SN_OK);
    cr_assert_eq(v->n, 0);
    sn_gguf_close(&g);
    sn_buf_fini(&b);
}

Test(gguf, leaves_a_default_where_an_optional_key_is_absent) {
    sn_buf b;
    sn_gguf *g = open_small(&b);
    int32_t number = 42;
    const sn_gguf_value *v = NULL;
    cr_assert_eq(sn_gguf_i32(g, "none", false, &number, NULL), SN_OK);
    cr_assert_eq(number, 42);
    cr_assert_eq(sn_gguf_array(g, "none", SN_GGUF_I32, false, &v, NULL), SN_OK);
    cr_assert_null(v);
    cr_assert_null(sn_gguf_find(g, "v.u"));
    cr_assert_null(sn_gguf_find(g, ""));
    sn_gguf_close(&g);
    sn_buf_fini(&b);
}

Test(gguf, refuses_a_value_of_another_kind) {
    sn_buf b;
    sn_gguf *g = open_small(&b);
    sn_err err;
    int32_t number;
    uint32_t u;
    float f;
    bool flag;
    sn_gguf_str text;
    const sn_gguf_value *v;
    cr_assert_eq(sn_gguf_i32(g, "none", true, &number, &err), SN_REFUSED);
    cr_assert_str_eq(err.text, "metadata key 'none' is missing");
    cr_assert_eq(sn_gguf_i32(g, "v.string", true, &number, &err), SN_REFUSED);
    cr_assert_str_eq(err.text, "metadata key 'v.string' is a string where a whole number is expected");
    cr_assert_eq(sn_gguf_i32(g, "a.i32", true, &number, NULL), SN_REFUSED);
    cr_assert_eq(sn_gguf_i32(g, "v.u32", true, &number, NULL), SN_REFUSED, "does not fit");
    cr_assert_eq(sn_gguf_u32(g, "v.i8", true, &u, NULL), SN_REFUSED, "negative");
    cr_assert_eq(sn_gguf_u32(g, "v.u64", true, &u, NULL), SN_REFUSED, "does not fit");
    cr_assert_eq(sn_gguf_f32(g, "v.u32", true, &f, NULL), SN_REFUSED);
    cr_assert_eq(sn_gguf_bool(g, "v.u8", true, &flag, NULL), SN_REFUSED);
    cr_assert_eq(sn_gguf_string(g, "a.strings", true, &text, NULL), SN_REFUSED);
    cr_assert_eq(sn_gguf_array(g, "a.i32", SN_GGUF_F32, true, &v, &err), SN_REFUSED);
    cr_assert_str_eq(err.text, "metadata key 'a.i32' is an array of i32 where an array of f32 is expected");
    sn_gguf_close(&g);
    sn_buf_fini(&b);
}

Test(gguf, finds_tensors_in_files_of_version_2_and_3) {
    for (uint32_t version = 2; version <= 3; version++) {
        sn_buf b = small_file(version);
        sn_gguf *g = NULL;
        cr_assert_eq(sn_gguf_open_memory(b.data, b.len, "small", &g, NULL), SN_OK);
        cr_assert_eq(sn_gguf_version(g), (int)version);
        const sn_gguf_tensor *t = sn_gguf_tensor_find(g, "first");
        float last;
        cr_assert(t && t->dtype == SN_F32 && t->n_dims == 2 && t->dims[0] == 3 && t->dims[1] == 2 && t->bytes == 24);
        memcpy(&last, t->data + 20, 4);
        cr_assert_eq(last, 5);
        t = sn_gguf_tensor_find(g, "second");
        cr_assert(t && t->dtype == SN_Q8_0 && t->n_dims == 1 && t->dims[1] == 1 && t->bytes == 34);
        cr_assert_null(sn_gguf_tensor_find(g, "third"));
        cr_assert_str_eq(sn_gguf_tensor_at(g, 0)->name, "first");
        sn_gguf_close(&g);
        sn_buf_fini(&b);
    }
}

Test(gguf, refuses_a_file_cut_off_at_any_byte) {
    sn_buf b = small_file(3);
    sn_err err;
    cr_assert_eq(open_bytes(b.data, b.len, &err), SN_OK);
    for (size_t len = 0; len < b.len; len++) {
        err = (sn_err){0};
        cr_assert_eq(open_bytes(b.data, len, &err), SN_REFUSED, "cut at %zu", len);
        cr_assert(err.text[0], "no message at %zu", len);
    }
    sn_buf_fini(&b);
}

/* A beginning that is too short asks for more, and is never refused; the tensors' data need not be there. */
Test(gguf, knows_the_length_of_its_header_from_the_beginning_of_a_file) {
    sn_buf b = small_file(3);
    size_t header = 0, bytes = 0;
    for (size_t len = 1; len <= b.len; len++) {
        uint8_t *prefix = malloc(len); /* its end is the end of what may be read */
        memcpy(prefix, b.data, len);
        cr_assert_eq(sn_gguf_header_bytes(prefix, len, &bytes, NULL), SN_OK);
        free(prefix);
        if (!header && bytes) header = bytes;
        cr_assert_eq(bytes, header, "%zu bytes: %zu", len, bytes);
    }
    cr_expect(header > 100 && header < b.len, "%zu of %zu", header, b.len);
    b.data[0] = 'X';
    cr_expect_eq(sn_gguf_header_bytes(b.data, 16, &bytes, NULL), SN_REFUSED);
    sn_buf_fini(&b);
}

Test(gguf, survives_any_changed_byte) {
    sn_buf b = small_file(3);
    for (size_t at = 0; at < b.len; at++)
        for (int change = 1; change < 256; change <<= 1) {
            b.data[at] ^= (uint8_t)change;
            cr_assert_neq(open_bytes(b.data, b.len, NULL), SN_STOP);
            b.data[at] ^= (uint8_t)change;
        }
    sn_buf_fini(&b);
}

Test(gguf, refuses_files_that_are_not_gguf) {
    sn_buf b = {0};
    put_text(&b, "Once upon a time there was a text file.");
    expect_refused(&b, "not a GGUF file");
    put_gguf_header(&b, 1, 0, 0);
    expect_refused(&b, "version 1");
    put_gguf_header(&b, 0x03000000, 0, 0);
    expect_refused(&b, "big-endian");
}

Test(gguf, refuses_counts_that_the_file_is_too_short_for) {
    sn_buf b = file_of(0, 1ull << 60);
    expect_refused(&b, "metadata keys");
    b = file_of(1ull << 60, 0);
    expect_refused(&b, "tensors");
    b = file_of(0, 1);
    put_gguf_key(&b, "k", T_ARRAY), put_u32(&b, T_STRING), put_u64(&b, 1ull << 61);
    expect_refused(&b, "'k' claims");
    b = file_of(0, 1);
    put_gguf_key(&b, "k", T_STRING), put_u64(&b, UINT64_MAX);
    expect_refused(&b, "ends within");
    b = file_of(0, 1);
    put_u64(&b, UINT64_MAX - 3), put_zeros(&b, 32);
    expect_refused(&b, "ends within");
}

Test(gguf, refuses_values_that_it_cannot_read) {
    sn_buf b = file_of(0, 1);
    put_gguf_key(&b, "k", 13), put_zeros(&b, 16);
    expect_refused(&b, "unknown type 13");
    b = file_of(0, 1);
    put_gguf_key(&b, "k", T_ARRAY), put_u32(&b, T_ARRAY), put_u64(&b, 0);
    expect_refused(&b, "array of arrays");
    b = file_of(0, 1);
    put_gguf_key(&b, "k", T_ARRAY), put_u32(&b, 99), put_u64(&b, 0);
    expect_refused(&b, "array of unknown type 99");
    b = file_of(0, 1);
    put_gguf_key(&b, "k", T_BOOL), put_bytes(&b, "\2", 1);
    expect_refused(&b, "bool must be 0 or 1");
    b = file_of(0, 1);
    put_gguf_u32(&b, "two\nlines", 1);
    expect_refused(&b, "printable");
    b = file_of(0, 1);
    put_gguf_u32(&b, "", 1);
    expect_refused(&b, "0 bytes long");
}

Test(gguf, refuses_a_key_or_tensor_given_twice) {
    sn_buf b = file_of(0, 3);
    put_gguf_u32(&b, "twice", 1), put_gguf_u32(&b, "other", 1), put_gguf_u32(&b, "twice", 1);
    expect_refused(&b, "'twice' is given twice");
    b = file_of(2, 0);
    put_gguf_tensor(&b, "t", 8, 1, F32, 0), put_gguf_tensor(&b, "t", 8, 1, F32, 32);
    pad_to(&b, 32), put_zeros(&b, 64);
    expect_refused(&b, "'t' is in the file twice");
}

Test(gguf, refuses_a_tensor_that_reaches_beyond_the_file) {
    sn_buf b = file_of(1, 0);
    put_gguf_tensor(&b, "t", 8, 2, F32, 0), pad_to(&b, 32), put_zeros(&b, 63);
    expect_refused(&b, "'t' reaches beyond");
    b = file_of(1, 0);
    put_gguf_tensor(&b, "t", 8, 1, F32, UINT64_MAX - 31), pad_to(&b, 32), put_zeros(&b, 64);
    expect_refused(&b, "'t' reaches beyond");
}

Test(gguf, refuses_tensors_that_overlap_or_are_not_aligned) {
    sn_buf b = file_of(2, 0);
    put_gguf_tensor(&b, "x", 8, 1, F32, 32), put_gguf_tensor(&b, "y", 8, 2, F32, 0);
    pad_to(&b, 32), put_zeros(&b, 64);
    expect_refused(&b, "'y' and 'x' overlap");
    b = file_of(1, 0);
    put_gguf_tensor(&b, "x", 8, 1, F32, 8), pad_to(&b, 32), put_zeros(&b, 64);
    expect_refused(&b, "not aligned to 32");
    b = file_of(0, 1);
    put_gguf_u32(&b, "general.alignment", 48);
    expect_refused(&b, "power of two");
    b = file_of(0, 1);
    put_gguf_u32(&b, "general.alignment", 0);
    expect_refused(&b, "power of two");
}

Test(gguf, honours_the_alignment_that_the_file_names) {
    sn_buf b = file_of(1, 1);
    sn_gguf *g = NULL;
    put_gguf_u32(&b, "general.alignment", 128);
    put_gguf_tensor(&b, "x", 1, 1, F32, 0), pad_to(&b, 128), put_f32(&b, 9);
    cr_assert_eq(sn_gguf_open_memory(b.data, b.len, "aligned", &g, NULL), SN_OK);
    cr_assert_eq(sn_gguf_f32_at(&(sn_gguf_value){.data = sn_gguf_tensor_at(g, 0)->data}, 0), 9);
    sn_gguf_close(&g);
    sn_buf_fini(&b);
}

Test(gguf, refuses_impossible_shapes) {
    sn_buf b = file_of(1, 0);
    put_gguf_tensor(&b, "t", 1ull << 40, 1ull << 40, F32, 0);
    expect_refused(&b, "impossible shape");
    b = file_of(1, 0);
    put_gguf_tensor(&b, "t", 0, 1, F32, 0);
    expect_refused(&b, "impossible shape");
    b = file_of(1, 0);
    put_gguf_tensor(&b, "t", 33, 1, Q8_0, 0), put_zeros(&b, 128);
    expect_refused(&b, "tensor 't': a row of 33");
    b = file_of(1, 0);
    put_gguf_string(&b, "t"), put_u32(&b, 5), put_zeros(&b, 64);
    expect_refused(&b, "5 dimensions");
    b = file_of(1, 0);
    put_gguf_string(&b, "t"), put_u32(&b, 0), put_zeros(&b, 64);
    expect_refused(&b, "0 dimensions");
}

Test(gguf, names_tensor_and_type_that_it_does_not_support) {
    sn_buf b = file_of(1, 0);
    put_gguf_tensor(&b, "blk.0.x", 256, 1, 16, 0), put_zeros(&b, 128);
    expect_refused(&b, "tensor 'blk.0.x' is of type IQ2_XXS");
    b = file_of(1, 0);
    put_gguf_tensor(&b, "blk.0.x", 256, 1, 1000, 0), put_zeros(&b, 128);
    expect_refused(&b, "tensor 'blk.0.x' is of the unknown type 1000, which is not supported: use a Q4_0");
    b = file_of(1, 0);
    put_gguf_tensor(&b, "blk.0.x", 256, 1, 32, 0), put_zeros(&b, 128);
    expect_refused(&b, "unknown type 32");
}

Test(gguf, refuses_a_name_of_a_tensor_that_is_too_long) {
    char name[SN_GGUF_NAME_SIZE + 1] = "";
    memset(name, 'n', SN_GGUF_NAME_SIZE);
    sn_buf b = file_of(1, 0);
    put_gguf_tensor(&b, name, 8, 1, F32, 0), pad_to(&b, 32), put_zeros(&b, 32);
    expect_refused(&b, "128 bytes long");
}

Test(gguf, reads_every_type_of_weight_from_a_file) {
    sn_gguf *g = NULL;
    sn_err err = {0};
    cr_assert_eq(sn_gguf_open(SN_FIXTURES "/gguf/gguf_types.gguf", &g, &err), SN_OK, "%s", err.text);
    cr_assert_eq(sn_gguf_n_tensors(g), 16);
    for (size_t i = 0; i < 16; i++) {
        const sn_gguf_tensor *t = sn_gguf_tensor_at(g, i);
        size_t row = 0;
        cr_assert_str_eq(t->name + 2, sn_dtype_name(t->dtype));
        cr_assert_eq(sn_dtype_row_bytes(t->dtype, 512, &row, NULL), SN_OK);
        cr_assert(t->dims[0] == 512 && t->dims[1] == 4 && t->bytes == 4 * row);
    }
    sn_gguf_close(&g);
    sn_gguf_close(&g);
}

Test(gguf, refuses_paths_that_are_not_files) {
    sn_gguf *g = NULL;
    sn_err err;
    cr_assert_eq(sn_gguf_open(SN_FIXTURES "/nothing.gguf", &g, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "nothing.gguf cannot be opened"));
    cr_assert_eq(sn_gguf_open(SN_FIXTURES, &g, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "not a regular file"));
    cr_assert_null(g);
}
