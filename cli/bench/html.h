/* What the reports of swarm bench as HTML have in common: one file without scripts, plots as inline SVG. */
#ifndef SN_CLI_BENCH_HTML_H
#define SN_CLI_BENCH_HTML_H

#include "base/err.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct sn_html_point {
    double x, y, low, high;
} sn_html_point;

/* A new file with head, title and command line, within a paragraph; NULL: it cannot be written. */
FILE *sn_html_begin(const char *path, const char *command);
void sn_html_escape(FILE *out, const char *text);
/* dots: the points are marked, with their ranges. */
void sn_html_plot(FILE *out, const char *title, const char *x_name, const sn_html_point *points, size_t n, bool dots);
/* Adds the machine, and closes the file. */
sn_status sn_html_end(FILE *out, const char *path, sn_err *err) SN_MUST_USE;

#endif
