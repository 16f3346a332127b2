/* Asking many nodes for their status at once. */
#include "base/clock.h"
#include "base/mem.h"
#include "client/net/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAST_ANSWERS_US = 50000 }; /* extra time of a query in a hurry */

typedef struct status_query {
    sn_peer peer;
    int64_t sent_us;
    bool over;
} status_query;

static sn_status status_query_send(sn_link *link, const sn_announcement *node, uint64_t correlation_id, status_query *p,
                                   sn_err *err) {
    sn_msg *msg = NULL;
    sn_status status = sn_msg_new(SN_MSG_STATUS, correlation_id, &msg, err);
    if (status) return status;
    msg->status.protocol = SN_PROTOCOL_VERSION;
    status = sn_link_dial(link, node->address, node->curve_key, &p->peer, err);
    p->sent_us = sn_now_us();
    if (!status) status = sn_link_send(link, p->peer, &msg, err);
    sn_msg_free(&msg);
    return status;
}

static void status_query_fail(status_query *p, sn_node_status *out, const char *why) {
    p->over = true;
    if (!out->answered) snprintf(out->error, sizeof out->error, "%.159s", why);
}

/* The first reply gives the status; then a second request measures the round trip over the existing connection. */
static void status_query_take(sn_link *link, const sn_announcement *node, const sn_event *event, uint64_t next,
                              status_query *p, sn_node_status *out) {
    sn_err why = {0};
    bool again = out->answered;
    if (event->msg->kind != SN_MSG_STATUS_REPLY) {
        status_query_fail(p, out,
                          event->msg->kind == SN_MSG_ERROR ? event->msg->error.text : "its reply is of another kind");
        return;
    }
    out->answered = true;
    out->status = event->msg->status_reply;
    out->rtt_us = sn_now_us() - p->sent_us;
    p->over = again || status_query_send(link, node, next, p, &why);
}

sn_status sn_link_query_status(sn_link *link, const sn_announcement *const *nodes, size_t n, int timeout_ms, bool hurry,
                               sn_node_status *out, sn_err *err) {
    int64_t began_us = sn_now_us(), deadline_us = began_us + (int64_t)timeout_ms * 1000;
    uint64_t base = sn_link_next_correlation_id(link); /* of 2 * n in a row */
    status_query *p = NULL;
    sn_status status = sn_calloc(&p, n, sizeof *p, err);
    if (status) return status;
    for (size_t i = 1; i < 2 * n; i++) (void)sn_link_next_correlation_id(link);
    memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < n && !status; i++) {
        sn_err why;
        status = status_query_send(link, nodes[i], base + i, &p[i], &why);
        if (status) status_query_fail(&p[i], &out[i], why.text);
        if (status == SN_STOP)
            *err = why;
        else
            status = SN_OK;
    }
    for (size_t left = n; left && !status && sn_now_us() < deadline_us;) {
        sn_event event;
        status = sn_link_receive(link, deadline_us, &event, err);
        if (status) break;
        uint64_t k = event.msg ? event.msg->correlation_id - base : UINT64_MAX;
        if (k < 2 * n && event.peer == p[k % n].peer)
            status_query_take(link, nodes[k % n], &event, base + n + k % n, &p[k % n], &out[k % n]);
        sn_msg_free(&event.msg);
        left = 0;
        for (size_t i = 0; i < n; i++) {
            if (event.lost && event.peer == p[i].peer && !p[i].over)
                status_query_fail(&p[i], &out[i],
                                  "the connection was lost or could not be made: is the node still running?");
            left += !p[i].over;
        }
        int64_t now_us = sn_now_us(), soon_us = now_us + (now_us - began_us) + LAST_ANSWERS_US;
        if (hurry && 2 * left <= n && soon_us < deadline_us) deadline_us = soon_us;
        if (2 * left <= n) hurry = false; /* the deadline is set once */
    }
    for (size_t i = 0; i < n; i++)
        if (!p[i].over) status_query_fail(&p[i], &out[i], "no answer in time");
    free(p);
    return status;
}
