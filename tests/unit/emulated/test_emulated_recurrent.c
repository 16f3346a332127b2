/* Sessions with recurrent states on emulated devices, whose memory faults when the host touches it: whatever is undone,
 * shared, swapped out or given up, the rows are those of the CPU, up to rounding. (The rows of a mixture are rounded to
 * 16 bits at least.) */
#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"
#endif

#include "tests/support/recurrent_sessions.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>

static const sn_device_id ids[] = {{SN_DEVICE_CUDA, 0}, {SN_DEVICE_XPU, 0}};
enum { DEVICES = sizeof ids / sizeof *ids, KV_MEMORY = 16 << 20 };

static recurrent_sessions begin(int device) {
    return recurrent_begin((recurrent_options){SN_FIXTURES "/golden/qwen3_5_moe", ids[device], 1e-3f}, KV_MEMORY);
}

static void set_up(void) {
#ifndef SN_ZE_TEST_DRIVER
    printf("skipped: emulated devices need libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
#endif
}

TestSuite(emulated_recurrent, .init = set_up);

Test(emulated_recurrent, a_rewind_goes_on_from_states_and_snapshots) {
    static const int to[] = {0, 33, 64, 65, 96, 110};
    for (int d = 0; d < DEVICES; d++) {
        recurrent_sessions s = begin(d);
        for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
            sn_kv_cache *kv = recurrent_new_cache(&s);
            recurrent_expect_rows(&s, kv, 112, 50);
            recurrent_other_rows(&s, kv, 5); /* a rejected draft */
            sn_kv_cache_rewind(kv, to[i]);
            recurrent_expect_rows(&s, kv, to[i] + 3, 1);
            recurrent_expect_rows(&s, kv, 130, 20);
            sn_kv_cache_free(&kv);
        }
        recurrent_end(&s);
    }
}

Test(emulated_recurrent, pages_are_shared_up_to_one_that_ends_in_a_state) {
    for (int d = 0; d < DEVICES; d++) {
        recurrent_sessions s = begin(d);
        float out[RECURRENT_TOKENS * RECURRENT_WIDTH];
        REQUIRE(sn_prefix_cache_enable(s.pool, RECURRENT_WIDTH, 1 << 20, &err));
        sn_kv_cache *a = recurrent_new_cache(&s), *b = recurrent_new_cache(&s);
        recurrent_publish(&s, a, 100);
        cr_expect_eq(recurrent_attach(b, 3, out), 2);
        recurrent_expect_rows(&s, b, 80, 16);
        sn_kv_cache_rewind(b, 40);       /* into a shared page */
        recurrent_other_rows(&s, b, 30); /* which b writes to, beyond its end */
        sn_kv_cache_rewind(b, 40);
        sn_kv_cache_rewind(a, 64); /* a's pages and its snapshot are as they were */
        recurrent_expect_rows(&s, a, 120, 13);
        recurrent_expect_rows(&s, b, 120, 17);
        sn_kv_cache_free(&a);
        sn_kv_cache_free(&b);
        recurrent_end(&s);
    }
}

Test(emulated_recurrent, a_session_that_was_swapped_out_goes_on) {
    for (int d = 0; d < DEVICES; d++) {
        recurrent_sessions s = begin(d);
        size_t all = SIZE_MAX;
        REQUIRE(sn_swap_enable(s.pool, NULL, 16u << 20, 0, &err));
        sn_kv_cache *kv = recurrent_new_cache(&s);
        recurrent_expect_rows(&s, kv, 100, 50);
        REQUIRE(sn_swap_out(kv, &all, &err));
        cr_expect_eq(s.pool->pages.states.n_kept, 0);
        all = SIZE_MAX;
        REQUIRE(sn_swap_in(kv, &all, &err));
        recurrent_expect_rows(&s, kv, 105, 5);
        sn_kv_cache_rewind(kv, 70);
        recurrent_expect_rows(&s, kv, 110, 11);
        sn_kv_cache_free(&kv);
        recurrent_end(&s);
    }
}

/* Nemotron: Mamba-2, and blocks of one half. Ling: a decay for each element of the key. LFM2: a convolution alone. */
Test(emulated_recurrent, every_kind_of_state_goes_on_after_a_rewind) {
    static const char *const models[] = {SN_FIXTURES "/golden/nemotron_h_moe", SN_FIXTURES "/golden/bailing_hybrid",
                                         SN_FIXTURES "/golden/lfm2"};
    for (int m = 0; m < DEVICES * 3; m++) {
        const recurrent_options options = {models[m / DEVICES], ids[m % DEVICES], 1e-3f};
        recurrent_sessions s = recurrent_begin(options, KV_MEMORY);
        sn_kv_cache *kv = recurrent_new_cache(&s);
        recurrent_expect_rows(&s, kv, 70, 50);
        recurrent_other_rows(&s, kv, 5); /* a rejected draft */
        sn_kv_cache_rewind(kv, 66);
        recurrent_expect_rows(&s, kv, 68, 1);
        recurrent_expect_rows(&s, kv, 80, 12);
        sn_kv_cache_free(&kv);
        recurrent_end(&s);
    }
}

/* Rows of a decode step that is recorded, where the device records. */
Test(emulated_recurrent, sessions_of_one_batch_keep_their_states_apart) {
    for (int d = 0; d < DEVICES; d++) {
        recurrent_sessions s = begin(d);
        recurrent_expect_batches(&s, 3, 12, 20);
        if (ids[d].kind == SN_DEVICE_CUDA) cr_expect_geq(s.device->graphs_captured, 1);
        recurrent_end(&s);
    }
}

/* -- from device to device */

/* Keys and values of the positions of a session, after those that the other one has. */
static void carry_keys(const recurrent_sessions *from, sn_kv_cache *kv, const recurrent_sessions *to,
                       sn_kv_cache *out) {
    const sn_hparams *hp = sn_model_hparams(from->model);
    const int n = sn_kv_cache_length(kv), dim = hp->head_dim;
    const size_t all = (size_t)n * (size_t)hp->n_kv_heads * (size_t)dim;
    float *k = malloc(all * sizeof *k), *v = malloc(all * sizeof *v);
    for (int b = 0; b < RECURRENT_BLOCKS; b++) {
        if (hp->recurrent[b]) continue;
        REQUIRE(sn_span_kv_export(from->span, kv, b, 0, n, k, v, &err));
        const sn_tensor keys = {.name = "k", .data = k, .dtype = SN_F32, .rank = 3, .shape = {n, hp->n_kv_heads, dim}},
                        values = {
                            .name = "v", .data = v, .dtype = SN_F32, .rank = 3, .shape = {n, hp->n_kv_heads, dim}};
        REQUIRE(sn_span_kv_import(to->span, out, b, n, &keys, &values, &err));
    }
    free(k);
    free(v);
}

/* A session with the keys, values, rows and newest snapshot of one on another device, as nodes hand them over. */
static sn_kv_cache *carry(const recurrent_sessions *from, sn_kv_cache *kv, const recurrent_sessions *to) {
    const int n = sn_kv_cache_length(kv), at = sn_kv_cache_newest_snapshot(kv);
    const size_t floats = kv->pool->pages.states.floats;
    float *rows = malloc(RECURRENT_TOKENS * RECURRENT_WIDTH * sizeof *rows), *state = malloc(floats * sizeof *state);
    size_t held;
    sn_kv_cache *out = recurrent_new_cache(to);
    REQUIRE(sn_kv_cache_reserve(out, n, &err));
    carry_keys(from, kv, to, out);
    REQUIRE(sn_kv_cache_rows_read(kv, 0, n, rows, &err));
    REQUIRE(sn_kv_cache_rows_write(out, n, rows, &err));
    sn_kv_cache_append(out, n);
    cr_assert_gt(at, 0);
    REQUIRE(
        from->device->ops->download(from->device, state, sn_kv_cache_snapshot(kv, at), floats * sizeof *state, &err));
    float *place = sn_kv_cache_incoming_state(out, at, 0);
    REQUIRE(to->device->ops->upload(to->device, place, state, floats * sizeof *state, &err));
    REQUIRE(sn_kv_cache_state_came(out, floats, true, &held, &err));
    cr_expect_eq(sn_kv_cache_state_position(out), at);
    free(rows);
    free(state);
    return out;
}

Test(emulated_recurrent, a_session_moves_from_a_cpu_to_cuda_and_on_to_an_xpu) {
    const recurrent_options on_cpu = {SN_FIXTURES "/golden/qwen3_5_moe", {SN_DEVICE_CPU, 0}, 1e-3f};
    recurrent_sessions all[] = {recurrent_begin(on_cpu, KV_MEMORY), begin(0), begin(1)};
    sn_kv_cache *kv[3] = {recurrent_new_cache(&all[0])};
    for (int i = 0; i < 3; i++) {
        if (i) kv[i] = carry(&all[i - 1], kv[i - 1], &all[i]);
        recurrent_expect_rows(&all[i], kv[i], 70 + 40 * i, 35);
    }
    for (int i = 0; i < 3; i++) {
        sn_kv_cache_free(&kv[i]);
        recurrent_end(&all[i]);
    }
}
