/* An indexer's choice, and attention to the positions that were chosen.
 *
 * How it works: index keys, queries and weights are small whole numbers, so that every order of additions gives the
 * same scores; many are equal, as where the products of all heads are below zero. What is chosen must be the best, in
 * the order of positions, and of equal ones the first. Attention to chosen positions must be that over a KV cache that
 * holds nothing else, while all other positions hold NaN. */
#include "tests/support/conformance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_HEADS = 5, INDEX_DIM = 20, CHOSEN = 16, PAGE = 32, PAGES = 6, ROWS = 34, LATENT = 64, KEY = 64 + 12 };
static const sn_kv_shape shape = {.n_blocks = 2,
                                  .n_kv_heads = 1,
                                  .head_dim = KEY,
                                  .page_tokens = PAGE,
                                  .dtype = SN_KV_F32,
                                  .latent = LATENT,
                                  .index_blocks = 2,
                                  .index_dim = INDEX_DIM};

/* The second sequence begins before its rows choose. */
static const int past[] = {150, 5}, own_rows[] = {3, 31};

static float *whole_numbers(conformance *c, size_t n, uint64_t seed) {
    float *x = conformance_random(c, n, seed);
    for (size_t i = 0; i < n; i++) x[i] = roundf(x[i] * 2);
    return x;
}

/* The index keys of both sequences: those of the rows of the batch by kv_store, those before by kv_write, to the second
 * block that has some. */
static void put_index_keys(conformance *c, float *const keys[2], void *pages[2][PAGES]) {
    for (int s = 0; s < 2; s++)
        CONFORMANCE_OK(c, c->device->ops->kv_write(c->device, &shape, 3, pages[s], 0, past[s], keys[s], NULL, &c->err));
    for (int s = 0; s < 2; s++) { /* they come back */
        float *back = conformance_heap(c, sizeof(float) * INDEX_DIM * (size_t)past[s]);
        CONFORMANCE_OK(c, c->device->ops->kv_read(c->device, &shape, 3, pages[s], 0, past[s], back, NULL, &c->err));
        CONFORMANCE_CHECK(c, !memcmp(back, keys[s], sizeof(float) * INDEX_DIM * (size_t)past[s]),
                          "index keys do not come back");
    }
}

static double score_of(const float *q, const float *weights, const float *key) {
    double score = 0;
    for (int h = 0; h < INDEX_HEADS; h++) {
        double product = 0;
        for (int e = 0; e < INDEX_DIM; e++) product += (double)q[h * INDEX_DIM + e] * (double)key[e];
        score += (double)weights[h] * (product > 0 ? product : 0);
    }
    return isnan(score) ? (double)-INFINITY : score;
}

/* Whether the row chooses position t, of n: fewer than CHOSEN positions are better, or as good and before it. */
static bool is_chosen(const float *q, const float *weights, const float *keys, int t, int n) {
    const double own = score_of(q, weights, keys + t * INDEX_DIM);
    int before = 0;
    for (int i = 0; i < n; i++) {
        double other = score_of(q, weights, keys + i * INDEX_DIM);
        before += other > own || (other == own && i < t);
    }
    return before < CHOSEN;
}

void conformance_choose_keys_takes_the_best_and_of_equal_ones_the_first(conformance *c) {
    sn_device *d = c->device;
    void *pages[2][PAGES];
    float *keys[2], *q = whole_numbers(c, ROWS * INDEX_HEADS * INDEX_DIM, 3),
                    *weights = whole_numbers(c, ROWS * INDEX_HEADS, 4);
    float *stored = conformance_heap(c, sizeof(float) * ROWS * INDEX_DIM);
    int32_t *kept = conformance_heap(c, sizeof *kept * ROWS * CHOSEN);
    sn_sequence sequences[2];
    for (int s = 0, row = 0; s < 2; row += own_rows[s++]) {
        for (int p = 0; p < PAGES; p++) pages[s][p] = conformance_bytes(c, d->ops->kv_page_bytes(d, &shape));
        keys[s] = whole_numbers(c, (size_t)(past[s] + own_rows[s]) * INDEX_DIM, 10 + (uint64_t)s);
        memcpy(stored + row * INDEX_DIM, keys[s] + past[s] * INDEX_DIM,
               sizeof(float) * (size_t)own_rows[s] * INDEX_DIM);
        sequences[s] = (sn_sequence){pages[s], past[s], row, own_rows[s], {0}};
    }
    for (int h = 0; h < INDEX_HEADS; h++) weights[INDEX_HEADS + h] = 0; /* all are equal */
    weights[2 * INDEX_HEADS] = NAN;                                     /* no score is a number */
    put_index_keys(c, keys, pages);
    memset(kept, 0xee, sizeof *kept * ROWS * CHOSEN);
    int32_t *chosen = conformance_bytes(c, sizeof *kept * ROWS * CHOSEN);
    CONFORMANCE_OK(c, d->ops->upload(d, chosen, kept, sizeof *kept * ROWS * CHOSEN, &c->err));
    const sn_indexer indexer = {3,
                                INDEX_HEADS,
                                INDEX_DIM,
                                CHOSEN,
                                conformance_upload(c, q, ROWS * INDEX_HEADS * INDEX_DIM),
                                conformance_upload(c, weights, ROWS * INDEX_HEADS)};
    const sn_batch batch = {&shape, ROWS, 2, sequences, 0};
    bool recorded;
    float *device_keys = conformance_upload(c, stored, ROWS * INDEX_DIM);
    CONFORMANCE_OK(c, d->ops->batch_begin(d, &batch, &recorded, &c->err));
    CONFORMANCE_OK(c, d->ops->kv_store(d, 3, device_keys, NULL, &c->err));
    CONFORMANCE_OK(c, d->ops->choose_keys(d, &indexer, chosen, &c->err));
    CONFORMANCE_OK(c, d->ops->batch_end(d, &c->err));
    CONFORMANCE_OK(c, d->ops->download(d, kept, chosen, sizeof *kept * ROWS * CHOSEN, &c->err));
    for (int s = 0; s < 2; s++)
        for (int r = 0; r < own_rows[s]; r++) {
            const int row = sequences[s].first_row + r, n = past[s] + r + 1;
            const int32_t *at = kept + row * CHOSEN;
            for (int t = 0; t < n && n > CHOSEN; t++)
                if (is_chosen(q + row * INDEX_HEADS * INDEX_DIM, weights + row * INDEX_HEADS, keys[s], t, n))
                    CONFORMANCE_CHECK(c, *at++ == t, "row %d at position %d chooses %d, not %d", row, n - 1,
                                      (int)at[-1], t);
            for (; n <= CHOSEN && at < kept + (row + 1) * CHOSEN; at++)
                CONFORMANCE_CHECK(c, *at == (int32_t)0xeeeeeeee, "row %d, which sees all positions, chooses %d", row,
                                  (int)*at);
        }
}

enum { HEADS = 21, QUERIES = 3, AT = 150 };

/* Attends with one row for each of n sequences, at the position; out (n, HEADS, LATENT), heap. */
static float *attend(conformance *c, const sn_kv_shape *s, void *const *pages[], int n, int position, const float *q,
                     const int32_t *chosen) {
    sn_device *d = c->device;
    sn_sequence sequences[QUERIES];
    float *out = conformance_bytes(c, sizeof(float) * (size_t)n * HEADS * LATENT);
    const sn_attention how = {.block = 1, .n_heads = HEADS, .scale = 0.2f, .chosen = chosen, .n_chosen = CHOSEN};
    const sn_batch batch = {s, n, n, sequences, 0};
    bool recorded;
    for (int i = 0; i < n; i++) sequences[i] = (sn_sequence){pages[i], position, i, 1, {0}};
    CONFORMANCE_OK(c, d->ops->batch_begin(d, &batch, &recorded, &c->err));
    CONFORMANCE_OK(c, d->ops->attention(d, &how, q, out, &c->err));
    CONFORMANCE_OK(c, d->ops->batch_end(d, &c->err));
    return conformance_download(c, out, (size_t)n * HEADS * LATENT);
}

static void try_chosen(conformance *c, sn_kv_dtype dtype) {
    sn_device *d = c->device;
    sn_kv_shape s = shape;
    s.dtype = dtype;
    void *pages[PAGES], *small[QUERIES][1], *const *whole[QUERIES], *const *own[QUERIES];
    int32_t chosen[QUERIES][CHOSEN];
    float *k = conformance_random(c, AT * (KEY - LATENT), 1), *v = conformance_random(c, AT * LATENT, 2);
    float *q = conformance_random(c, QUERIES * HEADS * KEY, 3),
          *device_q = conformance_upload(c, q, QUERIES * HEADS * KEY);
    bool read[AT] = {false};
    for (int i = 0; i < QUERIES; i++)
        for (int j = 0; j < CHOSEN; j++) {
            chosen[i][j] = j * 9 + (j * j + i * 5) % 8 + (i == 2); /* ascending, over all pages */
            read[chosen[i][j]] = true;
        }
    for (int t = 0; t < AT; t++)
        for (int e = 0; e < LATENT && !read[t] && dtype != SN_KV_Q8; e++) v[t * LATENT + e] = NAN; /* Q8 has none */
    for (int p = 0; p < PAGES; p++) pages[p] = conformance_bytes(c, d->ops->kv_page_bytes(d, &s));
    CONFORMANCE_OK(c, d->ops->kv_write(d, &s, 1, pages, 0, AT, k, v, &c->err));
    for (int i = 0; i < QUERIES; i++) {
        small[i][0] = conformance_bytes(c, d->ops->kv_page_bytes(d, &s));
        whole[i] = pages;
        own[i] = small[i];
        for (int j = 0; j < CHOSEN; j++)
            CONFORMANCE_OK(c, d->ops->kv_write(d, &s, 1, own[i], j, 1, k + chosen[i][j] * (KEY - LATENT),
                                               v + chosen[i][j] * LATENT, &c->err));
    }
    int32_t *on_device = conformance_bytes(c, sizeof chosen);
    CONFORMANCE_OK(c, d->ops->upload(d, on_device, chosen, sizeof chosen, &c->err));
    const float *got = attend(c, &s, whole, QUERIES, AT - 1, device_q, on_device);
    const float *want = attend(c, &s, own, QUERIES, CHOSEN - 1, device_q, NULL);
    for (int i = 0; i < QUERIES * HEADS * LATENT; i++)
        CONFORMANCE_CHECK(c, fabsf(got[i] - want[i]) <= (d->id.kind == SN_DEVICE_CPU ? 0 : 1e-5f),
                          "%s, element %d: %a, not %a", sn_kv_dtype_name(dtype), i, (double)got[i], (double)want[i]);
}

void conformance_attention_reads_what_was_chosen_alone(conformance *c) {
    for (int t = 0; t < SN_KV_DTYPE_COUNT; t++) try_chosen(c, (sn_kv_dtype)t);
}
