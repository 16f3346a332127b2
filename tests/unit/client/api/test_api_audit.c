/* A node that lies to a session of the C API: wrong text is retracted, the node is banned, and events say so. */
#include "gateway/queue/audited.h"
#include "gateway/queue/embedding.h"
#include "tests/support/api_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 5, TOKENS = 40 };
static const int32_t prompt[PROMPT] = {1, 40, 41, 42, 43};

static api_swarm api;
static byzantine_node *byzantine;

static void begin(int nth) {
    api = api_swarm_begin((cluster_options){0}, NULL);
    byzantine = api_swarm_begin_lies(&api, (byzantine_faults){.alter_nth_step = nth, .large_error = true});
}

static void set_up(void) { begin(20); }
static void set_up_liar(void) { begin(1); }

/* A session over the lying node, which is the only one of its blocks until the first tokens are computed. */
static swarm_session *open_over_byzantine(void) {
    swarm_options *options =
        api_options("audit", "0.2", "audit-seed", "3", "push", "false", "reroute-every", "0", NULL);
    swarm_session *session = NULL;
    API(swarm_session_open(api.model, api.connection, options, NULL, NULL, &session, &error));
    API(swarm_session_append(session, prompt, PROMPT - 1, NULL, &error));
    for (int i = 0; i < 2; i++) {
        cluster_add(api.nodes, 0, 2);
        cluster_add(api.nodes, 2, 4);
    }
    swarm_options_free(options);
    return session;
}

static void tear_down(void) {
    byzantine_node_free(&byzantine);
    api_swarm_end(&api);
}

/* What a reader of the events has; what was retracted is gone. */
typedef struct reader {
    char text[1024];
    int32_t ids[2 * TOKENS];
    size_t n_text, n_ids, retractions, bans;
} reader;

static int read_event(void *context, const swarm_event *event) {
    reader *r = context;
    size_t length;
    const char *text = swarm_event_text(event, &length);
    switch (swarm_event_get_kind(event)) {
    case SWARM_EVENT_TOKEN:
        cr_assert_lt(r->n_ids, 2 * TOKENS);
        r->ids[r->n_ids++] = (int32_t)swarm_event_number(event, "id");
        break;
    case SWARM_EVENT_TEXT:
        cr_assert_lt(r->n_text + length, sizeof r->text);
        memcpy(r->text + r->n_text, text, length);
        r->n_text += length;
        break;
    case SWARM_EVENT_RETRACT:
        cr_assert_lt(swarm_event_number(event, "kept"), (double)r->n_text);
        cr_assert_lt(swarm_event_number(event, "kept_tokens"), (double)r->n_ids);
        r->n_text = (size_t)swarm_event_number(event, "kept");
        r->n_ids = (size_t)swarm_event_number(event, "kept_tokens");
        r->retractions++;
        break;
    case SWARM_EVENT_AUDIT:
        cr_expect(strstr(text, "2:4"), "the verdict is '%s'", text);
        r->bans++;
        break;
    default:
        break;
    }
    return 0;
}

static json_t *generate(swarm_session *session, const swarm_options *options) {
    char *text = NULL;
    API(swarm_session_generate(session, prompt, PROMPT, options, &text, NULL, &error));
    return api_json(text);
}

Test(api_audit, wrong_text_is_retracted_and_the_node_banned, .init = set_up, .fini = tear_down) {
    swarm_options *generation = api_options("max-tokens", "40", "ignore-eos", "true", NULL);
    swarm_session *plain = NULL, *session = open_over_byzantine();
    reader r = {0};
    API(swarm_session_open(api.model, NULL, NULL, NULL, NULL, &plain, &error));
    swarm_session_on_event(session, read_event, &r);
    json_t *expected = generate(plain, generation), *o = generate(session, generation);
    const json_t *ids = json_object_get(o, "ids"), *text = json_object_get(o, "text");
    cr_expect(json_equal(ids, json_object_get(expected, "ids")), "the lie is in the text");
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(o, "audit"), "nodes_banned")), 1);
    cr_expect_eq(r.bans, 1);
    cr_expect_eq(r.retractions, 1);
    cr_expect_eq(r.n_ids, json_array_size(ids));
    for (size_t i = 0; i < json_array_size(ids); i++)
        cr_expect_eq(r.ids[i], json_integer_value(json_array_get(ids, i)), "token %zu", i);
    cr_expect_eq(r.n_text, json_string_length(text));
    cr_expect(!memcmp(r.text, json_string_value(text), json_string_length(text)), "the events give another text");
    json_decref(expected);
    json_decref(o);
    swarm_session_close(plain);
    swarm_session_close(session);
    swarm_options_free(generation);
}

/* A session whose steps are not checked on the way, over a node of which each step is a lie. */
static swarm_session *open_over_liar(void) {
    swarm_options *options =
        api_options("audit", "0.000001", "audit-seed", "3", "push", "false", "reroute-every", "0", NULL);
    swarm_session *session = NULL;
    API(swarm_session_open(api.model, api.connection, options, NULL, NULL, &session, &error));
    for (int i = 0; i < 2; i++) {
        cluster_add(api.nodes, 0, 2);
        cluster_add(api.nodes, 2, 4);
    }
    swarm_options_free(options);
    return session;
}

Test(api_audit, an_embedding_is_checked_before_it_is_given_away, .init = set_up_liar, .fini = tear_down) {
    enum { WIDTH = 64 };
    float right[WIDTH], got[WIDTH];
    swarm_session *plain = NULL, *session = open_over_liar();
    API(swarm_session_open(api.model, NULL, NULL, NULL, NULL, &plain, &error));
    API(sn_embed(api.model, plain, prompt, PROMPT, right, &error));
    for (int i = 0; i < 2; i++) { /* the second one begins the timeline anew */
        API(sn_embed(api.model, session, prompt, PROMPT, got, &error));
        for (int k = 0; k < WIDTH; k++) cr_assert_float_eq(got[k], right[k], 1e-4, "%d: %g %g", k, got[k], right[k]);
    }
    swarm_session_close(plain);
    swarm_session_close(session);
}

typedef struct lines {
    float *logits;
    int calls;
} lines;

static swarm_code append(void *ctx, swarm_session *session, swarm_error **error) {
    lines *l = ctx;
    l->calls++;
    swarm_code code = swarm_session_rewind(session, 0, error);
    return code ? code : swarm_session_append(session, prompt, PROMPT, l->logits, error);
}

Test(api_audit, what_an_audit_finds_wrong_is_computed_again, .init = set_up_liar, .fini = tear_down) {
    const size_t n = PROMPT * (size_t)swarm_model_vocab(api.model);
    lines right = {.logits = calloc(n, sizeof(float))}, got = {.logits = calloc(n, sizeof(float))};
    swarm_session *plain = NULL, *session = open_over_liar();
    API(swarm_session_open(api.model, NULL, NULL, NULL, NULL, &plain, &error));
    API(sn_compute_audited(append, &right, plain, &error));
    API(sn_compute_audited(append, &got, session, &error));
    cr_expect_eq(right.calls, 1);
    cr_expect_eq(got.calls, 2);
    for (size_t i = 0; i < n; i++) cr_assert_float_eq(got.logits[i], right.logits[i], 1e-3);
    swarm_session_close(plain);
    swarm_session_close(session);
    free(right.logits);
    free(got.logits);
}
