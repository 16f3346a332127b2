#include "client/sampler.h"

#include "base/mem.h"
#include "client/logprob.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float SELDOM_NEEDED = 12; /* e^-12 of the best one's probability */

struct sn_sampler {
    sn_sampling options;
    size_t n_vocab;
    uint64_t random[4];
    const float *row; /* (n_vocab): the logits to choose by: the caller's, or ... */
    float *penalised; /* ... (n_vocab) of our own */
    int32_t *heap;   /* (n_vocab): ids, the best on top */
    float *kept;     /* (n_vocab): logits of the candidates ... */
    int32_t *ids;    /* (n_vocab): ... and which they are */
    double *weights; /* (n_vocab) */
};

/* -- chance ----------------------------------------------------------------------------------------------------------
 */

static uint64_t splitmix64(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }

static uint64_t xoshiro256ss(uint64_t s[4]) {
    uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

static double uniform(uint64_t s[4]) { return (double)(xoshiro256ss(s) >> 11) * 0x1p-53; } /* [0, 1) */

/* -- a heap of ids, so that the vocabulary need not be sorted for the few best
 * ----------------------------------------- */

static bool better(const float *logits, int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift_down(const float *logits, int32_t *heap, size_t n, size_t at) {
    int32_t moving = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && better(logits, heap[child + 1], heap[child])) child++;
        if (!better(logits, heap[child], moving)) break;
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
    for (size_t i = n / 2; i-- > 0;) sift_down(logits, heap, n, i);
    return n;
}

static int32_t heap_pop(const float *logits, int32_t *heap, size_t *n) {
    int32_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n) sift_down(logits, heap, *n, 0);
    return top;
}

/* -- the filters -----------------------------------------------------------------------------------------------------
 */

/* From the unpenalised logit: a token that occurs twice is penalised once. */
static void penalise(sn_sampler *s, const float *logits, const int32_t *before, size_t n_before) {
    size_t n = sn_min_size(n_before, SN_SAMPLER_LAST);
    float penalty = (float)s->options.repeat_penalty;
    memcpy(s->penalised, logits, s->n_vocab * sizeof *logits);
    for (size_t i = n_before - n; i < n_before; i++) {
        int32_t id = before[i];
        s->penalised[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
    s->row = s->penalised;
}

/* Pops ids into s->ids, their weights beside them, until there are `most` or their weights reach `mass`. */
static size_t pop_best(sn_sampler *s, size_t left, double top, size_t most, double mass) {
    double sum = 0;
    size_t n = 0;
    while (left && n < most && (!n || sum < mass)) {
        s->ids[n] = heap_pop(s->row, s->heap, &left);
        sn_row_exp(&s->row[s->ids[n]], 1, top, 1, &s->weights[n]);
        sum += s->weights[n++];
    }
    return sum < mass && n < most && left == 0 ? 0 : n;
}

/* The best candidates in falling order: top_k of them, or as many as have probability top_p among all. What is far
 * below the best is seldom needed, so the heap is made without it first; the outcome is the same. */
static size_t keep_best(sn_sampler *s, double top) {
    size_t k = s->options.top_k ? sn_min_size((size_t)s->options.top_k, s->n_vocab) : s->n_vocab;
    double mass = s->options.top_k ? INFINITY : s->options.top_p * sn_row_sum_exp(s->row, s->n_vocab, top);
    size_t n = pop_best(s, heap_make(s->row, s->n_vocab, (float)top - SELDOM_NEEDED, s->heap), top, k, mass);
    if (!n) { /* nothing is left below: rounding may keep the whole from reaching a top_p of nearly 1 */
        size_t all = heap_make(s->row, s->n_vocab, -INFINITY, s->heap);
        n = pop_best(s, all, top, k, mass);
        if (!n) n = all;
    }
    if (!s->options.top_k || s->options.top_p == 1) return n;
    double all = 0, sum = 0; /* top_p among the k best */
    for (size_t i = 0; i < n; i++) all += s->weights[i];
    size_t kept = 0;
    while (kept < n && (!kept || sum < s->options.top_p * all)) sum += s->weights[kept++];
    return kept;
}

/* All ids in their order, for when neither top_k nor top_p is asked for. */
static size_t keep_all(sn_sampler *s) {
    for (size_t i = 0; i < s->n_vocab; i++) s->ids[i] = (int32_t)i;
    return s->n_vocab;
}

static size_t drop_unlikely(sn_sampler *s, size_t n, double top) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        double weight; /* relative to the best, which has 1 */
        sn_row_exp(&s->row[s->ids[i]], 1, top, 1, &weight);
        if (weight >= s->options.min_p) s->ids[kept++] = s->ids[i];
    }
    return kept;
}

static int32_t draw(sn_sampler *s, size_t n, double top) {
    for (size_t i = 0; i < n; i++) s->kept[i] = s->row[s->ids[i]];
    sn_row_exp(s->kept, n, top, s->options.temperature, s->weights);
    double all = 0, sum = 0;
    for (size_t i = 0; i < n; i++) all += s->weights[i];
    double target = uniform(s->random) * all;
    for (size_t i = 0; i + 1 < n; i++) {
        sum += s->weights[i];
        if (target < sum) return s->ids[i];
    }
    return s->ids[n - 1];
}

sn_status sn_sampler_pick(sn_sampler *s, const float *logits, const int32_t *before, size_t n_before, int32_t *out,
                          sn_err *err) {
    sn_status status = sn_row_best(logits, s->n_vocab, out, err);
    if (status) return status;
    s->row = logits;
    if (s->options.repeat_penalty != 1) {
        penalise(s, logits, before, n_before);
        status = sn_row_best(s->row, s->n_vocab, out, err);
    }
    if (status || s->options.temperature == 0) return status;
    double top = (double)s->row[*out];
    size_t n = s->options.top_k || s->options.top_p < 1 ? keep_best(s, top) : keep_all(s);
    if (s->options.min_p > 0) n = drop_unlikely(s, n, top);
    assert(n > 0); /* the best passes every filter: top_p keeps one, and its weight is 1 >= min_p */
    *out = draw(s, n, top);
    return SN_OK;
}

/* -- life ------------------------------------------------------------------------------------------------------------
 */

static sn_status check(const sn_sampling *o, sn_err *err) {
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
    sn_status status = check(sampling, err);
    if (!status) status = sn_calloc(&s, 1, sizeof *s, err);
    if (status) return status;
    *s = (sn_sampler){.options = *sampling, .n_vocab = (size_t)n_vocab};
    uint64_t state = sampling->seed;
    for (int i = 0; i < 4; i++) s->random[i] = splitmix64(&state);
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

sn_chance sn_sampler_chance(const sn_sampler *sampler) {
    sn_chance chance;
    memcpy(chance.state, sampler->random, sizeof chance.state);
    return chance;
}

void sn_sampler_return(sn_sampler *sampler, const sn_chance *chance) {
    memcpy(sampler->random, chance->state, sizeof chance->state);
}
