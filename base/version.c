#include "base/version.h"

static const char build_info[] = /* made by cmake/version.cmake */
#include <build_info.inc>
    ;

void sn_version_print(const char *program, bool json, FILE *out) {
    if (json)
        fprintf(out, "{\"program\": \"%s\", \"version\": \"%s\", %s}\n", program, SN_VERSION, build_info);
    else
        fprintf(out, "%s %s\n", program, SN_VERSION);
}
