/* All bytes of all tokens lie one after the other in vocab->bytes; sn_vocab_token says where. Two hash tables with open
 * addressing (power-of-two sizes, linear probing, at most two thirds full) answer what an encoding asks for every
 * symbol: `slots` finds an id by bytes (FNV-1a), `merges` finds the merge of a pair of ids. Where scores decide what
 * merges, `ranks` orders the ids by score, and a merge is found as the token of the joined bytes.
 *
 * The checks of a file's vocabulary happen here: ids given twice, tokens that are equal, bytes without a token, merges
 * that name unknown tokens. */
#include "text/tokenizer/vocab.h"

#include "text/tokenizer/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALPHABET_END = 256 + 68, ARENA_MAX = 1 << 29 };

/* The byte that a character of the byte-level alphabet stands for; -1: the character is not in it. Printable Latin-1
 * characters stand for themselves, the 68 other bytes are U+0100 and up in their order. */
static int alphabet_byte(uint32_t code) {
    if ((code >= 33 && code <= 126) || (code >= 161 && code <= 172) || (code >= 174 && code <= 255)) return (int)code;
    if (code < 256 || code >= ALPHABET_END) return -1;
    int n = (int)code - 256;
    return n <= 32 ? n : n <= 66 ? n - 33 + 127 : 173;
}

/* Writes the bytes that a text in the byte-level alphabet stands for to `out` (capacity len); false when a character is
 * not in the alphabet. */
static bool decode_alphabet(const char *text, size_t len, uint8_t *out, size_t *n_out) {
    size_t n = 0;
    uint32_t code;
    for (size_t at = 0; at < len;) {
        size_t step = sn_utf8_decode(text + at, len - at, &code);
        int byte = step ? alphabet_byte(code) : -1;
        if (byte < 0) return false;
        out[n++] = (uint8_t)byte;
        at += step;
    }
    *n_out = n;
    return true;
}

sn_status sn_vocab_init(sn_vocab *vocab, size_t n, bool sentencepiece, sn_err *err) {
    *vocab = (sn_vocab){.n = n, .sentencepiece = sentencepiece, .unk_id = -1};
    memset(vocab->byte_ids, 0xff, sizeof vocab->byte_ids);
    sn_buf_init(&vocab->bytes, ARENA_MAX);
    if (n == 0 || n > SN_VOCAB_MAX)
        return sn_fail(err, SN_REFUSED, "the vocabulary would have %zu tokens; 1 to %d are taken", n, SN_VOCAB_MAX);
    return sn_calloc(&vocab->tokens, n, sizeof *vocab->tokens, err);
}

void sn_vocab_fini(sn_vocab *vocab) {
    free(vocab->tokens);
    free(vocab->slots);
    free(vocab->merges);
    free(vocab->ranks);
    sn_buf_fini(&vocab->bytes);
    *vocab = (sn_vocab){0};
}

int sn_vocab_parse_byte_token(const char *text, size_t len) {
    static const char digits[] = "0123456789ABCDEF";
    if (len != 6 || memcmp(text, "<0x", 3) || text[5] != '>' || !text[3] || !text[4]) return -1;
    const char *high = strchr(digits, text[3]), *low = strchr(digits, text[4]);
    return high && low ? (int)(16 * (high - digits) + (low - digits)) : -1;
}

/* The bytes to store for a token: decoded into `bytes`, or `text` itself. *indexed: whether sn_vocab_find finds them.
 */
static const void *stored_form(const sn_vocab *vocab, const char *text, size_t len, sn_token_kind kind, uint8_t *bytes,
                               size_t *n, bool *indexed) {
    *n = len;
    if (kind == SN_TOKEN_BYTE) {
        bytes[0] = (uint8_t)sn_vocab_parse_byte_token(text, len);
        *n = 1;
        return bytes;
    }
    *indexed = vocab->sentencepiece;
    if (vocab->sentencepiece) return text;
    bool in_alphabet = decode_alphabet(text, len, bytes, n);
    if (kind == SN_TOKEN_NORMAL && in_alphabet) {
        *indexed = true;
        return bytes;
    }
    *indexed = kind == SN_TOKEN_ADDED && in_alphabet && *n == len; /* ASCII only: the text equals its bytes */
    *n = len;
    return text;
}

static sn_status check_place(const sn_vocab *vocab, int64_t id, const char *text, size_t len, sn_err *err) {
    if (id < 0 || (size_t)id >= vocab->n)
        return sn_fail(err, SN_REFUSED, "token '%.*s' has the id %lld, outside the vocabulary of %zu",
                       (int)sn_min_size(len, 60), text, (long long)id, vocab->n);
    if (len == 0 || len > SN_TOKEN_BYTES_MAX)
        return sn_fail(err, SN_REFUSED, "token %lld is %zu bytes long; 1 to %d are taken", (long long)id, len,
                       SN_TOKEN_BYTES_MAX);
    return SN_OK;
}

sn_status sn_vocab_set_bytes(sn_vocab *vocab, int64_t id, const uint8_t *bytes, size_t len, sn_err *err) {
    sn_status status = check_place(vocab, id, "", len, err);
    if (status) return status;
    if (vocab->tokens[id].kind != SN_TOKEN_NONE)
        return sn_fail(err, SN_REFUSED, "the id %lld is given to two tokens", (long long)id);
    vocab->tokens[id] = (sn_vocab_token){
        .start = (uint32_t)vocab->bytes.len, .len = (uint32_t)len, .kind = SN_TOKEN_NORMAL, .indexed = true};
    return sn_buf_append(&vocab->bytes, bytes, len, err);
}

sn_status sn_vocab_set(sn_vocab *vocab, int64_t id, const char *text, size_t len, sn_token_kind kind, sn_err *err) {
    uint8_t bytes[SN_TOKEN_BYTES_MAX];
    int shown = (int)sn_min_size(len, 60);
    sn_status status = check_place(vocab, id, text, len, err);
    if (status) return status;
    if (!sn_utf8_valid(text, len)) return sn_fail(err, SN_REFUSED, "token %lld is not valid UTF-8", (long long)id);
    sn_vocab_token *token = &vocab->tokens[id];
    if (token->kind > SN_TOKEN_NORMAL || (token->kind == SN_TOKEN_NORMAL && kind == SN_TOKEN_NORMAL))
        return sn_fail(err, SN_REFUSED, "the id %lld is given to two tokens, the second is '%.*s'", (long long)id,
                       shown, text);
    if (kind == SN_TOKEN_BYTE) {
        int byte = sn_vocab_parse_byte_token(text, len);
        if (byte < 0 || vocab->byte_ids[byte] >= 0)
            return sn_fail(err, SN_REFUSED, "token %lld, '%.*s', stands for a byte that %s", (long long)id, shown, text,
                           byte < 0 ? "it does not name" : "another token stands for");
        vocab->byte_ids[byte] = (int32_t)id;
    }
    size_t n;
    bool indexed = false;
    const void *stored = stored_form(vocab, text, len, kind, bytes, &n, &indexed);
    *token = (sn_vocab_token){
        .start = (uint32_t)vocab->bytes.len, .len = (uint32_t)n, .kind = (uint8_t)kind, .indexed = indexed};
    return sn_buf_append(&vocab->bytes, stored, n, err);
}

/* FNV-1a */
static uint64_t hash_bytes(const uint8_t *bytes, size_t len) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++) h = (h ^ bytes[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

static uint64_t hash_pair(uint64_t pair) {
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

/* The smallest power of two that n entries fill to at most two thirds. */
static size_t table_size(size_t n) {
    size_t size = 64;
    while (size / 3 * 2 < n) size *= 2;
    return size;
}

/* Tokens or merges whose hashes collide on purpose, or fill all slots of a part of a table, would make look-ups a walk
 * over all of them. Among millions of others that fill two thirds of a table, the one that is furthest from its place
 * is about 100 slots from it. So a look-up ends after DISTANCE_MAX slots, and what would lie behind is refused. */
enum { DISTANCE_MAX = 1024 };
static const size_t NO_SLOT = SIZE_MAX;

static sn_status fail_far(const char *what, sn_err *err) {
    return sn_fail(err, SN_REFUSED, "the %s of the vocabulary are made to take long to find", what);
}

/* The slot of the token with these bytes, or the empty slot where it would be inserted; NO_SLOT: both are too far. */
static size_t find_slot(const sn_vocab *vocab, const uint8_t *bytes, size_t len) {
    const size_t first = hash_bytes(bytes, len) & (vocab->n_slots - 1);
    for (size_t i = 0; i <= DISTANCE_MAX; i++) {
        const size_t at = (first + i) & (vocab->n_slots - 1);
        if (vocab->slots[at] < 0) return at;
        const sn_vocab_token *token = &vocab->tokens[vocab->slots[at]];
        if (token->len == len && !memcmp(vocab->bytes.data + token->start, bytes, len)) return at;
    }
    return NO_SLOT;
}

/* Some vocabularies have no token for a few bytes that did not occur in their training text (SmolLM2: six control
 * characters, and the first bytes of unassigned planes). A vocabulary without printable ASCII is not byte-level. */
static sn_status index_bytes(sn_vocab *vocab, sn_err *err) {
    for (int b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        vocab->byte_ids[b] = sn_vocab_find(vocab, &byte, 1);
        bool needed = (b >= ' ' && b <= '~') || b == '\n';
        if (needed && vocab->byte_ids[b] < 0)
            return sn_fail(err, SN_REFUSED,
                           "the vocabulary has no token for byte 0x%02x: it is not byte-level BPE, or damaged", b);
    }
    return SN_OK;
}

/* Whether a space follows another character, as in "a\u2581b". */
static bool has_inner_space(const uint8_t *bytes, size_t len) {
    bool other = false;
    for (size_t at = 0; at < len; at++) {
        bool space = len - at >= SN_SPACE_LEN && !memcmp(bytes + at, SN_SPACE, SN_SPACE_LEN);
        if (space && other) return true;
        if (space) at += SN_SPACE_LEN - 1;
        other = !space;
    }
    return false;
}

/* An ASCII byte needs no byte token if its character has a token (Gemma's tab). */
static sn_status check_byte_tokens(const sn_vocab *vocab, sn_err *err) {
    for (int b = 0; vocab->byte_fallback && b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        int32_t id = vocab->byte_ids[b] >= 0 || b > 127 ? -1 : sn_vocab_find(vocab, &byte, 1);
        if (vocab->byte_ids[b] < 0 && (id < 0 || sn_vocab_kind(vocab, id) == SN_TOKEN_SPECIAL))
            return sn_fail(err, SN_REFUSED,
                           "the vocabulary has no token <0x%02X>, though it falls back to bytes: it is damaged", b);
    }
    return SN_OK;
}

sn_status sn_vocab_index(sn_vocab *vocab, size_t n_merges, sn_err *err) {
    if (n_merges > 2 * (size_t)SN_VOCAB_MAX)
        return sn_fail(err, SN_REFUSED, "%zu merges are given; at most %d are taken", n_merges, 2 * SN_VOCAB_MAX);
    vocab->n_slots = table_size(vocab->n);
    vocab->n_merge_slots = table_size(n_merges);
    sn_status status = sn_calloc(&vocab->slots, vocab->n_slots, sizeof *vocab->slots, err);
    if (!status) status = sn_calloc(&vocab->merges, vocab->n_merge_slots, sizeof *vocab->merges, err);
    if (status) return status;
    memset(vocab->slots, 0xff, vocab->n_slots * sizeof *vocab->slots);
    for (size_t i = 0; i < vocab->n_merge_slots; i++) vocab->merges[i].pair = UINT64_MAX;
    vocab->no_inner_spaces = vocab->sentencepiece;
    for (size_t id = 0; id < vocab->n; id++) {
        const sn_vocab_token *token = &vocab->tokens[id];
        if (!token->indexed) continue;
        if (token->len > vocab->longest) vocab->longest = token->len;
        if (token->kind < SN_TOKEN_SPECIAL && has_inner_space(vocab->bytes.data + token->start, token->len))
            vocab->no_inner_spaces = false;
        size_t slot = find_slot(vocab, vocab->bytes.data + token->start, token->len);
        if (slot == NO_SLOT) return fail_far("tokens", err);
        if (vocab->slots[slot] >= 0)
            return sn_fail(err, SN_REFUSED, "tokens %d and %zu of the vocabulary are the same", vocab->slots[slot], id);
        vocab->slots[slot] = (int32_t)id;
    }
    return vocab->sentencepiece ? check_byte_tokens(vocab, err) : index_bytes(vocab, err);
}

int32_t sn_vocab_find(const sn_vocab *vocab, const void *bytes, size_t len) {
    const size_t slot = find_slot(vocab, bytes, len);
    return slot == NO_SLOT ? -1 : vocab->slots[slot];
}

/* As find_slot. */
static size_t find_merge_slot(const sn_vocab *vocab, uint64_t pair) {
    const size_t first = hash_pair(pair) & (vocab->n_merge_slots - 1);
    for (size_t i = 0; i <= DISTANCE_MAX; i++) {
        const size_t at = (first + i) & (vocab->n_merge_slots - 1);
        if (vocab->merges[at].pair == UINT64_MAX || vocab->merges[at].pair == pair) return at;
    }
    return NO_SLOT;
}

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

const sn_merge *sn_vocab_find_merge(const sn_vocab *vocab, int32_t left, int32_t right) {
    const size_t slot = find_merge_slot(vocab, pair_of(left, right));
    return slot == NO_SLOT || vocab->merges[slot].pair == UINT64_MAX ? NULL : &vocab->merges[slot];
}

/* Appends the bytes of one half of a merge to `out`, which holds *n; false when the text is not one of a token. */
static bool append_merge_half(const sn_vocab *vocab, const char *text, size_t len, uint8_t *out, size_t *n) {
    size_t added = len;
    if (!len || len > SN_TOKEN_BYTES_MAX) return false;
    if (!vocab->sentencepiece && !decode_alphabet(text, len, out + *n, &added)) return false;
    if (vocab->sentencepiece) memcpy(out + *n, text, len);
    *n += added;
    return true;
}

sn_status sn_vocab_merge(sn_vocab *vocab, size_t rank, const char *left, size_t left_len, const char *right,
                         size_t right_len, sn_err *err) {
    uint8_t bytes[2 * SN_TOKEN_BYTES_MAX];
    size_t n = 0, n_left = 0; /* of both halves, and of the left one */
    int show_left = (int)sn_min_size(left_len, 60), show_right = (int)sn_min_size(right_len, 60);
    bool written = append_merge_half(vocab, left, left_len, bytes, &n);
    n_left = n;
    if (!written || !append_merge_half(vocab, right, right_len, bytes, &n))
        return sn_fail(err, SN_REFUSED, "merge %zu, '%.*s' and '%.*s', is not written in the byte-level alphabet", rank,
                       show_left, left, show_right, right);
    int32_t from = sn_vocab_find(vocab, bytes, n_left), with = sn_vocab_find(vocab, bytes + n_left, n - n_left);
    int32_t to = sn_vocab_find(vocab, bytes, n);
    if (from < 0 || with < 0 || to < 0)
        return sn_fail(err, SN_REFUSED, "merge %zu, '%.*s' and '%.*s', needs a token that the vocabulary does not have",
                       rank, show_left, left, show_right, right);
    if (sn_vocab_kind(vocab, from) == SN_TOKEN_SPECIAL || sn_vocab_kind(vocab, with) == SN_TOKEN_SPECIAL ||
        sn_vocab_kind(vocab, to) == SN_TOKEN_SPECIAL)
        return SN_OK;
    size_t slot = find_merge_slot(vocab, pair_of(from, with));
    if (slot == NO_SLOT) return fail_far("merges", err);
    if (vocab->merges[slot].pair != UINT64_MAX)
        return sn_fail(err, SN_REFUSED, "merge %zu, '%.*s' and '%.*s', is given twice", rank, show_left, left,
                       show_right, right);
    vocab->merges[slot] = (sn_merge){.pair = pair_of(from, with), .rank = (uint32_t)rank, .id = to};
    return SN_OK;
}

sn_status sn_vocab_merge_line(sn_vocab *vocab, size_t rank, const char *line, size_t len, sn_err *err) {
    const char *space = len ? memchr(line, ' ', len) : NULL;
    size_t left = space ? (size_t)(space - line) : len;
    if (!space || memchr(space + 1, ' ', len - left - 1))
        return sn_fail(err, SN_REFUSED, "merge %zu, '%.*s', is not two tokens with one space between", rank,
                       (int)sn_min_size(len, 60), line);
    return sn_vocab_merge(vocab, rank, line, left, space + 1, len - left - 1, err);
}

sn_status sn_vocab_replace_text(sn_vocab *vocab, int32_t id, const char *text, size_t len, sn_err *err) {
    vocab->tokens[id].start = (uint32_t)vocab->bytes.len;
    vocab->tokens[id].len = (uint32_t)len;
    return sn_buf_append(&vocab->bytes, text, len, err);
}

/* ---- scores ---- */

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int highest_first(const void *a, const void *b) {
    float x = ((const scored *)a)->score, y = ((const scored *)b)->score;
    return (x < y) - (x > y);
}

/* Equal scores get equal ranks: among them the leftmost pair merges first. */
sn_status sn_vocab_scores(sn_vocab *vocab, const float *scores, sn_err *err) {
    scored *order = NULL;
    sn_status status = sn_calloc(&vocab->ranks, vocab->n, sizeof *vocab->ranks, err);
    if (!status) status = sn_calloc(&order, vocab->n, sizeof *order, err);
    for (size_t i = 0; !status && i < vocab->n; i++) {
        order[i] = (scored){scores[i], (int32_t)i};
        if (!isfinite(scores[i])) status = sn_fail(err, SN_REFUSED, "the score of token %zu is no finite number", i);
    }
    if (!status) qsort(order, vocab->n, sizeof *order, highest_first);
    uint32_t rank = 0;
    for (size_t i = 0; !status && i < vocab->n; i++) {
        if (i && order[i].score != order[i - 1].score) rank++;
        vocab->ranks[order[i].id] = rank;
    }
    free(order);
    return status;
}

const uint8_t *sn_vocab_bytes(const sn_vocab *vocab, int32_t id, size_t *len) {
    *len = 0;
    if (id < 0 || (size_t)id >= vocab->n || vocab->tokens[id].kind == SN_TOKEN_NONE) return NULL;
    *len = vocab->tokens[id].len;
    return vocab->bytes.data + vocab->tokens[id].start;
}

sn_token_kind sn_vocab_kind(const sn_vocab *vocab, int32_t id) {
    return id < 0 || (size_t)id >= vocab->n ? SN_TOKEN_NONE : (sn_token_kind)vocab->tokens[id].kind;
}
