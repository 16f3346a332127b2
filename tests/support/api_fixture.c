#include "tests/support/api_fixture.h"

#include "base/clock.h"
#include "client/api/api_private.h" /* private: a connection over the cluster's transport */
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <pthread.h>
#include <stdarg.h>
#include <string.h>

char *api_folder(void) {
    static const char config[] =
        "{\"chat_template\": \"{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}\"}";
    char *folder = temp_folder();
    copy_file(SN_FIXTURES "/golden/llama", folder, "config.json");
    copy_file(SN_FIXTURES "/golden/llama", folder, "model.safetensors");
    copy_file(SN_FIXTURES "/tokenizer/sentencepiece", folder, "tokenizer.json");
    write_file(folder, "tokenizer_config.json", config, strlen(config));
    return folder;
}

void api_folder_remove(char **folder) { temp_folder_remove(folder); }

swarm_options *api_options(const char *key, ...) {
    swarm_options *options = swarm_options_new();
    va_list rest;
    va_start(rest, key);
    for (; key; key = va_arg(rest, const char *))
        API(swarm_options_set(options, key, va_arg(rest, const char *), &error));
    va_end(rest);
    return options;
}

swarm_model *api_model(const char *folder) {
    swarm_model *model = NULL;
    swarm_options *options = api_options("threads", "1", NULL);
    API(swarm_model_open(folder, options, &model, &error));
    swarm_options_free(options);
    return model;
}

static size_t links_opened;

size_t api_links_opened(void) { return links_opened; }

void api_connection_is_new(swarm_connection *connection) {
    REQUIRE(sn_link_discover(connection->link, NULL, 10000, &err));
    connection->discovered = true;
    connection->discovered_us = sn_now_us();
}

static sn_status open_cluster_link(void *ctx, sn_link **out, sn_err *err) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a cluster is for one thread */
    (void)err;
    pthread_mutex_lock(&lock);
    *out = cluster_link(ctx);
    links_opened++;
    pthread_mutex_unlock(&lock);
    return SN_OK;
}

swarm_connection *api_connection(cluster *c, swarm_cancel *cancel) {
    swarm_connection *connection = NULL;
    REQUIRE(sn_connection_new(NULL, cancel, &connection, &err));
    connection->open_link = open_cluster_link;
    connection->open_link_ctx = c;
    connection->link = cluster_link(c);
    sn_link_set_cancel(connection->link, sn_api_flag(cancel));
    return connection;
}

api_swarm api_swarm_begin(cluster_options nodes, swarm_cancel *cancel) {
    nodes.kv_dtype = SN_KV_DTYPE_DEFAULT; /* of sessions, too */
    return api_swarm_begin_with_kv(nodes, cancel);
}

api_swarm api_swarm_begin_with_kv(cluster_options nodes, swarm_cancel *cancel) {
    api_swarm s = {.folder = api_folder()};
    s.model = api_model(s.folder);
    nodes.model = s.folder;
    s.nodes = cluster_new(&nodes);
    cluster_add(s.nodes, 0, 2);
    cluster_add(s.nodes, 2, 4);
    s.connection = api_connection(s.nodes, cancel);
    return s;
}

void api_swarm_end(api_swarm *s) {
    swarm_disconnect(s->connection);
    cluster_free(&s->nodes);
    swarm_model_close(s->model);
    api_folder_remove(&s->folder);
}

static api_swarm *lied_to;
static testbed described; /* the swarm, as the byzantine node needs it */
static byzantine_node *byzantine;

static sn_status open_byzantine_link(void *ctx, sn_link **out, sn_err *err) {
    (void)ctx, (void)err;
    *out = cluster_link(lied_to->nodes);
    byzantine_node_announce_to(byzantine, *out);
    return SN_OK;
}

byzantine_node *api_swarm_begin_lies(api_swarm *s, byzantine_faults faults) {
    sn_model *model = NULL;
    lied_to = s;
    described = (testbed){.path = s->folder, .cluster = s->nodes, .n_blocks = 4, .kv_dtype = SN_KV_DTYPE_DEFAULT};
    REQUIRE(sn_model_open(s->folder, &model, &err));
    described.model = sn_model_id(model);
    for (int b = 0; b < 4; b++) REQUIRE(sn_model_block_hash(model, b, &described.block_hash[b], &err));
    sn_model_close(&model);
    byzantine = byzantine_node_new(&described, "byzantine:1", 2, 4, faults);
    s->connection->open_link = open_byzantine_link;
    cluster_stop(s->nodes, 1);
    return byzantine;
}

void api_fail(const char *file, int line, const swarm_error *error) {
    fprintf(stderr, "%s:%d: code %d: %s\n", file, line, (int)swarm_error_code(error), swarm_error_text(error));
    abort();
}

json_t *api_json(char *text) {
    json_error_t why;
    json_t *value = json_loads(text, JSON_ALLOW_NUL, &why);
    if (!value) fprintf(stderr, "no JSON: %s\n%.400s\n", why.text, text);
    if (!value) abort();
    swarm_free(text);
    return value;
}
