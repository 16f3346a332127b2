/* What --version prints. */
#ifndef SN_BASE_VERSION_H
#define SN_BASE_VERSION_H

#include <stdbool.h>
#include <stdio.h>

/* "PROGRAM VERSION", or as JSON {"program", "version", "licence", "build": {...}, "libraries": [{"name", "version",
 * "licence"}]}: a line. */
void sn_version_print(const char *program, bool json, FILE *out);

#endif
