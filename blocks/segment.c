/* Loading: every block is measured (sn_block_layout_of), then packed in its device's layout to where it stays: the
 * device, host memory, or a file of the offload store, where an image of the same key is used again.
 *
 * Running: sn_segment_walk visits the blocks. Before it visits a streamed block, it begins to copy the streamed block
 * after that one to the other slot, so one copy and one computation are in progress at any time. The device orders
 * them: copy_begin waits for all work queued before, among it that of the block that used the slot, and copy_join makes
 * the work queued after it wait for the copy. Only reading from disk waits on this thread, for the staging buffer.
 *
 * A forward pass over blocks that all stay on the device always issues the same calls with the same addresses, so it
 * gets a graph key by which the device may record it once and replay it. */
#include "blocks/segment.h"

#include "base/cancel.h"
#include "base/file.h"
#include "base/mem.h"
#include "blocks/moe.h"
#include "device/weight.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYOUT_VERSION = 7 }; /* of images in files; raise it whenever a device's layout of weights changes */

/* ---- loading ---- */

/* The key of a block's image in the offload store, or of the images of its experts: the hash of its weights, the layout
 * and the kind of device, and which experts those are where they are not all. */
static sn_hash image_key(const sn_hash *weights, const sn_device *device, size_t bytes, uint64_t expert_bytes,
                         sn_expert_range some) {
    struct image_key {
        sn_hash weights;
        uint32_t version, kind;
        uint64_t bytes, expert_bytes;
        sn_expert_range some;
    } all;
    memset(&all, 0, sizeof all);
    all.weights = *weights;
    all.version = LAYOUT_VERSION;
    all.kind = (uint32_t)device->id.kind;
    all.bytes = bytes;
    all.expert_bytes = expert_bytes;
    all.some = some;
    return sn_hash_of(&all, some.end ? sizeof all : offsetof(struct image_key, some));
}

static sn_status find_hash(const sn_segment_source *source, int number, const sn_hash **out, sn_err *err) {
    *out = &source->hashes[number - source->plan->first];
    return sn_block_hashing_wait(source->hashing, number, err);
}

static sn_status store_on_device(const sn_model *model, sn_device *device, int number, sn_block_storage *r,
                                 sn_err *err) {
    void *image = NULL;
    if (r->image) return sn_block_pack(model, device, number, &r->layout, r->image, err);
    sn_status status = device->ops->alloc(device, r->layout.bytes, &r->image, err);
    if (status) return status;
    status = sn_pages_alloc(&image, r->layout.bytes, err);
    if (!status) status = sn_block_pack(model, device, number, &r->layout, image, err);
    if (!status) status = device->ops->upload(device, r->image, image, r->layout.bytes, err);
    sn_pages_free(&image, r->layout.bytes);
    return status;
}

static sn_status store_in_host(const sn_model *model, sn_device *device, int number, sn_block_storage *r, sn_err *err) {
    sn_status status = device->ops->host_alloc(device, r->layout.bytes, &r->image, err);
    return status ? status : sn_block_pack(model, device, number, &r->layout, r->image, err);
}

static sn_status store_on_disk(const sn_segment_source *source, sn_device *device, int number, sn_block_storage *r,
                               sn_err *err) {
    const sn_model *model = source->model;
    sn_offload_store *store = source->store;
    const sn_hash *weights;
    void *image = NULL;
    if (!store) return sn_fail(err, SN_REFUSED, "block %d is offloaded to disk: give --offload-dir", number);
    SN_TRY(find_hash(source, number, &weights, err));
    r->key = image_key(weights, device, r->layout.bytes, 0, (sn_expert_range){0});
    if (sn_offload_store_has(store, &r->key, r->layout.bytes, r->layout.bytes)) return SN_OK;
    sn_status status = sn_pages_alloc(&image, r->layout.bytes, err);
    if (!status) status = sn_block_pack(model, device, number, &r->layout, image, err);
    if (!status) status = sn_offload_store_put(store, &r->key, image, r->layout.bytes, err);
    sn_pages_free(&image, r->layout.bytes);
    return status;
}

/* -- experts that rest elsewhere */

/* The context of the takers of experts' images. */
typedef struct expert_sink {
    char *host; /* to memory, or to a file: */
    sn_offload_store *store;
    sn_new_image *file;
    size_t bytes, stride; /* of an expert */
} expert_sink;

static sn_status expert_to_host(void *ctx, int expert, const void *image, sn_err *err) {
    const expert_sink *sink = ctx;
    (void)err;
    memcpy(sink->host + (size_t)expert * sink->stride, image, sink->bytes);
    return SN_OK;
}

static sn_status expert_to_file(void *ctx, int expert, const void *image, sn_err *err) {
    const expert_sink *sink = ctx;
    (void)expert;
    return sn_offload_store_add(sink->store, sink->file, image, sink->bytes, err);
}

static sn_status experts_in_host(const sn_model *model, sn_device *device, int number, sn_block_storage *r,
                                 sn_err *err) {
    void *host = NULL;
    size_t n = (size_t)sn_n_held(r->layout.held);
    r->experts.stride = sn_round_up(r->layout.expert_bytes, 64);
    if (!sn_mul(n, r->experts.stride, &r->experts_bytes))
        return sn_fail(err, SN_REFUSED, "block %d is too large", number);
    SN_TRY(device->ops->host_alloc(device, r->experts_bytes, &host, err));
    r->experts.host = host;
    expert_sink sink = {.host = host, .bytes = r->layout.expert_bytes, .stride = r->experts.stride};
    return sn_experts_pack(model, device, number, &r->layout, expert_to_host, &sink, err);
}

/* A file of a block's experts is their images one after the other. */
static sn_status experts_put(const sn_model *model, sn_device *device, sn_offload_store *store, int number,
                             sn_block_storage *r, size_t bytes, sn_err *err) {
    sn_new_image file;
    expert_sink sink = {.store = store, .file = &file, .bytes = r->layout.expert_bytes};
    sn_status status = sn_offload_store_begin(store, &r->key, bytes, r->layout.read_bytes, &file, err);
    if (!status) status = sn_experts_pack(model, device, number, &r->layout, expert_to_file, &sink, err);
    if (!status) status = sn_offload_store_commit(store, &file, err);
    sn_offload_store_discard(store, &file);
    return status;
}

static sn_status experts_on_disk(const sn_segment_source *source, sn_device *device, int number, sn_block_storage *r,
                                 sn_err *err) {
    const sn_model *model = source->model;
    sn_offload_store *store = source->store;
    const sn_hash *weights;
    size_t n = (size_t)sn_n_held(r->layout.held), bytes;
    bool all = (int)n == sn_model_hparams(model)->n_experts;
    if (!store) return sn_fail(err, SN_REFUSED, "the experts of block %d rest on disk: give --offload-dir", number);
    if (!sn_mul(n, r->layout.expert_bytes, &bytes)) return sn_fail(err, SN_REFUSED, "block %d is too large", number);
    SN_TRY(find_hash(source, number, &weights, err));
    r->key = image_key(weights, device, bytes, r->layout.expert_bytes, all ? (sn_expert_range){0} : r->layout.held);
    r->experts.stride = r->layout.expert_bytes;
    r->experts.file = r->experts.uncached = -1;
    r->experts.read_bytes = r->layout.read_bytes;
    SN_TRY(sn_calloc(&r->experts.tags, bytes / r->layout.read_bytes, sizeof(sn_tag), err));
    if (!sn_offload_store_has(store, &r->key, bytes, r->layout.read_bytes))
        SN_TRY(experts_put(model, device, store, number, r, bytes, err));
    r->experts.file = sn_offload_store_file(store, &r->key, bytes, &r->experts.at, r->experts.tags);
    if (r->experts.file < 0)
        return sn_fail(err, SN_STOP, "the experts of block %d cannot be read from the offload folder", number);
    posix_fadvise(r->experts.file, 0, 0, POSIX_FADV_DONTNEED); /* as when they are read (expert_reader.c) */
    r->experts.uncached = sn_file_open_uncached(r->experts.file);
    return SN_OK;
}

/* Stores the experts where they rest, and brings those that are preloaded. */
static sn_status segment_load_experts(sn_segment *g, const sn_segment_source *source, int number, sn_err *err) {
    sn_block_storage *r = &g->blocks[number - g->first];
    const sn_plan *plan = source->plan;
    int n = sn_n_held(r->layout.held);
    bool on_disk = plan->placements[number - plan->first].experts == SN_ON_DISK;
    SN_TRY(sn_expert_carrier_prepare(g->carrier, sn_model_hparams(source->model), &r->layout, on_disk, err));
    SN_TRY(on_disk ? experts_on_disk(source, g->device, number, r, err)
                   : experts_in_host(source->model, g->device, number, r, err));
    SN_TRY(sn_expert_slots_new(g->carrier, &r->layout, r->image, &r->experts, n, &r->slots, err));
    r->view = sn_block_at(&r->layout, r->image);
    r->view.slots = r->slots;
    for (int b = number - 1; b >= g->first; b--) {
        sn_block_storage *before = &g->blocks[b - g->first];
        if (!before->slots) continue;
        before->view.next = &r->view;
        break;
    }
    return SN_OK;
}

/* Loads the experts to the device that computes them. */
static sn_status segment_load_apart(sn_segment *g, const sn_segment_source *source, int number, sn_err *err) {
    sn_block_storage *r = &g->blocks[number - g->first], only = {.residence = SN_ON_DEVICE};
    const sn_hparams *hp = sn_model_hparams(source->model);
    int d = source->plan->placements[number - source->plan->first].experts_device;
    size_t pairs = (size_t)SN_SPAN_ROWS_MAX * (size_t)hp->n_experts_used;
    r->apart.device = source->devices[d];
    r->apart.scratch = source->scratch[d];
    SN_TRY(sn_calloc(&r->apart.ids, pairs, sizeof *r->apart.ids, err));
    SN_TRY(sn_calloc(&r->apart.weights, pairs, sizeof *r->apart.weights, err));
    SN_TRY(sn_block_layout_of(source->model, r->apart.device, number, SN_ONLY_EXPERTS, source->plan->experts,
                              &only.layout, err));
    sn_status status = store_on_device(source->model, r->apart.device, number, &only, err);
    r->apart_image = only.image;
    r->apart_bytes = only.layout.bytes;
    if (status) return status;
    r->apart.block = sn_block_at(&only.layout, only.image);
    r->view = sn_block_at(&r->layout, r->image);
    r->view.apart = &r->apart;
    return SN_OK;
}

sn_status sn_segment_pin_experts(sn_segment *g, const sn_plan *plan, sn_err *err) {
    for (sn_block_storage *r = g->blocks; r < g->blocks + (g->end - g->first); r++)
        for (int e = r->layout.held.first; e < r->layout.held.end && r->slots; e++)
            if (plan->pinned[e]) SN_TRY(sn_expert_slots_pin(r->slots, e - r->layout.held.first, err));
    return SN_OK;
}

/* Sets the layout and the residence of each block, and the sizes that follow from them. */
static sn_status segment_measure(sn_segment *g, const sn_model *model, const sn_plan *plan, sn_err *err) {
    for (int b = g->first; b < g->end; b++) {
        sn_block_storage *r = &g->blocks[b - g->first];
        const sn_block_placement *place = &plan->placements[b - plan->first];
        /* A preloaded block is on the device before the first step and stays there, whatever its residence. */
        r->residence = place->preload ? SN_ON_DEVICE : place->residence;
        int n_slots = r->residence != SN_ON_DEVICE ? SN_ALL_EXPERTS
                      : place->apart               ? SN_WITHOUT_EXPERTS
                      : place->preload             ? SN_ALL_EXPERTS
                                                   : place->n_slots;
        sn_status status = sn_block_layout_of(model, g->device, b, n_slots, plan->experts, &r->layout, err);
        if (status) return status;
        if (r->residence != SN_ON_DEVICE)
            g->slots->bytes = r->layout.bytes > g->slots->bytes ? r->layout.bytes : g->slots->bytes;
        else if (!sn_add(g->resident_bytes, r->layout.bytes, &g->resident_bytes))
            return sn_fail(err, SN_REFUSED, "blocks %d to %d are too large", g->first, b);
    }
    return SN_OK;
}

/* Allocates the blocks of a CPU in one piece. Memory that does not fill a whole huge page lies in small pages, which
 * are read at two thirds of the speed; of a block of 2 MB allocated by itself that is a tenth. */
static sn_status segment_reserve(sn_segment *g, sn_err *err) {
    size_t at = 0;
    if (!g->device->host_visible || !g->resident_bytes) return SN_OK;
    sn_status status = g->device->ops->alloc(g->device, g->resident_bytes, &g->resident, err);
    if (status) return status;
    for (int i = 0; i < g->end - g->first; i++) {
        sn_block_storage *r = &g->blocks[i];
        if (r->residence != SN_ON_DEVICE) continue;
        r->image = (char *)g->resident + at;
        at += r->layout.bytes;
    }
    return SN_OK;
}

static sn_status check_cancel(const sn_device *device, sn_err *err) {
    return sn_is_cancelled(device->cancel) ? sn_fail(err, SN_STOP, "the computation was cancelled") : SN_OK;
}

static sn_status segment_load_block(sn_segment *g, const sn_segment_source *source, int number, sn_err *err) {
    const sn_model *model = source->model;
    sn_block_storage *r = &g->blocks[number - g->first];
    switch (r->residence) {
    case SN_ON_DEVICE:
        SN_TRY(store_on_device(model, g->device, number, r, err));
        if (r->layout.n_slots == SN_WITHOUT_EXPERTS) return segment_load_apart(g, source, number, err);
        return r->layout.n_slots ? segment_load_experts(g, source, number, err) : SN_OK;
    case SN_IN_HOST:
        return store_in_host(model, g->device, number, r, err);
    case SN_ON_DISK:
        g->slots->reads_disk = true;
        return store_on_disk(source, g->device, number, r, err);
    }
    return SN_OK;
}

sn_status sn_segment_load(sn_segment *g, const sn_segment_source *source, int first, int end, sn_err *err) {
    static _Atomic uint64_t last_id;
    g->store = source->store;
    g->first = first;
    g->end = end;
    g->id = atomic_fetch_add(&last_id, 1) + 1;
    sn_status status = sn_calloc(&g->blocks, (size_t)(end - first), sizeof *g->blocks, err);
    if (!status) status = segment_measure(g, source->model, source->plan, err);
    if (!status) status = segment_reserve(g, err);
    for (int b = first; b < end && !status; b++) {
        status = check_cancel(g->device, err);
        if (!status) status = segment_load_block(g, source, b, err);
    }
    return status;
}

sn_status sn_slots_alloc(sn_slots *s, sn_device *device, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < 2 && s->bytes && !status; i++) {
        status = device->ops->alloc(device, s->bytes, &s->at[i], err);
        if (!status && s->reads_disk) status = device->ops->host_alloc(device, s->bytes, &s->staging[i], err);
    }
    return status;
}

void sn_slots_free(sn_slots *s, sn_device *device) {
    for (int i = 0; i < 2; i++) {
        if (s->at[i]) device->ops->free(device, s->at[i], s->bytes);
        if (s->staging[i]) device->ops->host_free(device, s->staging[i], s->bytes);
    }
    *s = (sn_slots){0};
}

void sn_segment_unload(sn_segment *g) {
    bool stays = g->carrier && g->carrier->hangs; /* a read still needs it */
    for (int b = g->first; g->blocks && b < g->end && !stays; b++) {
        sn_block_storage *r = &g->blocks[b - g->first];
        sn_expert_slots_free(&r->slots);
        if (r->apart_image) r->apart.device->ops->free(r->apart.device, r->apart_image, r->apart_bytes);
        free(r->apart.ids);
        free(r->apart.weights);
        if (r->experts.host) g->device->ops->host_free(g->device, (void *)r->experts.host, r->experts_bytes);
        if (r->experts.tags && r->experts.file >= 0) close(r->experts.file);
        if (r->experts.tags && r->experts.uncached >= 0) close(r->experts.uncached);
        free(r->experts.tags);
        if (!r->image || (r->residence == SN_ON_DEVICE && g->resident)) continue;
        if (r->residence == SN_ON_DEVICE)
            g->device->ops->free(g->device, r->image, r->layout.bytes);
        else
            g->device->ops->host_free(g->device, r->image, r->layout.bytes);
    }
    if (g->resident && !stays) g->device->ops->free(g->device, g->resident, g->resident_bytes);
    if (!stays) free(g->blocks);
    *g = (sn_segment){0};
}

size_t sn_segment_bytes(const sn_segment *g) {
    size_t bytes = 0;
    for (int b = g->first; b < g->end; b++)
        if (g->blocks[b - g->first].residence == SN_ON_DEVICE) bytes += g->blocks[b - g->first].layout.bytes;
    return bytes;
}

/* ---- running ---- */

/* The first streamed block from b on, in steps of 1 or -1; `end`: none. */
static int segment_next_streamed(const sn_segment *g, int b, int end, int step) {
    while (b != end && g->blocks[b - g->first].residence == SN_ON_DEVICE) b += step;
    return b;
}

/* Begins to copy block b to a slot. The copy waits for all work queued so far, which includes the last use of the slot.
 */
static sn_status segment_begin_copy(sn_segment *g, int b, int slot, sn_err *err) {
    const sn_block_storage *r = &g->blocks[b - g->first];
    const sn_device_ops *ops = g->device->ops;
    sn_slots *s = g->slots;
    const void *host = r->image;
    if (r->residence == SN_ON_DISK) {
        sn_status status = s->fences[slot] ? ops->copy_wait(g->device, s->fences[slot], err) : SN_OK;
        if (!status) status = sn_offload_store_get(g->store, &r->key, s->staging[slot], r->layout.bytes, err);
        if (status) return status;
        host = s->staging[slot];
    }
    return ops->copy_begin(g->device, s->at[slot], host, r->layout.bytes, &s->fences[slot], err);
}

/* The block of this storage, with its image at `image` on the device. */
static sn_block segment_block(const sn_block_storage *r, const void *image) {
    return r->slots || r->apart.device ? r->view : sn_block_at(&r->layout, image);
}

sn_status sn_segment_walk(sn_segment *g, int first, int end, bool backwards, sn_block_visitor visit, void *ctx,
                          sn_err *err) {
    int step = backwards ? -1 : 1, from = backwards ? end - 1 : first, to = backwards ? first - 1 : end;
    int next = segment_next_streamed(g, from, to, step), slot = 0;
    sn_status status = next != to ? segment_begin_copy(g, next, slot, err) : SN_OK;
    for (int b = from; b != to && !status; b += step) {
        const sn_block_storage *r = &g->blocks[b - g->first];
        const void *image = r->image;
        if (b == next) {
            image = g->slots->at[slot];
            status = g->device->ops->copy_join(g->device, g->slots->fences[slot], err);
            next = segment_next_streamed(g, b + step, to, step);
            slot ^= 1;
            if (!status && next != to) status = segment_begin_copy(g, next, slot, err);
            if (status) return status;
        }
        sn_block block = segment_block(r, image);
        status = check_cancel(g->device, err);
        if (!status) status = visit(ctx, b, &block, err);
    }
    return status;
}

/* The context of visit_forward. */
typedef struct forward_visit {
    const sn_segment *segment;
    sn_forward_pass pass;
    const sn_block_adapter *adapters; /* one for each block of the segment, or NULL */
} forward_visit;

static sn_status visit_forward(void *ctx, int number, const sn_block *block, sn_err *err) {
    forward_visit *v = ctx;
    v->pass.number = number;
    v->pass.adapter = v->adapters ? &v->adapters[number - v->segment->first] : NULL;
    v->pass.index_block = v->segment->end - v->segment->first + sn_n_choosing(v->pass.hp, v->segment->first, number);
    SN_TRY(sn_block_forward(block, sn_place_of(v->pass.hp, v->segment->first, number), &v->pass, err));
    v->pass.due = v->pass.scratch->h;
    return SN_OK;
}

/* All blocks, within a batch. */
static sn_status run_blocks(sn_segment *g, int first, int end, forward_visit visit, sn_err *err) {
    SN_TRY(sn_segment_walk(g, first, end, false, visit_forward, &visit, err));
    return sn_block_add_due(&visit.pass, err);
}

bool sn_segment_has_experts_elsewhere(const sn_segment *g, int first, int end) {
    while (first < end && !g->split && !g->blocks[first - g->first].slots && !g->blocks[first - g->first].apart.device)
        first++;
    return first < end;
}

bool sn_segment_is_lost(const sn_segment *g) {
    bool lost = g->device->lost;
    for (int b = g->first; b < g->end; b++) {
        const sn_device *other = g->blocks[b - g->first].apart.device;
        lost |= other && other->lost;
    }
    return lost;
}

size_t sn_segment_bytes_apart(const sn_segment *g) {
    size_t bytes = 0;
    for (int b = g->first; b < g->end; b++) bytes += g->blocks[b - g->first].apart_bytes;
    return bytes;
}

/* An assertion: the device would read memory of another device as wrong numbers, or fail. */
static void assert_on_device(const sn_segment *g, const char *name, const void *at, size_t bytes) {
    char device[32];
    if (g->device->ops->owns(g->device, at, bytes)) return;
    fprintf(stderr,
            "attention of blocks %d:%d: the %s, %zu bytes at %p, are not in the memory of %s: they did not pass the "
            "guard\n",
            g->first, g->end, name, bytes, at, sn_device_id_name(g->device->id, device));
    abort();
}

/* Checks all memory that attention reads and writes, once for all blocks of the forward pass. */
static void assert_all_on_device(const sn_segment *g, const sn_hparams *hp, const sn_batch *batch) {
    const sn_scratch *s = g->scratch;
    const sn_heads most = sn_most_heads(hp);
    size_t number = (size_t)batch->n_rows * sizeof(float), heads = number * (size_t)most.n;
    size_t kv_heads = number * (size_t)most.n_kv;
    size_t page_bytes = g->device->ops->kv_page_bytes(g->device, batch->shape);
    assert_on_device(g, "queries", s->q, heads * (size_t)most.key_dim);
    assert_on_device(g, "new keys", s->k, kv_heads * (size_t)(most.key_dim - hp->latent));
    assert_on_device(g, "new values", s->v, kv_heads * (size_t)most.value_dim);
    assert_on_device(g, "results", s->attn, heads * (size_t)most.value_dim);
    for (int i = 0; i < batch->n_sequences; i++) {
        const sn_sequence *q = &batch->sequences[i];
        int page_tokens = batch->shape->page_tokens,
            n_pages = (q->position + q->n_rows + page_tokens - 1) / page_tokens;
        for (int p = 0; p < n_pages; p++) assert_on_device(g, "KV pages", q->pages[p], page_bytes);
    }
}

/* Whether the indexer leaves out some position for some row. */
static bool batch_chooses(const sn_hparams *hp, const sn_batch *batch) {
    bool any = false;
    for (int i = 0; i < batch->n_sequences; i++)
        any |= batch->sequences[i].position + batch->sequences[i].n_rows > hp->index_topk;
    return hp->index_topk && any;
}

sn_status sn_segment_forward(sn_segment *g, const sn_hparams *hp, int first, int end, const sn_batch *batch,
                             const sn_block_adapter *adapters, sn_err *err) {
    const forward_visit visit = {g,
                                 {.device = g->device,
                                  .hp = hp,
                                  .scratch = g->scratch,
                                  .n_rows = batch->n_rows,
                                  .n_sequences = batch->n_sequences,
                                  .sequences = batch->sequences,
                                  .chooses = batch_chooses(hp, batch),
                                  .moved = g->moved,
                                  .split = g->split},
                                 adapters};
    sn_batch own = *batch;
    bool chooses = visit.pass.chooses, replayed = false,
         streams = segment_next_streamed(g, first, end, 1) != end || sn_segment_has_experts_elsewhere(g, first, end);
    assert_all_on_device(g, hp, batch);
    /* Streamed blocks change their addresses from batch to batch, which experts are brought or computed elsewhere is
     * decided in between, and adapters add operations: none of these is recorded. */
    if (!streams && !adapters)
        own.graph_key =
            g->id << 32 | (uint64_t)chooses << 31 | (uint64_t)(first - g->first) << 16 | (uint64_t)(end - g->first);
    sn_status status = SN_RETRY;
    /* SN_RETRY of a batch that may be captured: it was not, and not run */
    for (int i = 0; i < (own.graph_key ? 2 : 1) && status == SN_RETRY; i++) {
        status = g->device->ops->batch_begin(g->device, &own, &replayed, err);
        if (status) continue;
        if (!replayed) status = run_blocks(g, first, end, visit, err);
        status = sn_device_batch_end(g->device, &own, status, err);
    }
    return status;
}

sn_status sn_segment_run_experts(sn_segment *g, const sn_hparams *hp, const sn_expert_split *split,
                                 const sn_expert_request *request, float *out, sn_err *err) {
    const sn_block_storage *r = &g->blocks[request->block - g->first];
    const sn_block block = segment_block(r, r->image);
    const sn_forward_pass pass = {.device = g->device, .hp = hp, .scratch = g->scratch, .split = split};
    if (r->residence != SN_ON_DEVICE || r->apart.device)
        return sn_fail(err, SN_REFUSED, "the experts of block %d are not computed for others: they are %s",
                       request->block, r->apart.device ? "on another device than the block" : "streamed");
    SN_TRY(check_cancel(g->device, err));
    return sn_moe_run_pairs(&block, &pass, request, out, err);
}
