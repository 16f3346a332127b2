#include "model/bpe.h"

#include <stdlib.h>

static const uint32_t NOWHERE = UINT32_MAX;

typedef struct sn_bpe_symbol {
    int32_t id; /* -1: merged into the one before */
    uint32_t before, next;
} symbol;

void sn_bpe_fini(sn_bpe *bpe) {
    free(bpe->symbols);
    free(bpe->heap);
    sn_ids_fini(&bpe->out);
    *bpe = (sn_bpe){0};
}

/* Makes room for n elements of an array that has `room`, keeping what is in it. */
static sn_status grow(void *array, size_t size, size_t n, size_t *room, sn_err *err) {
    void **at = array;
    if (n <= *room) return SN_OK;
    size_t want = n < 256 ? 256 : n + n / 2;
    void *grown = realloc(*at, want * size);
    if (!grown) return sn_fail(err, SN_STOP, "out of memory: %zu bytes are not to be had", want * size);
    *at = grown;
    *room = want;
    return SN_OK;
}

sn_status sn_bpe_id(sn_bpe *bpe, int32_t id, sn_err *err) {
    sn_status status = grow(&bpe->out.ids, sizeof *bpe->out.ids, bpe->out.n + 1, &bpe->room_out, err);
    if (!status) bpe->out.ids[bpe->out.n++] = id;
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

static void push_pair(sn_bpe *bpe, const sn_vocab *vocab, uint32_t left) {
    uint32_t right = left == NOWHERE ? NOWHERE : bpe->symbols[left].next;
    if (right == NOWHERE) return;
    const sn_merge *merge = sn_vocab_find_merge(vocab, bpe->symbols[left].id, bpe->symbols[right].id);
    if (merge) heap_push(bpe, (uint64_t)merge->rank << 32 | left);
}

static void merge_all(sn_bpe *bpe, const sn_vocab *vocab) {
    symbol *symbols = bpe->symbols;
    while (bpe->n_heap) {
        uint64_t key = heap_pop(bpe);
        uint32_t left = (uint32_t)key, rank = (uint32_t)(key >> 32), right = symbols[left].next;
        if (symbols[left].id < 0 || right == NOWHERE) continue;
        const sn_merge *merge = sn_vocab_find_merge(vocab, symbols[left].id, symbols[right].id);
        if (!merge || merge->rank != rank) continue; /* one of the two has merged otherwise since */
        symbols[left].id = merge->id;
        symbols[left].next = symbols[right].next;
        symbols[right].id = -1;
        if (symbols[left].next != NOWHERE) symbols[symbols[left].next].before = left;
        push_pair(bpe, vocab, symbols[left].before);
        push_pair(bpe, vocab, left);
    }
}

sn_status sn_bpe_piece(sn_bpe *bpe, const sn_vocab *vocab, bool whole_words, const uint8_t *piece, size_t len,
                       sn_err *err) {
    int32_t whole = whole_words ? sn_vocab_find(vocab, piece, len) : -1;
    if (whole >= 0) return sn_bpe_id(bpe, whole, err);
    /* Every merge takes one candidate off the heap and puts at most two on: never more than 2 * len on it. */
    sn_status status = grow(&bpe->symbols, sizeof *bpe->symbols, len, &bpe->room_symbols, err);
    if (!status) status = grow(&bpe->heap, sizeof *bpe->heap, 2 * len, &bpe->room_heap, err);
    if (status) return status;
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++) {
        int32_t id = vocab->byte_ids[piece[i]];
        if (id < 0) continue; /* what a vocabulary cannot say is left out, as the models' own tokenizers do */
        bpe->symbols[n] = (symbol){.id = id, .before = n ? n - 1 : NOWHERE, .next = n + 1};
        n++;
    }
    if (n == 0) return SN_OK;
    bpe->symbols[n - 1].next = NOWHERE;
    bpe->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) push_pair(bpe, vocab, i);
    merge_all(bpe, vocab);
    for (uint32_t i = 0; !status && i != NOWHERE; i = bpe->symbols[i].next)
        status = sn_bpe_id(bpe, bpe->symbols[i].id, err);
    return status;
}
