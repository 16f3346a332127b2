#include "sharing/peers/senders_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { OFFER_WAIT_US = 5000000, REST_US = 5000000, OVERTAKE_US = 1000000, TRIAL_US = 5000000 };

void sn_senders_init(sn_senders *s, const sn_hash *manifest, size_t n_files) {
    s->n = 0;
    s->n_files = n_files;
    s->manifest = *manifest;
}

static void sender_fini(sn_senders *s, sn_sender *sender) {
    for (size_t f = 0; sender->present && f < s->n_files; f++) sn_range_set_fini(&sender->present[f]);
    free(sender->present);
    free(sender->asked);
    *sender = (sn_sender){0};
}

void sn_senders_fini(sn_senders *s) {
    for (size_t i = 0; i < s->n; i++) sender_fini(s, &s->all[i]);
    s->n = 0;
}

static sn_sender *find_node(sn_senders *s, const uint8_t node[SN_KEY_SIZE]) {
    for (size_t i = 0; i < s->n; i++)
        if (!memcmp(s->all[i].node, node, SN_KEY_SIZE)) return &s->all[i];
    return NULL;
}

/* A place for a node that has none; NULL: there is none. */
static sn_sender *find_place(sn_senders *s, bool proven) {
    if (s->n < SN_SENDERS_MAX) return &s->all[s->n++];
    for (size_t i = 0; i < s->n && proven; i++) {
        sn_sender *sender = &s->all[i];
        if (sender->proven || sender->has_sent || sender->pieces) continue;
        sender_fini(s, sender);
        return sender;
    }
    return NULL;
}

static sn_status add_node(sn_senders *s, const sn_announcement *a, bool proven, sn_err *err) {
    sn_sender *sender = find_node(s, a->node);
    if (!sender) {
        if (!(sender = find_place(s, proven))) return SN_OK;
        *sender = (sn_sender){0};
        memcpy(sender->node, a->node, SN_KEY_SIZE);
        sn_status status = sn_calloc(&sender->asked, s->n_files, sizeof *sender->asked, err);
        if (!status) status = sn_calloc(&sender->present, s->n_files, sizeof *sender->present, err);
        if (status) {
            sender->dropped = true;
            return status;
        }
    }
    sender->proven = proven;
    memcpy(sender->curve_key, a->curve_key, SN_KEY_SIZE);
    memcpy(sender->address, a->address, sizeof sender->address);
    memcpy(sender->name, a->name, sizeof sender->name);
    return SN_OK;
}

sn_status sn_senders_update(sn_senders *s, const sn_directory *directory, sn_err *err) {
    sn_status status = SN_OK;
    int64_t now_ms = sn_unix_ms();
    for (int proven = 1; proven >= 0; proven--)
        for (size_t i = 0; !status && i < sn_directory_count(directory); i++) {
            const sn_announcement *a = sn_directory_at(directory, i);
            if (a->state != SN_NODE_OFFLINE && !memcmp(a->manifest, s->manifest.bytes, SN_KEY_SIZE) &&
                sn_directory_is_proven_at(directory, i, now_ms) == proven)
                status = add_node(s, a, proven, err);
        }
    return status;
}

sn_status sn_senders_ask(sn_senders *s, sn_link *link, size_t file, int64_t now_us, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t i = 0; status != SN_STOP && i < s->n; i++) {
        sn_sender *sender = &s->all[i];
        sn_msg *msg = NULL;
        if (sender->offer_id && now_us > sender->offer_until_us) sn_sender_rest(s, i, now_us);
        if (sender->dropped || sender->asked[file] || sender->offer_id || now_us < sender->not_before_us) continue;
        status = sn_msg_new(SN_MSG_WEIGHTS_OFFER, sn_link_new_correlation_id(), &msg, err);
        if (!status) status = sn_link_dial(link, sender->address, sender->curve_key, &sender->peer, err);
        if (!status) {
            memcpy(msg->weights_offer.manifest, s->manifest.bytes, SN_KEY_SIZE);
            msg->weights_offer.file = file + 1;
            sender->offer_id = msg->correlation_id;
            sender->offer_file = file;
            sender->offer_until_us = now_us + OFFER_WAIT_US;
            sender->asked[file] = true;
            status = sn_link_send(link, sender->peer, &msg, err);
        }
        sn_msg_free(&msg);
        if (status) sn_sender_rest(s, i, now_us);
    }
    return status == SN_STOP ? status : SN_OK;
}

void sn_senders_ask_again(sn_senders *s) {
    for (size_t i = 0; i < s->n; i++) memset(s->all[i].asked, 0, s->n_files * sizeof *s->all[i].asked);
}

bool sn_senders_take(sn_senders *s, const sn_msg *msg) {
    for (size_t i = 0; i < s->n; i++) {
        sn_sender *sender = &s->all[i];
        if (!sender->offer_id || sender->offer_id != msg->correlation_id) continue;
        sender->offer_id = 0;
        if (msg->kind != SN_MSG_WEIGHTS_OFFER_REPLY) return true;
        sn_range_set *present = &sender->present[sender->offer_file];
        present->n = 0;
        for (size_t r = 0; r < msg->weights_offer_reply.n_ranges; r++) {
            const sn_byte_range *range = &msg->weights_offer_reply.ranges[r];
            if (range->from < range->to && sn_range_set_add(present, range->from, range->to, NULL)) break;
        }
        return true;
    }
    return false;
}

static int64_t expected_us(const sn_sender *s) { return (s->pieces + 1) * (s->piece_us ? s->piece_us : 1); }

static bool is_better(const sn_sender *a, const sn_sender *b) {
    const int64_t of_a = expected_us(a), of_b = expected_us(b);
    if (a->has_sent != b->has_sent) return a->has_sent;
    return of_a != of_b ? of_a < of_b : a->proven && !b->proven;
}

size_t sn_senders_choose(const sn_senders *s, size_t file, uint64_t from, uint64_t to, int64_t now_us) {
    size_t best = SN_SENDERS_MAX;
    for (size_t i = 0; i < s->n; i++) {
        const sn_sender *sender = &s->all[i];
        if (sender->dropped || !sender->peer || now_us < sender->not_before_us ||
            sender->pieces == (sender->has_sent ? SN_PIECES_PER_SENDER : 1) ||
            !sn_range_set_covers(&sender->present[file], from, to))
            continue;
        if (best == SN_SENDERS_MAX || is_better(sender, &s->all[best])) best = i;
    }
    return best;
}

bool sn_senders_overtake(const sn_senders *s, size_t sender, size_t file, const sn_piece *piece, int64_t begun_us,
                         int64_t now_us) {
    const int64_t age_us = now_us - begun_us;
    if (age_us < OVERTAKE_US) return false;
    const size_t other = sn_senders_choose(s, file, piece->from, piece->to, now_us);
    if (other == SN_SENDERS_MAX || expected_us(&s->all[other]) >= age_us / 4) return false;
    return s->all[other].has_sent || (!s->all[sender].has_sent && age_us > TRIAL_US);
}

void sn_sender_rest(sn_senders *s, size_t i, int64_t now_us) {
    sn_sender *sender = &s->all[i];
    sender->peer = 0;
    sender->has_sent = false;
    sender->offer_id = 0;
    sender->not_before_us = now_us + REST_US;
    for (size_t f = 0; f < s->n_files; f++) {
        sender->asked[f] = false;
        sender->present[f].n = 0;
    }
}

void sn_sender_drop(sn_sender *sender, const char *what) {
    char id[2 * SN_KEY_SIZE + 1];
    sender->dropped = true;
    sn_log(SN_LOG_WARN, "sender dropped", "node=%s name=%s address=%s text=%s", sn_hex(sender->node, SN_KEY_SIZE, id),
           sender->name, sender->address, what);
}
