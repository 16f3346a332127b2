/* One loop asks, receives, checks and writes. What is wanted becomes a list of pieces; a slot is a piece on its way
 * from one sender, of which one request at a time is open. A piece whose sender fails goes back to the list. Discovery
 * runs before the first piece, again when no node has what is wanted, and every ten seconds. */
#include "sharing/peers/fetcher_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "sharing/hub/cached.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOTS = 32,
    LOOKS_MAX = 2048,     /* at pieces, before the next message is read */
    ANSWER_US = 15000000, /* for which a sender may be silent */
    DISCOVER_EVERY_US = 10000000,
    DISCOVER_SOON_US = 1000000, /* while no node has what is wanted */
    DISCOVER_MS = 3000,
    WAIT_US = 100000,
    PROGRESS_US = 200000,
    PATIENCE_MS = 60000
};

sn_status sn_fetcher_new(const sn_swarm_access *access, sn_fetcher **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (!status) (*out)->access = *access;
    return status;
}

void sn_fetcher_free(sn_fetcher **fetcher) {
    if (!*fetcher) return;
    sn_senders_fini(&(*fetcher)->senders);
    sn_link_close(&(*fetcher)->link);
    free(*fetcher);
    *fetcher = NULL;
}

static sn_status open_link(sn_fetcher *f, sn_err *err) {
    if (f->link) return SN_OK;
    if (!f->access.n_join)
        return sn_fail(err, SN_REFUSED, "the model comes from a swarm: give the address of one of its nodes, --join");
    sn_status status = sn_link_open(&(sn_link_options){.join = f->access.join,
                                                       .n_join = f->access.n_join,
                                                       .swarm_key_path = f->access.swarm_key_path},
                                    &f->link, err);
    if (!status) sn_link_set_cancel(f->link, f->access.cancel);
    return status;
}

sn_link *sn_fetcher_link(sn_fetcher *f) { return open_link(f, NULL) ? NULL : f->link; }

sn_status sn_fetcher_begin(sn_fetcher *f, const sn_hash *manifest, size_t n_files, sn_err *err) {
    if (memcmp(&f->senders.manifest, manifest, sizeof *manifest) || f->senders.n_files != n_files) {
        sn_senders_fini(&f->senders);
        sn_senders_init(&f->senders, manifest, n_files);
    }
    return open_link(f, err);
}

sn_status sn_fetcher_discover(sn_fetcher *f, const sn_hash *model, sn_err *err) {
    sn_status status = sn_link_discover(f->link, model, DISCOVER_MS, err);
    if (status == SN_STOP || status == SN_REFUSED) return status;
    return sn_senders_update(&f->senders, sn_link_directory(f->link), err);
}

int64_t sn_fetcher_patience_us(const sn_fetcher *f) {
    return 1000 * (int64_t)(f->access.patience_ms ? f->access.patience_ms : PATIENCE_MS);
}

sn_status sn_fetcher_check_cancel(const sn_fetcher *f, sn_err *err) {
    return sn_is_cancelled(f->access.cancel) ? sn_fail(err, SN_RETRY, "the fetch was cancelled") : SN_OK;
}

/* -- pieces -------------------------------------------------------------------------------------------------------- */

typedef struct todo {
    size_t file;
    const sn_piece *piece;
} todo;

typedef struct slot {
    bool used;
    todo what;
    size_t sender;
    uint64_t correlation_id; /* of the open request; 0: none */
    int64_t begun_us;        /* the sender has the piece since then */
    int64_t until_us;        /* for which its answer is waited */
    size_t have, asked;      /* bytes of the piece that are here; that the open request asks for */
    uint8_t data[SN_PIECE_MAX];
} slot;

typedef struct fetching {
    sn_fetcher *f;
    const sn_manifest *manifest;
    const char *what;
    sn_partial_file *files; /* (n_files): open where something is wanted */
    bool *wanted;           /* (n_files) */
    todo *list;             /* pieces that no slot has */
    size_t n_list, next;    /* next: at which it is looked on */
    slot *slots;            /* [SLOTS] */
    int64_t begun_us, told_us, arrived_us, discovered_us;
    sn_hub_progress progress;
} fetching;

static void tell(fetching *g, bool now) {
    int64_t us = sn_now_us();
    const sn_swarm_access *access = &g->f->access;
    if (!access->progress || (!now && us - g->told_us < PROGRESS_US)) return;
    g->told_us = us;
    g->progress.bytes_per_s = (double)g->progress.done / ((double)(us - g->begun_us + 1) / 1e6);
    access->progress(access->context, &g->progress);
}

/* The pieces of a file that hold wanted bytes which are not there. */
static sn_status list_pieces(fetching *g, size_t file, const sn_range_set *wanted, sn_err *err) {
    const sn_manifest_file *of = &g->manifest->files[file];
    const sn_range_set *present = &g->files[file].present;
    const sn_piece *last = NULL;
    for (size_t i = 0; i < wanted->n; i++) {
        if (wanted->ranges[i].to > of->size)
            return sn_fail(err, SN_REFUSED, "the header of %s names bytes beyond its end", of->name);
        for (uint64_t at = wanted->ranges[i].from; at < wanted->ranges[i].to;) {
            const sn_piece *piece = sn_manifest_piece_at(g->manifest, of, at);
            at = piece->to;
            if (piece == last || sn_range_set_covers(present, piece->from, piece->to)) continue;
            last = piece;
            g->list[g->n_list++] = (todo){file, piece};
            g->progress.total += piece->to - piece->from;
        }
    }
    return SN_OK;
}

static sn_status open_parts(fetching *g, const sn_fetcher_part *parts, sn_err *err) {
    char etag[2 * SN_HASH_SIZE + 1];
    sn_status status = sn_calloc(&g->files, g->manifest->n_files, sizeof *g->files, err);
    for (size_t i = 0; g->files && i < g->manifest->n_files; i++) g->files[i].fd = g->files[i].lock = -1;
    if (!status) status = sn_calloc(&g->wanted, g->manifest->n_files, sizeof *g->wanted, err);
    if (!status) status = sn_calloc(&g->list, g->manifest->n_pieces + 1, sizeof *g->list, err);
    if (!status) status = sn_calloc(&g->slots, SLOTS, sizeof *g->slots, err);
    sn_hex(g->manifest->id.bytes, SN_HASH_SIZE, etag);
    for (size_t i = 0; !status && i < g->manifest->n_files; i++) {
        size_t before = g->n_list;
        if (!parts[i].wanted.n) continue;
        status = sn_partial_file_open(parts[i].path, g->manifest->files[i].size, etag, g->f->access.cancel,
                                      &g->files[i], err);
        if (!status) status = list_pieces(g, i, &parts[i].wanted, err);
        g->wanted[i] = g->n_list > before;
    }
    return status;
}

/* What came is kept, also after a failure. */
static sn_status close_parts(fetching *g, sn_status status, sn_err *err) {
    for (size_t i = 0; g->files && i < g->manifest->n_files; i++) {
        if (g->files[i].fd >= 0 && g->wanted && g->wanted[i]) {
            sn_status saved = sn_partial_file_save(&g->files[i], status ? NULL : err);
            if (!status) status = saved;
        }
        sn_partial_file_close(&g->files[i]);
    }
    free(g->files);
    free(g->wanted);
    free(g->list);
    free(g->slots);
    return status;
}

/* The slot's piece goes back to the list. */
static void give_back(fetching *g, slot *s) {
    g->list[g->n_list++] = s->what;
    g->f->senders.all[s->sender].pieces--;
    s->used = false;
}

static void give_back_all(fetching *g, size_t sender) {
    for (size_t i = 0; i < SLOTS; i++)
        if (g->slots[i].used && g->slots[i].sender == sender) give_back(g, &g->slots[i]);
}

static void rest(fetching *g, size_t sender, int64_t now_us) {
    give_back_all(g, sender);
    sn_sender_rest(&g->f->senders, sender, now_us);
}

/* Gives free slots a piece that some sender has. A call looks at some pieces only, and the next one at those behind
 * them: where many senders have none of what is left, looking for them would take longer than fetching. */
static void fill_slots(fetching *g, int64_t now_us) {
    size_t looks = sn_min_size(g->n_list, LOOKS_MAX);
    for (size_t i = 0; i < SLOTS && looks; i++) {
        slot *s = &g->slots[i];
        size_t sender = SN_SENDERS_MAX;
        if (s->used) continue;
        for (; looks && sender == SN_SENDERS_MAX; looks--) {
            if (g->next >= g->n_list) g->next = 0;
            const todo *t = &g->list[g->next];
            sender = sn_senders_choose(&g->f->senders, t->file, t->piece->from, t->piece->to, now_us);
            g->next += sender == SN_SENDERS_MAX;
        }
        if (sender == SN_SENDERS_MAX) return;
        s->used = true;
        s->what = g->list[g->next];
        s->sender = sender;
        s->begun_us = now_us;
        s->correlation_id = 0;
        s->have = 0;
        g->list[g->next] = g->list[--g->n_list];
        g->f->senders.all[sender].pieces++;
    }
}

/* What is under way counts in the speed of its sender, and goes to another one that is much faster. */
static void overtake(fetching *g, int64_t now_us) {
    for (size_t i = 0; i < SLOTS; i++) {
        slot *s = &g->slots[i];
        if (!s->used) continue;
        sn_sender *sender = &g->f->senders.all[s->sender];
        if (now_us - s->begun_us > sender->piece_us) sender->piece_us = now_us - s->begun_us;
        if (sn_senders_overtake(&g->f->senders, s->sender, s->what.file, s->what.piece, s->begun_us, now_us))
            give_back(g, s);
    }
}

static sn_status ask_for(fetching *g, slot *s, int64_t now_us, sn_err *err) {
    sn_sender *sender = &g->f->senders.all[s->sender];
    const sn_piece *piece = s->what.piece;
    sn_msg *msg = NULL;
    sn_status status = sn_msg_new(SN_MSG_WEIGHTS, sn_link_new_correlation_id(), &msg, err);
    if (status) return status;
    s->asked = sn_min_size((size_t)(piece->to - piece->from) - s->have, SN_WEIGHTS_SIZE_MAX);
    s->correlation_id = msg->correlation_id;
    s->until_us = now_us + ANSWER_US;
    memcpy(msg->weights.manifest, g->manifest->id.bytes, SN_KEY_SIZE);
    msg->weights.file = s->what.file + 1;
    msg->weights.from = piece->from + s->have;
    msg->weights.bytes = s->asked;
    status = sn_link_send(g->f->link, sender->peer, &msg, err);
    sn_msg_free(&msg);
    return status;
}

static sn_status ask(fetching *g, int64_t now_us, sn_err *err) {
    for (size_t i = 0; i < SLOTS; i++) {
        slot *s = &g->slots[i];
        if (!s->used) continue;
        const sn_sender *sender = &g->f->senders.all[s->sender];
        bool failed = !sn_link_is_connected(g->f->link, sender->peer) || (s->correlation_id && now_us > s->until_us);
        if (!failed && !s->correlation_id && now_us >= sender->not_before_us) {
            sn_status status = ask_for(g, s, now_us, err);
            if (status == SN_STOP) return status;
            failed = status != SN_OK;
        }
        if (failed) rest(g, s->sender, now_us);
    }
    return SN_OK;
}

/* The piece is complete: it is written if it is what the manifest says. */
static sn_status finish(fetching *g, slot *s, sn_err *err) {
    sn_sender *sender = &g->f->senders.all[s->sender];
    const sn_piece *piece = s->what.piece;
    const sn_hash hash = sn_hash_of(s->data, s->have);
    if (memcmp(&hash, &piece->hash, sizeof hash)) {
        sn_sender_drop(sender, "it sent bytes that are not those of the model: nothing more is taken from it");
        give_back_all(g, s->sender);
        return SN_OK;
    }
    sender->has_sent = true;
    sender->piece_us = sn_now_us() - s->begun_us + 1;
    sender->pieces--;
    s->used = false;
    sn_status status = sn_partial_file_write(&g->files[s->what.file], piece->from, s->data, s->have, err);
    g->progress.done += s->have;
    if (!status) tell(g, false);
    return status;
}

/* The answer to a slot's request. */
static sn_status take_bytes(fetching *g, slot *s, const sn_msg *msg, int64_t now_us, sn_err *err) {
    sn_sender *sender = &g->f->senders.all[s->sender];
    const sn_msg_weights_reply *reply = &msg->weights_reply;
    size_t bytes = 0;
    s->correlation_id = 0;
    if (msg->kind == SN_MSG_ERROR && msg->error.status == SN_RETRY) {
        uint64_t wait_ms = msg->error.wait_ms < 10000 ? msg->error.wait_ms : 10000;
        sender->not_before_us = now_us + 1000 * (int64_t)wait_ms + WAIT_US / 2;
        return SN_OK;
    }
    for (size_t i = 0; msg->kind == SN_MSG_WEIGHTS_REPLY && i < reply->n_bytes; i++) bytes += reply->bytes[i].len;
    if (bytes != s->asked) { /* an error, for example that it has the bytes no longer */
        rest(g, s->sender, now_us);
        return SN_OK;
    }
    g->arrived_us = now_us;
    for (size_t i = 0; i < reply->n_bytes; i++) {
        if (reply->bytes[i].len) memcpy(s->data + s->have, reply->bytes[i].data, reply->bytes[i].len);
        s->have += reply->bytes[i].len;
    }
    return s->have == s->what.piece->to - s->what.piece->from ? finish(g, s, err) : SN_OK;
}

static sn_status take(fetching *g, const sn_msg *msg, sn_err *err) {
    int64_t now_us = sn_now_us();
    for (size_t i = 0; i < SLOTS; i++)
        if (g->slots[i].used && g->slots[i].correlation_id && g->slots[i].correlation_id == msg->correlation_id)
            return take_bytes(g, &g->slots[i], msg, now_us, err);
    sn_senders_take(&g->f->senders, msg);
    return SN_OK;
}

static size_t slots_used(const fetching *g) {
    size_t n = 0;
    for (size_t i = 0; i < SLOTS; i++) n += g->slots[i].used;
    return n;
}

static sn_status look_for_senders(fetching *g, int64_t now_us, sn_err *err) {
    int64_t every_us = slots_used(g) ? DISCOVER_EVERY_US : DISCOVER_SOON_US;
    sn_status status = SN_OK;
    if (!g->discovered_us || now_us - g->discovered_us > every_us) {
        status = sn_fetcher_discover(g->f, &g->manifest->model, err);
        g->discovered_us = sn_now_us();
        if (!slots_used(g)) sn_senders_ask_again(&g->f->senders);
    }
    for (size_t i = 0; !status && i < g->manifest->n_files; i++)
        if (g->wanted[i]) status = sn_senders_ask(&g->f->senders, g->f->link, i, now_us, err);
    return status;
}

static sn_status run(fetching *g, sn_err *err) {
    sn_status status = SN_OK;
    while (!status && (g->n_list || slots_used(g))) {
        int64_t now_us = sn_now_us();
        sn_event event;
        status = sn_fetcher_check_cancel(g->f, err);
        if (!status) status = look_for_senders(g, now_us, err);
        if (!status) overtake(g, now_us);
        if (!status) fill_slots(g, now_us);
        if (!status) status = ask(g, now_us, err);
        if (!status && now_us - g->arrived_us > sn_fetcher_patience_us(g->f))
            status = sn_fail(err, SN_RETRY,
                             "no node has sent %s of '%s' for %.0f s (%zu of them share the model): is the swarm's "
                             "copy complete?",
                             g->what, g->manifest->name, (double)sn_fetcher_patience_us(g->f) / 1e6, g->f->senders.n);
        if (!status) status = sn_link_receive(g->f->link, sn_now_us() + WAIT_US, &event, err);
        if (status) break;
        if (event.msg) status = take(g, event.msg, err);
        sn_msg_free(&event.msg);
    }
    for (size_t i = 0; i < SLOTS; i++)
        if (g->slots[i].used) give_back(g, &g->slots[i]);
    if (!status) tell(g, true);
    return status;
}

sn_status sn_fetcher_fetch(sn_fetcher *f, const sn_manifest *manifest, const sn_fetcher_part *parts, const char *what,
                           sn_err *err) {
    int64_t now_us = sn_now_us();
    fetching g = {.f = f,
                  .manifest = manifest,
                  .what = what,
                  .begun_us = now_us,
                  .arrived_us = now_us,
                  .progress = {.what = what}};
    sn_status status = open_parts(&g, parts, err);
    if (!status && g.n_list) status = sn_cached_make_room(f->access.cache, f->access.cache_max, g.progress.total, err);
    if (!status && g.n_list) {
        status = sn_fetcher_begin(f, &manifest->id, manifest->n_files, err);
        if (!status) status = run(&g, err);
    }
    return close_parts(&g, status, err);
}
