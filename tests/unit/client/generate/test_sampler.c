#include "client/generate/logprob.h"
#include "client/generate/sampler.h"

#include "base/math.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

static sn_err err;

/* Probabilities 0.1, 0.2, 0.3, 0.4 of tokens 0 to 3. */
static float four[4];
static void set_up(void) {
    for (int i = 0; i < 4; i++) four[i] = (float)sn_ln(0.1 * (i + 1));
}

TestSuite(sampler, .init = set_up);
TestSuite(logprob, .init = set_up);

static sn_sampler *sampler_of(sn_sampling sampling, int n_vocab) {
    sn_sampler *sampler;
    cr_assert_eq(sn_sampler_new(&sampling, n_vocab, &sampler, &err), SN_OK, "%s", err.text);
    return sampler;
}

static int32_t pick_token(sn_sampler *sampler, const float *logits, const int32_t *before, size_t n) {
    int32_t id = -1;
    cr_assert_eq(sn_sampler_sample(sampler, logits, before, n, &id, &err), SN_OK, "%s", err.text);
    return id;
}

/* How often each of the first eight tokens is sampled in n draws. */
static void count_picks(sn_sampling sampling, const float *logits, int n_vocab, int n, int counts[8]) {
    sn_sampler *sampler = sampler_of(sampling, n_vocab);
    for (int i = 0; i < 8; i++) counts[i] = 0;
    for (int i = 0; i < n; i++) counts[pick_token(sampler, logits, NULL, 0)]++;
    sn_sampler_free(&sampler);
}

/* Pearson's chi-square statistic with `degrees` = categories - 1. With 3 degrees 99.9 % of correct runs stay below
 * 16.3. */
static double chi_square(const int *counts, const double *p, int n, int total) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double wanted = p[i] * total, off = counts[i] - wanted;
        if (p[i] > 0)
            sum += off * off / wanted;
        else
            cr_assert_eq(counts[i], 0, "token %d was sampled with probability 0", i);
    }
    return sum;
}

Test(sampler, picks_the_best_token_at_temperature_zero_lowest_id_first) {
    sn_sampler *sampler = sampler_of(SN_SAMPLING_DEFAULT, 5);
    cr_assert_eq(pick_token(sampler, (float[]){1, 5, 3, 5, -INFINITY}, NULL, 0), 1);
    sn_sampler_free(&sampler);
}

Test(sampler, samples_the_same_tokens_from_the_same_seed_everywhere) {
    /* computed independently, from the published algorithms */
    static const int wanted[] = {3, 1, 3, 3, 3, 3, 0, 1, 2, 1, 2, 3, 3, 3, 2, 2, 1, 2, 1, 1};
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sampling.temperature = 1;
    sampling.seed = 7;
    sn_sampler *sampler = sampler_of(sampling, 4);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        cr_assert_eq(pick_token(sampler, four, NULL, 0), wanted[i], "draw %zu", i);
    sn_sampler_free(&sampler);
}

Test(sampler, samples_each_token_with_its_probability) {
    int counts[8];
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sampling.temperature = 1;
    sampling.seed = 1;
    count_picks(sampling, four, 4, 20000, counts);
    cr_assert_lt(chi_square(counts, (double[]){.1, .2, .3, .4}, 4, 20000), 16.3);
}

Test(sampler, flattens_and_sharpens_by_temperature) {
    int counts[8];
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sampling.seed = 2;
    sampling.temperature = 0.5; /* squared probabilities: 1, 4, 9, 16 of 30 */
    count_picks(sampling, four, 4, 20000, counts);
    cr_assert_lt(chi_square(counts, (double[]){1. / 30, 4. / 30, 9. / 30, 16. / 30}, 4, 20000), 16.3);
    sampling.temperature = 1000;
    count_picks(sampling, four, 4, 20000, counts);
    cr_assert_lt(chi_square(counts, (double[]){.25, .25, .25, .25}, 4, 20000), 16.3);
}

Test(sampler, keeps_the_best_k_only) {
    int counts[8];
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sampling.temperature = 1;
    sampling.top_k = 2;
    count_picks(sampling, four, 4, 20000, counts);
    cr_assert_lt(chi_square(counts, (double[]){0, 0, 3. / 7, 4. / 7}, 4, 20000), 16.3);
    sampling.top_k = 1;
    count_picks(sampling, (float[]){2, 7, 7, 1}, 4, 100, counts);
    cr_assert_eq(counts[1], 100); /* the lower of two equal ids */
    sampling.top_k = 99;
    count_picks(sampling, four, 4, 20000, counts);
    cr_assert_lt(chi_square(counts, (double[]){.1, .2, .3, .4}, 4, 20000), 16.3);
}

Test(sampler, keeps_the_fewest_tokens_that_reach_top_p) {
    int counts[8];
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sampling.temperature = 1;
    sampling.top_p = 0.65; /* 0.4 + 0.3 */
    count_picks(sampling, four, 4, 20000, counts);
    cr_assert_lt(chi_square(counts, (double[]){0, 0, 3. / 7, 4. / 7}, 4, 20000), 16.3);
    sampling.top_p = 0.75; /* 0.4 + 0.3 + 0.2 */
    count_picks(sampling, four, 4, 20000, counts);
    cr_assert_lt(chi_square(counts, (double[]){0, 2. / 9, 3. / 9, 4. / 9}, 4, 20000), 16.3);
    sampling.top_p = 1e-9;
    count_picks(sampling, four, 4, 100, counts);
    cr_assert_eq(counts[3], 100);
}

Test(sampler, applies_top_p_after_top_k) {
    int counts[8];
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sampling.temperature = 1;
    sampling.top_k = 3;
    /* of 4/9, 3/9, 2/9: the first two sum to 0.78; of all four tokens they would sum to slightly less than 0.70 */
    sampling.top_p = 0.7;
    count_picks(sampling, four, 4, 20000, counts);
    cr_assert_lt(chi_square(counts, (double[]){0, 0, 3. / 7, 4. / 7}, 4, 20000), 16.3);
    sampling.top_p = 0.4; /* 4/9 */
    count_picks(sampling, four, 4, 100, counts);
    cr_assert_eq(counts[3], 100);
}

Test(sampler, drops_tokens_below_min_p_of_the_best) {
    int counts[8];
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sampling.temperature = 1;
    sampling.min_p = 0.6; /* of 0.4: 0.24 */
    count_picks(sampling, four, 4, 20000, counts);
    cr_assert_lt(chi_square(counts, (double[]){0, 0, 3. / 7, 4. / 7}, 4, 20000), 16.3);
    sampling.min_p = 1;
    count_picks(sampling, four, 4, 100, counts);
    cr_assert_eq(counts[3], 100);
}

Test(sampler, penalises_each_of_the_last_64_tokens_once) {
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sampling.repeat_penalty = 2;
    sn_sampler *sampler = sampler_of(sampling, 4);
    float logits[] = {3, 2, -1, -1.5f};
    cr_assert_eq(pick_token(sampler, logits, (int32_t[]){0}, 1), 1);       /* 3 / 2 < 2 */
    cr_assert_eq(pick_token(sampler, logits, (int32_t[]){0, 1, 0}, 3), 0); /* 1.5, 1: token 0 is penalised once */
    float negative[] = {-1, -1.5f, -9, -9};
    cr_assert_eq(pick_token(sampler, negative, (int32_t[]){0}, 1), 1); /* -1 * 2 */
    int32_t long_history[65] = {[0] = 0};
    for (int i = 1; i < 65; i++) long_history[i] = 3;
    cr_assert_eq(pick_token(sampler, logits, long_history, 65), 0); /* token 0 lies 65 tokens back */
    cr_assert_eq(pick_token(sampler, logits, long_history, 64), 1);
    sn_sampler_free(&sampler);
}

Test(sampler, refuses_logits_that_are_not_numbers) {
    sn_sampler *sampler = sampler_of(SN_SAMPLING_DEFAULT, 3);
    int32_t id;
    cr_assert_eq(sn_sampler_sample(sampler, (float[]){1, NAN, 2}, NULL, 0, &id, &err), SN_RETRY);
    cr_assert_eq(sn_sampler_sample(sampler, (float[]){1, INFINITY, 2}, NULL, 0, &id, &err), SN_RETRY);
    cr_assert_eq(sn_sampler_sample(sampler, (float[]){-INFINITY, -INFINITY, -INFINITY}, NULL, 0, &id, &err), SN_RETRY);
    sn_sampler_free(&sampler);
}

Test(sampler, refuses_settings_out_of_range) {
    sn_sampler *sampler;
    const sn_sampling bad[] = {{.temperature = -1, .top_p = 1, .repeat_penalty = 1},
                               {.temperature = NAN, .top_p = 1, .repeat_penalty = 1},
                               {.top_k = -1, .top_p = 1, .repeat_penalty = 1},
                               {.top_p = 0, .repeat_penalty = 1},
                               {.top_p = 1.5, .repeat_penalty = 1},
                               {.top_p = 1, .min_p = 2, .repeat_penalty = 1},
                               {.top_p = 1, .repeat_penalty = 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(sn_sampler_new(&bad[i], 3, &sampler, &err), SN_REFUSED, "setting %zu", i);
        cr_assert_null(sampler);
    }
}

Test(sampler, works_on_a_vocabulary_of_real_size_with_and_without_filters) {
    enum { VOCAB = 50000 };
    float *logits = malloc(VOCAB * sizeof *logits);
    for (int i = 0; i < VOCAB; i++) logits[i] = (float)((i * 7919) % VOCAB) / 4000.0f;
    int best = 0;
    for (int i = 0; i < VOCAB; i++)
        if (logits[i] > logits[best]) best = i;
    sn_sampling settings[] = {{.temperature = 1, .top_k = 1, .top_p = 1, .repeat_penalty = 1},
                              {.temperature = 1, .top_p = 1e-6, .repeat_penalty = 1},
                              {.temperature = 1e-6, .top_p = 1, .repeat_penalty = 1}};
    for (int i = 0; i < 3; i++) {
        sn_sampler *sampler = sampler_of(settings[i], VOCAB);
        cr_assert_eq(pick_token(sampler, logits, NULL, 0), best, "setting %d", i);
        sn_sampler_free(&sampler);
    }
    free(logits);
}

Test(logprob, agrees_with_the_exponential_of_the_base) {
    float logits[1001];
    double weights[1001], sum = 0, worst = 0;
    for (int i = 0; i <= 1000; i++) logits[i] = (float)(-0.05 * i);
    sn_logits_exp(logits, 1001, 0, 1, weights);
    for (int i = 0; i <= 1000; i++) {
        double wanted = sn_exp((double)logits[i]);
        worst = fmax(worst, fabs(weights[i] - wanted) / wanted);
        sum += wanted;
    }
    cr_assert_lt(worst, 1e-14);
    cr_assert_lt(fabs(sn_logits_sum_exp(logits, 1001, 0) - sum) / sum, 1e-13);
}

Test(logprob, gives_log_probabilities_and_takes_minus_infinity) {
    cr_assert_float_eq(sn_logits_logprob(four, 4, (double)four[3], 1), log(0.2), 1e-7);
    float hole[] = {0, -INFINITY, 0};
    cr_assert_float_eq(sn_logits_logprob(hole, 3, 0, 2), log(0.5), 1e-12);
}

Test(sampler, finds_candidates_far_below_the_best_if_needed) {
    int counts[8];
    float far[] = {-60, 0, -70, -50};
    sn_sampling sampling = SN_SAMPLING_DEFAULT;
    sampling.temperature = 1000; /* nearly uniform among the remaining tokens */
    sampling.top_k = 3;
    count_picks(sampling, far, 4, 3000, counts);
    cr_assert(counts[0] > 800 && counts[1] > 800 && counts[3] > 800 && counts[2] == 0);
    sampling.top_k = 0;
    sampling.top_p = 0x1.fffffffffffffp-1; /* because of rounding not reached before (nearly) all tokens are included */
    count_picks(sampling, far, 4, 3000, counts);
    cr_assert_gt(counts[1], 600);
}
