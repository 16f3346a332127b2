#include "model/safetensors.h"
#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ONE_F32(name) "{\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"

static sn_status open_bytes(const sn_buf *b, size_t len, sn_err *err) {
    sn_safetensors *s = NULL;
    void *exact = malloc(len ? len : 1);
    memcpy(exact, b->data, len);
    sn_status status = sn_safetensors_open_memory(exact, len, "bytes", &s, err);
    cr_assert_eq(status == SN_OK, s != NULL);
    sn_safetensors_close(&s);
    free(exact);
    return status;
}

static void expect_refused(const char *header, size_t data_len, const char *error_part) {
    sn_buf b = {0};
    sn_err err = {0};
    put_safetensors(&b, header, data_len);
    cr_assert_eq(open_bytes(&b, b.len, &err), SN_REFUSED, "%s", header);
    cr_assert(strstr(err.text, error_part), "'%s' does not say '%s'", err.text, error_part);
    sn_buf_fini(&b);
}

static void expect_accepted(const char *header, size_t data_len) {
    sn_buf b = {0};
    sn_err err = {0};
    put_safetensors(&b, header, data_len);
    cr_assert_eq(open_bytes(&b, b.len, &err), SN_OK, "%s", err.text);
    sn_buf_fini(&b);
}

Test(safetensors, reads_a_file) {
    sn_safetensors *s = NULL;
    sn_err err = {0};
    cr_assert_eq(sn_safetensors_open(SN_FIXTURES "/golden/llama/golden.safetensors", &s, &err), SN_OK, "%s", err.text);
    const sn_safetensors_tensor *logits = sn_safetensors_find(s, "logits"), *ids = sn_safetensors_find(s, "input_ids");
    cr_assert(logits && logits->dtype == SN_F32 && logits->n_dims == 2 && logits->dims[1] == 320);
    cr_assert(ids && ids->dtype == SN_I64 && ids->n_dims == 1 && ids->dims[0] == logits->dims[0]);
    cr_assert_eq(ids->bytes, ids->elements * 8);
    cr_assert_null(sn_safetensors_find(s, "nothing"));
    for (size_t i = 1; i < sn_safetensors_n_tensors(s); i++)
        cr_assert(strcmp(sn_safetensors_tensor_at(s, i - 1)->name, sn_safetensors_tensor_at(s, i)->name) < 0);
    sn_safetensors_close(&s);
    sn_safetensors_close(&s);
}

Test(safetensors, reads_shards_as_one) {
    sn_safetensors *s = NULL;
    sn_err err = {0};
    cr_assert_eq(sn_safetensors_open_folder(SN_FIXTURES "/golden/qwen2", &s, &err), SN_OK, "%s", err.text);
    cr_assert_not_null(sn_safetensors_find(s, "model.embed_tokens.weight"));
    cr_assert_not_null(sn_safetensors_find(s, "model.norm.weight"));
    cr_assert_not_null(sn_safetensors_find(s, "model.layers.0.mlp.down_proj.weight"));
    sn_safetensors_close(&s);
}

Test(safetensors, takes_metadata_scalars_empty_tensors_and_unknown_types) {
    expect_accepted("{}", 0);
    expect_accepted("{\"__metadata__\":{\"format\":\"pt\"}}   ", 0);
    expect_accepted("{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4);
    expect_accepted("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]},"
                    "\"b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}",
                    8);
    expect_accepted("{\"q\":{\"dtype\":\"F4_NEW\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2);
}

Test(safetensors, refuses_a_file_cut_off_at_any_byte) {
    sn_buf b = {0};
    sn_err err;
    put_safetensors(&b, ONE_F32("x"), 8);
    cr_assert_eq(open_bytes(&b, b.len, &err), SN_OK);
    for (size_t len = 0; len < b.len; len++) {
        err = (sn_err){0};
        cr_assert_eq(open_bytes(&b, len, &err), SN_REFUSED, "cut at %zu", len);
        cr_assert(err.text[0]);
    }
    sn_buf_fini(&b);
}

Test(safetensors, refuses_invalid_headers) {
    sn_buf b = {0};
    sn_err err;
    put_text(&b, "Once upon a time there was a text file.");
    cr_assert_eq(open_bytes(&b, b.len, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "safetensors file"));
    sn_buf_fini(&b);
    put_u64(&b, 1000), put_text(&b, "{}");
    cr_assert_eq(open_bytes(&b, b.len, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "ends within its header"));
    sn_buf_fini(&b);
    expect_refused("{", 0, "not valid JSON");
    expect_refused("[]", 0, "not a JSON object");
    expect_refused("{} {}", 0, "not valid JSON");
    expect_refused("{\"x\":1,\"x\":2}", 0, "not valid JSON");
    expect_refused("{\"x\xff\":1}", 0, "not valid JSON");
}

Test(safetensors, refuses_incomplete_entries) {
    expect_refused("{\"x\":7}", 0, "'x' does not say");
    expect_refused("{\"x\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "'x' does not say");
    expect_refused("{\"x\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "'x' does not say");
    expect_refused("{\"x\":{\"dtype\":\"\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no sensible dtype");
    expect_refused("{\"x\":{\"dtype\":\"ABCDEFGHIJKLMNOPQ\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
                   "no sensible dtype");
    expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "data_offsets");
    expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8.0]}}", 8, "data_offsets");
    expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "impossible data_offsets");
    expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "impossible data_offsets");
    expect_refused("{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "0 bytes long");
    expect_refused("{\"a\\nb\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "printable");
}

Test(safetensors, refuses_shapes_that_contradict_the_bytes) {
    expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "8 bytes where");
    expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "impossible shape");
    expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, "impossible shape");
    expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8,
                   "impossible shape");
    expect_refused("{\"x\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "5 dimensions");
}

Test(safetensors, refuses_data_that_overlaps_leaves_gaps_or_reaches_beyond_the_file) {
#define AT(name, from, to) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" from "," to "]}"
    expect_accepted("{" AT("a", "0", "4") "," AT("b", "4", "8") "}", 8);
    expect_refused("{" AT("a", "0", "4") "," AT("b", "2", "6") "}", 6, "'b' overlaps");
    expect_refused("{" AT("a", "0", "4") "," AT("b", "6", "10") "}", 10, "'b' leaves a gap");
    expect_refused("{" AT("a", "4", "8") "}", 8, "'a' leaves a gap");
    expect_refused("{" AT("a", "0", "4") "}", 6, "2 bytes after the last tensor");
    expect_refused("{" AT("a", "0", "4") "," AT("b", "4", "8") "}", 6, "'b' reaches beyond");
    expect_refused("{" AT("a", "9223372036854775803", "9223372036854775807") "}", 8, "'a' reaches beyond");
}

static void expect_index_refused(const char *json, const char *error_part) {
    sn_safetensors *s = NULL;
    sn_err err = {0};
    char *folder = temp_folder();
    write_file(folder, "model.safetensors.index.json", json, strlen(json));
    cr_assert_eq(sn_safetensors_open_folder(folder, &s, &err), SN_REFUSED, "%s", json);
    cr_assert(strstr(err.text, error_part), "'%s' does not say '%s'", err.text, error_part);
    cr_assert_null(s);
    temp_folder_remove(&folder);
}

Test(safetensors, refuses_an_index_that_leads_out_of_the_folder) {
    expect_index_refused("{\"weight_map\":{\"x\":\"../secret\"}}", "not a plain file name");
    expect_index_refused("{\"weight_map\":{\"x\":\"/etc/passwd\"}}", "not a plain file name");
    expect_index_refused("{\"weight_map\":{\"x\":\"..\"}}", "not a plain file name");
    expect_index_refused("{\"weight_map\":{\"x\":\"\"}}", "not a plain file name");
    expect_index_refused("{\"weight_map\":{\"x\":7}}", "not a plain file name");
    expect_index_refused("{\"weight_map\":[]}", "no weight_map");
    expect_index_refused("{}", "no weight_map");
    expect_index_refused("{", "not valid JSON");
    expect_index_refused("{\"weight_map\":{}}", "none of the shards");
    expect_index_refused("{\"weight_map\":{\"x\":\"absent.safetensors\"}}", "none of the shards");
}

Test(safetensors, refuses_a_tensor_that_is_in_two_shards) {
    static const char index[] = "{\"weight_map\":{\"x\":\"a\",\"y\":\"b\"}}";
    sn_safetensors *s = NULL;
    sn_err err;
    sn_buf b = {0};
    char *folder = temp_folder();
    put_safetensors(&b, ONE_F32("x"), 8);
    write_file(folder, "a", b.data, b.len);
    write_file(folder, "b", b.data, b.len);
    write_file(folder, "model.safetensors.index.json", index, sizeof index - 1);
    cr_assert_eq(sn_safetensors_open_folder(folder, &s, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "'x' is in two of the files"), "%s", err.text);
    sn_buf_fini(&b);
    temp_folder_remove(&folder);
}

Test(safetensors, refuses_a_folder_without_weights) {
    sn_safetensors *s = NULL;
    sn_err err;
    char *folder = temp_folder();
    cr_assert_eq(sn_safetensors_open_folder(folder, &s, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "has neither"));
    temp_folder_remove(&folder);
}

Test(safetensors, round_trips_what_was_written) {
    const float numbers[6] = {1, -2, 3.5f, 0, 1e-30f, 7};
    const int64_t ids[2] = {1ll << 40, -1};
    const sn_safetensors_entry entries[] = {
        {.name = "numbers", .dtype = SN_F32, .n_dims = 2, .dims = {2, 3}, .data = numbers},
        {.name = "ids", .dtype = SN_I64, .n_dims = 1, .dims = {2}, .data = ids},
        {.name = "loss", .dtype = SN_F32, .n_dims = 0, .data = numbers},
    };
    sn_safetensors *s = NULL;
    sn_err err = {0};
    char *folder = temp_folder(), *path = temp_path(folder, "out.safetensors");
    cr_assert_eq(sn_safetensors_write(path, entries, 3, &err), SN_OK, "%s", err.text);
    cr_assert_eq(sn_safetensors_write(path, entries, 3, &err), SN_OK, "replacing an older file: %s", err.text);
    cr_assert_eq(sn_safetensors_open(path, &s, &err), SN_OK, "%s", err.text);
    const sn_safetensors_tensor *t = sn_safetensors_find(s, "numbers");
    cr_assert(t && t->dtype == SN_F32 && t->dims[0] == 2 && t->dims[1] == 3 && !memcmp(t->data, numbers, 24));
    cr_assert_eq((uintptr_t)t->data % 8, 0);
    t = sn_safetensors_find(s, "ids");
    cr_assert(t && t->dtype == SN_I64 && !memcmp(t->data, ids, 16));
    t = sn_safetensors_find(s, "loss");
    cr_assert(t && t->n_dims == 0 && t->elements == 1);
    sn_safetensors_close(&s);
    free(path);
    temp_folder_remove(&folder); /* fails if an unfinished file was left in a subfolder */
}

Test(safetensors, refuses_to_write_a_file_that_it_could_not_read) {
    const float x = 0;
    sn_err err;
    char *folder = temp_folder(), *path = temp_path(folder, "out"), *nowhere = temp_path(folder, "no/out");
    struct stat st;
    sn_safetensors_entry entry = {.name = "a\"b", .dtype = SN_F32, .n_dims = 0, .data = &x};
    cr_assert_eq(sn_safetensors_write(path, &entry, 1, &err), SN_REFUSED);
    entry = (sn_safetensors_entry){.name = "q", .dtype = SN_Q4_1, .n_dims = 1, .dims = {32}, .data = &x};
    cr_assert_eq(sn_safetensors_write(path, &entry, 1, &err), SN_REFUSED);
    entry = (sn_safetensors_entry){.name = "big", .dtype = SN_F32, .n_dims = 2, .dims = {SIZE_MAX, 2}, .data = &x};
    cr_assert_eq(sn_safetensors_write(path, &entry, 1, &err), SN_REFUSED);
    entry = (sn_safetensors_entry){.name = "fine", .dtype = SN_F32, .n_dims = 0, .data = &x};
    cr_assert_eq(sn_safetensors_write(nowhere, &entry, 1, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "cannot be written"));
    cr_assert(stat(path, &st) != 0, "an unfinished file was left");
    free(path);
    free(nowhere);
    temp_folder_remove(&folder);
}

/* Kimi K2's folder has 139,583: weights and scales of 384 experts in 60 blocks. */
Test(safetensors, takes_a_file_with_a_quarter_of_a_million_tensors) {
    enum { N = 1 << 18 };
    sn_safetensors *s = NULL;
    sn_err err = {0};
    sn_buf header, b = {0};
    sn_buf_init(&header, 100 << 20);
    for (int i = 0; i < N; i++)
        cr_assert_eq(sn_buf_printf(&header, &err,
                                   "%c\"tensor.%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                                   i ? ',' : '{', i),
                     SN_OK);
    cr_assert_eq(sn_buf_append(&header, "}", 2, &err), SN_OK);
    put_safetensors(&b, (const char *)header.data, 0);
    cr_assert_eq(sn_safetensors_open_memory(b.data, b.len, "many", &s, &err), SN_OK, "%s", err.text);
    cr_assert_eq(sn_safetensors_n_tensors(s), N);
    cr_assert(sn_safetensors_find(s, "tensor.0") && sn_safetensors_find(s, "tensor.262143") &&
              !sn_safetensors_find(s, "tensor.262144"));
    sn_safetensors_close(&s);
    sn_buf_fini(&header);
    sn_buf_fini(&b);
}
