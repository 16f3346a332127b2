/* The trunk over nodes. Each micro-batch walks the hops there and back, one message at a time; many walk at once, so
 * that every node has work. When a node fails the way is planned anew without it, and micro-batches that are not done
 * begin again: what they give is the same bits. */
#include "client/tune/trunk.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "client/route.h"

#include <stdlib.h>
#include <string.h>

enum { PER_NODE = 2, BUSY_US = 20000, GRACE_US = 3000000, PLAN_AGAIN_US = 200000, TUNING_MAX = 1 << 30 };

typedef struct hop {
    int first, end;
    uint8_t node[SN_KEY_SIZE], curve_key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1];
    sn_peer peer;
    int busy;                                     /* micro-batches that it works on */
    sn_buf image;                                 /* of what is trained of its blocks; empty: nothing */
    sn_hash tuning;                               /* its name */
    bool held;                                    /* the node has it */
    uint64_t asked;                               /* the request that brings it there; 0: none is under way */
    int64_t deadline_us, not_before_us, since_us; /* since: when the node was first asked to take it */
} hop;

/* A micro-batch on its way. */
typedef struct walk {
    const sn_micro *micro;
    bool begun, back, done;
    size_t at;                                    /* hop */
    float *in[SN_HOPS_MAX];                       /* what entered each hop; in[0] is the micro-batch's own */
    float *d;                                     /* the gradient of what left hop `at` */
    uint64_t asked;                               /* 0: no question is under way */
    int64_t deadline_us, not_before_us, since_us; /* since: when this hop's turn came */
} walk;

typedef struct swarm {
    sn_trunk base;
    sn_trunk_swarm_options options;
    const sn_hparams *hp;
    sn_hash model;
    sn_hash *block_hash;
    const sn_hash **known_hash;
    sn_seen *seen;
    hop hops[SN_HOPS_MAX];
    size_t n_hops;
    const sn_params *params;
    walk *walks;
    size_t n_walks;
    bool back; /* those walks come back */
    int retries;
} swarm;

/* -- the way */

static void drop_hops(swarm *s) {
    for (size_t i = 0; i < s->n_hops; i++) sn_buf_fini(&s->hops[i].image);
    s->n_hops = 0;
}

static sn_status plan_now(swarm *s, sn_route *route, sn_err *err) {
    sn_offers offers = {0};
    const sn_offer_wish wish = {.directory = sn_link_directory(s->options.link),
                                .seen = s->seen,
                                .now_us = sn_now_us(),
                                .model = s->model,
                                .n_blocks = s->hp->n_blocks,
                                .block_hash = s->known_hash,
                                .pick = s->options.pick};
    sn_status status = sn_offers_make(&wish, &offers, err);
    sn_offers_ignore_room(&offers); /* training takes none of the cache */
    if (!status) status = sn_route_shortest(offers.at, offers.n, false, 0, s->hp->n_blocks, route, err);
    sn_offers_fini(&offers);
    return status;
}

static sn_status plan(swarm *s, sn_route *route, sn_err *err) {
    int64_t until_us = sn_now_us() + GRACE_US;
    bool heard = false;
    for (;;) {
        sn_err asking;
        sn_status status = plan_now(s, route, err);
        int64_t left_us = until_us - sn_now_us();
        if (status != SN_RETRY || left_us <= 0) return status;
        sn_status asked = sn_link_discover(s->options.link, &s->model, (int)(left_us / 1000) + 1, &asking);
        heard = heard || !asked;
        if (asked && (!heard || asked != SN_RETRY)) return sn_fail(err, asked, "%s", asking.text);
        sn_sleep_us(PLAN_AGAIN_US);
    }
}

/* What is trained of a hop's blocks, as it must reach the node. */
static sn_status make_image(swarm *s, hop *h, sn_err *err) {
    sn_buf_fini(&h->image);
    sn_buf_init(&h->image, TUNING_MAX);
    h->held = false;
    h->asked = 0;
    h->since_us = 0;
    sn_status status = s->params ? sn_params_image(s->params, h->first, h->end, &h->image, err) : SN_OK;
    h->tuning = (sn_hash){0};
    if (!status && h->image.len) h->tuning = sn_hash_of(h->image.data, h->image.len);
    return status;
}

static sn_status take_route(swarm *s, sn_err *err) {
    sn_route route;
    drop_hops(s);
    sn_status status = plan(s, &route, err);
    for (size_t i = 0; i < route.n && !status; i++) {
        const sn_stop *stop = &route.stops[i];
        hop *h = &s->hops[s->n_hops++];
        *h = (hop){.first = stop->first, .end = stop->end};
        memcpy(h->node, stop->node->node, SN_KEY_SIZE);
        memcpy(h->curve_key, stop->node->curve_key, SN_KEY_SIZE);
        memcpy(h->address, stop->node->address, sizeof h->address);
        status = sn_link_dial(s->options.link, h->address, h->curve_key, &h->peer, err);
        if (!status) status = make_image(s, h, err);
    }
    return status;
}

/* -- walks */

static size_t row_bytes(const swarm *s, const walk *w) {
    return (size_t)w->micro->rows * (size_t)s->hp->n_embd * sizeof(float);
}

static void begin_again(walk *w) {
    for (size_t i = 1; i < SN_HOPS_MAX; i++) {
        free(w->in[i]);
        w->in[i] = NULL;
    }
    free(w->d);
    *w = (walk){.micro = w->micro, .done = w->done};
}

/* The node failed: another way, for all that is not done. */
static sn_status fail(swarm *s, const hop *h, const sn_err *why, sn_err *err) {
    sn_err cause = *why;
    char address[SN_ADDRESS_MAX + 1];
    memcpy(address, h->address, sizeof address);
    sn_log(SN_LOG_WARN, "node given up", "node=%s blocks=%d:%d text=%s", address, h->first, h->end, cause.text);
    sn_seen_failure(s->seen, h->node, sn_now_us());
    for (size_t i = 0; i < s->n_walks; i++)
        if (!s->walks[i].done) begin_again(&s->walks[i]);
    if (s->retries-- <= 0) return sn_fail(err, SN_RETRY, "%s: %s (too many nodes failed)", address, cause.text);
    sn_status status = take_route(s, err);
    return status ? sn_err_context(err, "%s: %.160s; and then", address, cause.text) : SN_OK;
}

static sn_msg *new_request(swarm *s, sn_msg_kind kind, uint64_t *asked, sn_err *err) {
    sn_msg *msg = NULL;
    *asked = sn_link_request(s->options.link);
    if (sn_msg_new(kind, *asked, &msg, err)) return NULL;
    return msg;
}

static sn_status send_tuning(swarm *s, hop *h, sn_err *err) {
    void *data;
    sn_msg *msg = new_request(s, SN_MSG_TUNE, &h->asked, err);
    if (!msg) return err->status;
    sn_status status = sn_msg_new_tensor(msg, SN_F32, 1, (uint64_t[]){h->image.len / sizeof(float)}, &data, err);
    if (status) {
        sn_msg_free(&msg);
        return status;
    }
    memcpy(data, h->image.data, h->image.len);
    msg->tune.protocol = SN_PROTOCOL;
    memcpy(msg->tune.model, s->model.bytes, SN_HASH_SIZE);
    memcpy(msg->tune.hash, h->tuning.bytes, SN_HASH_SIZE);
    h->deadline_us = sn_now_us() + (int64_t)s->options.timeout_ms * 1000;
    if (!h->since_us) h->since_us = sn_now_us();
    return sn_link_send(s->options.link, h->peer, &msg, err);
}

static sn_status fill_batch(swarm *s, const hop *h, const walk *w, sn_msg *msg, sn_err *err) {
    sn_msg_forward *f = &msg->forward; /* a BACKWARD has the same fields */
    const uint64_t shape[] = {2, (uint64_t)w->micro->rows, (uint64_t)s->hp->n_embd};
    void *data;
    sn_status status = sn_msg_new_tensor(msg, SN_F32, w->back ? 3 : 2, w->back ? shape : shape + 1, &data, err);
    if (status) return status;
    memcpy(data, w->in[w->at], row_bytes(s, w));
    if (w->back) memcpy((char *)data + row_bytes(s, w), w->d, row_bytes(s, w));
    f->protocol = SN_PROTOCOL;
    memcpy(f->model, s->model.bytes, SN_HASH_SIZE);
    memcpy(f->tuning, h->tuning.bytes, SN_HASH_SIZE);
    f->first_block = (uint64_t)h->first;
    f->end_block = (uint64_t)h->end;
    f->keep = s->back && !w->back;
    status = sn_list_new((size_t)w->micro->n_sequences, SN_SAMPLES_MAX, sizeof *f->samples, &f->samples, err);
    if (status) return status;
    f->n_samples = (size_t)w->micro->n_sequences;
    for (size_t i = 0; i < f->n_samples; i++) f->samples[i].tokens = (uint64_t)w->micro->lengths[i];
    return SN_OK;
}

static sn_status send_batch(swarm *s, hop *h, walk *w, sn_err *err) {
    sn_msg *msg = new_request(s, w->back ? SN_MSG_BACKWARD : SN_MSG_FORWARD, &w->asked, err);
    if (!msg) return err->status;
    sn_status status = fill_batch(s, h, w, msg, err);
    if (status) {
        sn_msg_free(&msg);
        return status;
    }
    w->deadline_us = sn_now_us() + (int64_t)s->options.timeout_ms * 1000;
    h->busy++;
    return sn_link_send(s->options.link, h->peer, &msg, err);
}

/* Gives every node that has room something to do; those on their way back first, for they hold memory. */
static sn_status send_all(swarm *s, sn_err *err) {
    int64_t now_us = sn_now_us();
    size_t begun = 0;
    for (size_t i = 0; i < s->n_walks; i++) begun += s->walks[i].begun && !s->walks[i].done;
    for (int turn = 0; turn < 2; turn++)
        for (size_t i = 0; i < s->n_walks; i++) {
            walk *w = &s->walks[i];
            hop *h = &s->hops[w->at];
            sn_err why;
            if (w->done || w->asked || w->back != (turn == 0) || w->not_before_us > now_us || h->busy >= PER_NODE)
                continue;
            if (!w->begun && begun > PER_NODE * s->n_hops) continue;
            bool wants = h->image.len && !h->held;
            if (wants && (h->asked || h->not_before_us > now_us)) continue;
            if (!w->begun) {
                begun++;
                w->begun = true;
                w->in[0] = (float *)(uintptr_t)w->micro->x; /* only read */
                w->since_us = now_us;
            }
            sn_status status = wants ? send_tuning(s, h, &why) : send_batch(s, h, w, &why);
            if (status == SN_RETRY)
                status = fail(s, h, &why, err);
            else if (status)
                return sn_fail(err, status, "%s", why.text);
            if (status) return status;
        }
    return SN_OK;
}

/* -- answers */

/* What left hop w->at goes into the next one, or is turned. */
static sn_status go_up(swarm *s, walk *w, const sn_msg *answer, bool back, sn_turn turn, void *ctx, sn_err *err) {
    size_t bytes = row_bytes(s, w);
    float *out = malloc(bytes);
    if (!out) return sn_fail(err, SN_STOP, "out of memory: %zu bytes of hidden states", bytes);
    memcpy(out, answer->tensor.data, bytes);
    if (w->at + 1 < s->n_hops) {
        w->in[++w->at] = out;
        return SN_OK;
    }
    w->d = back ? malloc(bytes) : NULL;
    sn_status status =
        back && !w->d ? sn_fail(err, SN_STOP, "out of memory") : turn(ctx, (size_t)(w - s->walks), out, w->d, err);
    free(out);
    w->back = back;
    w->done = !back;
    return status;
}

/* The gradients of what is trained of the hop's blocks go to their places, those of what entered them to the hop before. */
static void go_down(swarm *s, walk *w, const sn_msg *answer) {
    size_t bytes = row_bytes(s, w), begin, floats, at, n;
    const hop *h = &s->hops[w->at];
    memcpy(w->d, answer->tensor.data, bytes);
    if (w->micro->grads) {
        sn_params_of_blocks(s->params, 0, s->hp->n_blocks, &begin, &floats);
        sn_params_of_blocks(s->params, h->first, h->end, &at, &n);
        const char *from = (const char *)answer->tensor.data + bytes;
        for (size_t i = 0; i < (size_t)w->micro->n_sequences && n; i++)
            memcpy(w->micro->grads + i * floats + (at - begin), from + i * n * sizeof(float), n * sizeof(float));
    }
    if (w->at == 0) {
        memcpy(w->micro->dx, w->d, bytes);
        w->done = true;
    } else {
        free(w->in[w->at]);
        w->in[w->at--] = NULL;
    }
}

/* Whether the answer has the shape that it must have, and only numbers. */
static sn_status check_answer(const swarm *s, const walk *w, const sn_msg *msg, sn_err *err) {
    size_t rows = (size_t)w->micro->rows * (size_t)s->hp->n_embd, at, n = 0;
    if (msg->kind != (w->back ? SN_MSG_GRADIENTS : SN_MSG_FORWARDED))
        return sn_fail(err, SN_RETRY, "it answered %s", sn_msg_kind_name(msg->kind));
    if (w->back && w->micro->grads) sn_params_of_blocks(s->params, s->hops[w->at].first, s->hops[w->at].end, &at, &n);
    size_t wanted = rows + (size_t)w->micro->n_sequences * n;
    if (msg->tensor.dtype != SN_F32 || msg->tensor.bytes != wanted * sizeof(float))
        return sn_fail(err, SN_RETRY, "its answer has %zu bytes where %zu were due", msg->tensor.bytes,
                       wanted * sizeof(float));
    const float *values = msg->tensor.data;
    for (size_t i = 0; i < wanted; i++)
        if (!(values[i] - values[i] == 0)) return sn_fail(err, SN_RETRY, "its answer holds what is no number");
    return SN_OK;
}

/* An ERROR to a batch or a tuning. True when it may be asked again. */
static bool may_wait(const sn_msg *msg, int64_t since_us, int timeout_ms, int64_t *not_before_us) {
    *not_before_us = sn_now_us() + BUSY_US;
    return msg->error.status == SN_RETRY && sn_now_us() - since_us < (int64_t)timeout_ms * 1000;
}

static sn_status take_tuned(swarm *s, hop *h, const sn_msg *msg, sn_err *err) {
    sn_err why;
    h->asked = 0;
    h->held = msg->kind == SN_MSG_TUNED;
    if (h->held) return SN_OK;
    if (msg->kind == SN_MSG_ERROR && may_wait(msg, h->since_us, s->options.timeout_ms, &h->not_before_us)) return SN_OK;
    (void)sn_fail(&why, SN_RETRY, "%s", msg->kind == SN_MSG_ERROR ? msg->error.text : "it answered something else");
    return fail(s, h, &why, err);
}

static sn_status take_batch(swarm *s, walk *w, const sn_msg *msg, bool back, sn_turn turn, void *ctx, sn_err *err) {
    hop *h = &s->hops[w->at];
    sn_err why;
    w->asked = 0;
    h->busy--;
    if (msg->kind == SN_MSG_ERROR) {
        bool late = sn_now_us() - w->since_us > (int64_t)s->options.timeout_ms * 1000;
        if (msg->error.status == SN_REBUILD && h->image.len && !late) {
            h->held = false;
            return SN_OK;
        }
        if (may_wait(msg, w->since_us, s->options.timeout_ms, &w->not_before_us)) return SN_OK;
        (void)sn_fail(&why, SN_RETRY, "%s", msg->error.text);
        return fail(s, h, &why, err);
    }
    if (check_answer(s, w, msg, &why)) return fail(s, h, &why, err);
    s->retries = s->options.max_retries; /* in a row */
    w->since_us = sn_now_us();
    if (!w->back) return go_up(s, w, msg, back, turn, ctx, err);
    go_down(s, w, msg);
    return SN_OK;
}

static sn_status take(swarm *s, const sn_event *event, bool back, sn_turn turn, void *ctx, sn_err *err) {
    for (size_t i = 0; i < s->n_hops; i++)
        if (s->hops[i].asked && s->hops[i].asked == event->msg->request)
            return take_tuned(s, &s->hops[i], event->msg, err);
    for (size_t i = 0; i < s->n_walks; i++)
        if (s->walks[i].asked && s->walks[i].asked == event->msg->request)
            return take_batch(s, &s->walks[i], event->msg, back, turn, ctx, err);
    return SN_OK; /* to something that was given up */
}

/* Nodes whose connection is gone, or who are silent for too long. */
static sn_status find_failures(swarm *s, sn_err *err) {
    int64_t now_us = sn_now_us();
    sn_err why;
    for (size_t i = 0; i < s->n_hops; i++) {
        const hop *h = &s->hops[i];
        bool late = h->asked && h->deadline_us < now_us, waiting = h->asked != 0;
        for (size_t k = 0; k < s->n_walks; k++) {
            if (!s->walks[k].asked || s->walks[k].at != i) continue;
            waiting = true;
            late |= s->walks[k].deadline_us < now_us;
        }
        if (!waiting || (!late && sn_link_stands(s->options.link, h->peer))) continue;
        (void)sn_fail(&why, SN_RETRY,
                      late ? "no answer within %.1f seconds" : "the connection was lost, or none came about",
                      (double)s->options.timeout_ms / 1e3);
        return fail(s, h, &why, err);
    }
    return SN_OK;
}

static int64_t next_deadline(const swarm *s) {
    int64_t next = sn_now_us() + 1000000;
    for (size_t i = 0; i < s->n_walks; i++) {
        const walk *w = &s->walks[i];
        int64_t at = w->asked ? w->deadline_us : w->not_before_us;
        if (!w->done && at && at < next) next = at;
    }
    for (size_t i = 0; i < s->n_hops; i++)
        if (!s->hops[i].asked && s->hops[i].not_before_us > sn_now_us() && s->hops[i].not_before_us < next)
            next = s->hops[i].not_before_us;
    return next;
}

static bool all_done(const swarm *s) {
    for (size_t i = 0; i < s->n_walks; i++)
        if (!s->walks[i].done) return false;
    return true;
}

static sn_status walk_all(swarm *s, bool back, sn_turn turn, void *ctx, sn_err *err) {
    while (!all_done(s)) {
        sn_event event = {0};
        sn_status status = send_all(s, err);
        if (!status) status = sn_link_hear(s->options.link, next_deadline(s), &event, err);
        if (!status && event.msg) status = take(s, &event, back, turn, ctx, err);
        sn_msg_free(&event.msg);
        if (!status) status = find_failures(s, err);
        if (status) return status;
    }
    return SN_OK;
}

static sn_status run(sn_trunk *trunk, size_t n, const sn_micro *micros, bool back, sn_turn turn, void *ctx,
                     sn_err *err) {
    swarm *s = (swarm *)trunk;
    sn_status status = s->n_hops ? SN_OK : take_route(s, err);
    if (!status) status = sn_calloc(&s->walks, n, sizeof *s->walks, err);
    if (status) return status;
    s->n_walks = n;
    s->back = back;
    s->retries = s->options.max_retries;
    for (size_t i = 0; i < n; i++) s->walks[i].micro = &micros[i];
    for (size_t i = 0; i < s->n_hops; i++) s->hops[i].busy = 0;
    status = walk_all(s, back, turn, ctx, err);
    for (size_t i = 0; i < n; i++) begin_again(&s->walks[i]);
    free(s->walks);
    s->walks = NULL;
    s->n_walks = 0;
    return status;
}

static sn_status set(sn_trunk *trunk, const sn_params *params, sn_err *err) {
    swarm *s = (swarm *)trunk;
    sn_status status = SN_OK;
    s->params = params;
    for (size_t i = 0; i < s->n_hops && !status; i++) status = make_image(s, &s->hops[i], err);
    return status;
}

static void free_swarm(sn_trunk *trunk) {
    swarm *s = (swarm *)trunk;
    drop_hops(s);
    sn_seen_free(&s->seen);
    free(s->block_hash);
    free(s->known_hash);
    free(s);
}

/* Nodes with other weights than our file's are passed over, where the file holds the block. */
static sn_status learn_hashes(swarm *s, const sn_model *model, sn_err *err) {
    size_t n = (size_t)s->hp->n_blocks;
    sn_status status = sn_calloc(&s->block_hash, n, sizeof *s->block_hash, err);
    if (!status) status = sn_calloc(&s->known_hash, n, sizeof *s->known_hash, err);
    for (size_t b = 0; b < n && !status; b++) {
        if (!sn_model_has_block(model, (int)b)) continue;
        status = sn_model_block_hash(model, (int)b, &s->block_hash[b], err);
        s->known_hash[b] = &s->block_hash[b];
    }
    return status;
}

sn_status sn_trunk_swarm(const sn_model *model, const sn_trunk_swarm_options *options, sn_trunk **out, sn_err *err) {
    static const sn_trunk_ops ops = {set, run, free_swarm};
    swarm *s = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (status) return status;
    s->base.ops = &ops;
    s->options = *options;
    s->hp = sn_model_hparams(model);
    s->model = sn_model_id(model);
    status = sn_seen_new(&s->seen, err);
    if (!status) status = learn_hashes(s, model, err);
    if (!status) status = take_route(s, err);
    if (status)
        free_swarm(&s->base);
    else
        *out = &s->base;
    return status;
}
