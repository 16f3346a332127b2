#include "net/transport/zmq_monitor_private.h"

#include <errno.h>
#include <linux/tcp.h> /* not netinet/tcp.h, whose tcp_info ends before tcpi_bytes_received */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <zmq.h>

sn_status sn_zmq_monitor_open(void *context, void *socket, uint64_t number, void **out, sn_err *err) {
    char address[48];
    int none = 0; /* no limit: a full queue would block libzmq's I/O thread; there are few events a second */
    snprintf(address, sizeof address, "inproc://monitor-%llu", (unsigned long long)number);
    void *monitor = NULL;
    if (!zmq_socket_monitor(socket, address,
                            ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                                ZMQ_EVENT_CONNECT_RETRIED) &&
        (monitor = zmq_socket(context, ZMQ_PAIR)) && !zmq_setsockopt(monitor, ZMQ_RCVHWM, &none, sizeof none) &&
        !zmq_setsockopt(monitor, ZMQ_LINGER, &none, sizeof none) && !zmq_connect(monitor, address)) {
        *out = monitor;
        return SN_OK;
    }
    int reason = zmq_errno();
    sn_zmq_monitor_close(socket, monitor);
    *out = NULL;
    return sn_fail(err, reason == EMFILE ? SN_RETRY : SN_STOP,
                   "a ZeroMQ socket to watch a connection cannot be opened: %s", zmq_strerror(reason));
}

void sn_zmq_monitor_close(void *socket, void *monitor) {
    zmq_socket_monitor(socket, NULL, 0);
    if (monitor) zmq_close(monitor);
}

sn_connection sn_zmq_monitor_read(void *monitor, int *fd) {
    uint8_t event[6]; /* the event in 16 bits, a value in 32; the endpoint follows in a second frame */
    uint16_t what;
    char address[1];
    if (zmq_recv(monitor, event, sizeof event, ZMQ_DONTWAIT) != sizeof event) return SN_CONNECTION_UNCHANGED;
    zmq_recv(monitor, address, sizeof address, ZMQ_DONTWAIT);
    memcpy(&what, event, sizeof what);
    if (what == ZMQ_EVENT_CONNECTED) {
        memcpy(fd, event + sizeof what, sizeof *fd);
        return SN_CONNECTION_MADE;
    }
    return what == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? SN_CONNECTION_UP
           : what == ZMQ_EVENT_DISCONNECTED      ? SN_CONNECTION_DOWN
                                                 : SN_CONNECTION_REFUSED;
}

uint64_t sn_zmq_bytes_received(int fd) {
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) ? 0 : info.tcpi_bytes_received;
}

uint64_t sn_zmq_unread_max(void) { return (uint64_t)1 << 30; }
uint64_t sn_zmq_unsent_max(void) { return (uint64_t)2 << 30; }
