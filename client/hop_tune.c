/* What was trained comes to a hop's node. */
#include "client/hop.h"

#include "base/clock.h"

#include <string.h>

enum { BUSY_AGAIN_US = 20000, BUSY_US = 3000000 };

static sn_status ask(const sn_hop_at *hop, sn_link *link, const void *image, size_t bytes, int timeout_ms, sn_err *err) {
    sn_msg *msg = NULL, *tuned = NULL;
    void *data;
    sn_status status = sn_msg_new(SN_MSG_TUNE, 0, &msg, err);
    if (!status) status = sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){bytes / sizeof(float)}, &data, err);
    if (status) {
        sn_msg_free(&msg);
        return status;
    }
    memcpy(data, image, bytes);
    msg->tune.protocol = SN_PROTOCOL;
    memcpy(msg->tune.model, hop->model.bytes, SN_HASH_SIZE);
    memcpy(msg->tune.hash, hop->tuned.bytes, SN_HASH_SIZE);
    status = sn_link_call(link, hop->address, hop->curve_key, &msg, SN_MSG_TUNED, timeout_ms, NULL, &tuned, err);
    sn_msg_free(&tuned);
    return status;
}

/* A node that is just loading or forgetting one says RETRY; so does one that is full of what others use. */
sn_status sn_hop_tune(const sn_hop_at *hop, sn_link *link, const void *image, size_t bytes, int timeout_ms, sn_err *err) {
    int64_t until_us = sn_now_us() + BUSY_US;
    for (;;) {
        sn_status status = ask(hop, link, image, bytes, timeout_ms, err);
        if (status != SN_RETRY || sn_now_us() + BUSY_AGAIN_US > until_us) return status;
        sn_sleep_us(BUSY_AGAIN_US);
    }
}
