#include "net/transport/zmq_zap_private.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "net/transport/handshake_limit_private.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* Frames of a request. The credentials of CURVE are the client's long-term public key, which the handshake has proven.
 */
enum { VERSION, REQUEST_ID, DOMAIN, ADDRESS, ROUTING_ID, MECHANISM, CREDENTIALS, N_FRAMES };

enum { KEY_SIZE = 32 };

struct sn_zap {
    pthread_t thread;
    void *socket;
    sn_handshake_limit *handshake_limit;
};

static bool frame_is(zmq_msg_t *frame, const char *text) {
    return zmq_msg_size(frame) == strlen(text) && !memcmp(zmq_msg_data(frame), text, strlen(text));
}

/* Whether the request is a CURVE handshake of this domain; its key is proven. */
static bool zap_admits(zmq_msg_t frames[N_FRAMES], int n_frames) {
    return n_frames == N_FRAMES && frame_is(&frames[VERSION], "1.0") && frame_is(&frames[DOMAIN], SN_ZAP_DOMAIN) &&
           frame_is(&frames[MECHANISM], "CURVE") && zmq_msg_size(&frames[CREDENTIALS]) == KEY_SIZE;
}

/* Reads one request and drops further frames. Returns the number of frames, -1: the context is shut down. */
static int zap_receive(void *socket, zmq_msg_t frames[N_FRAMES]) {
    int n = 0, more = 1;
    while (more) {
        zmq_msg_t surplus, *frame = n < N_FRAMES ? &frames[n] : &surplus;
        zmq_msg_init(&surplus);
        int got;
        do got = zmq_msg_recv(frame, socket, 0);
        while (got < 0 && zmq_errno() == EINTR);
        if (got < 0) return -1;
        more = zmq_msg_more(frame);
        zmq_msg_close(&surplus);
        n++;
    }
    return n;
}

/* Sends version, request id, status code, status text, user id, metadata. 300 is a temporary error: libzmq tries again.
 */
static void zap_answer(const sn_zap *zap, zmq_msg_t frames[N_FRAMES], int n_frames) {
    void *socket = zap->socket;
    bool known = n_frames > ADDRESS, admitted = zap_admits(frames, n_frames);
    bool often = known && !sn_handshake_limit_allows(zap->handshake_limit, zmq_msg_data(&frames[ADDRESS]),
                                                     zmq_msg_size(&frames[ADDRESS]), sn_now_us());
    admitted = admitted && !often;
    char user[2 * KEY_SIZE + 1] = "";
    if (admitted) sn_hex(zmq_msg_data(&frames[CREDENTIALS]), KEY_SIZE, user);
    zmq_send(socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(socket, zmq_msg_data(&frames[REQUEST_ID]), zmq_msg_size(&frames[REQUEST_ID]), ZMQ_SNDMORE);
    zmq_send(socket, admitted ? "200" : often ? "300" : "400", 3, ZMQ_SNDMORE);
    zmq_send(socket, "", 0, ZMQ_SNDMORE);
    zmq_send(socket, user, strlen(user), ZMQ_SNDMORE);
    zmq_send(socket, "", 0, 0);
}

static void *zap_serve(void *ctx) {
    sn_zap *zap = ctx;
    for (int n = 0; n >= 0;) {
        zmq_msg_t frames[N_FRAMES];
        for (int i = 0; i < N_FRAMES; i++) zmq_msg_init(&frames[i]);
        n = zap_receive(zap->socket, frames);
        if (n >= 0) zap_answer(zap, frames, n);
        for (int i = 0; i < N_FRAMES; i++) zmq_msg_close(&frames[i]);
    }
    zmq_close(zap->socket);
    return NULL;
}

sn_status sn_zap_start(void *zmq_context, sn_zap **out, sn_err *err) {
    sn_zap *zap;
    *out = NULL;
    sn_status status = sn_calloc(&zap, 1, sizeof *zap, err);
    if (status) return status;
    status = sn_handshake_limit_new(&zap->handshake_limit, err);
    if (status) goto out;
    zap->socket = zmq_socket(zmq_context, ZMQ_REP);
    if (!zap->socket || zmq_bind(zap->socket, "inproc://zeromq.zap.01")) {
        status = sn_fail(err, SN_STOP, "the ZAP handler cannot start: %s", zmq_strerror(zmq_errno()));
        goto out;
    }
    sigset_t all, before; /* the program's own threads handle signals */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&zap->thread, NULL, zap_serve, zap);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) status = sn_fail(err, SN_STOP, "the thread of the ZAP handler cannot start: %s", strerror(failed));
out:
    if (status && zap->socket) zmq_close(zap->socket);
    if (status) sn_handshake_limit_free(&zap->handshake_limit);
    if (status)
        free(zap);
    else
        *out = zap;
    return status;
}

void sn_zap_join(sn_zap **zap) {
    if (!*zap) return;
    pthread_join((*zap)->thread, NULL);
    sn_handshake_limit_free(&(*zap)->handshake_limit);
    free(*zap);
    *zap = NULL;
}
