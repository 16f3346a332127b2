/* A text by a chain, with or without another model that drafts it. For tests/bench/drafts.sh, which makes the links.
 *
 * Usage: bench_drafts MODEL HOST:PORT push|client TOKENS TEMPERATURE [DRAFTER [DRAFT_TOKENS]]
 *
 * Prints: tokens a second, and those of the second half of the text, when windows are as many and as long as they will
 * be; of the whole text the share of judged draft tokens that were equal, windows, those of them that were sent ahead;
 * ms a token of this program's own work and of the slowest node's; and a hash of the tokens. */
#include "include/swarm.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PROMPT = 24 };

static swarm_error *error;
static double first_ms, half_ms, end_ms;
static long n_tokens, wanted;
static uint64_t hash = 14695981039346656037u;

static void must(swarm_code code) {
    if (code == SWARM_OK) return;
    fprintf(stderr, "bench_drafts: %s\n", swarm_error_text(error));
    exit(1);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int on_event(void *context, const swarm_event *event) {
    (void)context;
    if (swarm_event_get_kind(event) != SWARM_EVENT_TOKEN) return 0;
    hash = (hash ^ (uint64_t)swarm_event_number(event, "id")) * 1099511628211u;
    end_ms = now_ms();
    if (!n_tokens) first_ms = end_ms;
    if (++n_tokens == wanted / 2) half_ms = end_ms;
    return 0;
}

static double number(const json_t *o, const char *name) { return json_number_value(json_object_get(o, name)); }

static void report(const char *text) {
    json_t *result = json_loads(text, JSON_ALLOW_NUL, NULL);
    const json_t *t = json_object_get(result, "timings"), *hop;
    size_t i;
    double node_ms = 0;
    json_array_foreach(json_object_get(t, "hops"), i, hop) {
        const double ms = number(hop, "compute_ms") / (double)n_tokens;
        if (ms > node_ms) node_ms = ms;
    }
    const double judged = number(t, "judged");
    printf("%.2f %.2f %.3f %.0f %.0f %.3f %.3f %016llx\n", (double)(n_tokens - 1) / (end_ms - first_ms) * 1e3,
           (double)(wanted - wanted / 2) / (end_ms - half_ms) * 1e3, judged > 0 ? number(t, "accepted") / judged : 0,
           number(t, "decode_steps"), number(t, "ahead"),
           (number(t, "client_ms") + number(t, "draft_ms")) / (double)n_tokens, node_ms, (unsigned long long)hash);
    json_decref(result);
}

static void run(swarm_session *session, const char *temperature) {
    int32_t ids[PROMPT];
    char most[32], *json = NULL;
    size_t length = 0;
    swarm_options *options = swarm_options_new();
    for (int i = 0; i < PROMPT; i++) ids[i] = 2 + i * 7919 % 500;
    snprintf(most, sizeof most, "%ld", wanted);
    must(swarm_options_set(options, "temperature", temperature, &error));
    must(swarm_options_set(options, "ignore-eos", "true", &error));
    must(swarm_options_set(options, "max-tokens", most, &error));
    must(swarm_options_set(options, "seed", "1", &error));
    must(swarm_session_generate(session, ids, PROMPT, options, &json, &length, &error));
    report(json);
    swarm_free(json);
    swarm_options_free(options);
}

int main(int argc, char **argv) {
    swarm_connection *connection;
    swarm_model *model;
    swarm_session *session;
    swarm_options *joined = swarm_options_new(), *options = swarm_options_new();
    wanted = argc > 5 ? strtol(argv[4], NULL, 10) : 0;
    if (wanted < 2) return fprintf(stderr, "usage: see the source\n"), 2;
    must(swarm_options_set(joined, "join", argv[2], &error));
    must(swarm_options_set(options, "push", strcmp(argv[3], "push") ? "false" : "true", &error));
    must(swarm_options_set(options, "threads", "1", &error));
    if (argc > 6) must(swarm_options_set(options, "draft-model", argv[6], &error));
    if (argc > 7) must(swarm_options_set(options, "draft-tokens", argv[7], &error));
    must(swarm_model_open(argv[1], NULL, &model, &error));
    must(swarm_connect(joined, NULL, &connection, &error));
    must(swarm_session_open(model, connection, options, NULL, NULL, &session, &error));
    swarm_session_on_event(session, on_event, NULL);
    run(session, argv[5]);
    swarm_session_close(session);
    swarm_disconnect(connection);
    swarm_model_close(model);
    swarm_options_free(joined);
    swarm_options_free(options);
}
