/* swarm eval: negative log-likelihood, perplexity and top-1 accuracy of the model over a text.
 *
 * A text is tokenized and cut into windows of --ctx tokens that do not overlap. Each window is run from an empty
 * timeline, and the tokens of its second half are scored, each by the logits after the token before it; this is what
 * llama-perplexity does. Token ids of --ids-file are one timeline, of which every token but the first is scored. The
 * hidden states of a whole window are computed first, then the logits of SCORE_ROWS rows at a time. A session of the C
 * API computes them. */
#include "base/math.h"
#include "cli/program.h"
#include "cli/command.h"
#include "cli/eval_classifier.h"
#include "cli/io.h"
#include "cli/progress.h"
#include "cli/options.h"
#include "client/generate/logprob.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows whose logits are held at once. */
enum { SCORE_ROWS = 64, STEP_ROWS = 512, DEFAULT_WINDOW = 512, PRESSES_MAX = 2 };

static struct {
    const char *text, *file, *ids_file, *data;
    int64_t ctx;
} given = {.ctx = DEFAULT_WINDOW};

static const sn_option input_options[] = {
    SN_OPT_STRING("text", "TEXT", &given.text, "the text"),
    SN_OPT_STRING("file", "FILE", &given.file, "a file with the text; -: standard input"),
    SN_OPT_STRING("ids-file", "FILE", &given.ids_file,
                  "a file with token ids, as a JSON array: one timeline, of which every token but the first is scored"),
    SN_OPT_STRING("data", "FILE", &given.data,
                  "with a classifier as --adapter: a .jsonl file with {\"text\", \"label\"} on each line; measures the "
                  "accuracy"),
    SN_OPT_INT("ctx", "N", &given.ctx, 8, 1 << 30, "tokens in a window of the text"),
    SN_OPT_FLAG("json", &sn_cli_output.json,
                "print {\"nll\", \"perplexity\", \"top1\", \"tokens\"}, or {\"accuracy\", \"loss\", \"examples\"}"),
};
static const sn_option_group input_group = SN_OPTION_GROUP("Input:", input_options);

typedef struct score {
    double nll; /* sum of negative log-probabilities, added token by token in the text's order */
    size_t tokens, hits;
} score;

typedef struct evaluation {
    sn_cli_session swarm;
    float *hidden; /* (longest window, n_embd) */
    float *logits; /* (SCORE_ROWS, n_vocab) */
    score total;
    sn_progress_bar *bar;
} evaluation;

/* Scores the tokens ids[first + 1, end), each by the hidden state of the token before it. */
static sn_status score_rows(evaluation *e, const int32_t *ids, size_t first, size_t end, sn_err *err) {
    size_t width = (size_t)swarm_model_width(e->swarm.model), n_vocab = (size_t)swarm_model_vocab(e->swarm.model);
    swarm_error *error = NULL;
    for (size_t at = first; at + 1 < end && !sn_interrupted;) {
        size_t n = sn_min_size(SCORE_ROWS, end - 1 - at);
        sn_status status = sn_cli_status(
            swarm_model_logits(e->swarm.model, e->hidden + at * width, n, e->logits, &error), &error, err);
        for (size_t i = 0; i < n && !status; i++, at++) {
            const float *row = e->logits + i * n_vocab;
            int32_t best;
            status = sn_logits_argmax(row, n_vocab, &best, err);
            if (status) break;
            e->total.nll -= sn_logits_logprob(row, n_vocab, (double)row[best], ids[at + 1]);
            e->total.hits += best == ids[at + 1];
            e->total.tokens++;
        }
        if (status) return status;
    }
    return SN_OK;
}

/* Runs ids[0, n) from an empty timeline and scores those after `first`. */
static sn_status score_window(evaluation *e, const int32_t *ids, size_t n, size_t first, sn_err *err) {
    size_t width = (size_t)swarm_model_width(e->swarm.model);
    swarm_error *error = NULL;
    swarm_code code = swarm_model_embed(e->swarm.model, ids, n, e->hidden, &error);
    for (size_t done = 0, rows; done < n && !code; done += rows) {
        rows = sn_min_size(STEP_ROWS, n - done);
        float *at = e->hidden + done * width;
        code = swarm_session_forward(e->swarm.session, done, rows, at, at, &error);
    }
    sn_status status = sn_cli_status(code, &error, err);
    if (!status) status = score_rows(e, ids, first, n, err);
    return status ? status : sn_interrupted ? sn_fail(err, SN_RETRY, "interrupted") : SN_OK;
}

/* Scores every whole window; a last part that is shorter is left out. A begin-of-text token of the model replaces the
 * first token of each window. Every scored token has at least ctx / 2 tokens before it. */
static sn_status score_windows(evaluation *e, sn_token_ids *ids, int32_t bos, sn_err *err) {
    size_t ctx = (size_t)given.ctx, n = ids->n / ctx;
    sn_status status = SN_OK;
    for (size_t i = 0; i < n && !status; i++) {
        int32_t *window = ids->ids + i * ctx;
        if (bos >= 0) window[0] = bos;
        status = score_window(e, window, ctx, ctx / 2, err);
        sn_progress_bar_set(e->bar, i + 1, n);
    }
    return status;
}

static sn_status tokenize(const swarm_model *model, const char *text, size_t n, sn_token_ids *out, sn_err *err) {
    swarm_error *error = NULL;
    return sn_cli_status(swarm_model_tokenize(model, text, n, SWARM_TEXT_BEGINS, &out->ids, &out->n, &error), &error,
                         err);
}

/* The begin-of-text token that the tokenizer puts before a text, or -1. */
static sn_status find_bos(const swarm_model *model, int32_t *bos, sn_err *err) {
    sn_token_ids ids = {0};
    sn_status status = tokenize(model, "", 0, &ids, err);
    if (!status) *bos = ids.n ? ids.ids[0] : -1;
    sn_token_ids_fini(&ids);
    return status;
}

static sn_status read_text(const swarm_model *model, sn_token_ids *ids, int32_t *bos, sn_err *err) {
    sn_buf file = {0};
    sn_status status = find_bos(model, bos, err);
    if (!status && given.file) status = sn_read_input(given.file, SN_INPUT_MAX, &file, err);
    const char *text = given.text ? given.text : (const char *)file.data;
    size_t len = given.text ? strlen(given.text) : file.len;
    if (!status) status = tokenize(model, text, len, ids, err);
    sn_buf_fini(&file);
    if (status) return status;
    if (given.ctx > swarm_model_context(model))
        return sn_fail(err, SN_REFUSED, "--ctx %lld is more than the %d tokens that this model takes",
                       (long long)given.ctx, swarm_model_context(model));
    if (ids->n < (size_t)given.ctx)
        return sn_fail(err, SN_REFUSED,
                       "the text has %zu tokens, less than one window: give a longer text or a smaller --ctx", ids->n);
    return SN_OK;
}

static sn_status read_ids(const swarm_model *model, sn_token_ids *ids, sn_err *err) {
    sn_status status = sn_read_ids(given.ids_file, ids, err);
    if (!status && ids->n < 2)
        status =
            sn_fail(err, SN_REFUSED, "%s has %zu tokens; at least two are needed to score one", given.ids_file, ids->n);
    if (!status && ids->n > (size_t)swarm_model_context(model))
        status = sn_fail(err, SN_REFUSED, "%s has %zu tokens; this model's context holds %d", given.ids_file, ids->n,
                         swarm_model_context(model));
    for (size_t i = 0; i < ids->n && !status;
         i++) /* the last token is scored and never embedded: only this loop checks its id */
        if (ids->ids[i] >= swarm_model_vocab(model))
            status = sn_fail(err, SN_REFUSED, "%s: token %d is not in this model's vocabulary of %d", given.ids_file,
                             ids->ids[i], swarm_model_vocab(model));
    return status;
}

static sn_status print_score(const score *s, sn_err *err) {
    double nll = s->nll / (double)s->tokens, perplexity = sn_exp(nll), top1 = (double)s->hits / (double)s->tokens;
    if (sn_cli_output.json)
        return sn_print_json(json_pack("{sf sf sf sI}", "nll", nll, "perplexity", perplexity, "top1", top1, "tokens",
                                       (json_int_t)s->tokens),
                             err);
    printf("nll %.6f, perplexity %.4f, top-1 %.2f %%, %zu tokens\n", nll, perplexity, 100 * top1, s->tokens);
    return SN_OK;
}

static sn_status run_evaluation(evaluation *e, sn_token_ids *ids, int32_t bos, sn_err *err) {
    const swarm_model *model = e->swarm.model;
    size_t longest = given.ids_file ? ids->n : (size_t)given.ctx;
    /* Hidden states go through all blocks, and the session needs nothing else. */
    sn_program_settings.api.blocks = (sn_block_range){.end = swarm_model_blocks(model), .given = true};
    sn_program_settings.sampling.ctx = (int64_t)longest;
    sn_status status = sn_cli_session_open(&e->swarm, (int64_t)longest, err);
    if (!status) status = sn_calloc(&e->hidden, longest * (size_t)swarm_model_width(model), sizeof *e->hidden, err);
    if (!status) status = sn_calloc(&e->logits, SCORE_ROWS * (size_t)swarm_model_vocab(model), sizeof *e->logits, err);
    e->bar = sn_progress_bar_begin("scoring");
    sn_progress_bar_unit(e->bar, "windows");
    if (!status) status = given.ids_file ? score_window(e, ids->ids, ids->n, 0, err) : score_windows(e, ids, bos, err);
    sn_progress_bar_end(&e->bar);
    return status ? status : print_score(&e->total, err);
}

static sn_status eval_main(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    evaluation e = {0};
    sn_token_ids ids = {0};
    int32_t bos = -1;
    if (!!given.text + !!given.file + !!given.ids_file + !!given.data != 1)
        return sn_fail(err, SN_REFUSED, "give one of --text, --file and --ids-file, or --data with a classifier");
    if (given.data) return sn_eval_classifier(given.data, err);
    sn_status status = sn_cli_session_begin(&e.swarm, PRESSES_MAX, NULL, err);
    if (!status)
        status = given.ids_file ? read_ids(e.swarm.model, &ids, err) : read_text(e.swarm.model, &ids, &bos, err);
    if (!status) status = run_evaluation(&e, &ids, bos, err);
    free(e.hidden);
    free(e.logits);
    sn_token_ids_fini(&ids);
    sn_cli_session_close(&e.swarm);
    return status;
}

/* Long inputs and no user who waits for a token: throughput counts. */
static void eval_prepare(int argc, char *const *argv) {
    (void)argc, (void)argv;
    sn_program_settings.common.route = SN_ROUTE_THROUGHPUT;
}

static const sn_option_group *const groups[] = {&sn_group_chosen_model, &sn_group_adapter, &input_group,
                                                &sn_group_connection,   &sn_group_chain,   &sn_group_device,
                                                &sn_group_log};

const sn_cli_command sn_cmd_eval = {
    .command = {.program = "swarm eval",
                .summary = "measure how well the model predicts a text",
                .synopsis =
                    "[--model PATH] (--join HOST:PORT... | --local all) (--text TEXT | --file FILE | --ids-file "
                    "FILE | --data FILE) [options]",
                .about =
                    "Measures the mean negative log-likelihood per token (nll, natural logarithm), the perplexity "
                    "exp(nll), and the share of tokens that the model considered the most likely (top-1).\n"
                    "The tokens of a text are cut into windows of --ctx tokens that do not overlap, each run from "
                    "an empty timeline. The second half of each window is scored, as llama-perplexity does. A last "
                    "window that is shorter is left out.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .prepare = eval_prepare,
    .run = eval_main,
};
