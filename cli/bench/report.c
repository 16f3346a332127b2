/* The rows of a benchmark as a table, as JSON and as CSV.
 *
 * Each kind of case fills other fields of a row. The table and the JSON object show those of the row's kind, and the
 * CSV file has a column for every field. */
#include "base/file.h"
#include "cli/bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *sn_bench_test_name(const sn_bench_case *c) {
    static const char *const names[] = {"speed", "answers", "forward", "concurrent", NULL, "draft", "train"};
    return c->kind == SN_BENCH_KILL ? c->kill : names[c->kind];
}
static const char *link_of(const sn_bench_case *c) { return c->link ? c->link : "none"; }

/* -- JSON -- */

static void set_spread(json_t *o, const char *name, const sn_bench_spread *s) {
    char range[64];
    json_object_set_new(o, name, json_real(s->median));
    snprintf(range, sizeof range, "%s_range", name);
    json_object_set_new(o, range, json_pack("[f,f]", s->low, s->high));
}

static json_t *hops_json(const sn_bench_row *row) {
    json_t *list = json_array();
    for (size_t i = 0; i < row->n_hops; i++) {
        const sn_bench_hop *h = &row->hops[i];
        char blocks[32];
        snprintf(blocks, sizeof blocks, "%d:%d", h->first, h->end);
        json_array_append_new(list, json_pack("{s:s,s:s,s:f,s:f,s:f}", "node", h->node, "blocks", blocks, "network_ms",
                                              h->network_ms, "queue_ms", h->queue_ms, "compute_ms", h->compute_ms));
    }
    return list;
}

static json_t *row_json(const sn_bench_plan *p, const sn_bench_row *row) {
    const sn_bench_case *c = &row->config;
    json_t *o = json_pack("{s:s,s:i,s:i,s:s,s:b,s:s,s:i,s:i,s:i,s:i,s:i}", "test", sn_bench_test_name(c), "nodes",
                          c->nodes, "threads", c->threads, "link", link_of(c), "push", p->push, "wire_dtype",
                          sn_dtype_name(p->wire_dtype), "sessions", c->sessions, "context", c->context, "prompt_tokens",
                          p->prompt_tokens, "new_tokens", p->new_tokens, "repeat", p->repeat);
    if (c->kind == SN_BENCH_SPEED) {
        set_spread(o, "prefill_tok_s", &row->prefill_tok_s);
        set_spread(o, "ttft_ms", &row->ttft_ms);
        set_spread(o, "decode_tok_s", &row->decode_tok_s);
    }
    if (c->kind == SN_BENCH_ANSWERS) {
        set_spread(o, "ttft_ms", &row->ttft_ms);
        set_spread(o, "answer_tok_s", &row->answer_tok_s);
    }
    if (c->kind == SN_BENCH_CONCURRENT) {
        json_object_set_new(o, "concurrent_prefill_tokens", json_integer(c->concurrent_prefill));
        set_spread(o, "prefill_tok_s", &row->prefill_tok_s); /* of those prompts */
        set_spread(o, "decode_tok_s", &row->decode_tok_s);
    }
    if (c->kind == SN_BENCH_FORWARD) set_spread(o, "forward_tok_s", &row->forward_tok_s);
    if (c->kind == SN_BENCH_KILL) {
        set_spread(o, "recovery_ms", &row->recovery_ms);
        json_object_set_new(o, "same_text", json_boolean(row->same_text));
    }
    if (c->kind == SN_BENCH_DRAFT) {
        set_spread(o, "decode_tok_s", &row->decode_tok_s);
        json_object_update_new(o, json_pack("{s:s,s:b,s:i,s:i,s:i,s:i,s:i,s:b}", "draft", c->draft, "repetitive",
                                            c->repetitive, "draft_tokens", (int)sn_program_settings.draft.tokens,
                                            "decode_tokens", (int)row->decode_tokens, "decode_steps",
                                            (int)row->decode_steps, "drafted", (int)row->n_drafted, "accepted",
                                            (int)row->n_accepted, "same_text", row->same_text));
    }
    if (c->kind == SN_BENCH_TRAIN) {
        json_object_set_new(o, "method", json_string(c->train));
        set_spread(o, "train_tok_s", &row->train_tok_s);
    }
    if (row->n_itl)
        json_object_set_new(o, "itl_ms",
                            json_pack("{s:f,s:f,s:f}", "p50", sn_bench_percentile(row->itl_ms, row->n_itl, 0.5), "p95",
                                      sn_bench_percentile(row->itl_ms, row->n_itl, 0.95), "p99",
                                      sn_bench_percentile(row->itl_ms, row->n_itl, 0.99)));
    if (row->n_hops) json_object_set_new(o, "hops", hops_json(row));
    return o;
}

json_t *sn_bench_json(const sn_bench_plan *plan, const char *command, const sn_bench_row *rows, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, row_json(plan, &rows[i]));
    char device[32];
    return json_pack("{s:s,s:o,s:s,s:{s:s,s:i,s:i,s:i},s:o}", "command", command, "machine", sn_bench_machine(),
                     "device", sn_device_id_name(plan->device, device), "model", "name", plan->hp->name, "n_blocks",
                     plan->hp->n_blocks, "n_embd", plan->hp->n_embd, "n_vocab", plan->hp->n_vocab, "rows", list);
}

/* -- the table -- */

/* "104.2 ±3.1": the median and the largest deviation of a repeat. */
static const char *format_spread(const sn_bench_spread *s, char out[32]) {
    double deviation = s->high - s->median > s->median - s->low ? s->high - s->median : s->median - s->low;
    if (s->median >= 1000)
        snprintf(out, 32, "%.0f ±%.0f", s->median, deviation);
    else
        snprintf(out, 32, "%.1f ±%.1f", s->median, deviation);
    return out;
}

/* A column of `width` characters; ± is one character of two bytes. */
static void print_column(FILE *out, int width, const char *text) {
    int shown = 0;
    for (const char *c = text; *c; c++) shown += (*c & 0xc0) != 0x80;
    fprintf(out, "%*s%s", width > shown ? width - shown : 1, "", text);
}

static void print_number(FILE *out, int width, double value) {
    char text[32];
    snprintf(text, sizeof text, value < 10 ? "%.2f" : "%.1f", value);
    print_column(out, width, text);
}

static void print_row(FILE *out, size_t number, const sn_bench_row *row) {
    char text[64];
    const sn_bench_case *c = &row->config;
    fprintf(out, "%3zu  %-11s%6d%8d  %-20s%9d%9d", number, sn_bench_test_name(c), c->nodes, c->threads, link_of(c),
            c->sessions, c->context);
    switch (c->kind) {
    case SN_BENCH_SPEED:
        print_column(out, 15, format_spread(&row->prefill_tok_s, text));
        print_column(out, 15, format_spread(&row->ttft_ms, text));
        print_column(out, 15, format_spread(&row->decode_tok_s, text));
        break;
    case SN_BENCH_ANSWERS:
        print_column(out, 30, format_spread(&row->ttft_ms, text));
        print_column(out, 15, format_spread(&row->answer_tok_s, text));
        break;
    case SN_BENCH_FORWARD:
        print_column(out, 15, format_spread(&row->forward_tok_s, text));
        break;
    case SN_BENCH_CONCURRENT:
        snprintf(text, sizeof text, "prompts of %d: %.0f tok/s", c->concurrent_prefill, row->prefill_tok_s.median);
        print_column(out, 30, text);
        print_column(out, 15, format_spread(&row->decode_tok_s, text));
        break;
    case SN_BENCH_KILL:
        print_column(out, 45, row->same_text ? "same text" : "DIFFERENT TEXT");
        break;
    case SN_BENCH_DRAFT:
        snprintf(text, sizeof text, "%s, %s", c->draft, c->repetitive ? "repetitive" : "other");
        print_column(out, 30, text);
        print_column(out, 15, format_spread(&row->decode_tok_s, text));
        fprintf(out, "   %.2f tokens per forward pass, %zu of %zu drafted tokens accepted, %s",
                row->decode_steps ? (double)row->decode_tokens / (double)row->decode_steps : 0, row->n_accepted,
                row->n_drafted, row->same_text ? "same text" : "DIFFERENT TEXT");
        break;
    case SN_BENCH_TRAIN:
        snprintf(text, sizeof text, "%s, forward+backward", c->train);
        print_column(out, 30, text);
        print_column(out, 15, format_spread(&row->train_tok_s, text));
        break;
    }
    if (row->n_itl) {
        print_number(out, 9, sn_bench_percentile(row->itl_ms, row->n_itl, 0.5));
        print_number(out, 9, sn_bench_percentile(row->itl_ms, row->n_itl, 0.95));
        print_number(out, 9, sn_bench_percentile(row->itl_ms, row->n_itl, 0.99));
    }
    if (c->kind == SN_BENCH_KILL) fprintf(out, "   recovery %s ms", format_spread(&row->recovery_ms, text));
    fputc('\n', out);
}

static void print_hops(FILE *out, const sn_bench_row *row) {
    for (size_t i = 0; i < row->n_hops; i++) {
        const sn_bench_hop *h = &row->hops[i];
        fprintf(out, "    %3d:%-4d %-40s network %.2f, queue %.2f, compute %.2f ms a step\n", h->first, h->end, h->node,
                h->network_ms, h->queue_ms, h->compute_ms);
    }
}

void sn_bench_workload(const sn_bench_plan *p, const sn_bench_row *rows, size_t n, char out[80]) {
    size_t trained = 0;
    for (size_t i = 0; i < n; i++) trained += rows[i].config.kind == SN_BENCH_TRAIN;
    if (n && trained == n)
        snprintf(out, 80, "sequences of %d tokens, forward and backward", p->prompt_tokens);
    else
        snprintf(out, 80, "prompts of %d tokens, %d new tokens", p->prompt_tokens, p->new_tokens);
}

void sn_bench_print(FILE *out, const sn_bench_plan *p, const sn_bench_row *rows, size_t n) {
    json_t *m = sn_bench_machine();
    fprintf(out, "%s, %lld cores, %s; swarm %s; %s\n", json_string_value(json_object_get(m, "cpu")),
            (long long)json_integer_value(json_object_get(m, "cores")), json_string_value(json_object_get(m, "kernel")),
            SN_VERSION, p->hp->name);
    json_decref(m);
    char what[80];
    sn_bench_workload(p, rows, n, what);
    fprintf(out, "%s; medians of %d repeats and the largest deviation, after %d warm-up repeats%s; %s on the wire\n\n",
            what, p->repeat, p->warmup, p->push ? "; nodes push" : "", sn_dtype_name(p->wire_dtype));
    fprintf(out, "row  %-11s%6s%8s  %-20s%9s%9s%15s%15s%15s%9s%9s%9s\n", "test", "nodes", "threads", "link", "sessions",
            "context", "prefill tok/s", "ttft ms", "decode tok/s", "itl p50", "p95", "p99");
    for (size_t i = 0; i < n; i++) {
        print_row(out, i + 1, &rows[i]);
        print_hops(out, &rows[i]);
    }
}

/* -- CSV -- */

static void csv_spread(FILE *out, const sn_bench_spread *s) {
    fprintf(out, ",%.3f,%.3f,%.3f", s->median, s->low, s->high);
}

static void csv_row(FILE *out, const sn_bench_plan *p, const sn_bench_row *row) {
    const sn_bench_case *c = &row->config;
    fprintf(out, "%s,%d,%d,\"%s\",%d,%s,%d,%d,%d,%d", sn_bench_test_name(c), c->nodes, c->threads, link_of(c), p->push,
            sn_dtype_name(p->wire_dtype), c->sessions, c->context, p->prompt_tokens, p->new_tokens);
    csv_spread(out, &row->prefill_tok_s);
    csv_spread(out, &row->ttft_ms);
    csv_spread(out, &row->decode_tok_s);
    csv_spread(out, &row->answer_tok_s);
    csv_spread(out, &row->forward_tok_s);
    csv_spread(out, &row->recovery_ms);
    csv_spread(out, &row->train_tok_s);
    fprintf(out, ",%.3f,%.3f,%.3f", sn_bench_percentile(row->itl_ms, row->n_itl, 0.5),
            sn_bench_percentile(row->itl_ms, row->n_itl, 0.95), sn_bench_percentile(row->itl_ms, row->n_itl, 0.99));
    fprintf(out, ",%s,%d,%zu,%zu,%zu,%zu\n", c->draft ? c->draft : "", c->repetitive, row->decode_tokens,
            row->decode_steps, row->n_drafted, row->n_accepted);
}

sn_status sn_bench_csv(const char *path, const sn_bench_plan *p, const sn_bench_row *rows, size_t n, sn_err *err) {
    FILE *out = fopen(path, "w");
    if (!out) return sn_fail_write(err, path, errno);
    fprintf(out, "test,nodes,threads,link,push,wire_dtype,sessions,context,prompt_tokens,new_tokens");
    static const char *const spreads[] = {"prefill_tok_s", "ttft_ms",     "decode_tok_s", "answer_tok_s",
                                          "forward_tok_s", "recovery_ms", "train_tok_s"};
    for (size_t i = 0; i < sizeof spreads / sizeof *spreads; i++)
        fprintf(out, ",%s,%s_low,%s_high", spreads[i], spreads[i], spreads[i]);
    fprintf(out, ",itl_p50_ms,itl_p95_ms,itl_p99_ms,draft,repetitive,decode_tokens,decode_steps,drafted,accepted\n");
    for (size_t i = 0; i < n; i++) csv_row(out, p, &rows[i]);
    bool failed = ferror(out) != 0;
    if (fclose(out) || failed) return sn_fail_write(err, path, errno);
    return SN_OK;
}
