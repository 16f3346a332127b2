#include "blocks/saved_activations.h"

#include "base/mem.h"
#include "blocks/moe.h"

#include <stdlib.h>

enum { N_INNER = 15 };

/* The inner activations that are saved of a block: every result of a matrix or of attention that the backward pass
 * reads. Results of norms and of the activation are recomputed, because they are cheap. Returns the bytes of one block
 * of n tokens; at (NULL allowed): points the members of *s into this memory. */
static size_t inner_layout(const sn_hparams *hp, size_t n, char *at, sn_grad_scratch *s) {
    size_t q = (size_t)hp->n_heads * (size_t)hp->head_dim, kv = (size_t)hp->n_kv_heads * (size_t)hp->head_dim;
    size_t qk_norm = hp->qk_norm ? 1 : 0, post_norm = hp->post_norm ? 1 : 0;
    size_t embd = (size_t)hp->n_embd, ff = sn_ff_width(hp);
    size_t used = (size_t)hp->n_experts_used, bytes = 0;
    const struct {
        float **member;
        size_t width;
    } all[N_INNER] = {{&s->q0, q * qk_norm},
                      {&s->k0, kv * qk_norm},
                      {&s->q, q},
                      {&s->k, kv},
                      {&s->v, kv},
                      {&s->attn, q},
                      {&s->mid, embd},
                      {&s->o1, embd * post_norm},
                      {&s->o2, embd * post_norm},
                      {&s->gate, ff},
                      {&s->up, ff},
                      {&s->logits, (size_t)hp->n_experts},
                      {&s->expert_weights, used},
                      {&s->expert_ids, used},
                      {&s->expert_out, used * embd}};
    for (int i = 0; i < N_INNER; i++) {
        if (at && all[i].width) *all[i].member = (float *)(void *)(at + bytes);
        bytes += sn_round_up(all[i].width * n * sizeof(float), 64);
    }
    return bytes;
}

static size_t inner_bytes(const sn_span *span, int tokens) {
    sn_grad_scratch none;
    return inner_layout(&span->hp, (size_t)tokens, NULL, &none);
}

/* The blocks [*from, *to) of a segment that are saved. */
static void saved_range(const sn_saved_activations *k, int segment, int *from, int *to) {
    const sn_segment *g = &k->span->segments[segment];
    *from = k->first > g->first ? k->first : g->first;
    *to = k->end < g->end ? k->end : g->end;
}

static size_t segment_inner_bytes(const sn_saved_activations *k, int segment) {
    int from, to;
    saved_range(k, segment, &from, &to);
    return from < to ? (size_t)(to - from) * inner_bytes(k->span, k->n) : 0;
}

size_t sn_saved_activations_estimate(const sn_span *span, int first, int end, int tokens, bool inner) {
    size_t row = (size_t)tokens * (size_t)span->hp.n_embd * sizeof(float);
    return sizeof(sn_saved_activations) + (size_t)(end - first) * (row + (inner ? inner_bytes(span, tokens) : 0));
}

bool sn_saved_activations_has_inner(const sn_saved_activations *k) {
    for (int i = 0; i < k->span->n_segments; i++)
        if (k->inner[i]) return true;
    return false;
}

size_t sn_saved_activations_bytes(const sn_saved_activations *k) {
    return sn_saved_activations_estimate(k->span, k->first, k->end, k->n, sn_saved_activations_has_inner(k));
}

void sn_saved_activations_drop_inner(sn_saved_activations *k) {
    for (int i = 0; i < k->span->n_segments; i++) {
        sn_device *d = k->span->segments[i].device;
        d->ops->free(d, k->inner[i], segment_inner_bytes(k, i));
        k->inner[i] = NULL;
    }
}

void sn_saved_activations_free(sn_saved_activations **saved) {
    if (*saved) sn_saved_activations_drop_inner(*saved);
    free(*saved);
    *saved = NULL;
}

/* Allocates the inner activations of all segments, or of none. */
static void alloc_inner(sn_saved_activations *k) {
    sn_err ignored;
    for (int i = 0; i < k->span->n_segments; i++) {
        sn_device *d = k->span->segments[i].device;
        size_t bytes = segment_inner_bytes(k, i);
        if (bytes && d->ops->alloc(d, bytes, &k->inner[i], &ignored)) {
            sn_saved_activations_drop_inner(k);
            return;
        }
    }
}

sn_saved_activations *sn_saved_activations_new(sn_span *span, int first, int end, int n, size_t bytes_max) {
    size_t bytes = sn_saved_activations_estimate(span, first, end, n, false);
    sn_saved_activations *k = bytes <= bytes_max ? malloc(bytes) : NULL;
    if (!k) return NULL;
    *k = (sn_saved_activations){.span = span, .first = first, .end = end, .n = n};
    if (sn_saved_activations_estimate(span, first, end, n, true) <= bytes_max) alloc_inner(k);
    return k;
}

void sn_saved_activations_bind_inner(const sn_saved_activations *k, int block, sn_grad_scratch *scratch) {
    int from, to, segment = 0;
    while (block >= k->span->segments[segment].end) segment++;
    saved_range(k, segment, &from, &to);
    char *at = k->inner[segment];
    if (at) inner_layout(&k->span->hp, (size_t)k->n, at + (size_t)(block - from) * inner_bytes(k->span, k->n), scratch);
}
