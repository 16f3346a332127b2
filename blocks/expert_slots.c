/* Each slot is empty, or an expert is there, or on its way (COMING). slot_begin starts to bring an expert, slot_arrive
 * ends it; between the two the slot is not given to another expert. A pass marks its choices (`wanted`): PENDING until
 * a wave takes them, COMPUTES during that wave; slots of marked experts are not given away either, so each call of next
 * finds at least one expert to wait for, or space to bring one. */
#include "blocks/expert_slots.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

typedef struct slot {
    enum { EMPTY, COMING, THERE } state;
    int32_t expert;
    bool pinned;
    bool ahead;    /* no pass has asked for it so far */
    bool reads;    /* `read` brings it; else copies, for which an accelerator waits by itself */
    uint64_t used; /* the pass that used it last */
    sn_expert_read read;
    int staging;                       /* where it is read to, on the way to an accelerator from disk; -1 */
    sn_fence fences[SN_EXPERT_PIECES]; /* of copies from host memory to an accelerator */
} slot;

struct sn_expert_slots {
    sn_expert_carrier *carrier;
    const sn_block_layout *layout;
    void *image;
    const sn_expert_rest *rest;
    int n_experts, n_slots, n_chosen;
    slot *slots;
    int32_t *slot_of;                         /* (n_experts): -1 none */
    int32_t *chosen;                          /* (n_experts): of the pass */
    enum { NOT, PENDING, COMPUTES } * wanted; /* (n_experts) */
    uint64_t pass;
    bool many; /* the pass has more pairs than there are slots: its waves are large */
};

/* ---- the carrier ---- */

sn_status sn_expert_carrier_prepare(sn_expert_carrier *c, const sn_hparams *hp, const sn_block_layout *layout,
                                    bool on_disk, sn_err *err) {
    size_t pairs = (size_t)SN_SPAN_ROWS_MAX * (size_t)hp->n_experts_used;
    sn_status status = SN_OK;
    if (!c->reader) status = sn_expert_reader_new(&c->reader, err);
    if (!status && !c->ids) status = sn_calloc(&c->ids, 3 * pairs, sizeof *c->ids, err);
    if (status) return status;
    c->slots = c->ids + pairs;
    c->foreseen = c->slots + pairs;
    if (on_disk && !c->device->host_visible && layout->expert_bytes > c->staging_bytes)
        c->staging_bytes = layout->expert_bytes;
    return SN_OK;
}

sn_status sn_expert_carrier_alloc(sn_expert_carrier *c, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < SN_EXPERT_STAGING && c->staging_bytes && !c->staging[i].at && !status; i++)
        status = c->device->ops->host_alloc(c->device, c->staging_bytes, &c->staging[i].at, err);
    return status;
}

void sn_expert_carrier_close(sn_expert_carrier *c) {
    bool hangs = !sn_expert_reader_free(&c->reader, c->device->timeout_ms);
    for (int i = 0; i < SN_EXPERT_STAGING && !hangs; i++)
        if (c->staging[i].at) c->device->ops->host_free(c->device, c->staging[i].at, c->staging_bytes);
    free(c->ids);
    *c = (sn_expert_carrier){.device = c->device, .hangs = hangs};
}

/* The number of a staging memory that is free; -1: none. */
static sn_status staging_take(sn_expert_carrier *c, bool ahead, int *out, sn_err *err) {
    int end = ahead ? SN_EXPERT_STAGING / 2 : SN_EXPERT_STAGING; /* reads ahead leave some to what is needed now */
    for (*out = 0; *out < end && c->staging[*out].taken;) ++*out;
    if (*out == end) *out = -1;
    if (*out < 0) return SN_OK;
    struct sn_expert_staging *s = &c->staging[*out];
    for (int i = 0; i < SN_EXPERT_PIECES; i++) {
        if (s->fences[i]) SN_TRY(c->device->ops->copy_wait(c->device, s->fences[i], err));
        s->fences[i] = 0;
    }
    s->taken = true;
    return SN_OK;
}

/* ---- a slot ---- */

static slot *slot_of(sn_expert_slots *s, int expert) {
    return s->slot_of[expert] < 0 ? NULL : &s->slots[s->slot_of[expert]];
}

static void slot_empty(sn_expert_slots *s, slot *x) {
    if (x->state == EMPTY) return;
    s->slot_of[x->expert] = -1;
    if (x->staging >= 0) s->carrier->staging[x->staging].taken = false;
    *x = (slot){.state = EMPTY, .staging = -1};
}

/* Queues the copies of an expert's pieces from its image in host memory to the slot. */
static sn_status copy_pieces(sn_expert_slots *s, slot *x, const char *from, sn_fence *fences, sn_err *err) {
    sn_device *d = s->carrier->device;
    for (int i = 0; i < SN_EXPERT_PIECES; from += s->layout->pieces[i++])
        if (s->layout->pieces[i])
            SN_TRY(d->ops->copy_begin(d, sn_expert_piece_at(s->layout, s->image, i, (int)(x - s->slots)), from,
                                      s->layout->pieces[i], &fences[i], err));
    return SN_OK;
}

static sn_status join_pieces(sn_expert_slots *s, const sn_fence *fences, sn_err *err) {
    sn_device *d = s->carrier->device;
    for (int i = 0; i < SN_EXPERT_PIECES; i++)
        if (s->layout->pieces[i]) SN_TRY(d->ops->copy_join(d, fences[i], err));
    return SN_OK;
}

/* Begins to bring the expert to the slot; *begun false: no staging memory is free. */
static sn_status slot_begin(sn_expert_slots *s, slot *x, int expert, bool ahead, bool *begun, sn_err *err) {
    sn_expert_carrier *c = s->carrier;
    bool direct = c->device->host_visible, staged = !direct && !s->rest->host;
    int staging = -1;
    *begun = false;
    if (staged) SN_TRY(staging_take(c, ahead, &staging, err));
    if (staged && staging < 0) return SN_OK;
    slot_empty(s, x);
    x->staging = staging;
    x->expert = expert;
    x->ahead = ahead;
    x->used = s->pass;
    x->state = COMING;
    x->read = (sn_expert_read){.rest = s->rest, .expert = expert, .bytes = s->layout->pieces};
    s->slot_of[expert] = (int32_t)(x - s->slots);
    c->counts.bytes += s->layout->expert_bytes;
    *begun = true;
    if (staged) c->staging[staging].slots = s, c->staging[staging].slot = (int)(x - s->slots);
    if (!direct && !staged) return copy_pieces(s, x, s->rest->host + (size_t)expert * s->rest->stride, x->fences, err);
    char *at = staged ? c->staging[staging].at : NULL;
    for (int i = 0; i < SN_EXPERT_PIECES; i++) {
        x->read.pieces[i] = staged ? at : sn_expert_piece_at(s->layout, s->image, i, (int)(x - s->slots));
        if (staged) at += s->layout->pieces[i];
    }
    x->reads = true;
    sn_expert_reader_begin(c->reader, &x->read, ahead);
    return SN_OK;
}

/* Waits for the expert. */
static sn_status slot_arrive(sn_expert_slots *s, slot *x, sn_err *err) {
    sn_expert_carrier *c = s->carrier;
    sn_status status = SN_OK;
    if (!x->reads)
        status = join_pieces(s, x->fences, err);
    else
        status = sn_expert_reader_wait(c->reader, &x->read, c->device->timeout_ms, err);
    if (!status && x->staging >= 0) {
        struct sn_expert_staging *t = &c->staging[x->staging];
        status = copy_pieces(s, x, t->at, t->fences, err);
        if (!status) status = join_pieces(s, t->fences, err);
        if (!status) t->taken = false, x->staging = -1;
    }
    if (!status)
        x->state = THERE;
    else if (x->reads && sn_expert_reader_is_done(c->reader, &x->read))
        slot_empty(s, x);
    return status;
}

/* Waits for an expert that the pass did not choose. One that cannot be read leaves and fails no step: when it is
 * chosen, its own read reports that. */
static sn_status slot_settle(sn_expert_slots *s, slot *x, sn_err *err) {
    sn_status status = slot_arrive(s, x, err);
    return x->state == EMPTY ? SN_OK : status;
}

/* Whether slot_arrive would not wait. */
static bool slot_is_ready(sn_expert_slots *s, const slot *x) {
    return !x->reads || sn_expert_reader_is_done(s->carrier->reader, &x->read);
}

/* The slot to give to another expert: an empty one, else the one used longest ago. NULL: all are taken. */
static slot *slot_to_give(sn_expert_slots *s) {
    slot *best = NULL;
    for (slot *x = s->slots; x < s->slots + s->n_slots; x++) {
        if (x->state == EMPTY) return x;
        if (x->state == THERE && !x->pinned && s->wanted[x->expert] == NOT && (!best || x->used < best->used)) best = x;
    }
    return best;
}

/* ---- slots ---- */

sn_status sn_expert_slots_new(sn_expert_carrier *carrier, const sn_block_layout *layout, void *image,
                              const sn_expert_rest *rest, int n_experts, sn_expert_slots **out, sn_err *err) {
    size_t n = (size_t)n_experts;
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    sn_expert_slots *s = *out;
    s->carrier = carrier;
    s->layout = layout;
    s->image = image;
    s->rest = rest;
    s->n_experts = n_experts;
    s->n_slots = layout->n_slots;
    status = sn_calloc(&s->slots, (size_t)s->n_slots, sizeof *s->slots, err);
    if (!status) status = sn_calloc(&s->slot_of, n, sizeof *s->slot_of, err);
    if (!status) status = sn_calloc(&s->chosen, n, sizeof *s->chosen, err);
    if (!status) status = sn_calloc(&s->wanted, n, sizeof *s->wanted, err);
    for (int i = 0; i < s->n_slots && !status; i++) s->slots[i].staging = -1;
    for (int e = 0; e < n_experts && !status; e++) s->slot_of[e] = -1;
    if (status) sn_expert_slots_free(out);
    return status;
}

void sn_expert_slots_free(sn_expert_slots **slots) {
    if (!*slots) return;
    free((*slots)->slots);
    free((*slots)->slot_of);
    free((*slots)->chosen);
    free((*slots)->wanted);
    free(*slots);
    *slots = NULL;
}

sn_expert_carrier *sn_expert_slots_carrier(const sn_expert_slots *s) { return s->carrier; }
int sn_expert_slots_n(const sn_expert_slots *s) { return s->n_slots; }

sn_status sn_expert_slots_pin(sn_expert_slots *s, int expert, sn_err *err) {
    bool begun = true;
    slot *x = slot_of(s, expert) ? slot_of(s, expert) : slot_to_give(s);
    if (!x) return sn_fail(err, SN_REFUSED, "expert %d has no slot to stay in", expert);
    if (x->state == EMPTY || x->expert != expert) SN_TRY(slot_begin(s, x, expert, false, &begun, err));
    if (!begun) return sn_fail(err, SN_STOP, "expert %d cannot be read: no staging memory is free", expert);
    if (x->state == COMING) SN_TRY(slot_arrive(s, x, err));
    x->pinned = true;
    return SN_OK;
}

/* Begins to bring what is pending and has no slot, while slots can be given. */
static sn_status bring_missing(sn_expert_slots *s, sn_err *err) {
    int most = s->many ? (s->n_slots + 1) / 2 : s->n_slots; /* the other half computes meanwhile */
    for (int i = 0; i < s->n_chosen && most; i++) {
        bool begun = false;
        if (s->wanted[s->chosen[i]] != PENDING || slot_of(s, s->chosen[i])) continue;
        slot *x = slot_to_give(s);
        if (!x) return SN_OK;
        SN_TRY(slot_begin(s, x, s->chosen[i], false, &begun, err));
        if (!begun) return SN_OK;
        most--;
    }
    return SN_OK;
}

/* Drops reads ahead that no thread has begun and this pass did not choose. */
static sn_status drop_unwanted(sn_expert_slots *s, sn_err *err) {
    for (slot *x = s->slots; x < s->slots + s->n_slots; x++) {
        if (x->state != COMING || s->wanted[x->expert]) continue;
        if (x->reads && sn_expert_reader_drop(s->carrier->reader, &x->read))
            slot_empty(s, x);
        else if (slot_is_ready(s, x))
            SN_TRY(slot_settle(s, x, err));
    }
    return SN_OK;
}

/* An expert is chosen for the first time in this pass. */
static void choose(sn_expert_slots *s, int expert) {
    slot *x = slot_of(s, expert);
    sn_expert_counts *counts = &s->carrier->counts;
    s->chosen[s->n_chosen++] = expert;
    s->wanted[expert] = PENDING;
    *(!x ? &counts->misses : x->ahead ? &counts->ahead : &counts->hits) += 1;
    if (!x) return;
    if (x->state == COMING && x->reads) sn_expert_reader_need(s->carrier->reader, &x->read);
    x->ahead = false;
    x->used = s->pass;
}

sn_status sn_expert_slots_begin(sn_expert_slots *s, int n_pairs, const int32_t *ids, sn_err *err) {
    s->pass++;
    s->n_chosen = 0;
    s->many = n_pairs > s->n_slots;
    memset(s->wanted, 0, (size_t)s->n_experts * sizeof *s->wanted);
    for (int p = 0; p < n_pairs; p++)
        if (ids[p] >= s->n_experts)
            return sn_fail(err, SN_STOP, "the device chose expert %d of %d", (int)ids[p], s->n_experts);
        else if (ids[p] >= 0 && !s->wanted[ids[p]])
            choose(s, ids[p]);
    sn_status status = drop_unwanted(s, err);
    return status ? status : bring_missing(s, err);
}

sn_status sn_expert_slots_expect(sn_expert_slots *s, int n_pairs, const int32_t *ids, sn_err *err) {
    for (int p = 0; p < n_pairs; p++) {
        bool begun;
        slot *x = ids[p] < 0 || ids[p] >= s->n_experts ? NULL : slot_of(s, ids[p]);
        if (ids[p] < 0 || ids[p] >= s->n_experts || x) {
            if (x) x->used = s->pass + 1; /* it shall still be there */
            continue;
        }
        x = slot_to_give(s);
        if (!x || x->used > s->pass) return SN_OK;
        SN_TRY(slot_begin(s, x, ids[p], true, &begun, err));
        if (!begun) return SN_OK;
        x->used = s->pass + 1;
    }
    return SN_OK;
}

/* Takes what is there, and with `wait` waits for the first that is on its way. Returns in *n how many are there. */
static sn_status collect(sn_expert_slots *s, bool wait, int *n, sn_err *err) {
    *n = 0;
    for (int i = 0; i < s->n_chosen; i++) {
        slot *x = slot_of(s, s->chosen[i]);
        if (s->wanted[s->chosen[i]] != PENDING || !x) continue;
        if (x->state == COMING && ((wait && (!*n || s->many)) || slot_is_ready(s, x))) SN_TRY(slot_arrive(s, x, err));
        *n += x->state == THERE;
    }
    return SN_OK;
}

/* Waits for an expert that this pass did not choose, whose slot can then be given away. */
static sn_status wait_for_unwanted(sn_expert_slots *s, bool *waited, sn_err *err) {
    for (slot *x = s->slots; x < s->slots + s->n_slots; x++) {
        if (x->state != COMING || s->wanted[x->expert] != NOT) continue;
        *waited = true;
        return slot_settle(s, x, err);
    }
    return SN_OK;
}

/* Empties slots of other blocks that hold staging memory: those whose read is over or not begun, else the first, once
 * its read is over. This is for a block that finds none free, since a pass that failed (a read took too long) left it
 * taken. */
static sn_status take_staging_back(sn_expert_slots *s, bool *any, sn_err *err) {
    sn_expert_carrier *c = s->carrier;
    for (int wait = 0; wait < 2; wait++)
        for (int i = 0; i < SN_EXPERT_STAGING && !(wait && *any); i++) {
            struct sn_expert_staging *t = &c->staging[i];
            if (!t->taken) continue;
            sn_expert_read *read = &t->slots->slots[t->slot].read;
            sn_status status = wait ? sn_expert_reader_wait(c->reader, read, c->device->timeout_ms, err) : SN_OK;
            if (sn_expert_reader_drop(c->reader, read) || sn_expert_reader_is_done(c->reader, read)) {
                slot_empty(t->slots, &t->slots->slots[t->slot]);
                *any = true;
            } else if (wait)
                return status;
        }
    return SN_OK;
}

sn_status sn_expert_slots_next(sn_expert_slots *s, int n_pairs, const int32_t *ids, int32_t *out, bool *any,
                               sn_err *err) {
    int left = 0, n = 0;
    for (int i = 0; i < s->n_chosen; i++) {
        if (s->wanted[s->chosen[i]] == COMPUTES) s->wanted[s->chosen[i]] = NOT;
        left += s->wanted[s->chosen[i]] == PENDING;
    }
    *any = left;
    if (!left) return SN_OK;
    SN_TRY(bring_missing(s, err));
    SN_TRY(collect(s, false, &n, err));
    while (!n) {
        bool waited = false;
        SN_TRY(collect(s, true, &n, err));
        if (!n) SN_TRY(wait_for_unwanted(s, &waited, err));
        if (!n && !waited) SN_TRY(take_staging_back(s, &waited, err));
        if (!n && !waited) return sn_fail(err, SN_STOP, "the chosen experts of a block find no slot");
        SN_TRY(bring_missing(s, err));
    }
    for (int i = 0; i < s->n_chosen; i++) {
        const slot *x = slot_of(s, s->chosen[i]);
        if (s->wanted[s->chosen[i]] == PENDING && x && x->state == THERE) s->wanted[s->chosen[i]] = COMPUTES;
    }
    for (int p = 0; p < n_pairs; p++) out[p] = ids[p] >= 0 && s->wanted[ids[p]] == COMPUTES ? s->slot_of[ids[p]] : -1;
    return bring_missing(s, err);
}
