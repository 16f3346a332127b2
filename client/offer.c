#include "client/offer.h"

#include "base/hash.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* What others say is clamped to this before it is reckoned with: an hour, a million tokens. */
static const int64_t TIME_US_MAX = 3600LL * 1000000;
enum { LOAD_MAX = 1000, SESSIONS_PER_TOKEN = 16 };

const char *sn_node_state_name(sn_node_state state) {
    static const char *const names[] = {"joining", "online", "draining", "offline"};
    return (size_t)state < sizeof names / sizeof *names ? names[state] : "?";
}

const char *sn_verdict_name(sn_verdict verdict) {
    static const char *const names[SN_OFFER_VERDICTS] = {"usable",        "not online",    "another protocol",
                                                         "another model", "other weights", "not of this --wire",
                                                         "not among --only", "denied",     "banned",
                                                         "without the adapter", "no room"};
    return (size_t)verdict < SN_OFFER_VERDICTS ? names[verdict] : "?";
}

static int64_t clamp_us(uint64_t us) { return us < (uint64_t)TIME_US_MAX ? (int64_t)us : TIME_US_MAX; }

/* -- whether it may be used ---------------------------------------------------------------------------------------- */

static bool is_named(const sn_announcement *node, const char *const *names, size_t n) {
    char id[2 * SN_KEY_SIZE + 1];
    sn_hex(node->node, SN_KEY_SIZE, id);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], node->name) ||
            (strlen(names[i]) >= SN_PICK_DIGITS_MIN && !strncmp(names[i], id, strlen(names[i]))))
            return true;
    return false;
}

static bool weights_agree(const sn_offer_wish *wish, const sn_announcement *node) {
    for (int b = (int)node->first_block; b < (int)node->end_block; b++) {
        const sn_hash *want = wish->block_hash ? wish->block_hash[b] : NULL;
        if (want && memcmp(want->bytes, node->block_hash[b - (int)node->first_block], SN_HASH_SIZE)) return false;
    }
    return true;
}

static bool takes(const sn_announcement *node, sn_dtype dtype) {
    for (size_t i = 0; i < node->n_wire_dtype; i++)
        if (node->wire_dtype[i] == (uint64_t)dtype) return true;
    return dtype == SN_F32;
}

static bool holds_adapter(const sn_announcement *node, uint64_t tag) {
    for (size_t i = 0; i < node->n_adapters; i++)
        if (node->adapters[i] == tag) return true;
    return !tag;
}

static sn_verdict judge(const sn_offer_wish *wish, const sn_announcement *node) {
    if (node->protocol != SN_PROTOCOL) return SN_OFFER_PROTOCOL;
    if (memcmp(node->model, wish->model.bytes, SN_HASH_SIZE) || node->n_blocks != (uint64_t)wish->n_blocks)
        return SN_OFFER_MODEL;
    if (node->state != SN_NODE_ONLINE) return SN_OFFER_STATE;
    if (!weights_agree(wish, node)) return SN_OFFER_WEIGHTS;
    if (!takes(node, wish->wire)) return SN_OFFER_WIRE;
    if (is_named(node, wish->pick.deny, wish->pick.n_deny)) return SN_OFFER_DENIED;
    if (wish->pick.n_only && !is_named(node, wish->pick.only, wish->pick.n_only)) return SN_OFFER_NOT_ONLY;
    if (!holds_adapter(node, wish->adapter)) return SN_OFFER_ADAPTER;
    if (sn_seen_banned_us(wish->seen, node->node, wish->now_us)) return SN_OFFER_BANNED;
    return SN_OFFER_USABLE;
}

/* -- what it costs ------------------------------------------------------------------------------------------------- */

static void reckon(const sn_offer_wish *wish, const sn_announcement *node, sn_offer *p) {
    const sn_sight *sight = sn_seen_of(wish->seen, node->node);
    if (sight && (!sight->measured_us || wish->now_us - sight->measured_us >= SN_SEEN_FRESH_US)) sight = NULL;
    int64_t span = p->end > p->first ? p->end - p->first : 1;
    uint64_t sessions = node->sessions < LOAD_MAX ? node->sessions : LOAD_MAX;
    uint64_t queue = node->queue < LOAD_MAX ? node->queue : LOAD_MAX;
    p->rtt_measured = sight && sight->rtt_us >= 0;
    p->block_measured = sight && sight->block_ns >= 0;
    p->rtt_ns = (p->rtt_measured ? clamp_us((uint64_t)sight->rtt_us) : SN_GUESS_RTT_US) * 1000;
    p->block_ns = SN_GUESS_BLOCK_US * 1000;
    if (node->decode_us) p->block_ns = clamp_us(node->decode_us) * 1000 / span;
    if (p->block_measured) p->block_ns = sight->block_ns < TIME_US_MAX * 1000 ? sight->block_ns : TIME_US_MAX * 1000;
    p->prompt_ns =
        node->prompt_tokens_per_s
            ? 1000000000 / span /
                  (int64_t)(node->prompt_tokens_per_s >> 1 < INT32_MAX ? node->prompt_tokens_per_s : INT32_MAX)
            : p->block_ns / 4;
    /* Each step that waits is a pass before ours; an open session may or may not have one. */
    int64_t waiting = (int64_t)queue * SESSIONS_PER_TOKEN + (int64_t)sessions;
    p->queue_ns = waiting * span * p->block_ns / SESSIONS_PER_TOKEN;
    if (sight && sight->queue_us >= 0) p->queue_ns = clamp_us((uint64_t)sight->queue_us) * 1000;
    if (p->queue_ns > TIME_US_MAX * 1000) p->queue_ns = TIME_US_MAX * 1000;
    p->queue_ns += SN_HANDLING_US * 1000;
    p->tokens_per_s = node->tokens_per_s ? (double)node->tokens_per_s : 1e9 / (double)(span * p->block_ns + 1);
    uint64_t room = wish->kv_bytes_per_block ? node->kv_bytes_free / wish->kv_bytes_per_block : (uint64_t)span;
    p->room = room < (uint64_t)span ? (int)room : (int)span;
    if (!p->room && p->verdict == SN_OFFER_USABLE) p->verdict = SN_OFFER_NO_ROOM;
}

/* Among equals the first one of the list is taken: the seed shuffles it, so that clients spread and runs repeat. */
static void shuffle(sn_offer *at, size_t n, uint64_t seed) {
    for (size_t i = n; i > 1; i--) {
        seed += 0x9e3779b97f4a7c15u; /* splitmix64 */
        uint64_t x = seed;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        size_t k = (size_t)((x ^ (x >> 31)) % i);
        sn_offer swapped = at[i - 1];
        at[i - 1] = at[k];
        at[k] = swapped;
    }
}

/* -- round trips ----------------------------------------------------------------------------------------------------
 */

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Who was not measured is guessed to be as far as the others are: the median. */
static sn_status guess_round_trips(sn_offers *offers, sn_err *err) {
    int64_t *known = NULL;
    size_t n = 0;
    sn_status status = sn_calloc(&known, offers->n, sizeof *known, err);
    if (status) return status;
    for (size_t i = 0; i < offers->n; i++)
        if (offers->at[i].rtt_measured) known[n++] = offers->at[i].rtt_ns;
    qsort(known, n, sizeof *known, by_size);
    for (size_t i = 0; i < offers->n && n; i++)
        if (offers->at[i].node && !offers->at[i].rtt_measured) offers->at[i].rtt_ns = known[n / 2];
    free(known);
    return SN_OK;
}

/* -- round trips between nodes ------------------------------------------------------------------------------------- */

typedef struct tagged {
    uint64_t tag;
    size_t offer;
} tagged;

typedef struct pair {
    size_t from;
    sn_offer_link link;
} pair;

static int by_tag(const void *a, const void *b) {
    uint64_t x = ((const tagged *)a)->tag, y = ((const tagged *)b)->tag;
    return x < y ? -1 : x > y;
}

static int by_ends(const void *a, const void *b) {
    const pair *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->link.other != y->link.other) return x->link.other < y->link.other ? -1 : 1;
    return x->link.rtt_ns < y->link.rtt_ns ? -1 : x->link.rtt_ns > y->link.rtt_ns;
}

/* What nodes announce of each other, both ways round, into `pairs` (room for two for each announced one). */
static size_t list_pairs(const sn_offers *offers, const tagged *tags, size_t n_tags, pair *pairs) {
    size_t n = 0;
    for (size_t t = 0; t < n_tags; t++) {
        const sn_announcement *a = offers->at[tags[t].offer].node;
        for (size_t i = 0; i < a->n_round_trip; i++) {
            const tagged *other = bsearch(&(tagged){.tag = a->round_trip[i].node}, tags, n_tags, sizeof *tags, by_tag);
            if (!other || other->offer == tags[t].offer) continue;
            int64_t rtt_ns = clamp_us(a->round_trip[i].us) * 1000;
            pairs[n++] = (pair){tags[t].offer, {other->offer, rtt_ns}};
            pairs[n++] = (pair){other->offer, {tags[t].offer, rtt_ns}};
        }
    }
    return n;
}

/* Of a pair that both have measured the shorter time counts: what is measured is too long rather than too short. */
static sn_status link_offers(sn_offers *offers, sn_err *err) {
    tagged *tags = NULL;
    pair *pairs = NULL;
    size_t n_tags = 0, n = 0;
    sn_status status = sn_calloc(&tags, offers->n, sizeof *tags, err);
    for (size_t i = 0; i < offers->n && !status; i++)
        if (offers->at[i].node && offers->at[i].verdict == SN_OFFER_USABLE) {
            tags[n_tags++] = (tagged){sn_node_tag(offers->at[i].node->node), i};
            n += 2 * offers->at[i].node->n_round_trip;
        }
    if (!status) qsort(tags, n_tags, sizeof *tags, by_tag);
    if (!status) status = sn_calloc(&pairs, n, sizeof *pairs, err);
    if (!status) status = sn_calloc(&offers->links, n, sizeof *offers->links, err);
    if (!status) {
        n = list_pairs(offers, tags, n_tags, pairs);
        qsort(pairs, n, sizeof *pairs, by_ends);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n && !status; i++) {
        if (i && pairs[i].from == pairs[i - 1].from && pairs[i].link.other == pairs[i - 1].link.other) continue;
        sn_offer *from = &offers->at[pairs[i].from];
        if (!from->n_links++) from->links = &offers->links[kept];
        offers->links[kept++] = pairs[i].link;
    }
    free(tags);
    free(pairs);
    return status;
}

sn_status sn_offers_make(const sn_offer_wish *wish, sn_offers *out, sn_err *err) {
    size_t n = wish->directory ? sn_directory_count(wish->directory) : 0;
    *out = (sn_offers){0};
    sn_status status = sn_calloc(&out->at, n + 1, sizeof *out->at, err);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        const sn_announcement *node = sn_directory_at(wish->directory, i);
        sn_offer *p = &out->at[out->n++];
        *p = (sn_offer){.node = node, .verdict = judge(wish, node)};
        if (p->verdict == SN_OFFER_MODEL || p->verdict == SN_OFFER_PROTOCOL)
            continue; /* its blocks mean nothing here */
        p->first = (int)node->first_block;
        p->end = (int)node->end_block;
        reckon(wish, node, p);
    }
    if (wish->seed) shuffle(out->at, out->n, wish->seed);
    if (wish->local_first < wish->local_end)
        out->at[out->n++] = (sn_offer){.first = wish->local_first,
                                       .end = wish->local_end,
                                       .room = wish->local_end - wish->local_first,
                                       .tokens_per_s = 1};
    status = guess_round_trips(out, err);
    if (!status) status = link_offers(out, err);
    if (status) sn_offers_fini(out);
    return status;
}

void sn_offers_ignore_room(sn_offers *offers) {
    for (size_t i = 0; i < offers->n; i++) {
        sn_offer *p = &offers->at[i];
        p->room = p->end - p->first;
        if (p->verdict == SN_OFFER_NO_ROOM) p->verdict = SN_OFFER_USABLE;
    }
}

void sn_offers_fini(sn_offers *offers) {
    free(offers->at);
    free(offers->links);
    *offers = (sn_offers){0};
}
