/* One suite for every backend of device/device.h: each operation over awkward shapes against naive arithmetic in double
 * precision, and what the header promises about memory, copies, passes, waits and failures.
 *
 * A case knows nothing of Criterion, so that a plain program can run the suite on a machine that has a GPU and little
 * else. A Criterion program makes one test of each case:
 *
 *     #define X(name) Test(xpu_conformance, name) { run(CONFORMANCE_##name); }
 *     CONFORMANCE_CASES(X)
 */
#ifndef SN_TESTS_SUPPORT_CONFORMANCE_H
#define SN_TESTS_SUPPORT_CONFORMANCE_H

#include "device/device.h"

#include <setjmp.h>

#define CONFORMANCE_CASES(X)                                                                                           \
    X(memory_comes_zeroed_and_aligned)                                                                                 \
    X(freeing_nothing_is_harmless)                                                                                     \
    X(a_device_knows_its_own_memory)                                                                                   \
    X(copies_come_back_unchanged)                                                                                      \
    X(the_source_of_an_upload_may_change_at_once)                                                                      \
    X(the_host_cannot_touch_device_memory)                                                                             \
    X(memory_returns_after_many_rounds)                                                                                \
    X(a_copy_beside_the_queue_waits_for_the_work_before_it)                                                            \
    X(many_copies_go_on_beside_the_queue)                                                                              \
    X(the_source_of_a_copy_may_change_after_waiting_for_it)                                                            \
    X(weights_that_no_matrix_can_have_are_refused)                                                                     \
    X(linear_of_every_type)                                                                                            \
    X(linear_of_several_matrices_and_biases)                                                                           \
    X(linear_that_is_to_be_exact)                                                                                      \
    X(linear_of_nothing)                                                                                               \
    X(linear_keeps_nan_and_infinity_in_their_row)                                                                      \
    X(linear_gives_the_same_bits_again)                                                                                \
    X(rms_norm_of_awkward_widths)                                                                                      \
    X(rms_norm_keeps_nan_in_its_row)                                                                                   \
    X(rope_of_both_styles)                                                                                             \
    X(layer_norm_of_awkward_widths)                                                                                    \
    X(layer_norm_keeps_nan_in_its_row)                                                                                 \
    X(activations_over_the_whole_range)                                                                                \
    X(add_is_exact)                                                                                                    \
    X(gather_of_every_type)                                                                                            \
    X(gather_refuses_rows_that_are_not_there)                                                                          \
    X(the_past_comes_back_unchanged)                                                                                   \
    X(kv_store_writes_where_the_pass_says)                                                                             \
    X(attention_of_one_token_without_a_past)                                                                           \
    X(attention_while_decoding)                                                                                        \
    X(attention_of_several_prompts)                                                                                    \
    X(attention_within_a_window)                                                                                       \
    X(attention_that_leans)                                                                                            \
    X(attention_with_sinks)                                                                                            \
    X(attention_over_page_borders)                                                                                     \
    X(attention_of_a_pass_without_rows)                                                                                \
    X(attention_keeps_nan_in_its_head)                                                                                 \
    X(route_takes_the_largest)                                                                                         \
    X(route_keeps_nan_in_its_row)                                                                                      \
    X(linear_routed_of_every_type)                                                                                     \
    X(linear_routed_of_nothing)                                                                                        \
    X(combine_adds_up_in_order)                                                                                        \
    X(linear_grad_of_every_type)                                                                                       \
    X(outer_grad_grows)                                                                                                \
    X(rms_norm_grad_by_differences)                                                                                    \
    X(layer_norm_grad_by_differences)                                                                                  \
    X(activation_grad_by_differences)                                                                                  \
    X(attention_grad_by_differences)                                                                                   \
    X(route_grad_by_differences)                                                                                       \
    X(linear_routed_grad_of_every_type)                                                                                \
    X(combine_grad_by_differences)                                                                                     \
    X(a_recorded_pass_follows_its_sessions)                                                                            \
    X(a_recorded_pass_follows_its_experts)                                                                             \
    X(an_allocation_that_fails_says_so)                                                                                \
    X(opening_survives_any_allocation_that_fails)                                                                      \
    X(a_device_that_does_not_answer_is_left)                                                                           \
    X(a_copy_that_hangs_is_left)                                                                                       \
    X(a_lost_device_says_so_ever_after)

typedef enum conformance_case {
#define X(name) CONFORMANCE_##name,
    CONFORMANCE_CASES(X)
#undef X
        CONFORMANCE_COUNT
} conformance_case;

/* How a test makes the device fail. Counts begin at the call. Several devices of the process may be hit. */
typedef struct conformance_faults {
    void (*fail_allocation)(
        int nth);          /* the nth allocation of device or pinned memory fails (first: 1), the others not */
    void (*stall)(int ms); /* the next kernel or copy that the device executes takes this long, once; or until heal */
    void (*lose)(int nth); /* from its nth kernel or copy on, the device is lost */
    void (*heal)(void);    /* none of these any more */
} conformance_faults;

typedef struct conformance {
    /* -- given */
    sn_device_id id;
    sn_device_options options;
    const conformance_faults *faults; /* NULL: the cases about failures are skipped */
    size_t (*memory_used)(void);      /* bytes of device memory allocated now; NULL: not looked at */
    /* What the backend rounds inputs of its inner products to, as a share of each number: 0 for float32, 0x1p-9 for
     * bfloat16. Apart, for linear and for attention. */
    double linear_rounding, attention_rounding;
    /* With quantised weights, the rows of x become 8-bit numbers in groups of 32 with one scale (the CPU's way). */
    bool eight_bit_rows;

    /* -- the suite's own */
    sn_device *device;
    sn_err err;
    jmp_buf give_up;
    char failure[1024]; /* "" after a case that passed */
    bool skipped;
    struct conformance_buffer {
        void *at;
        size_t bytes;
        enum { BUFFER_DEVICE, BUFFER_PINNED, BUFFER_HEAP } kind;
    } buffers[1024];
    int n_buffers;
} conformance;

const char *conformance_name(conformance_case which);

/* Opens the device, runs the case, frees and closes everything, also after a failure. True when it passed or was
 * skipped (c->skipped); else c->failure says what was wrong. */
bool conformance_run(conformance *c, conformance_case which);

/* -- for the cases (conformance_*.c) and tests of one backend that go further */

/* Ends the running case with this sentence. */
_Noreturn void conformance_fail(conformance *c, const char *format, ...) SN_PRINTF(2, 3);
#define CONFORMANCE_CHECK(c, condition, ...)                                                                           \
    do {                                                                                                               \
        if (!(condition)) conformance_fail(c, __VA_ARGS__);                                                            \
    } while (0)
#define CONFORMANCE_OK(c, call)                                                                                        \
    do {                                                                                                               \
        if ((call) != SN_OK) conformance_fail(c, "%s:%d: %s", __FILE_NAME__, __LINE__, (c)->err.text);                 \
    } while (0)
#ifndef __FILE_NAME__
#define __FILE_NAME__ __FILE__
#endif

/* Memory that conformance_run frees. */
void *conformance_bytes(conformance *c, size_t bytes);                      /* device, zeroed */
void *conformance_pinned(conformance *c, size_t bytes);                     /* host_alloc */
void *conformance_heap(conformance *c, size_t bytes);                       /* plain, zeroed */
float *conformance_upload(conformance *c, const float *host, size_t n);     /* device */
float *conformance_download(conformance *c, const float *device, size_t n); /* heap */
float *conformance_random(conformance *c, size_t n, uint64_t seed);         /* heap: uniform in [-1, 1) */
void conformance_release(conformance *c, int n_buffers);                    /* those beyond the first n_buffers */

/* Random rows of a weight on the device, and what they stand for: values and the size of what was added up for each
 * (|scale * q| + |offset|), both (rows, cols), heap. */
typedef struct conformance_weight {
    sn_weight weight;
    double *values, *sizes;
} conformance_weight;
conformance_weight conformance_random_weight(conformance *c, sn_dtype dtype, size_t rows, size_t cols, uint64_t seed);

/* |got - want| <= tolerance, or both NaN, or the same infinity. */
bool conformance_close(double got, double want, double tolerance);

#define CONFORMANCE_EPSILON 0x1p-24 /* half a unit in the last place of a float32 */

#define X(name) void conformance_##name(conformance *c);
CONFORMANCE_CASES(X)
#undef X

#endif
