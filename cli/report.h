/* Timings of a generation, as text. */
#ifndef SN_CLI_REPORT_H
#define SN_CLI_REPORT_H

#include <jansson.h>

/* Prints the JSON object "timings" of a generation (docs/CLIENT.md) on stderr, with each hop's share of the time. */
void sn_report_print(const json_t *timings, size_t n_generated);

#endif
