/* One model and one connection of the C API, used by five threads: four have sessions, over nodes and over local blocks
 * in turn, one asks for the status and tokenizes. Every session must generate the same tokens. For ThreadSanitizer,
 * which cannot run under Criterion. */
#include "tests/support/api_fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3, PROMPT = 5, SESSIONS = 4 };

static swarm_model *model;
static swarm_connection *connection;

static char *generate(swarm_connection *over) {
    static const int32_t prompt[PROMPT] = {1, 40, 41, 42, 43};
    swarm_options *options = api_options("max-tokens", "12", "ignore-eos", "true", NULL);
    swarm_session *session = NULL;
    char *text = NULL;
    API(swarm_session_open(model, over, NULL, NULL, NULL, &session, &error));
    API(swarm_session_generate(session, prompt, PROMPT, options, &text, NULL, &error));
    swarm_session_close(session);
    swarm_options_free(options);
    json_t *o = api_json(text);
    char *ids = json_dumps(json_object_get(o, "ids"), JSON_COMPACT);
    json_decref(o);
    return ids;
}

static void *run_sessions(void *out) {
    for (int i = 0; i < ROUNDS; i++) {
        char *here = generate(NULL), *there = generate(connection);
        if (strcmp(here, there)) {
            fprintf(stderr, "other tokens: %s and %s\n", here, there);
            exit(1);
        }
        free(here);
        free(*(char **)out);
        *(char **)out = there;
    }
    return NULL;
}

static void *ask(void *ctx) {
    (void)ctx;
    for (int i = 0; i < ROUNDS; i++) {
        char *text = NULL;
        int32_t *ids = NULL;
        size_t n;
        float hidden[64];
        API(swarm_connection_status(connection, &text, NULL, &error));
        swarm_free(text);
        API(swarm_model_tokenize(model, "some text", 9, 0, &ids, &n, &error));
        swarm_free(ids);
        API(swarm_model_embed(model, (int32_t[]){i}, 1, hidden, &error));
    }
    return NULL;
}

int main(void) {
    char *folder = api_folder(), *ids[SESSIONS] = {NULL};
    model = api_model(folder);
    cluster *nodes = cluster_new(&(cluster_options){.model = folder, .kv_dtype = SN_KV_DTYPE_DEFAULT});
    cluster_add(nodes, 0, 2);
    cluster_add(nodes, 2, 4);
    connection = api_connection(nodes, NULL);
    pthread_t threads[SESSIONS + 1];
    for (int i = 0; i <= SESSIONS; i++)
        if (pthread_create(&threads[i], NULL, i < SESSIONS ? run_sessions : ask, i < SESSIONS ? &ids[i] : NULL))
            abort();
    for (int i = 0; i <= SESSIONS; i++) pthread_join(threads[i], NULL);
    for (int i = 1; i < SESSIONS; i++) {
        if (!strcmp(ids[0], ids[i])) continue;
        fprintf(stderr, "other tokens: %s and %s\n", ids[0], ids[i]);
        return 1;
    }
    for (int i = 0; i < SESSIONS; i++) free(ids[i]);
    swarm_disconnect(connection);
    cluster_free(&nodes);
    swarm_model_close(model);
    api_folder_remove(&folder);
    puts("sessions of several threads: the same tokens");
    return 0;
}
