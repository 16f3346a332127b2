#include "blocks/kept.h"

#include "base/mem.h"
#include "blocks/experts.h"

#include <stdlib.h>

enum { N_INSIDES = 13 };

/* What of a block's inside is kept: all that comes out of a matrix or of attention and is asked for again. Norms and what
 * the activation makes of gate and up are cheap. Returns the bytes of one block. */
static size_t lay_out(const sn_hparams *hp, size_t n, char *at, sn_grad_scratch *s) {
    size_t q = (size_t)hp->n_heads * (size_t)hp->head_dim, kv = (size_t)hp->n_kv_heads * (size_t)hp->head_dim;
    size_t before_norms = hp->qk_norm ? 1 : 0, after = hp->post_norm ? 1 : 0, embd = (size_t)hp->n_embd, ff = (size_t)hp->n_ff;
    size_t used = (size_t)hp->n_experts_used, chosen = used ? sn_experts_chosen_width(hp) : 0, bytes = 0;
    if (used) ff *= used;
    const struct {
        float **member;
        size_t width;
    } all[N_INSIDES] = {{&s->q0, q * before_norms},
                        {&s->k0, kv * before_norms},
                        {&s->q, q},
                        {&s->k, kv},
                        {&s->v, kv},
                        {&s->attn, q},
                        {&s->mid, embd},
                        {&s->o1, embd * after},
                        {&s->o2, embd * after},
                        {&s->gate, ff},
                        {&s->up, ff},
                        {&s->chosen, chosen},
                        {&s->each, used * embd}};
    for (int i = 0; i < N_INSIDES; i++) {
        if (at && all[i].width) *all[i].member = (float *)(void *)(at + bytes);
        bytes += sn_round_up(all[i].width * n * sizeof(float), 64);
    }
    return bytes;
}

static size_t inside_bytes(const sn_span *span, int tokens) {
    sn_grad_scratch none;
    return lay_out(&span->hp, (size_t)tokens, NULL, &none);
}

/* The blocks of a segment that are kept: [*from, *to). */
static void part_of(const sn_kept *k, int segment, int *from, int *to) {
    const sn_segment *g = &k->span->segments[segment];
    *from = k->first > g->first ? k->first : g->first;
    *to = k->end < g->end ? k->end : g->end;
}

static size_t segment_bytes(const sn_kept *k, int segment) {
    int from, to;
    part_of(k, segment, &from, &to);
    return from < to ? (size_t)(to - from) * inside_bytes(k->span, k->n) : 0;
}

size_t sn_kept_bytes(const sn_span *span, int first, int end, int tokens, bool insides) {
    size_t row = (size_t)tokens * (size_t)span->hp.n_embd * sizeof(float);
    return sizeof(sn_kept) + (size_t)(end - first) * (row + (insides ? inside_bytes(span, tokens) : 0));
}

bool sn_kept_insides(const sn_kept *k) {
    for (int i = 0; i < k->span->n_segments; i++)
        if (k->insides[i]) return true;
    return false;
}

size_t sn_kept_taken(const sn_kept *k) {
    return sn_kept_bytes(k->span, k->first, k->end, k->n, sn_kept_insides(k));
}

void sn_kept_forget_insides(sn_kept *k) {
    for (int i = 0; i < k->span->n_segments; i++) {
        sn_device *d = k->span->segments[i].device;
        d->ops->free(d, k->insides[i], segment_bytes(k, i));
        k->insides[i] = NULL;
    }
}

void sn_kept_free(sn_kept **kept) {
    if (*kept) sn_kept_forget_insides(*kept);
    free(*kept);
    *kept = NULL;
}

/* All segments' or none. */
static void take_insides(sn_kept *k) {
    sn_err ignored;
    for (int i = 0; i < k->span->n_segments; i++) {
        sn_device *d = k->span->segments[i].device;
        size_t bytes = segment_bytes(k, i);
        if (bytes && d->ops->alloc(d, bytes, &k->insides[i], &ignored)) {
            sn_kept_forget_insides(k);
            return;
        }
    }
}

sn_kept *sn_kept_new(sn_span *span, int first, int end, int n, size_t bytes_max) {
    size_t bytes = sn_kept_bytes(span, first, end, n, false);
    sn_kept *k = bytes <= bytes_max ? malloc(bytes) : NULL;
    if (!k) return NULL;
    *k = (sn_kept){.span = span, .first = first, .end = end, .n = n};
    if (sn_kept_bytes(span, first, end, n, true) <= bytes_max) take_insides(k);
    return k;
}

void sn_kept_inside(const sn_kept *k, int block, sn_grad_scratch *scratch) {
    int from, to, segment = 0;
    while (block >= k->span->segments[segment].end) segment++;
    part_of(k, segment, &from, &to);
    char *at = k->insides[segment];
    if (at) lay_out(&k->span->hp, (size_t)k->n, at + (size_t)(block - from) * inside_bytes(k->span, k->n), scratch);
}
