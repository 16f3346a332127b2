/* Any bytes as a signpost from a public table: refused with a reason, or whole. */
#include "net/signpost.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sn_err err = {0};
    sn_signpost post;
    uint8_t model[SN_KEY_SIZE];
    memset(model, 7, sizeof model);
    sn_status status = sn_signpost_open(data, size, model, 1000000, &post, &err);
    if (status ? !*err.text : !memchr(post.address, 0, sizeof post.address)) abort();
    return 0;
}
