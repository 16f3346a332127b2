/* What a client waits for over slow links: the first token of a new client, a token, a turn of a talk, a long prompt,
 * and a node whose cable is pulled. For tests/bench/links.sh, which makes the links; the texts are noise.
 *
 * Usage: bench_links MODEL HOST:PORT push|client PROMPT_TOKENS        cold_ms decode_ms turn_ms prompt_tok_s hash
 *        bench_links MODEL HOST:PORT push|client 0 FILE               longest_ms hash; makes FILE after 20 of 60 tokens
 *
 * decode_ms is the median. The turn has 100 tokens and comes after a pause of four seconds. hash is of all tokens. */
#include "include/swarm.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TOKENS_MAX = 64, SPOKEN = 24, TURN = 100, READING_S = 4, LONG = 60, PULLED_AFTER = 20, IDS_MAX = 8192 };

static swarm_error *error;
static double token_ms[TOKENS_MAX];
static int n_tokens;
static const char *pulled; /* the file that says that the cable may be pulled now */
static uint64_t hash = 14695981039346656037u;

static void must(swarm_code code) {
    if (code == SWARM_OK) return;
    fprintf(stderr, "bench_links: %s\n", swarm_error_text(error));
    exit(1);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int on_event(void *context, const swarm_event *event) {
    (void)context;
    if (swarm_event_get_kind(event) != SWARM_EVENT_TOKEN || n_tokens == TOKENS_MAX) return 0;
    hash = (hash ^ (uint64_t)swarm_event_number(event, "id")) * 1099511628211u;
    token_ms[n_tokens++] = now_ms();
    FILE *made = pulled && n_tokens == PULLED_AFTER ? fopen(pulled, "w") : NULL;
    if (made) fclose(made);
    return 0;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The waits between tokens, ascending; returns how many. */
static int waits(double out[TOKENS_MAX]) {
    for (int i = 1; i < n_tokens; i++) out[i - 1] = token_ms[i] - token_ms[i - 1];
    qsort(out, (size_t)(n_tokens - 1), sizeof *out, by_size);
    return n_tokens - 1;
}

static void generate(swarm_session *session, const int32_t *ids, size_t n, const char *most) {
    swarm_options *options = swarm_options_new();
    must(swarm_options_set(options, "temperature", "0", &error));
    must(swarm_options_set(options, "ignore-eos", "true", &error));
    must(swarm_options_set(options, "max-tokens", most, &error));
    n_tokens = 0;
    must(swarm_session_generate(session, ids, n, options, NULL, NULL, &error));
    swarm_options_free(options);
}

/* The timeline and then n further tokens. */
static size_t with_more(const swarm_session *session, int32_t *out, size_t n) {
    size_t before = 0;
    const int32_t *ids = session ? swarm_session_tokens(session, &before) : NULL;
    if (before) memcpy(out, ids, before * sizeof *out);
    for (size_t i = 0; i < n; i++) out[before + i] = (int32_t)(2 + (i * 7919 + n) % 500);
    return before + n;
}

static void measure(swarm_session *session, double began_ms, size_t prompt) {
    static int32_t ids[IDS_MAX];
    double sorted[TOKENS_MAX];
    generate(session, ids, with_more(NULL, ids, 8), "24");
    const double cold_ms = token_ms[0] - began_ms, decode_ms = sorted[waits(sorted) / 2];
    sleep(READING_S);
    double asked_ms = now_ms();
    generate(session, ids, with_more(session, ids, TURN), "4");
    const double turn_ms = token_ms[0] - asked_ms;
    sleep(READING_S);
    asked_ms = now_ms();
    generate(session, ids, with_more(NULL, ids, prompt), "2");
    printf("%.0f %.1f %.0f %.0f %016llx\n", cold_ms, decode_ms, turn_ms,
           (double)prompt / (token_ms[0] - asked_ms) * 1e3, (unsigned long long)hash);
}

static void wait_for_loss(swarm_session *session) {
    int32_t ids[8];
    double sorted[TOKENS_MAX];
    generate(session, ids, with_more(NULL, ids, 8), "60");
    const int n = waits(sorted);
    printf("%.0f %016llx\n", sorted[n - 1], (unsigned long long)hash);
}

int main(int argc, char **argv) {
    swarm_connection *connection;
    swarm_model *model;
    swarm_session *session;
    swarm_options *joined = swarm_options_new(), *options = swarm_options_new();
    char *end = NULL;
    const long prompt = argc > 4 ? strtol(argv[4], &end, 10) : -1;
    if (!end || *end || prompt < 0 || prompt > IDS_MAX / 2 || (!prompt && argc != 6))
        return fprintf(stderr, "usage: see the source\n"), 2;
    if (!prompt) pulled = argv[5];
    must(swarm_options_set(joined, "join", argv[2], &error));
    must(swarm_options_set(options, "push", strcmp(argv[3], "push") ? "false" : "true", &error));
    must(swarm_model_open(argv[1], NULL, &model, &error));
    const double began_ms = now_ms();
    must(swarm_connect(joined, NULL, &connection, &error));
    must(swarm_session_open(model, connection, options, NULL, NULL, &session, &error));
    swarm_session_on_event(session, on_event, NULL);
    if (prompt)
        measure(session, began_ms, (size_t)prompt);
    else
        wait_for_loss(session);
    swarm_session_close(session);
    swarm_disconnect(connection);
    swarm_model_close(model);
    swarm_options_free(joined);
    swarm_options_free(options);
}
