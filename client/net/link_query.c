/* Asking many nodes at once: for their status, and for the adapters that they publish. */
#include "base/clock.h"
#include "base/mem.h"
#include "client/net/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAST_ANSWERS_US = 50000, /* extra time of a query in a hurry */
    LOOK_US = 2000,          /* how often one by connection looks at those that are being made; */
    FAR_US = 10000,          /* nodes that are nearer answer soon, which says more */
};

/* What a node is asked, one after the other: the second reply measures the round trip over an existing connection. */
enum { ASK_STATUS, ASK_STATUS_AGAIN, ASK_ADAPTERS, ASK_NOTHING };

typedef struct node_query {
    sn_peer peer;
    int64_t sent_us;
    int question; /* that the node has not answered yet; ASK_NOTHING: it is not waited for */
    bool dialled; /* by this query */
} node_query;

typedef struct querying {
    sn_link *link;
    const sn_link_query *query;
    sn_node_reply *out; /* (n) */
    node_query *p;      /* (n) */
    uint64_t base; /* the correlation ids are those from here on: replies count from the peer that was asked only */
    size_t begun, open; /* nodes that were asked; that are waited for */
} querying;

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

/* The node is not waited for any more. Where many are asked, at once or in one query after the other, those that this
 * query dialled are hung up on: a large swarm, or a flood of invented nodes, would take all descriptors of the program.
 */
static void query_end(querying *q, size_t i) {
    bool many = q->query->n > SN_LINK_ASKED_AT_ONCE || sn_link_connections(q->link) > SN_LINK_ASKED_AT_ONCE;
    if (q->p[i].question != ASK_NOTHING) q->open--;
    q->p[i].question = ASK_NOTHING;
    if (q->p[i].dialled && many) sn_link_hang_up(q->link, q->p[i].peer);
    q->p[i].dialled = false;
}

static void query_fail(querying *q, size_t i, const char *why) {
    query_end(q, i);
    if (!q->out[i].answered) snprintf(q->out[i].error, sizeof q->out[i].error, "%.159s", why);
}

/* Asks a node the next question from `question` on, if there is one. SN_STOP only. */
static sn_status query_ask(querying *q, size_t i, int question, sn_err *err) {
    const sn_announcement *node = q->query->nodes[i];
    node_query *p = &q->p[i];
    sn_msg *msg = NULL;
    sn_err why;
    size_t connections = sn_link_connections(q->link);
    question = next_question(q->query, i, question);
    if (question == ASK_NOTHING) {
        query_end(q, i);
        return SN_OK;
    }
    if (p->question == ASK_NOTHING) q->open++;
    p->question = question;
    sn_status status = question_message(question, q->base + (uint64_t)question * q->query->n + i, &msg, &why);
    if (!status) status = sn_link_dial(q->link, node->address, node->curve_key, &p->peer, &why);
    p->dialled = p->dialled || sn_link_connections(q->link) > connections;
    p->sent_us = sn_now_us();
    if (!status) status = sn_link_send(q->link, p->peer, &msg, &why);
    sn_msg_free(&msg);
    if (status) query_fail(q, i, why.text);
    if (status == SN_STOP) *err = why;
    return status == SN_STOP ? status : SN_OK;
}

/* Asks nodes that were not asked yet, as many as there is room for. */
static sn_status query_begin(querying *q, sn_err *err) {
    sn_status status = SN_OK;
    while (!status && q->begun < q->query->n && q->open < SN_LINK_ASKED_AT_ONCE)
        status = query_ask(q, q->begun++, ASK_STATUS, err);
    return status;
}

/* Takes the reply to the question that is open, and asks the next one. */
static sn_status query_take(querying *q, size_t i, sn_msg **msg, sn_err *err) {
    node_query *p = &q->p[i];
    sn_node_reply *out = &q->out[i];
    sn_msg_kind kind = (*msg)->kind;
    if (kind != (p->question == ASK_ADAPTERS ? SN_MSG_ADAPTERS_REPLY : SN_MSG_STATUS_REPLY)) {
        query_fail(q, i, kind == SN_MSG_ERROR ? (*msg)->error.text : "its reply is of another kind");
        return SN_OK;
    }
    out->answered = true;
    if (p->question == ASK_ADAPTERS) {
        out->adapters = *msg;
        *msg = NULL;
    } else {
        out->status = (*msg)->status_reply;
        out->rtt_us = sn_now_us() - p->sent_us;
    }
    return query_ask(q, i, p->question + 1, err);
}

static sn_status query_step(querying *q, int64_t deadline_us, sn_err *err) {
    sn_event event;
    sn_status status = sn_link_receive(q->link, deadline_us, &event, err);
    if (status) return status;
    uint64_t k = event.msg ? event.msg->correlation_id - q->base : UINT64_MAX;
    size_t n = q->query->n, i = (size_t)(k % n);
    if (q->p[i].question != ASK_NOTHING && k / n == (uint64_t)q->p[i].question && event.peer == q->p[i].peer)
        status = query_take(q, i, &event.msg, err);
    sn_msg_free(&event.msg);
    for (i = 0; i < q->begun && event.lost; i++)
        if (event.peer == q->p[i].peer && q->p[i].question != ASK_NOTHING) {
            query_fail(q, i, "the connection was lost or could not be made: is the node still running?");
            q->out[i].gone = true;
        }
    return status ? status : query_begin(q, err);
}

/* The nodes to which this query has made a connection are measured: what an older one was like says nothing of now. */
static void query_look(querying *q) {
    const sn_directory *directory = sn_link_directory(q->link);
    const int64_t now_ms = sn_unix_ms();
    for (size_t i = 0; i < q->begun; i++) {
        if (q->p[i].question == ASK_NOTHING || !q->p[i].dialled) continue;
        if (!sn_directory_is_proven(directory, q->query->nodes[i]->node, now_ms)) continue;
        const int64_t us = sn_link_round_trip_us(q->link, q->p[i].peer);
        if (us < FAR_US) continue;
        q->out[i].answered = true;
        q->out[i].rtt_us = us;
        query_end(q, i);
    }
}

/* The next event of a query, for which it waits until then at most. */
static sn_status query_go_on(querying *q, int64_t deadline_us, sn_err *err) {
    if (!q->query->by_connection) return query_step(q, deadline_us, err);
    const int64_t look_us = sn_now_us() + LOOK_US;
    query_look(q);
    return q->open ? query_step(q, look_us < deadline_us ? look_us : deadline_us, err) : query_begin(q, err);
}

static sn_status query_run(querying *q, sn_err *err) {
    int64_t began_us = sn_now_us(), deadline_us = began_us + (int64_t)q->query->timeout_ms * 1000;
    bool hurry = q->query->hurry;
    sn_status status = query_begin(q, err);
    while (q->open && !status && sn_now_us() < deadline_us) {
        status = query_go_on(q, deadline_us, err);
        if (!hurry || 2 * (q->open + q->query->n - q->begun) > q->query->n) continue;
        int64_t now_us = sn_now_us(), soon_us = now_us + (now_us - began_us) + LAST_ANSWERS_US;
        if (soon_us < deadline_us) deadline_us = soon_us;
        hurry = false; /* the deadline is set once */
    }
    for (size_t i = 0; i < q->query->n; i++)
        if (i >= q->begun || q->p[i].question != ASK_NOTHING)
            query_fail(q, i, i < q->begun ? "no answer in time" : "too many others did not answer: it was not asked");
    return status;
}

sn_status sn_link_query_nodes(sn_link *link, const sn_link_query *query, sn_node_reply *out, sn_err *err) {
    querying q = {.link = link, .query = query, .out = out, .base = sn_link_new_correlation_id()};
    memset(out, 0, query->n * sizeof *out);
    sn_status status = sn_calloc(&q.p, query->n, sizeof *q.p, err);
    if (status) return status;
    for (size_t i = 0; i < query->n; i++) q.p[i].question = ASK_NOTHING;
    status = query_run(&q, err);
    free(q.p);
    return status;
}
