/* Opening what a program needs of the C API: models of a template alone, links, sessions that continue a file. */
#include "tests/support/api_fixture.h"
#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PROMPT = 5 };
static const int32_t prompt[PROMPT] = {1, 40, 41, 42, 43};

static char *folder, *place;
static swarm_model *model;
static cluster *nodes;
static swarm_connection *connection;

static void set_up(void) {
    folder = api_folder();
    place = temp_folder();
    model = api_model(folder);
    nodes = cluster_new(&(cluster_options){.model = folder, .kv_dtype = SN_KV_DTYPE_DEFAULT});
    cluster_add(nodes, 0, 4);
    connection = api_connection(nodes, NULL);
}

static void tear_down(void) {
    swarm_disconnect(connection);
    cluster_free(&nodes);
    swarm_model_close(model);
    temp_folder_remove(&place);
    api_folder_remove(&folder);
}

TestSuite(api_open, .init = set_up, .fini = tear_down);

static swarm_session *open_session(swarm_connection *over, swarm_options *options) {
    swarm_session *session = NULL;
    API(swarm_session_open(model, over, options, NULL, NULL, &session, &error));
    swarm_options_free(options);
    return session;
}

static int64_t context_of(const swarm_session *session) {
    char *text = NULL;
    API(swarm_session_describe(session, &text, NULL, &error));
    json_t *o = api_json(text);
    int64_t context = json_integer_value(json_object_get(o, "context"));
    json_decref(o);
    return context;
}

/* -- templates -- */

static const char template[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}";
static const char hi[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";

Test(api_open, a_template_alone_renders_text_and_does_nothing_else) {
    swarm_model *alone = NULL;
    char *path = temp_path(place, "t.jinja"), *text = NULL;
    int32_t *ids = NULL;
    size_t n;
    write_file(place, "t.jinja", template, strlen(template));
    API_FAILS(swarm_model_open(NULL, NULL, &alone, &error), SWARM_REFUSED, "path");
    swarm_options *options = api_options("template", path, NULL);
    API(swarm_model_open(NULL, options, &alone, &error));
    API(swarm_model_render_parts(alone, hi, strlen(hi), &text, NULL, &error));
    json_t *o = api_json(text), *part = json_array_get(json_object_get(o, "data"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(o, "prompt")), "[hi]>");
    cr_assert_eq(json_integer_value(json_array_get(part, 0)), 1);
    cr_assert_eq(json_integer_value(json_array_get(part, 1)), 3);
    cr_assert_null(json_object_get(o, "ids"));
    API_FAILS(swarm_model_render_chat(alone, hi, strlen(hi), NULL, NULL, &ids, &n, &error), SWARM_REFUSED, "template");
    API_FAILS(swarm_model_tokenize(alone, "hi", 2, 0, &ids, &n, &error), SWARM_REFUSED, "template");
    API_FAILS(swarm_model_read_answer(alone, NULL, 0, 0, prompt, 1, &text, NULL, &error), SWARM_REFUSED, "template");
    API_FAILS(swarm_model_describe(alone, &text, NULL, &error), SWARM_REFUSED, "template");
    API_FAILS(swarm_session_open(alone, NULL, NULL, NULL, NULL, &(swarm_session *){NULL}, &error), SWARM_REFUSED,
              "template");
    cr_assert_eq(swarm_model_vocab(alone), 0);
    cr_assert_eq(swarm_model_ends(alone, 1), 0);
    json_decref(o);
    swarm_model_close(alone);
    swarm_options_free(options);
    free(path);
}

Test(api_open, a_template_of_the_options_replaces_the_models) {
    swarm_model *other = NULL;
    char *path = temp_path(place, "t.jinja"), *text = NULL;
    write_file(place, "t.jinja", template, strlen(template));
    swarm_options *options = api_options("template", path, "parts", "tokenizer", NULL);
    API(swarm_model_open(folder, options, &other, &error));
    API(swarm_model_render_chat(other, hi, strlen(hi), &text, NULL, NULL, NULL, &error));
    cr_assert_str_eq(text, "[hi]>");
    swarm_free(text);
    swarm_model_close(other);
    write_file(place, "t.jinja", "{% if %}", 8);
    API_FAILS(swarm_model_open(folder, options, &other, &error), SWARM_REFUSED, "t.jinja");
    write_file(place, "t.jinja", "", 0);
    API_FAILS(swarm_model_open(folder, options, &other, &error), SWARM_REFUSED, "empty");
    swarm_options_free(options);
    free(path);
}

Test(api_open, a_prompt_that_continues_has_no_begin_of_sequence_token) {
    static const char continued[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"continues\": true}";
    static const char wrong[] = "{\"messages\": [], \"continues\": 1}";
    int32_t *whole = NULL, *rest = NULL;
    size_t n, n_rest;
    API(swarm_model_render_chat(model, hi, strlen(hi), NULL, NULL, &whole, &n, &error));
    API(swarm_model_render_chat(model, continued, strlen(continued), NULL, NULL, &rest, &n_rest, &error));
    cr_assert_eq(n, n_rest + 1);
    cr_assert_arr_eq(whole + 1, rest, n_rest * sizeof *rest);
    API_FAILS(swarm_model_render_chat(model, wrong, strlen(wrong), NULL, NULL, &rest, &n_rest, &error), SWARM_REFUSED,
              "continues");
    swarm_free(whole);
    swarm_free(rest);
}

/* -- links -- */

Test(api_open, the_first_session_takes_over_the_link_of_a_new_connection) {
    char *text = NULL;
    size_t before = api_links_opened();
    api_connection_is_new(connection);
    swarm_session *first = open_session(connection, NULL);
    cr_assert_eq(api_links_opened(), before, "it opened a link of its own");
    swarm_session *second = open_session(connection, NULL);
    cr_assert_eq(api_links_opened(), before + 1);
    API(swarm_session_append(first, prompt, PROMPT, NULL, &error));
    API(swarm_connection_status(connection, &text, NULL, &error)); /* over a new one */
    cr_assert_eq(api_links_opened(), before + 2);
    API(swarm_session_append(second, prompt, PROMPT, NULL, &error));
    swarm_free(text);
    swarm_session_close(first);
    swarm_session_close(second);
}

/* -- sessions -- */

Test(api_open, the_context_is_what_the_caller_expects_or_asks_for) {
    swarm_session *session = open_session(NULL, api_options("timeline", "40", NULL));
    cr_assert_eq(context_of(session), 40);
    swarm_session_close(session);
    session = open_session(NULL, api_options("timeline", "40", "ctx", "50", NULL));
    cr_assert_eq(context_of(session), 50);
    swarm_session_close(session);
    session = open_session(NULL, api_options("timeline", "1000000", NULL));
    cr_assert_eq(context_of(session), swarm_model_context(model));
    swarm_session_close(session);
}

static void save_session(swarm_options *options, const char *path) {
    swarm_session *session = open_session(connection, options);
    API(swarm_session_append(session, prompt, PROMPT, NULL, &error));
    API(swarm_session_save(session, path, NULL, "turns", 5, &error));
    swarm_session_close(session);
}

Test(api_open, a_session_opens_with_what_a_file_holds_and_has_room_for_more) {
    static float expected[320], logits[320];
    char *path = temp_path(place, "session"), *key = temp_path(place, "key");
    size_t n;
    write_file(place, "key", "0123456789abcdef0123", 20);
    chmod(key, 0600);
    save_session(api_options("session-key", key, NULL), path);
    swarm_session *plain = open_session(NULL, NULL);
    swarm_session *session = open_session(NULL, api_options("load", path, "session-key", key, "timeline", "7", NULL));
    cr_assert_eq(context_of(session), PROMPT + 7);
    cr_assert_arr_eq(swarm_session_tokens(session, &n), prompt, sizeof prompt);
    cr_assert_eq(n, PROMPT);
    cr_assert_str_eq(swarm_session_extra(session, &n), "turns");
    API(swarm_session_append(plain, prompt, PROMPT, NULL, &error));
    API(swarm_session_append(plain, prompt, 1, expected, &error));
    API(swarm_session_append(session, prompt, 1, logits, &error));
    cr_assert_arr_eq(expected, logits, sizeof logits);
    swarm_session_close(session);
    swarm_session_close(plain);
    free(path);
    free(key);
}

static void refuses(const char *word, swarm_connection *over, swarm_options *options) {
    swarm_session *session = NULL;
    API_FAILS(swarm_session_open(model, over, options, NULL, NULL, &session, &error), SWARM_REFUSED, word);
    swarm_options_free(options);
}

Test(api_open, settings_that_do_not_go_together_are_refused) {
    refuses("session-key", NULL, api_options("load", "/nonexistent", NULL));
    refuses("/nonexistent", NULL, api_options("load", folder, "session-key", "/nonexistent", NULL));
    refuses("audit", connection, api_options("load", folder, "audit", "1", NULL));
    refuses("hidden states", NULL, api_options("load", folder, "blocks", "0:2", NULL));
    refuses("need --audit", connection, api_options("audit-hold", "true", NULL));
}

/* -- events -- */

typedef struct progress {
    double reused, done, total;
    size_t texts, tokens;
} progress;

static int watch(void *context, const swarm_event *event) {
    progress *p = context;
    swarm_event_kind kind = swarm_event_get_kind(event);
    p->texts += kind == SWARM_EVENT_TEXT;
    p->tokens += kind == SWARM_EVENT_TOKEN;
    if (kind != SWARM_EVENT_PROGRESS) return 0;
    p->reused = swarm_event_number(event, "reused");
    p->done = swarm_event_number(event, "done");
    p->total = swarm_event_number(event, "total");
    return 0;
}

Test(api_open, progress_says_what_the_timeline_had_already) {
    static int32_t longer[60];
    progress p = {0};
    for (int i = 0; i < 60; i++) longer[i] = i < PROMPT ? prompt[i] : 50 + i;
    swarm_session *session = open_session(connection, NULL);
    swarm_options *options = api_options("max-tokens", "1", NULL);
    API(swarm_session_append(session, prompt, PROMPT, NULL, &error));
    swarm_session_on_event(session, watch, &p);
    API(swarm_session_generate(session, longer, 60, options, NULL, NULL, &error));
    cr_assert_eq(p.reused, PROMPT);
    cr_assert_eq(p.done, 60);
    cr_assert_eq(p.total, 60);
    swarm_session_close(session);
    swarm_options_free(options);
}

Test(api_open, a_session_that_holds_its_text_gives_it_once) {
    progress p = {0};
    cluster_add(nodes, 0, 4);
    swarm_options *options = api_options("max-tokens", "12", "ignore-eos", "true", NULL);
    swarm_session *session = open_session(connection, api_options("audit", "1", "audit-hold", "true", NULL));
    swarm_session_on_event(session, watch, &p);
    API(swarm_session_generate(session, prompt, PROMPT, options, NULL, NULL, &error));
    cr_assert_eq(p.tokens, 12);
    cr_assert_eq(p.texts, 1);
    swarm_session_close(session);
    swarm_options_free(options);
}
