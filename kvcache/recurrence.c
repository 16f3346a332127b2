/* The recurrent states of one cache. A forward pass reads the state at the cache's end and writes the one behind its
 * rows into another slot, so the state before the pass is still there when its rows are dropped. Where the rows pass
 * a multiple of SN_KV_SNAPSHOT_TOKENS, the device also writes the state there; append gives it to the page that ends
 * there, with which it is shared, swapped out (and lost), and freed. */
#include "kvcache/kvcache_private.h"

#include <assert.h>
#include <string.h>

bool sn_kv_cache_is_recurrent(const sn_kv_cache *kv) { return kv->pool->pages.states.device; }

sn_status sn_kv_cache_states_new(sn_kv_cache *kv, sn_err *err) {
    sn_kv_states *states = &kv->pool->pages.states;
    sn_kv_cache_states *own = &kv->states;
    *own = (sn_kv_cache_states){{SN_KV_NO_STATE, SN_KV_NO_STATE}, {-1, -1}, SN_KV_NO_STATE, 0, 0};
    if (!sn_kv_cache_is_recurrent(kv)) return SN_OK;
    if (states->n_free + states->n_kept < 2)
        return sn_fail(err, SN_RETRY, "the recurrent states of other sessions fill this KV pool: it has room for %zu",
                       states->n_slots / 2);
    for (int i = 0; i < 2; i++) own->slots[i] = sn_kv_states_take(states);
    return SN_OK;
}

void sn_kv_cache_states_free(sn_kv_cache *kv) {
    sn_kv_states *states = &kv->pool->pages.states;
    const uint32_t slots[] = {kv->states.slots[0], kv->states.slots[1], kv->states.next_slot};
    for (int i = 0; i < 3; i++)
        if (slots[i] != SN_KV_NO_STATE) sn_kv_states_give(states, slots[i]);
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
}

/* ---- a forward pass ---- */

/* The position up to which a pass of n rows shall leave a snapshot; 0: none. */
static int next_snapshot(const sn_kv_cache *kv, int n) {
    int at = (kv->length + n) / SN_KV_SNAPSHOT_TOKENS * SN_KV_SNAPSHOT_TOKENS;
    return at > kv->length && snapshot_at(kv, at) == SN_KV_NO_STATE ? at : 0;
}

/* Copies the snapshot at the cache's end to one of its two states: a snapshot may be given up at any time. */
static void states_restore(sn_kv_cache *kv, int to) {
    const sn_kv_states *states = &kv->pool->pages.states;
    uint32_t snapshot = snapshot_at(kv, kv->length);
    assert(snapshot != SN_KV_NO_STATE);
    memcpy(sn_kv_states_at(states, kv->states.slots[to]), sn_kv_states_at(states, snapshot),
           states->floats * sizeof(float));
    kv->states.positions[to] = kv->length;
}

sn_sequence_state sn_kv_cache_states_begin(sn_kv_cache *kv, int n) {
    sn_kv_states *states = &kv->pool->pages.states;
    sn_kv_cache_states *own = &kv->states;
    if (!sn_kv_cache_is_recurrent(kv)) return (sn_sequence_state){0};
    int from = own->positions[1] == kv->length, older = own->positions[0] > own->positions[1];
    if (kv->length && own->positions[from] != kv->length) states_restore(kv, from = older);
    own->written = kv->length ? !from : older;
    own->snapshot_at = next_snapshot(kv, n);
    if (own->snapshot_at && own->next_slot == SN_KV_NO_STATE) own->next_slot = sn_kv_states_take(states);
    if (own->next_slot == SN_KV_NO_STATE) own->snapshot_at = 0;
    own->positions[own->written] = -1; /* from now on it holds neither */
    return (sn_sequence_state){
        .before = kv->length ? sn_kv_states_at(states, own->slots[from]) : NULL,
        .after = sn_kv_states_at(states, own->slots[own->written]),
        .snapshot = own->snapshot_at ? sn_kv_states_at(states, own->next_slot) : NULL,
        .snapshot_rows = own->snapshot_at ? own->snapshot_at - kv->length : 0,
    };
}

void sn_kv_cache_states_append(sn_kv_cache *kv) {
    sn_kv_cache_states *own = &kv->states;
    if (!sn_kv_cache_is_recurrent(kv)) return;
    own->positions[own->written] = kv->length;
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
