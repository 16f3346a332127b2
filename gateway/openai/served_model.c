/* Token bytes are read once from the model. Grammars that no constraint uses wait in a short list, the one used last
 * first. */
#include "gateway/openai/served_model.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 16 }; /* grammars that wait for their next use */

struct sn_served_model {
    const swarm_model *model;
    char *name;
    sn_token_bytes *tokens;
    bool *ends, *writes; /* (vocab) */
    int32_t *ending;     /* (n_ending) */
    size_t n_ending;
    int32_t vocab;
    sn_request_sampling sampling;
    json_t *marks_json;
    sn_answer_marks marks; /* borrow from it */
    pthread_mutex_t lock;  /* of what follows */
    sn_compiled_answer *kept[KEPT];
    int n_kept;
};

static sn_status take_error(swarm_error *error, sn_err *err) {
    sn_status status =
        sn_fail(err, swarm_error_code(error) == SWARM_REFUSED ? SN_REFUSED : SN_STOP, "%s", swarm_error_text(error));
    swarm_error_free(error);
    return status;
}

/* Appends what a grammar knows of a token (answer_grammar.h). One that ends an answer is in no grammar. */
static sn_status append_token(sn_served_model *s, int32_t id, sn_buf *all, sn_err *err) {
    char *text = NULL, *special = NULL;
    size_t n = 0, n_special = 0;
    swarm_error *error = NULL;
    sn_status status = SN_OK;
    if (swarm_model_token_bytes(s->model, id, 0, &text, &n, &error) ||
        swarm_model_token_bytes(s->model, id, SWARM_TEXT_SPECIAL, &special, &n_special, &error))
        status = take_error(error, err);
    s->writes[id] = n;
    if (!status && !s->ends[id] && n_special && !memchr(special, *SN_SPECIAL_EDGE, n_special)) {
        if (!n) status = sn_buf_append(all, SN_SPECIAL_EDGE, 1, err);
        if (!status) status = sn_buf_append(all, special, n_special, err);
        if (!status && !n) status = sn_buf_append(all, SN_SPECIAL_EDGE, 1, err);
    }
    swarm_free(text);
    swarm_free(special);
    return status;
}

static sn_status read_tokens(sn_served_model *s, const char **bytes, size_t *lengths, sn_buf *all, sn_err *err) {
    for (int32_t id = 0; id < s->vocab; id++) {
        const size_t before = all->len;
        s->ends[id] = swarm_model_ends(s->model, id);
        if (s->ends[id]) s->ending[s->n_ending++] = id;
        sn_status status = append_token(s, id, all, err);
        if (status) return status;
        lengths[id] = all->len - before;
    }
    for (size_t id = 0, at = 0; id < (size_t)s->vocab; at += lengths[id++])
        bytes[id] = all->data ? (const char *)all->data + at : "";
    return sn_token_bytes_new(bytes, lengths, (size_t)s->vocab, &s->tokens, err);
}

/* A model without a chat template has none. */
static void read_marks(sn_served_model *s) {
    char *text = NULL;
    swarm_error *error = NULL;
    if (swarm_model_answer_marks(s->model, &text, NULL, &error)) swarm_error_free(error);
    s->marks_json = text ? json_loads(text, 0, NULL) : NULL;
    swarm_free(text);
    const json_t *thought = json_object_get(s->marks_json, "thought"), *calls = json_object_get(s->marks_json, "calls");
    s->marks.thought = json_string_value(json_array_get(thought, 0));
    s->marks.thought_end = json_string_value(json_array_get(thought, 1));
    s->marks.calls_known = json_is_array(calls);
    for (; s->marks.n_calls < json_array_size(calls) && s->marks.n_calls < SN_CALL_MARKS_MAX; s->marks.n_calls++)
        s->marks.calls[s->marks.n_calls] = json_string_value(json_array_get(calls, s->marks.n_calls));
}

/* A model without weights, which only tests open, has no description. */
static sn_status read_sampling(sn_served_model *s, sn_err *err) {
    char *text = NULL;
    s->sampling = (sn_request_sampling){1, 1, 0, 1, 0};
    if (swarm_model_describe(s->model, &text, NULL, NULL)) return SN_OK;
    json_t *all = json_loads(text, JSON_ALLOW_NUL, NULL);
    const json_t *o = json_object_get(all, "answer_sampling");
    s->sampling = (sn_request_sampling){
        json_number_value(json_object_get(o, "temperature")), json_number_value(json_object_get(o, "top_p")),
        json_number_value(json_object_get(o, "min_p")), json_number_value(json_object_get(o, "repeat_penalty")),
        (int32_t)json_integer_value(json_object_get(o, "top_k"))};
    json_decref(all);
    swarm_free(text);
    return all ? SN_OK : sn_fail(err, SN_STOP, "out of memory for the description of a model");
}

sn_status sn_served_model_new(const swarm_model *model, const char *name, sn_served_model **out, sn_err *err) {
    sn_served_model *s = NULL;
    const char **bytes = NULL;
    size_t *lengths = NULL;
    sn_buf all;
    *out = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (status) return status;
    pthread_mutex_init(&s->lock, NULL);
    sn_buf_init(&all, SIZE_MAX);
    s->model = model;
    s->vocab = swarm_model_vocab(model);
    s->name = strdup(name);
    if (!s->name) status = sn_fail(err, SN_STOP, "out of memory for the name of a model");
    if (!status) status = sn_calloc(&s->ends, (size_t)s->vocab, sizeof *s->ends, err);
    if (!status) status = sn_calloc(&s->writes, (size_t)s->vocab, sizeof *s->writes, err);
    if (!status) status = sn_calloc(&s->ending, (size_t)s->vocab, sizeof *s->ending, err);
    if (!status) status = sn_calloc(&bytes, (size_t)s->vocab, sizeof *bytes, err);
    if (!status) status = sn_calloc(&lengths, (size_t)s->vocab, sizeof *lengths, err);
    if (!status) status = read_tokens(s, bytes, lengths, &all, err);
    if (!status) status = read_sampling(s, err);
    if (!status) read_marks(s);
    sn_buf_fini(&all);
    free(bytes);
    free(lengths);
    if (status) sn_served_model_free(&s);
    *out = s;
    return status;
}

static void compiled_free(sn_compiled_answer *c) {
    sn_token_masks_free(&c->masks);
    sn_grammar_free(&c->grammar);
    sn_buf_fini(&c->name);
    free(c);
}

void sn_served_model_free(sn_served_model **served) {
    sn_served_model *s = *served;
    if (!s) return;
    while (s->n_kept) compiled_free(s->kept[--s->n_kept]);
    sn_token_bytes_free(&s->tokens);
    pthread_mutex_destroy(&s->lock);
    json_decref(s->marks_json);
    free(s->ends);
    free(s->writes);
    free(s->ending);
    free(s->name);
    free(s);
    *served = NULL;
}

const swarm_model *sn_served_model_get(const sn_served_model *s) { return s->model; }
const sn_request_sampling *sn_served_model_sampling(const sn_served_model *s) { return &s->sampling; }
const char *sn_served_model_name(const sn_served_model *s) { return s->name; }
const sn_answer_marks *sn_served_model_marks(const sn_served_model *s) { return &s->marks; }
const sn_token_bytes *sn_served_model_tokens(const sn_served_model *s) { return s->tokens; }
bool sn_served_model_ends(const sn_served_model *s, int32_t id) { return id >= 0 && id < s->vocab && s->ends[id]; }
bool sn_served_model_writes(const sn_served_model *s, int32_t id) { return id >= 0 && id < s->vocab && s->writes[id]; }

const int32_t *sn_served_model_ending(const sn_served_model *s, size_t *n) {
    *n = s->n_ending;
    return s->ending;
}

bool sn_served_model_calls_tools(const sn_served_model *s) {
    static const char conversation[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\", "
        "\"tool_calls\": [{\"id\": \"call00000\", \"type\": \"function\", \"function\": {\"name\": \"sn_tool\", "
        "\"arguments\": {}}}]}], \"add_generation_prompt\": false, \"tools\": [{\"type\": \"function\", \"function\": "
        "{\"name\": \"sn_tool\", \"description\": \"d\", \"parameters\": {\"type\": \"object\", \"properties\": "
        "{}}}}]}";
    char *text = NULL;
    size_t len;
    if (swarm_model_render_chat(s->model, conversation, strlen(conversation), &text, &len, NULL, NULL, NULL))
        return false;
    bool shown = strstr(text, "sn_tool") != NULL;
    swarm_free(text);
    return shown;
}

/* -- what answers may be -- */

/* With its length, so that no text is taken for the end of one and the beginning of another. */
static sn_status name_text(const char *text, sn_buf *out, sn_err *err) {
    if (!text) return sn_buf_append(out, "-", 1, err);
    sn_status status = sn_buf_printf(out, err, "%zu:", strlen(text));
    return status ? status : sn_buf_append(out, text, strlen(text), err);
}

/* A name for all that a shape says. */
static sn_status name_shape(const sn_answer_shape *shape, sn_buf *out, sn_err *err) {
    json_t *o = json_pack("{s:b, s:b, s:O*}", "thinks", shape->thinks, "text", shape->text, "schema", shape->schema);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    sn_status status = text ? sn_buf_append(out, text, strlen(text), err) : sn_fail(err, SN_STOP, "out of memory");
    free(text);
    json_decref(o);
    if (!status) status = name_text(shape->after, out, err);
    for (size_t i = 0; i < shape->n_calls && !status; i++) {
        const sn_call_shape *c = &shape->calls[i];
        const char *parts[] = {c->before[0], c->before[1], c->again, c->strict ? "strict" : NULL};
        for (size_t k = 0; k < sizeof parts / sizeof *parts && !status; k++) status = name_text(parts[k], out, err);
        text = status ? NULL : json_dumps(c->schema, JSON_COMPACT | JSON_ENCODE_ANY);
        if (!status) status = text ? name_text(text, out, err) : sn_fail(err, SN_STOP, "out of memory");
        free(text);
    }
    return status;
}

static sn_compiled_answer *take_kept(sn_served_model *s, const sn_buf *name) {
    sn_compiled_answer *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_kept && !found; i++)
        if (s->kept[i]->name.len == name->len && !memcmp(s->kept[i]->name.data, name->data, name->len)) {
            found = s->kept[i];
            s->n_kept--;
            memmove(s->kept + i, s->kept + i + 1, (size_t)(s->n_kept - i) * sizeof *s->kept);
        }
    pthread_mutex_unlock(&s->lock);
    return found;
}

sn_status sn_served_model_take_answer(sn_served_model *s, const sn_answer_shape *shape, sn_compiled_answer **out,
                                      sn_err *err) {
    sn_compiled_answer *c = NULL;
    sn_buf name;
    sn_buf_init(&name, SIZE_MAX);
    sn_status status = name_shape(shape, &name, err);
    *out = status ? NULL : take_kept(s, &name);
    if (!status && !*out) status = sn_calloc(&c, 1, sizeof *c, err);
    if (!c) {
        sn_buf_fini(&name);
        return status;
    }
    c->name = name;
    status = sn_grammar_from_answer(shape, &c->grammar, err);
    if (!status) status = sn_token_masks_new(s->tokens, c->grammar, &c->masks, err);
    if (status) compiled_free(c);
    *out = status ? NULL : c;
    return status;
}

static size_t kept_bytes(const sn_served_model *s) {
    size_t bytes = 0;
    for (int i = 0; i < s->n_kept; i++) bytes += s->kept[i]->bytes;
    return bytes;
}

size_t sn_served_model_kept_bytes(sn_served_model *s) {
    pthread_mutex_lock(&s->lock);
    size_t bytes = kept_bytes(s);
    pthread_mutex_unlock(&s->lock);
    return bytes;
}

void sn_served_model_return_answer(sn_served_model *s, sn_compiled_answer **compiled, bool usable) {
    sn_compiled_answer *c = *compiled;
    *compiled = NULL;
    if (!c) return;
    c->bytes = c->name.capacity + sn_grammar_bytes(c->grammar) + sn_token_masks_bytes(c->masks);
    if (!usable || c->bytes > SN_KEPT_ANSWERS_BYTES_MAX) {
        compiled_free(c);
        return;
    }
    sn_compiled_answer *dropped[KEPT];
    int n_dropped = 0;
    pthread_mutex_lock(&s->lock);
    size_t bytes = c->bytes + kept_bytes(s);
    while (s->n_kept && (s->n_kept == KEPT || bytes > SN_KEPT_ANSWERS_BYTES_MAX)) {
        dropped[n_dropped] = s->kept[--s->n_kept]; /* the one that was not used for longest */
        bytes -= dropped[n_dropped++]->bytes;
    }
    memmove(s->kept + 1, s->kept, (size_t)s->n_kept * sizeof *s->kept);
    s->kept[0] = c;
    s->n_kept++;
    pthread_mutex_unlock(&s->lock);
    while (n_dropped) compiled_free(dropped[--n_dropped]);
}
