/* A classifier that was trained, over texts whose labels are known. */
#include "client/cmd.h"
#include "client/tune/loss.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct tally {
    double loss;
    size_t right;
} tally;

/* Each text from an empty timeline, as in training. */
static sn_status judge_all(sn_setup *setup, const sn_dataset *data, tally *out, sn_err *err) {
    size_t width = (size_t)setup->hp->n_embd, longest = 1;
    float *rows = NULL;
    sn_loss loss = {0};
    for (size_t i = 0; i < data->n; i++)
        if (data->at[i].n > longest) longest = data->at[i].n;
    sn_status status = sn_setup_chain(setup, (int)longest, false, err);
    if (!status) status = sn_loss_open(&loss, setup->head, setup->hp, setup->trained.adapter.params, 1, err);
    if (!status) status = sn_calloc(&rows, longest * width, sizeof *rows, err);
    sn_progress_shown *shown = sn_progress_begin("choosing labels");
    for (size_t i = 0; i < data->n && !status; i++) {
        const sn_example *e = &data->at[i];
        double sum = 0;
        bool right = false;
        status = sn_head_embed(setup->head, e->ids, (int)e->n, rows, err);
        if (!status) status = sn_chain_step(setup->chain, 0, (int)e->n, rows, rows, err);
        if (!status) status = sn_loss_of(&loss, e, rows, NULL, &sum, &right, err);
        if (!status && sn_interrupted) status = sn_fail(err, SN_RETRY, "interrupted");
        out->loss += sum;
        out->right += right;
        sn_progress_set(shown, i + 1, data->n);
    }
    sn_progress_end(&shown);
    sn_loss_close(&loss);
    free(rows);
    return status;
}

sn_status sn_eval_labels(sn_setup *setup, const char *path, sn_err *err) {
    const sn_trained *trained = &setup->trained;
    sn_dataset *data = NULL;
    tally t = {0};
    if (!trained->adapter.params || trained->method != SN_METHOD_HEAD)
        return sn_fail(err, SN_REFUSED, "--data goes with a classifier: give one that swarm tune --method head made, as --adapter");
    const sn_dataset as = {.labels = trained->adapter.labels, .n_labels = (size_t)trained->adapter.params->shape.n_labels};
    const sn_dataset_wish wish = {.longest = setup->hp->n_ctx, .labelled = true, .as = &as};
    sn_status status = sn_dataset_read(path, setup->tokenizer, &wish, &data, err);
    if (!status) status = judge_all(setup, data, &t, err);
    double n = status ? 1 : (double)data->n, right = (double)t.right / n, loss = t.loss / n;
    if (!status && sn_given.json)
        status = sn_print_json(json_pack("{sf sf sI}", "right", right, "loss", loss, "examples", (json_int_t)data->n), err);
    else if (!status)
        printf("%.1f %% right, loss %.4f, %zu examples\n", 100 * right, loss, data->n);
    sn_dataset_free(&data);
    return status;
}
