/* Training with the C API: the bits of `swarm tune`, over nodes and when it is resumed. */
#include "tests/support/api_fixture.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 5 };
static const char *const choices[] = {"rank",  "2", "targets", "q,down", "seq",   "24",
                                      "batch", "2", "seed",    "7",      "steps", "5"};
enum { N_CHOICES = sizeof choices / sizeof *choices };

static char *folder, *results, *data;
static swarm_model *model;

static void set_up(void) {
    static const char lines[] =
        "{\"prompt\": \"the one session\", \"completion\": \" goes to the node\"}\n" /* words of low ids */
        "{\"text\": \"the node is one of a session\"}\n"
        "{\"prompt\": \"to the one\", \"completion\": \" and on\"}\n";
    folder = api_folder();
    results = temp_folder();
    write_file(results, "data.jsonl", lines, strlen(lines));
    data = temp_path(results, "data.jsonl");
    model = api_model(folder);
}

static void tear_down(void) {
    swarm_model_close(model);
    remove_tree(results);
    free(results);
    free(data);
    api_folder_remove(&folder);
}

TestSuite(api_training, .init = set_up, .fini = tear_down);

/* A training with the choices above, and one more option. */
static swarm_training *open_training(swarm_connection *over, const char *key, const char *value) {
    swarm_training *training = NULL;
    swarm_options *options = api_options("data", data, "eval-data", data, key, value, NULL);
    for (int i = 0; i < N_CHOICES; i += 2) API(swarm_options_set(options, choices[i], choices[i + 1], &error));
    API(swarm_training_open(model, over, options, NULL, &training, &error));
    swarm_options_free(options);
    return training;
}

/* Takes n steps; the last one is done when `last` says so. */
static void take(swarm_training *training, int n, double *losses, int last) {
    for (int i = 0; i < n; i++) {
        int done = -1;
        API(swarm_training_step(training, &losses[i], &done, &error));
        cr_assert_eq(done, last && i + 1 == n);
    }
}

static char *read_result(const char *name, const char *file) {
    static char path[4096];
    char *text = calloc(1, 1 << 20);
    snprintf(path, sizeof path, "%s/%s/%s", results, name, file);
    FILE *f = fopen(path, "rb");
    cr_assert(f, "there is no %s", path);
    size_t n = fread(text + 8, 1, (1 << 20) - 9, f);
    memcpy(text, &n, sizeof n); /* with its length, as contents may hold zeros */
    fclose(f);
    return text;
}

static void expect_same_file(const char *a, const char *b, const char *file) {
    char *of_a = read_result(a, file), *of_b = read_result(b, file);
    size_t n;
    memcpy(&n, of_a, sizeof n);
    cr_expect(!memcmp(of_a, of_b, n + 8), "%s of %s and %s differ", file, a, b);
    free(of_a);
    free(of_b);
}

static void in_results(char out[4096], const char *name) { snprintf(out, 4096, "%s/%s", results, name); }

Test(api_training, takes_the_steps_of_swarm_tune_bit_by_bit) {
    char out[4096], option[N_CHOICES / 2][32];
    const char *argv[40] = {SN_SWARM, "tune", "--model", folder, "--local", "all", "--data", data, "--out", out};
    double losses[STEPS], loss;
    int n = 10;
    in_results(out, "program");
    for (int i = 0; i < N_CHOICES; i += 2) {
        snprintf(option[i / 2], sizeof option[0], "--%s", choices[i]);
        argv[n++] = option[i / 2];
        argv[n++] = choices[i + 1];
    }
    program p = program_run(argv, NULL);
    cr_assert_eq(p.code, 0, "%s", p.err);
    program_fini(&p);
    swarm_training *training = open_training(NULL, NULL, NULL);
    take(training, STEPS, losses, 1);
    API_FAILS(swarm_training_step(training, &loss, NULL, &error), SWARM_REFUSED, "has taken its 5 steps");
    in_results(out, "here");
    API(swarm_training_checkpoint(training, out, &error));
    API(swarm_training_save(training, out, &error));
    swarm_training_close(training);
    static const char *const files[] = {"adapter_model.safetensors", "adapter_config.json", "swarm.json", "loss.csv",
                                        "step-5/state.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) expect_same_file("program", "here", files[i]);
    char *curve = read_result("program", "loss.csv"), line[64];
    for (int i = 0; i < STEPS; i++) {
        snprintf(line, sizeof line, "\n%d,%.9g\n", i + 1, losses[i]);
        cr_expect(strstr(curve + 8, line), "the loss %.9g of step %d is another one", losses[i], i + 1);
    }
    free(curve);
}

Test(api_training, over_nodes_and_resumed_it_has_the_same_bits) {
    double whole[STEPS], parts[STEPS], before, after;
    char out[4096];
    cluster *nodes = cluster_new(&(cluster_options){.model = folder, .tune_memory = 64 << 20});
    cluster_add(nodes, 0, 1);
    cluster_add(nodes, 1, 4);
    swarm_connection *connection = api_connection(nodes, NULL);
    swarm_training *training = open_training(NULL, NULL, NULL);
    API(swarm_training_evaluate(training, &before, &error));
    take(training, STEPS, whole, 1);
    API(swarm_training_evaluate(training, &after, &error));
    cr_expect_lt(after, before);
    in_results(out, "whole");
    API(swarm_training_save(training, out, &error));
    swarm_training_close(training);
    in_results(out, "parts");
    training = open_training(connection, NULL, NULL);
    take(training, 2, parts, 0);
    API(swarm_training_checkpoint(training, out, &error));
    swarm_training_close(training);
    training = open_training(connection, "resume", out);
    take(training, STEPS - 2, parts + 2, 1);
    API(swarm_training_save(training, out, &error));
    swarm_training_close(training);
    cr_expect(!memcmp(whole, parts, sizeof whole), "the losses differ");
    expect_same_file("whole", "parts", "adapter_model.safetensors");
    swarm_disconnect(connection);
    cluster_free(&nodes);
}

Test(api_training, a_cancelled_step_changes_nothing) {
    double want[2], got[2];
    swarm_cancel *cancel = swarm_cancel_new();
    swarm_training *training = open_training(NULL, NULL, NULL);
    take(training, 2, want, 0);
    swarm_training_close(training);
    swarm_options *options = api_options("data", data, NULL);
    for (int i = 0; i < N_CHOICES; i += 2) API(swarm_options_set(options, choices[i], choices[i + 1], &error));
    API(swarm_training_open(model, NULL, options, cancel, &training, &error));
    swarm_options_free(options);
    take(training, 1, got, 0);
    swarm_cancel_set(cancel);
    API_FAILS(swarm_training_step(training, &got[1], NULL, &error), SWARM_CANCELLED, "cancelled");
    swarm_cancel_clear(cancel);
    take(training, 1, got + 1, 0);
    cr_expect(!memcmp(want, got, sizeof want));
    swarm_training_close(training);
    swarm_cancel_free(cancel);
}

Test(api_training, what_cannot_be_is_refused) {
    swarm_training *training = NULL;
    double loss;
    char out[4096];
    swarm_options *options = api_options("rank", "2", NULL);
    API_FAILS(swarm_training_open(model, NULL, options, NULL, &training, &error), SWARM_REFUSED, "give data");
    API(swarm_options_set(options, "data", data, &error));
    API(swarm_options_set(options, "seq", "24", &error));
    API(swarm_options_set(options, "steps", "2", &error));
    API(swarm_training_open(model, NULL, options, NULL, &training, &error));
    API_FAILS(swarm_training_evaluate(training, &loss, &error), SWARM_REFUSED, "eval-data");
    API_FAILS(swarm_training_save(training, "/nowhere/at/all", &error), SWARM_REFUSED, "/nowhere/at/all");
    API(swarm_training_step(training, &loss, NULL, &error));
    in_results(out, "some");
    API(swarm_training_checkpoint(training, out, &error));
    swarm_training_close(training);
    API(swarm_options_set(options, "rank", "4", &error));
    API(swarm_options_set(options, "resume", out, &error));
    API_FAILS(swarm_training_open(model, NULL, options, NULL, &training, &error), SWARM_REFUSED, "rank conflicts");
    swarm_options_free(options);
}
