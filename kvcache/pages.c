#include "kvcache/pages.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>

static size_t count_pieces(const sn_kv_pages *pages, const sn_kv_pages_part *part) {
    return (pages->n_pages + part->piece_pages - 1) / part->piece_pages;
}

static size_t piece_bytes(const sn_kv_pages *pages, const sn_kv_pages_part *part, size_t piece) {
    return sn_min_size(part->piece_pages, pages->n_pages - piece * part->piece_pages) * part->page_bytes;
}

/* One reservation per device, if the device allows so much at once: on the CPU a page takes memory only once it is
 * written. */
static sn_status part_alloc(const sn_kv_pages *pages, sn_kv_pages_part *part, sn_err *err) {
    const size_t most = part->device->allocation_max;
    part->piece_pages = most ? sn_min_size(pages->n_pages, most / part->page_bytes) : pages->n_pages;
    if (!part->piece_pages) part->piece_pages = 1; /* the device refuses it with a sentence */
    sn_status status = sn_calloc(&part->pieces, count_pieces(pages, part), sizeof *part->pieces, err);
    for (size_t i = 0; !status && i < count_pieces(pages, part); i++) {
        void *memory = NULL;
        status = part->device->ops->alloc(part->device, piece_bytes(pages, part, i), &memory, err);
        part->pieces[i] = memory;
    }
    return status;
}

static sn_status pages_alloc_parts(sn_kv_pages *pages, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < pages->n_parts && !status; i++) status = part_alloc(pages, &pages->parts[i], err);
    return status;
}

sn_status sn_kv_pages_init(sn_kv_pages *pages, const sn_kv_pages_part *parts, int n_parts, size_t budget, sn_err *err) {
    *pages = (sn_kv_pages){0};
    sn_status status = sn_calloc(&pages->parts, (size_t)n_parts, sizeof *pages->parts, err);
    if (status) return status;
    pages->n_parts = n_parts;
    for (int i = 0; i < n_parts; i++) {
        sn_kv_pages_part *part = &pages->parts[i];
        *part = (sn_kv_pages_part){.device = parts[i].device, .shape = parts[i].shape, .row_bytes = parts[i].row_bytes};
        part->page_bytes = part->device->ops->kv_page_bytes(part->device, &part->shape) +
                           (size_t)part->shape.page_tokens * part->row_bytes;
        pages->page_bytes += part->page_bytes;
    }
    pages->n_pages = sn_min_size(budget / pages->page_bytes, UINT32_MAX);
    if (!pages->n_pages)
        return sn_fail(err, SN_REFUSED,
                       "%zu bytes are too few for a KV cache: %d tokens take %zu bytes, give a larger --kv-memory",
                       budget, pages->parts[0].shape.page_tokens, pages->page_bytes);
    status = sn_calloc(&pages->free_pages, pages->n_pages, sizeof *pages->free_pages, err);
    if (!status) status = sn_calloc(&pages->ref_counts, pages->n_pages, sizeof *pages->ref_counts, err);
    if (!status) status = sn_calloc(&pages->cached, pages->n_pages, sizeof *pages->cached, err);
    if (!status) status = pages_alloc_parts(pages, err);
    if (status) return status;
    while (pages->n_free < pages->n_pages) { /* the lowest number on top: low pages are reused while they are warm */
        size_t page = pages->n_pages - 1 - pages->n_free;
        pages->free_pages[pages->n_free++] = (uint32_t)page;
    }
    return SN_OK;
}

void sn_kv_pages_fini(sn_kv_pages *pages) {
    sn_kv_states_fini(&pages->states);
    for (int i = 0; i < pages->n_parts; i++) {
        sn_kv_pages_part *part = &pages->parts[i];
        for (size_t k = 0; part->pieces && k < count_pieces(pages, part); k++)
            if (part->pieces[k]) part->device->ops->free(part->device, part->pieces[k], piece_bytes(pages, part, k));
        free(part->pieces);
    }
    free(pages->parts);
    free(pages->free_pages);
    free(pages->ref_counts);
    free(pages->cached);
    *pages = (sn_kv_pages){0};
}

bool sn_kv_pages_reclaim(sn_kv_pages *pages, size_t n) {
    if (n > sn_kv_pages_available(pages)) return false;
    while (pages->n_free < n) {
        size_t before = pages->n_free;
        pages->evictor.evict(pages->evictor.ctx);
        if (pages->n_free == before) abort(); /* n_evictable says that there was one */
    }
    return true;
}

uint32_t sn_kv_pages_next_free(const sn_kv_pages *pages) {
    assert(pages->n_free);
    return pages->free_pages[pages->n_free - 1];
}

void sn_kv_pages_acquire(sn_kv_pages *pages, uint32_t page) {
    if (pages->ref_counts[page]++ == 0) {
        if (pages->cached[page]) {
            pages->n_evictable--;
        } else {
            assert(sn_kv_pages_next_free(pages) == page);
            pages->n_free--;
        }
    }
    if (pages->ref_counts[page] == 2) pages->n_shared++;
}

static void free_page(sn_kv_pages *pages, uint32_t page) {
    sn_kv_states_drop(&pages->states, page);
    pages->free_pages[pages->n_free++] = page;
}

void sn_kv_pages_release(sn_kv_pages *pages, uint32_t page) {
    if (pages->ref_counts[page]-- == 2) pages->n_shared--;
    if (pages->ref_counts[page]) return;
    if (pages->cached[page])
        pages->n_evictable++;
    else
        free_page(pages, page);
}

void sn_kv_pages_cache(sn_kv_pages *pages, uint32_t page) {
    assert(pages->ref_counts[page] && !pages->cached[page]);
    pages->cached[page] = true;
}

void sn_kv_pages_uncache(sn_kv_pages *pages, uint32_t page) {
    assert(pages->cached[page]);
    pages->cached[page] = false;
    if (pages->ref_counts[page]) return;
    pages->n_evictable--;
    free_page(pages, page);
}

sn_status sn_kv_pages_copy(const sn_kv_pages *pages, uint32_t to, uint32_t from, sn_err *err) {
    sn_status status = SN_OK;
    for (int i = 0; i < pages->n_parts && !status; i++) {
        const sn_kv_pages_part *part = &pages->parts[i];
        const void *source = sn_kv_pages_address(pages, i, from);
        void *host = NULL;
        if (!part->device->host_visible) {
            status = sn_calloc(&host, part->page_bytes, 1, err);
            if (!status) status = part->device->ops->download(part->device, host, source, part->page_bytes, err);
            source = host;
        }
        if (!status)
            status = part->device->ops->upload(part->device, sn_kv_pages_address(pages, i, to), source,
                                               part->page_bytes, err);
        free(host);
    }
    return status;
}
