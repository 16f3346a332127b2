#include "client/tune/loss_curve.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 720, HEIGHT = 360, MARGIN = 48, POINTS = 600 };

static void write_csv(FILE *file, const double *losses, size_t n) {
    fprintf(file, "step,loss\n");
    for (size_t i = 0; i < n; i++) fprintf(file, "%zu,%.9g\n", i + 1, losses[i]);
}

/* Each point is the mean of several steps, as many as keep the number of points at or below POINTS. */
static void write_svg(FILE *file, const double *losses, size_t n) {
    double low = 1e300, high = -1e300;
    for (size_t i = 0; i < n; i++) {
        if (losses[i] < low) low = losses[i];
        if (losses[i] > high) high = losses[i];
    }
    if (!(high > low)) high = low + 1;
    fprintf(
        file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
        "<text x=\"%d\" y=\"20\">loss over %zu steps</text>\n"
        "<text x=\"4\" y=\"%d\">%.4g</text><text x=\"4\" y=\"%d\">%.4g</text>\n"
        "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">step %zu</text>\n"
        "<polyline fill=\"none\" stroke=\"#1f6feb\" stroke-width=\"1.5\" points=\"",
        WIDTH, HEIGHT, MARGIN, n, MARGIN, high, HEIGHT - MARGIN, low, WIDTH - 8, HEIGHT - MARGIN + 20, n);
    size_t each = (n + POINTS - 1) / POINTS;
    for (size_t i = 0; i < n; i += each) {
        double sum = 0;
        size_t m = sn_min_size(each, n - i);
        for (size_t k = 0; k < m; k++) sum += losses[i + k];
        double x = MARGIN + (WIDTH - MARGIN - 8) * (n > 1 ? (double)i / (double)(n - 1) : 0);
        double y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (sum / (double)m - low) / (high - low);
        fprintf(file, "%s%.1f,%.1f", i ? " " : "", x, y);
    }
    fprintf(file, "\"/>\n</svg>\n");
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
