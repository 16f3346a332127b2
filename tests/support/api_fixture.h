/* What tests of the C API need: a folder with a tiny model, a tokenizer and a chat template, and connections to the
 * nodes of a cluster. Every failure here aborts the test. */
#ifndef SN_TESTS_API_FIXTURE_H
#define SN_TESTS_API_FIXTURE_H

#include "include/swarm.h"
#include "tests/support/byzantine_node.h"
#include "tests/support/cluster.h"

#include <jansson.h>

/* A new folder: Llama of 4 blocks, 64 floats, 320 tokens and a context of 256, with a tokenizer and a chat template. */
char *api_folder(void);
void api_folder_remove(char **folder);

/* Options from keys and values, up to a NULL key. */
swarm_options *api_options(const char *key, ...);
/* The model of a folder, opened with one thread. */
swarm_model *api_model(const char *folder);
/* A connection over the cluster's transport. */
swarm_connection *api_connection(cluster *c, swarm_cancel *cancel);
/* The connection is as swarm_connect leaves it. */
void api_connection_is_new(swarm_connection *connection);
size_t api_links_opened(void); /* by connections, after their first */

/* The model of such a folder, two nodes that serve a half of its blocks each, and a connection to them. */
typedef struct api_swarm {
    char *folder;
    swarm_model *model;
    cluster *nodes;
    swarm_connection *connection;
} api_swarm;
api_swarm api_swarm_begin(cluster_options nodes, swarm_cancel *cancel); /* nodes.model is ignored */
/* The same with nodes of the KV type that the options give; sessions name it, too. */
api_swarm api_swarm_begin_with_kv(cluster_options nodes, swarm_cancel *cancel);
void api_swarm_end(api_swarm *s);
/* A byzantine node takes the place of the one with blocks 2:4; freed before the swarm ends. One in a process. */
byzantine_node *api_swarm_begin_lies(api_swarm *s, byzantine_faults faults);

/* Ends the test with the error's text if the call failed. */
#define API(call)                                                                                                      \
    do {                                                                                                               \
        swarm_error *error = NULL;                                                                                     \
        if ((call) != SWARM_OK) api_fail(__FILE__, __LINE__, error);                                                   \
    } while (0)
_Noreturn void api_fail(const char *file, int line, const swarm_error *error);
/* Checks that the call failed with this code, and a sentence in which `word` occurs. */
#define API_FAILS(call, code, word)                                                                                    \
    do {                                                                                                               \
        swarm_error *error = NULL;                                                                                     \
        swarm_code code_ = (call);                                                                                     \
        cr_assert_eq(code_, (code), "code %d: %s", (int)code_, swarm_error_text(error));                               \
        cr_assert_eq(swarm_error_code(error), (code));                                                                 \
        cr_assert(strstr(swarm_error_text(error), (word)), "%s", swarm_error_text(error));                             \
        swarm_error_free(error);                                                                                       \
    } while (0)

/* Parses a JSON text of the API and frees it. */
json_t *api_json(char *text);

#endif
