/* What the choices of a request have in common: the audit of what they give away, and the first failure. */
#include "gateway/http/answer_private.h" /* private: choices without a connection */
#include "tests/support/api_fixture.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

static api_swarm api;
static byzantine_node *byzantine;
static sn_server server;
static sn_http_answer answer;
static sn_http_answer_prompt prompt;

static void set_up(void) {
    api = api_swarm_begin((cluster_options){0}, NULL);
    server.options.model = api.model;
    pthread_mutex_init(&answer.lock, NULL);
    pthread_cond_init(&answer.changed, NULL);
    sn_load_init(&server.load);
    /* It runs no job here: it is asked for turns. */
    const sn_server_queue_options engine = {
        .model = api.model, .connection = api.connection, .sessions_max = 1, .queue_max = 1, .idle_ms = 60000};
    REQUIRE(sn_server_queue_new(&engine, &server.options.queue, &err));
    answer.server = &server;
}

static void tear_down(void) {
    sn_reply_free(&answer.reply);
    sn_request_free(&answer.request);
    json_decref(answer.hops);
    sn_buf_fini(&answer.out);
    sn_load_fini(&server.load);
    sn_served_model_free(&server.served);
    byzantine_node_free(&byzantine);
    sn_server_queue_free(&server.options.queue);
    api_swarm_end(&api);
}

TestSuite(http_answer, .init = set_up, .fini = tear_down, .timeout = 60);

/* Steps are checked when an audit is asked for, and hardly before. */
static swarm_session *open_session(bool audited) {
    swarm_options *options =
        audited ? api_options("audit", "0.000001", "audit-seed", "3", "push", "false", "reroute-every", "0", NULL)
                : api_options("push", "false", NULL);
    swarm_session *session = NULL;
    API(swarm_session_open(api.model, api.connection, options, NULL, NULL, &session, &error));
    swarm_options_free(options);
    return session;
}

/* A choice of the answer to this request for a completion of [1, 40, 41, 42, 43]. */
static sn_http_answer_choice begin_choice(const char *body) {
    static const char *const names[] = {"tiny"};
    const sn_request_limits limits = {.models = names,
                                      .sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
                                      .n_models = 1,
                                      .vocab = swarm_model_vocab(api.model),
                                      .context = 96,
                                      .n_max = 4,
                                      .prompts_max = 1,
                                      .choices_max = 4};
    sn_openai_error error = {0};
    REQUIRE(sn_served_model_new(api.model, "tiny", &server.served, &err));
    cr_assert(sn_request_parse(SN_REQUEST_COMPLETION, body, strlen(body), &limits, &answer.request, &error), "%s",
              error.message);
    cr_assert(sn_reply_new(answer.request, server.served, &(sn_reply_head){"1", 1700000000}, &answer.reply, &error));
    sn_buf_init(&answer.out, SIZE_MAX);
    prompt = (sn_http_answer_prompt){.ids = (int32_t *)(uintptr_t)answer.request->prompts->ids,
                                     .n = answer.request->prompts->n};
    return (sn_http_answer_choice){.answer = &answer, .prompt = &prompt};
}

static json_int_t nodes_banned(const swarm_session *session) {
    char *text = NULL;
    API(swarm_session_describe(session, &text, NULL, &error));
    json_t *o = api_json(text);
    const json_int_t n = json_integer_value(json_object_get(json_object_get(o, "audit"), "nodes_banned"));
    json_decref(o);
    return n;
}

Test(http_answer, log_probabilities_of_a_prompt_are_checked_before_they_are_given_away) {
    byzantine = api_swarm_begin_lies(&api, (byzantine_faults){.alter_nth_step = 1, .large_error = true});
    swarm_session *session = open_session(true);
    cluster_add(api.nodes, 0, 2);
    for (int i = 0; i < 2; i++) cluster_add(api.nodes, 2, 4);
    sn_http_answer_choice c =
        begin_choice("{\"prompt\":[1,40,41,42,43],\"max_tokens\":0,\"echo\":true,\"logprobs\":1}");
    API(sn_http_answer_echo(&c, session, &error));
    cr_expect_eq(nodes_banned(session), 1);
    swarm_session_close(session);
}

/* No step is computed, so that an audited session has none that is unchecked. */
static bool is_checked(bool first, bool second) {
    swarm_session *sessions[] = {open_session(first), open_session(second)};
    sn_http_answer_choice c = {.answer = &answer};
    json_decref(answer.hops);
    answer.hops = NULL;
    answer.unchecked = false;
    for (int i = 0; i < 2; i++) {
        API(sn_http_answer_embed(&c, sessions[i], &error));
        swarm_session_close(sessions[i]);
    }
    return !answer.unchecked;
}

Test(http_answer, an_answer_is_checked_when_each_of_its_choices_is) {
    cr_expect(is_checked(true, true));
    cr_expect_not(is_checked(false, true));
    cr_expect_not(is_checked(true, false));
}

/* When a node fails, two others come, so that there are nodes to check everything. */
static int nodes_come(void *nodes, const swarm_event *event) {
    if (swarm_event_get_kind(event) != SWARM_EVENT_FAILOVER) return 0;
    cluster_add(nodes, 0, 2);
    cluster_add(nodes, 2, 4);
    return 0;
}

/* The check of the second one makes up for that of the first, which the client may have by then. */
Test(http_answer, an_embedding_that_was_given_away_unchecked_stays_so) {
    static const int32_t first[] = {1, 40, 41}, second[] = {1, 50, 51, 52};
    static const char body[] = "{\"input\":[[1,40,41],[1,50,51,52]]}";
    const sn_request_limits limits = {.sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
                                      .vocab = swarm_model_vocab(api.model),
                                      .context = 96,
                                      .n_max = 4,
                                      .prompts_max = 2,
                                      .choices_max = 4};
    sn_http_answer_prompt prompts[] = {{.ids = (int32_t *)(uintptr_t)first, .n = sizeof first / sizeof *first},
                                       {.ids = (int32_t *)(uintptr_t)second, .n = sizeof second / sizeof *second}};
    sn_http_answer_choice c = {.answer = &answer};
    sn_openai_error failure = {0};
    char *text = NULL;
    byzantine = api_swarm_begin_lies(&api, (byzantine_faults){.fail_after = 1});
    swarm_session *session = open_session(true);
    cluster_add(api.nodes, 2, 4); /* no node checks blocks 0:2 yet */
    swarm_session_on_event(session, nodes_come, api.nodes);
    cr_assert(sn_request_parse(SN_REQUEST_EMBEDDING, body, strlen(body), &limits, &answer.request, &failure), "%s",
              failure.message);
    cr_assert(sn_reply_new(answer.request, server.served, &(sn_reply_head){"1", 1700000000}, &answer.reply, &failure));
    sn_buf_init(&answer.out, SIZE_MAX);
    answer.prompts = prompts;
    answer.n_prompts = sizeof prompts / sizeof *prompts;
    API(sn_http_answer_embed(&c, session, &error));
    API(swarm_session_describe(session, &text, NULL, &error));
    json_t *o = api_json(text), *audit = json_object_get(o, "audit");
    cr_expect(json_is_true(json_object_get(audit, "timeline_checked")) &&
              !json_integer_value(json_object_get(audit, "unchecked")));
    cr_expect(answer.unchecked);
    json_decref(o);
    answer.prompts = NULL;
    answer.n_prompts = 0;
    swarm_session_close(session);
}

Test(http_answer, a_choice_begins_nothing_when_another_one_has_failed) {
    swarm_session *session = open_session(false);
    swarm_error *error = NULL;
    size_t n;
    sn_http_answer_choice c =
        begin_choice("{\"prompt\":[1,40,41],\"max_tokens\":0,\"echo\":true,\"logprobs\":1,\"n\":2}");
    sn_http_answer_fail(&answer, &(sn_openai_error){.status = 500});
    cr_expect_eq(sn_http_answer_run_choice(&c, session, &error), SWARM_CANCELLED);
    (void)swarm_session_tokens(session, &n);
    cr_expect_eq(n, 0, "it computed the prompt");
    swarm_session_close(session);
}

/* The answer fails at the first event, as it does when another choice fails meanwhile. */
Test(http_answer, a_choice_generates_no_more_when_the_answer_has_failed) {
    enum { N_PROMPT = 3 };
    swarm_session *session = open_session(false);
    swarm_error *error = NULL;
    sn_taken taken = {0};
    sn_openai_error failure = {0};
    size_t n;
    sn_http_answer_choice c = begin_choice("{\"prompt\":[1,40,41],\"max_tokens\":40,\"ignore_eos\":true}");
    cr_assert(sn_request_generation(answer.request, 0, 7, &c.generation, &failure));
    cr_assert(sn_load_take(&server.load, &taken, SN_LOAD_SHARE_MAX), "no memory is left for what is not read");
    answer.out.len = SN_LOAD_SMALL + 1;
    (void)sn_http_answer_run_choice(&c, session, &error);
    cr_expect_eq(answer.error.status, 503);
    (void)swarm_session_tokens(session, &n);
    cr_expect_leq(n, N_PROMPT + 1, "%zu tokens", n);
    answer.out.len = 0;
    sn_load_give_back(&server.load, &taken);
    swarm_options_free(c.generation);
    swarm_error_free(error);
    swarm_session_close(session);
}

/* Reads the stream to its end, and returns what libmicrohttpd is told there. */
static ssize_t end_of_stream(void) {
    static char block[64 << 10];
    sn_exchange x = {.server = &server, .answer = &answer};
    ssize_t n;
    while ((n = sn_http_answer_stream(&x, 0, block, sizeof block)) > 0) {}
    return n;
}

Test(http_answer, a_stream_of_which_a_part_is_dropped_does_not_end_as_a_whole_one) {
    static const char unread[SN_LOAD_SMALL];
    sn_taken taken = {0};
    (void)begin_choice("{\"prompt\":[1,40,41],\"stream\":true}");
    REQUIRE(sn_buf_append(&answer.out, unread, sizeof unread, &err));
    sn_http_answer_collect(&answer);
    answer.finished = true;
    cr_expect_eq(end_of_stream(), MHD_CONTENT_READER_END_OF_STREAM);
    cr_assert(sn_load_take(&server.load, &taken, SN_LOAD_SHARE_MAX), "no memory is left for what is not read");
    REQUIRE(sn_buf_append(&answer.out, unread, sizeof unread, &err));
    sn_http_answer_collect(&answer);
    cr_expect_eq(end_of_stream(), MHD_CONTENT_READER_END_WITH_ERROR);
    sn_load_give_back(&server.load, &taken);
}

/* Each may have a grammar of many MiB, and the answer has as many choices as may wait. */
Test(http_answer, a_choice_that_has_ended_keeps_no_grammar) {
    swarm_session *session = open_session(false);
    sn_openai_error failure = {0};
    const sn_constraint_setup setup = {.n_prompt = 3};
    sn_http_answer_choice c = begin_choice("{\"prompt\":[1,40,41],\"max_tokens\":2,\"logit_bias\":{\"3\":-100}}");
    cr_assert(sn_request_generation(answer.request, 0, 7, &c.generation, &failure));
    cr_assert(sn_constraint_new(answer.request, server.served, &setup, &c.constraint, &failure));
    cr_assert(c.constraint);
    API(sn_http_answer_run_choice(&c, session, &error));
    cr_expect_null(c.constraint);
    sn_constraint_free(&c.constraint);
    swarm_options_free(c.generation);
    swarm_session_close(session);
}

/* What is sampled without a mask is not told, and nothing is sampled after it. */
Test(http_answer, a_choice_whose_mask_fails_ends_at_once) {
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"response_format\":{\"type\":"
                               "\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"not\":{}}}}}";
    enum { N_PROMPT = 3 };
    static const char *const names[] = {"tiny"};
    const sn_request_limits limits = {.models = names,
                                      .n_models = 1,
                                      .vocab = swarm_model_vocab(api.model),
                                      .context = 96,
                                      .n_max = 4,
                                      .choices_max = 4};
    swarm_session *session = open_session(false);
    swarm_error *error = NULL;
    sn_openai_error failure = {0};
    sn_request *formed = NULL;
    const sn_constraint_setup setup = {.n_prompt = N_PROMPT,
                                       .later = true}; /* it is compiled, and fails, at its first use */
    size_t n;
    sn_http_answer_choice c = begin_choice("{\"prompt\":[1,40,41],\"max_tokens\":40,\"ignore_eos\":true}");
    cr_assert(sn_request_parse(SN_REQUEST_CHAT, body, strlen(body), &limits, &formed, &failure), "%s", failure.message);
    cr_assert(sn_request_generation(answer.request, 0, 7, &c.generation, &failure));
    cr_assert(sn_constraint_new(formed, server.served, &setup, &c.constraint, &failure));
    (void)sn_http_answer_run_choice(&c, session, &error);
    cr_expect_eq(answer.error.status, 400);
    cr_expect_eq(sn_reply_tokens(answer.reply), 0);
    (void)swarm_session_tokens(session, &n);
    cr_expect_leq(n, N_PROMPT + 1, "%zu tokens", n);
    sn_request_free(&formed);
    swarm_options_free(c.generation);
    swarm_error_free(error);
    swarm_session_close(session);
}
