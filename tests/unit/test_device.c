#include "device/device.h"

#include <criterion/criterion.h>
#include <string.h>

static sn_err err;

Test(device, names_are_made_canonical) {
    static const struct {
        const char *name, *canonical;
        sn_device_kind kind;
        int ordinal;
    } cases[] = {{"cpu", "cpu", SN_DEVICE_CPU, 0},      {"CPU:0", "cpu", SN_DEVICE_CPU, 0},
                 {"cuda", "cuda:0", SN_DEVICE_CUDA, 0}, {"Cuda:12", "cuda:12", SN_DEVICE_CUDA, 12},
                 {"xpu:1", "xpu:1", SN_DEVICE_XPU, 1},  {"XPU", "xpu:0", SN_DEVICE_XPU, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sn_device_id id;
        char name[32];
        cr_assert_eq(sn_device_id_parse(cases[i].name, &id, &err), SN_OK);
        cr_assert(id.kind == cases[i].kind && id.ordinal == cases[i].ordinal);
        cr_assert_str_eq(sn_device_id_name(id, name), cases[i].canonical);
    }
}

Test(device, refuses_names_that_mean_nothing) {
    static const char *const names[] = {"",        "gpu",        "cpu:1",   "cuda:", "cuda:x",
                                        "cuda:-1", "cuda:99999", "cuda:1 ", "cud",   "xpu1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        sn_device_id id;
        cr_assert_eq(sn_device_id_parse(names[i], &id, &err), SN_REFUSED, "%s", names[i]);
        cr_assert(strstr(err.text, "cuda:N"));
    }
}

Test(device, says_which_backends_this_build_lacks) {
    sn_device *device;
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &device, &err), SN_REFUSED);
    cr_assert_str_eq(err.text, "this build has no CUDA backend: use cpu");
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_XPU, 0}, NULL, &device, &err), SN_REFUSED);
    cr_assert(strstr(err.text, "Level Zero"));
    cr_assert_null(device);
}

Test(device, an_unknown_instruction_set_names_those_there_are) {
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
