#include "device/guard.h"
#include "base/log.h"
#include "tests/support/far_device.h"

#include <criterion/criterion.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sn_err err;
static sn_device *cpu;

static void open_cpu(void) {
    sn_device_options options = {.threads = 1};
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &cpu, &err), SN_OK);
}
static void close_cpu(void) { sn_device_close(&cpu); }
TestSuite(guard, .init = open_cpu, .fini = close_cpu);

static const float numbers[] = {0, 1, -2.5f, 0.0625f, 1024, -0.5f};

static sn_tensor tensor_2x3(sn_dtype dtype, const void *data) {
    return (sn_tensor){.name = "hidden states", .data = data, .dtype = dtype, .rank = 2, .shape = {2, 3}};
}

Test(guard, converts_every_wire_type_to_float32) {
    uint16_t half[6], bfloat[6];
    for (int i = 0; i < 6; i++) {
        half[i] = sn_f32_to_f16(numbers[i]);
        bfloat[i] = sn_f32_to_bf16(numbers[i]);
    }
    const sn_tensor all[] = {tensor_2x3(SN_F32, numbers), tensor_2x3(SN_F16, half), tensor_2x3(SN_BF16, bfloat)};
    for (int i = 0; i < 3; i++) {
        float out[6] = {NAN};
        uint64_t moved = 5;
        cr_assert_eq(sn_guard(&all[i], cpu, 2, (int64_t[]){-1, 3}, out, &moved, &err), SN_OK, "%s", err.text);
        cr_assert_arr_eq(out, numbers, sizeof out);
        cr_assert_eq(moved, 5, "host memory belongs to the CPU device");
    }
}

Test(guard, accepts_unaligned_data_and_keeps_its_bits) {
    uint8_t bytes[25];
    float out[6];
    memset(bytes, 0xff, sizeof bytes); /* NaN */
    memcpy(bytes + 1, numbers, 5 * sizeof(float));
    sn_tensor t = tensor_2x3(SN_F32, bytes + 1);
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){2, 3}, out, NULL, &err), SN_OK);
    cr_assert_arr_eq(out, bytes + 1, sizeof out);
}

Test(guard, follows_strides) {
    float data[4 * 10], out[2 * 3 * 2];
    for (int i = 0; i < 40; i++) data[i] = (float)i;
    sn_tensor t = {.name = "KV cache keys",
                   .data = data,
                   .device = cpu,
                   .dtype = SN_F32,
                   .rank = 3,
                   .shape = {2, 3, 2},
                   .strides = {1, 10, 4}};
    cr_assert_eq(sn_guard(&t, cpu, 3, (int64_t[]){2, -1, 2}, out, NULL, &err), SN_OK, "%s", err.text);
    for (int i = 0; i < 12; i++) cr_assert_eq(out[i], (float)(i / 6 + i / 2 % 3 * 10 + i % 2 * 4));
    float one;
    sn_tensor scalar = {.name = "scale", .data = data + 7, .dtype = SN_F32, .rank = 0};
    cr_assert_eq(sn_guard(&scalar, cpu, 0, NULL, &one, NULL, &err), SN_OK);
    cr_assert_eq(one, 7);
}

Test(guard, accepts_empty_tensors_but_not_of_another_shape) {
    sn_tensor t = {.name = "past values", .dtype = SN_BF16, .rank = 3, .shape = {0, 2, 64}};
    cr_assert_eq(sn_guard(&t, cpu, 3, (int64_t[]){-1, 2, 64}, NULL, NULL, &err), SN_OK);
    cr_assert_eq(sn_guard(&t, cpu, 3, (int64_t[]){-1, 2, 63}, NULL, NULL, &err), SN_REFUSED);
    t.shape[2] = INT64_MAX; /* huge times 0 */
    t.shape[1] = INT64_MAX;
    cr_assert_eq(sn_guard(&t, cpu, 3, (int64_t[]){-1, -1, -1}, NULL, NULL, &err), SN_OK);
}

Test(guard, reports_actual_and_expected_shape_and_type) {
    float out[6];
    sn_tensor t = tensor_2x3(SN_F32, numbers);
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){-1, 4}, out, NULL, &err), SN_REFUSED);
    cr_assert_str_eq(err.text,
                     "hidden states, in host memory and needed on cpu: the shape is (2, 3) and has to be (*, 4): "
                     "send it in that shape");
    cr_assert_eq(sn_guard(&t, cpu, 3, (int64_t[]){1, 2, 3}, out, NULL, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "(1, 2, 3)"));
    t.dtype = SN_Q4_1;
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){2, 3}, out, NULL, &err), SN_REFUSED);
    cr_assert_str_eq(err.text,
                     "hidden states, in host memory and needed on cpu: the type is Q4_1 and has to be F32, F16 or "
                     "BF16: convert it first");
    t = tensor_2x3(SN_F32, NULL);
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){2, 3}, out, NULL, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "no data"));
    t = tensor_2x3(SN_F32, numbers);
    t.shape[0] = -1;
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){-1, 3}, out, NULL, &err), SN_REFUSED);
    t.rank = 5;
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){-1, 3}, out, NULL, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "it has 5 dimensions, but at most 4 are allowed"));
    t = tensor_2x3(SN_F32, numbers);
    t.strides[0] = -3;
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){-1, 3}, out, NULL, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "stride"));
    t = tensor_2x3(SN_F32, numbers);
    t.shape[0] = t.shape[1] = INT64_MAX / 2;
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){-1, -1}, out, NULL, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "overflows"));
    t.shape[0] = t.shape[1] = 2;
    t.strides[0] = t.strides[1] = INT64_MAX;
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){-1, -1}, out, NULL, &err), SN_REFUSED);
}

/* -- between host memory, the CPU device, and two devices whose memory faults when the host touches it */

enum { PLACES = 4, N_MAX = 256 };

static far_device cuda, xpu;
static sn_device *device_of(int place) {
    sn_device *const places[PLACES] = {NULL, cpu, &cuda.base, &xpu.base};
    return places[place];
}
static bool is_far(int place) { return place >= 2; }
static const char *const place_names[] = {"in host memory", "on cpu", "on cuda:0", "on xpu:0"};

static void open_far(void) {
    open_cpu();
    far_device_init(&cuda, SN_DEVICE_CUDA, 0);
    far_device_init(&xpu, SN_DEVICE_XPU, 0);
}
TestSuite(guard_table, .init = open_far, .fini = close_cpu);

static void *new_memory(int place, size_t bytes) {
    void *memory = calloc(1, bytes);
    sn_device *d = device_of(place);
    if (!d) return memory;
    free(memory);
    cr_assert_eq(d->ops->alloc(d, bytes, &memory, &err), SN_OK);
    return memory;
}
static void free_memory(int place, void *memory, size_t bytes) {
    sn_device *d = device_of(place);
    if (d)
        d->ops->free(d, memory, bytes);
    else
        free(memory);
}
static void write_memory(int place, void *memory, const void *data, size_t bytes) {
    sn_device *d = device_of(place);
    if (!d)
        memcpy(memory, data, bytes);
    else
        cr_assert_eq(d->ops->upload(d, memory, data, bytes, &err), SN_OK);
}
static void read_memory(int place, const void *memory, void *data, size_t bytes) {
    sn_device *d = device_of(place);
    if (!d)
        memcpy(data, memory, bytes);
    else
        cr_assert_eq(d->ops->download(d, data, memory, bytes, &err), SN_OK);
}

/* Tensors that come from outside of a span. */
static const struct {
    const char *name;
    int rank;
    int64_t shape[SN_TENSOR_DIMS_MAX], wanted[SN_TENSOR_DIMS_MAX];
} kinds[] = {
    {"hidden states", 2, {5, 12}, {-1, 12}},
    {"KV cache keys", 3, {7, 2, 8}, {-1, 2, 8}},
    {"past values", 3, {7, 2, 8}, {-1, 2, 8}},
    /* The case of a new session that joined a KV cache on the CPU with keys on a GPU. */
    {"KV cache keys", 3, {0, 2, 8}, {-1, 2, 8}},
    {"past values", 3, {0, 2, 8}, {-1, 2, 8}},
    {"positions", 1, {9}, {9}},
    {"mask", 2, {3, 10}, {3, -1}},
    {"prompts", 3, {2, 4, 12}, {2, -1, 12}},
    {"adapter", 2, {12, 4}, {12, 4}},
    {"imported cache", 4, {2, 6, 2, 8}, {2, -1, 2, 8}},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

typedef struct guard_case {
    sn_tensor tensor;
    uint8_t data[N_MAX * 3 * sizeof(float)]; /* in the layout of its device */
    size_t data_bytes, n;
    float wanted[N_MAX];
} guard_case;

static void store_as(sn_dtype dtype, float value, uint8_t *out) {
    uint16_t half = dtype == SN_F16 ? sn_f32_to_f16(value) : sn_f32_to_bf16(value);
    if (dtype == SN_F32)
        memcpy(out, &value, sizeof value);
    else
        memcpy(out, &half, sizeof half);
}

/* Element i of the tensor is a number that all three types represent exactly. Strided: the first dimension runs
 * fastest, and every other element does not belong to the tensor. */
static void make_guard_case(guard_case *t, int kind, int from, sn_dtype dtype, bool strided) {
    size_t size = sn_dtype_bytes(dtype);
    *t = (guard_case){
        .n = 1,
        .tensor = {.name = kinds[kind].name, .device = device_of(from), .dtype = dtype, .rank = kinds[kind].rank}};
    for (int i = 0; i < kinds[kind].rank; i++) {
        t->tensor.shape[i] = kinds[kind].shape[i];
        t->tensor.strides[i] = strided ? 2 * (int64_t)(t->n ? t->n : 1) : 0;
        t->n *= (size_t)kinds[kind].shape[i];
    }
    cr_assert_leq(t->n, N_MAX);
    memset(t->data, 0xff, sizeof t->data);
    for (size_t i = 0; i < t->n; i++) {
        size_t at = i, rest = i;
        if (strided) at = 0;
        for (int k = kinds[kind].rank - 1; strided && k >= 0; k--) {
            at += rest % (size_t)kinds[kind].shape[k] * (size_t)t->tensor.strides[k];
            rest /= (size_t)kinds[kind].shape[k];
        }
        t->wanted[i] = (float)((int)(i * 37 % 255) - 127) * 0.5f;
        store_as(dtype, t->wanted[i], t->data + at * size);
    }
    t->data_bytes = t->n * size * (strided ? 2 : 1);
}

static void move_tensor(const guard_case *t, int kind, int from, int to) {
    float got[N_MAX + 1], canary = 12345;
    size_t bytes = (t->n + 1) * sizeof(float);
    uint64_t moved = 3;
    sn_tensor tensor = t->tensor;
    void *source = new_memory(from, t->data_bytes), *out = new_memory(to, bytes);
    write_memory(from, source, t->data, t->data_bytes);
    write_memory(to, (float *)out + t->n, &canary, sizeof canary);
    tensor.data = t->n ? source : NULL;
    sn_status status = sn_guard(&tensor, device_of(to), kinds[kind].rank, kinds[kind].wanted, out, &moved, &err);
    cr_assert_eq(status, SN_OK, "%s %s -> %s: %s", tensor.name, place_names[from], place_names[to], err.text);
    read_memory(to, out, got, bytes);
    cr_assert_arr_eq(got, t->wanted, t->n * sizeof(float), "%s %s -> %s", tensor.name, place_names[from],
                     place_names[to]);
    cr_assert_eq(got[t->n], canary, "%s was written beyond its end", tensor.name);
    cr_assert_eq(moved - 3, is_far(from) || is_far(to) ? t->n * sn_dtype_bytes(tensor.dtype) : 0, "%s %s -> %s",
                 tensor.name, place_names[from], place_names[to]);
    free_memory(from, source, t->data_bytes);
    free_memory(to, out, bytes);
}

Test(guard_table, moves_every_tensor_between_all_places) {
    static guard_case t;
    int tried = 0;
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int from = 0; from < PLACES; from++)
            for (int to = 0; to < PLACES; to++)
                for (int dtype = 0; dtype < 3; dtype++)
                    for (int strided = 0; strided < 2; strided++) {
                        make_guard_case(&t, kind, from, (const sn_dtype[]){SN_F32, SN_F16, SN_BF16}[dtype], strided);
                        move_tensor(&t, kind, from, to);
                        tried++;
                    }
    cr_assert_eq(tried, 10 * 16 * 3 * 2);
    cr_assert(cuda.n_held == 0 && xpu.n_held == 0 && cuda.n_wrong == 0 && xpu.n_wrong == 0);
}

Test(guard_table, empty_tensors_need_no_memory_and_touch_no_device) {
    for (int from = 0; from < PLACES; from++)
        for (int to = 0; to < PLACES; to++) {
            sn_tensor t = {
                .name = "KV cache keys", .device = device_of(from), .dtype = SN_F16, .rank = 3, .shape = {0, 2, 8}};
            cuda.fail_at = xpu.fail_at = 1;
            cr_assert_eq(sn_guard(&t, device_of(to), 3, (int64_t[]){-1, 2, 8}, NULL, NULL, &err), SN_OK);
            cr_assert_eq(sn_guard(&t, device_of(to), 3, (int64_t[]){-1, 2, 9}, NULL, NULL, &err), SN_REFUSED);
        }
    cr_assert(cuda.n_calls == 0 && xpu.n_calls == 0);
}

Test(guard_table, plain_float32_is_copied_once) {
    static guard_case t;
    void *far, *host = calloc(1, 60 * sizeof(float));
    make_guard_case(&t, 0, 0, SN_F32, false);
    t.tensor.data = t.data;
    far = new_memory(2, 60 * sizeof(float));
    cr_assert_eq(sn_guard(&t.tensor, &cuda.base, 2, (int64_t[]){5, 12}, far, NULL, &err), SN_OK);
    cr_assert(cuda.n_upload == 1 && cuda.n_download == 0);
    t.tensor.device = &cuda.base;
    t.tensor.data = far;
    cr_assert_eq(sn_guard(&t.tensor, NULL, 2, (int64_t[]){5, 12}, host, NULL, &err), SN_OK);
    cr_assert(cuda.n_upload == 1 && cuda.n_download == 1);
    cr_assert_arr_eq(host, t.wanted, 60 * sizeof(float));
    free_memory(2, far, 60 * sizeof(float));
    free(host);
}

/* Every error names the tensor, its device, the device where it is needed, and the remedy. */
Test(guard_table, errors_name_the_tensor_its_device_and_the_remedy) {
    static guard_case t;
    for (int from = 0; from < PLACES; from++)
        for (int to = 0; to < PLACES; to++) {
            char where[96];
            snprintf(where, sizeof where, "prompts, %s and needed %s: ", place_names[from], place_names[to]);
            make_guard_case(&t, 7, from, SN_F32, false);
            t.tensor.data = t.data; /* never read */
            float out[N_MAX];
            cr_assert_eq(sn_guard(&t.tensor, device_of(to), 3, (int64_t[]){2, -1, 13}, out, NULL, &err), SN_REFUSED);
            cr_assert(!strncmp(err.text, where, strlen(where)), "%s", err.text);
            cr_assert(strstr(err.text, "send it in that shape"), "%s", err.text);
            t.tensor.data = NULL;
            cr_assert_eq(sn_guard(&t.tensor, device_of(to), 3, (int64_t[]){2, -1, 12}, out, NULL, &err), SN_REFUSED);
            cr_assert(!strncmp(err.text, where, strlen(where)) && strstr(err.text, "send its bytes"), "%s", err.text);
            t.tensor.dtype = SN_Q8_0;
            cr_assert_eq(sn_guard(&t.tensor, device_of(to), 3, (int64_t[]){2, -1, 12}, out, NULL, &err), SN_REFUSED);
            cr_assert(!strncmp(err.text, where, strlen(where)) && strstr(err.text, "convert it first"), "%s", err.text);
        }
}

Test(guard_table, a_lost_device_is_an_error_and_nothing_is_moved) {
    static guard_case t;
    for (int from = 0; from < PLACES; from++)
        for (int to = 0; to < PLACES; to++)
            for (int strided = 0; strided < 2; strided++) {
                if (!is_far(from) && !is_far(to)) continue;
                make_guard_case(&t, 0, from, SN_F32, strided);
                uint64_t moved = 0;
                void *source = new_memory(from, t.data_bytes), *out = new_memory(to, N_MAX * sizeof(float));
                write_memory(from, source, t.data, t.data_bytes);
                t.tensor.data = source;
                for (int d = 0; d < 2; d++) { /* the next call of either device fails */
                    far_device *lost = d ? &xpu : &cuda;
                    bool concerned = device_of(from) == &lost->base || device_of(to) == &lost->base;
                    lost->fail_at = lost->n_calls + 1;
                    sn_status status = sn_guard(&t.tensor, device_of(to), 2, (int64_t[]){-1, 12}, out, &moved, &err);
                    lost->fail_at = 0;
                    cr_assert_eq(status, concerned ? SN_STOP : SN_OK);
                    if (concerned)
                        cr_assert(strstr(err.text, "hidden states, ") && strstr(err.text, "the device is lost"));
                    cr_assert(concerned ? moved == 0 : moved == t.n * 4, "%d", (int)moved);
                    moved = 0;
                }
                free_memory(from, source, t.data_bytes);
                free_memory(to, out, N_MAX * sizeof(float));
            }
    cr_assert(cuda.n_held == 0 && xpu.n_held == 0);
}

static sigjmp_buf back;
static void on_fault(int signal_number) { siglongjmp(back, signal_number); }

/* Shows that the table above would crash without the guard's copies. */
Test(guard_table, touching_a_far_tensor_directly_faults) {
    volatile float *far = new_memory(3, 64);
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, NULL);
    int fault = sigsetjmp(back, 1);
    if (!fault) far[0] = far[1];
    signal(SIGSEGV, SIG_DFL);
    cr_assert_eq(fault, SIGSEGV);
    free_memory(3, (void *)far, 64);
}

/* -- unplanned copies */

Test(guard, warns_of_unplanned_copies_once_a_minute_and_counts_all) {
    sn_guard_monitor watch = {0};
    sn_log_setup(SN_LOG_ERROR, false);
    int64_t now = 5;
    for (int i = 0; i < 100; i++) cr_assert(!sn_guard_monitor_step(&watch, 2304, 2304, now += 1000), "as planned");
    cr_assert(!sn_guard_monitor_step(&watch, 0, 2304, now));
    cr_assert(sn_guard_monitor_step(&watch, 2304 + 100, 2304, now), "the first warning is immediate");
    int said = 0;
    for (int i = 0; i < 250; i++) said += sn_guard_monitor_step(&watch, 100, 0, now += 1000000);
    cr_assert_eq(said, 250 / 60);
    cr_assert(watch.steps == 352 && watch.unexpected_steps == 251);
    cr_assert_eq(watch.unexpected_bytes, 251 * 100);
    cr_assert_eq(watch.bytes, 100 * 2304 + 2404 + 250 * 100);
}
