/* Loss and accuracy over labelled texts. The C API has no classifiers, so a setup (client/api/setup.h) is opened. */
#include "cli/eval_classifier.h"

#include "cli/io.h"
#include "cli/progress.h"
#include "cli/setup.h"
#include "client/tune/loss.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct classifier_score {
    double loss; /* sum over the texts */
    size_t correct;
} classifier_score;

/* Runs each text from an empty timeline, as training does. */
static sn_status classify_all(sn_setup *setup, const sn_dataset *data, classifier_score *out, sn_err *err) {
    size_t width = (size_t)setup->hp->n_embd, longest = 1;
    float *rows = NULL;
    sn_loss loss = {0};
    for (size_t i = 0; i < data->n; i++)
        if (data->at[i].n > longest) longest = data->at[i].n;
    sn_status status = sn_setup_chain(setup, (int)longest, false, err);
    if (!status) status = sn_loss_open(&loss, setup->lm_head, setup->hp, setup->adapter.folder.params, 1, err);
    if (!status) status = sn_calloc(&rows, longest * width, sizeof *rows, err);
    sn_progress_bar *bar = sn_progress_bar_begin("classifying");
    for (size_t i = 0; i < data->n && !status; i++) {
        const sn_example *e = &data->at[i];
        double sum = 0;
        bool correct = false;
        status = sn_lm_head_embed(setup->lm_head, e->ids, (int)e->n, rows, err);
        if (!status) status = sn_chain_step(setup->chain, 0, (int)e->n, rows, rows, err);
        if (!status) status = sn_loss_compute(&loss, e, rows, NULL, &sum, &correct, err);
        if (!status && sn_interrupted) status = sn_fail(err, SN_RETRY, "interrupted");
        out->loss += sum;
        out->correct += correct;
        sn_progress_bar_set(bar, i + 1, data->n);
    }
    sn_progress_bar_end(&bar);
    sn_loss_close(&loss);
    free(rows);
    return status;
}

static sn_status eval_file(sn_setup *setup, const char *path, sn_err *err) {
    const sn_loaded_adapter *trained = &setup->adapter;
    sn_dataset *data = NULL;
    classifier_score score = {0};
    if (!trained->folder.params || trained->method != SN_METHOD_HEAD)
        return sn_fail(err, SN_REFUSED,
                       "--data needs a classifier: give one that swarm tune --method head made, as --adapter");
    const sn_dataset as = {.labels = trained->folder.labels,
                           .n_labels = (size_t)trained->folder.params->shape.n_labels};
    const sn_dataset_options dataset_options = {.max_tokens = setup->hp->n_ctx, .labelled = true, .labels_of = &as};
    sn_status status = sn_dataset_read(path, setup->tokenizer, &dataset_options, &data, err);
    if (!status) status = classify_all(setup, data, &score, err);
    double n = status ? 1 : (double)data->n, accuracy = (double)score.correct / n, loss = score.loss / n;
    if (!status && sn_cli_output.json)
        status = sn_print_json(
            json_pack("{sf sf sI}", "accuracy", accuracy, "loss", loss, "examples", (json_int_t)data->n), err);
    else if (!status)
        printf("accuracy %.1f %%, loss %.4f, %zu examples\n", 100 * accuracy, loss, data->n);
    sn_dataset_free(&data);
    return status;
}

sn_status sn_eval_classifier(const char *path, sn_err *err) {
    sn_setup setup = sn_cli_setup();
    sn_catch_interrupts();
    sn_status status = sn_setup_open(&setup, true, err);
    if (!status) status = eval_file(&setup, path, err);
    sn_setup_close(&setup);
    return status;
}
