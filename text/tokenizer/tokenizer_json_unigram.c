/* The model "Unigram" of a tokenizer.json: a list of pieces with their scores, and the id for characters that no piece
 * has. */
#include "text/tokenizer/tokenizer_json.h"

#include <stdlib.h>

sn_status sn_tokenizer_json_unigram_ids(const json_t *model, json_t **out, sn_err *err) {
    const json_t *list = json_object_get(model, "vocab");
    size_t n = json_array_size(list);
    if (!n || n > SN_VOCAB_MAX)
        return sn_fail(err, SN_REFUSED, "the tokenizer's model has a vocab of %zu pieces; 1 to %d are taken", n,
                       SN_VOCAB_MAX);
    *out = json_object();
    for (size_t id = 0; *out && id < n; id++) {
        const json_t *entry = json_array_get(list, id), *piece = json_array_get(entry, 0);
        const char *text = json_string_value(piece);
        if (json_array_size(entry) != 2 || !text || !json_is_number(json_array_get(entry, 1)))
            return sn_fail(err, SN_REFUSED, "piece %zu of the tokenizer's model is not a text with a score", id);
        if (json_object_get(*out, text))
            return sn_fail(err, SN_REFUSED, "the piece '%.60s' is twice in the tokenizer's model", text);
        if (json_object_set_new(*out, text, json_integer((json_int_t)id)))
            return sn_fail(err, SN_STOP, "out of memory for a vocabulary of %zu pieces", n);
    }
    return *out ? SN_OK : sn_fail(err, SN_STOP, "out of memory for a vocabulary of %zu pieces", n);
}

sn_status sn_tokenizer_json_unigram(sn_tokenizer *t, const json_t *model, sn_err *err) {
    const json_t *list = json_object_get(model, "vocab"), *unknown = json_object_get(model, "unk_id");
    size_t n = json_array_size(list);
    double *scores = NULL;
    if (!json_is_integer(unknown) || json_integer_value(unknown) < 0 || (size_t)json_integer_value(unknown) >= n)
        return sn_fail(err, SN_REFUSED, "the tokenizer's model has no unk_id below %zu, for what its pieces lack", n);
    t->vocab.unk_id = (int32_t)json_integer_value(unknown);
    t->vocab.fuse_unk = true;
    sn_status status = sn_calloc(&scores, n, sizeof *scores, err);
    if (!status) status = sn_calloc(&t->unigram, 1, sizeof *t->unigram, err);
    for (size_t id = 0; !status && id < n; id++)
        scores[id] = json_number_value(json_array_get(json_array_get(list, id), 1));
    if (!status) status = sn_unigram_init(t->unigram, &t->vocab, scores, NULL, n, err);
    free(scores);
    return status;
}
