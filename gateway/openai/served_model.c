/* Token bytes are read once from the model. Compiled schemas that no constraint uses wait in a short list, the one used
 * last first. */
#include "gateway/openai/served_model.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 16 }; /* compiled schemas that wait for their next use */

struct sn_served_model {
    const swarm_model *model;
    char *name;
    sn_token_bytes *tokens;
    bool *ends;      /* (vocab) */
    int32_t *ending; /* (n_ending) */
    size_t n_ending;
    int32_t vocab;
    pthread_mutex_t lock; /* of what follows */
    sn_compiled_schema *kept[KEPT];
    int n_kept;
};

static sn_status take_error(swarm_error *error, sn_err *err) {
    sn_status status =
        sn_fail(err, swarm_error_code(error) == SWARM_REFUSED ? SN_REFUSED : SN_STOP, "%s", swarm_error_text(error));
    swarm_error_free(error);
    return status;
}

static sn_status read_tokens(sn_served_model *s, char **bytes, size_t *lengths, sn_err *err) {
    for (int32_t id = 0; id < s->vocab; id++) {
        swarm_error *error = NULL;
        if (swarm_model_token_bytes(s->model, id, 0, &bytes[id], &lengths[id], &error)) return take_error(error, err);
        s->ends[id] = swarm_model_ends(s->model, id);
        if (s->ends[id]) s->ending[s->n_ending++] = id;
    }
    return sn_token_bytes_new((const char *const *)bytes, lengths, (size_t)s->vocab, &s->tokens, err);
}

sn_status sn_served_model_new(const swarm_model *model, const char *name, sn_served_model **out, sn_err *err) {
    sn_served_model *s = NULL;
    char **bytes = NULL;
    size_t *lengths = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (status) return status;
    pthread_mutex_init(&s->lock, NULL);
    s->model = model;
    s->vocab = swarm_model_vocab(model);
    s->name = strdup(name);
    if (!s->name) status = sn_fail(err, SN_STOP, "out of memory for the name of a model");
    if (!status) status = sn_calloc(&s->ends, (size_t)s->vocab, sizeof *s->ends, err);
    if (!status) status = sn_calloc(&s->ending, (size_t)s->vocab, sizeof *s->ending, err);
    if (!status) status = sn_calloc(&bytes, (size_t)s->vocab, sizeof *bytes, err);
    if (!status) status = sn_calloc(&lengths, (size_t)s->vocab, sizeof *lengths, err);
    if (!status) status = read_tokens(s, bytes, lengths, err);
    for (int32_t id = 0; bytes && id < s->vocab; id++) swarm_free(bytes[id]);
    free(bytes);
    free(lengths);
    if (status) sn_served_model_free(&s);
    *out = s;
    return status;
}

static void compiled_free(sn_compiled_schema *c) {
    sn_token_masks_free(&c->masks);
    sn_grammar_free(&c->grammar);
    free(c->text);
    free(c);
}

void sn_served_model_free(sn_served_model **served) {
    sn_served_model *s = *served;
    if (!s) return;
    while (s->n_kept) compiled_free(s->kept[--s->n_kept]);
    sn_token_bytes_free(&s->tokens);
    pthread_mutex_destroy(&s->lock);
    free(s->ends);
    free(s->ending);
    free(s->name);
    free(s);
    *served = NULL;
}

const swarm_model *sn_served_model_get(const sn_served_model *s) { return s->model; }
const char *sn_served_model_name(const sn_served_model *s) { return s->name; }
const sn_token_bytes *sn_served_model_tokens(const sn_served_model *s) { return s->tokens; }
bool sn_served_model_ends(const sn_served_model *s, int32_t id) { return id >= 0 && id < s->vocab && s->ends[id]; }

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

/* -- schemas -- */

static sn_compiled_schema *take_kept(sn_served_model *s, const char *text) {
    sn_compiled_schema *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_kept && !found; i++)
        if (!strcmp(s->kept[i]->text, text)) {
            found = s->kept[i];
            s->n_kept--;
            memmove(s->kept + i, s->kept + i + 1, (size_t)(s->n_kept - i) * sizeof *s->kept);
        }
    pthread_mutex_unlock(&s->lock);
    return found;
}

sn_status sn_served_model_take_schema(sn_served_model *s, const json_t *schema, sn_compiled_schema **out, sn_err *err) {
    sn_compiled_schema *c = NULL;
    char *text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    *out = text ? take_kept(s, text) : NULL;
    if (*out) {
        free(text);
        return SN_OK;
    }
    sn_status status = text ? sn_calloc(&c, 1, sizeof *c, err) : sn_fail(err, SN_STOP, "out of memory for a schema");
    if (status) {
        free(text);
        return status;
    }
    c->text = text;
    status = sn_grammar_from_schema(schema, &c->grammar, err);
    if (!status) status = sn_token_masks_new(s->tokens, c->grammar, &c->masks, err);
    if (status) compiled_free(c);
    *out = status ? NULL : c;
    return status;
}

void sn_served_model_return_schema(sn_served_model *s, sn_compiled_schema **compiled, bool usable) {
    sn_compiled_schema *c = *compiled;
    *compiled = NULL;
    if (c && !usable) compiled_free(c);
    if (!c || !usable) return;
    pthread_mutex_lock(&s->lock);
    sn_compiled_schema *oldest = s->n_kept == KEPT ? s->kept[--s->n_kept] : NULL;
    memmove(s->kept + 1, s->kept, (size_t)s->n_kept * sizeof *s->kept);
    s->kept[0] = c;
    s->n_kept++;
    pthread_mutex_unlock(&s->lock);
    if (oldest) compiled_free(oldest);
}
