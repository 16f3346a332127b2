/* The report as one HTML file, written with fprintf: no template, no script.
 *
 * sn_bench_html writes the table of the rows, the times of each hop, a plot for each list that was swept (the rows that
 * differ from the first in that value only, sweep_plot), the distribution of inter-token latencies of each row
 * (itl_plot), and the machine. Plots are inline SVG: a frame maps values to pixels, from 0 to a maximum that the ticks
 * divide. */
#include "base/file.h"
#include "cli/bench/bench.h"
#include "cli/bench/html.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 560, HEIGHT = 300, LEFT = 64, RIGHT = 16, TOP = 34, BOTTOM = 44, POINTS_MAX = 256, TICKS = 5 };

static const char html_head[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>swarm bench</title><style>"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .7em;text-align:right;border-bottom:1px solid "
    "#ddd}"
    "th{border-bottom:2px solid #888}td:first-child,th:first-child{text-align:left}"
    "svg{margin:.5em 1em .5em 0;background:#fafafa}code{background:#f2f2f2;padding:.1em .3em}"
    "text{font:12px system-ui,sans-serif;fill:#333}.t{font-weight:600;font-size:14px}.g{stroke:#ddd}.a{stroke:#888}"
    ".l{fill:none;stroke:#2563ab;stroke-width:2}.p{fill:#2563ab}.w{stroke:#2563ab}</style>\n";

void sn_html_escape(FILE *out, const char *text) {
    for (; *text; text++) switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc(*text, out);
        }
}

/* -- plots -- */

/* The distance of ticks: 1, 2 or 5 times a power of ten, about TICKS of them up to `most`. */
static double tick_for(double most) {
    double rough = most / TICKS, power = pow(10, floor(log10(rough > 0 ? rough : 1)));
    double lead = rough / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

typedef struct frame {
    double x_max, y_max;
} frame;
static double at_x(const frame *f, double x) { return LEFT + x / f->x_max * (WIDTH - LEFT - RIGHT); }
static double at_y(const frame *f, double y) { return HEIGHT - BOTTOM - y / f->y_max * (HEIGHT - TOP - BOTTOM); }

static void svg_axes(FILE *out, const frame *f, const char *title, const char *x_name) {
    fprintf(out, "<svg width=\"%d\" height=\"%d\" role=\"img\"><text class=\"t\" x=\"%d\" y=\"20\">", WIDTH, HEIGHT,
            LEFT);
    sn_html_escape(out, title);
    fputs("</text>", out);
    double step = tick_for(f->y_max);
    for (int i = 0; i * step <= f->y_max * 1.001; i++) {
        double y = i * step;
        fprintf(out,
                "<line class=\"g\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%g</text>",
                LEFT, WIDTH - RIGHT, at_y(f, y), at_y(f, y), LEFT - 6, at_y(f, y) + 4, y);
    }
    step = tick_for(f->x_max);
    for (int i = 0; i * step <= f->x_max * 1.001; i++)
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>", at_x(f, i * step),
                HEIGHT - BOTTOM + 16, i * step);
    fprintf(
        out,
        "<line class=\"a\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/><text x=\"%d\" y=\"%d\" text-anchor=\"middle\">",
        LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, HEIGHT - BOTTOM, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8);
    sn_html_escape(out, x_name);
    fputs("</text>\n", out);
}

void sn_html_plot(FILE *out, const char *title, const char *x_name, const sn_html_point *points, size_t n, bool dots) {
    frame f = {0};
    for (size_t i = 0; i < n; i++) {
        if (points[i].x > f.x_max) f.x_max = points[i].x;
        if (points[i].high > f.y_max) f.y_max = points[i].high;
    }
    if (f.x_max <= 0 || f.y_max <= 0) return;
    f.y_max *= 1.08;
    svg_axes(out, &f, title, x_name);
    fputs("<polyline class=\"l\" points=\"", out);
    for (size_t i = 0; i < n; i++) fprintf(out, "%.1f,%.1f ", at_x(&f, points[i].x), at_y(&f, points[i].y));
    fputs("\"/>", out);
    for (size_t i = 0; i < n && dots; i++)
        fprintf(out,
                "<line class=\"w\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/><circle class=\"p\" cx=\"%.1f\" "
                "cy=\"%.1f\" r=\"3.5\"/>",
                at_x(&f, points[i].x), at_x(&f, points[i].x), at_y(&f, points[i].low), at_y(&f, points[i].high),
                at_x(&f, points[i].x), at_y(&f, points[i].y));
    fputs("</svg>\n", out);
}

/* -- sweeps: the rows that differ from the first in one value only -- */

static int sweep_value(const sn_bench_case *c, int dimension) {
    const int values[] = {c->sessions, c->context, c->nodes, c->threads};
    return values[dimension];
}

static bool differs_only_in(const sn_bench_case *a, const sn_bench_case *b, int dimension) {
    const char *x = a->link ? a->link : "none", *y = b->link ? b->link : "none";
    for (int d = 0; d < 4; d++)
        if (d != dimension && sweep_value(a, d) != sweep_value(b, d)) return false;
    return a->kind == b->kind && !strcmp(x, y);
}

static void sweep_plot(FILE *out, const sn_bench_row *rows, size_t n, int dimension, const char *name, bool prefill) {
    sn_html_point points[POINTS_MAX];
    char title[96];
    size_t m = 0;
    for (size_t i = 0; i < n && m < POINTS_MAX; i++) {
        if (rows[i].config.kind != SN_BENCH_SPEED || !differs_only_in(&rows[0].config, &rows[i].config, dimension))
            continue;
        const sn_bench_spread *s = prefill ? &rows[i].prefill_tok_s : &rows[i].decode_tok_s;
        sn_html_point made = {sweep_value(&rows[i].config, dimension), s->median, s->low, s->high};
        size_t at = m++; /* insertion sort by x */
        for (; at && points[at - 1].x > made.x; at--) points[at] = points[at - 1];
        points[at] = made;
    }
    snprintf(title, sizeof title, "%s tokens/s against %s", prefill ? "prefill" : "decode", name);
    if (m > 1) sn_html_plot(out, title, name, points, m, true);
}

/* The cumulative distribution of inter-token latencies, up to the percentile 99.9. */
static void itl_plot(FILE *out, const sn_bench_row *row) {
    sn_html_point points[POINTS_MAX];
    char title[128];
    enum { STEPS = 200 };
    for (size_t i = 0; i <= STEPS; i++) {
        double p = i == STEPS ? 0.999 : (double)i / STEPS;
        points[i] = (sn_html_point){sn_bench_percentile(row->itl_ms, row->n_itl, p), 100 * p, 100 * p, 100 * p};
    }
    snprintf(title, sizeof title, "%% of tokens within x ms: %s, %d sessions, context %d, %d nodes, link %.30s",
             sn_bench_test_name(&row->config), row->config.sessions, row->config.context, row->config.nodes,
             row->config.link ? row->config.link : "none");
    sn_html_plot(out, title, "inter-token latency in ms", points, STEPS + 1, false);
}

/* -- tables -- */

/* The columns of medians; one that no row has is left out. */
static const struct {
    const char *name;
    size_t offset;
} columns[] = {
    {"prefill tok/s", offsetof(sn_bench_row, prefill_tok_s)}, {"ttft ms", offsetof(sn_bench_row, ttft_ms)},
    {"decode tok/s", offsetof(sn_bench_row, decode_tok_s)},   {"forward tok/s", offsetof(sn_bench_row, forward_tok_s)},
    {"answers tok/s", offsetof(sn_bench_row, answer_tok_s)},  {"training tok/s", offsetof(sn_bench_row, train_tok_s)},
    {"recovery ms", offsetof(sn_bench_row, recovery_ms)},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static const sn_bench_spread *spread_at(const sn_bench_row *row, size_t column) {
    return (const sn_bench_spread *)(const void *)((const char *)row + columns[column].offset);
}

static bool column_is_used(const sn_bench_row *rows, size_t n, size_t column) {
    for (size_t i = 0; i < n; i++)
        if (spread_at(&rows[i], column)->median > 0) return true;
    return false;
}

static void html_cell(FILE *out, const sn_bench_spread *s) {
    if (s->median > 0)
        fprintf(out, "<td>%.1f <small>(%.1f to %.1f)</small></td>", s->median, s->low, s->high);
    else
        fputs("<td></td>", out);
}

static void html_table(FILE *out, const sn_bench_row *rows, size_t n) {
    bool used[N_COLUMNS], latencies = false;
    for (size_t i = 0; i < n; i++) latencies = latencies || rows[i].n_itl;
    fputs("<table><tr><th>row<th>test<th>nodes<th>threads<th>link<th>sessions<th>context", out);
    for (size_t k = 0; k < N_COLUMNS; k++)
        if ((used[k] = column_is_used(rows, n, k))) fprintf(out, "<th>%s", columns[k].name);
    fputs(latencies ? "<th>itl p50<th>p95<th>p99 ms</tr>\n" : "</tr>\n", out);
    for (size_t i = 0; i < n; i++) {
        const sn_bench_row *r = &rows[i];
        const sn_bench_case *c = &r->config;
        fprintf(out, "<tr><td>%zu<td>%s", i + 1, sn_bench_test_name(c));
        if (c->draft)
            fprintf(out, " %s, %s, %.2f tokens per forward pass", c->draft,
                    c->repetitive ? "repetitive" : "not repetitive",
                    r->decode_steps ? (double)r->decode_tokens / (double)r->decode_steps : 0);
        fprintf(out, "<td>%d<td>%d<td>", c->nodes, c->threads);
        sn_html_escape(out, c->link ? c->link : "none");
        fprintf(out, "<td>%d<td>%d</td>", c->sessions, c->context);
        for (size_t k = 0; k < N_COLUMNS; k++)
            if (used[k]) html_cell(out, spread_at(r, k));
        static const double percents[] = {0.5, 0.95, 0.99};
        for (size_t k = 0; k < 3 && latencies; k++)
            fprintf(out, r->n_itl ? "<td>%.2f" : "<td>", sn_bench_percentile(r->itl_ms, r->n_itl, percents[k]));
        fputs("</tr>\n", out);
    }
    fputs("</table>\n<h2>Where a step's time goes</h2><table><tr><th>row<th>blocks<th>node<th>network ms<th>queue "
          "ms<th>compute ms</tr>\n",
          out);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < rows[i].n_hops; k++) {
            const sn_bench_hop *h = &rows[i].hops[k];
            fprintf(out, "<tr><td>%zu<td>%d:%d<td>", i + 1, h->first, h->end);
            sn_html_escape(out, h->node);
            fprintf(out, "<td>%.2f<td>%.2f<td>%.2f</tr>\n", h->network_ms, h->queue_ms, h->compute_ms);
        }
    fputs("</table>\n", out);
}

static void html_machine(FILE *out) {
    json_t *m = sn_bench_machine(), *value;
    const char *name;
    fputs("<table>", out);
    json_object_foreach(m, name, value) {
        fprintf(out, "<tr><td>%s<td style=\"text-align:left\">", name);
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        sn_html_escape(out, json_is_string(value) ? json_string_value(value) : text ? text : "");
        free(text);
        fputs("</tr>", out);
    }
    fputs("</table>\n", out);
    json_decref(m);
}

FILE *sn_html_begin(const char *path, const char *command) {
    FILE *out = fopen(path, "w");
    if (!out) return NULL;
    fputs(html_head, out);
    fputs("<h1>swarm bench</h1><p><code>", out);
    sn_html_escape(out, command);
    fputs("</code></p><p>", out);
    return out;
}

sn_status sn_html_end(FILE *out, const char *path, sn_err *err) {
    fputs("<h2>Machine</h2>\n", out);
    html_machine(out);
    fputs("</html>\n", out);
    bool failed = ferror(out) != 0;
    return fclose(out) || failed ? sn_fail_write(err, path, errno) : SN_OK;
}

sn_status sn_bench_html(const char *path, const sn_bench_plan *plan, const char *command, const sn_bench_row *rows,
                        size_t n, sn_err *err) {
    static const char *const names[] = {"concurrent sessions", "context in tokens", "nodes", "threads of each node"};
    FILE *out = sn_html_begin(path, command);
    if (!out) return sn_fail_write(err, path, errno);
    sn_html_escape(out, plan->hp->name);
    char what[80];
    sn_bench_workload(plan, rows, n, what);
    fprintf(out, ", %d blocks; %s; medians of %d repeats (and their range) after %d warm-up repeats.</p>\n",
            plan->hp->n_blocks, what, plan->repeat, plan->warmup);
    html_table(out, rows, n);
    fputs("<h2>Curves</h2>\n", out);
    for (int d = 0; d < 4; d++)
        for (int prefill = 0; prefill < 2; prefill++) sweep_plot(out, rows, n, d, names[d], prefill);
    for (size_t i = 0; i < n; i++)
        if (rows[i].config.kind <= SN_BENCH_CONCURRENT && rows[i].n_itl) itl_plot(out, &rows[i]);
    return sn_html_end(out, path, err);
}
