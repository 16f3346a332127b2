/* An LM head that several threads use: rows that wait at the same time are one pass. The device is held up in a sleep
 * of the virtual clock, which ends when all other threads wait for something. While steps are in flight, a row waits
 * for others, for less than the time of a row. */
#include "base/clock.h"
#include "client/generate/lm_head.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { THREADS = 12, ROWS = 3, HELD_US = 1000 };

static sn_model *model;
static sn_device *device;
static const sn_device_ops *cpu;
static sn_device_ops held;
static sn_lm_head *head;
static size_t n_embd, n_vocab;
static float *hidden, *alone; /* (THREADS * ROWS, n_embd), (THREADS * ROWS, n_vocab) */
static atomic_int passes, fail_pass;

static sn_status held_linear(sn_device *d, int n, const float *x, int n_linears, const sn_linear *linears,
                             sn_err *err) {
    int pass = atomic_fetch_add(&passes, 1) + 1;
    sn_sleep_us(HELD_US);
    if (pass == atomic_load(&fail_pass)) return sn_fail(err, SN_RETRY, "pass %d failed", pass);
    return cpu->linear(d, n, x, n_linears, linears, err);
}

static void set_up(void) {
    sn_device_options options = {.threads = 1};
    REQUIRE(sn_model_open(SN_FIXTURES "/golden/llama", &model, &err));
    REQUIRE(sn_device_open((sn_device_id){SN_DEVICE_CPU, 0}, &options, &device, &err));
    REQUIRE(sn_lm_head_load(model, device, &head, &err));
    n_embd = (size_t)sn_model_hparams(model)->n_embd;
    n_vocab = (size_t)sn_model_hparams(model)->n_vocab;
    hidden = malloc(THREADS * ROWS * n_embd * sizeof *hidden);
    alone = malloc(THREADS * ROWS * n_vocab * sizeof *alone);
    for (size_t i = 0; i < THREADS * ROWS * n_embd; i++) hidden[i] = (float)(i * 7919 % 1013) / 500 - 1;
    for (size_t i = 0; i < THREADS * ROWS; i++)
        REQUIRE(sn_lm_head_logits(head, hidden + i * n_embd, 1, alone + i * n_vocab, &err));
    cpu = device->ops;
    held = *cpu;
    held.linear = held_linear;
    device->ops = &held;
    virtual_clock_begin_still();
}

static void tear_down(void) {
    device->ops = cpu;
    free(hidden);
    free(alone);
    sn_lm_head_free(&head);
    sn_device_close(&device);
    sn_model_close(&model);
}

TestSuite(lm_head_of_threads, .init = set_up, .fini = tear_down);

typedef struct caller {
    pthread_t thread;
    size_t from;
    int n; /* rows; 0: embeds one */
    sn_status status;
    sn_err err;
    float *logits;
} caller;

static void *call_logits(void *ctx) {
    caller *c = ctx;
    int32_t id = 1;
    c->status = c->n ? sn_lm_head_logits(head, hidden + c->from * n_embd, c->n, c->logits, &c->err)
                     : sn_lm_head_embed(head, &id, 1, c->logits, &c->err);
    return NULL;
}

/* Starts a thread for each caller. The first one, which wants logits, holds the device until all others wait. */
static void run_callers(caller *callers, size_t n) {
    const int before = atomic_load(&passes);
    for (size_t i = 0; i < n; i++) {
        while (i == 1 && atomic_load(&passes) == before) sched_yield();
        callers[i].logits = calloc(THREADS * ROWS * (n_vocab + n_embd), sizeof(float));
        cr_assert_eq(pthread_create(&callers[i].thread, NULL, call_logits, &callers[i]), 0);
    }
    for (size_t i = 0; i < n; i++) pthread_join(callers[i].thread, NULL);
}

static void expect_bits_of_alone(const caller *c) {
    cr_expect_eq(c->status, SN_OK, "%s", c->err.text);
    cr_expect_arr_eq(c->logits, alone + c->from * n_vocab, (size_t)c->n * n_vocab * sizeof(float));
}

static void free_callers(caller *callers, size_t n) {
    for (size_t i = 0; i < n; i++) free(callers[i].logits);
}

Test(lm_head_of_threads, computes_the_rows_that_wait_in_one_pass_with_the_same_bits) {
    caller callers[THREADS] = {0};
    for (size_t i = 0; i < THREADS; i++) callers[i] = (caller){.from = i * ROWS, .n = i % 2 ? 1 : ROWS};
    run_callers(callers, THREADS);
    for (size_t i = 0; i < THREADS; i++) expect_bits_of_alone(&callers[i]);
    cr_expect_eq(passes, 2, "the first row alone, all others behind it: %d passes", passes);
    free_callers(callers, THREADS);
}

Test(lm_head_of_threads, embeds_between_passes) {
    caller callers[THREADS] = {0};
    for (size_t i = 0; i < THREADS; i++) callers[i] = (caller){.from = i, .n = i % 3 < 2};
    run_callers(callers, THREADS);
    for (size_t i = 0; i < THREADS; i++)
        if (callers[i].n) expect_bits_of_alone(&callers[i]);
    cr_expect_eq(passes, 2);
    free_callers(callers, THREADS);
}

Test(lm_head_of_threads, a_pass_that_fails_is_a_failure_of_its_callers_only) {
    caller callers[THREADS] = {0};
    size_t failed = 0;
    for (size_t i = 0; i < THREADS; i++) callers[i] = (caller){.from = i, .n = 1};
    atomic_store(&fail_pass, 1);
    run_callers(callers, THREADS);
    for (size_t i = 0; i < THREADS; i++) {
        failed += callers[i].status == SN_RETRY && strstr(callers[i].err.text, "pass 1 failed");
        if (!callers[i].status) expect_bits_of_alone(&callers[i]);
    }
    cr_expect_eq(failed, 1);
    free_callers(callers, THREADS);
    memset(callers, 0, sizeof callers);
    atomic_store(&fail_pass, atomic_load(&passes) + 2); /* of those that were taken along each is told */
    failed = 0;
    for (size_t i = 0; i < THREADS; i++) callers[i] = (caller){.from = i, .n = 1};
    run_callers(callers, THREADS);
    for (size_t i = 0; i < THREADS; i++)
        failed += callers[i].status == SN_RETRY && strstr(callers[i].err.text, "failed");
    cr_expect_eq(failed, THREADS - 1);
    free_callers(callers, THREADS);
}

/* More rows than fit into a pass wait their turn, and a caller of many rows does not keep the others out. */
Test(lm_head_of_threads, computes_more_rows_than_fit_into_a_pass) {
    enum { MANY = 9, EACH = THREADS * ROWS }; /* 324 rows */
    caller callers[MANY] = {0};
    for (size_t i = 0; i < MANY; i++) callers[i] = (caller){.n = EACH};
    run_callers(callers, MANY);
    for (size_t i = 0; i < MANY; i++) expect_bits_of_alone(&callers[i]);
    cr_expect_eq(passes, MANY, "two callers of %d rows do not fit: %d passes", EACH, passes);
    free_callers(callers, MANY);
}

/* A step of `step_us` at a node, and what follows it at the head. */
typedef struct stepper {
    caller call;
    pthread_t thread;
    int64_t step_us, ended_us;
    bool expected;
} stepper;

static void *step_and_call(void *ctx) {
    stepper *s = ctx;
    sn_sleep_us(s->step_us);
    if (s->expected) sn_lm_head_unexpect(head);
    (void)call_logits(&s->call);
    s->ended_us = sn_now_us();
    return NULL;
}

/* After a pass of one row, which shows that a row takes HELD_US. Returns the passes of the steppers. */
static int run_steppers(stepper *steppers, size_t n) {
    caller first = {.n = 1};
    run_callers(&first, 1);
    free(first.logits);
    const int before = atomic_load(&passes);
    const int64_t began_us = sn_now_us();
    for (size_t i = 0; i < n; i++)
        if (steppers[i].expected) sn_lm_head_expect(head);
    for (size_t i = 0; i < n; i++) {
        steppers[i].call.logits = calloc(n_vocab + n_embd, sizeof(float));
        cr_assert_eq(pthread_create(&steppers[i].thread, NULL, step_and_call, &steppers[i]), 0);
    }
    for (size_t i = 0; i < n; i++) {
        pthread_join(steppers[i].thread, NULL);
        steppers[i].ended_us -= began_us;
        if (steppers[i].call.n) expect_bits_of_alone(&steppers[i].call);
        free(steppers[i].call.logits);
    }
    return atomic_load(&passes) - before;
}

Test(lm_head_of_threads, gathers_the_rows_of_steps_that_end_shortly_after_each_other) {
    stepper steppers[4] = {{.step_us = 0}};
    for (size_t i = 0; i < 4; i++)
        steppers[i] = (stepper){.call = {.from = i, .n = 1}, .step_us = (int64_t)i * HELD_US / 4, .expected = true};
    cr_expect_eq(run_steppers(steppers, 4), 1);
}

Test(lm_head_of_threads, waits_less_than_a_row_for_a_step_that_takes_long) {
    stepper steppers[] = {{.call = {.from = 0, .n = 1}, .expected = true},
                          {.call = {.from = 1, .n = 1}, .step_us = 100 * HELD_US, .expected = true}};
    cr_expect_eq(run_steppers(steppers, 2), 2);
    cr_expect_lt(steppers[0].ended_us, 2 * HELD_US);
}

Test(lm_head_of_threads, embeds_while_a_row_waits_for_others) {
    stepper steppers[] = {{.call = {.from = 0, .n = 1}, .expected = true},
                          {.call = {.from = 1, .n = 1}, .step_us = 100 * HELD_US, .expected = true},
                          {.step_us = HELD_US / 10}};
    run_steppers(steppers, 3);
    cr_expect_lt(steppers[2].ended_us, HELD_US / 3);
}
