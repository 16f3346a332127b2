/* The recurrent states of one cache. A forward pass reads the state at the cache's end and writes the one behind its
 * rows into another slot, so the state before the pass is still there when its rows are dropped. Where the rows pass
 * a multiple of SN_KV_SNAPSHOT_TOKENS, the device also writes the state there; append gives it to the page that ends
 * there, with which it is shared, swapped out (and lost), and freed. */
#include "kvcache/kvcache_private.h"

#include <assert.h>

sn_device *sn_kv_cache_states_device(const sn_kv_cache *kv) { return kv->pool->pages.states.device; }
bool sn_kv_cache_is_recurrent(const sn_kv_cache *kv) { return sn_kv_cache_states_device(kv); }
size_t sn_kv_pool_sessions_max(const sn_kv_pool *pool) { return pool->pages.states.n_slots / 2; }
bool sn_kv_cache_has_states(const sn_kv_cache *kv) { return kv->states.slots[0] != SN_KV_NO_STATE; }

sn_status sn_kv_cache_states_new(sn_kv_cache *kv, sn_err *err) {
    sn_kv_states *states = &kv->pool->pages.states;
    sn_kv_cache_states *own = &kv->states;
    *own = (sn_kv_cache_states){
        .slots = {SN_KV_NO_STATE, SN_KV_NO_STATE}, .positions = {-1, -1}, .next_slot = SN_KV_NO_STATE, .written = -1};
    if (!sn_kv_cache_is_recurrent(kv)) return SN_OK;
    if (states->n_free + states->n_kept < 2)
        return sn_fail_because(err, SN_RETRY, SN_REASON_NO_ROOM,
                               "the recurrent states of other sessions fill this KV pool: it has room for %zu",
                               states->n_slots / 2);
    for (int i = 0; i < 2; i++) own->slots[i] = sn_kv_states_take(states);
    return SN_OK;
}

void sn_kv_cache_states_free(sn_kv_cache *kv) {
    sn_kv_states *states = &kv->pool->pages.states;
    uint32_t *const slots[] = {&kv->states.slots[0], &kv->states.slots[1], &kv->states.next_slot};
    for (int i = 0; i < 3; i++) {
        if (*slots[i] != SN_KV_NO_STATE) sn_kv_states_give(states, *slots[i]);
        *slots[i] = SN_KV_NO_STATE;
    }
}

/* ---- the newest state ---- */

/* The snapshot at this position, which is the end of a page of the cache, or SN_KV_NO_STATE. */
static uint32_t snapshot_at(const sn_kv_cache *kv, int position) {
    size_t page = (size_t)position / SN_KV_PAGE_TOKENS;
    if (!page || position % SN_KV_PAGE_TOKENS || page > kv->n_pages || kv->page_numbers[page - 1] == SN_KV_NONE)
        return SN_KV_NO_STATE;
    return sn_kv_states_of_page(&kv->pool->pages.states, kv->page_numbers[page - 1]);
}

int sn_kv_cache_state_position(const sn_kv_cache *kv) {
    if (!sn_kv_cache_is_recurrent(kv)) return kv->length;
    int at = kv->length / SN_KV_PAGE_TOKENS * SN_KV_PAGE_TOKENS;
    for (int i = 0; i < 2; i++)
        if (kv->states.positions[i] == kv->length) return kv->length;
    while (at > 0 && snapshot_at(kv, at) == SN_KV_NO_STATE) at -= SN_KV_PAGE_TOKENS;
    for (int i = 0; i < 2; i++)
        if (kv->states.positions[i] <= kv->length && kv->states.positions[i] > at) at = kv->states.positions[i];
    return at;
}

int sn_kv_cache_step_back(sn_kv_cache *kv) {
    int length = kv->length;
    kv->length = sn_kv_cache_state_position(kv);
    return length;
}

void sn_kv_cache_step_forward(sn_kv_cache *kv, int length) {
    assert(length >= kv->length);
    kv->length = length;
}

void sn_kv_cache_states_rewind(sn_kv_cache *kv) {
    for (int i = 0; i < 2; i++)
        if (kv->states.positions[i] > kv->length) kv->states.positions[i] = -1;
    if (kv->states.incoming > kv->length) kv->states.incoming = 0;
    kv->states.written = -1; /* of a pass that failed */
    kv->states.snapshot_at = 0;
}

/* ---- a forward pass ---- */

/* The position up to which a pass of n rows shall leave a snapshot; 0: none. */
static int next_snapshot(const sn_kv_cache *kv, int n) {
    int at = (kv->length + n) / SN_KV_SNAPSHOT_TOKENS * SN_KV_SNAPSHOT_TOKENS;
    return at > kv->length && snapshot_at(kv, at) == SN_KV_NO_STATE ? at : 0;
}

/* Copies a state within the device. */
static sn_status copy_state(const sn_kv_states *states, uint32_t to, uint32_t from, sn_err *err) {
    enum { WIDTH = 16 }; /* of which a slot has a multiple */
    return states->device->ops->scale(states->device, (int)(states->floats / WIDTH), WIDTH,
                                      sn_kv_states_at(states, from), 1, NULL, sn_kv_states_at(states, to), err);
}

sn_status sn_kv_cache_restore_state(sn_kv_cache *kv, sn_err *err) {
    const sn_kv_states *states = &kv->pool->pages.states;
    sn_kv_cache_states *own = &kv->states;
    if (!sn_kv_cache_is_recurrent(kv) || !kv->length) return SN_OK;
    if (own->positions[0] == kv->length || own->positions[1] == kv->length) return SN_OK;
    int older = own->positions[0] > own->positions[1];
    uint32_t snapshot = snapshot_at(kv, kv->length);
    assert(snapshot != SN_KV_NO_STATE);
    own->positions[older] = -1;
    own->incoming = 0;
    sn_status status = copy_state(states, own->slots[older], snapshot, err);
    if (!status) own->positions[older] = kv->length;
    return status;
}

sn_sequence_state sn_kv_cache_states_begin(sn_kv_cache *kv, int n) {
    sn_kv_states *states = &kv->pool->pages.states;
    sn_kv_cache_states *own = &kv->states;
    if (!sn_kv_cache_is_recurrent(kv)) return (sn_sequence_state){0};
    int from = own->positions[1] == kv->length, older = own->positions[0] > own->positions[1];
    assert(!kv->length || own->positions[from] == kv->length);
    own->written = kv->length ? !from : older;
    own->snapshot_at = next_snapshot(kv, n);
    if (own->snapshot_at && own->next_slot == SN_KV_NO_STATE) own->next_slot = sn_kv_states_take(states);
    if (own->next_slot == SN_KV_NO_STATE) own->snapshot_at = 0;
    own->positions[own->written] = -1; /* from now on it holds neither */
    own->incoming = 0;
    return (sn_sequence_state){
        .before = kv->length ? sn_kv_states_at(states, own->slots[from]) : NULL,
        .after = sn_kv_states_at(states, own->slots[own->written]),
        .snapshot = own->snapshot_at ? sn_kv_states_at(states, own->next_slot) : NULL,
        .snapshot_rows = own->snapshot_at ? own->snapshot_at - kv->length : 0,
    };
}

void sn_kv_cache_states_append(sn_kv_cache *kv) {
    sn_kv_cache_states *own = &kv->states;
    if (own->written < 0 || !sn_kv_cache_is_recurrent(kv)) return; /* the rows were not computed here */
    own->positions[own->written] = kv->length;
    own->written = -1;
    if (!own->snapshot_at) return;
    sn_kv_states_keep(&kv->pool->pages.states, own->next_slot,
                      kv->page_numbers[own->snapshot_at / SN_KV_PAGE_TOKENS - 1]);
    own->next_slot = SN_KV_NO_STATE;
    own->snapshot_at = 0;
}

/* ---- the rows that entered ---- */

float *sn_kv_cache_rows(const sn_kv_cache *kv, int position, int *n) {
    const sn_kv_pages_part *part = &kv->pool->pages.parts[0];
    size_t page = (size_t)position / SN_KV_PAGE_TOKENS, within = (size_t)position % SN_KV_PAGE_TOKENS;
    uint8_t *rows = (uint8_t *)kv->addresses[page] + part->page_bytes - SN_KV_PAGE_TOKENS * part->row_bytes;
    *n = SN_KV_PAGE_TOKENS - (int)within;
    return (float *)(void *)(rows + within * part->row_bytes);
}

/* Calls `copy` for the rows of each page in [position, position + n), with those of `rows`. */
static sn_status each_page(const sn_kv_cache *kv, int position, int n, float *rows,
                           sn_status (*copy)(sn_device *d, int n, int width, float *kept, float *rows, sn_err *err),
                           sn_err *err) {
    const sn_kv_pages_part *part = &kv->pool->pages.parts[0];
    size_t width = part->row_bytes / sizeof *rows;
    sn_status status = SN_OK;
    for (int done = 0, m; done < n && !status; done += m) {
        float *kept = sn_kv_cache_rows(kv, position + done, &m);
        if (m > n - done) m = n - done;
        status = copy(part->device, m, (int)width, kept, rows + (size_t)done * width, err);
    }
    return status;
}

static sn_status copy_within(sn_device *d, int n, int width, float *kept, float *rows, sn_err *err) {
    return d->ops->scale(d, n, width, rows, 1, NULL, kept, err);
}
static sn_status copy_in(sn_device *d, int n, int width, float *kept, float *rows, sn_err *err) {
    return d->ops->upload(d, kept, rows, (size_t)n * (size_t)width * sizeof *rows, err);
}
static sn_status copy_out(sn_device *d, int n, int width, float *kept, float *rows, sn_err *err) {
    return d->ops->download(d, rows, kept, (size_t)n * (size_t)width * sizeof *rows, err);
}

sn_status sn_kv_cache_rows_keep(const sn_kv_cache *kv, int n, const float *rows, sn_err *err) {
    return each_page(kv, kv->length, n, (float *)(uintptr_t)rows, copy_within, err); /* only read */
}
sn_status sn_kv_cache_rows_write(const sn_kv_cache *kv, int n, const float *rows, sn_err *err) {
    return each_page(kv, kv->length, n, (float *)(uintptr_t)rows, copy_in, err); /* only read */
}
sn_status sn_kv_cache_rows_read(const sn_kv_cache *kv, int position, int n, float *rows, sn_err *err) {
    return each_page(kv, position, n, rows, copy_out, err);
}

/* ---- states that travel ---- */

const float *sn_kv_cache_snapshot(const sn_kv_cache *kv, int position) {
    uint32_t slot = position <= kv->length ? snapshot_at(kv, position) : SN_KV_NO_STATE;
    return slot == SN_KV_NO_STATE ? NULL : sn_kv_states_at(&kv->pool->pages.states, slot);
}

int sn_kv_cache_newest_snapshot(const sn_kv_cache *kv) {
    int at = kv->length / SN_KV_PAGE_TOKENS * SN_KV_PAGE_TOKENS;
    while (at > 0 && snapshot_at(kv, at) == SN_KV_NO_STATE) at -= SN_KV_PAGE_TOKENS;
    return at;
}

float *sn_kv_cache_incoming_state(sn_kv_cache *kv, int position, size_t done) {
    sn_kv_cache_states *own = &kv->states;
    if (position < 1 || position % SN_KV_PAGE_TOKENS || position > kv->length) return NULL;
    if (!done) {
        own->incoming = position;
        own->n_incoming = 0;
        own->incoming_to = own->positions[0] > own->positions[1];
        own->positions[own->incoming_to] = -1;
    }
    if (own->incoming != position || own->n_incoming != done) return NULL;
    return sn_kv_states_at(&kv->pool->pages.states, own->slots[own->incoming_to]);
}

sn_status sn_kv_cache_state_came(sn_kv_cache *kv, size_t n, bool whole, size_t *held, sn_err *err) {
    sn_kv_states *states = &kv->pool->pages.states;
    sn_kv_cache_states *own = &kv->states;
    *held = own->n_incoming += n;
    if (!whole) return SN_OK;
    own->positions[own->incoming_to] = own->incoming;
    uint32_t page = kv->page_numbers[own->incoming / SN_KV_PAGE_TOKENS - 1], slot = sn_kv_states_take(states);
    own->incoming = 0;
    if (slot == SN_KV_NO_STATE) return SN_OK;
    sn_status status = copy_state(states, slot, own->slots[own->incoming_to], err);
    if (status)
        sn_kv_states_give(states, slot);
    else
        sn_kv_states_keep(states, slot, page);
    return status;
}
