/* Announcements: what a node says of itself, and its answers to who asks whom it knows. How they go round: core_gossip.c. */
#include "node/core_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

enum {
    PAGE_BYTES_MAX = 65536, /* of announcements in an answer to who does not say what it knows */
    PAGES_MAX = 8,          /* asked for, of a node that we join */
    JOINED_ASKED_BY = 32,   /* nodes of a swarm that ask a joined one in each round, about */
};

/* What a token costs on the way in and out, as float32. */
static uint64_t token_bytes(const sn_core *core) { return 2 * sizeof(float) * (uint64_t)core->hp->n_embd; }

static void tell_rates(const sn_core *core, const sn_engine_figures *figures, sn_announcement *a) {
    a->decode_us = figures->decode_us;
    a->prompt_tokens_per_s = figures->prompt_tokens_per_s;
    a->network_bytes_per_s = sn_distance_bytes_per_s(&core->distance);
    sn_distance_tell(&core->distance, a);
    if (!a->decode_us) return;
    uint64_t carried = a->network_bytes_per_s / token_bytes(core);
    a->tokens_per_s = 1000000 / a->decode_us;
    if (a->network_bytes_per_s && carried < a->tokens_per_s) a->tokens_per_s = carried;
    if (!a->tokens_per_s) a->tokens_per_s = 1; /* 0 is kept for what was not measured */
}

static sn_node_state state_of(const sn_core *core) {
    if (core->leaving) return SN_NODE_OFFLINE;
    if (!sn_core_serving(core)) return SN_NODE_JOINING;
    return core->draining || core->seat.state == SN_SEAT_PARTING ? SN_NODE_DRAINING : SN_NODE_ONLINE;
}

static sn_status seal_own(sn_core *core, int64_t unix_ms, sn_err *err) {
    sn_engine_figures figures = core->setup.read(core->setup.ctx);
    sn_announcement *a = NULL; /* large for a stack: it holds a hash for each block */
    sn_status status = sn_calloc(&a, 1, sizeof *a, err);
    if (status) return status;
    const sn_span_facts *span = &core->setup.span;
    memcpy(a->node, core->setup.identity->id, SN_KEY_SIZE);
    memcpy(a->curve_key, core->setup.identity->curve_key, SN_KEY_SIZE);
    memcpy(a->address, core->address, sizeof a->address);
    memcpy(a->name, core->name, sizeof a->name);
    memcpy(a->version, SN_VERSION, sizeof SN_VERSION);
    a->protocol = SN_PROTOCOL;
    if ((uint64_t)unix_ms > core->sequence) core->sequence = (uint64_t)unix_ms; /* grows over restarts, too */
    else core->sequence++; /* twice in a millisecond, or the clock was set back */
    a->sequence = core->sequence;
    a->expires_unix_ms = (uint64_t)unix_ms + SN_ANNOUNCE_LIFE_MS;
    a->state = state_of(core);
    memcpy(a->model, core->setup.model.bytes, SN_HASH_SIZE);
    a->first_block = (uint64_t)core->seat.first;
    a->end_block = (uint64_t)core->seat.end;
    a->n_blocks = (uint64_t)core->hp->n_blocks;
    for (int i = 0; span->block_hash && i < core->seat.end - core->seat.first; i++)
        memcpy(a->block_hash[i], span->block_hash[i].bytes, SN_HASH_SIZE);
    tell_rates(core, &figures, a);
    for (int i = 0; i < SN_WIRE_DTYPES; i++)
        if ((size_t)core->hp->n_embd % sn_dtype_block(sn_wire_dtypes[i]) == 0) a->wire_dtype[a->n_wire_dtype++] = sn_wire_dtypes[i];
    sn_core_announce_adapters(core, a);
    a->kv_bytes_free = core->setup.kv_bytes_max - figures.kv_bytes;
    a->sessions = sn_sessions_count(core->sessions);
    a->queue = figures.queue;
    sn_buf_fini(&core->sealed);
    sn_buf_init(&core->sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    status = sn_announcement_seal(a, core->setup.identity, &core->sealed, err);
    free(a);
    return status;
}

sn_status sn_core_copy_blob(const sn_blob *from, sn_blob *to, sn_err *err) {
    sn_status status = sn_calloc(&to->data, from->len, 1, err);
    if (status) return status;
    memcpy(to->data, from->data, from->len);
    to->len = from->len;
    return SN_OK;
}

sn_status sn_core_list_own(const sn_core *core, sn_blob **out, size_t *n, sn_err *err) {
    const sn_blob own = {core->sealed.data, core->sealed.len};
    sn_status status = sn_list_new(own.len ? 1 : 0, 1, sizeof **out, out, err);
    if (status || !own.len) return status;
    status = sn_core_copy_blob(&own, *out, err);
    if (!status) *n = 1;
    return status;
}

static bool is_zero(const uint8_t key[SN_KEY_SIZE]) {
    for (int i = 0; i < SN_KEY_SIZE; i++)
        if (key[i]) return false;
    return true;
}

/* -- answering ----------------------------------------------------------------------------------------------------- */

static uint64_t read_u64(const uint8_t *bytes) {
    uint64_t n = 0;
    for (int i = 0; i < 8; i++) n = n << 8 | bytes[i];
    return n;
}

/* Whether the asker has said that it knows this word, or a later one. Its list is in the order of tags; one that is not only
 * makes us tell too much. */
static bool is_known(const sn_msg_peers *peers, const sn_announcement *a) {
    if (!peers->n_known) return false;
    const uint8_t *list = peers->known[0].data;
    size_t low = 0, high = peers->known[0].len / 16, end = high;
    uint64_t tag = sn_node_tag(a->node);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (read_u64(list + 16 * middle) < tag)
            low = middle + 1;
        else
            high = middle;
    }
    return low < end && read_u64(list + 16 * low) == tag && read_u64(list + 16 * low + 8) >= a->sequence;
}

static bool is_asked_for(const sn_msg_peers *peers, const sn_announcement *a, int64_t unix_ms) {
    if (a->expires_unix_ms <= (uint64_t)unix_ms) return false;
    if (!is_zero(peers->model) && memcmp(a->model, peers->model, SN_KEY_SIZE)) return false;
    bool overlaps = a->first_block < peers->end_block && a->end_block > peers->first_block;
    return (!peers->end_block || overlaps) && !is_known(peers, a);
}

/* What is asked for, from from_tag on, until the message is full; `next` is where it would go on, 0 at the end. */
static sn_status list_words(const sn_core *core, const sn_msg_peers *peers, size_t bytes_max, int64_t unix_ms,
                            sn_msg_peers_are *out, size_t *bytes, sn_err *err) {
    const sn_directory *d = core->directory;
    size_t count = sn_directory_words(d), first = sn_directory_seek(d, peers->from_tag);
    uint64_t last = peers->to_tag ? peers->to_tag : UINT64_MAX;
    sn_status status = sn_list_new(sn_min_size(count - first, SN_ANNOUNCEMENTS_MAX), SN_ANNOUNCEMENTS_MAX,
                                   sizeof *out->announcements, &out->announcements, err);
    for (size_t i = first; i < count && !status; i++) {
        const sn_announcement *a = sn_directory_word(d, i);
        const sn_blob *sealed = sn_directory_word_sealed(d, i);
        if (sn_node_tag(a->node) > last) break;
        if (!is_asked_for(peers, a, unix_ms)) continue;
        bool full = out->n_announcements == SN_ANNOUNCEMENTS_MAX || *bytes + sealed->len > bytes_max;
        if (full) {
            out->next = sn_node_tag(a->node);
            break;
        }
        status = sn_core_copy_blob(sealed, &out->announcements[out->n_announcements], err);
        if (status) break;
        out->n_announcements++;
        *bytes += sealed->len;
    }
    return status;
}

static void take_all(sn_core *core, const sn_blob *blobs, size_t n, int64_t now_us, int64_t unix_ms) {
    sn_err err;
    for (size_t i = 0; i < n; i++) {
        sn_news news;
        uint64_t tag;
        if (sn_directory_learn(core->directory, blobs[i].data, blobs[i].len, unix_ms, &news, &tag, &err))
            sn_log(SN_LOG_DEBUG, "announcement dropped", "text=%s", err.text);
        else
            sn_core_heard(core, tag, news, now_us);
    }
}

/* What nodes tell each other is paid from the allowance; a client, or a node that comes new, asks without saying what it knows
 * and is told a page. */
void sn_core_on_peers(sn_core *core, sn_event *event, int64_t now_us, int64_t unix_ms) {
    const sn_msg_peers *peers = &event->msg->peers;
    sn_err err;
    if (peers->protocol != SN_PROTOCOL) {
        (void)sn_fail(&err, SN_REFUSED, "this node speaks protocol %d: use a matching version", SN_PROTOCOL);
        sn_core_refuse(core, event->peer, event->msg, &err);
        return;
    }
    take_all(core, peers->announcements, peers->n_announcements, now_us, unix_ms);
    sn_msg *msg = sn_core_new_msg(SN_MSG_PEERS_ARE, event->msg->request);
    if (!msg) return;
    size_t most = peers->n_known ? sn_core_answer_bytes(core, now_us) : PAGE_BYTES_MAX, bytes = 0;
    if (list_words(core, peers, most, unix_ms, &msg->peers_are, &bytes, &err))
        sn_core_refuse(core, event->peer, event->msg, &err);
    else
        sn_core_send(core, event->peer, &msg);
    if (peers->n_known) sn_core_answered(core, bytes);
    sn_msg_free(&msg);
}

/* -- those that we were told to join ------------------------------------------------------------------------------- */

/* Tells a joined node of us, and asks for a page of whom it knows, from a tag on. */
static void ask_joined(sn_core *core, const sn_joined *joined, uint64_t from_tag) {
    sn_msg *msg = sn_core_new_msg(SN_MSG_PEERS, 0);
    sn_err err;
    if (!msg) return;
    msg->peers.protocol = SN_PROTOCOL;
    msg->peers.from_tag = from_tag;
    if (!sn_core_list_own(core, &msg->peers.announcements, &msg->peers.n_announcements, &err))
        sn_core_send(core, joined->peer, &msg);
    sn_msg_free(&msg);
}

void sn_core_on_peers_are(sn_core *core, sn_event *event, int64_t now_us, int64_t unix_ms) {
    const sn_msg_peers_are *are = &event->msg->peers_are;
    take_all(core, are->announcements, are->n_announcements, now_us, unix_ms);
    for (size_t i = 0; i < core->n_joined; i++) {
        sn_joined *joined = &core->joined[i];
        if (joined->peer != event->peer) continue;
        joined->answered = true;
        if (are->next && joined->pages_left) {
            joined->pages_left--;
            ask_joined(core, joined, are->next);
        } else {
            joined->pages_left = 0;
        }
    }
}

/* Until it has answered, in each round; later so rarely that a node which a large swarm was told to join is not drowned. */
static void ask_those_joined(sn_core *core) {
    for (size_t i = 0; i < core->n_joined; i++) {
        sn_joined *joined = &core->joined[i];
        if (!joined->answered) {
            joined->pages_left = PAGES_MAX;
            ask_joined(core, joined, 0);
        } else if (sn_seeded_below(&core->gossip.seed, sn_directory_count(core->directory)) < JOINED_ASKED_BY) {
            sn_core_ask_newer(core, joined->peer, true);
        }
    }
}

/* -- rounds -------------------------------------------------------------------------------------------------------- */

void sn_core_announce(sn_core *core, int64_t now_us, int64_t unix_ms) {
    sn_err err;
    sn_news news = SN_NEWS_NONE;
    uint64_t tag = 0;
    sn_status status = seal_own(core, unix_ms, &err);
    if (!status)
        status = sn_directory_learn(core->directory, core->sealed.data, core->sealed.len, unix_ms, &news, &tag, &err);
    if (status) sn_log(SN_LOG_ERROR, "no announcement made", "text=%s", err.text);
    else if (news == SN_NEWS_CHANGE) sn_core_tell_everybody(core);
    else sn_core_heard(core, tag, news, now_us);
}

void sn_core_announce_round(sn_core *core, int64_t now_us, int64_t unix_ms) {
    core->announce_us = now_us + SN_ANNOUNCE_EVERY_MS * 1000 -
                        (int64_t)sn_seeded_below(&core->gossip.seed, SN_ANNOUNCE_EVERY_MS * 1000 / 5);
    sn_directory_expire(core->directory, unix_ms);
    sn_core_gossip_round(core, unix_ms);
    sn_core_announce(core, now_us, unix_ms);
    ask_those_joined(core);
    sn_core_measure_distances(core, now_us);
}

/* Those that we were told to join are tried for ever; others are dialled anew when there is something to say to them, so
 * that the dead do not gather. */
void sn_core_on_loss(sn_core *core, const sn_event *event) {
    sn_log(SN_LOG_INFO, "peer lost", "text=%s", event->bad.text);
    sn_core_gossip_loss(core, event->peer);
    for (size_t i = 0; i < core->n_joined; i++)
        if (core->joined[i].peer == event->peer) {
            core->joined[i].answered = false;
            return;
        }
    sn_transport_hang_up(core->setup.transport, event->peer);
}

void sn_core_join(sn_core *core, const char *address, const uint8_t curve_key[SN_KEY_SIZE]) {
    sn_joined *joined = &core->joined[core->n_joined];
    sn_err err;
    if (core->n_joined == SN_JOINED_MAX || !memcmp(curve_key, core->setup.identity->curve_key, SN_KEY_SIZE)) return;
    if (sn_transport_dial(core->setup.transport, address, curve_key, &joined->peer, &err)) {
        sn_log(SN_LOG_WARN, "cannot join", "address=%s text=%s", address, err.text);
        return;
    }
    core->n_joined++;
    joined->answered = false;
    joined->pages_left = PAGES_MAX;
    if (core->sealed.len) ask_joined(core, joined, 0);
}
