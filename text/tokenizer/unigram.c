/* Viterbi's algorithm over the bytes of the text: for each place the best way to it, by the sums that the
 * references' own encoders make, in their order and types, so that equal and nearly equal ways are decided as there. */
#include "text/tokenizer/unigram.h"

#include "text/tokenizer/utf8.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double UNKNOWN_PENALTY = 10;

void sn_unigram_fini(sn_unigram *unigram) {
    free(unigram->order);
    free(unigram->scores);
    *unigram = (sn_unigram){0};
}

static int by_bytes(const void *a, const void *b, void *context) {
    const sn_vocab *vocab = context;
    const sn_vocab_token *x = &vocab->tokens[*(const int32_t *)a], *y = &vocab->tokens[*(const int32_t *)b];
    const int order = memcmp(vocab->bytes.data + x->start, vocab->bytes.data + y->start, sn_min_size(x->len, y->len));
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* A sum of two numbers, as the reference keeps it. */
static double keep(const sn_unigram *u, double sum) { return u->in_float ? (double)(float)sum : sum; }

sn_status sn_unigram_init(sn_unigram *unigram, const sn_vocab *vocab, const double *scores, const bool *symbols,
                          size_t n_scores, sn_err *err) {
    double lowest = (double)FLT_MAX;
    unigram->best = (double)FLT_MIN; /* as in SentencePiece, which looks for the greatest score from here on */
    unigram->n_scores = n_scores;
    unigram->in_float = symbols != NULL;
    sn_status status = sn_calloc(&unigram->order, n_scores, sizeof *unigram->order, err);
    if (!status) status = sn_calloc(&unigram->scores, n_scores, sizeof *unigram->scores, err);
    for (size_t id = 0; !status && id < n_scores; id++) {
        const sn_token_kind kind = sn_vocab_kind(vocab, (int32_t)id);
        const bool symbol = symbols && symbols[id];
        if (!isfinite(scores[id])) status = sn_fail(err, SN_REFUSED, "the score of piece %zu is no finite number", id);
        if (!symbols) lowest = fmin(lowest, scores[id]); /* of special tokens, too */
        if (kind != SN_TOKEN_NORMAL && !(kind == SN_TOKEN_ADDED && symbol)) continue;
        if (vocab->tokens[id].len > SN_UNIGRAM_PIECE_MAX)
            status = sn_fail(err, SN_REFUSED, "piece %zu has %u bytes; at most %d are taken", id, vocab->tokens[id].len,
                             SN_UNIGRAM_PIECE_MAX);
        unigram->scores[id] = scores[id];
        unigram->order[unigram->n++] = (int32_t)id;
        if (symbol) continue;
        lowest = fmin(lowest, scores[id]);
        unigram->best = fmax(unigram->best, scores[id]);
    }
    unigram->unknown = keep(unigram, lowest - UNKNOWN_PENALTY);
    if (!status) qsort_r(unigram->order, unigram->n, sizeof *unigram->order, by_bytes, (void *)(uintptr_t)vocab);
    return status;
}

/* The first piece of [from, to), which begin alike in `depth` bytes, that has at least `byte` behind these. */
static size_t first_with(const sn_unigram *u, const sn_vocab *vocab, size_t from, size_t to, size_t depth, int byte) {
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        const sn_vocab_token *token = &vocab->tokens[u->order[middle]];
        if (token->len <= depth || vocab->bytes.data[token->start + depth] < byte)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* The best way to a place of the text. */
typedef struct place {
    double score;
    int32_t id;    /* the last piece of the way; -1: an unknown character */
    uint32_t from; /* where it begins */
    uint32_t next; /* on the best way to the end: where the piece ends that begins here */
    bool reached;
} place;

static void offer(const sn_unigram *u, place *at, int32_t id, size_t from, double score) {
    if (at->reached && !(score > at->score)) return;
    *at = (place){.id = id, .from = (uint32_t)from, .score = keep(u, score), .reached = true};
}

static double score_of(const sn_unigram *u, const sn_vocab *vocab, int32_t id, size_t len) {
    if (sn_vocab_kind(vocab, id) == SN_TOKEN_ADDED) return keep(u, (double)len * u->best) - 0.1;
    return u->scores[id];
}

/* Offers all pieces that begin at `from`. */
static void step(const sn_unigram *u, const sn_vocab *vocab, place *places, const uint8_t *text, size_t len,
                 size_t from, size_t character) {
    size_t low = 0, high = u->n;
    const double till_here = places[from].score;
    bool single = false;
    for (size_t depth = 0; from + depth < len; depth++) {
        const int byte = text[from + depth];
        low = first_with(u, vocab, low, high, depth, byte);
        high = first_with(u, vocab, low, high, depth, byte + 1);
        if (low == high) break;
        const int32_t id = u->order[low];
        if (vocab->tokens[id].len != depth + 1) continue;
        offer(u, &places[from + depth + 1], id, from, score_of(u, vocab, id, depth + 1) + till_here);
        single |= depth + 1 == character;
    }
    if (!single) offer(u, &places[from + character], -1, from, keep(u, u->unknown + till_here));
}

static sn_status append_way(const sn_vocab *vocab, sn_bpe *bpe, place *places, const char *text, size_t len,
                            sn_err *err) {
    sn_status status = SN_OK;
    for (size_t at = len; at > 0; at = places[at].from) places[places[at].from].next = (uint32_t)at;
    for (size_t at = 0, to; !status && at < len; at = to) {
        to = places[at].next;
        if (places[to].id >= 0)
            status = sn_bpe_append(bpe, places[to].id, err);
        else
            status = sn_bpe_append_unknown(bpe, vocab, (const uint8_t *)text + at, to - at, err);
    }
    return status;
}

sn_status sn_unigram_encode(const sn_unigram *unigram, const sn_vocab *vocab, sn_bpe *bpe, const char *text, size_t len,
                            sn_err *err) {
    place *places;
    uint32_t code;
    if (!len) return SN_OK;
    if (len >= UINT32_MAX) return sn_fail(err, SN_REFUSED, "the text has %zu bytes, too many at once", len);
    sn_status status = sn_calloc(&places, len + 1, sizeof *places, err);
    if (status) return status;
    for (size_t at = 0, character; at < len; at += character) {
        character = sn_utf8_decode(text + at, len - at, &code);
        if (!character) character = 1; /* cannot happen: the text is valid UTF-8 */
        step(unigram, vocab, places, (const uint8_t *)text, len, at, character);
    }
    status = append_way(vocab, bpe, places, text, len, err);
    free(places);
    return status;
}
