/* Chunked prefill: a long input goes down the chain in chunks of which several are in flight. While one node computes a
 * chunk, the node before it computes the next one, and another chunk is on its way. Every hop gets the chunks in their
 * order, so each node sees the steps that it would see one after the other.
 *
 * The chunks form a queue, oldest first; each knows the hop that it enters next. prefill_advance moves every chunk as
 * far as it may go: into a group that is free, or that lets a further step wait (prefill_depth). prefill_receive waits
 * for the next reply of any group. A chunk that has passed the last hop leaves the queue, and its buffer is used again.
 *
 * A failure ends the pipeline: replies of other nodes that are in flight are still read, so that the client knows the
 * state of their sessions, and the rows that have not passed the whole chain are left to the caller (chain.c), which
 * continues from there; nodes that are ahead of it are rewound by its next step. */
#include "client/chain/chain_private.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNKS_MAX = 24, CHUNKS_PER_HOP = 4 };

/* Rows of a chunk: a part of the prompt for each node, within these limits. Nodes that take more than SN_SPAN_ROWS in a
 * step are GPUs, which need many rows to be busy: theirs are long chunks, up to SN_CHAIN_ROWS_MAX rows, where these are
 * not so many bytes that a slow link or a relay could not carry them within --timeout. */
enum { CHUNK_ROWS_MIN = 64, CHUNK_ROWS_MAX = 128, LONG_CHUNK_BYTES_MAX = 4 << 20 };

typedef struct chunk {
    int position, n;
    size_t at; /* the hop that it enters next, or in whose group it is in flight */
    bool in_flight;
    float *rows; /* (n, n_embd): the input of hop `at` */
    sn_step_in_flight step;
} chunk;

typedef struct prefill {
    sn_chain *chain;
    const sn_step *input;
    int chunk_rows;
    int n_chunked, n_done; /* of the input's rows: made into chunks; through all hops */
    size_t failed_hop;     /* the hop at which a step failed */
    chunk chunks[CHUNKS_MAX];
    size_t n_chunks, chunks_max; /* oldest first; chunks from n_chunks on only hold a free buffer in `rows` */
    float *memory;               /* of all buffers */
} prefill;

static int smaller(int a, int b) { return a < b ? a : b; }
static int larger(int a, int b) { return a > b ? a : b; }

int sn_chunk_rows(int n, size_t n_hops, int taken, size_t row_bytes) {
    int rows = n / (int)(CHUNKS_PER_HOP * n_hops), most = CHUNK_ROWS_MAX;
    if (taken > SN_SPAN_ROWS) most = larger(most, smaller(SN_CHAIN_ROWS_MAX, (int)(LONG_CHUNK_BYTES_MAX / row_bytes)));
    return smaller(larger(rows, CHUNK_ROWS_MIN), smaller(most, taken));
}

/* Bytes of a row in the wider of the two types in which rows travel to the hop and from it. */
static size_t hop_row_bytes(const sn_hop *hop, int n_embd) {
    size_t in = (size_t)n_embd / sn_dtype_block(hop->input_dtype) * sn_dtype_bytes(hop->input_dtype);
    size_t out = (size_t)n_embd / sn_dtype_block(hop->output_dtype) * sn_dtype_bytes(hop->output_dtype);
    return in > out ? in : out;
}

int sn_chain_chunk_rows(const sn_chain *chain, int n) {
    size_t row_bytes = 0;
    int taken = chain->short_chunks ? SN_SPAN_ROWS : SN_CHAIN_ROWS_MAX;
    for (size_t i = 0; i < chain->n_hops; i++) {
        const sn_hop *hop = &chain->hops[i];
        taken = smaller(taken, hop->is_local ? SN_SPAN_ROWS : hop->remote.step_tokens_max);
        if (hop->is_local) continue;
        size_t bytes = hop_row_bytes(hop, chain->hp.n_embd);
        if (bytes > row_bytes) row_bytes = bytes;
        if (!hop->remote.prefill_depth_max) return 0;
    }
    if (!row_bytes || chain->options.routing.every_block || !chain->options.limits.prefill_depth) return 0;
    int rows = sn_chunk_rows(n, chain->n_hops, taken, row_bytes);
    return n >= 2 * rows ? rows : 0;
}

/* -- sending ---------------------------------------------------------------------------------------------------------
 */

static sn_step chunk_step(const prefill *f, chunk *c) {
    return (sn_step){c->position, c->n, f->input->n_embd, c->rows, c->rows};
}

static void chunk_notify_observer(const sn_chain *chain, int block, const chunk *c) {
    if (chain->observer) chain->observer(chain->observer_ctx, block, c->position, c->n, c->rows);
}

/* Whether chunk k may enter its group now: after the chunks before it, and within the steps and rows that the nodes let
 * wait. The oldest chunk in flight there is being computed and does not wait. Behind it no more wait than SN_SPAN_ROWS
 * or one long chunk, also where nodes would take more: all are on the way at once, over a link that may be slow. */
static bool chunk_may_enter(const prefill *f, size_t k) {
    const chunk *c = &f->chunks[k];
    const sn_chain *chain = f->chain;
    if (c->in_flight || (k && f->chunks[k - 1].at == c->at && !f->chunks[k - 1].in_flight)) return false;
    if (chain->hops[c->at].is_local) return true;
    int waiting = 0, rows = c->n;
    bool idle = true;
    for (size_t i = 0; i < k; i++) {
        if (f->chunks[i].at != c->at) continue;
        if (!idle) rows += f->chunks[i].n;
        waiting += !idle;
        idle = false;
    }
    if (idle) return true;
    if (rows > larger(SN_SPAN_ROWS, f->chunk_rows)) return false;
    int limit = chain->options.limits.prefill_depth;
    for (size_t i = c->at, j = sn_chain_group_end(chain->hops, chain->n_hops, i); i < j; i++) {
        const sn_hop_remote *r = &chain->hops[i].remote;
        if (r->prefill_depth_max < limit) limit = r->prefill_depth_max;
        if (rows > r->step_tokens_max) return false;
    }
    return waiting < limit;
}

/* The oldest chunk has passed all hops: its output is copied, and its buffer goes to the end of the queue. */
static void prefill_finish_chunk(prefill *f) {
    chunk through = f->chunks[0];
    size_t n_embd = (size_t)f->input->n_embd;
    chunk_notify_observer(f->chain, f->chain->options.end, &through);
    memcpy(f->input->out + (size_t)f->n_done * n_embd, through.rows, (size_t)through.n * n_embd * sizeof(float));
    f->n_done += through.n;
    if (f->chain->watcher) f->chain->watcher(f->chain->watcher_ctx, f->n_done);
    sn_chain_begin_call(f->chain); /* the limits are those of each chunk */
    memmove(f->chunks, f->chunks + 1, (f->chunks_max - 1) * sizeof *f->chunks);
    f->chunks[f->chunks_max - 1] = through;
    f->n_chunks--;
}

static sn_status chunk_step_local(prefill *f, chunk *c, sn_err *err) {
    sn_chain *chain = f->chain;
    sn_step step = chunk_step(f, c);
    step.out = chain->rows[0];
    sn_status status = sn_chain_step_local(chain, &chain->hops[c->at], &step, err);
    if (!status) memcpy(c->rows, step.out, (size_t)c->n * (size_t)step.n_embd * sizeof *c->rows);
    c->at++;
    return status;
}

static sn_status chunk_send(prefill *f, size_t k, sn_err *err) {
    sn_chain *chain = f->chain;
    chunk *c = &f->chunks[k];
    sn_hop *hops = &chain->hops[c->at];
    size_t n_hops = sn_chain_group_end(chain->hops, chain->n_hops, c->at) - c->at, n_in_flight = 0;
    sn_step step = chunk_step(f, c);
    for (size_t i = 0; i < k; i++) n_in_flight += f->chunks[i].at == c->at;
    sn_status status = sn_hop_record(hops, &step, chain->hasher, err);
    if (!status)
        status = sn_hops_send(hops, n_hops, chain->options.link, n_in_flight, &step, sn_chain_attempt_until_us(chain),
                              &c->step, err);
    c->in_flight = !status;
    return status;
}

/* Rows of the chunk that begins at the position: it ends where a page ends, because a node's prefix cache gives whole
 * pages of a step. */
static int rows_to_page_end(int position, int rows) {
    int beyond = (position + rows) % SN_KV_PAGE_TOKENS;
    return beyond < rows ? rows - beyond : rows;
}

static void prefill_make_chunk(prefill *f) {
    const sn_step *input = f->input;
    size_t n_embd = (size_t)input->n_embd;
    if (f->n_chunked == input->n || f->n_chunks == f->chunks_max) return;
    chunk *c = &f->chunks[f->n_chunks++];
    int left = input->n - f->n_chunked, position = input->position + f->n_chunked;
    *c = (chunk){.position = position, .n = smaller(left, rows_to_page_end(position, f->chunk_rows)), .rows = c->rows};
    memcpy(c->rows, input->in + (size_t)f->n_chunked * n_embd, (size_t)c->n * n_embd * sizeof *c->rows);
    f->n_chunked += c->n;
}

/* Moves every chunk as far as it may go. One chunk that has not entered the first hop is always ready. */
static sn_status prefill_advance(prefill *f, sn_err *err) {
    sn_chain *chain = f->chain;
    sn_status status = SN_OK;
    if (!f->n_chunks) prefill_make_chunk(f);
    for (size_t k = 0; k < f->n_chunks && !status; k++) {
        chunk *c = &f->chunks[k];
        while (!status && c->at < chain->n_hops && chunk_may_enter(f, k)) {
            chunk_notify_observer(chain, chain->hops[c->at].first, c);
            f->failed_hop = c->at;
            status = chain->hops[c->at].is_local ? chunk_step_local(f, c, err) : chunk_send(f, k, err);
        }
        if (!status && k + 1 == f->n_chunks && (c->at || c->in_flight)) prefill_make_chunk(f);
    }
    while (!status && f->n_chunks && f->chunks[0].at == chain->n_hops) prefill_finish_chunk(f);
    return status;
}

/* -- receiving --------------------------------------------------------------------------------------------------------
 */

typedef struct pending_replies {
    sn_wait waits[CHUNKS_MAX];
    sn_peer peers[CHUNKS_MAX][SN_HOPS_MAX];
    size_t chunk[CHUNKS_MAX], n; /* chunk[i]: to which chunk waits[i] belongs */
} pending_replies;

static void prefill_list_pending(const prefill *f, pending_replies *pending) {
    const sn_chain *chain = f->chain;
    pending->n = 0;
    for (size_t k = 0; k < f->n_chunks; k++) {
        const chunk *c = &f->chunks[k];
        if (!c->in_flight) continue;
        size_t j = sn_chain_group_end(chain->hops, chain->n_hops, c->at);
        pending->waits[pending->n] = sn_hops_wait(&chain->hops[c->at], j - c->at, &c->step, pending->peers[pending->n]);
        pending->chunk[pending->n++] = k;
    }
}

/* Waits for the next reply of any node, and moves its chunk behind the group. */
static sn_status prefill_receive(prefill *f, pending_replies *pending, sn_err *err) {
    sn_chain *chain = f->chain;
    sn_msg *result = NULL;
    size_t at, failed;
    prefill_list_pending(f, pending);
    sn_status status = sn_link_wait_any(chain->options.link, pending->waits, pending->n, &at, &result, err);
    chunk *c = &f->chunks[pending->chunk[at]];
    f->failed_hop = c->at;
    for (const chunk *before = f->chunks; before < c && !status; before++)
        if (before->at == c->at) status = sn_fail(err, SN_RETRY, "steps were answered in another order");
    size_t j = sn_chain_group_end(chain->hops, chain->n_hops, c->at);
    const sn_hop *hops = &chain->hops[c->at];
    if (!status) status = sn_hops_receive(&chain->hops[c->at], j - c->at, &c->step, result, &failed, err);
    sn_msg_free(&result);
    if (!status) status = sn_chain_verify_step(chain, hops, j - c->at, &c->step.step, err);
    if (status) return status;
    sn_chain_note_step(chain, chain->hops, c->at, j, c->n);
    c->in_flight = false;
    c->at = j;
    return SN_OK;
}

/* After a failure: reads the replies of the other groups, so that their hops' state is that of their sessions. */
static void prefill_settle(prefill *f, pending_replies *pending) {
    for (size_t left = 1; left;) {
        sn_err err;
        left = 0;
        for (size_t k = 0; k < f->n_chunks; k++) {
            if (f->chunks[k].at == f->failed_hop) f->chunks[k].in_flight = false; /* given up */
            left += f->chunks[k].in_flight;
        }
        while (left && !prefill_receive(f, pending, &err)) left--;
    }
}

sn_status sn_chain_prefill(sn_chain *chain, const sn_step *input, int chunk_rows, int *done, sn_err *err) {
    prefill f = {.chain = chain, .input = input, .chunk_rows = chunk_rows};
    size_t row_floats = (size_t)chunk_rows * (size_t)input->n_embd;
    size_t wanted = 2 * chain->n_hops + SN_PREFILL_DEPTH_MAX;
    pending_replies *pending = NULL;
    *done = 0;
    f.chunks_max = wanted < CHUNKS_MAX ? wanted : CHUNKS_MAX;
    sn_status status = sn_calloc(&f.memory, f.chunks_max, row_floats * sizeof(float), err);
    if (!status) status = sn_calloc(&pending, 1, sizeof *pending, err);
    for (size_t i = 0; i < f.chunks_max && !status; i++) f.chunks[i].rows = f.memory + i * row_floats;
    while (!status && f.n_done < input->n) {
        status = prefill_advance(&f, err);
        if (!status && f.n_chunks) status = prefill_receive(&f, pending, err);
    }
    if (status && status != SN_STOP) prefill_settle(&f, pending);
    if (status && status != SN_STOP && chunk_rows > CHUNK_ROWS_MAX && !err->retry_after_ms) chain->short_chunks = true;
    *done = f.n_done;
    free(pending);
    free(f.memory);
    return status;
}
