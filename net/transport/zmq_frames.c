#include "net/transport/zmq_frames_private.h"

#include <stdlib.h>
#include <string.h>

static void free_frame(void *owner) {
    zmq_msg_close(owner);
    free(owner);
}

/* Moves a received frame into the message; copies the data only if it is not aligned for float. */
static sn_status attach_tensor_frame(sn_msg *msg, zmq_msg_t *frame, sn_err *err) {
    size_t len = zmq_msg_size(frame);
    const void *data = zmq_msg_data(frame);
    if ((uintptr_t)data % sizeof(float) == 0) {
        zmq_msg_t *kept = malloc(sizeof *kept);
        if (!kept) return sn_fail(err, SN_STOP, "out of memory: no space for a frame");
        zmq_msg_init(kept);
        zmq_msg_move(kept, frame);
        sn_status status = sn_msg_attach_tensor(msg, 1, zmq_msg_data(kept), len, free_frame, kept, err);
        if (status) free_frame(kept);
        return status;
    }
    void *copy = malloc(len ? len : 1);
    if (!copy) return sn_fail(err, SN_STOP, "out of memory: no space for a tensor");
    memcpy(copy, data, len);
    sn_status status = sn_msg_attach_tensor(msg, 1, copy, len, free, copy, err);
    if (status) free(copy);
    return status;
}

sn_status sn_zmq_decode(zmq_msg_t *map, zmq_msg_t *tensor, size_t n_frames, sn_msg **out, sn_err *err) {
    sn_status status = sn_msg_decode(zmq_msg_data(map), zmq_msg_size(map), out, err);
    if (!status)
        status = n_frames == 1 && (*out)->tensor.rank ? attach_tensor_frame(*out, tensor, err)
                                                      : sn_msg_attach_tensor(*out, n_frames, NULL, 0, NULL, NULL, err);
    if (status) sn_msg_free(out);
    return status;
}

size_t sn_zmq_frame_bytes(size_t payload) {
    enum { SHORT_MAX = 255, SHORT_HEADER = 2, LONG_HEADER = 9, SEALED = 33 };
    return payload + SEALED + (payload + SEALED > SHORT_MAX ? LONG_HEADER : SHORT_HEADER);
}
