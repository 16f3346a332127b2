#include "text/tokenizer/added_tokens.h"

#include <stdlib.h>
#include <string.h>

void sn_added_tokens_fini(sn_added_tokens *added) {
    for (size_t i = 0; i < added->n; i++) free(added->tokens[i].text);
    free(added->tokens);
    *added = (sn_added_tokens){0};
}

sn_status sn_added_tokens_add(sn_added_tokens *added, const sn_added_token *token, sn_err *err) {
    if (token->len == 0 || token->len > SN_ADDED_TOKEN_BYTES_MAX)
        return sn_fail(err, SN_REFUSED, "added token %d is %zu bytes long; 1 to %d are taken", token->id, token->len,
                       SN_ADDED_TOKEN_BYTES_MAX);
    SN_TRY(sn_grow(&added->tokens, &added->capacity, added->n + 1, sizeof *added->tokens, err));
    char *text;
    sn_status status = sn_calloc(&text, token->len, 1, err);
    if (status) return status;
    memcpy(text, token->text, token->len);
    added->first_bytes[(uint8_t)text[0]] = true;
    added->tokens[added->n] = *token;
    added->tokens[added->n++].text = text;
    return SN_OK;
}

static int compare_tokens(const void *a, const void *b) {
    const sn_added_token *x = a, *y = b;
    int order = memcmp(x->text, y->text, sn_min_size(x->len, y->len));
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

sn_status sn_added_tokens_finish(sn_added_tokens *added, sn_err *err) {
    if (added->n) qsort(added->tokens, added->n, sizeof *added->tokens, compare_tokens);
    for (size_t i = 1; i < added->n; i++)
        if (!compare_tokens(&added->tokens[i - 1], &added->tokens[i]))
            return sn_fail(err, SN_REFUSED, "the added token '%.*s' is given twice, with the ids %d and %d",
                           (int)sn_min_size(added->tokens[i].len, 60), added->tokens[i].text, added->tokens[i - 1].id,
                           added->tokens[i].id);
    return SN_OK;
}

/* The first of tokens[low...high) whose byte at `at` is at least `byte` (0 to 256). All of them agree in the bytes
 * before `at`; a token that ends there sorts before all others. */
static size_t lower_bound(const sn_added_tokens *added, size_t low, size_t high, size_t at, int byte) {
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const sn_added_token *token = &added->tokens[mid];
        int have = token->len > at ? (uint8_t)token->text[at] : -1;
        if (have < byte)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The longest token that `text` begins with. low...high is the range of tokens that agree with the text so far. */
static const sn_added_token *longest_match(const sn_added_tokens *added, const char *text, size_t len) {
    const sn_added_token *best = NULL;
    size_t low = 0, high = added->n;
    for (size_t at = 0; at < len && low < high; at++) {
        int byte = (uint8_t)text[at];
        low = lower_bound(added, low, high, at, byte);
        high = lower_bound(added, low, high, at, byte + 1);
        if (low < high && added->tokens[low].len == at + 1) best = &added->tokens[low];
    }
    return best;
}

const sn_added_token *sn_added_tokens_find(const sn_added_tokens *added, const char *text, size_t len, size_t from,
                                           size_t *at) {
    if (added->n == 0) return NULL;
    for (size_t i = from; i < len; i++) {
        if (!added->first_bytes[(uint8_t)text[i]]) continue;
        const sn_added_token *token = longest_match(added, text + i, len - i);
        if (token) {
            *at = i;
            return token;
        }
    }
    return NULL;
}
