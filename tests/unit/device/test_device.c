#include "device/device.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static sn_err err;

/* Intel's driver loads libraries in a way (RTLD_DEEPBIND) that ends a process under AddressSanitizer: there, the
 * loader is told to ignore the installed drivers. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
static void without_drivers_if_sanitized(void) {
#ifdef __SANITIZE_ADDRESS__
    setenv("ZE_ENABLE_ALT_DRIVERS", "/nowhere/driver.so", 1);
#endif
}
TestSuite(device, .init = without_drivers_if_sanitized);

static const sn_device_id both[] = {
    {SN_DEVICE_CPU, 0}, {SN_DEVICE_CUDA, 0}, {SN_DEVICE_CUDA, 12}, {SN_DEVICE_XPU, 0}, {SN_DEVICE_XPU, 1}};
static const sn_device_id intel[] = {{SN_DEVICE_CPU, 0}, {SN_DEVICE_XPU, 0}, {SN_DEVICE_XPU, 1}};

Test(device, names_are_made_canonical) {
    static const struct {
        const char *name, *canonical;
    } cases[] = {{"cpu", "cpu"},        {"CPU:0", "cpu"},       {"cuda", "cuda:0"}, {"cuda:0", "cuda:0"},
                 {"CUDA:00", "cuda:0"}, {"Cuda:12", "cuda:12"}, {"xpu:1", "xpu:1"}, {"XPU", "xpu:0"},
                 {"xpu", "xpu:0"},      {"XPU:0", "xpu:0"},     {"gpu", "cuda:0"},  {"GPU:12", "cuda:12"},
                 {"0", "cuda:0"},       {"12", "cuda:12"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sn_device_id id;
        char name[32];
        cr_assert_eq(sn_device_id_match(cases[i].name, both, 5, &id, &err), SN_OK, "%s: %s", cases[i].name, err.text);
        cr_assert_str_eq(sn_device_id_name(id, name), cases[i].canonical);
    }
}

Test(device, gpu_means_the_accelerator_that_is_present) {
    sn_device_id id;
    static const char *const names[] = {"gpu", "gpu:0", "0"};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(sn_device_id_match(names[i], intel, 3, &id, &err), SN_OK);
        cr_assert(sn_device_id_equal(id, (sn_device_id){SN_DEVICE_XPU, 0}));
        cr_assert_eq(sn_device_id_match(names[i], intel, 1, &id, &err), SN_REFUSED);
        cr_assert(strstr(err.text, "there is cpu"), "%s", err.text);
    }
    cr_assert_eq(sn_device_id_match("1", intel, 3, &id, &err), SN_OK);
    cr_assert_eq(id.ordinal, 1);
}

Test(device, refuses_unknown_names_and_lists_the_devices) {
    static const char *const names[] = {"",     "cpu:1", "cuda:", "cuda:x", "cuda:-1", "cuda:99999", "cuda:1 ", "cud",
                                        "xpu1", "gpu0",  "-1",    " 0",     "99999",   "cuda:0:0",   ":0",      "1024"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        sn_device_id id;
        cr_assert_eq(sn_device_id_match(names[i], both, 5, &id, &err), SN_REFUSED, "%s", names[i]);
        cr_assert(strstr(err.text, "there is cpu, cuda:0, cuda:12, xpu:0, xpu:1"), "%s", err.text);
        cr_assert(strstr(err.text, names[i]));
        cr_assert_eq(sn_device_id_parse(names[i], &id, &err), SN_REFUSED, "%s", names[i]);
        cr_assert(strstr(err.text, "there is cpu"), "%s", err.text);
    }
}

Test(device, refuses_absent_devices_and_lists_the_present_ones) {
    sn_device_id id;
    cr_assert_eq(sn_device_id_match("CUDA", intel, 3, &id, &err), SN_REFUSED);
    cr_assert_str_eq(err.text, "there is no device \"CUDA\" here: there is cpu, xpu:0, xpu:1");
    cr_assert_eq(sn_device_id_match("xpu:7", intel, 3, &id, &err), SN_REFUSED);
    cr_assert_eq(sn_device_id_match("cpu", NULL, 0, &id, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "there is no device"), "%s", err.text);
    cr_assert_eq(sn_device_id_parse("cuda:1023", &id, &err), SN_REFUSED);
    cr_assert_eq(sn_device_id_parse("Cpu", &id, &err), SN_OK);
    cr_assert(sn_device_id_equal(id, (sn_device_id){SN_DEVICE_CPU, 0}));
}

Test(device, a_long_list_of_devices_is_truncated) {
    sn_device_id id, many[200];
    for (int i = 0; i < 200; i++) many[i] = (sn_device_id){SN_DEVICE_CUDA, 800 + i};
    cr_assert_eq(sn_device_id_match("cpu", many, 200, &id, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "cuda:800, cuda:801"));
}

Test(device, the_list_begins_with_the_cpu_and_describes_it) {
    sn_device_info infos[SN_DEVICES_MAX];
    size_t n = 0;
    cr_assert_eq(sn_devices_list(infos, &n, &err), SN_OK, "%s", err.text);
    cr_assert(n >= 1 && n <= SN_DEVICES_MAX);
    cr_assert_eq(infos[0].id.kind, SN_DEVICE_CPU);
    cr_assert(infos[0].name[0]);
    cr_assert(infos[0].memory > 64 << 20 && infos[0].memory_free > 0 && infos[0].memory_free <= infos[0].memory);
    cr_assert(strstr(infos[0].features, " thread"), "%s", infos[0].features);
    for (size_t i = 1; i < n; i++)
        cr_assert(infos[i - 1].id.kind < infos[i].id.kind || infos[i - 1].id.ordinal < infos[i].id.ordinal);
    for (size_t i = 0; i < n; i++) { /* every name in the list is accepted */
        sn_device_id id;
        char name[32];
        cr_assert_eq(sn_device_id_parse(sn_device_id_name(infos[i].id, name), &id, &err), SN_OK);
        cr_assert(sn_device_id_equal(id, infos[i].id));
    }
}

Test(device, an_absent_device_is_not_opened) {
    static const sn_device_id absent[] = {{SN_DEVICE_CUDA, 1023}, {SN_DEVICE_XPU, 1023}, {(sn_device_kind)7, 0}};
    for (int i = 0; i < 3; i++) {
        sn_device *device;
        cr_assert_eq(sn_device_open(absent[i], NULL, &device, &err), SN_REFUSED);
        cr_assert(err.text[0]);
        cr_assert_null(device);
    }
}

Test(device, an_unknown_instruction_set_lists_the_known_ones) {
    sn_device *device;
    sn_device_options options = {.isa = "mmx"};
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &device, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "\"mmx\"") && strstr(err.text, "it has "), "%s", err.text);
    options = (sn_device_options){.threads = -1};
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &device, &err), SN_REFUSED);
    options = (sn_device_options){.threads = 2, .isa = "c"};
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &device, &err), SN_OK);
    cr_assert_str_eq(sn_device_describe(device), "cpu: 2 threads, c");
    sn_device_close(&device);
    sn_device_close(&device);
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, NULL, &device, &err), SN_OK);
    sn_device_close(&device);
}

/* Where 2,048 rows are a batch, hidden states have at most 2,048 numbers; 1,024 rows, 4,096. */
Test(device, mixtures_of_long_batches_are_taken) {
    static const struct {
        size_t rows, used, width;
        bool taken;
    } cases[] = {{2048, 16, 2048, true},   {2048, 8, 4096, true},   {1024, 16, 4096, true},  {2048, 64, 16379, true},
                 {2048, 64, 16380, false}, {512, 64, 65531, true},  {512, 64, 65532, false}, {1 << 17, 2, 2048, true},
                 {1 << 17, 3, 0, false},   {0, 64, SIZE_MAX, true}, {1, 1, SIZE_MAX, false}, {SIZE_MAX, 2, 1, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(sn_device_takes_pairs(cases[i].rows, cases[i].used, cases[i].width), cases[i].taken, "%zu", i);
}
