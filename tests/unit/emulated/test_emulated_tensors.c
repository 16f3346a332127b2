/* KV caches, rows, gradients and adapters that come from another device than the span's
 * (tests/support/emulated_span.h). */
#include "tests/support/emulated_span.h"

#include "blocks/train.h"
#include "model/safetensors.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(emulated_tensors, .init = emulated_devices_begin, .fini = emulated_devices_close);

/* -- KV caches of other devices */

static void expect_same_kv(emulated_span *a, emulated_span *b, int n) {
    const size_t all = (size_t)n * sn_kv_width(a->hp, 0, a->hp->n_blocks); /* more than one block's */
    float *parts[2] = {malloc(all * sizeof(float)), malloc(all * sizeof(float))};
    for (int block = 0; block < a->hp->n_blocks; block++) {
        size_t keys = (size_t)n * sn_kv_key_width(a->hp, block), values = (size_t)n * sn_kv_value_width(a->hp, block);
        REQUIRE(sn_span_kv_export(a->span, a->kv, block, 0, n, parts[0], parts[0] + keys, &err));
        REQUIRE(sn_span_kv_export(b->span, b->kv, block, 0, n, parts[1], parts[1] + keys, &err));
        cr_expect(!memcmp(parts[0], parts[1], (keys + values) * sizeof(float)),
                  "block %d has other keys or values as %s", block, sn_kv_dtype_name(emulated_kv_dtype));
    }
    free(parts[0]), free(parts[1]);
}

enum { N_PAST = 37, ALL = 45 };

static void move_index_keys(const emulated_span *from, const emulated_span *to, int block) {
    float *keys = malloc(N_PAST * (size_t)from->hp->index_dim * sizeof *keys);
    REQUIRE(sn_span_index_export(from->span, from->kv, block, 0, N_PAST, keys, &err));
    REQUIRE(sn_span_index_import(to->span, to->kv, block, N_PAST, keys, &err));
    free(keys);
}

/* Moves the first N_PAST positions of a session to one that has none. */
static void move_session(const emulated_span *from, const emulated_span *to) {
    const size_t all = N_PAST * sn_kv_width(from->hp, 0, from->hp->n_blocks); /* more than one block's */
    float *k = malloc(all * sizeof *k), *v = malloc(all * sizeof *v);
    REQUIRE(sn_kv_cache_reserve(to->kv, N_PAST, &err));
    for (int block = 0; block < from->hp->n_blocks; block++) {
        REQUIRE(sn_span_kv_export(from->span, from->kv, block, 0, N_PAST, k, v, &err));
        REQUIRE(sn_span_kv_import_rows(to->span, to->kv, block, N_PAST, k, v, &err));
        if (sn_chooses_keys(from->hp, block)) move_index_keys(from, to, block);
    }
    sn_kv_cache_append(to->kv, N_PAST);
    free(k), free(v);
}

/* Sessions of the model on each of the devices go on on each of them, with the bits of their KV caches. `most`: by how
 * much the rows may differ. */
static void expect_sessions_to_move(const char *path, double most) {
    static const char *const maps[] = {"0:4=cpu", "0:4=cuda:0", "0:4=xpu:0", "0:1=xpu:0,1:2=cpu,2:4=cuda:0"};
    for (int from = 0; from < 4; from++) {
        emulated_span a = emulated_span_open(path, maps[from], NULL);
        size_t n = (size_t)(ALL - N_PAST) * (size_t)a.hp->n_embd;
        float *past = make_rows(ALL, a.hp->n_embd), *next = past + (size_t)N_PAST * (size_t)a.hp->n_embd;
        float *here = malloc(n * sizeof *here), *there = malloc(n * sizeof *there);
        memcpy(here, next, n * sizeof *here);
        run_rows(&a, past, N_PAST, 1);
        run_rows(&a, here, ALL - N_PAST, 1);
        for (int to = 0; to < 4; to++) {
            emulated_span b = emulated_span_open(path, maps[to], NULL);
            move_session(&a, &b);
            expect_same_kv(&a, &b, N_PAST);
            memcpy(there, next, n * sizeof *there);
            run_rows(&b, there, ALL - N_PAST, 1);
            double d = largest_distance(there, here, n);
            cr_expect(from == to ? d == 0 : d < most, "%s: KV cache of %s on %s: %g", path, maps[from], maps[to], d);
            emulated_span_close(&b);
        }
        free(past), free(here), free(there);
        emulated_span_close(&a);
    }
}

Test(emulated_tensors, a_session_continues_with_kv_of_another_device) {
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    expect_sessions_to_move(path, 1e-4);
    for (emulated_kv_dtype = SN_KV_F16; emulated_kv_dtype <= SN_KV_Q8; emulated_kv_dtype++)
        expect_sessions_to_move(path, emulated_kv_dtype == SN_KV_Q8 ? 5e-2 : 5e-3);
    tiny_model_remove(&path);
}

Test(emulated_tensors, a_session_continues_with_latents_of_another_device) {
    expect_sessions_to_move(SN_FIXTURES "/golden/deepseek_v3", 1e-4);
    expect_sessions_to_move(SN_FIXTURES "/golden/deepseek_v32_sparse", 1e-4);
    emulated_kv_dtype = SN_KV_Q8;
    expect_sessions_to_move(SN_FIXTURES "/golden/deepseek_v3", 5e-2);
}

/* -- numbers with which CPUs are slow, which no device computes with */

Test(emulated_tensors, tiny_numbers_are_computed_as_zeros_by_all_devices) {
    static const char *const maps[] = {"0:4=cpu", "0:4=cuda:0", "0:4=xpu:0"};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    for (int m = 0; m < 3; m++) {
        emulated_span zeros = emulated_span_open(path, maps[m], NULL), tiny = emulated_span_open(path, maps[m], NULL);
        size_t n = (size_t)zeros.hp->n_embd;
        float *expected = calloc(n, sizeof *expected), *rows = calloc(n, sizeof *rows);
        for (size_t i = 0; i < n; i++) rows[i] = 1e-20f;
        run_rows(&zeros, expected, 1, 1);
        run_rows(&tiny, rows, 1, 1);
        cr_expect(!memcmp(rows, expected, n * sizeof *rows), "%s computes with tiny numbers", maps[m]);
        free(expected), free(rows);
        emulated_span_close(&zeros), emulated_span_close(&tiny);
    }
    tiny_model_remove(&path);
}

/* -- tensors from anywhere */

/* A tensor in the memory of a device, NULL: on the host, as F32 or BF16; free it with outside_free. */
typedef struct outside {
    sn_tensor tensor;
    void *memory;
    size_t bytes;
} outside;

static outside outside_new(sn_device *device, sn_dtype dtype, const float *from, int rank, const int64_t *shape) {
    outside o = {.tensor = {.name = "outside", .device = device, .dtype = dtype, .rank = rank}};
    size_t n = 1;
    for (int i = 0; i < rank; i++) n *= (size_t)(o.tensor.shape[i] = shape[i]);
    o.bytes = n * sn_dtype_bytes(dtype);
    void *host = malloc(o.bytes);
    for (size_t i = 0; i < n && dtype == SN_BF16; i++) ((uint16_t *)host)[i] = sn_f32_to_bf16(from[i]);
    if (dtype == SN_F32) memcpy(host, from, o.bytes);
    o.memory = host;
    if (device) {
        REQUIRE(device->ops->alloc(device, o.bytes, &o.memory, &err));
        REQUIRE(device->ops->upload(device, o.memory, host, o.bytes, &err));
        free(host);
    }
    o.tensor.data = o.memory;
    return o;
}

static void outside_free(outside *o) {
    sn_device *device = o->tensor.device;
    if (device)
        device->ops->free(device, o->memory, o->bytes);
    else
        free(o->memory);
}

/* Numbers that bfloat16 has, too. */
static float *make_short_numbers(size_t n) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)((int)(i * 37 % 129) - 64) / 64;
    return x;
}

Test(emulated_tensors, imported_kv_of_any_device_and_type_enters_through_the_guard) {
    enum { N = 37 };
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    emulated_span w = emulated_span_open(path, "0:1=xpu:0,1:2=cpu,2:4=cuda:0", NULL);
    const int64_t shape[] = {N, w.hp->n_kv_heads, w.hp->head_dim};
    size_t n = (size_t)(N * w.hp->n_kv_heads * w.hp->head_dim);
    float *k = make_short_numbers(n), *v = make_short_numbers(n), *got = malloc(2 * n * sizeof *got);
    for (size_t i = 0; i < n; i++) v[i] = -v[i] / 2;
    REQUIRE(sn_kv_cache_reserve(w.kv, N, &err));
    for (int b = 0; b < 4; b++)
        for (int d = -1; d < N_DEVICES; d++)
            for (int half = 0; half < 2; half++) {
                sn_device *device = d < 0 ? NULL : emulated_devices[d];
                outside keys = outside_new(device, half ? SN_BF16 : SN_F32, k, 3, shape),
                        values = outside_new(device, half ? SN_F32 : SN_BF16, v, 3, shape);
                REQUIRE(sn_span_kv_import(w.span, w.kv, b, N, &keys.tensor, &values.tensor, &err));
                sn_err err;
                keys.tensor.shape[0] = N + 1;
                cr_expect_eq(sn_span_kv_import(w.span, w.kv, b, N, &keys.tensor, &values.tensor, &err), SN_REFUSED);
                outside_free(&keys);
                outside_free(&values);
            }
    sn_kv_cache_append(w.kv, N);
    for (int b = 0; b < 4; b++) {
        REQUIRE(sn_span_kv_export(w.span, w.kv, b, 0, N, got, got + n, &err));
        cr_expect(!memcmp(got, k, n * sizeof *k) && !memcmp(got + n, v, n * sizeof *v), "block %d", b);
    }
    free(k), free(v), free(got);
    emulated_span_close(&w);
    tiny_model_remove(&path);
}

/* A deep prompt and LoRA matrices of block 1, as `dtype`. */
static sn_adapter *load_adapter(emulated_span *w, sn_dtype dtype) {
    size_t embd = (size_t)w->hp->n_embd;
    float *values = make_short_numbers(8 * embd);
    void *data = values;
    if (dtype == SN_BF16) {
        data = malloc(8 * embd * sizeof(uint16_t));
        for (size_t i = 0; i < 8 * embd; i++) ((uint16_t *)data)[i] = sn_f32_to_bf16(values[i]);
    }
    const char *at = data;
    size_t row = embd * sn_dtype_bytes(dtype);
    const sn_safetensors_entry entries[] = {{"prompt.1", dtype, 2, {3, embd}, at},
                                            {"lora_a.1.q", dtype, 2, {2, embd}, at + 3 * row},
                                            {"lora_b.1.q", dtype, 2, {embd, 2}, at + 5 * row}};
    sn_buf image;
    sn_adapter *adapter = NULL;
    sn_buf_init(&image, 1 << 20);
    REQUIRE(sn_safetensors_serialize(entries, 3, &image, &err));
    REQUIRE(sn_adapter_load(w->span, image.data, image.len, &adapter, &err));
    sn_buf_fini(&image);
    if (data != values) free(data);
    free(values);
    return adapter;
}

/* The gradient of 20 rows and then of the adapter, from tensors on a device (NULL: the host), in pieces of `budget`. */
static float *train_gradients(emulated_span *w, sn_device *device, sn_dtype dtype, size_t budget, size_t *n) {
    enum { ROWS = 20 };
    size_t floats = ROWS * (size_t)w->hp->n_embd;
    float *x = make_short_numbers(2 * floats);
    const int64_t shape[] = {ROWS, w->hp->n_embd};
    outside in = outside_new(device, dtype, x, 2, shape), dout = outside_new(device, SN_F32, x + floats, 2, shape);
    sn_adapter *adapter = load_adapter(w, dtype);
    sn_train *train = NULL;
    *n = floats + sn_adapter_n_params(adapter, 0, 4);
    float *out = calloc(*n, sizeof *out);
    REQUIRE(sn_train_new(w->span, ROWS, &train, &err));
    REQUIRE(sn_train_start_backward(train, &(sn_train_sequence){0, 4, adapter, &in.tensor}, NULL, &dout.tensor, out,
                                    out + floats, &err));
    for (bool done = false; !done;) REQUIRE(sn_train_run(train, budget, NULL, &done, &err));
    sn_train_free(&train);
    sn_adapter_free(&adapter);
    outside_free(&in);
    outside_free(&dout);
    free(x);
    return out;
}

Test(emulated_tensors, training_takes_tensors_and_adapters_through_the_guard_in_pieces_of_any_size) {
    static const char *const maps[] = {"0:4=cpu", "0:4=cuda:0", "0:4=xpu:0", "0:1=cpu,1:2=cuda:0,2:3=xpu:0,3:4=cpu"};
    char *path = tiny_model_make(&(tiny_model_options){.dtype = SN_F32});
    float *first = NULL;
    for (int m = 0; m < 4; m++) {
        emulated_span w = emulated_span_open(path, maps[m], NULL);
        size_t n;
        float *host = train_gradients(&w, NULL, SN_F32, SIZE_MAX, &n);
        for (int d = -1; d < N_DEVICES; d++) {
            float *there = train_gradients(&w, d < 0 ? NULL : emulated_devices[d], SN_BF16, SIZE_MAX, &n);
            cr_expect(!memcmp(host, there, n * sizeof *host), "%s from device %d", maps[m], d);
            free(there);
        }
        float *pieces = train_gradients(&w, NULL, SN_F32, 1, &n);
        if (!first) first = memcpy(malloc(n * sizeof *host), host, n * sizeof *host);
        double whole = largest_distance(host, first, n), cut = largest_distance(pieces, first, n);
        cr_expect_leq(whole, m ? 3e-2 : 0, "%s: %g", maps[m], whole);
        cr_expect_leq(cut, m ? 3e-2 : 0, "%s, in pieces: %g", maps[m], cut);
        free(host), free(pieces);
        emulated_span_close(&w);
    }
    free(first);
    tiny_model_remove(&path);
}
