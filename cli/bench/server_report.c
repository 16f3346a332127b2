#include "base/file.h"
#include "cli/bench/html.h"
#include "cli/bench/server.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* What a row shows besides its clients. */
typedef struct figure {
    const char *name, *title;
    double value;
} figure;
enum { FIGURES = 7 };

static void figures_of(const sn_server_row *r, figure out[FIGURES]) {
    const figure all[FIGURES] = {
        {"tok_s", "tokens/s", r->tok_s.median},
        {"tok_s_low", "lowest", r->tok_s.low},
        {"tok_s_high", "highest", r->tok_s.high},
        {"first_ms_p50", "first token p50", sn_bench_percentile(r->first_ms, r->n_first, 0.5)},
        {"first_ms_p99", "p99 ms", sn_bench_percentile(r->first_ms, r->n_first, 0.99)},
        {"between_ms_p50", "between tokens p50", sn_bench_percentile(r->between_ms, r->n_first, 0.5)},
        {"between_ms_p99", "p99 ms", sn_bench_percentile(r->between_ms, r->n_first, 0.99)},
    };
    for (int i = 0; i < FIGURES; i++) out[i] = all[i];
}

/* Tokens of a prompt, on average; -1: the server did not say. */
static double prompt_tokens(const sn_server_row *r) {
    return r->prompt_tokens < 0 || !r->n_first ? -1 : (double)r->prompt_tokens / (double)r->n_first;
}

static double answer_tokens(const sn_server_row *r) {
    return r->n_first ? (double)r->answer_tokens / (double)r->n_first : 0;
}

static json_t *row_json(const sn_server_plan *p, const sn_server_row *r) {
    json_t *o = json_pack("{s:s,s:i,s:i,s:i,s:i,s:f,s:f,s:i,s:i}", "test", "server", "clients", r->clients,
                          "prompt_words", p->prompt_words, "new_tokens", p->new_tokens, "repeat", p->repeat,
                          "prompt_tokens", prompt_tokens(r), "answer_tokens", answer_tokens(r), "requests",
                          (int)(r->n_first + r->errors), "errors", (int)r->errors);
    figure figures[FIGURES];
    figures_of(r, figures);
    for (int i = 0; i < FIGURES; i++) json_object_set_new(o, figures[i].name, json_real(figures[i].value));
    if (r->errors) json_object_set_new(o, "error", json_string(r->error.text));
    return o;
}

json_t *sn_server_json(const sn_server_plan *plan, const char *command, const sn_server_result *result) {
    json_t *list = json_array();
    for (size_t i = 0; i < result->n; i++) json_array_append_new(list, row_json(plan, &result->rows[i]));
    return json_pack("{s:s,s:o,s:{s:s,s:s,s:b},s:o}", "command", command, "machine", sn_bench_machine(), "server",
                     "url", result->base, "model", result->model, "chat", plan->chat, "rows", list);
}

void sn_server_print(FILE *out, const sn_server_plan *plan, const sn_server_result *result) {
    figure figures[FIGURES];
    fprintf(out, "%s, %s, %s\n", result->base, result->model, plan->chat ? "chat" : "completions");
    fprintf(out,
            "prompts of %d words, at most %d new tokens; medians of %d repeats, after %d warm-up repeats; percentiles "
            "over all requests\n\n",
            plan->prompt_words, plan->new_tokens, plan->repeat, plan->warmup);
    fprintf(out, "clients  prompt  answer  errors");
    figures_of(&result->rows[0], figures);
    for (int i = 0; i < FIGURES; i++) fprintf(out, "  %s", figures[i].title);
    fputc('\n', out);
    for (size_t i = 0; i < result->n; i++) {
        const sn_server_row *r = &result->rows[i];
        fprintf(out, "%7d%8.0f%8.0f%8zu", r->clients, prompt_tokens(r), answer_tokens(r), r->errors);
        figures_of(r, figures);
        for (int k = 0; k < FIGURES; k++) fprintf(out, "%*.1f", (int)strlen(figures[k].title) + 2, figures[k].value);
        fputc('\n', out);
        if (r->errors) fprintf(out, "         the first error: %s\n", r->error.text);
    }
}

sn_status sn_server_csv(const char *path, const sn_server_plan *plan, const sn_server_result *result, sn_err *err) {
    figure figures[FIGURES];
    FILE *out = fopen(path, "w");
    if (!out) return sn_fail_write(err, path, errno);
    fprintf(out, "test,clients,prompt_words,new_tokens,prompt_tokens,answer_tokens,errors");
    figures_of(&result->rows[0], figures);
    for (int i = 0; i < FIGURES; i++) fprintf(out, ",%s", figures[i].name);
    for (size_t i = 0; i < result->n; i++) {
        const sn_server_row *r = &result->rows[i];
        fprintf(out, "\nserver,%d,%d,%d,%.1f,%.1f,%zu", r->clients, plan->prompt_words, plan->new_tokens,
                prompt_tokens(r), answer_tokens(r), r->errors);
        figures_of(r, figures);
        for (int k = 0; k < FIGURES; k++) fprintf(out, ",%.3f", figures[k].value);
    }
    fputc('\n', out);
    bool failed = ferror(out) != 0;
    return fclose(out) || failed ? sn_fail_write(err, path, errno) : SN_OK;
}

static void html_table(FILE *out, const sn_server_result *result) {
    figure figures[FIGURES];
    figures_of(&result->rows[0], figures);
    fputs("<table><tr><th>clients<th>prompt tokens<th>answer tokens<th>errors", out);
    for (int i = 0; i < FIGURES; i++) fprintf(out, "<th>%s", figures[i].title);
    for (size_t i = 0; i < result->n; i++) {
        const sn_server_row *r = &result->rows[i];
        fprintf(out, "</tr>\n<tr><td>%d<td>%.0f<td>%.0f<td>%zu", r->clients, prompt_tokens(r), answer_tokens(r),
                r->errors);
        figures_of(r, figures);
        for (int k = 0; k < FIGURES; k++) fprintf(out, "<td>%.1f", figures[k].value);
    }
    fputs("</tr></table>\n<h2>Curves</h2>\n", out);
}

sn_status sn_server_html(const char *path, const sn_server_plan *plan, const char *command,
                         const sn_server_result *result, sn_err *err) {
    sn_html_point speed[SN_INTS_MAX], first[SN_INTS_MAX];
    FILE *out = sn_html_begin(path, command);
    if (!out) return sn_fail_write(err, path, errno);
    sn_html_escape(out, result->base);
    fputs(", ", out);
    sn_html_escape(out, result->model);
    fprintf(out, "; prompts of %d words, at most %d new tokens; medians of %d repeats after %d warm-up repeats.</p>\n",
            plan->prompt_words, plan->new_tokens, plan->repeat, plan->warmup);
    html_table(out, result);
    for (size_t i = 0; i < result->n; i++) {
        const sn_server_row *r = &result->rows[i];
        const double p50 = sn_bench_percentile(r->first_ms, r->n_first, 0.5),
                     p99 = sn_bench_percentile(r->first_ms, r->n_first, 0.99);
        speed[i] = (sn_html_point){r->clients, r->tok_s.median, r->tok_s.low, r->tok_s.high};
        first[i] = (sn_html_point){r->clients, p50, p50, p99};
    }
    sn_html_plot(out, "tokens/s of all clients", "clients", speed, result->n, true);
    sn_html_plot(out, "ms to the first token: p50, up to p99", "clients", first, result->n, true);
    return sn_html_end(out, path, err);
}
