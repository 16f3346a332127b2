#include "cli/setup.h"

#include "cli/io.h"
#include "cli/progress.h"

#include <stdio.h>
#include <unistd.h>

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

bool sn_cli_holds_text(void) {
    const sn_audit_settings *audit = &sn_program_settings.audit;
    return audit->share > 0 && (audit->hold || !isatty(STDOUT_FILENO));
}

void sn_audit_print(const sn_audit *audit) {
    sn_audit_report r = sn_audit_get_report(audit);
    fprintf(stderr, "audit: %llu of %llu steps of nodes checked, %s (audit seed %llu)\n", (unsigned long long)r.checked,
            (unsigned long long)r.steps, r.nodes_banned ? "wrong results found" : "all results correct",
            (unsigned long long)r.seed);
    if (r.unchecked)
        fprintf(stderr, "audit: %llu steps could not be checked: no other node serves their blocks\n",
                (unsigned long long)r.unchecked);
    if (*r.verdict) fprintf(stderr, "audit: %s\n", r.verdict);
    if (*r.evidence) fprintf(stderr, "audit: evidence is in %s; see 'swarm verify'\n", r.evidence);
}

sn_status sn_retract_print(const char *kept, size_t len, sn_err *err) {
    sn_status status = sn_flush_stdout(err);
    fputs("\n[audit failed: the text above is wrong, it is printed again]\n", stderr);
    if (!status) fwrite(kept, 1, len, stdout);
    return status ? status : sn_flush_stdout(err);
}
