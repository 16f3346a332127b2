/* How it works: the backbone over nodes. A route divides the blocks over hops. Each micro-batch is a traversal: it
 * visits the hops forward to the last block, calls the loss callback and visits them backward, with one request in
 * flight at a time. Several traversals are in flight concurrently, so that every node has work; each node gets at most
 * BATCHES_PER_NODE requests at a time.
 *
 * Before its first request, a hop receives the trained parameters of its blocks as an adapter (ADAPTER_PUT). Requests
 * name the adapter by its hash. A node that lost it replies SN_REBUILD, and the adapter is sent again. A node that is
 * busy replies SN_RETRY and is asked again after BUSY_RETRY_US, for at most the timeout.
 *
 * The nodes of a route are asked whether they are there before anything else is sent to them, and before their weights
 * count: who invents a node costs a training seconds. When a node fails (no answer to that question, lost connection,
 * no reply in time, invalid reply), a new route without it is planned, and all unfinished traversals begin again from
 * the first block. Their results have the same bits, because a node's computation does not depend on the division into
 * hops. swarm_run_all is the event loop; it and all other functions run on the caller's thread. */
#include "client/tune/backbone.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/wire.h"
#include "client/routing/route.h"
#include "model/source.h"

#include <stdlib.h>
#include <string.h>

enum {
    BATCHES_PER_NODE = 2,
    BUSY_RETRY_US = 20000,
    ROUTE_WAIT_US = 3000000,
    ROUTE_POLL_US = 200000,
    ANSWER_MS = 5000, /* for the question whether a node is there */
    DISCOVER_SLICE_US = 500000,
    CANCEL_POLL_US = 500000, /* between two looks at the cancel flag */
    ADAPTER_IMAGE_MAX = 1 << 30
};

typedef struct hop {
    int first, end;
    uint8_t node[SN_KEY_SIZE], curve_key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
    sn_peer peer;
    int busy;                                     /* micro-batches in flight at the node */
    sn_buf image;                                 /* adapter of its blocks; empty: none */
    sn_hash adapter_hash;                         /* hash of image */
    bool adapter_held;                            /* the node has confirmed the adapter */
    uint64_t correlation_id;                      /* of the ADAPTER_PUT in flight; 0: none */
    int64_t deadline_us, not_before_us, since_us; /* since: time of the first ADAPTER_PUT */
} hop;

/* The forward and backward pass of one micro-batch through the hops. */
typedef struct traversal {
    const sn_micro_batch *micro_batch;
    bool begun, back, done;
    size_t at;               /* index of the present hop */
    float *in[SN_HOPS_MAX];  /* (rows, n_embd): input of each hop; in[0] is borrowed from the micro-batch */
    float *grad;             /* (rows, n_embd): gradient of the output of hop `at` */
    uint64_t correlation_id; /* of the request in flight; 0: none */
    int64_t deadline_us, not_before_us, since_us; /* since: arrival at this hop */
} traversal;

typedef struct swarm_backbone {
    sn_backbone base;
    sn_backbone_swarm_options options; /* options.blocks.end is set */
    const sn_hparams *hp;
    sn_hash model;
    sn_hash *block_hash;
    const sn_hash **known_hash; /* (n_blocks): into block_hash; NULL: not known yet */
    sn_peer_stats *peer_stats;
    hop hops[SN_HOPS_MAX];
    size_t n_hops;
    const sn_params *params;
    traversal *traversals;
    size_t n_traversals;
    bool back;   /* this run has a backward pass */
    int retries; /* failures left of nodes that were there */
} swarm_backbone;

static bool swarm_interrupted(const swarm_backbone *s) { return sn_is_cancelled(s->options.cancel); }

/* An interrupt is one error, wherever it was noticed. */
static sn_status swarm_end(const swarm_backbone *s, sn_status status, sn_err *err) {
    return status && swarm_interrupted(s) ? sn_fail(err, SN_RETRY, "interrupted") : status;
}

/* -- the route */

static void swarm_drop_hops(swarm_backbone *s) {
    for (size_t i = 0; i < s->n_hops; i++) sn_buf_fini(&s->hops[i].image);
    s->n_hops = 0;
}

static sn_status swarm_plan_now(swarm_backbone *s, sn_route *route, sn_err *err) {
    sn_candidates candidates = {0};
    const sn_candidate_query query = {.directory = sn_link_directory(s->options.link),
                                      .peer_stats = s->peer_stats,
                                      .now_us = sn_now_us(),
                                      .unix_ms = sn_unix_ms(),
                                      .model = s->model,
                                      .n_blocks = s->hp->n_blocks,
                                      .block_hash = s->known_hash,
                                      .kv_dtype = -1, /* training keeps its own, in float32 */
                                      .node_filter = s->options.node_filter};
    sn_status status = sn_candidates_make(&query, &candidates, err);
    sn_candidates_ignore_kv(&candidates); /* training uses no KV cache */
    if (!status)
        status = sn_route_shortest(candidates.at, candidates.n, false, s->options.blocks.first, s->options.blocks.end,
                                   route, err);
    sn_candidates_fini(&candidates);
    return status;
}

/* Discovery is asked in slices, between which an interrupt is noticed. */
static sn_status swarm_plan_route(swarm_backbone *s, sn_route *route, sn_err *err) {
    int64_t until_us = sn_now_us() + ROUTE_WAIT_US;
    bool discovered = false;
    for (;;) {
        sn_err discover_err;
        sn_status status = swarm_plan_now(s, route, err);
        int64_t left_us = until_us - sn_now_us();
        if (status != SN_RETRY || left_us <= 0 || swarm_interrupted(s)) return status;
        bool last = left_us <= DISCOVER_SLICE_US;
        sn_status discover_status = sn_link_discover(
            s->options.link, &s->model, (int)((last ? left_us : DISCOVER_SLICE_US) / 1000) + 1, &discover_err);
        discovered = discovered || !discover_status;
        if (discover_status && (discover_status != SN_RETRY || (last && !discovered)))
            return sn_fail(err, discover_status, "%s", discover_err.text);
        sn_sleep_us(ROUTE_POLL_US);
    }
}

/* Serialises the trained parameters of the hop's blocks; the node does not hold them yet. */
static sn_status hop_make_image(swarm_backbone *s, hop *h, sn_err *err) {
    sn_buf_fini(&h->image);
    sn_buf_init(&h->image, ADAPTER_IMAGE_MAX);
    h->adapter_held = false;
    h->correlation_id = 0;
    h->since_us = 0;
    sn_status status = s->params ? sn_params_image(s->params, h->first, h->end, &h->image, err) : SN_OK;
    h->adapter_hash = (sn_hash){0};
    if (!status && h->image.len) h->adapter_hash = sn_hash_of(h->image.data, h->image.len);
    return status;
}

/* From now on the blocks of this leg have the weights that its node announces. */
static void swarm_note_weights(swarm_backbone *s, const sn_route_leg *leg) {
    for (int b = leg->first; b < leg->end; b++) {
        memcpy(s->block_hash[b].bytes, leg->node->block_hash[b - (int)leg->node->first_block], SN_HASH_SIZE);
        s->known_hash[b] = &s->block_hash[b];
    }
}

static void swarm_note_failure(swarm_backbone *s, const uint8_t node[SN_KEY_SIZE], const char *address, int first,
                               int end, const char *why) {
    sn_log(SN_LOG_WARN, "node failed", "node=%s blocks=%d:%d text=%s", address, first, end, why);
    sn_peer_stats_note_failure(s->peer_stats, node, sn_now_us());
}

/* Asks all nodes of the route at once whether they are there. *absent: how many are not; *silent: the last one that is
 * and does not answer; NULL: all do. */
static sn_status swarm_ask_nodes(swarm_backbone *s, const sn_route *route, size_t *absent,
                                 const sn_announcement **silent, sn_err *err) {
    const sn_announcement *nodes[SN_HOPS_MAX];
    sn_node_reply replies[SN_HOPS_MAX];
    const int timeout_ms = s->options.timeout_ms < ANSWER_MS ? s->options.timeout_ms : ANSWER_MS;
    const sn_link_query query = {nodes, route->n, .status = true, .timeout_ms = timeout_ms};
    *silent = NULL;
    *absent = 0;
    for (size_t i = 0; i < route->n; i++) nodes[i] = route->legs[i].node;
    sn_status status = sn_link_query_nodes(s->options.link, &query, replies, err);
    for (size_t i = 0; i < route->n && !status; i++) {
        if (replies[i].answered) continue;
        if (replies[i].gone)
            ++*absent;
        else
            *silent = nodes[i];
        swarm_note_failure(s, nodes[i]->node, nodes[i]->address, route->legs[i].first, route->legs[i].end,
                           replies[i].error);
    }
    return status;
}

/* A route over nodes that have just answered. */
static sn_status swarm_find_route(swarm_backbone *s, sn_route *route, sn_err *err) {
    for (;;) {
        const sn_announcement *silent;
        size_t absent;
        sn_status status = swarm_plan_route(s, route, err);
        if (!status) status = swarm_ask_nodes(s, route, &absent, &silent, err);
        if (status || (!silent && !absent)) return status;
        if (silent && s->retries-- <= 0)
            return sn_fail(err, SN_RETRY, "%s does not answer (too many nodes failed)", silent->address);
    }
}

static sn_status swarm_take_route(swarm_backbone *s, sn_err *err) {
    sn_route route;
    swarm_drop_hops(s);
    sn_status status = swarm_find_route(s, &route, err);
    for (size_t i = 0; !status && i < route.n; i++) {
        const sn_route_leg *leg = &route.legs[i];
        hop *h = &s->hops[s->n_hops++];
        *h = (hop){.first = leg->first, .end = leg->end};
        swarm_note_weights(s, leg);
        memcpy(h->node, leg->node->node, SN_KEY_SIZE);
        memcpy(h->curve_key, leg->node->curve_key, SN_KEY_SIZE);
        memcpy(h->address, leg->node->address, sizeof h->address);
        status = sn_link_dial(s->options.link, h->address, h->curve_key, &h->peer, err);
        if (!status) status = hop_make_image(s, h, err);
    }
    if (status) swarm_drop_hops(s); /* the next run begins with a whole route */
    return status;
}

/* -- requests */

static size_t traversal_bytes(const swarm_backbone *s, const traversal *t) {
    return (size_t)t->micro_batch->rows * (size_t)s->hp->n_embd * sizeof(float);
}

static void traversal_reset(traversal *t) {
    for (size_t i = 1; i < SN_HOPS_MAX; i++) {
        free(t->in[i]);
        t->in[i] = NULL;
    }
    free(t->grad);
    *t = (traversal){.micro_batch = t->micro_batch, .done = t->done};
}

/* Handles the failure of a node: plans another route and restarts all unfinished traversals. */
static sn_status swarm_node_failed(swarm_backbone *s, const hop *h, const sn_err *why, sn_err *err) {
    sn_err cause = *why;
    char address[SN_ADDRESS_MAX + 1];
    memcpy(address, h->address, sizeof address);
    swarm_note_failure(s, h->node, address, h->first, h->end, cause.text);
    for (size_t i = 0; i < s->n_traversals; i++)
        if (!s->traversals[i].done) traversal_reset(&s->traversals[i]);
    s->retries -=
        sn_link_is_connected(s->options.link, h->peer); /* of dead nodes each is tried once, while it is banned */
    if (s->retries < 0) return sn_fail(err, SN_RETRY, "%s: %s (too many nodes failed)", address, cause.text);
    sn_status status = swarm_take_route(s, err);
    return status ? sn_err_context(err, "%s: %.160s; and then", address, cause.text) : SN_OK;
}

static sn_msg *new_request(sn_msg_kind kind, uint64_t *correlation_id, sn_err *err) {
    sn_msg *msg = NULL;
    *correlation_id = sn_link_new_correlation_id();
    if (sn_msg_new(kind, *correlation_id, &msg, err)) return NULL;
    return msg;
}

static sn_status swarm_send_adapter(swarm_backbone *s, hop *h, sn_err *err) {
    void *data;
    sn_msg *msg = new_request(SN_MSG_ADAPTER_PUT, &h->correlation_id, err);
    if (!msg) return err->status;
    sn_status status = sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){h->image.len / sizeof(float)}, &data, err);
    if (status) {
        sn_msg_free(&msg);
        return status;
    }
    memcpy(data, h->image.data, h->image.len);
    msg->adapter_put.protocol = SN_PROTOCOL_VERSION;
    memcpy(msg->adapter_put.model, s->model.bytes, SN_HASH_SIZE);
    memcpy(msg->adapter_put.hash, h->adapter_hash.bytes, SN_HASH_SIZE);
    h->deadline_us = sn_now_us() + (int64_t)s->options.timeout_ms * 1000;
    if (!h->since_us) h->since_us = sn_now_us();
    return sn_link_send(s->options.link, h->peer, &msg, err);
}

static sn_status traversal_fill_message(swarm_backbone *s, const hop *h, const traversal *t, sn_msg *msg, sn_err *err) {
    sn_msg_forward *f = &msg->forward; /* a BACKWARD has the same fields */
    const uint64_t shape[] = {2, (uint64_t)t->micro_batch->rows, (uint64_t)s->hp->n_embd};
    void *data;
    sn_status status = sn_msg_new_tensor(msg, SN_F32, t->back ? 3 : 2, t->back ? shape : shape + 1, &data, err);
    if (status) return status;
    memcpy(data, t->in[t->at], traversal_bytes(s, t));
    if (t->back) memcpy((char *)data + traversal_bytes(s, t), t->grad, traversal_bytes(s, t));
    f->protocol = SN_PROTOCOL_VERSION;
    memcpy(f->model, s->model.bytes, SN_HASH_SIZE);
    memcpy(f->adapter, h->adapter_hash.bytes, SN_HASH_SIZE);
    f->first_block = (uint64_t)h->first;
    f->end_block = (uint64_t)h->end;
    f->save_activations = s->back && !t->back;
    status = sn_list_new((size_t)t->micro_batch->n_sequences, SN_SAMPLES_MAX, sizeof *f->samples, &f->samples, err);
    if (status) return status;
    f->n_samples = (size_t)t->micro_batch->n_sequences;
    for (size_t i = 0; i < f->n_samples; i++) f->samples[i].tokens = (uint64_t)t->micro_batch->lengths[i];
    return SN_OK;
}

static sn_status swarm_send_batch(swarm_backbone *s, hop *h, traversal *t, sn_err *err) {
    sn_msg *msg = new_request(t->back ? SN_MSG_BACKWARD : SN_MSG_FORWARD, &t->correlation_id, err);
    if (!msg) return err->status;
    sn_status status = traversal_fill_message(s, h, t, msg, err);
    if (status) {
        sn_msg_free(&msg);
        return status;
    }
    t->deadline_us = sn_now_us() + (int64_t)s->options.timeout_ms * 1000;
    h->busy++;
    return sn_link_send(s->options.link, h->peer, &msg, err);
}

/* Sends the next requests to every node with less than BATCHES_PER_NODE in flight. Backward passes are sent before
 * forward passes, because the traversals of backward passes hold memory. */
static sn_status swarm_send_all(swarm_backbone *s, sn_err *err) {
    int64_t now_us = sn_now_us();
    size_t begun = 0;
    for (size_t i = 0; i < s->n_traversals; i++) begun += s->traversals[i].begun && !s->traversals[i].done;
    for (int direction = 0; direction < 2; direction++) /* 0: backward, 1: forward */
        for (size_t i = 0; i < s->n_traversals; i++) {
            traversal *t = &s->traversals[i];
            hop *h = &s->hops[t->at];
            sn_err why;
            if (t->done || t->correlation_id || t->back != (direction == 0) || t->not_before_us > now_us ||
                h->busy >= BATCHES_PER_NODE)
                continue;
            if (!t->begun && begun > BATCHES_PER_NODE * s->n_hops) continue;
            bool needs_adapter = h->image.len && !h->adapter_held;
            if (needs_adapter && (h->correlation_id || h->not_before_us > now_us)) continue;
            if (!t->begun) {
                begun++;
                t->begun = true;
                t->in[0] = (float *)(uintptr_t)t->micro_batch->x; /* is never written to */
                t->since_us = now_us;
            }
            sn_status status = needs_adapter ? swarm_send_adapter(s, h, &why) : swarm_send_batch(s, h, t, &why);
            if (status == SN_RETRY)
                status = swarm_node_failed(s, h, &why, err);
            else if (status)
                return sn_fail(err, status, "%s", why.text);
            if (status) return status;
        }
    return SN_OK;
}

/* -- replies */

/* The output of the present hop becomes the input of the next hop. After the last hop, computes the loss. */
static sn_status traversal_forward(swarm_backbone *s, traversal *t, const sn_msg *reply, bool back,
                                   sn_loss_callback loss_callback, void *ctx, sn_err *err) {
    size_t bytes = traversal_bytes(s, t);
    float *out = malloc(bytes);
    if (!out) return sn_fail(err, SN_STOP, "out of memory: %zu bytes of hidden states", bytes);
    memcpy(out, reply->tensor.data, bytes);
    if (t->at + 1 < s->n_hops) {
        t->in[++t->at] = out;
        return SN_OK;
    }
    t->grad = back ? malloc(bytes) : NULL;
    sn_status status = back && !t->grad ? sn_fail(err, SN_STOP, "out of memory")
                                        : loss_callback(ctx, (size_t)(t - s->traversals), out, t->grad, err);
    free(out);
    t->back = back;
    t->done = !back;
    return status;
}

/* Copies the gradients of the hop's parameters into the micro-batch and keeps the gradient of the hop's input for the
 * hop before it. */
static void traversal_backward(swarm_backbone *s, traversal *t, const sn_msg *reply) {
    size_t bytes = traversal_bytes(s, t), begin, floats, at, n;
    const hop *h = &s->hops[t->at];
    memcpy(t->grad, reply->tensor.data, bytes);
    if (t->micro_batch->grads) {
        sn_params_block_range(s->params, s->options.blocks.first, s->options.blocks.end, &begin, &floats);
        sn_params_block_range(s->params, h->first, h->end, &at, &n);
        const char *from = (const char *)reply->tensor.data + bytes;
        for (size_t i = 0; i < (size_t)t->micro_batch->n_sequences && n; i++)
            memcpy(t->micro_batch->grads + i * floats + (at - begin), from + i * n * sizeof(float), n * sizeof(float));
    }
    if (t->at == 0) {
        memcpy(t->micro_batch->dx, t->grad, bytes);
        t->done = true;
    } else {
        free(t->in[t->at]);
        t->in[t->at--] = NULL;
    }
}

/* Checks that the reply has the expected kind and size, and numbers that can be computed with. */
static sn_status traversal_check_reply(const swarm_backbone *s, const traversal *t, const sn_msg *msg, sn_err *err) {
    size_t rows = (size_t)t->micro_batch->rows * (size_t)s->hp->n_embd, at, n = 0;
    if (msg->kind != (t->back ? SN_MSG_BACKWARD_REPLY : SN_MSG_FORWARD_REPLY))
        return sn_fail(err, SN_RETRY, "it replied with an unexpected %s", sn_msg_kind_name(msg->kind));
    if (t->back && t->micro_batch->grads)
        sn_params_block_range(s->params, s->hops[t->at].first, s->hops[t->at].end, &at, &n);
    size_t n_expected = rows + (size_t)t->micro_batch->n_sequences * n;
    if (msg->tensor.dtype != SN_F32 || msg->tensor.bytes != n_expected * sizeof(float))
        return sn_fail(err, SN_RETRY, "its reply has %zu bytes where %zu were expected", msg->tensor.bytes,
                       n_expected * sizeof(float));
    if (!sn_wire_is_usable(msg->tensor.data, n_expected))
        return sn_fail(err, SN_RETRY, "its reply holds a number that is not finite, or is far too large");
    return SN_OK;
}

/* Whether the request that was answered by an ERROR may be sent again. *not_before_us: the earliest time for it. */
static bool error_allows_retry(const sn_msg *msg, int64_t since_us, int timeout_ms, int64_t *not_before_us) {
    *not_before_us = sn_now_us() + BUSY_RETRY_US;
    return msg->error.status == SN_RETRY && sn_now_us() - since_us < (int64_t)timeout_ms * 1000;
}

static sn_status swarm_take_adapter_reply(swarm_backbone *s, hop *h, const sn_msg *msg, sn_err *err) {
    sn_err why;
    h->correlation_id = 0;
    h->adapter_held = msg->kind == SN_MSG_ADAPTER_PUT_REPLY;
    if (h->adapter_held) return SN_OK;
    if (msg->kind == SN_MSG_ERROR && error_allows_retry(msg, h->since_us, s->options.timeout_ms, &h->not_before_us))
        return SN_OK;
    (void)sn_fail(&why, SN_RETRY, "%s",
                  msg->kind == SN_MSG_ERROR ? msg->error.text : "its reply has an unexpected kind");
    return swarm_node_failed(s, h, &why, err);
}

static sn_status swarm_take_batch_reply(swarm_backbone *s, traversal *t, const sn_msg *msg, bool back,
                                        sn_loss_callback loss_callback, void *ctx, sn_err *err) {
    hop *h = &s->hops[t->at];
    sn_err why;
    t->correlation_id = 0;
    h->busy--;
    if (msg->kind == SN_MSG_ERROR) {
        bool late = sn_now_us() - t->since_us > (int64_t)s->options.timeout_ms * 1000;
        if (msg->error.status == SN_REBUILD && h->image.len && !late) {
            h->adapter_held = false;
            if (!h->correlation_id) h->since_us = 0; /* it is sent anew, with its own time */
            return SN_OK;
        }
        if (error_allows_retry(msg, t->since_us, s->options.timeout_ms, &t->not_before_us)) return SN_OK;
        (void)sn_fail(&why, SN_RETRY, "%s", msg->error.text);
        return swarm_node_failed(s, h, &why, err);
    }
    if (traversal_check_reply(s, t, msg, &why)) return swarm_node_failed(s, h, &why, err);
    s->retries = s->options.max_retries; /* only failures in a row count */
    t->since_us = sn_now_us();
    if (!t->back) return traversal_forward(s, t, msg, back, loss_callback, ctx, err);
    traversal_backward(s, t, msg);
    return SN_OK;
}

static sn_status swarm_take_reply(swarm_backbone *s, const sn_event *event, bool back, sn_loss_callback loss_callback,
                                  void *ctx, sn_err *err) {
    for (size_t i = 0; i < s->n_hops; i++)
        if (s->hops[i].correlation_id && s->hops[i].correlation_id == event->msg->correlation_id)
            return swarm_take_adapter_reply(s, &s->hops[i], event->msg, err);
    for (size_t i = 0; i < s->n_traversals; i++)
        if (s->traversals[i].correlation_id && s->traversals[i].correlation_id == event->msg->correlation_id)
            return swarm_take_batch_reply(s, &s->traversals[i], event->msg, back, loss_callback, ctx, err);
    return SN_OK; /* a reply to a request that was given up */
}

/* Finds a node whose connection was lost, or which did not reply in time, and handles its failure. */
static sn_status swarm_find_failures(swarm_backbone *s, sn_err *err) {
    int64_t now_us = sn_now_us();
    sn_err why;
    for (size_t i = 0; i < s->n_hops; i++) {
        const hop *h = &s->hops[i];
        bool late = h->correlation_id && h->deadline_us <= now_us, waiting = h->correlation_id != 0;
        for (size_t k = 0; k < s->n_traversals; k++) {
            if (!s->traversals[k].correlation_id || s->traversals[k].at != i) continue;
            waiting = true;
            late |= s->traversals[k].deadline_us <= now_us;
        }
        if (!waiting || (!late && sn_link_is_connected(s->options.link, h->peer))) continue;
        (void)sn_fail(&why, SN_RETRY,
                      late ? "no answer within %.1f seconds" : "the connection was lost or could not be made",
                      (double)s->options.timeout_ms / 1e3);
        return swarm_node_failed(s, h, &why, err);
    }
    return SN_OK;
}

static int64_t swarm_next_deadline(const swarm_backbone *s) {
    int64_t now = sn_now_us(), next = now + CANCEL_POLL_US;
    for (size_t i = 0; i < s->n_traversals; i++) {
        const traversal *t = &s->traversals[i];
        int64_t at = t->correlation_id ? t->deadline_us : t->not_before_us;
        if (!t->done && at > now && at < next) next = at; /* a time that has passed: it waits for a free place */
    }
    for (size_t i = 0; i < s->n_hops; i++)
        if (!s->hops[i].correlation_id && s->hops[i].not_before_us > now && s->hops[i].not_before_us < next)
            next = s->hops[i].not_before_us;
    return next;
}

static bool swarm_all_done(const swarm_backbone *s) {
    for (size_t i = 0; i < s->n_traversals; i++)
        if (!s->traversals[i].done) return false;
    return true;
}

static sn_status swarm_run_all(swarm_backbone *s, bool back, sn_loss_callback loss_callback, void *ctx, sn_err *err) {
    while (!swarm_all_done(s)) {
        sn_event event = {0};
        if (swarm_interrupted(s)) return sn_fail(err, SN_RETRY, "interrupted");
        sn_status status = swarm_send_all(s, err);
        if (!status) status = sn_link_receive(s->options.link, swarm_next_deadline(s), &event, err);
        if (!status && event.msg) status = swarm_take_reply(s, &event, back, loss_callback, ctx, err);
        sn_msg_free(&event.msg);
        if (!status) status = swarm_find_failures(s, err);
        if (status) return status;
    }
    return SN_OK;
}

static sn_status swarm_run(sn_backbone *backbone, size_t n, const sn_micro_batch *micro_batches, bool back,
                           sn_loss_callback loss_callback, void *ctx, sn_err *err) {
    swarm_backbone *s = (swarm_backbone *)backbone;
    s->retries = s->options.max_retries;
    sn_status status = s->n_hops ? SN_OK : swarm_take_route(s, err);
    if (!status) status = sn_calloc(&s->traversals, n, sizeof *s->traversals, err);
    if (status) return swarm_end(s, status, err);
    s->n_traversals = n;
    s->back = back;
    for (size_t i = 0; i < n; i++) s->traversals[i].micro_batch = &micro_batches[i];
    for (size_t i = 0; i < s->n_hops; i++) s->hops[i].busy = 0;
    status = swarm_run_all(s, back, loss_callback, ctx, err);
    for (size_t i = 0; i < n; i++) traversal_reset(&s->traversals[i]);
    free(s->traversals);
    s->traversals = NULL;
    s->n_traversals = 0;
    return swarm_end(s, status, err);
}

static sn_status swarm_set_params(sn_backbone *backbone, const sn_params *params, sn_err *err) {
    swarm_backbone *s = (swarm_backbone *)backbone;
    sn_status status = SN_OK;
    s->params = params;
    for (size_t i = 0; i < s->n_hops && !status; i++) status = hop_make_image(s, &s->hops[i], err);
    return status;
}

static void swarm_free(sn_backbone *backbone) {
    swarm_backbone *s = (swarm_backbone *)backbone;
    swarm_drop_hops(s);
    sn_peer_stats_free(&s->peer_stats);
    free(s->block_hash);
    free(s->known_hash);
    free(s);
}

/* Learns the hashes of the blocks, so that routes avoid nodes with other weights: by the model's file where it holds
 * them, else by the manifest that the model came with, else by the training that is resumed. */
static sn_status swarm_learn_hashes(swarm_backbone *s, const sn_model *model, sn_err *err) {
    size_t n = (size_t)s->hp->n_blocks;
    const sn_base_weights *base = s->options.base;
    sn_status status = sn_calloc(&s->block_hash, n, sizeof *s->block_hash, err);
    if (!status) status = sn_calloc(&s->known_hash, n, sizeof *s->known_hash, err);
    for (int b = s->options.blocks.first; b < s->options.blocks.end && !status; b++) {
        bool known = base && base->n_blocks == s->hp->n_blocks;
        if (known) s->block_hash[b] = base->blocks[b];
        known |= sn_model_told_block_hash(model, b, &s->block_hash[b]);
        if (sn_model_holds_block(model, b)) {
            status = sn_model_block_hash(model, b, &s->block_hash[b], err);
            known = true;
        }
        if (known) s->known_hash[b] = &s->block_hash[b];
    }
    s->options.base = NULL; /* borrowed while opening */
    return status;
}

sn_status sn_backbone_swarm(const sn_model *model, const sn_backbone_swarm_options *options, sn_backbone **out,
                            sn_err *err) {
    static const sn_backbone_ops ops = {swarm_set_params, swarm_run, swarm_free};
    swarm_backbone *s = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (status) return status;
    s->base.ops = &ops;
    s->options = *options;
    s->hp = sn_model_hparams(model);
    if (!s->options.blocks.end) s->options.blocks.end = s->hp->n_blocks;
    s->model = sn_model_id(model);
    s->retries = options->max_retries;
    if (options->node_filter.n_only)
        sn_link_look_for(options->link, options->node_filter.only, options->node_filter.n_only);
    status = sn_peer_stats_new(&s->peer_stats, err);
    if (!status) status = swarm_learn_hashes(s, model, err);
    if (!status) status = swarm_take_route(s, err);
    status = swarm_end(s, status, err);
    s->base.weights = s->block_hash + s->options.blocks.first;
    if (status)
        swarm_free(&s->base);
    else
        *out = &s->base;
    return status;
}
