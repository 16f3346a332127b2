/* What a model has in mind at several depths ("logit lens"): hidden states of the text's last token leave the blocks at
 * a quarter, a half, three quarters and the end of their depth, and the LM head says which tokens each would predict.
 *
 *     cc probe.c -o probe $(pkg-config --cflags --libs swarm)
 *     ./probe MODEL.gguf "The capital of France is" [HOST:PORT] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <swarm.h>

enum { DEPTHS = 4, BEST = 5 };
static swarm_error *error;

static void must(swarm_code code) {
    if (code == SWARM_OK) return;
    fprintf(stderr, "probe: %s\n", swarm_error_text(error));
    exit(1);
}

/* Hidden states (n, width) through the blocks [first, end), in place. The swarm does not need to know what comes before
 * or after these blocks: a session over a range of blocks is a function of hidden states. */
static void run_blocks(const swarm_model *model, swarm_connection *connection, int first, int end, float *hidden,
                       size_t n) {
    swarm_options *options = swarm_options_new();
    swarm_session *session;
    char range[32];
    snprintf(range, sizeof range, "%d:%d", first, end);
    must(swarm_options_set(options, "blocks", range, &error));
    must(swarm_session_open(model, connection, options, NULL, NULL, &session, &error));
    must(swarm_session_forward(session, 0, n, hidden, hidden, &error));
    swarm_session_close(session);
    swarm_options_free(options);
}

/* Prints the most likely tokens, best first. */
static void print_best(const swarm_model *model, int blocks, float *logits) {
    size_t vocab = (size_t)swarm_model_vocab(model);
    printf("after block %3d:", blocks);
    for (int k = 0; k < BEST; k++) {
        int32_t best = 0;
        char *text;
        size_t length;
        for (size_t id = 1; id < vocab; id++)
            if (logits[id] > logits[best]) best = (int32_t)id;
        must(swarm_model_detokenize(model, &best, 1, SWARM_TEXT_SPECIAL, &text, &length, &error));
        for (size_t i = 0; i < length; i++)
            if ((unsigned char)text[i] < ' ') text[i] = '~'; /* a line break */
        printf(" \"%s\"", text);
        swarm_free(text);
        logits[best] = -1e30f; /* the next best one comes next */
    }
    printf("\n");
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: probe MODEL TEXT [HOST:PORT]\n"), 2;
    swarm_connection *connection = NULL;
    swarm_model *model;
    int32_t *ids;
    size_t n;
    if (argc > 3) {
        swarm_options *options = swarm_options_new();
        must(swarm_options_set(options, "join", argv[3], &error));
        must(swarm_connect(options, NULL, &connection, &error));
        swarm_options_free(options);
    }
    must(swarm_model_open(argv[1], NULL, &model, &error));
    must(swarm_model_tokenize(model, argv[2], strlen(argv[2]), SWARM_TEXT_BEGINS, &ids, &n, &error));

    size_t width = (size_t)swarm_model_width(model);
    float *hidden = malloc(n * width * sizeof *hidden),
          *logits = malloc((size_t)swarm_model_vocab(model) * sizeof *logits);
    if (!hidden || !logits) return 1;
    must(swarm_model_embed(model, ids, n, hidden, &error));
    int blocks = swarm_model_blocks(model);
    for (int depth = 0, first = 0; depth < DEPTHS; depth++) {
        int end = blocks * (depth + 1) / DEPTHS;
        if (end == first) continue; /* a model of fewer blocks than depths */
        run_blocks(model, connection, first, end, hidden, n);
        must(swarm_model_logits(model, hidden + (n - 1) * width, 1, logits, &error));
        print_best(model, end, logits);
        first = end;
    }

    free(hidden);
    free(logits);
    swarm_free(ids);
    swarm_model_close(model);
    swarm_disconnect(connection);
    return 0;
}
