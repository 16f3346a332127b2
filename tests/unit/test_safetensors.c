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

static void refuses(const char *header, size_t data_len, const char *words) {
    sn_buf b = {0};
    sn_err err = {0};
    put_safetensors(&b, header, data_len);
    cr_assert_eq(open_bytes(&b, b.len, &err), SN_REFUSED, "%s", header);
    cr_assert(strstr(err.text, words), "'%s' does not say '%s'", err.text, words);
    sn_buf_fini(&b);
}

static void takes(const char *header, size_t data_len) {
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
    takes("{}", 0);
    takes("{\"__metadata__\":{\"format\":\"pt\"}}   ", 0);
    takes("{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4);
    takes("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]},"
          "\"b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}",
          8);
    takes("{\"q\":{\"dtype\":\"F4_NEW\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2);
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

Test(safetensors, refuses_headers_that_are_no_headers) {
    sn_buf b = {0};
    sn_err err;
    put_text(&b, "Once upon a time there was a text file.");
    cr_assert_eq(open_bytes(&b, b.len, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "no safetensors file"));
    sn_buf_fini(&b);
    put_u64(&b, 1000), put_text(&b, "{}");
    cr_assert_eq(open_bytes(&b, b.len, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "ends within its header"));
    sn_buf_fini(&b);
    refuses("{", 0, "no valid JSON");
    refuses("[]", 0, "no JSON object");
    refuses("{} {}", 0, "no valid JSON");
    refuses("{\"x\":1,\"x\":2}", 0, "no valid JSON");
    refuses("{\"x\xff\":1}", 0, "no valid JSON");
}

Test(safetensors, refuses_entries_that_do_not_say_what_they_are) {
    refuses("{\"x\":7}", 0, "'x' does not say");
    refuses("{\"x\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "'x' does not say");
    refuses("{\"x\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "'x' does not say");
    refuses("{\"x\":{\"dtype\":\"\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no sensible dtype");
    refuses("{\"x\":{\"dtype\":\"ABCDEFGHIJKLMNOPQ\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no sensible dtype");
    refuses("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "data_offsets");
    refuses("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8.0]}}", 8, "data_offsets");
    refuses("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "impossible data_offsets");
    refuses("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "impossible data_offsets");
    refuses("{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "0 bytes long");
    refuses("{\"a\\nb\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "printable");
}

Test(safetensors, refuses_shapes_that_contradict_the_bytes) {
    refuses("{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "8 bytes where");
    refuses("{\"x\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "impossible shape");
    refuses("{\"x\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, "impossible shape");
    refuses("{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8,
            "impossible shape");
    refuses("{\"x\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "5 dimensions");
}

Test(safetensors, refuses_data_that_overlaps_leaves_gaps_or_reaches_beyond_the_file) {
#define AT(name, from, to) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" from "," to "]}"
    takes("{" AT("a", "0", "4") "," AT("b", "4", "8") "}", 8);
    refuses("{" AT("a", "0", "4") "," AT("b", "2", "6") "}", 6, "'b' overlaps");
    refuses("{" AT("a", "0", "4") "," AT("b", "6", "10") "}", 10, "'b' leaves a gap");
    refuses("{" AT("a", "4", "8") "}", 8, "'a' leaves a gap");
    refuses("{" AT("a", "0", "4") "}", 6, "2 bytes behind the last tensor");
    refuses("{" AT("a", "0", "4") "," AT("b", "4", "8") "}", 6, "'b' reaches beyond");
    refuses("{" AT("a", "9223372036854775803", "9223372036854775807") "}", 8, "'a' reaches beyond");
}

static void refuses_index(const char *json, const char *words) {
    sn_safetensors *s = NULL;
    sn_err err = {0};
    char *folder = temp_folder();
    write_file(folder, "model.safetensors.index.json", json, strlen(json));
    cr_assert_eq(sn_safetensors_open_folder(folder, &s, &err), SN_REFUSED, "%s", json);
    cr_assert(strstr(err.text, words), "'%s' does not say '%s'", err.text, words);
    cr_assert_null(s);
    temp_folder_remove(&folder);
}

Test(safetensors, refuses_an_index_that_leads_out_of_the_folder) {
    refuses_index("{\"weight_map\":{\"x\":\"../secret\"}}", "no plain file name");
    refuses_index("{\"weight_map\":{\"x\":\"/etc/passwd\"}}", "no plain file name");
    refuses_index("{\"weight_map\":{\"x\":\"..\"}}", "no plain file name");
    refuses_index("{\"weight_map\":{\"x\":\"\"}}", "no plain file name");
    refuses_index("{\"weight_map\":{\"x\":7}}", "no plain file name");
    refuses_index("{\"weight_map\":[]}", "no weight_map");
    refuses_index("{}", "no weight_map");
    refuses_index("{", "no valid JSON");
    refuses_index("{\"weight_map\":{}}", "none of the shards");
    refuses_index("{\"weight_map\":{\"x\":\"absent.safetensors\"}}", "none of the shards");
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
    cr_assert(strstr(err.text, "holds neither"));
    temp_folder_remove(&folder);
}

Test(safetensors, gives_back_what_was_written) {
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
    cr_assert_eq(sn_safetensors_write(path, entries, 3, &err), SN_OK, "over an older one: %s", err.text);
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
    temp_folder_remove(&folder); /* fails if an unfinished file in a folder of its own were left */
}

Test(safetensors, refuses_to_write_what_it_could_not_read) {
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
    cr_assert(stat(path, &st) != 0, "a file was left behind");
    free(path);
    free(nowhere);
    temp_folder_remove(&folder);
}
