/* Any bytes as a configuration file: read or refused with an error, never a crash or a leak. */
#include "base/options.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *model = NULL;
    sn_strings join = {0};
    size_t memory = 0;
    int64_t threads = 0;
    int64_t timeout_ms = 0;
    double temperature = 0, share = 0;
    int dtype = 0;
    sn_ints list = {0};
    static const sn_word words[] = {{"f32", 0}, {"q8", 1}, {NULL, 0}};
    bool push = false;
    sn_block_range local = {0};
    const sn_option table[] = {
        SN_OPT_STRING("model", "PATH", &model, ""),
        SN_OPT_ADDRESSES("join", "HOST:PORT", &join, SN_HOST_PORT_PINNED, ""),
        SN_OPT_BLOCKS("local", "A:B", &local, ""),
        SN_OPT_FLAG("push", &push, ""),
        SN_OPT_SIZE("kv-memory", "SIZE", &memory, ""),
        SN_OPT_INT("threads", "N", &threads, 1, 64, ""),
        SN_OPT_FLOAT("temperature", "T", &temperature, 0, 10, ""),
        SN_OPT_RATIO("share", "RATIO", &share, 0, ""),
        SN_OPT_DURATION_MS("timeout", &timeout_ms, 0, 60000, ""),
        SN_OPT_ENUM("kv-dtype", &dtype, words, ""),
        SN_OPT_INTS("sizes", &list, 1, 9, ""),
    };
    const sn_option_group group = SN_OPTION_GROUP("All:", table);
    const sn_option_group *const groups[] = {&group};
    const sn_command command = {.program = "fuzz", .synopsis = "", .about = "", .groups = groups, .n_groups = 1};
    sn_options options;
    sn_err err = {0};
    sn_status status = sn_options_parse_file(&command, (const char *)data, size, "input", &options, &err);
    if (status && !err.text[0]) abort(); /* every refusal has a message */
    if (!status && (threads < 0 || threads > 64 || timeout_ms < 0 || timeout_ms > 60000)) abort();
    if (!status && (!(share >= 0 && share <= 1) || dtype < 0 || dtype > 1 || list.n > SN_INTS_MAX)) abort();
    sn_options_fini(&command, &options);
    return 0;
}
