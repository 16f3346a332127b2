#include "device/guard.h"

#include <criterion/criterion.h>
#include <math.h>
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

Test(guard, brings_every_wire_type_to_float32) {
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
        cr_assert_eq(moved, 5, "host memory is the CPU's own");
    }
}

Test(guard, takes_data_at_any_address_and_bits_as_they_are) {
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
    sn_tensor t = {.name = "past keys",
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

Test(guard, lets_empty_tensors_pass_but_not_of_another_shape) {
    sn_tensor t = {.name = "past values", .dtype = SN_BF16, .rank = 3, .shape = {0, 2, 64}};
    cr_assert_eq(sn_guard(&t, cpu, 3, (int64_t[]){-1, 2, 64}, NULL, NULL, &err), SN_OK);
    cr_assert_eq(sn_guard(&t, cpu, 3, (int64_t[]){-1, 2, 63}, NULL, NULL, &err), SN_REFUSED);
    t.shape[2] = INT64_MAX; /* huge times nothing */
    t.shape[1] = INT64_MAX;
    cr_assert_eq(sn_guard(&t, cpu, 3, (int64_t[]){-1, -1, -1}, NULL, NULL, &err), SN_OK);
}

Test(guard, says_what_a_tensor_was_and_had_to_be) {
    float out[6];
    sn_tensor t = tensor_2x3(SN_F32, numbers);
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){-1, 4}, out, NULL, &err), SN_REFUSED);
    cr_assert_str_eq(err.text, "hidden states: the shape is (2, 3) and has to be (*, 4)");
    cr_assert_eq(sn_guard(&t, cpu, 3, (int64_t[]){1, 2, 3}, out, NULL, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "(1, 2, 3)"));
    t.dtype = SN_Q4_1;
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){2, 3}, out, NULL, &err), SN_REFUSED);
    cr_assert_str_eq(err.text, "hidden states: the type is Q4_1 and has to be F32, F16 or BF16");
    t = tensor_2x3(SN_F32, NULL);
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){2, 3}, out, NULL, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "no data"));
    t = tensor_2x3(SN_F32, numbers);
    t.shape[0] = -1;
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){-1, 3}, out, NULL, &err), SN_REFUSED);
    t.rank = 5;
    cr_assert_eq(sn_guard(&t, cpu, 2, (int64_t[]){-1, 3}, out, NULL, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "at most"));
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

/* A device whose memory is not the host's: its addresses are offsets. */
static uint8_t far_memory[256];
static bool far_fails;

static sn_status far_upload(sn_device *d, void *device, const void *host, size_t bytes, sn_err *e) {
    (void)d;
    if (far_fails) return sn_fail(e, SN_STOP, "the device is lost");
    memcpy(far_memory + (uintptr_t)device, host, bytes);
    return SN_OK;
}
static sn_status far_download(sn_device *d, void *host, const void *device, size_t bytes, sn_err *e) {
    (void)d;
    if (far_fails) return sn_fail(e, SN_STOP, "the device is lost");
    memcpy(host, far_memory + (uintptr_t)device, bytes);
    return SN_OK;
}

Test(guard, carries_tensors_between_devices_and_counts_their_bytes) {
    const sn_device_ops ops = {.upload = far_upload, .download = far_download};
    sn_device away = {&ops, {SN_DEVICE_CUDA, 1}};
    uint64_t moved = 0;
    uint16_t half[6];
    float out[6];
    for (int i = 0; i < 6; i++) half[i] = sn_f32_to_f16(numbers[i]);
    sn_tensor t = tensor_2x3(SN_F16, half);
    cr_assert_eq(sn_guard(&t, &away, 2, (int64_t[]){2, 3}, (float *)(uintptr_t)16, &moved, &err), SN_OK);
    cr_assert_arr_eq(far_memory + 16, numbers, sizeof numbers);
    cr_assert_eq(moved, 12);
    sn_tensor back = tensor_2x3(SN_F32, (void *)(uintptr_t)16);
    back.device = &away;
    back.shape[0] = 3, back.shape[1] = 2; /* transposed */
    back.strides[0] = 1, back.strides[1] = 3;
    cr_assert_eq(sn_guard(&back, cpu, 2, (int64_t[]){3, 2}, out, &moved, &err), SN_OK);
    for (int i = 0; i < 6; i++) cr_assert_eq(out[i], numbers[i % 2 * 3 + i / 2]);
    cr_assert_eq(moved, 36);
    far_fails = true;
    cr_assert_eq(sn_guard(&back, cpu, 2, (int64_t[]){3, 2}, out, &moved, &err), SN_STOP);
    cr_assert_str_eq(err.text, "hidden states could not be brought from cuda:1 to cpu: the device is lost");
    cr_assert_eq(sn_guard(&t, &away, 2, (int64_t[]){2, 3}, (float *)(uintptr_t)16, &moved, &err), SN_STOP);
    cr_assert_eq(moved, 36);
}
