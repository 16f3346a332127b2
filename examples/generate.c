/* Continues a text, over the nodes of a swarm or in this process, and prints it as it comes. Ctrl-C ends it.
 *
 *     cc generate.c -o generate $(pkg-config --cflags --libs swarm)
 *     ./generate MODEL.gguf "Once upon a time"                    computes all blocks here
 *     ./generate MODEL.gguf "Once upon a time" 192.0.2.1:31330    asks the nodes that this one knows */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <swarm.h>

static swarm_cancel *cancel; /* a signal handler has no parameter for it */

/* swarm_cancel_set is the one function of the library that a signal handler may call. */
static void on_interrupt(int number) {
    (void)number;
    swarm_cancel_set(cancel);
}

/* Text comes in pieces that are final and whole UTF-8. SWARM_EVENT_RETRACT does not come without the option "audit". */
static int on_event(void *context, const swarm_event *event) {
    (void)context;
    if (swarm_event_get_kind(event) == SWARM_EVENT_TEXT) {
        size_t length;
        const char *text = swarm_event_text(event, &length);
        fwrite(text, 1, length, stdout);
        fflush(stdout);
    }
    return 0; /* go on */
}

/* Returns whether a call succeeded; else prints its error and frees it. */
static int succeeded(swarm_code code, swarm_error **error) {
    if (code == SWARM_OK) return 1;
    fprintf(stderr, "generate: %s\n", swarm_error_text(*error));
    swarm_error_free(*error);
    *error = NULL;
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: generate MODEL TEXT [HOST:PORT]\n");
        return 2;
    }
    const char *path = argv[1], *text = argv[2], *node = argc > 3 ? argv[3] : NULL;
    swarm_options *connecting = swarm_options_new(), *generation = swarm_options_new();
    swarm_connection *connection = NULL; /* stays NULL without a node: then this process computes all blocks */
    swarm_model *model = NULL;
    swarm_session *session = NULL;
    swarm_error *error = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    cancel = swarm_cancel_new();
    int ok = connecting && generation && cancel;
    if (ok) signal(SIGINT, on_interrupt);

    if (ok && node)
        ok = succeeded(swarm_options_set(connecting, "join", node, &error), &error) &&
             succeeded(swarm_connect(connecting, cancel, &connection, &error), &error);
    ok = ok && succeeded(swarm_model_open(path, NULL, &model, &error), &error) &&
         succeeded(swarm_model_tokenize(model, text, strlen(text), SWARM_TEXT_BEGINS, &ids, &n, &error), &error) &&
         succeeded(swarm_session_open(model, connection, NULL, NULL, cancel, &session, &error), &error) &&
         succeeded(swarm_options_set(generation, "temperature", "0", &error), &error) &&
         succeeded(swarm_options_set(generation, "max-tokens", "64", &error), &error);
    if (ok) {
        swarm_session_on_event(session, on_event, NULL);
        ok = succeeded(swarm_session_generate(session, ids, n, generation, NULL, NULL, &error), &error);
        printf("\n");
    }

    swarm_session_close(session); /* what was made last is closed first; all of these accept NULL */
    swarm_model_close(model);
    swarm_disconnect(connection);
    swarm_cancel_free(cancel);
    swarm_options_free(connecting);
    swarm_options_free(generation);
    swarm_free(ids);
    return ok ? 0 : 1;
}
