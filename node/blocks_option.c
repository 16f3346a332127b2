#include "node/blocks_option.h"

#include "base/parse.h"

#include <stdio.h>
#include <string.h>

static const char selected[] = "auto:";

static sn_status parse_auto(const char *text, int n_blocks, bool are_named, sn_blocks_option *out, sn_err *err) {
    const char *colon = strchr(text, ':');
    int64_t number = 0;
    char digits[16];
    if (!strncmp(text, selected, strlen(selected))) {
        sn_status status = sn_parse_int(text + strlen(selected), 1, n_blocks, &number, err);
        if (!status && are_named)
            status = sn_fail(err, SN_REFUSED,
                             "--device-map and --preload name blocks, which auto:N selects later: give --blocks A:B");
        *out = (sn_blocks_option){0, (int)number, (int)number};
        return status;
    }
    if (colon) {
        snprintf(digits, sizeof digits, "%.*s", (int)(colon - text), text);
        sn_status status = sn_parse_int(digits, 0, n_blocks - 1, &number, err);
        if (status) return status;
    }
    *out = (sn_blocks_option){(int)number, (int)number, 0};
    return SN_OK;
}

sn_status sn_blocks_option_parse(const char *text, int n_blocks, bool are_named, sn_blocks_option *out, sn_err *err) {
    const char *colon = strchr(text, ':');
    *out = (sn_blocks_option){0, n_blocks, 0};
    if (!strcmp(text, "all")) return SN_OK;
    if (!strcmp(text, "auto") || !strncmp(text, selected, strlen(selected)) || (colon && !strcmp(colon, ":auto")))
        return parse_auto(text, n_blocks, are_named, out, err);
    sn_status status = sn_parse_blocks(text, &out->first, &out->end, err);
    if (!status && out->end > n_blocks)
        status = sn_fail(err, SN_REFUSED, "'%s' is beyond the model's blocks, which are 0:%d", text, n_blocks);
    return status;
}
