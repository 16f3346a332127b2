/* Messages from the frames that libzmq has received. Private to net/transport/. */
#ifndef SN_NET_TRANSPORT_ZMQ_FRAMES_PRIVATE_H
#define SN_NET_TRANSPORT_ZMQ_FRAMES_PRIVATE_H

#include "net/message.h"

#include <zmq.h>

/* n_frames: that followed the map; the first of them is `tensor`, which becomes the message's. SN_REFUSED: they are no
 * message. */
sn_status sn_zmq_decode(zmq_msg_t *map, zmq_msg_t *tensor, size_t n_frames, sn_msg **out, sn_err *err) SN_MUST_USE;
/* Bytes of a frame with this payload on the wire, where CURVE seals it. */
size_t sn_zmq_frame_bytes(size_t payload);

#endif
