#include "base/core_dump.h"

#include "base/program_environment.h"

#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

void sn_core_dump_forbid(void) {
    const char *wanted = sn_environment("SWARM_DUMPABLE");
    if (wanted && !strcmp(wanted, "1")) return;
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); /* programs that it starts leave none either */
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}
