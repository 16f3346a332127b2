#include "text/tokenizer/bpe.h"

#include "text/tokenizer/utf8.h"

#include <stdlib.h>

static const uint32_t NOWHERE = UINT32_MAX;
enum { GONE = -1 /* merged into the symbol before */, NO_TOKEN = -2 /* may become part of a token by merging */ };

typedef struct sn_bpe_symbol {
    int32_t id;
    uint32_t before, next;
    uint32_t start, len; /* bytes of the piece; read where scores decide what merges */
} symbol;

void sn_bpe_fini(sn_bpe *bpe) {
    free(bpe->symbols);
    free(bpe->heap);
    sn_token_ids_fini(&bpe->out);
    *bpe = (sn_bpe){0};
}

sn_status sn_bpe_append(sn_bpe *bpe, int32_t id, sn_err *err) {
    sn_status status = sn_grow(&bpe->out.ids, &bpe->out_capacity, bpe->out.n + 1, sizeof *bpe->out.ids, err);
    if (!status) bpe->out.ids[bpe->out.n++] = id;
    return status;
}

sn_status sn_bpe_append_unknown(sn_bpe *bpe, const sn_vocab *vocab, const uint8_t *bytes, size_t len, sn_err *err) {
    sn_status status = SN_OK;
    const bool fuses = vocab->fuse_unk && bpe->out.n && bpe->out.ids[bpe->out.n - 1] == vocab->unk_id;
    if (!vocab->byte_fallback) return vocab->unk_id < 0 || fuses ? SN_OK : sn_bpe_append(bpe, vocab->unk_id, err);
    for (size_t i = 0; !status && i < len; i++) status = sn_bpe_append(bpe, vocab->byte_ids[bytes[i]], err);
    return status;
}

static void heap_push(sn_bpe *bpe, uint64_t key) {
    size_t at = bpe->n_heap++;
    for (; at > 0 && bpe->heap[(at - 1) / 2] > key; at = (at - 1) / 2) bpe->heap[at] = bpe->heap[(at - 1) / 2];
    bpe->heap[at] = key;
}

static uint64_t heap_pop(sn_bpe *bpe) {
    uint64_t least = bpe->heap[0], key = bpe->heap[--bpe->n_heap];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < bpe->n_heap; at = child) {
        if (child + 1 < bpe->n_heap && bpe->heap[child + 1] < bpe->heap[child]) child++;
        if (bpe->heap[child] >= key) break;
        bpe->heap[at] = bpe->heap[child];
    }
    bpe->heap[at] = key;
    return least;
}

/* Whether the two symbols merge, and into what. */
static bool find_pair(const sn_bpe *bpe, const sn_vocab *vocab, const symbol *left, const symbol *right,
                      sn_merge *out) {
    if (vocab->ranks) {
        size_t len = (size_t)left->len + right->len;
        int32_t id = len > vocab->longest ? -1 : sn_vocab_find(vocab, bpe->piece + left->start, len);
        if (id < 0 || sn_vocab_kind(vocab, id) != SN_TOKEN_NORMAL) return false;
        *out = (sn_merge){.rank = vocab->ranks[id], .id = id};
        return true;
    }
    const sn_merge *merge = sn_vocab_find_merge(vocab, left->id, right->id);
    if (merge) *out = *merge;
    return merge;
}

static void push_pair(sn_bpe *bpe, const sn_vocab *vocab, uint32_t left) {
    uint32_t right = left == NOWHERE ? NOWHERE : bpe->symbols[left].next;
    sn_merge merge;
    if (right == NOWHERE) return;
    if (find_pair(bpe, vocab, &bpe->symbols[left], &bpe->symbols[right], &merge))
        heap_push(bpe, (uint64_t)merge.rank << 32 | left);
}

static void merge_all(sn_bpe *bpe, const sn_vocab *vocab) {
    symbol *symbols = bpe->symbols;
    while (bpe->n_heap) {
        uint64_t key = heap_pop(bpe);
        uint32_t left = (uint32_t)key, rank = (uint32_t)(key >> 32), right = symbols[left].next;
        sn_merge merge;
        if (symbols[left].id == GONE || right == NOWHERE) continue;
        if (!find_pair(bpe, vocab, &symbols[left], &symbols[right], &merge) || merge.rank != rank)
            continue; /* stale candidate: one of the two symbols has merged since */
        symbols[left].id = merge.id;
        symbols[left].len += symbols[right].len;
        symbols[left].next = symbols[right].next;
        symbols[right].id = GONE;
        if (symbols[left].next != NOWHERE) symbols[symbols[left].next].before = left;
        push_pair(bpe, vocab, symbols[left].before);
        push_pair(bpe, vocab, left);
    }
}

static uint32_t put_symbol(sn_bpe *bpe, uint32_t n, int32_t id, size_t start, size_t len) {
    bpe->symbols[n] = (symbol){id, n ? n - 1 : NOWHERE, n + 1, (uint32_t)start, (uint32_t)len};
    return n + 1;
}

static uint32_t init_from_bytes(sn_bpe *bpe, const sn_vocab *vocab, size_t len) {
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++) {
        int32_t id = vocab->byte_ids[bpe->piece[i]];
        if (id >= 0)
            n = put_symbol(bpe, n, id, i, 1); /* a byte without a token is left out, as the models' own tokenizers do */
    }
    return n;
}

/* A character without a token stays NO_TOKEN where scores decide what merges, because it may become part of a token;
 * else it becomes byte tokens or the unknown token at once. */
static uint32_t init_from_characters(sn_bpe *bpe, const sn_vocab *vocab, size_t len) {
    const uint8_t *piece = bpe->piece;
    uint32_t n = 0, code;
    for (size_t at = 0, step; at < len; at += step) {
        step = sn_utf8_decode((const char *)piece + at, len - at, &code);
        if (!step) step = 1; /* cannot happen: pieces are valid UTF-8 */
        int32_t id = sn_vocab_find(vocab, piece + at, step);
        if (id >= 0 && sn_vocab_kind(vocab, id) != SN_TOKEN_SPECIAL)
            n = put_symbol(bpe, n, id, at, step);
        else if (vocab->ranks)
            n = put_symbol(bpe, n, NO_TOKEN, at, step);
        else if (vocab->byte_fallback)
            for (size_t i = at; i < at + step; i++) n = put_symbol(bpe, n, vocab->byte_ids[piece[i]], i, 1);
        else if (vocab->unk_id >= 0 && !(vocab->fuse_unk && n && bpe->symbols[n - 1].id == vocab->unk_id))
            n = put_symbol(bpe, n, vocab->unk_id, at, step);
    }
    return n;
}

static sn_status append_tokens(sn_bpe *bpe, const sn_vocab *vocab, sn_err *err) {
    sn_status status = SN_OK;
    for (uint32_t i = 0; !status && i != NOWHERE; i = bpe->symbols[i].next) {
        const symbol *s = &bpe->symbols[i];
        if (s->id >= 0) status = sn_bpe_append(bpe, s->id, err);
        if (s->id == NO_TOKEN) status = sn_bpe_append_unknown(bpe, vocab, bpe->piece + s->start, s->len, err);
    }
    return status;
}

sn_status sn_bpe_encode_piece(sn_bpe *bpe, const sn_vocab *vocab, bool ignore_merges, const uint8_t *piece, size_t len,
                              sn_err *err) {
    int32_t whole = ignore_merges ? sn_vocab_find(vocab, piece, len) : -1;
    if (whole >= 0 && sn_vocab_kind(vocab, whole) != SN_TOKEN_SPECIAL) return sn_bpe_append(bpe, whole, err);
    /* Every merge takes one candidate off the heap and adds at most two: the heap never holds more than 2 * len. */
    sn_status status = sn_grow(&bpe->symbols, &bpe->symbols_capacity, len, sizeof *bpe->symbols, err);
    if (!status) status = sn_grow(&bpe->heap, &bpe->heap_capacity, 2 * len, sizeof *bpe->heap, err);
    if (status) return status;
    bpe->piece = piece;
    uint32_t n = vocab->sentencepiece ? init_from_characters(bpe, vocab, len) : init_from_bytes(bpe, vocab, len);
    if (n == 0) return SN_OK;
    bpe->symbols[n - 1].next = NOWHERE;
    bpe->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) push_pair(bpe, vocab, i);
    merge_all(bpe, vocab);
    return append_tokens(bpe, vocab, err);
}
