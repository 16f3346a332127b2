/* Sampling without sorting the vocabulary.
 *
 * top_k and top_p need the best candidates in falling order. A heap of ids gives them one by one, and it is first made
 * of the logits within LOGIT_WINDOW of the best only: what is below has a probability of less than e^-12 of the best
 * and is seldom needed. When these candidates do not suffice, the heap is made again of all ids; the result is the
 * same. Probabilities are weights relative to the best token, summed in a fixed order. */
#include "client/generate/sampler.h"

#include "base/mem.h"
#include "base/random.h"
#include "client/generate/logprob.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float LOGIT_WINDOW = 12;

struct sn_sampler {
    sn_sampling options;
    size_t n_vocab;
    uint64_t rng_state[4];
    const float *row; /* (n_vocab): the logits to choose from: the caller's, or `penalised` */
    float *penalised; /* (n_vocab): logits after the repeat penalty */
    int32_t *heap;    /* (n_vocab): ids, the best on top */
    int32_t *ids;     /* (n_vocab): the candidates that are left ... */
    double *weights;  /* (n_vocab): ... and their weights */
    float *kept;      /* (n_vocab): ... and their logits, while one is drawn */
};

/* -- random numbers ---------------------------------------------------------------------------------------------------
 */

static uint64_t rotate_left(uint64_t x, int by) { return x << by | x >> (64 - by); }

static uint64_t xoshiro256ss(uint64_t s[4]) {
    uint64_t result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

static double xoshiro_uniform(uint64_t s[4]) { return (double)(xoshiro256ss(s) >> 11) * 0x1p-53; } /* [0, 1) */

/* -- a heap of ids ----------------------------------------------------------------------------------------------------
 */

static bool logit_is_better(const float *logits, int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void heap_sift_down(const float *logits, int32_t *heap, size_t n, size_t at) {
    int32_t moving = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && logit_is_better(logits, heap[child + 1], heap[child])) child++;
        if (!logit_is_better(logits, heap[child], moving)) break;
        heap[at] = heap[child];
    }
    heap[at] = moving;
}

/* A heap of the ids whose logit is at least `floor`; returns how many. */
static size_t heap_make(const float *logits, size_t n_vocab, float floor, int32_t *heap) {
    size_t n = 0;
    for (size_t i = 0; i < n_vocab; i++) {
        heap[n] = (int32_t)i;
        n += logits[i] >= floor;
    }
    for (size_t i = n / 2; i-- > 0;) heap_sift_down(logits, heap, n, i);
    return n;
}

static int32_t heap_pop(const float *logits, int32_t *heap, size_t *n) {
    int32_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n) heap_sift_down(logits, heap, *n, 0);
    return top;
}

/* -- penalty and filters ----------------------------------------------------------------------------------------------
 */

/* A token that occurs twice is penalised once: the penalty applies to the given logit. */
static void sampler_penalise(sn_sampler *s, const float *logits, const int32_t *before, size_t n_before) {
    size_t n = sn_min_size(n_before, SN_PENALTY_LAST_N);
    float penalty = (float)s->options.repeat_penalty;
    memcpy(s->penalised, logits, s->n_vocab * sizeof *logits);
    for (size_t i = n_before - n; i < n_before; i++) {
        int32_t id = before[i];
        s->penalised[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
    s->row = s->penalised;
}

/* Pops ids into s->ids and their weights into s->weights, until there are `most` or the weights sum to `mass`. Returns
 * how many; 0: the heap had too few. */
static size_t sampler_pop_best(sn_sampler *s, size_t left, double top, size_t most, double mass) {
    double sum = 0;
    size_t n = 0;
    while (left && n < most && (!n || sum < mass)) {
        s->ids[n] = heap_pop(s->row, s->heap, &left);
        sn_logits_exp(&s->row[s->ids[n]], 1, top, 1, &s->weights[n]);
        sum += s->weights[n++];
    }
    return sum < mass && n < most && left == 0 ? 0 : n;
}

/* The best candidates in falling order: top_k of them, or as many as have probability top_p among all. Returns how
 * many.
 */
static size_t sampler_keep_best(sn_sampler *s, double top) {
    size_t k = s->options.top_k ? sn_min_size((size_t)s->options.top_k, s->n_vocab) : s->n_vocab;
    double mass = s->options.top_k ? INFINITY : s->options.top_p * sn_logits_sum_exp(s->row, s->n_vocab, top);
    size_t n = sampler_pop_best(s, heap_make(s->row, s->n_vocab, (float)top - LOGIT_WINDOW, s->heap), top, k, mass);
    if (!n) { /* with all ids; rounding may keep their sum below a top_p of nearly 1 */
        size_t all = heap_make(s->row, s->n_vocab, -INFINITY, s->heap);
        n = sampler_pop_best(s, all, top, k, mass);
        if (!n) n = all;
    }
    if (!s->options.top_k || s->options.top_p == 1) return n;
    double all = 0, sum = 0; /* top_p among the k best */
    for (size_t i = 0; i < n; i++) all += s->weights[i];
    size_t kept = 0;
    while (kept < n && (!kept || sum < s->options.top_p * all)) sum += s->weights[kept++];
    return kept;
}

/* All ids in their order: neither top_k nor top_p is used. */
static size_t sampler_keep_all(sn_sampler *s) {
    for (size_t i = 0; i < s->n_vocab; i++) s->ids[i] = (int32_t)i;
    return s->n_vocab;
}

static size_t sampler_drop_unlikely(sn_sampler *s, size_t n, double top) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        double weight; /* relative to the best token's, which is 1 */
        sn_logits_exp(&s->row[s->ids[i]], 1, top, 1, &weight);
        if (weight >= s->options.min_p) s->ids[kept++] = s->ids[i];
    }
    return kept;
}

static int32_t sampler_draw(sn_sampler *s, size_t n, double top) {
    for (size_t i = 0; i < n; i++) s->kept[i] = s->row[s->ids[i]];
    sn_logits_exp(s->kept, n, top, s->options.temperature, s->weights);
    double all = 0, sum = 0;
    for (size_t i = 0; i < n; i++) all += s->weights[i];
    double target = xoshiro_uniform(s->rng_state) * all;
    for (size_t i = 0; i + 1 < n; i++) {
        sum += s->weights[i];
        if (target < sum) return s->ids[i];
    }
    return s->ids[n - 1];
}

sn_status sn_sampler_sample(sn_sampler *s, const float *logits, const int32_t *before, size_t n_before, int32_t *out,
                            sn_err *err) {
    sn_status status = sn_logits_argmax(logits, s->n_vocab, out, err);
    if (status) return status;
    s->row = logits;
    if (s->options.repeat_penalty != 1) {
        sampler_penalise(s, logits, before, n_before);
        status = sn_logits_argmax(s->row, s->n_vocab, out, err);
    }
    if (status || s->options.temperature == 0) return status;
    double top = (double)s->row[*out];
    size_t n = s->options.top_k || s->options.top_p < 1 ? sampler_keep_best(s, top) : sampler_keep_all(s);
    if (s->options.min_p > 0) n = sampler_drop_unlikely(s, n, top);
    assert(n > 0); /* the best passes every filter: top_p keeps one, and its weight is 1 >= min_p */
    *out = sampler_draw(s, n, top);
    return SN_OK;
}

/* -- making a sampler -------------------------------------------------------------------------------------------------
 */

static sn_status sampling_check(const sn_sampling *o, sn_err *err) {
    if (!(o->temperature >= 0) || o->temperature > 1000)
        return sn_fail(err, SN_REFUSED, "a temperature of %g is not between 0 and 1000", o->temperature);
    if (o->top_k < 0) return sn_fail(err, SN_REFUSED, "top-k is %d; it must be 0 (all) or more", o->top_k);
    if (!(o->top_p > 0) || o->top_p > 1)
        return sn_fail(err, SN_REFUSED, "top-p is %g; it must be above 0 and at most 1", o->top_p);
    if (!(o->min_p >= 0) || o->min_p > 1)
        return sn_fail(err, SN_REFUSED, "min-p is %g; it must be between 0 and 1", o->min_p);
    if (!(o->repeat_penalty > 0) || o->repeat_penalty > 100)
        return sn_fail(err, SN_REFUSED, "the repeat penalty is %g; it must be above 0 and at most 100",
                       o->repeat_penalty);
    return SN_OK;
}

sn_status sn_sampler_new(const sn_sampling *sampling, int n_vocab, sn_sampler **out, sn_err *err) {
    *out = NULL;
    assert(n_vocab > 0);
    sn_sampler *s = NULL;
    sn_status status = sampling_check(sampling, err);
    if (!status) status = sn_calloc(&s, 1, sizeof *s, err);
    if (status) return status;
    *s = (sn_sampler){.options = *sampling, .n_vocab = (size_t)n_vocab};
    uint64_t state = sampling->seed;
    for (int i = 0; i < 4; i++) s->rng_state[i] = sn_rng_next(&state);
    status = sn_calloc(&s->penalised, s->n_vocab, sizeof *s->penalised, err);
    if (!status) status = sn_calloc(&s->heap, s->n_vocab, sizeof *s->heap, err);
    if (!status) status = sn_calloc(&s->kept, s->n_vocab, sizeof *s->kept, err);
    if (!status) status = sn_calloc(&s->ids, s->n_vocab, sizeof *s->ids, err);
    if (!status) status = sn_calloc(&s->weights, s->n_vocab, sizeof *s->weights, err);
    if (status) sn_sampler_free(&s);
    *out = s;
    return status;
}

void sn_sampler_free(sn_sampler **sampler) {
    sn_sampler *s = *sampler;
    if (!s) return;
    free(s->penalised);
    free(s->heap);
    free(s->kept);
    free(s->ids);
    free(s->weights);
    free(s);
    *sampler = NULL;
}

sn_rng_state sn_sampler_rng_state(const sn_sampler *sampler) {
    sn_rng_state state;
    memcpy(state.state, sampler->rng_state, sizeof state.state);
    return state;
}

sn_rng_state sn_sampler_rng_state_after(const sn_sampler *sampler, size_t n) {
    sn_rng_state state = sn_sampler_rng_state(sampler);
    for (; sampler->options.temperature > 0 && n; n--) (void)xoshiro_uniform(state.state); /* one for each token */
    return state;
}

void sn_sampler_set_rng_state(sn_sampler *sampler, const sn_rng_state *state) {
    memcpy(sampler->rng_state, state->state, sizeof state->state);
}
