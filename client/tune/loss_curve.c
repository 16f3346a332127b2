#include "client/tune/loss_curve.h"

#include "base/file.h"
#include "base/mem.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 720, HEIGHT = 360, LEFT = 64, RIGHT = 16, TOP = 32, BOTTOM = 48, POINTS = 600, GRID_MAX = 16 };

static void write_csv(FILE *file, const double *losses, size_t n) {
    fprintf(file, "step,loss\n");
    for (size_t i = 0; i < n; i++) fprintf(file, "%zu,%.9g\n", i + 1, losses[i]);
}

/* A distance of grid lines, 1, 2 or 5 times a power of ten, that makes about five of a range. */
static double grid_step(double range) {
    double power = pow(10, floor(log10(range / 5))), ratio = range / 5 / power;
    return power * (ratio < 1.5 ? 1 : ratio < 3.5 ? 2 : ratio < 7.5 ? 5 : 10);
}

typedef struct frame {
    double low, high; /* losses */
    size_t n;         /* steps */
} frame;
static double at_x(const frame *f, double step) {
    return LEFT + (WIDTH - LEFT - RIGHT) * (f->n > 1 ? (step - 1) / (double)(f->n - 1) : 0);
}
static double at_y(const frame *f, double loss) {
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (loss - f->low) / (f->high - f->low);
}

static void write_line(FILE *file, const char *class, double x1, double x2, double y1, double y2) {
    fprintf(file, "<line class=\"%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", class, x1, x2, y1, y2);
}

/* The grid with its numbers, both axes and their names. */
static void write_axes(FILE *file, const frame *f) {
    double right = WIDTH - RIGHT, bottom = HEIGHT - BOTTOM, step = grid_step(f->high - f->low);
    double first = ceil(f->low / step), last = floor(f->high / step + 1e-6);
    for (int i = 0; i < GRID_MAX && first + i <= last; i++) { /* the step of the smallest range is 0 */
        double y = (first + i) * step;
        write_line(file, "g", LEFT, right, at_y(f, y), at_y(f, y));
        fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n", LEFT - 6, at_y(f, y) + 4, y);
    }
    step = f->n > 5 ? ceil(grid_step((double)f->n)) : 1;
    for (int i = 1; i * step <= (double)f->n; i++) {
        double x = i * step;
        write_line(file, "g", at_x(f, x), at_x(f, x), TOP, bottom);
        fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n", at_x(f, x), bottom + 16, x);
    }
    write_line(file, "a", LEFT, right, bottom, bottom);
    write_line(file, "a", LEFT, LEFT, TOP, bottom);
    fprintf(file,
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">training step</text>\n"
            "<text x=\"14\" y=\"%.1f\" text-anchor=\"middle\" transform=\"rotate(-90 14 %.1f)\">loss</text>\n",
            (LEFT + right) / 2, HEIGHT - 8, (TOP + bottom) / 2, (TOP + bottom) / 2);
}

/* Each point is the mean of several steps, as many as keep the number of points at or below POINTS. */
static void write_svg(FILE *file, const double *losses, size_t n) {
    frame f = {1e300, -1e300, n};
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(losses[i])) continue;
        if (losses[i] < f.low) f.low = losses[i];
        if (losses[i] > f.high) f.high = losses[i];
    }
    if (f.low > f.high) f.low = 0; /* no loss is a number */
    if (!(f.high > f.low)) f.high = f.low + 1 + fabs(f.low) / 100;
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n"
            "<style>.g{stroke:#ddd}.a{stroke:#333}.l{fill:none;stroke:#1f6feb;stroke-width:1.5}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<text x=\"%d\" y=\"20\">loss over %zu steps</text>\n",
            WIDTH, HEIGHT, LEFT, n);
    write_axes(file, &f);
    fputs("<polyline class=\"l\" points=\"", file);
    size_t each = (n + POINTS - 1) / POINTS;
    for (size_t i = 0; i < n; i += each) {
        double sum = 0;
        size_t m = sn_min_size(each, n - i);
        for (size_t k = 0; k < m; k++) sum += losses[i + k];
        if (isfinite(sum))
            fprintf(file, "%s%.1f,%.1f", i ? " " : "", at_x(&f, (double)i + 1), at_y(&f, sum / (double)m));
    }
    fputs("\"/>\n</svg>\n", file);
}

static sn_status write_to(const char *folder, const char *name, void (*write)(FILE *, const double *, size_t),
                          const double *losses, size_t n, sn_err *err) {
    char path[SN_PATH_SIZE], *text = NULL;
    size_t len = 0;
    FILE *file = open_memstream(&text, &len);
    sn_status status = sn_path_join(path, folder, name, err);
    if (file) write(file, losses, n);
    bool failed = !file || ferror(file);
    if (file && fclose(file)) failed = true;
    if (!status) status = failed ? sn_fail(err, SN_STOP, "out of memory") : sn_file_replace(path, text, len, err);
    free(text);
    return status;
}

sn_status sn_loss_curve_write(const char *folder, const double *losses, size_t n, sn_err *err) {
    sn_status status = write_to(folder, "loss.csv", write_csv, losses, n, err);
    return status ? status : write_to(folder, "loss.svg", write_svg, losses, n, err);
}
