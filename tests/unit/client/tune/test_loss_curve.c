/* The files of a training's losses: the table, and a diagram with a grid, numbers, and two named axes. */
#include "client/tune/loss_curve.h"
#include "tests/support/files.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FILE_BYTES = 1 << 16, NUMBERS_MAX = 32 };

static char *folder;
static char text[FILE_BYTES]; /* of the file that was read last */

static void set_up(void) { folder = temp_folder(); }
static void tear_down(void) { temp_folder_remove(&folder); }

TestSuite(loss_curve, .init = set_up, .fini = tear_down);

static void write_and_read(const double *losses, size_t n, const char *name) {
    REQUIRE(sn_loss_curve_write(folder, losses, n, &err));
    char *path = temp_path(folder, name);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    text[fread(text, 1, FILE_BYTES - 1, file)] = 0;
    fclose(file);
    free(path);
}

static int count(const char *part) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) n++;
    return n;
}

/* The numbers beside grid lines, by how their texts are placed. */
static size_t read_numbers(const char *anchor, double out[NUMBERS_MAX]) {
    size_t n = 0;
    for (const char *at = text; n < NUMBERS_MAX && (at = strstr(at, anchor)); at++) {
        int length = 0;
        if (sscanf(at + strlen(anchor), "%lf%n", &out[n], &length) == 1 && at[strlen(anchor) + (size_t)length] == '<')
            n++;
    }
    return n;
}

Test(loss_curve, the_diagram_has_a_grid_numbers_and_named_axes) {
    double losses[200], at[NUMBERS_MAX];
    for (int i = 0; i < 200; i++) losses[i] = 0.5 + 2.5 * exp(-i / 50.0);
    write_and_read(losses, 200, "loss.svg");
    size_t n = read_numbers("text-anchor=\"end\">", at);
    cr_expect(n >= 3 && n <= 10, "%zu numbers of losses", n);
    for (size_t i = 0; i < n; i++) {
        cr_expect(at[i] > 0.4 && at[i] < 3.1, "%g", at[i]);
        if (i > 1) cr_expect_float_eq(at[i] - at[i - 1], at[1] - at[0], 1e-6, "the grid is not even");
    }
    size_t steps = read_numbers("text-anchor=\"middle\">", at);
    cr_expect(steps >= 3 && steps <= 10, "%zu numbers of steps", steps);
    for (size_t i = 0; i < steps; i++) cr_expect(at[i] >= 1 && at[i] <= 200, "%g", at[i]);
    cr_expect_eq(count("<line class=\"g\""), (int)(n + steps), "each number has its line");
    cr_expect_eq(count("<line class=\"a\""), 2);
    cr_expect_eq(count(">training step<"), 1);
    cr_expect_eq(count(">loss<"), 1);
    cr_expect_eq(count("<polyline"), 1);
}

Test(loss_curve, no_loss_breaks_it) {
    const double few[] = {3, 3}, none[] = {NAN, NAN};
    write_and_read(few, 1, "loss.svg");
    cr_expect(count("<line class=\"a\"") == 2 && !strstr(text, "nan"));
    write_and_read(few, 2, "loss.csv");
    cr_expect_str_eq(text, "step,loss\n1,3\n2,3\n");
    write_and_read(none, 2, "loss.svg");
    cr_expect_eq(count("<line class=\"a\""), 2);
}

/* As a checkpoint of a stranger may have them: the number of grid lines does not grow with the losses. */
Test(loss_curve, losses_without_an_end_have_one_in_the_diagram, .timeout = 20) {
    const double all[][3] = {{3, -INFINITY, 2},
                             {INFINITY, 3, 2},
                             {NAN, 3, 2},
                             {-INFINITY, INFINITY, NAN},
                             {1e300, 1.0000000000000003e300, 1e300},
                             {-1e308, 1e308, 0},
                             {5e-324, 1e-323, 5e-324}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        write_and_read(all[i], 3, "loss.svg");
        cr_expect_leq(count("<line class=\"g\""), 20, "%zu", i);
        cr_expect_eq(count("<line class=\"a\""), 2, "%zu", i);
        if (i < 3) cr_expect(count("<line class=\"g\"") >= 5 && !strstr(text, "nan") && !strstr(text, "inf"), "%zu", i);
    }
}
