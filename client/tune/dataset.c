/* How it works. The whole file is read into memory and hashed. A .txt file is tokenized at once and cut into sequences
 * of max_tokens. A .jsonl file is parsed line by line; add_line chooses by the keys of the object. Every path ends in
 * add_example, which cuts the tokens at max_tokens, stores them with their loss mask and drops examples without a token
 * that counts.
 *
 * The tokens of a completion are encoded separately from those of the prompt, so the boundary between them is exact.
 * For a conversation, the chat template decides where a message begins: the conversation is rendered once as a whole,
 * and for each message of the assistant twice more, up to its opening and up to its end. The tokens
 * between the two lengths count.
 *
 * The order of an epoch is a shuffle from seed and epoch alone, so a resumed training needs no stored order. */
#include "client/tune/dataset.h"

#include "base/random.h"
#include "base/file.h"
#include "text/chat/chat_template.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { DATA_MAX = 1 << 30, MESSAGES_MAX = 4096 };

typedef struct dataset_reader {
    const char *path;
    const sn_tokenizer *tokenizer;
    const sn_dataset_options *options;
    sn_dataset *set;
    size_t capacity;
    sn_chat_template *chat; /* opened for the first conversation */
} dataset_reader;

/* Copies ids[0, n) into a new example. The tokens that count are those of `loss_mask`; if it is NULL, those from
 * first_loss_token on. */
static sn_status add_example(dataset_reader *r, const int32_t *ids, size_t n, const uint8_t *loss_mask,
                             size_t first_loss_token, int label, sn_err *err) {
    if (n > (size_t)r->options->max_tokens) {
        n = (size_t)r->options->max_tokens;
        r->set->n_truncated++;
    }
    SN_TRY(sn_grow(&r->set->at, &r->capacity, r->set->n + 1, sizeof *r->set->at, err));
    sn_example e = {.n = n, .label = label};
    sn_status status = sn_calloc(&e.ids, n, sizeof *e.ids, err);
    if (!status) status = sn_calloc(&e.loss_mask, n, 1, err);
    for (size_t i = 0; i < n && !status; i++) {
        e.ids[i] = ids[i];
        e.loss_mask[i] = loss_mask ? loss_mask[i] : i >= first_loss_token;
        e.n_loss_tokens += e.loss_mask[i];
    }
    bool unusable = !status && (n == 0 || (label < 0 && e.n_loss_tokens == 0));
    if (status || unusable) {
        free(e.ids);
        free(e.loss_mask);
        return status;
    }
    r->set->at[r->set->n++] = e;
    return SN_OK;
}

/* -- lines of JSON */

static sn_status find_label(dataset_reader *r, const char *label, int *out, sn_err *err) {
    const sn_dataset *known = r->options->labels_of ? r->options->labels_of : r->set;
    for (size_t i = 0; i < known->n_labels; i++)
        if (!strcmp(known->labels[i], label)) {
            *out = (int)i;
            return SN_OK;
        }
    if (r->options->labels_of)
        return sn_fail(err, SN_REFUSED, "the label \"%.40s\" does not occur in the training data", label);
    char **grown = realloc(r->set->labels, (r->set->n_labels + 1) * sizeof *grown);
    if (grown) r->set->labels = grown;
    char *copy = grown ? strdup(label) : NULL;
    if (!copy) return sn_fail(err, SN_STOP, "out of memory");
    r->set->labels[r->set->n_labels] = copy;
    *out = (int)r->set->n_labels++;
    return SN_OK;
}

static sn_status add_text(dataset_reader *r, const char *text, const char *completion, const json_t *label,
                          sn_err *err) {
    sn_token_ids ids = {0}, completion_ids = {0};
    int index = -1;
    char number[32] = "";
    if (json_is_integer(label)) snprintf(number, sizeof number, "%lld", (long long)json_integer_value(label));
    const char *name = json_is_string(label) ? json_string_value(label) : json_is_integer(label) ? number : NULL;
    if (r->options->labelled && !name)
        return sn_fail(err, SN_REFUSED, "a classifier needs {\"text\": ..., \"label\": ...}");
    sn_status status = r->options->labelled ? find_label(r, name, &index, err) : SN_OK;
    if (!status) status = sn_tokenizer_encode(r->tokenizer, text, strlen(text), true, false, &ids, err);
    if (!status && completion)
        status =
            sn_tokenizer_encode_continuation(r->tokenizer, completion, strlen(completion), false, &completion_ids, err);
    size_t first = completion ? ids.n : 0, n = ids.n + completion_ids.n;
    int32_t *all = status ? NULL : calloc(n + 1, sizeof *all);
    if (!status && !all) status = sn_fail(err, SN_STOP, "out of memory");
    if (!status) {
        memcpy(all, ids.ids, ids.n * sizeof *all);
        if (completion_ids.n) memcpy(all + ids.n, completion_ids.ids, completion_ids.n * sizeof *all);
        status = add_example(r, all, n, NULL, first, index, err);
    }
    free(all);
    sn_token_ids_fini(&ids);
    sn_token_ids_fini(&completion_ids);
    return status;
}

/* Tokenizes the first n messages. `open`: with the opening of an answer of the assistant at the end. */
static sn_status render(const dataset_reader *r, const json_t *messages, size_t n, bool open, sn_token_ids *out,
                        sn_err *err) {
    json_t *first = json_array();
    for (size_t i = 0; i < n; i++) json_array_append(first, json_array_get(messages, i));
    const sn_chat_request request = {.messages = first, .no_generation_prompt = !open};
    sn_status status = sn_chat_template_encode(r->chat, r->tokenizer, &request, out, err);
    json_decref(first);
    return status;
}

static size_t common_length(const sn_token_ids *a, const sn_token_ids *b) {
    size_t n = 0;
    while (n < a->n && n < b->n && a->ids[n] == b->ids[n]) n++;
    return n;
}

/* The tokens of an answer are those between the lengths of two renderings: the conversation up to the answer's opening,
 * and the conversation up to the answer's end. A template may write the same message in another way once others follow
 * it: only what the whole conversation has in common with the renderings counts. */
static sn_status add_turns(dataset_reader *r, const json_t *messages, sn_err *err) {
    size_t n = json_array_size(messages);
    sn_token_ids whole = {0};
    uint8_t *loss_mask = NULL;
    sn_status status = render(r, messages, n, false, &whole, err);
    if (!status) status = sn_calloc(&loss_mask, whole.n, 1, err);
    for (size_t i = 0; i < n && !status; i++) {
        sn_token_ids before = {0}, after = {0};
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        if (strcmp(role, "assistant")) continue;
        status = render(r, messages, i, true, &before, err);
        if (!status) status = render(r, messages, i + 1, false, &after, err);
        size_t end = common_length(&after, &whole);
        for (size_t t = common_length(&before, &whole); !status && t < end; t++) loss_mask[t] = 1;
        sn_token_ids_fini(&before);
        sn_token_ids_fini(&after);
    }
    if (!status) status = add_example(r, whole.ids, whole.n, loss_mask, 0, -1, err);
    sn_token_ids_fini(&whole);
    free(loss_mask);
    return status;
}

static sn_status add_messages(dataset_reader *r, const json_t *messages, sn_err *err) {
    size_t n = json_array_size(messages);
    if (!n || n > MESSAGES_MAX)
        return sn_fail(err, SN_REFUSED, "\"messages\" must be a list of 1 to %d messages", MESSAGES_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(messages, i);
        if (!json_is_string(json_object_get(message, "role")) || !json_object_get(message, "content"))
            return sn_fail(err, SN_REFUSED, "a message must be {\"role\": ..., \"content\": ...}");
    }
    sn_status status = r->chat ? SN_OK : sn_chat_template_open(r->tokenizer, &r->chat, err);
    return status ? status : add_turns(r, messages, err);
}

static sn_status add_line(dataset_reader *r, const char *line, size_t len, sn_err *err) {
    json_error_t error;
    json_t *object = json_loadb(line, len, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object)) {
        json_decref(object);
        return sn_fail(err, SN_REFUSED, "the line is not a JSON object: %.80s", error.text);
    }
    const char *text = json_string_value(json_object_get(object, "text"));
    const char *prompt = json_string_value(json_object_get(object, "prompt"));
    const char *completion = json_string_value(json_object_get(object, "completion"));
    const json_t *messages = json_object_get(object, "messages");
    sn_status status;
    if (text)
        status = add_text(r, text, NULL, json_object_get(object, "label"), err);
    else if (r->options->labelled)
        status = sn_fail(err, SN_REFUSED, "a classifier needs {\"text\": ..., \"label\": ...}");
    else if (prompt && completion)
        status = add_text(r, prompt, completion, NULL, err);
    else if (json_is_array(messages))
        status = add_messages(r, messages, err);
    else
        status =
            sn_fail(err, SN_REFUSED, "the line must have \"text\", or \"prompt\" and \"completion\", or \"messages\"");
    json_decref(object);
    return status;
}

static sn_status read_lines(dataset_reader *r, const char *data, size_t len, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t at = 0, line = 1; at < len && !status; line++) {
        const char *end = memchr(data + at, '\n', len - at);
        size_t n = end ? (size_t)(end - (data + at)) : len - at;
        if (strspn(data + at, " \t\r") < n) status = add_line(r, data + at, n, err);
        if (status) sn_err_context(err, "%s, line %zu", r->path, line);
        at += n + 1;
    }
    return status;
}

static sn_status read_text(dataset_reader *r, const char *data, size_t len, sn_err *err) {
    sn_token_ids ids = {0};
    if (r->options->labelled)
        return sn_fail(err, SN_REFUSED, "%s: a classifier needs a .jsonl file of {\"text\": ..., \"label\": ...}",
                       r->path);
    sn_status status = sn_tokenizer_encode(r->tokenizer, data, len, true, false, &ids, err);
    for (size_t at = 0; at < ids.n && !status; at += (size_t)r->options->max_tokens)
        status =
            add_example(r, ids.ids + at, sn_min_size((size_t)r->options->max_tokens, ids.n - at), NULL, 0, -1, err);
    sn_token_ids_fini(&ids);
    return status;
}

sn_status sn_dataset_read(const char *path, const sn_tokenizer *tokenizer, const sn_dataset_options *options,
                          sn_dataset **out, sn_err *err) {
    dataset_reader r = {path, tokenizer, options, NULL, 0, NULL};
    sn_buf file = {0};
    size_t len = strlen(path);
    bool lines = len > 6 && !strcmp(path + len - 6, ".jsonl"), text = len > 4 && !strcmp(path + len - 4, ".txt");
    *out = NULL;
    if (!lines && !text) return sn_fail(err, SN_REFUSED, "%s: training data must be a .txt or a .jsonl file", path);
    sn_status status = sn_read_file(path, DATA_MAX, &file, err);
    if (!status) status = sn_calloc(&r.set, 1, sizeof *r.set, err);
    if (!status) r.set->hash = sn_hash_of(file.data, file.len);
    if (!status) status = sn_buf_append(&file, "", 1, err); /* a terminating zero, so that strspn stops at the end */
    if (!status) file.len--;
    if (!status)
        status = lines ? read_lines(&r, (const char *)file.data, file.len, err)
                       : read_text(&r, (const char *)file.data, file.len, err);
    if (!status && !r.set->n)
        status = sn_fail(err, SN_REFUSED, "%s holds no example that can be used for training", path);
    sn_buf_fini(&file);
    sn_chat_template_close(&r.chat);
    if (status) sn_dataset_free(&r.set);
    *out = r.set;
    return status;
}

void sn_dataset_free(sn_dataset **dataset) {
    sn_dataset *d = *dataset;
    if (!d) return;
    for (size_t i = 0; i < d->n; i++) {
        free(d->at[i].ids);
        free(d->at[i].loss_mask);
    }
    for (size_t i = 0; i < d->n_labels; i++) free(d->labels[i]);
    free(d->labels);
    free(d->at);
    free(d);
    *dataset = NULL;
}

void sn_dataset_order(const sn_dataset *dataset, uint64_t seed, uint64_t epoch, size_t *order) {
    uint64_t rng = seed;
    rng = sn_rng_next(&rng) + epoch;
    for (size_t i = 0; i < dataset->n; i++) order[i] = i;
    sn_rng_shuffle(&rng, order, dataset->n);
}
