#include "kvcache/prefix.h"

#include "base/mem.h"
#include "kvcache/kvcache_private.h"

#include <stdlib.h>
#include <string.h>

/* A page's outputs. While its page is being filled it is some past's `open` one; when it is full it is found by its hash. */
typedef struct entry {
    sn_hash end;
    sn_prefix_scope scope;
    uint32_t page;
    uint32_t next;         /* of the same bucket, or of the unused ones */
    uint32_t newer, older; /* of those that are full */
    int filled;            /* rows */
} entry;

struct sn_prefix {
    sn_kv_pool *pool;
    size_t width, page_floats, n_entries, n_buckets;
    entry *entries;
    float *outputs; /* (n_entries, SN_KV_PAGE_TOKENS, width); takes memory only once it is written */
    size_t output_bytes;
    uint32_t *of_page; /* for each page of the pool its entry, if it is kept */
    uint32_t *buckets;
    uint32_t unused, newest, oldest;
    uint64_t tokens;
};

sn_status sn_prefix_share(sn_kv_pool *pool, int width, size_t budget, sn_err *err) {
    size_t page_floats = (size_t)width * SN_KV_PAGE_TOKENS;
    size_t n = sn_min_size(budget / (page_floats * sizeof(float)), pool->n_pages); /* a page has one entry at most */
    sn_prefix *p = NULL;
    if (!n) return SN_OK;
    sn_status status = sn_calloc(&p, 1, sizeof *p, err);
    if (status) return status;
    *p = (sn_prefix){.pool = pool, .width = (size_t)width, .page_floats = page_floats, .n_entries = n, .n_buckets = 1};
    while (p->n_buckets < n) p->n_buckets *= 2;
    p->output_bytes = n * page_floats * sizeof(float);
    void *outputs = NULL;
    status = sn_pages_alloc(&outputs, p->output_bytes, err);
    p->outputs = outputs;
    if (!status) status = sn_calloc(&p->entries, n, sizeof *p->entries, err);
    if (!status) status = sn_calloc(&p->of_page, pool->n_pages, sizeof *p->of_page, err);
    if (!status) status = sn_calloc(&p->buckets, p->n_buckets, sizeof *p->buckets, err);
    if (status) {
        sn_prefix_free(&p);
        return status;
    }
    memset(p->of_page, 0xff, pool->n_pages * sizeof *p->of_page); /* SN_KV_NONE */
    memset(p->buckets, 0xff, p->n_buckets * sizeof *p->buckets);
    p->unused = p->newest = p->oldest = SN_KV_NONE;
    for (size_t i = n; i-- > 0; p->unused = (uint32_t)i) p->entries[i].next = p->unused;
    pool->prefix = p;
    return SN_OK;
}

void sn_prefix_free(sn_prefix **prefix) {
    sn_prefix *p = *prefix;
    if (!p) return;
    void *outputs = p->outputs;
    sn_pages_free(&outputs, p->output_bytes);
    free(p->entries);
    free(p->of_page);
    free(p->buckets);
    free(p);
    *prefix = NULL;
}

static float *rows_of(const sn_prefix *p, uint32_t e) { return p->outputs + e * p->page_floats; }

/* -- the table, and the order of use ------------------------------------------------------------------------------- */

static uint32_t *bucket(const sn_prefix *p, const sn_prefix_scope *scope, const sn_hash *end) {
    uint64_t a, b;
    memcpy(&a, scope->bytes, sizeof a);
    memcpy(&b, end->bytes, sizeof b);
    return &p->buckets[(a ^ b) & (p->n_buckets - 1)];
}

static uint32_t find(const sn_prefix *p, const sn_prefix_scope *scope, const sn_hash *end) {
    uint32_t e = *bucket(p, scope, end);
    while (e != SN_KV_NONE && (memcmp(&p->entries[e].end, end, sizeof *end) ||
                               memcmp(&p->entries[e].scope, scope, sizeof *scope)))
        e = p->entries[e].next;
    return e;
}

static void unlink_use(sn_prefix *p, uint32_t e) {
    const entry *it = &p->entries[e];
    *(it->newer == SN_KV_NONE ? &p->newest : &p->entries[it->newer].older) = it->older;
    *(it->older == SN_KV_NONE ? &p->oldest : &p->entries[it->older].newer) = it->newer;
}

static void link_newest(sn_prefix *p, uint32_t e) {
    p->entries[e].newer = SN_KV_NONE;
    p->entries[e].older = p->newest;
    *(p->newest == SN_KV_NONE ? &p->oldest : &p->entries[p->newest].newer) = e;
    p->newest = e;
}

static void put_unused(sn_prefix *p, uint32_t e) {
    p->entries[e].next = p->unused;
    p->unused = e;
}

bool sn_prefix_keeps(const sn_prefix *p, uint32_t page) { return p && p->of_page[page] != SN_KV_NONE; }

void sn_prefix_forget(sn_prefix *p, uint32_t page) {
    uint32_t e = p->of_page[page], *at = bucket(p, &p->entries[e].scope, &p->entries[e].end);
    while (*at != e) at = &p->entries[*at].next;
    *at = p->entries[e].next;
    unlink_use(p, e);
    put_unused(p, e);
    p->of_page[page] = SN_KV_NONE;
    if (p->pool->users[page]) return;
    p->pool->n_kept--;
    p->pool->free_pages[p->pool->n_free++] = page;
}

bool sn_prefix_give_up(sn_prefix *p) {
    if (!p) return false;
    for (uint32_t e = p->oldest; e != SN_KV_NONE; e = p->entries[e].newer) {
        if (p->pool->users[p->entries[e].page]) continue;
        sn_prefix_forget(p, p->entries[e].page);
        return true;
    }
    return false;
}

/* The past's pages up to `end` are now the newest, its first one most of all: an end without its beginning is of no use. */
static void touch(sn_prefix *p, const sn_kv *kv, int end) {
    for (int i = end / SN_KV_PAGE_TOKENS; i-- > 0;) {
        uint32_t e = p->of_page[kv->numbers[i]]; /* it is there: the past has just been written */
        if (e == SN_KV_NONE) continue;
        unlink_use(p, e);
        link_newest(p, e);
    }
}

/* -- the page that is being filled --------------------------------------------------------------------------------- */

void sn_prefix_drop_open(sn_kv *kv) {
    if (kv->open == SN_KV_NONE) return;
    put_unused(kv->pool->prefix, kv->open);
    kv->open = SN_KV_NONE;
}

static void begin_open(sn_kv *kv, uint32_t page) {
    sn_prefix *p = kv->pool->prefix;
    sn_prefix_drop_open(kv);
    if (p->unused == SN_KV_NONE && p->oldest != SN_KV_NONE) sn_prefix_forget(p, p->entries[p->oldest].page);
    if (p->unused == SN_KV_NONE) return;
    kv->open = p->unused;
    p->unused = p->entries[kv->open].next;
    p->entries[kv->open].page = page;
    p->entries[kv->open].filled = 0;
}

void sn_prefix_cut(sn_kv *kv) {
    if (kv->open == SN_KV_NONE) return;
    entry *open = &kv->pool->prefix->entries[kv->open];
    int within = kv->length % SN_KV_PAGE_TOKENS;
    if (!within || kv->numbers[kv->length / SN_KV_PAGE_TOKENS] != open->page)
        sn_prefix_drop_open(kv);
    else if (open->filled > within)
        open->filled = within;
}

void sn_prefix_copy_open(sn_kv *kv, uint32_t from) {
    sn_prefix *p = kv->pool->prefix;
    if (!sn_prefix_keeps(p, from)) return; /* two pasts share it, but its outputs were given up */
    int within = kv->length % SN_KV_PAGE_TOKENS;
    uint32_t page = kv->numbers[kv->length / SN_KV_PAGE_TOKENS], source = p->of_page[from];
    begin_open(kv, page);
    if (kv->open == SN_KV_NONE || !sn_prefix_keeps(p, from)) { /* it went to make place for its own copy */
        sn_prefix_drop_open(kv);
        return;
    }
    memcpy(rows_of(p, kv->open), rows_of(p, source), (size_t)within * p->width * sizeof(float));
    p->entries[kv->open].filled = within;
}

/* Rows from position `at` on, all in one page. */
static void note(sn_kv *kv, int at, int n, const float *output) {
    sn_prefix *p = kv->pool->prefix;
    int within = at % SN_KV_PAGE_TOKENS;
    uint32_t page = kv->numbers[at / SN_KV_PAGE_TOKENS];
    if (!within) begin_open(kv, page);
    if (kv->open == SN_KV_NONE) return;
    entry *open = &p->entries[kv->open];
    if (open->page != page || open->filled != within) { /* its first rows came in without outputs */
        sn_prefix_drop_open(kv);
        return;
    }
    size_t row = p->width;
    memcpy(rows_of(p, kv->open) + (size_t)within * row, output, (size_t)n * row * sizeof *output);
    open->filled += n;
}

/* The page being filled is full: from now on it is found. */
static void seal(sn_kv *kv, const sn_prefix_scope *scope, const sn_hash *end) {
    sn_prefix *p = kv->pool->prefix;
    uint32_t e = kv->open;
    if (e == SN_KV_NONE) return;
    if (find(p, scope, end) != SN_KV_NONE) { /* another session was first */
        sn_prefix_drop_open(kv);
        return;
    }
    kv->open = SN_KV_NONE;
    uint32_t *at = bucket(p, scope, end);
    p->entries[e].end = *end;
    p->entries[e].scope = *scope;
    p->entries[e].next = *at;
    *at = e;
    p->of_page[p->entries[e].page] = e;
    link_newest(p, e);
}

/* -- what the scheduler calls -------------------------------------------------------------------------------------- */

void sn_prefix_record(sn_kv *kv, const sn_prefix_scope *scope, const sn_hash *ends, int n, const float *output) {
    sn_prefix *p = kv->pool->prefix;
    if (!p) return;
    for (int at = kv->length - n, rows; at < kv->length; at += rows, ends++) {
        int left = SN_KV_PAGE_TOKENS - at % SN_KV_PAGE_TOKENS;
        rows = kv->length - at < left ? kv->length - at : left;
        note(kv, at, rows, output);
        output += (size_t)rows * p->width;
        if (rows < left) continue;
        seal(kv, scope, ends);
        touch(p, kv, at + rows); /* before the next page takes the place of the oldest one */
    }
}

bool sn_prefix_knows(const sn_kv_pool *pool, const sn_prefix_scope *scope, const sn_hash *end) {
    return pool->prefix && find(pool->prefix, scope, end) != SN_KV_NONE;
}

int sn_prefix_adopt(sn_kv *kv, const sn_prefix_scope *scope, const sn_hash *ends, int n, float *output) {
    sn_prefix *p = kv->pool->prefix;
    int done = 0;
    if (!p || kv->length % SN_KV_PAGE_TOKENS) return 0;
    for (; done < n; done++, output += p->page_floats) {
        size_t i = (size_t)kv->length / SN_KV_PAGE_TOKENS;
        uint32_t e = find(p, scope, &ends[done]), before = SN_KV_NONE;
        sn_err err;
        if (e == SN_KV_NONE) break;
        if (i >= kv->room && sn_kv_make_room(kv, sn_min_size(2 * i + 8, kv->pool->n_pages), &err)) break;
        if (i < kv->n_pages)
            before = kv->numbers[i]; /* reserved, and not needed now */
        else
            kv->n_pages++;
        sn_kv_set_page(kv, i, p->entries[e].page);
        if (before != SN_KV_NONE) sn_kv_drop_page(kv->pool, before);
        memcpy(output, rows_of(p, e), p->page_floats * sizeof *output);
        kv->length += SN_KV_PAGE_TOKENS;
    }
    if (done) {
        sn_prefix_drop_open(kv);
        touch(p, kv, kv->length);
    }
    p->tokens += (uint64_t)done * SN_KV_PAGE_TOKENS;
    return done;
}

bool sn_prefix_sharing(const sn_kv_pool *pool) { return pool->prefix != NULL; }
size_t sn_prefix_pages_shared(const sn_kv_pool *pool) { return pool->n_shared; }
size_t sn_prefix_pages_kept(const sn_kv_pool *pool) { return pool->n_kept; }
uint64_t sn_prefix_tokens(const sn_kv_pool *pool) { return pool->prefix ? pool->prefix->tokens : 0; }
