/* Embedding and LM head on emulated CUDA and XPU devices (tests/support/ says what emulation does not show): the same
 * tokens as on the CPU, log-probabilities as close as docs/DEVICES.md promises, memory that is counted before it is
 * taken, and a device that is lost or has no room. */
#ifdef SN_ZE_TEST_DRIVER
#include "tests/support/ze_driver/use.h"
#endif

#include "client/api/api_private.h" /* private: a setup without a session, to see which devices it opens */
#include "client/generate/logprob.h"
#include "model/safetensors.h"
#include "tests/support/api_fixture.h"
#include "tests/support/cuda_stand_in/stand_in.h"
#include "tests/support/emulated_memory.h"
#include "tests/support/families.h"
#include "tests/support/require.h"
#include "tests/support/tiny_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { CPU, CUDA, XPU, N_DEVICES };
static const char *const NAMES[N_DEVICES] = {"cpu", "cuda:0", "xpu:0"};

static sn_device *devices[N_DEVICES];

static void set_up(void) {
#ifndef SN_ZE_TEST_DRIVER
    printf("skipped: emulated devices need libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev\n");
    cr_skip_test();
#endif
    const sn_device_options options = {.threads = 1, .timeout_ms = 20000};
    for (int d = 0; d < N_DEVICES; d++) {
        sn_device_id id;
        REQUIRE(sn_device_id_parse(NAMES[d], &id, &err));
        REQUIRE(sn_device_open(id, &options, &devices[d], &err));
    }
}

static void tear_down(void) {
    for (int i = 0; i < N_DEVICES; i++) sn_device_close(&devices[i]);
}

TestSuite(emulated_head, .init = set_up, .fini = tear_down);

/* What a head gives for rows: their embeddings and logits, and the gradient of the logits' sum. */
typedef struct results {
    float *embedded, *logits, *grad;
} results;

static results head_results(const sn_model *model, sn_device *device, const float *rows, size_t n, size_t at_once) {
    const sn_hparams *hp = sn_model_hparams(model);
    const size_t width = (size_t)hp->n_embd, n_vocab = (size_t)hp->n_vocab;
    results r = {calloc(n * width, sizeof(float)), calloc(n * n_vocab, sizeof(float)),
                 calloc(n * width, sizeof(float))};
    float *ones = calloc(n * n_vocab, sizeof *ones);
    int32_t *ids = calloc(n, sizeof *ids);
    sn_lm_head *head = NULL;
    for (size_t i = 0; i < n * n_vocab; i++) ones[i] = (float)(i % 7) * 0.1f;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(i * 13 % n_vocab);
    REQUIRE(sn_lm_head_load(model, device, &head, &err));
    REQUIRE(sn_lm_head_embed(head, ids, (int)n, r.embedded, &err));
    for (size_t at = 0; at < n; at += at_once)
        REQUIRE(sn_lm_head_logits(head, rows + at * width, (int)sn_min_size(at_once, n - at), r.logits + at * n_vocab,
                                  &err));
    REQUIRE(sn_lm_head_logits_grad(head, rows, (int)n, ones, r.grad, &err));
    sn_lm_head_free(&head);
    free(ones);
    free(ids);
    return r;
}

static void results_free(results *r) {
    free(r->embedded);
    free(r->logits);
    free(r->grad);
}

/* The largest difference, as a share of the largest magnitude in b. */
static double distance(const float *a, const float *b, size_t n) {
    double furthest = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(fabs((double)a[i] - b[i]) <= furthest)) furthest = fabs((double)a[i] - b[i]);
        largest = fmax(largest, fabs(b[i]));
    }
    return furthest / largest;
}

/* Each row's most likely token is the CPU's, unless two are as likely within the tolerance, and has its
 * log-probability. */
static void expect_same_tokens(const float *a, const float *b, size_t n, size_t n_vocab, double tolerance,
                               const char *what) {
    for (size_t i = 0; i < n; i++, a += n_vocab, b += n_vocab) {
        int32_t best, here;
        double largest = 0;
        REQUIRE(sn_logits_argmax(b, n_vocab, &best, &err));
        REQUIRE(sn_logits_argmax(a, n_vocab, &here, &err));
        for (size_t k = 0; k < n_vocab; k++) largest = fmax(largest, fabs(b[k]));
        const double there_is = sn_logits_logprob(b, n_vocab, b[best], best), room = 2 * tolerance * largest;
        cr_expect(here == best || b[best] - b[here] <= room, "%s, row %zu: token %d instead of %d", what, i, here,
                  best);
        cr_expect(fabs(sn_logits_logprob(a, n_vocab, a[here], best) - there_is) <= room, "%s, row %zu: %g, not %g",
                  what, i, sn_logits_logprob(a, n_vocab, a[here], best), there_is);
    }
}

static float *make_rows(size_t n, size_t width) {
    float *rows = malloc(n * width * sizeof *rows);
    for (size_t i = 0; i < n * width; i++) rows[i] = (float)((i * 37 + i / 64 * 11) % 201) * 0.01f - 1;
    return rows;
}

/* Compares a model's head on a device with the CPU, row by row or 24 at once. */
static void compare(const sn_model *model, int device, size_t at_once, double tolerance, const char *what) {
    enum { N = 24 };
    const sn_hparams *hp = sn_model_hparams(model);
    const size_t width = (size_t)hp->n_embd, n_vocab = (size_t)hp->n_vocab;
    float *rows = make_rows(N, width);
    results here = head_results(model, devices[device], rows, N, at_once);
    results there = head_results(model, devices[CPU], rows, N, at_once);
    double logits = distance(here.logits, there.logits, N * n_vocab), grad = distance(here.grad, there.grad, N * width);
    cr_expect(distance(here.embedded, there.embedded, N * width) <= 1e-5, "%s: embeddings", what);
    cr_expect(logits <= tolerance, "%s, %zu at once: logits are %g apart", what, at_once, logits);
    cr_expect(grad <= 1e-4, "%s: gradients are %g apart", what, grad);
    expect_same_tokens(here.logits, there.logits, N, n_vocab, tolerance, what);
    results_free(&here);
    results_free(&there);
    free(rows);
}

static sn_model *open_model(const char *path) {
    sn_model *model = NULL;
    REQUIRE(sn_model_open(path, &model, &err));
    return model;
}

/* Tied and not, with softcaps, scales, biases and norms of embeddings. */
Test(emulated_head, golden_families_have_the_tokens_of_the_cpu) {
    for (int f = 0; f < N_FAMILIES; f++) {
        char path[256], what[64];
        snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, FAMILIES[f]);
        sn_model *model = open_model(path);
        for (int d = CUDA; d <= XPU; d++) {
            snprintf(what, sizeof what, "%s on %s", FAMILIES[f], NAMES[d]);
            compare(model, d, 1, 1e-4, what);
            compare(model, d, 24, d == CUDA ? 3e-2 : 1e-4, what);
        }
        sn_model_close(&model);
    }
}

/* The CPU rounds rows for quantised weights to 8 bits, CUDA's kernels for few rows, too. */
Test(emulated_head, every_weight_type_has_the_tokens_of_the_cpu) {
    static const sn_dtype types[] = {SN_F32,     SN_F16,   SN_BF16,  SN_Q4_0,  SN_Q4_1,    SN_Q5_0,   SN_Q5_1,
                                     SN_Q8_0,    SN_Q2_K,  SN_Q3_K,  SN_Q4_K,  SN_Q5_K,    SN_Q6_K,   SN_IQ4_NL,
                                     SN_IQ4_XS,  SN_MXFP4, SN_IQ1_S, SN_IQ1_M, SN_IQ2_XXS, SN_IQ2_XS, SN_IQ2_S,
                                     SN_IQ3_XXS, SN_IQ3_S, SN_TQ1_0, SN_TQ2_0, SN_NVFP4,   SN_Q1_0,   SN_Q2_0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char *path = tiny_model_make(&(tiny_model_options){.dtype = types[i], .n_blocks = 1}), what[64];
        sn_model *model = open_model(path);
        for (int d = CUDA; d <= XPU; d++) {
            snprintf(what, sizeof what, "%s on %s", sn_dtype_name(types[i]), NAMES[d]);
            compare(model, d, 1, 3e-2, what);
            compare(model, d, 24, 3e-2, what);
        }
        sn_model_close(&model);
        tiny_model_remove(&path);
    }
}

/* -- memory -- */

static void expect_no_room(const sn_model *model, sn_device *d, const char *why_in) {
    sn_lm_head *head = NULL;
    sn_err why = {0};
    const size_t used = d->memory_used;
    cr_expect_eq(sn_lm_head_load(model, d, &head, &why), SN_STOP);
    cr_expect(strstr(why.text, "are needed: give --device cpu") && strstr(why.text, why_in), "%s", why.text);
    cr_expect_eq(d->memory_used, used, "memory was taken before it was counted");
}

Test(emulated_head, memory_is_counted_before_it_is_taken) {
    static const char *const families[] = {"llama", "mistral", "bloom"}; /* tied, not tied, norm of embeddings */
    for (int d = CUDA; d <= XPU; d++)
        for (size_t i = 0; i < 3; i++) {
            char path[256];
            snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, families[i]);
            sn_model *model = open_model(path);
            const size_t width = (size_t)sn_model_hparams(model)->n_embd;
            sn_device *device = NULL;
            sn_lm_head *head = NULL;
            REQUIRE(sn_device_open(devices[d]->id, NULL, &device, &err));
            REQUIRE(sn_lm_head_load(model, device, &head, &err));
            const size_t used = device->memory_used;
            sn_lm_head_free(&head);
            sn_device_close(&device);
            REQUIRE(sn_device_open(devices[d]->id, NULL, &device, &err));
            device->memory_max = used - 1;
            expect_no_room(model, device, NAMES[d]);
            device->memory_max = used + 4 * width * sizeof(float); /* vectors that the family does not have */
            REQUIRE(sn_lm_head_load(model, device, &head, &err));
            sn_lm_head_free(&head);
            sn_device_close(&device);
            sn_model_close(&model);
        }
}

Test(emulated_head, what_others_use_of_the_device_is_not_taken) {
    sn_model *model = open_model(SN_FIXTURES "/golden/llama");
    cuda_stand_in_memory(cuda_stand_in_used() + 4096);
    expect_no_room(model, devices[CUDA], "cuda:0 has 4.0 KiB of memory left");
    sn_model_close(&model);
}

static const sn_device_ops *plain;
static sn_device_ops counting;
static size_t matrix_bytes;
static int n_matrices;

static sn_status count_alloc(sn_device *d, size_t bytes, void **device, sn_err *why) {
    n_matrices += bytes == matrix_bytes;
    return plain->alloc(d, bytes, device, why);
}

/* A tied embedding is the output matrix; another one stays in host memory. */
Test(emulated_head, a_device_holds_one_matrix) {
    static const char *const families[] = {"bloom_odd", "mistral"};
    for (size_t i = 0; i < 2; i++) {
        char path[256];
        sn_lm_head *head = NULL;
        sn_model_tensor t;
        sn_device *d = devices[CUDA];
        snprintf(path, sizeof path, "%s/golden/%s", SN_FIXTURES, families[i]);
        sn_model *model = open_model(path);
        REQUIRE(sn_model_find(model, SN_ROLE_OUTPUT, 0, &t, &err));
        REQUIRE(d->ops->weight_size(d, t.dtype, t.rows, t.cols, &matrix_bytes, &err));
        plain = d->ops;
        counting = *plain;
        counting.alloc = count_alloc;
        n_matrices = 0;
        d->ops = &counting;
        REQUIRE(sn_lm_head_load(model, d, &head, &err));
        cr_expect_eq(n_matrices, 1, "%s: %d matrices", families[i], n_matrices);
        sn_lm_head_free(&head);
        d->ops = plain;
        sn_model_close(&model);
    }
}

Test(emulated_head, memory_returns_after_a_failure_at_every_allocation) {
    sn_model *model = open_model(SN_FIXTURES "/golden/bloom");
    for (int d = CUDA; d <= XPU; d++) {
        sn_lm_head *head = NULL;
        REQUIRE(sn_lm_head_load(model, devices[d], &head, &err)); /* what the device keeps is allocated now */
        sn_lm_head_free(&head);
        const size_t before = emulated_memory_used();
        int failures = 0;
        for (bool failed = true; failed; failures += failed) {
            sn_err why;
            if (d == CUDA) cuda_stand_in_fail_allocation(failures + 1);
#ifdef SN_ZE_TEST_DRIVER
            else
                ze_test_faults.fail_allocation(failures + 1);
#endif
            failed = sn_lm_head_load(model, devices[d], &head, &why) != SN_OK;
            sn_lm_head_free(&head);
            cr_assert_eq(emulated_memory_used(), before, "%s: after allocation %d failed", NAMES[d], failures + 1);
            cr_assert(failures < 50);
        }
        cr_expect(failures >= 4, "%s: only %d allocations could fail", NAMES[d], failures);
        cuda_stand_in_heal();
#ifdef SN_ZE_TEST_DRIVER
        ze_test_faults.heal();
#endif
    }
    sn_model_close(&model);
}

/* -- a lost device -- */

Test(emulated_head, a_lost_device_ends_every_call_with_a_sentence_that_names_it) {
    sn_model *model = open_model(SN_FIXTURES "/golden/llama");
    for (int d = CUDA; d <= XPU; d++) {
        sn_lm_head *head = NULL;
        float hidden[64] = {1}, logits[320];
        REQUIRE(sn_lm_head_load(model, devices[d], &head, &err));
        if (d == CUDA) cuda_stand_in_lose(1);
#ifdef SN_ZE_TEST_DRIVER
        else
            ze_test_faults.lose(1);
#endif
        for (int i = 0; i < 3; i++) {
            sn_err why = {0};
            cr_expect_eq(sn_lm_head_logits(head, hidden, 1, logits, &why), SN_STOP);
            cr_expect(strstr(why.text, NAMES[d]), "%s", why.text);
            cr_expect_eq(sn_lm_head_embed(head, &(int32_t){1}, 1, hidden, &why), SN_STOP);
        }
        cuda_stand_in_heal();
#ifdef SN_ZE_TEST_DRIVER
        ze_test_faults.heal();
#endif
        sn_lm_head_free(&head);
    }
    sn_model_close(&model);
}

/* -- who opens a device -- */

static int objects(void) {
    int n = cuda_stand_in_objects();
#ifdef SN_ZE_TEST_DRIVER
    n += ze_test_objects();
#endif
    return n;
}

/* A server has many sessions at once: what they need of a GPU is the model's head. */
Test(emulated_head, sessions_over_nodes_open_no_device_of_their_own) {
    for (int d = CUDA; d <= XPU; d++) {
        api_swarm s = api_swarm_begin((cluster_options){.threads = 1}, NULL);
        swarm_options *options = api_options("device", NAMES[d], NULL);
        swarm_model *m = NULL;
        sn_lm_head *head = NULL;
        API(swarm_model_open(s.folder, options, &m, &error));
        const int before = objects();
        REQUIRE(sn_model_open_head(m, &head, &err));
        const int with_head = objects();
        cr_expect_gt(with_head, before, "%s", NAMES[d]);
        sn_settings settings = m->options.settings;
        sn_setup setup;
        REQUIRE(sn_api_setup(&setup, m, s.connection, NULL, &settings, &err));
        cr_expect_null(setup.device);
        cr_expect_eq(objects(), with_head);
        /* local blocks are on the same GPU, and what an audit recomputes is on a CPU, which has the nodes' bits */
        REQUIRE(sn_setup_need_device(&setup, &err));
        cr_expect(sn_device_id_equal(setup.device->id, devices[d]->id));
        settings.audit.share = 1;
        const sn_chain_options chain = sn_chain_options_default();
        REQUIRE(sn_setup_audit(&setup, &chain, &err));
        cr_expect(setup.exact && setup.exact->id.kind == SN_DEVICE_CPU, "an audit computes on %s", NAMES[d]);
        sn_setup_close(&setup);
        swarm_model_close(m);
        swarm_options_free(options);
        api_swarm_end(&s);
    }
}
