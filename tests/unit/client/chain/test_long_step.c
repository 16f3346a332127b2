/* A step of more rows than a batch takes, through blocks that the client computes itself. */
#include "client/chain/chain.h"
#include "device/device.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <string.h>

enum { ROWS = 1100, WIDTH = 64, LESS = 300 };

Test(long_step, has_the_bits_of_shorter_steps) {
    const tiny_model_options tiny = {.dtype = SN_F32, .n_ctx = ROWS};
    const sn_device_options device_options = {.threads = 1};
    char *path = tiny_model_make(&tiny);
    float *rows = test_random_floats((size_t)ROWS * WIDTH, 7), *got[2];
    sn_model *model;
    sn_device *device;
    REQUIRE(sn_model_open(path, &model, &err));
    cr_assert_eq(sn_model_hparams(model)->n_embd, WIDTH);
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &device_options, &device, &err));
    for (int variant = 0; variant < 2; variant++) {
        sn_chain *chain;
        sn_chain_options options = {
            .max_tokens = ROWS,
            .local = {.device = device, .end = sn_model_hparams(model)->n_blocks, .kv_memory = 16 << 20}};
        got[variant] = calloc((size_t)ROWS * WIDTH, sizeof(float));
        REQUIRE(sn_chain_open(model, &options, &chain, &err));
        for (int at = 0, n; at < ROWS; at += n) {
            n = variant == 0 || ROWS - at < LESS ? ROWS - at : LESS;
            REQUIRE(sn_chain_step(chain, at, n, rows + (size_t)at * WIDTH, got[variant] + (size_t)at * WIDTH, &err));
        }
        sn_chain_close(&chain);
    }
    size_t differ = test_differ(got[0], got[1], (size_t)ROWS * WIDTH);
    cr_assert_eq(differ, (size_t)ROWS * WIDTH, "row %zu differs", differ / WIDTH);
    sn_device_close(&device);
    sn_model_close(&model);
    free(rows), free(got[0]), free(got[1]);
    tiny_model_remove(&path);
}
