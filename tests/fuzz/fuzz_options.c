/* Any bytes as a configuration file: read or refused with a sentence, never a crash or a leak. */
#include "base/options.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *model = NULL;
    sn_strings join = {0};
    size_t memory = 0;
    int64_t threads = 0;
    double temperature = 0;
    bool push = false;
    sn_block_range local = {0};
    const sn_option table[] = {
        SN_OPT_STRING("model", "PATH", &model, ""),
        SN_OPT_STRINGS("join", "ADDRESS", &join, ""),
        SN_OPT_BLOCKS("local", "A:B", &local, ""),
        SN_OPT_FLAG("push", &push, ""),
        SN_OPT_SIZE("kv-memory", "SIZE", &memory, ""),
        SN_OPT_INT("threads", "N", &threads, 1, 64, ""),
        SN_OPT_FLOAT("temperature", "T", &temperature, 0, 10, ""),
    };
    const sn_option_group group = {"All:", table, sizeof table / sizeof *table};
    const sn_command command = {.program = "fuzz", .synopsis = "", .about = "", .groups = &group, .n_groups = 1};
    sn_options options;
    sn_err err = {0};
    sn_status status = sn_options_parse_file(&command, (const char *)data, size, "input", &options, &err);
    if (status && !err.text[0]) abort(); /* every refusal says why */
    if (!status && (threads < 0 || threads > 64)) abort();
    sn_options_fini(&command, &options);
    return 0;
}
