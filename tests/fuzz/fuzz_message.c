/* Any bytes as frame 0. A message that is decoded can be encoded, to bytes that decode to the same message. */
#include "net/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good) {
    if (!good) abort();
}

static void attach_frame(sn_msg *msg) {
    /* The frame is never read here, so it need not exist. */
    require(sn_msg_attach_tensor(msg, msg->tensor.rank ? 1 : 0, "", msg->tensor.bytes, NULL, NULL, NULL) == SN_OK);
    require(sn_msg_attach_tensor(msg, 2, "", msg->tensor.bytes, NULL, NULL, NULL) == SN_REFUSED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sn_err err;
    sn_msg *first, *second;
    if (sn_msg_decode(data, size, &first, &err)) {
        require(!first && err.status != SN_OK && *err.text);
        return 0;
    }
    sn_buf once, twice;
    sn_buf_init(&once, SN_MAP_SIZE_MAX);
    sn_buf_init(&twice, SN_MAP_SIZE_MAX);
    attach_frame(first);
    require(sn_msg_encode(first, &once, &err) == SN_OK);
    require(sn_msg_decode(once.data, once.len, &second, &err) == SN_OK);
    attach_frame(second);
    require(sn_msg_encode(second, &twice, &err) == SN_OK);
    require(once.len == twice.len && !memcmp(once.data, twice.data, once.len));
    sn_buf_fini(&once);
    sn_buf_fini(&twice);
    sn_msg_free(&first);
    sn_msg_free(&second);
    return 0;
}
