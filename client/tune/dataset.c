#include "client/tune/dataset.h"

#include "client/cmd.h"
#include "client/tune/random.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { DATA_MAX = 1 << 30, TURNS_MAX = 4096 };

typedef struct reader {
    const char *path;
    const sn_tokenizer *tokenizer;
    const sn_dataset_wish *wish;
    sn_dataset *set;
    size_t room;
} reader;

/* Takes ids[0, n), of which those from `first_learned` on are learned, or all that `learned` says. Copies. */
static sn_status add_example(reader *r, const int32_t *ids, size_t n, const uint8_t *learned, size_t first_learned,
                             int label, sn_err *err) {
    if (n > (size_t)r->wish->longest) {
        n = (size_t)r->wish->longest;
        r->set->cut++;
    }
    if (r->set->n == r->room) {
        size_t room = r->room ? 2 * r->room : 64;
        sn_example *grown = realloc(r->set->at, room * sizeof *grown);
        if (!grown) return sn_fail(err, SN_STOP, "out of memory: %zu examples", room);
        r->set->at = grown;
        r->room = room;
    }
    sn_example e = {.n = n, .label = label};
    sn_status status = sn_calloc(&e.ids, n, sizeof *e.ids, err);
    if (!status) status = sn_calloc(&e.learned, n, 1, err);
    for (size_t i = 0; i < n && !status; i++) {
        e.ids[i] = ids[i];
        e.learned[i] = learned ? learned[i] : i >= first_learned;
        e.n_learned += e.learned[i];
    }
    bool useless = !status && (n == 0 || (label < 0 && e.n_learned == 0));
    if (status || useless) {
        free(e.ids);
        free(e.learned);
        return status;
    }
    r->set->at[r->set->n++] = e;
    return SN_OK;
}

/* -- lines of JSON */

static sn_status find_label(reader *r, const char *label, int *out, sn_err *err) {
    const sn_dataset *known = r->wish->as ? r->wish->as : r->set;
    for (size_t i = 0; i < known->n_labels; i++)
        if (!strcmp(known->labels[i], label)) {
            *out = (int)i;
            return SN_OK;
        }
    if (r->wish->as)
        return sn_fail(err, SN_REFUSED, "the label \"%.40s\" is not in the data that is learned from", label);
    char **grown = realloc(r->set->labels, (r->set->n_labels + 1) * sizeof *grown);
    if (grown) r->set->labels = grown;
    char *copy = grown ? strdup(label) : NULL;
    if (!copy) return sn_fail(err, SN_STOP, "out of memory");
    r->set->labels[r->set->n_labels] = copy;
    *out = (int)r->set->n_labels++;
    return SN_OK;
}

static sn_status add_text(reader *r, const char *text, const char *completion, const json_t *label, sn_err *err) {
    sn_ids ids = {0}, more = {0};
    int index = -1;
    char number[32] = "";
    if (json_is_integer(label)) snprintf(number, sizeof number, "%lld", (long long)json_integer_value(label));
    const char *name = json_is_string(label) ? json_string_value(label) : json_is_integer(label) ? number : NULL;
    if (r->wish->labelled && !name)
        return sn_fail(err, SN_REFUSED, "a classifier learns from {\"text\": ..., \"label\": ...}");
    sn_status status = r->wish->labelled ? find_label(r, name, &index, err) : SN_OK;
    if (!status) status = sn_tokenizer_encode(r->tokenizer, text, strlen(text), true, false, &ids, err);
    if (!status && completion)
        status = sn_tokenizer_encode_more(r->tokenizer, completion, strlen(completion), false, &more, err);
    size_t first = completion ? ids.n : 0, n = ids.n + more.n;
    int32_t *all = status ? NULL : calloc(n + 1, sizeof *all);
    if (!status && !all) status = sn_fail(err, SN_STOP, "out of memory");
    if (!status) {
        memcpy(all, ids.ids, ids.n * sizeof *all);
        if (more.n) memcpy(all + ids.n, more.ids, more.n * sizeof *all);
        status = add_example(r, all, n, NULL, first, index, err);
    }
    free(all);
    sn_ids_fini(&ids);
    sn_ids_fini(&more);
    return status;
}

/* The conversation up to and with turn n - 1, as tokens. */
static sn_status render(const reader *r, const sn_chat_turn *turns, size_t n, bool open, sn_ids *out, sn_err *err) {
    sn_buf text;
    sn_buf_init(&text, SN_TEXT_MAX);
    sn_status status = sn_tokenizer_chat(r->tokenizer, turns, n, true, open, &text, err);
    if (!status) status = sn_tokenizer_encode(r->tokenizer, (const char *)text.data, text.len, true, true, out, err);
    sn_buf_fini(&text);
    return status;
}

/* The tokens of an answer are those that its conversation has more than the one that ends with its opening. */
static sn_status add_turns(reader *r, const sn_chat_turn *turns, size_t n, sn_err *err) {
    sn_ids whole = {0};
    uint8_t *learned = NULL;
    sn_status status = render(r, turns, n, false, &whole, err);
    if (!status) status = sn_calloc(&learned, whole.n, 1, err);
    for (size_t i = 0; i < n && !status; i++) {
        sn_ids before = {0}, after = {0};
        if (strcmp(turns[i].role, "assistant")) continue;
        status = render(r, turns, i, true, &before, err);
        if (!status) status = render(r, turns, i + 1, false, &after, err);
        for (size_t t = before.n; !status && t < after.n && t < whole.n; t++) learned[t] = 1;
        sn_ids_fini(&before);
        sn_ids_fini(&after);
    }
    if (!status) status = add_example(r, whole.ids, whole.n, learned, 0, -1, err);
    sn_ids_fini(&whole);
    free(learned);
    return status;
}

static sn_status add_messages(reader *r, const json_t *messages, sn_err *err) {
    size_t n = json_array_size(messages);
    sn_chat_turn *turns = NULL;
    if (!n || n > TURNS_MAX) return sn_fail(err, SN_REFUSED, "\"messages\" is a list of 1 to %d turns", TURNS_MAX);
    sn_status status = sn_calloc(&turns, n, sizeof *turns, err);
    for (size_t i = 0; i < n && !status; i++) {
        const json_t *turn = json_array_get(messages, i);
        turns[i] = (sn_chat_turn){json_string_value(json_object_get(turn, "role")),
                                  json_string_value(json_object_get(turn, "content"))};
        if (!turns[i].role || !turns[i].text)
            status = sn_fail(err, SN_REFUSED, "a turn is {\"role\": ..., \"content\": ...}");
    }
    if (!status) status = add_turns(r, turns, n, err);
    free(turns);
    return status;
}

static sn_status add_line(reader *r, const char *line, size_t len, sn_err *err) {
    json_error_t error;
    json_t *object = json_loadb(line, len, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object)) {
        json_decref(object);
        return sn_fail(err, SN_REFUSED, "it is no JSON object: %.80s", error.text);
    }
    const char *text = json_string_value(json_object_get(object, "text"));
    const char *prompt = json_string_value(json_object_get(object, "prompt"));
    const char *completion = json_string_value(json_object_get(object, "completion"));
    const json_t *messages = json_object_get(object, "messages");
    sn_status status;
    if (text)
        status = add_text(r, text, NULL, json_object_get(object, "label"), err);
    else if (r->wish->labelled)
        status = sn_fail(err, SN_REFUSED, "a classifier learns from {\"text\": ..., \"label\": ...}");
    else if (prompt && completion)
        status = add_text(r, prompt, completion, NULL, err);
    else if (json_is_array(messages))
        status = add_messages(r, messages, err);
    else
        status =
            sn_fail(err, SN_REFUSED, "it has neither \"text\", nor \"prompt\" and \"completion\", nor \"messages\"");
    json_decref(object);
    return status;
}

static sn_status read_lines(reader *r, const char *data, size_t len, sn_err *err) {
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

static sn_status read_text(reader *r, const char *data, size_t len, sn_err *err) {
    sn_ids ids = {0};
    if (r->wish->labelled)
        return sn_fail(err, SN_REFUSED, "%s: a classifier learns from a .jsonl file of {\"text\": ..., \"label\": ...}",
                       r->path);
    sn_status status = sn_tokenizer_encode(r->tokenizer, data, len, true, false, &ids, err);
    for (size_t at = 0; at < ids.n && !status; at += (size_t)r->wish->longest)
        status = add_example(r, ids.ids + at, sn_min_size((size_t)r->wish->longest, ids.n - at), NULL, 0, -1, err);
    sn_ids_fini(&ids);
    return status;
}

sn_status sn_dataset_read(const char *path, const sn_tokenizer *tokenizer, const sn_dataset_wish *wish,
                          sn_dataset **out, sn_err *err) {
    reader r = {path, tokenizer, wish, NULL, 0};
    sn_buf file = {0};
    size_t len = strlen(path);
    bool lines = len > 6 && !strcmp(path + len - 6, ".jsonl"), text = len > 4 && !strcmp(path + len - 4, ".txt");
    *out = NULL;
    if (!lines && !text) return sn_fail(err, SN_REFUSED, "%s: data is a .txt or a .jsonl file", path);
    sn_status status = sn_read_input(path, DATA_MAX, &file, err);
    if (!status) status = sn_calloc(&r.set, 1, sizeof *r.set, err);
    if (!status) r.set->hash = sn_hash_of(file.data, file.len);
    if (!status) status = sn_buf_append(&file, "", 1, err); /* so that no scan passes the end */
    if (!status) file.len--;
    if (!status)
        status = lines ? read_lines(&r, (const char *)file.data, file.len, err)
                       : read_text(&r, (const char *)file.data, file.len, err);
    if (!status && !r.set->n) status = sn_fail(err, SN_REFUSED, "%s holds nothing to learn from", path);
    sn_buf_fini(&file);
    if (status) sn_dataset_free(&r.set);
    *out = r.set;
    return status;
}

void sn_dataset_free(sn_dataset **dataset) {
    sn_dataset *d = *dataset;
    if (!d) return;
    for (size_t i = 0; i < d->n; i++) {
        free(d->at[i].ids);
        free(d->at[i].learned);
    }
    for (size_t i = 0; i < d->n_labels; i++) free(d->labels[i]);
    free(d->labels);
    free(d->at);
    free(d);
    *dataset = NULL;
}

void sn_dataset_order(const sn_dataset *dataset, uint64_t seed, uint64_t epoch, size_t *order) {
    sn_random_state random = {seed};
    random.at = sn_random_next(&random) + epoch;
    for (size_t i = 0; i < dataset->n; i++) order[i] = i;
    sn_random_shuffle(&random, order, dataset->n);
}
