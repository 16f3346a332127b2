/* Asking many nodes at once: for their status, and for the adapters that they publish. */
#include "base/clock.h"
#include "base/mem.h"
#include "client/net/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAST_ANSWERS_US = 50000 }; /* extra time of a query in a hurry */

/* What a node is asked, one after the other: the second reply measures the round trip over an existing connection. */
enum { ASK_STATUS, ASK_STATUS_AGAIN, ASK_ADAPTERS, ASK_NOTHING };

typedef struct node_query {
    sn_peer peer;
    int64_t sent_us;
    int question; /* that the node has not answered yet; ASK_NOTHING: it is not waited for */
} node_query;

static int next_question(const sn_link_query *query, size_t i, int question) {
    const bool asked[] = {query->status, query->status, query->adapters && query->nodes[i]->n_adapters};
    while (question < ASK_NOTHING && !asked[question]) question++;
    return question;
}

static sn_status question_message(int question, uint64_t correlation_id, sn_msg **out, sn_err *err) {
    sn_status status = sn_msg_new(question == ASK_ADAPTERS ? SN_MSG_ADAPTERS : SN_MSG_STATUS, correlation_id, out, err);
    if (status) return status;
    if (question == ASK_ADAPTERS)
        (*out)->adapters.protocol = SN_PROTOCOL_VERSION;
    else
        (*out)->status.protocol = SN_PROTOCOL_VERSION;
    return SN_OK;
}

static void node_query_fail(node_query *p, sn_node_reply *out, const char *why) {
    p->question = ASK_NOTHING;
    if (!out->answered) snprintf(out->error, sizeof out->error, "%.159s", why);
}

/* Asks a node the next question from `question` on, if there is one. SN_STOP only. */
static sn_status node_query_ask(sn_link *link, const sn_link_query *query, uint64_t base, size_t i, int question,
                                node_query *p, sn_node_reply *out, sn_err *err) {
    const sn_announcement *node = query->nodes[i];
    sn_msg *msg = NULL;
    sn_err why;
    p->question = next_question(query, i, question);
    if (p->question == ASK_NOTHING) return SN_OK;
    sn_status status = question_message(p->question, base + (uint64_t)p->question * query->n + i, &msg, &why);
    if (!status) status = sn_link_dial(link, node->address, node->curve_key, &p->peer, &why);
    p->sent_us = sn_now_us();
    if (!status) status = sn_link_send(link, p->peer, &msg, &why);
    sn_msg_free(&msg);
    if (status) node_query_fail(p, out, why.text);
    if (status == SN_STOP) *err = why;
    return status == SN_STOP ? status : SN_OK;
}

/* Takes the reply to the question that is open. */
static void node_query_take(sn_msg **msg, node_query *p, sn_node_reply *out) {
    sn_msg_kind kind = (*msg)->kind;
    if (kind != (p->question == ASK_ADAPTERS ? SN_MSG_ADAPTERS_REPLY : SN_MSG_STATUS_REPLY)) {
        node_query_fail(p, out, kind == SN_MSG_ERROR ? (*msg)->error.text : "its reply is of another kind");
        return;
    }
    out->answered = true;
    if (p->question == ASK_ADAPTERS) {
        out->adapters = *msg;
        *msg = NULL;
        return;
    }
    out->status = (*msg)->status_reply;
    out->rtt_us = sn_now_us() - p->sent_us;
}

/* Waits for one event, and asks the node whose reply it is the next question. */
static sn_status query_step(sn_link *link, const sn_link_query *query, uint64_t base, int64_t deadline_us,
                            node_query *p, sn_node_reply *out, sn_err *err) {
    sn_event event;
    sn_status status = sn_link_receive(link, deadline_us, &event, err);
    if (status) return status;
    uint64_t k = event.msg ? event.msg->correlation_id - base : UINT64_MAX;
    size_t i = (size_t)(k % query->n);
    if (p[i].question != ASK_NOTHING && k / query->n == (uint64_t)p[i].question && event.peer == p[i].peer) {
        node_query_take(&event.msg, &p[i], &out[i]);
        if (p[i].question != ASK_NOTHING)
            status = node_query_ask(link, query, base, i, p[i].question + 1, &p[i], &out[i], err);
    }
    sn_msg_free(&event.msg);
    for (i = 0; i < query->n && event.lost; i++)
        if (event.peer == p[i].peer && p[i].question != ASK_NOTHING)
            node_query_fail(&p[i], &out[i], "the connection was lost or could not be made: is the node still running?");
    return status;
}

static size_t queries_open(const node_query *p, size_t n) {
    size_t open = 0;
    for (size_t i = 0; i < n; i++) open += p[i].question != ASK_NOTHING;
    return open;
}

sn_status sn_link_query_nodes(sn_link *link, const sn_link_query *query, sn_node_reply *out, sn_err *err) {
    int64_t began_us = sn_now_us(), deadline_us = began_us + (int64_t)query->timeout_ms * 1000;
    uint64_t base =
        sn_link_new_correlation_id(); /* the nodes see which ids come next: replies count from their own peer only */
    bool hurry = query->hurry;
    node_query *p = NULL;
    memset(out, 0, query->n * sizeof *out);
    sn_status status = sn_calloc(&p, query->n, sizeof *p, err);
    if (status) return status;
    for (size_t i = 0; i < query->n; i++) p[i].question = ASK_NOTHING;
    for (size_t i = 0; i < query->n && !status; i++)
        status = node_query_ask(link, query, base, i, ASK_STATUS, &p[i], &out[i], err);
    for (size_t left = queries_open(p, query->n); left && !status && sn_now_us() < deadline_us;) {
        status = query_step(link, query, base, deadline_us, p, out, err);
        left = queries_open(p, query->n);
        int64_t now_us = sn_now_us(), soon_us = now_us + (now_us - began_us) + LAST_ANSWERS_US;
        if (hurry && 2 * left <= query->n && soon_us < deadline_us) deadline_us = soon_us;
        if (2 * left <= query->n) hurry = false; /* the deadline is set once */
    }
    for (size_t i = 0; i < query->n; i++)
        if (p[i].question != ASK_NOTHING) node_query_fail(&p[i], &out[i], "no answer in time");
    free(p);
    return status;
}
