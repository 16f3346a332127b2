/* Masks over a vocabulary. The tokens are sorted by their bytes, so neighbours share beginnings: the grammar walks only
 * over what a token does not share with the one before it, and skips all that share a beginning that is not allowed.
 * States that are alike for as many bytes as the longest token has share a mask. */
#include "gateway/grammar/token_mask.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

typedef struct token {
    const char *bytes;
    size_t len, shared; /* shared: bytes in common with the token before it */
    uint32_t id;
} token;

struct sn_token_bytes {
    char *text; /* of all tokens */
    token *by_id, *sorted;
    size_t n, n_sorted, longest; /* sorted: those with bytes */
};

struct sn_token_masks {
    const sn_token_bytes *tokens;
    sn_grammar *grammar;
    int *path;        /* (longest + 1): states along the present token */
    uint64_t **masks; /* (SN_GRAMMAR_STATES_MAX): NULL: not computed */
    int *order;       /* ring of the states whose masks are kept, the oldest first */
    size_t words, most, first, n;
};

static int compare_tokens(const void *a, const void *b) {
    const token *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, sn_min_size(x->len, y->len));
    return order ? order : x->len < y->len ? -1 : x->len > y->len;
}

sn_status sn_token_bytes_new(const char *const *bytes, const size_t *lengths, size_t n, sn_token_bytes **out,
                             sn_err *err) {
    sn_token_bytes *t = NULL;
    size_t all = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        if (!sn_add(all, lengths[i], &all)) return sn_fail(err, SN_REFUSED, "the vocabulary is too large");
    sn_status status = sn_calloc(&t, 1, sizeof *t, err);
    if (status) return status;
    status = sn_calloc(&t->text, all, 1, err);
    if (!status) status = sn_calloc(&t->by_id, n, sizeof *t->by_id, err);
    if (!status) status = sn_calloc(&t->sorted, n, sizeof *t->sorted, err);
    t->n = n;
    for (size_t i = 0; i < n && !status; i++) {
        if (lengths[i]) memcpy(t->text + at, bytes[i], lengths[i]);
        t->by_id[i] = (token){t->text + at, lengths[i], 0, (uint32_t)i};
        at += lengths[i];
        if (lengths[i]) t->sorted[t->n_sorted++] = t->by_id[i];
        if (lengths[i] > t->longest) t->longest = lengths[i];
    }
    if (t->n_sorted) qsort(t->sorted, t->n_sorted, sizeof *t->sorted, compare_tokens);
    for (size_t i = 1; i < t->n_sorted; i++) {
        token *x = &t->sorted[i];
        const token *before = x - 1;
        while (x->shared < x->len && x->shared < before->len && x->bytes[x->shared] == before->bytes[x->shared])
            x->shared++;
    }
    *out = t;
    if (status) sn_token_bytes_free(out);
    return status;
}

void sn_token_bytes_free(sn_token_bytes **tokens) {
    sn_token_bytes *t = *tokens;
    if (!t) return;
    free(t->text);
    free(t->by_id);
    free(t->sorted);
    free(t);
    *tokens = NULL;
}

const char *sn_token_bytes_of(const sn_token_bytes *t, size_t id, size_t *length) {
    *length = id < t->n ? t->by_id[id].len : 0;
    return id < t->n ? t->by_id[id].bytes : "";
}

sn_status sn_token_masks_new(const sn_token_bytes *tokens, sn_grammar *grammar, sn_token_masks **out, sn_err *err) {
    sn_token_masks *m = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) return status;
    m->tokens = tokens;
    m->grammar = grammar;
    m->words = (tokens->n + 63) / 64;
    m->most = m->words ? SN_TOKEN_MASKS_BYTES / (8 * m->words) + 1 : 1;
    if (m->most > SN_GRAMMAR_STATES_MAX) m->most = SN_GRAMMAR_STATES_MAX;
    status = sn_calloc(&m->path, tokens->longest + 1, sizeof *m->path, err);
    if (!status) status = sn_calloc(&m->masks, SN_GRAMMAR_STATES_MAX, sizeof *m->masks, err);
    if (!status) status = sn_calloc(&m->order, m->most, sizeof *m->order, err);
    *out = m;
    if (status) sn_token_masks_free(out);
    return status;
}

void sn_token_masks_free(sn_token_masks **masks) {
    sn_token_masks *m = *masks;
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) free(m->masks[m->order[(m->first + i) % m->most]]);
    free(m->masks);
    free(m->order);
    free(m->path);
    free(m);
    *masks = NULL;
}

size_t sn_token_masks_bytes(const sn_token_masks *m) { return m->n * m->words * sizeof **m->masks; }

/* path[0...known] are the states of the present token's first bytes; a beginning of dead + 1 bytes is not allowed. */
static sn_status compute_mask(sn_token_masks *m, int state, uint64_t *mask, sn_err *err) {
    const sn_token_bytes *t = m->tokens;
    size_t known = 0, dead = SIZE_MAX;
    m->path[0] = state;
    for (size_t i = 0; i < t->n_sorted; i++) {
        const token *x = &t->sorted[i];
        if (x->shared <= dead) dead = SIZE_MAX;
        if (known > x->shared) known = x->shared;
        while (known < x->len && dead == SIZE_MAX) {
            sn_status status =
                sn_grammar_advance(m->grammar, m->path[known], x->bytes + known, 1, &m->path[known + 1], err);
            if (status) return status;
            if (m->path[known + 1] == SN_GRAMMAR_DEAD)
                dead = known;
            else
                known++;
        }
        if (dead == SIZE_MAX) mask[x->id / 64] |= UINT64_C(1) << (x->id % 64);
    }
    return SN_OK;
}

sn_status sn_token_masks_get(sn_token_masks *m, int state, const uint64_t **out, sn_err *err) {
    if (state < 0 || state >= SN_GRAMMAR_STATES_MAX)
        return sn_fail(err, SN_REFUSED, "the text is not one that the schema allows");
    sn_status status = m->tokens->longest <= SN_GRAMMAR_LOOK ? sn_grammar_alike(m->grammar, state, &state, err) : SN_OK;
    if (status) return status;
    if (!m->masks[state]) {
        uint64_t *mask = NULL;
        status = sn_calloc(&mask, m->words, sizeof *mask, err);
        if (!status) status = compute_mask(m, state, mask, err);
        if (status) {
            free(mask);
            return status;
        }
        if (m->n == m->most) { /* the oldest mask makes room */
            free(m->masks[m->order[m->first]]);
            m->masks[m->order[m->first]] = NULL;
            m->first = (m->first + 1) % m->most;
            m->n--;
        }
        m->order[(m->first + m->n++) % m->most] = state;
        m->masks[state] = mask;
    }
    *out = m->masks[state];
    return SN_OK;
}
