/* One test suite for every backend of device/device.h: each operation with awkward shapes against naive arithmetic
 * in double precision, and the header's promises about memory, copies, batches, waits and failures.
 *
 * A case does not depend on Criterion, so that a plain program can run the suite on a machine that has little but a
 * GPU. A Criterion program makes one test of each case:
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
    X(a_concurrent_copy_waits_for_earlier_work)                                                                        \
    X(many_copies_run_concurrently_with_the_queue)                                                                     \
    X(the_source_of_a_copy_may_change_after_its_fence)                                                                 \
    X(invalid_weights_are_refused)                                                                                     \
    X(parts_of_a_float_matrix_are_its_image)                                                                           \
    X(weights_take_hardly_more_than_their_file)                                                                        \
    X(linear_of_every_type)                                                                                            \
    X(linear_of_several_matrices_and_biases)                                                                           \
    X(linear_that_is_to_be_exact)                                                                                      \
    X(linear_of_every_type_that_is_to_be_exact)                                                                        \
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
    X(scale_by_a_number_and_by_rows)                                                                                   \
    X(clamp_keeps_what_lies_between)                                                                                   \
    X(dot_rows_of_awkward_widths)                                                                                      \
    X(get_rows_of_every_type)                                                                                          \
    X(get_rows_refuses_rows_out_of_range)                                                                              \
    X(kv_loads_back_unchanged)                                                                                         \
    X(kv_store_writes_where_the_batch_says)                                                                            \
    X(kv_of_every_type_is_rounded_once)                                                                                \
    X(kv_pages_take_what_their_type_needs)                                                                             \
    X(attention_of_the_first_token)                                                                                    \
    X(attention_while_decoding)                                                                                        \
    X(attention_of_several_prompts)                                                                                    \
    X(attention_within_a_window)                                                                                       \
    X(attention_with_a_softcap)                                                                                        \
    X(attention_with_alibi_slopes)                                                                                     \
    X(attention_with_sinks)                                                                                            \
    X(attention_over_long_contexts)                                                                                    \
    X(attention_with_heads_of_every_width)                                                                             \
    X(attention_over_page_borders)                                                                                     \
    X(attention_over_a_kv_cache_of_every_type)                                                                         \
    X(attention_of_queries_of_any_size)                                                                                \
    X(attention_of_prompts_behind_long_contexts)                                                                       \
    X(attention_keeps_nan_in_the_rows_that_see_it)                                                                     \
    X(attention_of_a_batch_without_rows)                                                                               \
    X(attention_keeps_nan_in_its_head)                                                                                 \
    X(latents_load_back_unchanged)                                                                                     \
    X(attention_over_latents)                                                                                          \
    X(attention_over_latents_of_every_type)                                                                            \
    X(attention_over_latents_takes_every_option)                                                                       \
    X(attention_over_latents_keeps_nan_in_its_head)                                                                    \
    X(choose_keys_takes_the_best_and_of_equal_ones_the_first)                                                          \
    X(attention_reads_what_was_chosen_alone)                                                                           \
    X(head_linear_of_every_type)                                                                                       \
    X(moe_gate_takes_the_best_groups)                                                                                  \
    X(moe_gate_takes_the_largest)                                                                                      \
    X(moe_gate_multiplies_by_factors)                                                                                  \
    X(moe_gate_weighs_without_the_correction)                                                                          \
    X(moe_gate_keeps_nan_in_its_row)                                                                                   \
    X(moe_linear_of_every_type)                                                                                        \
    X(moe_linear_of_many_rows_for_an_expert)                                                                           \
    X(moe_linear_of_nothing)                                                                                           \
    X(moe_combine_adds_up_in_order)                                                                                    \
    X(recurrent_blocks_follow_their_formulas)                                                                          \
    X(recurrences_follow_their_formulas)                                                                               \
    X(recurrent_blocks_refuse_what_is_not_possible)                                                                    \
    X(a_recorded_batch_follows_its_states)                                                                             \
    X(norm_linear_has_the_bits_of_its_steps)                                                                           \
    X(activate_linear_has_the_bits_of_its_steps)                                                                       \
    X(activate_moe_linear_has_the_bits_of_its_steps)                                                                   \
    X(rope_store_has_the_bits_of_its_steps)                                                                            \
    X(attention_linear_has_the_bits_of_its_steps)                                                                      \
    X(linear_input_grad_of_every_type)                                                                                 \
    X(linear_weight_grad_accumulates)                                                                                  \
    X(rms_norm_grad_by_differences)                                                                                    \
    X(layer_norm_grad_by_differences)                                                                                  \
    X(activation_grad_by_differences)                                                                                  \
    X(attention_grad_by_differences)                                                                                   \
    X(moe_gate_grad_by_differences)                                                                                    \
    X(moe_linear_grad_of_every_type)                                                                                   \
    X(moe_combine_grad_by_differences)                                                                                 \
    X(a_recorded_batch_follows_its_sessions)                                                                           \
    X(a_recorded_batch_follows_its_latents)                                                                            \
    X(a_recorded_batch_follows_its_experts)                                                                            \
    X(a_failed_allocation_is_an_error)                                                                                 \
    X(opening_survives_any_allocation_that_fails)                                                                      \
    X(a_device_that_does_not_answer_is_abandoned)                                                                      \
    X(a_copy_that_hangs_is_abandoned)                                                                                  \
    X(a_lost_device_stays_an_error)

typedef enum conformance_case {
#define X(name) CONFORMANCE_##name,
    CONFORMANCE_CASES(X)
#undef X
        CONFORMANCE_COUNT
} conformance_case;

/* How a test makes the device fail. Counts begin at the call. Several devices of the process may be affected. */
typedef struct conformance_faults {
    void (*fail_allocation)(int nth); /* the nth allocation of device or pinned memory fails (first: 1), no other */
    void (*stall)(int ms);            /* the device's next kernel or copy takes this long, once; or until heal */
    void (*lose)(int nth);            /* from its nth kernel or copy on, the device is lost */
    void (*heal)(void);               /* ends all of these */
} conformance_faults;

typedef struct conformance {
    /* -- set by the caller */
    sn_device_id id;
    sn_device_options options;
    const conformance_faults *faults; /* NULL: the cases about failures are skipped */
    size_t (*memory_used)(void);      /* bytes of device memory allocated now; NULL: not checked */
    /* The relative error with which the backend rounds the inputs of its inner products: 0 for float32, 0x1p-9 for
     * bfloat16. Separate for linear and for attention. */
    double linear_rounding, attention_rounding;
    /* With quantised weights, the rows of x are rounded to 8-bit numbers in groups of 32 with one scale, as the CPU
     * does. */
    bool eight_bit_rows;
    int head_dim_max; /* 0: none of the cases' heads is too wide */

    /* -- the suite's own */
    sn_device *device;
    size_t prepare_bytes; /* the device's word about the memory that it takes for itself */
    sn_err err;
    jmp_buf on_failure;
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

/* Opens the device, runs the case, and frees and closes everything, also after a failure. True if the case passed or
 * was skipped (c->skipped); otherwise c->failure says what was wrong. */
bool conformance_run(conformance *c, conformance_case which);

/* -- for the cases (conformance_*.c), and for tests of one backend that go further */

/* Ends the running case with this message. */
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

/* Prepares the device for larger calls than those of other cases. */
void conformance_prepare(conformance *c, const sn_device_limits *more);

/* Memory that conformance_run frees. */
void *conformance_bytes(conformance *c, size_t bytes);                      /* device, zeroed */
void *conformance_pinned(conformance *c, size_t bytes);                     /* host_alloc */
void *conformance_heap(conformance *c, size_t bytes);                       /* plain, zeroed */
float *conformance_upload(conformance *c, const float *host, size_t n);     /* device */
float *conformance_download(conformance *c, const float *device, size_t n); /* heap */
float *conformance_random(conformance *c, size_t n, uint64_t seed);         /* heap: uniform in [-1, 1) */
void conformance_release(conformance *c, int n_buffers);                    /* those after the first n_buffers */

/* Random rows of a weight on the device, and what they decode to: the values, and the magnitudes of the terms of
 * each value (|scale * q| + |offset|), both (rows, cols), heap. */
typedef struct conformance_weight {
    sn_weight weight;
    double *values, *sizes;
} conformance_weight;
conformance_weight conformance_random_weight(conformance *c, sn_dtype dtype, size_t rows, size_t cols, uint64_t seed);

/* Rounds the n elements of a key or value as a KV cache of this type stores them. */
void conformance_round_kv(sn_kv_dtype dtype, int n, float *x);

/* |got - want| <= tolerance, or both NaN, or the same infinity. */
bool conformance_close(double got, double want, double tolerance);

#define CONFORMANCE_EPSILON 0x1p-24 /* half a unit in the last place of a float32 */

#define X(name) void conformance_##name(conformance *c);
CONFORMANCE_CASES(X)
#undef X

#endif
