/* swarm eval: how well the model predicts a text. */
#include "client/cmd.h"
#include "client/logprob.h"

#include "base/math.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows whose logits are held at once. */
enum { SCORE_ROWS = 64, WINDOW = 512 };

static struct {
    const char *text, *ids_file, *data;
    int64_t ctx;
} given = {.ctx = WINDOW};

static const sn_option input_options[] = {
    SN_OPT_STRING(
        "text", "FILE", &given.text,
        "a text: cut into windows of --ctx tokens, the second half of each is scored, as llama-perplexity does"),
    SN_OPT_STRING("ids-file", "FILE", &given.ids_file,
                  "a JSON array of token ids: one timeline, every token after the first is scored"),
    SN_OPT_STRING("data", "FILE", &given.data,
                  "with a classifier as --adapter: a .jsonl with {\"text\", \"label\"} on each line; how often it is right"),
    SN_OPT_INT("ctx", "N", &given.ctx, 8, 1 << 30, "tokens of a window of --text"),
    SN_OPT_FLAG("json", &sn_given.json, "print {\"nll\", \"perplexity\", \"top1\", \"tokens\"}, or {\"right\", \"loss\", \"examples\"}"),
};

typedef struct score {
    double nll; /* sum of negative log-probabilities, added token by token in the text's order */
    size_t tokens, hits;
} score;

typedef struct evaluation {
    sn_setup *setup;
    float *hidden; /* (longest window, n_embd) */
    float *logits; /* (SCORE_ROWS, n_vocab) */
    score total;
    sn_progress_shown *shown;
} evaluation;

/* Scores the tokens ids[first + 1, end) by the hidden states of those before each. */
static sn_status score_rows(evaluation *e, const int32_t *ids, size_t first, size_t end, sn_err *err) {
    size_t n_embd = (size_t)e->setup->hp->n_embd, n_vocab = (size_t)e->setup->hp->n_vocab;
    for (size_t at = first; at + 1 < end && !sn_interrupted;) {
        size_t n = sn_min_size(SCORE_ROWS, end - 1 - at);
        sn_status status = sn_head_logits(e->setup->head, e->hidden + at * n_embd, (int)n, e->logits, err);
        for (size_t i = 0; i < n && !status; i++, at++) {
            const float *row = e->logits + i * n_vocab;
            int32_t best;
            status = sn_row_best(row, n_vocab, &best, err);
            if (status) break;
            e->total.nll -= sn_row_logprob(row, n_vocab, (double)row[best], ids[at + 1]);
            e->total.hits += best == ids[at + 1];
            e->total.tokens++;
        }
        if (status) return status;
    }
    return SN_OK;
}

/* Runs ids[0, n) from an empty timeline and scores those behind `first`. */
static sn_status score_window(evaluation *e, const int32_t *ids, size_t n, size_t first, sn_err *err) {
    sn_status status = sn_head_embed(e->setup->head, ids, (int)n, e->hidden, err);
    for (size_t done = 0, rows; done < n && !status && !sn_interrupted; done += rows) {
        rows = sn_min_size(SN_SPAN_ROWS_MAX, n - done);
        float *at = e->hidden + done * (size_t)e->setup->hp->n_embd;
        status = sn_chain_step(e->setup->chain, (int)done, (int)rows, at, at, err);
    }
    if (!status) status = score_rows(e, ids, first, n, err);
    return status ? status : sn_interrupted ? sn_fail(err, SN_RETRY, "interrupted") : SN_OK;
}

/* Every whole window by itself. Where the model begins texts with a token of its own, that takes the place of each
 * window's first. What the second half's tokens are scored by are at least ctx / 2 tokens before them. */
static sn_status score_windows(evaluation *e, sn_ids *ids, int32_t bos, sn_err *err) {
    size_t ctx = (size_t)given.ctx, n = ids->n / ctx;
    sn_status status = SN_OK;
    for (size_t i = 0; i < n && !status; i++) {
        int32_t *window = ids->ids + i * ctx;
        if (bos >= 0) window[0] = bos;
        status = score_window(e, window, ctx, ctx / 2, err);
        sn_progress_set(e->shown, i + 1, n);
    }
    return status;
}

/* The token that the model's tokenizer puts before a text, or -1. */
static sn_status find_bos(const sn_tokenizer *tokenizer, int32_t *bos, sn_err *err) {
    sn_ids ids;
    sn_status status = sn_tokenizer_encode(tokenizer, "", 0, true, false, &ids, err);
    if (status) return status;
    *bos = ids.n ? ids.ids[0] : -1;
    sn_ids_fini(&ids);
    return SN_OK;
}

static sn_status read_text(const sn_setup *setup, sn_ids *ids, int32_t *bos, sn_err *err) {
    sn_buf text = {0};
    sn_status status = find_bos(setup->tokenizer, bos, err);
    if (!status) status = sn_read_input(given.text, SN_TEXT_MAX, &text, err);
    if (!status)
        status = sn_tokenizer_encode(setup->tokenizer, (const char *)text.data, text.len, true, false, ids, err);
    sn_buf_fini(&text);
    if (status) return status;
    int most;
    status = sn_setup_context(setup, given.ctx, given.ctx, &most, err);
    if (status) return status;
    if (ids->n < (size_t)given.ctx)
        return sn_fail(err, SN_REFUSED,
                       "%s has %zu tokens, less than one window: take a longer text or a smaller --ctx", given.text,
                       ids->n);
    return SN_OK;
}

static sn_status read_ids(const sn_setup *setup, sn_ids *ids, sn_err *err) {
    int most = setup->hp->n_ctx - sn_trained_for_chain(&setup->trained).n_prompt;
    sn_status status = sn_read_ids(given.ids_file, ids, err);
    if (!status && ids->n < 2)
        status =
            sn_fail(err, SN_REFUSED, "%s has %zu tokens; at least two are needed to score one", given.ids_file, ids->n);
    if (!status && (most < 0 || ids->n > (size_t)most))
        status = sn_fail(err, SN_REFUSED, "%s has %zu tokens; this model's context holds %d", given.ids_file, ids->n,
                         most);
    for (size_t i = 0; i < ids->n && !status; i++) /* the last one is only scored: nothing else would look at it */
        if (ids->ids[i] >= setup->hp->n_vocab)
            status = sn_fail(err, SN_REFUSED, "%s: token %d is not in this model's vocabulary of %d", given.ids_file,
                             ids->ids[i], setup->hp->n_vocab);
    return status;
}

static sn_status show(const score *s, sn_err *err) {
    double nll = s->nll / (double)s->tokens, perplexity = sn_exp(nll), top1 = (double)s->hits / (double)s->tokens;
    if (sn_given.json)
        return sn_print_json(json_pack("{sf sf sf sI}", "nll", nll, "perplexity", perplexity, "top1", top1, "tokens",
                                       (json_int_t)s->tokens),
                             err);
    printf("nll %.6f, perplexity %.4f, top-1 %.2f %%, %zu tokens\n", nll, perplexity, 100 * top1, s->tokens);
    return SN_OK;
}

static sn_status evaluate(sn_setup *setup, sn_ids *ids, int32_t bos, sn_err *err) {
    evaluation e = {.setup = setup};
    size_t longest = given.text ? (size_t)given.ctx : ids->n;
    sn_status status = sn_setup_chain(setup, (int)longest, false, err);
    if (!status) status = sn_calloc(&e.hidden, longest * (size_t)setup->hp->n_embd, sizeof *e.hidden, err);
    if (!status) status = sn_calloc(&e.logits, SCORE_ROWS * (size_t)setup->hp->n_vocab, sizeof *e.logits, err);
    e.shown = sn_progress_begin("scoring");
    if (!status) status = given.text ? score_windows(&e, ids, bos, err) : score_window(&e, ids->ids, ids->n, 0, err);
    sn_progress_end(&e.shown);
    if (!status) status = show(&e.total, err);
    free(e.hidden);
    free(e.logits);
    return status;
}

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    sn_setup setup = {0};
    sn_ids ids = {0};
    int32_t bos = -1;
    if (!!given.text + !!given.ids_file + !!given.data != 1)
        return sn_fail(err, SN_REFUSED, "give either --text or --ids-file, or --data with a classifier");
    sn_catch_interrupts();
    sn_status status = sn_setup_open(&setup, !given.ids_file, err);
    if (!status && given.data) {
        status = sn_eval_labels(&setup, given.data, err);
        sn_setup_close(&setup);
        return status;
    }
    if (!status) status = sn_setup_writes(&setup, err);
    if (!status) status = given.text ? read_text(&setup, &ids, &bos, err) : read_ids(&setup, &ids, err);
    if (!status) status = evaluate(&setup, &ids, bos, err);
    sn_ids_fini(&ids);
    sn_setup_close(&setup);
    return status;
}

int sn_cmd_eval(int argc, char **argv) {
    sn_given.route = "throughput"; /* much at once, and nobody waits for a token */
    const sn_option_group groups[] = {sn_group_model,
                                      sn_group_adapter,
                                      {"Input:", input_options, sizeof input_options / sizeof *input_options},
                                      sn_group_chain,
                                      sn_group_device,
                                      sn_group_log};
    const sn_command command = {
        .program = "swarm eval",
        .synopsis = "--model PATH (--join ADDRESS... | --local all) (--text FILE | --ids-file FILE | --data FILE) [--ctx 512]",
        .about =
            "Measures the mean negative log-likelihood per token (nll, natural logarithm), the perplexity exp(nll), "
            "and how "
            "often the token that came was the one the model thought likeliest (top-1).\n"
            "--text cuts the text's tokens into windows that do not overlap, each run by itself; a last one that is "
            "not whole is left out.",
        .groups = groups,
        .n_groups = sizeof groups / sizeof *groups,
        .epilogue = SN_EXIT_CODES};
    return sn_cmd_run(&command, argc, argv, body);
}
