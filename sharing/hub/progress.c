/* How programs show a fetch. libswarm prints nothing, so this is a file of its own. */
#include "base/terminal.h"
#include "base/parse.h"
#include "sharing/hub/hub.h"

#include <stdio.h>
#include <unistd.h>

const char *sn_hub_progress_text(const sn_hub_progress *p, char out[SN_HUB_PROGRESS_SIZE]) {
    char done[32], total[32], rate[32];
    double left_s = p->bytes_per_s > 0 ? (double)(p->total - p->done) / p->bytes_per_s : 0;
    snprintf(out, SN_HUB_PROGRESS_SIZE, "fetching %.60s: %s of %s, %s/s, %.0f s left", p->what,
             sn_format_size(p->done, done), sn_format_size(p->total, total),
             sn_format_size((size_t)p->bytes_per_s, rate), left_s);
    return out;
}

void sn_hub_show_progress(void *context, const sn_hub_progress *progress) {
    char line[SN_HUB_PROGRESS_SIZE];
    (void)context;
    if (!isatty(STDERR_FILENO)) return;
    sn_terminal_control(stderr, "\r");
    fprintf(stderr, "%s   %s", sn_hub_progress_text(progress, line), progress->done < progress->total ? "" : "\n");
}
