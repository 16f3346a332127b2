/* Sessions of the C API with an adapter: from a folder, here and over nodes, and one that the nodes publish. */
#include "tests/support/api_fixture.h"

#include <criterion/criterion.h>

enum { PROMPT = 5 };
static const int32_t prompt[PROMPT] = {1, 40, 41, 42, 43};
static const char trained[] = SN_FIXTURES "/peft/lora/end", other[] = SN_FIXTURES "/peft/prompt/end";

static api_swarm api;

static void set_up(void) {
    const cluster_options nodes = {.tune_memory = 64 << 20, .adapters = SN_FIXTURES "/peft/lora"};
    api = api_swarm_begin(nodes, NULL);
}
static void tear_down(void) { api_swarm_end(&api); }

TestSuite(api_adapter, .init = set_up, .fini = tear_down);

/* The tokens of a session with the adapter of this name; NULL: without one. */
static json_t *tokens(swarm_connection *over, const char *name) {
    swarm_options *options = api_options("max-tokens", "12", "ignore-eos", "true", NULL);
    swarm_adapter *adapter = NULL;
    swarm_session *session = NULL;
    char *text = NULL;
    if (name) API(swarm_adapter_open(api.model, over, name, &adapter, &error));
    API(swarm_session_open(api.model, over, NULL, adapter, NULL, &session, &error));
    API(swarm_session_generate(session, prompt, PROMPT, options, &text, NULL, &error));
    json_t *o = api_json(text), *ids = json_incref(json_object_get(o, "ids"));
    json_decref(o);
    swarm_session_close(session);
    swarm_adapter_close(adapter);
    swarm_options_free(options);
    return ids;
}

Test(api_adapter, a_folder_and_a_published_one_give_the_same_tokens_anywhere) {
    json_t *plain = tokens(NULL, NULL), *here = tokens(NULL, trained), *again;
    cr_expect(!json_equal(plain, here), "the adapter changes nothing");
    cr_expect(json_equal(here, again = tokens(api.connection, trained)), "over nodes");
    json_decref(again);
    cr_expect(json_equal(here, again = tokens(api.connection, "name:end")), "published");
    json_decref(again);
    cr_expect(json_equal(plain, again = tokens(api.connection, NULL)), "a later session has it, too");
    json_decref(again);
    json_decref(plain);
    json_decref(here);
}

Test(api_adapter, virtual_tokens_are_no_part_of_the_timeline) {
    json_t *plain = tokens(NULL, NULL), *here = tokens(NULL, other), *there = tokens(api.connection, other);
    swarm_adapter *adapter = NULL;
    swarm_session *session = NULL;
    size_t n;
    cr_expect(!json_equal(plain, here), "the adapter changes nothing");
    cr_expect(json_equal(here, there), "over nodes");
    API(swarm_adapter_open(api.model, NULL, other, &adapter, &error));
    API(swarm_session_open(api.model, api.connection, NULL, adapter, NULL, &session, &error));
    API(swarm_session_append(session, prompt, PROMPT, NULL, &error));
    (void)swarm_session_tokens(session, &n);
    cr_expect_eq(n, PROMPT);
    swarm_session_close(session);
    swarm_adapter_close(adapter);
    json_decref(plain);
    json_decref(here);
    json_decref(there);
}
