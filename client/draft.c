#include "client/draft.h"

#include "base/mem.h"

enum { FIRST_LENGTH = 4, LIKE_LEAST = 2, LIKE_MOST = 32 };

sn_draft sn_draft_of(sn_draft_source source, void *ctx, int most) {
    size_t length = (size_t)most;
    return (sn_draft){source, ctx, length, sn_min_size(length, FIRST_LENGTH)};
}

sn_status sn_draft_guess(sn_draft *d, const int32_t *ids, size_t n, const sn_chance *chance, size_t room, int32_t *out,
                         size_t *n_out, sn_err *err) {
    size_t most = sn_min_size(d->length, room);
    *n_out = 0;
    return most ? d->source(d->ctx, ids, n, chance, most, out, n_out, err) : SN_OK;
}

/* Twice as far after a guess that was right to its end, halfway to what was right after another one. */
void sn_draft_learn(sn_draft *d, size_t guessed, size_t right) {
    if (!guessed) return;
    if (right == guessed)
        d->length = sn_min_size(d->length > 2 * guessed ? d->length : 2 * guessed, d->most);
    else
        d->length = (d->length + right + 1) / 2;
}

sn_status sn_draft_look_up(void *ctx, const int32_t *ids, size_t n, const sn_chance *chance, size_t most, int32_t *out,
                           size_t *n_out, sn_err *err) {
    (void)ctx, (void)chance, (void)err;
    size_t best = 0, at = 0;
    for (size_t end = n; --end > 0 && best < LIKE_MOST;) { /* ids[0, end) ends as all of them do */
        size_t same = 0;
        while (same < LIKE_MOST && same < end && ids[end - 1 - same] == ids[n - 1 - same]) same++;
        if (same <= best) continue;
        best = same;
        at = end;
    }
    *n_out = best < LIKE_LEAST ? 0 : most;
    for (size_t i = 0; i < *n_out; i++) out[i] = at + i < n ? ids[at + i] : out[at + i - n]; /* a repetition goes on */
    return SN_OK;
}
