/* A conversation: reads a line, prints the model's answer, and so on until the input ends.
 *
 *     cc chat.c -o chat $(pkg-config --cflags --libs swarm)
 *     ./chat MODEL.gguf [HOST:PORT]
 *
 * Each turn renders the whole conversation. The session knows what it has computed, so it computes the new turn only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <swarm.h>

static swarm_error *error;

static void must(swarm_code code) {
    if (code == SWARM_OK) return;
    fprintf(stderr, "chat: %s\n", swarm_error_text(error));
    exit(1);
}

/* The tokens of the present answer: swarm_model_read_answer makes a message of them. */
static int32_t answer[4096];
static size_t n_answer;

static int on_event(void *context, const swarm_event *event) {
    (void)context;
    size_t length;
    const char *text = swarm_event_text(event, &length);
    swarm_event_kind kind = swarm_event_get_kind(event);
    if (kind == SWARM_EVENT_TOKEN && n_answer < sizeof answer / sizeof *answer)
        answer[n_answer++] = (int32_t)swarm_event_number(event, "id");
    if (kind == SWARM_EVENT_TEXT) fwrite(text, 1, length, stdout), fflush(stdout);
    if (kind == SWARM_EVENT_FAILOVER)
        fprintf(stderr, "[%s]\n", text); /* says why the answer paused; it is not affected */
    return 0;
}

static void print_json_string(FILE *to, const char *text) {
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\' || (unsigned char)*text < ' ')
            fprintf(to, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, to);
    }
    fputc('"', to);
}

int main(int argc, char **argv) {
    swarm_options *options = swarm_options_new();
    swarm_connection *connection = NULL; /* without a node, this process computes all blocks */
    swarm_model *model;
    swarm_session *session;
    char line[4096], *request;
    size_t n_request;
    FILE *messages = open_memstream(&request, &n_request); /* {"messages":[{...},{...} */
    if (argc < 2 || !options || !messages) return fprintf(stderr, "usage: chat MODEL [HOST:PORT]\n"), 2;
    if (argc > 2) {
        must(swarm_options_set(options, "join", argv[2], &error));
        must(swarm_connect(options, NULL, &connection, &error));
    }
    swarm_options_free(options);
    must(swarm_model_open(argv[1], NULL, &model, &error));
    must(swarm_session_open(model, connection, NULL, NULL, NULL, &session, &error));
    swarm_session_on_event(session, on_event, NULL);
    options = swarm_options_new();
    must(swarm_options_set(options, "temperature", "0", &error));
    must(swarm_options_set(options, "max-tokens", "200", &error));

    for (int turn = 0; fgets(line, sizeof line, stdin); turn++) {
        int32_t *prompt;
        size_t n_prompt, n_message;
        char *message;
        line[strcspn(line, "\n")] = 0;
        fprintf(messages, "%s{\"role\":\"user\",\"content\":", turn ? "," : "{\"messages\":[");
        print_json_string(messages, line);
        fprintf(messages, "}]}");
        fflush(messages); /* request and n_request are now what was printed */
        must(swarm_model_render_chat(model, request, n_request, NULL, NULL, &prompt, &n_prompt, &error));
        fseek(messages, -2, SEEK_CUR); /* the closing brackets */

        n_answer = 0;
        must(swarm_session_generate(session, prompt, n_prompt, options, NULL, NULL, &error));
        printf("\n");

        must(
            swarm_model_read_answer(model, NULL, 0, SWARM_ANSWER_ENDS, answer, n_answer, &message, &n_message, &error));
        fprintf(messages, ",%s", message); /* {"role":"assistant",...} */
        swarm_free(message);
        swarm_free(prompt);
    }
    fclose(messages);
    free(request);
    swarm_session_close(session);
    swarm_model_close(model);
    swarm_disconnect(connection);
    swarm_options_free(options);
    return 0;
}
