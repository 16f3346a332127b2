#include "net/transport/splice_private.h"

#include "base/mem.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

sn_status sn_splice_new(int a, int b, int64_t now_us, sn_splice **out, sn_err *err) {
    sn_splice *s = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (status) {
        close(a);
        close(b);
        return status;
    }
    *s = (sn_splice){.fd = {a, b}, .moved_us = now_us};
    for (int i = 0; i < 2 && !status; i++) status = sn_calloc(&s->way[i].data, SN_SPLICE_BYTES, 1, err);
    if (status) sn_splice_free(&s);
    *out = s;
    return status;
}

void sn_splice_free(sn_splice **splice) {
    sn_splice *s = *splice;
    if (!s) return;
    for (int i = 0; i < 2; i++) {
        close(s->fd[i]);
        free(s->way[i].data);
    }
    free(s);
    *splice = NULL;
}

short sn_splice_events(const sn_splice *s, int side, bool may_read) {
    bool reads = may_read && !s->way[side].len && !s->way[side].ended;
    return (short)((reads ? POLLIN : 0) | (s->way[1 - side].len ? POLLOUT : 0));
}

static bool would_block(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

/* False: a connection has failed. */
static bool way_move(sn_splice *s, int side, int64_t *budget, int64_t now_us) {
    if (!s->way[side].len && !s->way[side].ended && *budget > 0) {
        size_t most = *budget < SN_SPLICE_BYTES ? (size_t)*budget : SN_SPLICE_BYTES;
        ssize_t n = recv(s->fd[side], s->way[side].data, most, 0);
        if (n < 0 && !would_block()) return false;
        s->way[side].ended = n == 0;
        if (n > 0) {
            s->way[side].at = 0;
            s->way[side].len = (size_t)n;
            s->moved_us = now_us;
            *budget -= n;
        }
    }
    if (!s->way[side].len) return true;
    ssize_t n = send(s->fd[1 - side], s->way[side].data + s->way[side].at, s->way[side].len, MSG_NOSIGNAL);
    if (n < 0) return would_block();
    s->way[side].at += (size_t)n;
    s->way[side].len -= (size_t)n;
    return true;
}

bool sn_splice_move(sn_splice *s, int64_t *budget, int64_t now_us) {
    for (int side = 0; side < 2; side++)
        if (!way_move(s, side, budget, now_us) || (s->way[side].ended && !s->way[side].len)) return false;
    return true;
}
