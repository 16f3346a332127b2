/* Rounds between the device thread and the network thread: what is asked for, where answers go, and that no answer of
 * an earlier round, no silence and no end of the engine holds up or changes a forward pass. */
#include "base/clock.h"
#include "node/engine/expert_rounds.h"
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3, EMBD = 2, K = 2 };

/* Row 0 asks for expert 5, row 1 for nothing, row 2 for experts 4 and 7. */
static const float rows[N * EMBD] = {0, 1, 10, 11, 20, 21};
static const int32_t ids[N * K] = {-1, 5, -1, -1, 4, 7};
static const sn_expert_request request = {.block = 9, .n = N, .n_embd = EMBD, .k = K, .rows = rows, .ids = ids};

static sn_expert_rounds *rounds;
static const sn_expert_exchange *exchange;
static int n_asked, n_served;
static bool stops;                               /* the engine, at the next call of serve */
static void (*network)(int n, int64_t until_us); /* what happens in the n-th call of serve */

static void asked(void *ctx) {
    (void)ctx;
    n_asked++;
}
static bool serve(void *ctx, int64_t until_us) {
    (void)ctx;
    n_served++;
    if (network) network(n_served, until_us);
    return !stops;
}

static void set_up(void) {
    virtual_clock_begin_still();
    n_asked = n_served = 0;
    stops = false;
    network = NULL;
    REQUIRE(sn_expert_rounds_new(&(sn_expert_rounds_host){asked, serve, NULL}, &rounds, &err));
    exchange = sn_expert_rounds_exchange(rounds);
}
static void tear_down(void) { sn_expert_rounds_free(&rounds); }
TestSuite(expert_rounds, .init = set_up, .fini = tear_down);

static void begin(void) { REQUIRE(exchange->begin(exchange->self, &request, &err)); }

/* What the network thread answers: `first` and the numbers after it. */
static void answer(sn_expert_round *round, float first) {
    for (size_t i = 0; i < round->n_pairs * EMBD; i++) round->out[i] = first + (float)i;
    sn_expert_rounds_answer(rounds, round);
}

static void expect_places(const float *out, float first) {
    const float expected[N * K * EMBD] = {-1, -1, first,     first + 1, -1,        -1,
                                          -1, -1, first + 2, first + 3, first + 4, first + 5};
    cr_expect_arr_eq(out, expected, sizeof expected);
}

static void fill(float out[N * K * EMBD]) {
    for (int i = 0; i < N * K * EMBD; i++) out[i] = -1;
}

static void answers_at_once(int n, int64_t until_us) {
    (void)until_us;
    if (n == 1) answer(sn_expert_rounds_next(rounds), 100);
}

Test(expert_rounds, asks_for_rows_with_a_pair_and_puts_outputs_in_their_places) {
    float out[N * K * EMBD];
    fill(out);
    begin();
    cr_expect_eq(n_asked, 1);
    network = NULL;
    sn_expert_round *round = sn_expert_rounds_next(rounds);
    cr_assert(round);
    cr_expect_eq(round->block, 9);
    cr_expect_eq(round->n_rows, 2);
    cr_expect_arr_eq(round->rows, ((const float[]){0, 1, 20, 21}), 4 * sizeof(float));
    cr_expect_eq(round->n_pairs, 3);
    cr_expect_arr_eq(round->pairs, ((const sn_expert_pair[]){{0, 5}, {1, 4}, {1, 7}}), 3 * sizeof *round->pairs);
    answer(round, 100);
    REQUIRE(exchange->finish(exchange->self, out, &err));
    expect_places(out, 100);
}

Test(expert_rounds, computes_what_others_ask_for_until_the_answer_comes) {
    float out[N * K * EMBD];
    fill(out);
    begin();
    network = answers_at_once;
    REQUIRE(exchange->finish(exchange->self, out, &err));
    expect_places(out, 100);
    cr_expect_eq(n_served, 1);
}

Test(expert_rounds, a_round_that_failed_ends_the_pass_with_its_status) {
    float out[N * K * EMBD];
    sn_err err = {0};
    begin();
    sn_expert_round *round = sn_expert_rounds_next(rounds);
    round->status = sn_fail(&round->err, SN_RETRY, "no node answers");
    sn_expert_rounds_answer(rounds, round);
    cr_expect_eq(exchange->finish(exchange->self, out, &err), SN_RETRY);
    cr_expect_str_eq(err.text, "no node answers");
}

static void passes_all_time(int n, int64_t until_us) {
    (void)n;
    virtual_clock_advance(until_us - sn_now_us());
}

static sn_expert_round *late; /* of a pass that ended before its answer came */

static void answers_late_and_then_in_time(int n, int64_t until_us) {
    (void)until_us;
    if (n == 1) answer(late, 500);
    if (n == 2) answer(sn_expert_rounds_next(rounds), 100);
}

Test(expert_rounds, a_wait_has_an_end_and_an_answer_after_it_is_dropped) {
    float out[N * K * EMBD];
    sn_err why = {0};
    fill(out);
    begin();
    late = sn_expert_rounds_next(rounds);
    network = passes_all_time;
    cr_expect_eq(exchange->finish(exchange->self, out, &why), SN_RETRY);
    cr_expect(strstr(why.text, "no answer came in time for experts of block 9"), "%s", why.text);
    begin();
    n_served = 0;
    network = answers_late_and_then_in_time;
    REQUIRE(exchange->finish(exchange->self, out, &err));
    expect_places(out, 100);
    cr_expect_eq(n_served, 2);
}

Test(expert_rounds, the_answer_to_a_pass_that_failed_is_dropped) {
    float out[N * K * EMBD];
    fill(out);
    begin();
    late = sn_expert_rounds_next(rounds);
    REQUIRE(exchange->finish(exchange->self, NULL, &err));
    begin();
    network = answers_late_and_then_in_time;
    REQUIRE(exchange->finish(exchange->self, out, &err));
    expect_places(out, 100);
}

Test(expert_rounds, a_wait_ends_with_the_engine) {
    float out[N * K * EMBD];
    sn_err err = {0};
    begin();
    stops = true;
    cr_expect_eq(exchange->finish(exchange->self, out, &err), SN_RETRY);
    cr_expect(strstr(err.text, "this node stops"), "%s", err.text);
}

Test(expert_rounds, rounds_that_are_never_taken_are_refused_after_a_few) {
    float out[N * K * EMBD];
    sn_err err = {0};
    sn_status status = SN_OK;
    stops = true;
    int n = 0;
    for (; n < 100 && !status; n++) {
        status = exchange->begin(exchange->self, &request, &err);
        if (!status) cr_expect_eq(exchange->finish(exchange->self, out, &err), SN_RETRY);
    }
    cr_expect_eq(status, SN_RETRY);
    cr_expect_lt(n, 20);
}

/* -- what other nodes ask for */

/* Experts with 3, 1, 4 and 2 pairs. */
Test(expert_rounds, a_part_ends_where_an_expert_does_unless_it_has_more_pairs) {
    enum { PAIRS = 10 };
    static const struct {
        size_t done, most, pairs;
    } cases[] = {{0, 10, 10}, {0, 99, 10}, {0, 9, 8}, {0, 7, 4}, {0, 4, 4}, {0, 3, 3}, {0, 2, 2},
                 {2, 2, 2},   {4, 3, 3},   {7, 2, 1}, {8, 2, 2}, {9, 5, 1}, {3, 4, 1}};
    sn_experts_task task = {.n_rows = PAIRS / K, .k = K, .n_pairs = PAIRS};
    task.ids = (int32_t[]){6, 2, 2, 9, 6, 5, 9, 6, 2, 6};
    REQUIRE(sn_experts_task_order(&task, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        task.pairs_done = cases[i].done;
        cr_expect_eq(sn_experts_task_next(&task, cases[i].most), cases[i].pairs, "case %zu", i);
    }
    free(task.order);
    free(task.part);
}

Test(expert_rounds, tiny_numbers_of_a_request_are_computed_as_zeros) {
    enum { WIDTH = 4 };
    float sent[2 * WIDTH] = {1e-41f, -1e-38f, 0, 1e-20f, 1, -1e-41f, 1e-9f, 0}, given[2 * WIDTH];
    const float computed[2 * WIDTH] = {0, 0, 0, 0, 1, 0, 1e-9f, 0};
    int32_t pairs[] = {3, 1}, given_ids[2];
    sn_msg msg = {.tensor = {.data = sent}};
    sn_experts_task task = {.request_msg = &msg, .n_rows = 2, .k = 1, .ids = pairs, .n_pairs = 2};
    REQUIRE(sn_experts_task_order(&task, &err));
    cr_assert_eq(sn_experts_task_part(&task, 2, WIDTH, given, given_ids), 2);
    cr_expect_arr_eq(given, computed, sizeof given);
    free(task.order);
    free(task.part);
}
