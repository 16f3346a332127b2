/* A step of more rows than a pass takes, through blocks that the client holds itself. */
#include "client/chain.h"
#include "device/device.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/need.h"
#include "tests/support/tiny.h"

#include <criterion/criterion.h>
#include <string.h>

enum { ROWS = 1100, WIDTH = 64, LESS = 300 };

Test(long_step, has_the_bits_of_shorter_ones_in_every_row) {
    const tiny_options tiny = {.dtype = SN_F32, .n_ctx = ROWS};
    const sn_device_options device_options = {.threads = 1};
    char *path = tiny_make(&tiny);
    float *rows = test_random_floats((size_t)ROWS * WIDTH, 7), *got[2];
    sn_model *model;
    sn_device *device;
    NEED(sn_model_open(path, &model, &err));
    cr_assert_eq(sn_model_hparams(model)->n_embd, WIDTH);
    NEED(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &device_options, &device, &err));
    for (int way = 0; way < 2; way++) {
        sn_chain *chain;
        sn_chain_options options = {
            .device = device, .local_end = sn_model_hparams(model)->n_blocks, .kv_memory = 16 << 20, .max_tokens = ROWS};
        got[way] = calloc((size_t)ROWS * WIDTH, sizeof(float));
        NEED(sn_chain_open(model, &options, &chain, &err));
        for (int at = 0, n; at < ROWS; at += n) {
            n = way == 0 || ROWS - at < LESS ? ROWS - at : LESS;
            NEED(sn_chain_step(chain, at, n, rows + (size_t)at * WIDTH, got[way] + (size_t)at * WIDTH, &err));
        }
        sn_chain_close(&chain);
    }
    size_t differ = test_differ(got[0], got[1], (size_t)ROWS * WIDTH);
    cr_assert_eq(differ, (size_t)ROWS * WIDTH, "row %zu differs", differ / WIDTH);
    sn_device_close(&device);
    sn_model_close(&model);
    free(rows), free(got[0]), free(got[1]);
    tiny_remove(&path);
}
