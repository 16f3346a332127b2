/* Three hundred seeds in every build. For more: build/tests/sim --seeds 100000 --from 1 --jobs 2. */
#include "base/log.h"
#include "tests/sim/model.h"
#include "tests/sim/swarm.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>

#if defined(__SANITIZE_ADDRESS__)
enum { SEEDS = 24 };
#else
enum { SEEDS = 100 };
#endif

static void mute_log(void) { sn_log_setup(SN_LOG_OFF, false); }
static void free_all(void) {
    sim_train_free();
    sim_model_free();
}
TestSuite(sim, .init = mute_log, .fini = free_all);

static void run_seeds(uint64_t from) {
    sim_stats sum = {0};
    for (uint64_t seed = from; seed < from + SEEDS; seed++) {
        sim_stats f = sim_run(seed, (sim_options){0});
        sim_stats_add(&sum, &f);
    }
    /* the seeds are not trivial */
    cr_expect_geq(sum.generations, 2 * SEEDS);
    cr_expect_geq(sum.failovers, SEEDS / 4);
    cr_expect_geq(sum.crashes, SEEDS);
    if (SEEDS < 100) return;
    const uint64_t drawn[] = {sum.wrong_replies, sum.slow,     sum.retired,        sum.garbled, sum.adapted,
                              sum.trained,       sum.poisoned, sum.quota_refusals, sum.loads,   sum.rebalances,
                              sum.cancelled,     sum.behind,   sum.ahead};
    for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++) cr_expect_geq(drawn[i], 1, "number %d", (int)i);
}

Test(sim, swarms_of_the_first_seeds_generate_correct_text_and_recover) { run_seeds(1); }
Test(sim, swarms_of_other_seeds_generate_correct_text_and_recover) { run_seeds(1000001); }
Test(sim, swarms_of_further_seeds_generate_correct_text_and_recover) { run_seeds(2000001); }

Test(sim, swarms_of_a_model_with_recurrent_states_generate_correct_text_and_recover) {
    sim_stats sum = {0};
    for (uint64_t seed = 1; seed <= SEEDS / 4; seed++) {
        sim_stats f = sim_run(seed, (sim_options){.theme = SIM_RECURRENT});
        sim_stats_add(&sum, &f);
    }
    cr_expect_geq(sum.generations, SEEDS / 2);
    cr_expect_geq(sum.failovers, SEEDS / 16);
    cr_expect(SEEDS < 100 || (sum.drains && sum.loads && sum.crashes));
}

Test(sim, swarms_whose_nodes_divide_the_experts_generate_correct_text_and_recover) {
    sim_stats sum = {0};
    for (uint64_t seed = 1; seed <= SEEDS / 4; seed++) {
        sim_stats f = sim_run(seed, (sim_options){.theme = SIM_EXPERTS});
        sim_stats_add(&sum, &f);
    }
    cr_expect_geq(sum.generations, SEEDS / 2);
    cr_expect_geq(sum.rounds, SEEDS);
    cr_expect(SEEDS < 100 || (sum.failovers && sum.rounds_failed && sum.holders_dropped));
}

Test(sim, the_same_seed_gives_the_same_events) {
    uint64_t traces[8];
    for (uint64_t seed = 0; seed < 8; seed++) {
        traces[seed] = sim_run(seed, (sim_options){0}).trace;
        for (uint64_t i = 0; i < seed; i++)
            cr_expect_neq(traces[i], traces[seed], "seeds %d and %d", (int)i, (int)seed);
    }
    for (uint64_t seed = 8; seed-- > 0;)
        cr_expect_eq(sim_run(seed, (sim_options){0}).trace, traces[seed], "seed %d went another way", (int)seed);
}

Test(sim, a_flipped_bit_is_detected, .exit_code = 1) {
    cr_redirect_stderr();
    sim_run(1, (sim_options){.flip_bits = true});
}
