/* FP8 folders as DeepSeek publishes them: E4M3 with a scale for each 128 by 128 elements, in tensors beside the
 * weights. A damaged or unfitting file is refused. test_bits.c compares what a made model computes. */
#include "base/file.h"
#include "client/api/describe.h"
#include "client/generate/lm_head.h"
#include "device/quant.h"
#include "model/model.h"
#include "model/source.h"
#include "tests/support/files.h"
#include "tests/support/made_model.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

static char *made_of(const made_shape *shape, made_form form) {
    char *folder = temp_folder();
    made_model_write(folder, shape, form);
    return folder;
}

static char *made(made_form form) { return made_of(&made_small, form); }

static sn_model *open_model(const char *folder) {
    sn_model *m = NULL;
    REQUIRE(sn_model_open(folder, &m, &err));
    return m;
}

/* The numbers of the codes 0 to 127, by the definition of E4M3. */
static float value_of(unsigned code) {
    unsigned exponent = code >> 3, mantissa = code & 7;
    return exponent ? ldexpf(1 + (float)mantissa / 8, (int)exponent - 7) : ldexpf((float)mantissa / 8, -6);
}

Test(fp8, every_code_has_the_number_of_its_definition) {
    uint8_t row[132];
    float scale = 3.5f, out[128];
    memcpy(row, &scale, sizeof scale);
    for (unsigned sign = 0; sign < 2; sign++) {
        for (unsigned i = 0; i < 128; i++) row[4 + i] = (uint8_t)(i | sign << 7);
        sn_dequantize_row(SN_F8_E4M3, row, 128, out);
        for (unsigned i = 0; i < 127; i++) cr_expect_eq(out[i], scale * value_of(i) * (sign ? -1.0f : 1.0f), "%u", i);
    }
    cr_assert(value_of(0x7e) == 448.0f && value_of(1) == 0x1p-9f);
}

/* Every matrix of every block, as float32. */
static void expect_same_numbers(const sn_model *a, const sn_model *b) {
    const sn_hparams *hp = sn_model_hparams(a);
    size_t n_f8 = 0;
    for (int block = 0; block < hp->n_blocks; block++)
        for (sn_role role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++)
            for (int i = 0; i < sn_role_n_matrices(hp, role); i++) {
                sn_model_tensor t[2];
                REQUIRE(sn_model_find_expert(a, role, block, i, &t[0], &err));
                REQUIRE(sn_model_find_expert(b, role, block, i, &t[1], &err));
                if (!t[0].data || t[0].dtype != SN_F8_E4M3) continue;
                const void *rows;
                void *copy, *other;
                REQUIRE(sn_model_contiguous(&t[0], &rows, &copy, &err));
                float *got = malloc(t[0].rows * t[0].cols * sizeof *got);
                for (size_t r = 0; r < t[0].rows; r++)
                    sn_dequantize_row(SN_F8_E4M3, (const char *)rows + r * (t[0].bytes / t[0].rows), t[0].cols,
                                      got + r * t[0].cols);
                REQUIRE(sn_model_contiguous(&t[1], &rows, &other, &err));
                for (size_t e = 0; e < t[0].rows * t[0].cols; e++) {
                    float want; /* of a float model, the keys' matrices are transposed */
                    size_t at = t[0].turned ? e % t[0].cols * t[0].rows + e / t[0].cols : e;
                    memcpy(&want, (const char *)rows + at * sizeof want, sizeof want);
                    cr_assert_eq(got[e], want, "block %d, %s %d, element %zu", block, sn_role_name(role), i, e);
                }
                n_f8++;
                free(copy), free(other), free(got);
            }
    cr_assert_gt(n_f8, 100);
}

Test(fp8, weights_have_the_numbers_of_elements_times_scales) {
    for (made_form form = MADE_FP8; form <= MADE_FP8_SINGLE; form++) {
        char *folder = made(form), *plain = made(form == MADE_FP8_SINGLE ? MADE_F32_SINGLE : MADE_F32);
        sn_model *m = open_model(folder), *same = open_model(plain);
        expect_same_numbers(m, same);
        sn_model_close(&m);
        sn_model_close(&same);
        temp_folder_remove(&folder);
        temp_folder_remove(&plain);
    }
}

/* What a client computes with its own weights. */
typedef struct ends {
    float *embedded, *logits, *grad; /* (TOKENS, n_embd), (TOKENS, n_vocab), (TOKENS, n_embd) */
} ends;

enum { TOKENS = 5 };

static ends ends_of(const made_shape *shape, made_form form) {
    const sn_device_options options = {.threads = 1};
    const int32_t ids[TOKENS] = {0, 1, 127, 128, shape->vocab - 1}; /* of the first, second and last row of scales */
    size_t embd = (size_t)shape->embd, vocab = (size_t)shape->vocab;
    ends e = {calloc(TOKENS * embd, sizeof(float)), calloc(TOKENS * vocab, sizeof(float)),
              calloc(TOKENS * embd, sizeof(float))};
    char *folder = made_of(shape, form);
    sn_model *m = open_model(folder);
    sn_device *device;
    sn_lm_head *head;
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &device, &err));
    REQUIRE(sn_lm_head_load(m, device, &head, &err));
    REQUIRE(sn_lm_head_embed(head, ids, TOKENS, e.embedded, &err));
    REQUIRE(sn_lm_head_logits(head, e.embedded, TOKENS, e.logits, &err));
    REQUIRE(sn_lm_head_logits_grad(head, e.embedded, TOKENS, e.logits, e.grad, &err));
    sn_lm_head_free(&head);
    sn_device_close(&device);
    sn_model_close(&m);
    temp_folder_remove(&folder);
    return e;
}

Test(fp8, embedding_and_lm_head_have_the_bits_of_their_numbers_in_float32) {
    for (int tied = 0; tied < 2; tied++) {
        made_shape shape = made_small;
        shape.whole = true;
        shape.tied = tied;
        size_t hidden = TOKENS * (size_t)shape.embd * sizeof(float),
               logits = TOKENS * (size_t)shape.vocab * sizeof(float);
        ends a = ends_of(&shape, MADE_FP8), b = ends_of(&shape, MADE_F32);
        cr_expect(!memcmp(a.embedded, b.embedded, hidden) && a.embedded[0] != 0, "embedding, tied %d", tied);
        cr_expect(!memcmp(a.logits, b.logits, logits) && a.logits[0] != 0, "logits, tied %d", tied);
        cr_expect(!memcmp(a.grad, b.grad, hidden) && a.grad[0] != 0, "gradient, tied %d", tied);
        free(a.embedded), free(a.logits), free(a.grad);
        free(b.embedded), free(b.logits), free(b.grad);
    }
}

/* -- damaged files */

static void expect_refused(made_form form, const char *says) {
    char *folder = made(form);
    sn_model *m = NULL;
    sn_err why = {0};
    cr_assert_eq(sn_model_open(folder, &m, &why), SN_REFUSED);
    cr_assert(strstr(why.text, says), "%s", why.text);
    temp_folder_remove(&folder);
}

Test(fp8, scales_of_another_shape_or_type_are_refused) {
    expect_refused(MADE_FEW_SCALES, "self_attn.o_proj.weight' (256, 256) in FP8 has scales (1, 2)");
    expect_refused(MADE_ODD_SCALES, "of type F16");
}

Test(fp8, rows_that_no_scale_divides_are_refused) {
    made_shape shape = made_small;
    sn_model *m = NULL;
    sn_err why = {0};
    shape.ff = 96;
    char *folder = made_of(&shape, MADE_FP8);
    cr_assert_eq(sn_model_open(folder, &m, &why), SN_REFUSED);
    cr_assert(strstr(why.text, "rows of a multiple of 128"), "%s", why.text);
    temp_folder_remove(&folder);
}

Test(fp8, missing_scales_make_their_block_missing) {
    char *folder = made(MADE_NO_SCALE);
    sn_model *m = open_model(folder);
    cr_assert(sn_model_has_block(m, 0) && !sn_model_has_block(m, 1) && sn_model_has_block(m, 2));
    sn_model_close(&m);
    temp_folder_remove(&folder);
}

Test(fp8, nan_and_endless_scales_are_refused_when_they_are_read) {
    for (made_form form = MADE_NAN; form <= MADE_ENDLESS; form++) {
        char *folder = made(form);
        sn_model *m = open_model(folder);
        sn_hash hash;
        sn_err why = {0};
        REQUIRE(sn_model_block_hash(m, 0, &hash, &err));
        cr_assert_eq(sn_model_block_hash(m, 1, &hash, &why), SN_REFUSED);
        cr_assert(strstr(why.text, "fetch it again"), "%s", why.text);
        sn_model_close(&m);
        temp_folder_remove(&folder);
    }
}

/* -- identity and fetching in part */

Test(fp8, a_changed_scale_is_another_block) {
    char *folder = made(MADE_FP8);
    sn_model *m = open_model(folder);
    sn_hash before, after;
    sn_model_tensor t;
    const char *path;
    uint64_t offset;
    size_t bytes;
    REQUIRE(sn_model_block_hash(m, 1, &before, &err));
    REQUIRE(sn_model_find_expert(m, SN_ROLE_EXPERTS_UP, 1, 3, &t, &err));
    cr_assert(sn_model_file_of(m, sn_model_run_scales(&t, 0, &bytes), &path, &offset));
    FILE *file = fopen(path, "r+b");
    float other = 0.25f;
    cr_assert(file && !fseek(file, (long)offset, SEEK_SET) && fwrite(&other, sizeof other, 1, file) == 1);
    fclose(file);
    sn_model_close(&m);
    m = open_model(folder);
    REQUIRE(sn_model_block_hash(m, 1, &after, &err));
    cr_assert(memcmp(before.bytes, after.bytes, SN_HASH_SIZE));
    sn_model_close(&m);
    temp_folder_remove(&folder);
}

typedef struct wanted {
    size_t n;
    uint64_t from[8192], end[8192];
} wanted;

static sn_status want(void *context, const char *path, uint64_t from, uint64_t bytes, sn_err *err) {
    wanted *w = context;
    (void)path, (void)err;
    cr_assert_lt(w->n, 8192);
    w->from[w->n] = from;
    w->end[w->n++] = from + bytes;
    return SN_OK;
}

static sn_status fetch(void *context, const char *what, sn_err *err) {
    (void)context, (void)what, (void)err;
    return SN_OK;
}

static bool covers(const wanted *w, uint64_t from, uint64_t end) {
    for (size_t i = 0; i < w->n && from < end; i++)
        if (w->from[i] <= from && from < w->end[i]) from = w->end[i], i = (size_t)-1;
    return from >= end;
}

static void expect_fetched_with_scales(made_form form) {
    static wanted w;
    char *folder = made(form);
    sn_model *m = open_model(folder);
    sn_model_set_source(m, &(sn_model_source){.context = &w, .want = want, .fetch = fetch});
    REQUIRE(sn_model_need_block(m, 2, &err));
    int n_scales = 0;
    for (size_t i = 0; i < sn_model_n_tensors(m); i++) {
        const char *name, *type, *path;
        sn_model_tensor t;
        uint64_t from;
        sn_model_tensor_at(m, i, &name, &type, &t);
        cr_assert(sn_model_file_of(m, t.data, &path, &from));
        bool own = !strncmp(name, "model.layers.2.", 15) && !strstr(name, ".activation_scale"),
             scales = strstr(name, "_scale_inv");
        size_t bytes = t.dtype == SN_F8_E4M3 ? t.rows * t.cols : t.bytes;
        cr_expect_eq(covers(&w, from, from + bytes), own, "%s", name);
        n_scales += own && scales;
    }
    cr_assert_eq(n_scales, 5 + 3 + 3 * made_small.experts);
    sn_model_close(&m);
    temp_folder_remove(&folder);
    w.n = 0;
}

Test(fp8, a_block_that_is_fetched_comes_with_all_its_scales) {
    expect_fetched_with_scales(MADE_FP8);
    expect_fetched_with_scales(MADE_FP8_SINGLE);
}

/* What `swarm inspect` says of a model's weights. */
static void describe(made_form form, json_int_t *parameters, json_int_t *bytes) {
    char *folder = made(form), *path = temp_path(folder, "model.safetensors");
    sn_model *m = open_model(folder);
    json_t *o, *value;
    const char *type;
    sn_buf file;
    REQUIRE(sn_model_json(m, false, false, &o, &err));
    *parameters = json_integer_value(json_object_get(o, "parameters"));
    *bytes = 0;
    json_object_foreach(json_object_get(o, "type_bytes"), type, value) *bytes += json_integer_value(value);
    REQUIRE(sn_read_file(path, 1 << 28, &file, &err));
    uint64_t header;
    memcpy(&header, file.data, sizeof header);
    cr_expect_eq(*bytes, (json_int_t)(file.len - sizeof header - header), "bytes of form %d", (int)form);
    sn_buf_fini(&file);
    json_decref(o);
    sn_model_close(&m);
    free(path);
    temp_folder_remove(&folder);
}

Test(fp8, scales_are_counted_once_and_as_no_parameters) {
    json_int_t parameters[2], bytes;
    describe(MADE_F32, &parameters[0], &bytes);
    cr_expect_eq(bytes, 4 * parameters[0]);
    for (made_form form = MADE_FP8; form <= MADE_FP8_SINGLE; form++) {
        describe(form, &parameters[1], &bytes);
        cr_expect_eq(parameters[1], parameters[0], "form %d", (int)form);
    }
}

/* The router of one expert is such a matrix, and stands last in the file. */
Test(fp8, a_matrix_of_one_row_is_read_within_the_file) {
    static wanted w;
    made_shape shape = made_small;
    shape.whole = true;
    shape.experts = shape.used = shape.groups = shape.groups_used = 1;
    char *folder = made_of(&shape, MADE_FP8), *path = temp_path(folder, "model.safetensors");
    sn_model *m = open_model(folder);
    sn_model_tensor t;
    struct stat file;
    size_t bytes;
    sn_hash hash, again;
    REQUIRE(sn_model_find(m, SN_ROLE_ROUTER, 2, &t, &err));
    cr_assert(t.dtype == SN_F8_E4M3 && t.rows == 1 && sn_model_n_runs(&t) == 1 && !stat(path, &file));
    cr_assert_eq(sn_model_run(&t, 0, &bytes), t.data);
    cr_assert_eq(bytes, (size_t)shape.embd);
    cr_assert_eq(sn_model_run_scales(&t, 0, &bytes), t.scales);
    cr_assert_eq(bytes, (size_t)shape.embd / 128 * sizeof(float));
    sn_model_set_source(m, &(sn_model_source){.context = &w, .want = want, .fetch = fetch});
    REQUIRE(sn_model_block_hash(m, 2, &hash, &err));
    for (size_t i = 0; i < w.n; i++) cr_assert_leq(w.end[i], (uint64_t)file.st_size);
    REQUIRE(sn_model_block_hash(m, 2, &again, &err)); /* the first one released the pages */
    cr_assert_arr_eq(hash.bytes, again.bytes, SN_HASH_SIZE);
    sn_model_close(&m);
    free(path);
    temp_folder_remove(&folder);
}
