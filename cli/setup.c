#include "cli/setup.h"

#include "cli/io.h"
#include "cli/progress.h"

#include <stdio.h>

static void show_phase(void *ctx, const char *what) {
    static sn_progress_bar *bar;
    (void)ctx;
    sn_progress_bar_end(&bar);
    if (what) bar = sn_progress_bar_begin(what);
}

static void print_warning(void *ctx, const char *sentence) {
    (void)ctx;
    fprintf(stderr, "swarm: %s\n", sentence);
}

sn_setup sn_cli_setup(void) {
    return (sn_setup){.settings = &sn_program_settings,
                      .hooks = {.phase = show_phase, .warning = print_warning},
                      .cancel = &sn_interrupt};
}
