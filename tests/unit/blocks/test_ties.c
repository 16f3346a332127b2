#include "blocks/ties.h"
#include "client/generate/lm_head.h"
#include "tests/support/far_device.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static sn_err err;
static sn_ties *ties;
static far_device cuda, xpu;

static void set_up(void) {
    far_device_init(&cuda, SN_DEVICE_CUDA, 0);
    far_device_init(&xpu, SN_DEVICE_XPU, 0);
    cr_assert_eq(sn_ties_new(&ties, &err), SN_OK);
}
static void tear_down(void) {
    sn_ties_free(&ties);
    sn_ties_free(&ties);
    cr_assert(cuda.n_held == 0 && cuda.n_wrong == 0 && xpu.n_held == 0 && xpu.n_wrong == 0);
}
TestSuite(ties, .init = set_up, .fini = tear_down);

typedef struct source {
    size_t bytes;
    int loads;
} source;

/* In two copies, so that the second one can fail after the first. */
static sn_status load_weights(void *ctx, sn_device *device, void *memory, sn_err *e) {
    source *s = ctx;
    uint8_t half[64];
    memset(half, 0xa5, sizeof half);
    s->loads++;
    sn_status status = device->ops->upload(device, memory, half, s->bytes / 2, e);
    if (!status)
        status = device->ops->upload(device, (uint8_t *)memory + s->bytes / 2, half, s->bytes - s->bytes / 2, e);
    return status;
}

static source eighty = {80, 0}, forty = {40, 0};

static sn_status acquire_tie(uint64_t group, sn_device *device, source *s, sn_tie *out) {
    return sn_ties_acquire(ties, group, device, s->bytes, load_weights, s, out, &err);
}

Test(ties, the_first_holder_loads_and_the_last_one_frees) {
    sn_tie a, b, c;
    cr_assert_eq(acquire_tie(7, &cuda.base, &eighty, &a), SN_OK);
    cr_assert_eq(acquire_tie(7, &cuda.base, &eighty, &b), SN_OK);
    cr_assert_eq(acquire_tie(7, &cuda.base, &eighty, &c), SN_OK);
    cr_assert(a.memory && a.memory == b.memory && b.memory == c.memory);
    cr_assert(eighty.loads == 1 && cuda.n_alloc == 1);
    cr_assert_eq(sn_ties_holders(ties, 7, cuda.base.id), 3);
    cr_assert_eq(sn_ties_bytes(ties, cuda.base.id), 80);
    sn_ties_release(ties, &a);
    sn_ties_release(ties, &c);
    cr_assert(cuda.n_held == 1 && sn_ties_holders(ties, 7, cuda.base.id) == 1);
    sn_ties_release(ties, &b);
    cr_assert(cuda.n_held == 0 && sn_ties_holders(ties, 7, cuda.base.id) == 0 && !sn_ties_bytes(ties, cuda.base.id));
    cr_assert(!b.memory && !b.holder);
    cr_assert_eq(acquire_tie(7, &cuda.base, &eighty, &a), SN_OK, "it is not loaded again for the next holder");
    cr_assert_eq(eighty.loads, 2);
    sn_ties_release(ties, &a);
}

Test(ties, groups_and_devices_are_separate) {
    sn_tie a, b, c;
    cr_assert_eq(acquire_tie(7, &cuda.base, &eighty, &a), SN_OK);
    cr_assert_eq(acquire_tie(7, &xpu.base, &eighty, &b), SN_OK);
    cr_assert_eq(acquire_tie(8, &cuda.base, &forty, &c), SN_OK);
    cr_assert(sn_ties_bytes(ties, cuda.base.id) == 120 && sn_ties_bytes(ties, xpu.base.id) == 80);
    cr_assert(cuda.bytes_held == 120 && xpu.bytes_held == 80);
    sn_ties_release(ties, &a);
    cr_assert(sn_ties_bytes(ties, cuda.base.id) == 40 && sn_ties_bytes(ties, xpu.base.id) == 80);
    sn_ties_release(ties, &b);
    sn_ties_release(ties, &c);
}

Test(ties, releasing_twice_is_harmless) {
    sn_tie a, b;
    cr_assert_eq(acquire_tie(7, &cuda.base, &eighty, &a), SN_OK);
    cr_assert_eq(acquire_tie(7, &cuda.base, &eighty, &b), SN_OK);
    sn_tie copy = a;
    sn_ties_release(ties, &a);
    sn_ties_release(ties, &a);
    sn_ties_release(ties, &copy); /* the same holder */
    cr_assert_eq(sn_ties_holders(ties, 7, cuda.base.id), 1, "b still holds it");
    sn_tie late = b;
    sn_ties_release(ties, &b);
    cr_assert_eq(acquire_tie(7, &cuda.base, &eighty, &a), SN_OK);
    sn_ties_release(ties, &late); /* a holder of the memory that was there before */
    cr_assert_eq(sn_ties_holders(ties, 7, cuda.base.id), 1);
    sn_ties_release(ties, &a);
    cr_assert_eq(cuda.n_wrong, 0);
}

Test(ties, releasing_what_is_not_held_is_harmless) {
    sn_tie nothing = {0}, a;
    sn_ties_release(ties, &nothing);
    cr_assert_eq(acquire_tie(7, &cuda.base, &eighty, &a), SN_OK);
    sn_tie elsewhere = a, other = a;
    elsewhere.device = xpu.base.id; /* the published crash: an entry of a device that has none */
    other.group = 8;
    sn_ties_release(ties, &elsewhere);
    sn_ties_release(ties, &other);
    sn_ties_release(ties, &nothing);
    cr_assert(!elsewhere.memory && !other.memory);
    cr_assert_eq(sn_ties_holders(ties, 7, cuda.base.id), 1);
    cr_assert_eq(sn_ties_holders(ties, 7, xpu.base.id), 0);
    sn_ties_release(ties, &a);
}

Test(ties, releasing_on_one_device_keeps_the_group_on_another) {
    sn_tie a, b;
    cr_assert_eq(acquire_tie(7, &cuda.base, &eighty, &a), SN_OK);
    cr_assert_eq(acquire_tie(7, &xpu.base, &eighty, &b), SN_OK);
    sn_tie swapped = a;
    swapped.device = xpu.base.id;
    sn_ties_release(ties, &swapped);
    cr_assert(cuda.n_held == 1 && xpu.n_held == 1);
    sn_ties_release(ties, &a);
    sn_ties_release(ties, &b);
}

Test(ties, one_group_has_one_size) {
    sn_tie a, b;
    cr_assert_eq(acquire_tie(7, &cuda.base, &eighty, &a), SN_OK);
    b = a;
    cr_assert_eq(acquire_tie(7, &cuda.base, &forty, &b), SN_REFUSED);
    cr_assert(!b.memory && !b.holder);
    cr_assert(strstr(err.text, "has 80 bytes and cannot be taken as 40"), "%s", err.text);
    cr_assert_eq(sn_ties_holders(ties, 7, cuda.base.id), 1);
    sn_ties_release(ties, &a);
}

Test(ties, held_groups_are_freed_at_the_end) {
    sn_tie held[100];
    for (int i = 0; i < 100; i++)
        cr_assert_eq(acquire_tie((uint64_t)(i % 20), i % 3 ? &cuda.base : &xpu.base, &forty, &held[i]), SN_OK);
    cr_assert(cuda.n_held == 20 && xpu.n_held == 20);
    sn_ties_free(&ties);
    cr_assert(cuda.n_held == 0 && xpu.n_held == 0);
}

/* Every step of acquiring three times on two devices is made to fail once: no error leaves anything allocated. */
Test(ties, a_failure_at_any_step_leaves_memory_as_it_was) {
    int failures = 0;
    for (int step = 1; step <= 8; step++) {
        sn_tie held[4] = {0};
        sn_device *const devices[] = {&cuda.base, &xpu.base, &cuda.base, &cuda.base};
        source *const sources[] = {&eighty, &eighty, &forty, &eighty};
        const uint64_t groups[] = {7, 7, 8, 7};
        far_device_init(&cuda, SN_DEVICE_CUDA, 0);
        far_device_init(&xpu, SN_DEVICE_XPU, 0);
        cuda.fail_at = step;
        xpu.fail_at = step;
        for (int i = 0; i < 4; i++) {
            sn_status status = acquire_tie(groups[i], devices[i], sources[i], &held[i]);
            failures += status != SN_OK;
            cr_assert_eq(status == SN_OK, held[i].memory != NULL);
            if (status) cr_assert_str_eq(err.text, "the device is lost");
        }
        cr_assert_eq(cuda.bytes_held, sn_ties_bytes(ties, cuda.base.id), "step %d", step);
        cr_assert_eq(xpu.bytes_held, sn_ties_bytes(ties, xpu.base.id), "step %d", step);
        for (int i = 0; i < 4; i++) sn_ties_release(ties, &held[i]); /* also those that were never acquired */
        cr_assert(cuda.n_held == 0 && xpu.n_held == 0 && cuda.n_wrong == 0 && xpu.n_wrong == 0, "step %d", step);
    }
    cr_assert_eq(failures, 3 + 6, "the steps that can fail"); /* xpu has 3, cuda 6 */
}

Test(ties, memory_returns_after_a_thousand_rounds_with_failures) {
    for (int round = 0; round < 1000; round++) {
        sn_tie held[6] = {0};
        cuda.n_calls = xpu.n_calls = 0;
        cuda.fail_at = round % 13;
        xpu.fail_at = round % 7;
        for (int i = 0; i < 6; i++) {
            sn_status status = acquire_tie((uint64_t)(i % 3), i % 2 ? &xpu.base : &cuda.base, &forty, &held[i]);
            cr_assert(status == SN_OK || status == SN_STOP);
        }
        for (int i = 0; i < 6; i++) sn_ties_release(ties, &held[(i * 5 + round) % 6]);
        cr_assert(cuda.n_held == 0 && xpu.n_held == 0 && cuda.n_wrong == 0 && xpu.n_wrong == 0, "round %d", round);
    }
    cr_assert(cuda.n_alloc > 2000 && xpu.n_alloc > 1000);
}

/* The same on a real device. */
static sn_status load_cpu(void *ctx, sn_device *device, void *memory, sn_err *e) {
    return device->ops->upload(device, memory, ctx, 1 << 16, e);
}

static long resident_pages(void) {
    long size, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    cr_assert(f && fscanf(f, "%ld %ld", &size, &resident) == 2);
    fclose(f);
    return resident;
}

Test(ties, cpu_memory_returns_too) {
    static uint8_t weights[1 << 16];
    sn_device *cpu;
    sn_device_options options = {.threads = 1};
    long before = 0;
    memset(weights, 3, sizeof weights);
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &cpu, &err), SN_OK);
    for (int round = 0; round < 1000; round++) {
        sn_tie a, b;
        cr_assert_eq(sn_ties_acquire(ties, 1, cpu, sizeof weights, load_cpu, weights, &a, &err), SN_OK);
        cr_assert_eq(sn_ties_acquire(ties, 1, cpu, sizeof weights, load_cpu, weights, &b, &err), SN_OK);
        cr_assert_arr_eq(b.memory, weights, sizeof weights);
        sn_ties_release(ties, &a);
        sn_ties_release(ties, &b);
        if (round == 0) before = resident_pages();
    }
    cr_assert_leq(resident_pages() - before, 256, "more than 1 MiB of 64 MiB was not freed");
    sn_device_close(&cpu);
}

/* -- the client's head, the one place where a model shares weights */

static sn_device_ops counting;
static const sn_device_ops *plain;
static size_t matrix_bytes;
static int n_matrices; /* allocations of the size of the token embeddings */

static sn_status count_alloc(sn_device *d, size_t bytes, void **device, sn_err *why) {
    n_matrices += bytes == matrix_bytes;
    return plain->alloc(d, bytes, device, why);
}

/* How often the embeddings' bytes lie in memory where a model of this family is opened by a client. */
static int matrices_of_head(const char *path) {
    sn_model *model = NULL;
    sn_device *device = NULL;
    sn_lm_head *head = NULL;
    sn_model_tensor embeddings;
    cr_assert_eq(sn_model_open(path, &model, &err), SN_OK);
    cr_assert_eq(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &(sn_device_options){.threads = 1}, &device, &err),
                 SN_OK);
    cr_assert_eq(sn_model_find(model, SN_ROLE_TOKEN_EMBEDDING, 0, &embeddings, &err), SN_OK);
    cr_assert_eq(
        device->ops->weight_size(device, embeddings.dtype, embeddings.rows, embeddings.cols, &matrix_bytes, &err),
        SN_OK);
    plain = device->ops;
    counting = *plain;
    counting.alloc = count_alloc;
    device->ops = &counting;
    n_matrices = 0;
    cr_assert_eq(sn_lm_head_load(model, device, &head, &err), SN_OK);
    int n = n_matrices;
    sn_lm_head_free(&head);
    sn_device_close(&device);
    sn_model_close(&model);
    return n;
}

Test(ties, a_client_holds_tied_embeddings_once) {
    cr_expect_eq(matrices_of_head(SN_FIXTURES "/golden/llama"), 1, "the embeddings are the LM head as well");
    cr_expect_eq(matrices_of_head(SN_FIXTURES "/golden/mistral"), 2, "here they are not");
}
