/* A CUDA device on the stand-in, and a model of one matrix and one attention on it, run as a span does. */
#ifndef SN_TESTS_CUDA_FIXTURE_H
#define SN_TESTS_CUDA_FIXTURE_H

#include "device/backends.h"
#include "tests/support/cpu_devices.h"
#include "tests/support/cuda_stand_in/stand_in.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static sn_err err;
#define OK(call) cr_assert_eq(call, SN_OK, "%s", err.text)
#define REFUSED(call, error_part)                                                                                      \
    do {                                                                                                               \
        cr_assert_eq(call, SN_REFUSED);                                                                                \
        cr_assert(strstr(err.text, error_part), "\"%s\" does not say \"%s\"", err.text, error_part);                   \
    } while (0)

static const sn_device_limits limits = {.rows = 64, .width = 64, .context = 256, .heads = 2, .head_dim = 16};

static inline sn_device *open_device(void) {
    sn_device *d;
    OK(sn_device_open((sn_device_id){SN_DEVICE_CUDA, 0}, NULL, &d, &err));
    OK(d->ops->prepare(d, &limits, &err));
    return d;
}

static inline void close_device(sn_device **d) {
    sn_device_close(d);
    cr_assert_eq(cuda_stand_in_used(), 0, "%zu bytes of device memory were left", cuda_stand_in_used());
    cr_assert_eq(cuda_stand_in_pinned(), 0, "%zu bytes of pinned memory were left", cuda_stand_in_pinned());
    cr_assert_eq(cuda_stand_in_objects(), 0, "%d objects were left", cuda_stand_in_objects());
}

enum { WIDTH = 32, HEADS = 2, DIM = 16, ROWS_MAX = 24, PAGES = 8 };
static const sn_kv_shape shape = {1, HEADS, DIM, 16, SN_KV_F32, 0, 0, {0}, {0}, 0, 0, false};

typedef struct model {
    sn_device *d;
    sn_weight weight;
    void *pages[PAGES];
    float *x, *h, *out;
} model;

static inline void *new_bytes(sn_device *d, size_t bytes) {
    void *at;
    OK(d->ops->alloc(d, bytes, &at, &err));
    return at;
}

static inline model model_new(sn_device *d) {
    model m = {.d = d, .weight = {SN_F32, WIDTH, WIDTH, 0, NULL}};
    float values[WIDTH * WIDTH], *file = test_random_weight(SN_F32, WIDTH, WIDTH, 3, values);
    void *image;
    OK(d->ops->weight_size(d, SN_F32, WIDTH, WIDTH, &m.weight.bytes, &err));
    image = malloc(m.weight.bytes);
    OK(d->ops->weight_pack(d, SN_F32, WIDTH, WIDTH, file, image, &err));
    m.weight.device = new_bytes(d, m.weight.bytes);
    OK(d->ops->upload(d, (void *)m.weight.device, image, m.weight.bytes, &err));
    free(image);
    test_weight_free(file);
    for (int i = 0; i < PAGES; i++) m.pages[i] = new_bytes(d, d->ops->kv_page_bytes(d, &shape));
    m.x = new_bytes(d, ROWS_MAX * WIDTH * sizeof(float));
    m.h = new_bytes(d, ROWS_MAX * WIDTH * sizeof(float));
    m.out = new_bytes(d, ROWS_MAX * WIDTH * sizeof(float));
    return m;
}

static inline void model_free(model *m) {
    void *all[] = {(void *)m->weight.device, m->x, m->h, m->out};
    for (int i = 0; i < 4; i++) m->d->ops->free(m->d, all[i], 0);
    for (int i = 0; i < PAGES; i++) m->d->ops->free(m->d, m->pages[i], 0);
}

static inline sn_status issue_ops(model *m, int n) {
    const sn_device_ops *ops = m->d->ops;
    sn_linear linear = {.weight = &m->weight, .y = m->h};
    sn_status status = ops->linear(m->d, n, m->x, 1, &linear, &err);
    if (!status) status = ops->kv_store(m->d, 0, m->h, m->x, &err);
    if (!status) status = ops->attention(m->d, &(sn_attention){.n_heads = HEADS, .scale = 0.25f}, m->h, m->out, &err);
    return status ? status : ops->add(m->d, (size_t)n * WIDTH, m->out, m->x, &err);
}

/* One batch of n rows from `position` on; true if it was replayed from a recorded batch. */
static inline bool run_step(model *m, uint64_t graph, int position, int n, uint64_t seed, float *out) {
    float *x = test_random_floats((size_t)n * WIDTH, seed);
    sn_sequence sequence = {m->pages, position, 0, n, {0}};
    sn_batch pass = {&shape, n, 1, &sequence, graph};
    bool recorded;
    OK(m->d->ops->upload(m->d, m->x, x, (size_t)n * WIDTH * sizeof *x, &err));
    OK(m->d->ops->batch_begin(m->d, &pass, &recorded, &err));
    if (!recorded) OK(issue_ops(m, n));
    OK(m->d->ops->batch_end(m->d, &err));
    OK(m->d->ops->download(m->d, out, m->out, (size_t)n * WIDTH * sizeof *x, &err));
    free(x);
    return recorded;
}

#endif
