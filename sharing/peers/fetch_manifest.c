/* Fetching a manifest, of which only the id is known: whether what a node sends is right shows at its end. So several
 * nodes are asked at once, each has a turn that ends in any case, and who had the fewest turns comes next, with twice
 * the time of its last one: nodes that are silent, slow or send something else do not keep the others away. */
#include "sharing/peers/fetcher_private.h"

#include "base/clock.h"

#include <string.h>

enum { LANES = 8, TURN_US = 2000000, TURNS_DOUBLED = 6, DISCOVER_EVERY_US = 1000000, WAIT_US = 100000 };

/* A node's turn. */
typedef struct lane {
    sn_sender *sender; /* NULL: the lane is free */
    sn_peer peer;
    int64_t until_us;        /* the turn's end */
    uint64_t correlation_id; /* of the open request; 0: none */
    size_t asked;            /* bytes that it asks for */
    sn_buf text;             /* what is here */
} lane;

/* The sender that had the fewest turns; proven nodes are first in the list. NULL: none may be asked now. */
static sn_sender *next_sender(sn_senders *s, int64_t now_us) {
    sn_sender *best = NULL;
    for (size_t i = 0; i < s->n; i++) {
        sn_sender *sender = &s->all[i];
        if (sender->dropped || sender->pieces || now_us < sender->not_before_us) continue;
        if (!best || sender->turns < best->turns) best = sender;
    }
    return best;
}

static void lane_end(sn_link *link, lane *l) {
    if (l->correlation_id) sn_link_cancel_request(link, l->correlation_id);
    l->sender->pieces--;
    l->sender = NULL;
    sn_buf_fini(&l->text);
}

/* A sender that said that it cannot send now is asked again soon; one that let its turn pass comes behind the others.
 */
static void lane_fail(sn_link *link, lane *l, bool passed) {
    l->sender->turns += passed;
    l->sender->not_before_us = sn_now_us() + DISCOVER_EVERY_US;
    lane_end(link, l);
}

static sn_status lane_ask(sn_fetcher *f, lane *l, size_t bytes, sn_err *err) {
    sn_msg *msg = NULL;
    sn_status status = sn_msg_new(SN_MSG_WEIGHTS, 0, &msg, err);
    if (status) return status;
    l->asked = sn_min_size(bytes, SN_WEIGHTS_SIZE_MAX);
    memcpy(msg->weights.manifest, f->senders.manifest.bytes, SN_KEY_SIZE);
    msg->weights.from = l->text.len;
    msg->weights.bytes = l->asked;
    status = sn_link_request_async(f->link, l->peer, &msg, &l->correlation_id, err);
    if (status) l->correlation_id = 0;
    return status;
}

/* SN_RETRY: this node cannot be asked now. */
static sn_status lane_begin(sn_fetcher *f, lane *l, sn_sender *sender, sn_err *err) {
    int turns = sender->turns < TURNS_DOUBLED ? sender->turns : TURNS_DOUBLED;
    *l = (lane){.sender = sender, .until_us = sn_now_us() + ((int64_t)TURN_US << turns)};
    sn_buf_init(&l->text, SN_MANIFEST_MAX);
    sender->pieces++;
    sn_status status = sn_link_dial(f->link, sender->address, sender->curve_key, &l->peer, err);
    return status ? status : lane_ask(f, l, 1, err); /* one byte: the reply says how many there are */
}

static sn_status lanes_fill(sn_fetcher *f, lane lanes[LANES], sn_err *last) {
    for (size_t i = 0; i < LANES; i++) {
        sn_sender *sender = lanes[i].sender ? NULL : next_sender(&f->senders, sn_now_us());
        if (!sender) continue;
        sn_status status = lane_begin(f, &lanes[i], sender, last);
        if (status) lane_fail(f->link, &lanes[i], true);
        if (status == SN_STOP) return status;
    }
    return SN_OK;
}

/* Appends what came, and asks for the rest. *done: the manifest is whole. SN_REFUSED, SN_RETRY: the turn is over. */
static sn_status lane_take(sn_fetcher *f, lane *l, const sn_msg *msg, bool *done, sn_err *err) {
    const sn_msg_weights_reply *reply = &msg->weights_reply;
    sn_status status = SN_OK;
    size_t until = l->text.len + l->asked;
    if (msg->kind == SN_MSG_ERROR) return sn_fail(err, SN_RETRY, "%s: %s", l->sender->address, msg->error.text);
    for (size_t i = 0; !status && msg->kind == SN_MSG_WEIGHTS_REPLY && i < reply->n_bytes; i++)
        status = sn_buf_append(&l->text, reply->bytes[i].data, reply->bytes[i].len, err);
    if (status == SN_STOP) return status;
    if (status || msg->kind != SN_MSG_WEIGHTS_REPLY || l->text.len != until || until > reply->size ||
        reply->size > SN_MANIFEST_MAX)
        return sn_fail(err, SN_REFUSED, "%s sends no manifest", l->sender->address);
    *done = until == reply->size;
    return *done ? SN_OK : lane_ask(f, l, (size_t)reply->size - until, err);
}

/* Takes a reply. *found: the lane's text is the manifest. */
static sn_status lane_step(sn_fetcher *f, lane *l, const sn_msg *msg, lane **found, sn_err *last) {
    bool done = false;
    l->correlation_id = 0;
    sn_status status = lane_take(f, l, msg, &done, last);
    if (status == SN_STOP) return status;
    if (done) {
        const sn_hash hash = sn_hash_of(l->text.data, l->text.len);
        if (!memcmp(&hash, &f->senders.manifest, sizeof hash)) {
            *found = l;
            return SN_OK;
        }
        sn_sender_drop(l->sender, "it sent a manifest that is not the one that it announced: it is not asked again");
    }
    if (status || done) lane_fail(f->link, l, status == SN_REFUSED);
    return SN_OK;
}

static sn_status lanes_step(sn_fetcher *f, lane lanes[LANES], lane **found, sn_err *last) {
    sn_status status = SN_OK;
    for (lane *l = lanes; l < lanes + LANES && !status && !*found; l++) {
        if (!l->sender) continue;
        sn_msg *msg = sn_link_take_reply(f->link, l->correlation_id);
        bool lost = !sn_link_is_connected(f->link, l->peer);
        if (msg) {
            status = lane_step(f, l, msg, found, last);
        } else if (lost || sn_now_us() >= l->until_us) {
            (void)sn_fail(last, SN_RETRY, lost ? "%s cannot be reached" : "%s was too slow", l->sender->address);
            lane_fail(f->link, l, true);
        }
        sn_msg_free(&msg);
    }
    return status;
}

/* The replies are kept while discovery waits for others. */
static sn_status fetch(sn_fetcher *f, lane lanes[LANES], int64_t until_us, lane **found, sn_err *last, sn_err *err) {
    int64_t discovered_us = 0;
    sn_status status = SN_OK;
    while (!status && !*found && sn_now_us() < until_us) {
        sn_event event;
        if (!discovered_us || sn_now_us() - discovered_us > DISCOVER_EVERY_US) {
            status = sn_fetcher_discover(f, NULL, err);
            discovered_us = sn_now_us();
        }
        if (!status) status = sn_fetcher_check_cancel(f, err);
        if (!status && ((status = lanes_fill(f, lanes, last)) || (status = lanes_step(f, lanes, found, last))))
            *err = *last;
        if (status || *found) break;
        status = sn_link_receive(f->link, sn_now_us() + WAIT_US, &event, err);
        if (!status) sn_msg_free(&event.msg);
    }
    return status;
}

sn_status sn_fetcher_manifest(sn_fetcher *f, const sn_hash *id, int64_t until_us, sn_buf *text, sn_err *err) {
    sn_err last = {.text = "no node announces it"};
    lane lanes[LANES] = {0}, *found = NULL;
    sn_status status = sn_fetcher_begin(f, id, 1, err);
    if (!until_us) until_us = sn_now_us() + sn_fetcher_patience_us(f);
    if (!status) status = fetch(f, lanes, until_us, &found, &last, err);
    if (found) {
        text->len = 0;
        status = sn_buf_append(text, found->text.data, found->text.len, err);
    } else if (!status) {
        status = sn_fail(err, SN_RETRY, "the manifest of the model was not found: %s", last.text);
    }
    for (size_t i = 0; i < LANES; i++)
        if (lanes[i].sender) lane_end(f->link, &lanes[i]);
    return status;
}
