/* A step: rows through all hops, as a pipeline of chunks. A token with its draft tokens is a pipeline of one chunk; a
 * long prompt is one of many, of which several are under way: while one node computes a chunk, the node before it
 * computes the next one, and another chunk is on its way. A replay is the same over hops that are to become the
 * chain's.
 *
 * The chunks form a queue, oldest first. Each carries its state: the hop that it enters next, what the group there has
 * to compute, and how much of it has come back. sn_chain_run moves every chunk as far as it may go: into a group that
 * is free, or that lets a further step wait (prefill_depth). Then it waits for the next reply of any group. So every
 * hop gets the chunks in their order, and each node sees the steps that it would see one after the other. A chunk that
 * has passed the last hop leaves the queue.
 *
 * What fails, fails in a chunk (pipeline_recover). With several under way nobody is blamed: the replies of other groups
 * are still read, so that the client knows the state of their sessions, all chunks but the oldest are dropped, and that
 * one goes on alone. Those behind it are made again, and rewind the nodes that had them. A node that had done steps
 * behind the failed one refuses to do that again; then RESUME tells its group where to go on (chunk_bring_back). A
 * chunk that is alone stays at its group until that has computed it, or other nodes have in its place (failover.c).
 *
 * Windows of guessed rows (sn_chain_step_ahead) are chunks, too, which the caller guesses one after the other. Where
 * the oldest has passed the last hop and the guesses behind it are wrong, those are given up
 * (pipeline_give_up_guesses): nobody waits for their replies, the next window leaves out the numbers of their steps,
 * and by that nodes know which waiting ones they need not compute (docs/PROTOCOL.md). */
#include "client/chain/chain_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNKS_MAX = 24, WINDOWS_MAX = 48, CHUNKS_PER_HOP = 4 };

/* Rows of a chunk among several: a part of the prompt for each node, within these limits. Nodes that take more than
 * SN_SPAN_ROWS in a step are GPUs, which need many rows to be busy: theirs are long chunks, up to SN_CHAIN_ROWS_MAX
 * rows, where these are not so many bytes that a slow link or a relay could not carry them within --timeout. */
enum { CHUNK_ROWS_MIN = 64, CHUNK_ROWS_MAX = 128, LONG_CHUNK_BYTES_MAX = 4 << 20 };

/* To nodes that are far, chunks begin small and double: a chunk goes on when it has come whole, and TCP sends ten
 * segments in the first round trip of each link, twice as much in each further one. So the first chunk is what comes
 * with the first round trip, and all links open their windows at the same time, not one behind the other. Where a node
 * takes longer than that for a few rows, chunks of them would cost more than they save. */
enum { FAR_US = 15000, FAR_BYTES_FIRST = 10 * 1448, FAR_ROWS_SLOW = 8, FAR_ROWS_MAX = 64 };

typedef struct chunk {
    int position, n;
    size_t at;      /* the hop that it enters next, or in whose group it is in flight */
    float *rows;    /* (n, n_embd): the input of hop `at` */
    sn_step step;   /* what its group computes: these rows, behind those that it has to run again; n 0: not set */
    float *again;   /* of `step`, where rows run again: its input, and behind it its output */
    int passed;     /* rows of `step` that the group has computed, in parts as long as its nodes take */
    bool in_flight; /* the next part */
    bool guessed;   /* others were under way when it began */
    bool behind;    /* another chunk, at its group: until that is done its time does not begin */
    sn_step_in_flight part;       /* until_us: however often it is sent; 0: it was not sent yet */
    int64_t tried_us;             /* when it was sent first */
    int64_t began_us, queue_us;   /* when it began; how long it has waited at nodes */
    int64_t stage_us, compute_us; /* the longest computation, and all */
    size_t failed_hop;            /* of the group: who is to blame, as far as the reply shows it */
    sn_losses losses;             /* of the group while the chunk was there */
} chunk;

typedef struct pipeline {
    sn_chain *chain;
    sn_step input;        /* of a replay without rows */
    const sn_hop *inputs; /* a replay: of this hop; NULL: a step of the chain */
    sn_hop *hops;         /* the chain's, or those of the replay */
    size_t n_hops;
    int n_chunked, n_done, n_before; /* of the input's rows: made into chunks; through all hops; before this round */
    int chunk_rows, next_rows;       /* of chunks, at most; of the next one */
    bool alone;                      /* one chunk at a time: others do not pay, or chunks have failed */
    chunk chunks[WINDOWS_MAX];
    size_t n_chunks, chunks_max; /* oldest first; chunks from n_chunks on only hold a free buffer in `rows` */
    float *spare, *memory;       /* a buffer of no chunk; all of them */
    sn_peer peers[SN_HOPS_MAX];  /* of the hops that steps in flight need */
    chunk *failed;               /* the one whose step at nodes failed; NULL: what failed was none */
    const sn_guesses *guesses;   /* who gives the rows, as long as they are right; NULL: they are the input's */
    int64_t came_us;             /* when the newest window has passed */
    bool none_now;               /* there were no guesses for the next window */
    bool ended;                  /* no further window begins */
    bool idle;                   /* no reply was there: time for guesses */
    bool callers;                /* what failed is the caller's */
} pipeline;

static int smaller(int a, int b) { return a < b ? a : b; }
static int larger(int a, int b) { return a > b ? a : b; }

/* -- the length of chunks ---------------------------------------------------------------------------------------------
 */

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

static bool chain_is_far(const sn_chain *chain) {
    size_t i = 0;
    while (i < chain->n_hops && (chain->hops[i].is_local || chain->hops[i].remote.answer_us < FAR_US)) i++;
    return i < chain->n_hops;
}

static bool hop_computes_longer_than_it_is_far(const sn_hop *hop) {
    return !hop->is_local && 2 * hop->remote.pass_us > hop->remote.answer_us;
}

/* Bytes of the widest row that travels. */
static size_t chain_row_bytes(const sn_chain *chain) {
    size_t most = 0;
    for (size_t i = 0; i < chain->n_hops; i++) {
        const size_t bytes = chain->hops[i].is_local ? 0 : hop_row_bytes(&chain->hops[i], chain->hp.n_embd);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Rows of the first chunk, of those that have `most`. */
static int chain_first_rows(const sn_chain *chain, int most) {
    if (!chain_is_far(chain)) return most;
    for (size_t i = 0; i < chain->n_hops; i++)
        if (hop_computes_longer_than_it_is_far(&chain->hops[i])) return smaller(FAR_ROWS_SLOW, most);
    return smaller(larger(FAR_BYTES_FIRST / (int)chain_row_bytes(chain), 1), most);
}

int sn_chain_chunk_rows(const sn_chain *chain, int n) {
    const size_t row_bytes = chain_row_bytes(chain);
    int taken = chain->chunk_rows_max;
    for (size_t i = 0; i < chain->n_hops; i++) {
        const sn_hop *hop = &chain->hops[i];
        taken = smaller(taken, hop->is_local ? SN_SPAN_ROWS : hop->remote.step_tokens_max);
        if (!hop->is_local && !hop->remote.prefill_depth_max) return 0;
    }
    if (!row_bytes || chain->options.routing.every_block || !chain->options.limits.prefill_depth) return 0;
    int rows = sn_chunk_rows(n, chain->n_hops, taken, row_bytes);
    const bool far = chain_is_far(chain);
    if (far && rows <= CHUNK_ROWS_MAX) rows = smaller(rows, FAR_ROWS_MAX);
    return n >= 2 * (far ? smaller(FAR_ROWS_SLOW, rows) : rows) ? rows : 0;
}

/* Rows of the chunk that begins at the position: it ends where a page ends, because a node's prefix cache gives whole
 * pages of a step. */
static int rows_to_page_end(int position, int rows) {
    int beyond = (position + rows) % SN_KV_PAGE_TOKENS;
    return beyond < rows ? rows - beyond : rows;
}

/* -- the queue --------------------------------------------------------------------------------------------------------
 */

/* The chunk's rows are what enters hop `at` now, or what leaves the last one. */
static void chunk_arrive(pipeline *p, chunk *c, size_t at) {
    sn_chain *chain = p->chain;
    c->at = at;
    c->losses = (sn_losses){0};
    if (p->inputs) return;
    chain->call.retries = chain->options.limits.max_retries; /* they count failures in a row */
    if (chain->observer)
        chain->observer(chain->observer_ctx, at < p->n_hops ? p->hops[at].first : chain->options.end, c->position, c->n,
                        c->rows);
}

/* The next rows of the input, if there are any and a chunk is free. */
static void pipeline_add_chunk(pipeline *p) {
    const sn_step *input = &p->input;
    const size_t row = (size_t)input->n_embd;
    const int position = input->position + p->n_chunked, left = input->n - p->n_chunked;
    if (!left || p->n_chunks == p->chunks_max) return;
    chunk *c = &p->chunks[p->n_chunks++];
    const int most = p->alone ? p->chunk_rows : rows_to_page_end(position, p->next_rows);
    p->next_rows = smaller(2 * p->next_rows, p->chunk_rows);
    *c = (chunk){.position = position, .n = smaller(left, most), .rows = c->rows};
    if (input->in) memcpy(c->rows, input->in + (size_t)p->n_chunked * row, (size_t)c->n * row * sizeof *c->rows);
    p->n_chunked += c->n;
    chunk_arrive(p, c, 0);
}

static bool pipeline_wants_guess(const pipeline *p) {
    const chunk *last = &p->chunks[p->n_chunks ? p->n_chunks - 1 : 0];
    if (!p->guesses || p->none_now || p->ended || p->n_chunks == p->chunks_max || p->n_chunked == p->input.n)
        return false;
    return !p->n_chunks || last->at || last->in_flight;
}

/* The next window, if the caller guesses one. */
static sn_status pipeline_add_guess(pipeline *p, sn_err *err) {
    chunk *c = &p->chunks[p->n_chunks];
    const int position = p->input.position + p->n_chunked, n_virtual = p->chain->options.adapter.n_prompt;
    sn_guess guess = {.position = position - n_virtual,
                      .n = smaller(p->chunk_rows, p->input.n - p->n_chunked),
                      .rows = c->rows,
                      .n_windows = p->n_chunks,
                      .n_ahead = p->n_chunked - p->n_done};
    sn_status status = p->guesses->guess(p->guesses->ctx, &guess, err);
    p->callers = status != SN_OK;
    p->none_now = !guess.n;
    if (status || !guess.n) return status;
    *c = (chunk){
        .position = position, .n = guess.n, .rows = c->rows, .guessed = p->n_chunks > 0, .began_us = sn_now_us()};
    p->n_chunks++;
    p->n_chunked += c->n;
    chunk_arrive(p, c, 0);
    return SN_OK;
}

/* Whether several windows may be under way: some hop is far enough to be waited for, and all take steps that wait. */
static bool chain_takes_windows(const sn_chain *chain) {
    bool remote = false;
    if (!chain->options.limits.prefill_depth || chain->options.routing.every_block) return false;
    for (size_t i = 0; i < chain->n_hops; i++) {
        if (chain->hops[i].is_local) continue;
        if (!chain->hops[i].remote.prefill_depth_max || chain->hops[i].length < 0) return false;
        remote = true;
    }
    return remote;
}

/* A round begins, with the nodes of now: how long chunks are, whether several are under way, and the first one. Those
 * behind the first are sent without knowing the hashes on which pushed hops continue, so that these know the first's.
 */
static sn_status pipeline_begin_round(pipeline *p, sn_err *err) {
    const sn_step *input = &p->input;
    const int rows = p->inputs || p->guesses ? 0 : sn_chain_chunk_rows(p->chain, input->n);
    p->chunk_rows = p->guesses ? p->guesses->rows_max : rows ? rows : SN_SPAN_ROWS;
    p->next_rows = rows ? chain_first_rows(p->chain, rows) : p->chunk_rows;
    p->alone = p->guesses ? !chain_takes_windows(p->chain)
                          : !rows || !sn_hops_know_hash(p->hops, p->n_hops, input->position + p->n_done);
    p->chunks_max =
        p->alone ? 1 : sn_min_size(2 * p->n_hops + SN_PREFILL_DEPTH_MAX, p->guesses ? WINDOWS_MAX : CHUNKS_MAX);
    p->n_before = p->n_done;
    p->n_chunked = p->n_done;
    const size_t floats = (size_t)smaller(p->chunk_rows, input->n - p->n_done) * (size_t)input->n_embd;
    free(p->memory);
    sn_status status = sn_calloc(&p->memory, p->chunks_max + 1, floats * sizeof *p->memory, err);
    if (status) return status;
    for (size_t k = 0; k < p->chunks_max; k++) p->chunks[k] = (chunk){.rows = p->memory + k * floats};
    p->spare = p->memory + p->chunks_max * floats;
    if (p->guesses) return SN_OK;
    pipeline_add_chunk(p);
    const chunk *c = &p->chunks[0];
    return p->inputs ? sn_hop_inputs(p->inputs, c->position, c->n, input->n_embd, c->rows, err) : SN_OK;
}

/* The guesses that are under way are wrong, or not needed any more. Their replies, where some come, are passed over. */
static void pipeline_give_up_guesses(pipeline *p) {
    for (size_t k = 0; k < p->n_chunks; k++) free(p->chunks[k].again);
    for (size_t k = 0; k < p->n_chunks; k++) p->chunks[k] = (chunk){.rows = p->chunks[k].rows};
    for (size_t i = 0; i < p->n_hops; i++)
        if (!p->hops[i].is_local) p->hops[i].remote.step = p->hops[i].remote.step_sent;
    p->n_chunks = 0;
    p->n_chunked = p->n_done;
    sn_chain_rewind_verifier(p->chain, p->chain->length);
}

/* Rows go to each group and come from it, and from node to node within it: each of these takes a line as long. */
static double pipeline_line_share(const pipeline *p) {
    double groups = 0, crossings = 0;
    for (size_t i = 0; i < p->n_hops; i++) {
        if (p->hops[i].is_local) continue;
        groups += !p->hops[i].pushed;
        crossings += 1 + !p->hops[i].pushed;
    }
    return crossings > 0 ? groups / crossings : 0;
}

/* A window has passed all hops: the caller learns it, and says whether what follows was guessed right. */
static sn_status pipeline_take_window(pipeline *p, const chunk *c, sn_err *err) {
    sn_chain *chain = p->chain;
    const int n_virtual = chain->options.adapter.n_prompt;
    const int64_t now_us = sn_now_us();
    sn_window window = {.position = c->position - n_virtual,
                        .n = c->n,
                        .out = c->rows,
                        .lap_us = now_us - c->began_us - c->queue_us,
                        .behind_us = now_us - p->came_us,
                        .stage_us = c->stage_us,
                        .compute_us = c->compute_us,
                        .line_share = pipeline_line_share(p),
                        .guessed = c->guessed,
                        .end = c->position + c->n - n_virtual};
    p->came_us = now_us;
    chain->length = c->position + c->n; /* the caller may rewind it */
    p->none_now = false;
    sn_status status = p->guesses->take(p->guesses->ctx, &window, err);
    chain->length = window.end + n_virtual;
    p->n_done = chain->length - p->input.position;
    p->callers = status != SN_OK;
    if (status || window.next != SN_GUESSES_RIGHT) pipeline_give_up_guesses(p);
    if (window.next == SN_GUESSES_DONE || sn_chain_has_work(chain)) p->ended = true;
    sn_chain_begin_call(chain);
    return status;
}

/* The oldest chunk has passed all hops: its output is copied, and its buffer goes to the end of the queue. */
static sn_status pipeline_finish_chunk(pipeline *p, sn_err *err) {
    sn_chain *chain = p->chain;
    const chunk through = p->chunks[0];
    const size_t row = (size_t)p->input.n_embd;
    if (p->input.out)
        memcpy(p->input.out + (size_t)p->n_done * row, through.rows, (size_t)through.n * row * sizeof(float));
    p->n_done += through.n;
    p->n_chunks--;
    memmove(p->chunks, p->chunks + 1, (p->chunks_max - 1) * sizeof *p->chunks);
    p->chunks[p->chunks_max - 1] = through;
    if (p->guesses) return pipeline_take_window(p, &through, err);
    if (p->inputs) {
        chain->replayed += (uint64_t)through.n;
    } else if (p->n_done < p->input.n) {
        if (chain->watcher) chain->watcher(chain->watcher_ctx, p->n_done);
        sn_chain_begin_call(chain); /* the limits are those of each chunk */
    }
    return SN_OK;
}

/* -- through a group --------------------------------------------------------------------------------------------------
 */

static size_t chunk_group(const pipeline *p, const chunk *c) {
    return sn_hops_group_end(p->hops, p->n_hops, c->at) - c->at;
}

/* Whether chunk k may enter its group now: after the chunks before it, and within the steps and rows that the nodes let
 * wait. The oldest chunk in flight there is being computed and does not wait. Behind it no more wait than SN_SPAN_ROWS
 * or one long chunk, also where nodes would take more: all are on the way at once, over a link that may be slow. */
static bool chunk_may_enter(const pipeline *p, size_t k) {
    const chunk *c = &p->chunks[k];
    if (c->at == p->n_hops || c->in_flight) return false;
    if (k && c[-1].at == c->at && (!c[-1].in_flight || c[-1].passed + c[-1].part.step.n < c[-1].step.n)) return false;
    if (p->hops[c->at].is_local) return true;
    int waiting = 0, rows = c->n;
    bool idle = true;
    for (size_t i = 0; i < k; i++) {
        if (p->chunks[i].at != c->at) continue;
        if (!idle) rows += p->chunks[i].n;
        waiting += !idle;
        idle = false;
    }
    if (idle) return true;
    if (rows > larger(SN_SPAN_ROWS, p->chunk_rows)) return false;
    int limit = p->chain->options.limits.prefill_depth;
    for (size_t i = c->at, j = i + chunk_group(p, c); i < j; i++) {
        const sn_hop_remote *r = &p->hops[i].remote;
        if (r->prefill_depth_max < limit) limit = r->prefill_depth_max;
        if (rows > r->step_tokens_max) return false;
    }
    return waiting < limit;
}

/* The group has computed the chunk. Outputs of rows that it ran again may be what the next hop lacks. */
static sn_status chunk_leave_group(pipeline *p, chunk *c, size_t n_hops, sn_err *err) {
    const size_t next = c->at + n_hops, row = (size_t)p->input.n_embd;
    sn_step again = {c->step.position, c->position - c->step.position, p->input.n_embd, c->step.out, NULL};
    sn_status status = SN_OK;
    if (c->again) memcpy(p->spare, again.in + (size_t)again.n * row, (size_t)c->n * row * sizeof *p->spare);
    if (c->again && next < p->n_hops) status = sn_hop_keep_inputs(&p->hops[next], &again, err);
    free(c->again);
    float *output = p->spare;
    p->spare = c->rows;
    *c = (chunk){.position = c->position,
                 .n = c->n,
                 .rows = output,
                 .guessed = c->guessed,
                 .began_us = c->began_us,
                 .queue_us = c->queue_us,
                 .stage_us = c->stage_us,
                 .compute_us = c->compute_us};
    chunk_arrive(p, c, next);
    return status;
}

static sn_status chunk_step_local(pipeline *p, chunk *c, sn_err *err) {
    const sn_step step = {c->position, c->n, p->input.n_embd, c->rows, p->spare};
    const int64_t began_us = sn_now_us();
    sn_status status = sn_hop_step_local(&p->hops[c->at], &step, err);
    const int64_t us = sn_now_us() - began_us;
    p->chain->call.deadline_us += us;
    if (us > c->stage_us) c->stage_us = us;
    c->compute_us += us;
    return status ? status : chunk_leave_group(p, c, 1, err);
}

/* The chunk enters its group as if for the first time. */
static void chunk_try_again(chunk *c) {
    free(c->again);
    c->again = NULL;
    c->step.n = c->passed = 0;
    c->part.until_us = 0;
}

/* Other hops may have taken the places of those of the chunk's group. */
static void pipeline_take_hops(pipeline *p, chunk *c) {
    p->hops = p->chain->hops;
    p->n_hops = p->chain->n_hops;
    chunk_try_again(c);
}

/* What the group is to compute: the chunk, and before it the rows since the last position whose hash all of its nodes
 * are known to have. A group of which there is none is replaced; then the step is not set yet. */
static sn_status chunk_set_step(pipeline *p, chunk *c, size_t n_hops, bool follows, sn_err *err) {
    const size_t row = (size_t)p->input.n_embd, j = c->at + n_hops;
    int from = c->position;
    if ((p->alone || p->guesses) && !p->inputs && !follows)
        from = sn_hops_known_from(&p->hops[c->at], n_hops, c->position);
    if (from < 0) {
        sn_status status = sn_chain_replace_group(p->chain, &c->at, j, c->position, err);
        pipeline_take_hops(p, c);
        return status;
    }
    c->step = (sn_step){c->position, c->n, p->input.n_embd, c->rows, NULL};
    if (from == c->position) return SN_OK;
    const size_t before = (size_t)(c->position - from), all = before + (size_t)c->n;
    sn_status status = sn_calloc(&c->again, 2 * all * row, sizeof *c->again, err);
    if (!status) status = sn_hop_inputs(&p->hops[c->at], from, (int)before, p->input.n_embd, c->again, err);
    if (!status) memcpy(c->again + before * row, c->rows, (size_t)c->n * row * sizeof *c->again);
    c->step = (sn_step){from, (int)all, p->input.n_embd, c->again, c->again + all * row};
    return status;
}

/* Sends the next part of chunk k to its group. */
static sn_status chunk_send(pipeline *p, size_t k, sn_err *err) {
    chunk *c = &p->chunks[k];
    sn_hop *hops = &p->hops[c->at];
    const size_t n_hops = chunk_group(p, c);
    size_t n_in_flight = 0;
    for (size_t i = 0; i < k; i++) n_in_flight += p->chunks[i].at == c->at;
    sn_status status = c->step.n ? SN_OK : chunk_set_step(p, c, n_hops, n_in_flight > 0, err);
    if (status || !c->step.n) return status;
    int n = c->step.n - c->passed;
    for (size_t i = 0; i < n_hops; i++) n = smaller(n, hops[i].remote.step_tokens_max);
    const float *in = c->step.in + (size_t)c->passed * (size_t)p->input.n_embd;
    const bool first = !c->part.until_us;
    c->part.step = (sn_step){c->step.position + c->passed, n, p->input.n_embd, in, NULL};
    if (first) c->part.until_us = sn_chain_attempt_until_us(p->chain);
    status = sn_hop_record(hops, &c->part.step, p->chain->hasher, err);
    if (!status)
        status = sn_hops_send(hops, n_hops, p->chain->options.link, n_in_flight, &p->peers[c->at], &c->part, err);
    if (first) c->tried_us = c->part.began_us;
    c->in_flight = !status;
    c->behind = n_in_flight > 0;
    c->failed_hop = SN_HOP_UNKNOWN;
    if (status) p->failed = c;
    return status;
}

static sn_status chunk_receive(pipeline *p, chunk *c, const sn_msg *result, sn_err *err) {
    sn_chain *chain = p->chain;
    sn_hop *hops = &p->hops[c->at];
    const size_t n_hops = chunk_group(p, c);
    sn_step *part = &c->part.step;
    part->out = (c->again ? c->step.out : p->spare) + (size_t)c->passed * (size_t)p->input.n_embd;
    for (const chunk *before = p->chunks; before < c; before++)
        if (before->at == c->at) return sn_fail(err, SN_RETRY, "steps were answered in another order");
    sn_status status = sn_hops_receive(hops, n_hops, &c->part, result, &c->failed_hop, err);
    const uint64_t put_off_us = (uint64_t)(c->part.began_us - c->tried_us); /* the node's rank shows it */
    if (!status) {
        hops[0].remote.last_queue_us += put_off_us;
        hops[0].report.queue_us += put_off_us;
        status = sn_chain_verify_step(chain, hops, n_hops, part, err);
    }
    if (status) return status;
    sn_chain_note_step(chain, hops, 0, n_hops, part->n);
    for (size_t i = 0; i < n_hops; i++) {
        const int64_t us = (int64_t)hops[i].remote.last_compute_us;
        c->queue_us += (int64_t)hops[i].remote.last_queue_us;
        c->compute_us += us;
        if (us > c->stage_us) c->stage_us = us;
    }
    c->passed += part->n;
    c->part.until_us = 0;
    return SN_OK;
}

/* Waits for the next reply of any group; not at all where guesses may come in the meantime: then it takes one that is
 * there. */
static sn_status pipeline_receive(pipeline *p, sn_err *err) {
    sn_wait waits[WINDOWS_MAX + 1];
    chunk *waiting[WINDOWS_MAX];
    sn_msg *result = NULL;
    size_t n = 0, which;
    for (size_t k = 0; k < p->n_chunks; k++) {
        chunk *c = &p->chunks[k];
        if (!c->in_flight) continue;
        if (c->behind && (!k || c[-1].at != c->at)) {
            c->behind = false;
            c->part.until_us = sn_chain_attempt_until_us(p->chain);
        }
        c->part.wait.deadline_us = c->behind ? INT64_MAX : c->part.until_us;
        waits[n] = c->part.wait;
        waiting[n++] = c;
    }
    waits[n] = (sn_wait){sn_link_new_correlation_id(), SN_MSG_STEP_REPLY, 0, .peers = NULL};
    const bool at_once = pipeline_wants_guess(p);
    sn_status status = sn_link_wait_any(p->chain->options.link, waits, n + at_once, &which, &result, err);
    p->idle = at_once && status == SN_RETRY && which == n;
    if (p->idle) return SN_OK;
    chunk *c = waiting[which];
    c->part.wait = waits[which];
    c->in_flight = false;
    if (!status) status = chunk_receive(p, c, result, err);
    sn_msg_free(&result);
    if (status) p->failed = c;
    if (status || c->passed < c->step.n) return status;
    return chunk_leave_group(p, c, chunk_group(p, c), err);
}

/* -- failures ---------------------------------------------------------------------------------------------------------
 */

/* A step of this chunk failed: what its group has in flight is given up. Where a node only said when to try again
 * (--client-steps), the steps before this one are done all the same. Returns how many chunks are still in flight. */
static size_t pipeline_give_up(pipeline *p, const chunk *failed, const sn_err *why) {
    size_t left = 0;
    for (size_t k = 0; k < p->n_chunks; k++) {
        chunk *c = &p->chunks[k];
        if (failed && c->at == failed->at && (c >= failed || !why->retry_after_ms)) c->in_flight = false;
        left += c->in_flight;
    }
    return left;
}

/* After a step failed with others in flight: the replies of the other groups are read. */
static void pipeline_settle(pipeline *p, const sn_err *why) {
    sn_err err = *why;
    while (pipeline_give_up(p, p->failed, &err)) {
        p->failed = NULL;
        (void)pipeline_receive(p, &err);
    }
}

/* Only the oldest chunk goes on, from where it is, as it is: a node may still compute it, or have done so, and knows it
 * again only by its shape. Long chunks are sent no more, since perhaps a link is too slow for them. */
static sn_status pipeline_go_alone(pipeline *p, const sn_err *why, sn_err *err) {
    sn_chain *chain = p->chain;
    sn_status status = SN_OK;
    sn_log(SN_LOG_INFO, "prefill not pipelined", "request_id=%s text=%s", chain->request_id, why->text);
    if (p->chunk_rows > CHUNK_ROWS_MAX && !why->retry_after_ms) chain->chunk_rows_max = SN_SPAN_ROWS;
    pipeline_settle(p, why);
    while (!status && p->n_chunks && p->chunks[0].at == p->n_hops) status = pipeline_finish_chunk(p, err);
    if (p->n_done > p->n_before) sn_chain_begin_call(chain); /* the nodes are there */
    p->n_chunks = sn_min_size(p->n_chunks, 1);
    p->n_chunked = p->n_done + (p->n_chunks ? p->chunks[0].n : 0);
    p->chunks_max = 1;
    p->alone = true;
    for (size_t k = 0; k < WINDOWS_MAX; k++) chunk_try_again(&p->chunks[k]);
    return status;
}

/* After a node has refused the chunk's step: if steps behind it had been sent before, the group may be at one of those.
 * Its sessions are told where to go on, which they are when such steps are done. SN_OK: they go on there; else as it
 * was, or SN_STOP, or what is known now: of a group, one behind that node may be silent. */
static sn_status chunk_bring_back(pipeline *p, chunk *c, sn_status status, sn_err *err) {
    const sn_hop *hops = &p->hops[c->at];
    const size_t n_hops = chunk_group(p, c);
    const int64_t step_us = c->part.until_us - c->part.began_us;
    const bool ahead = !p->inputs && hops[0].remote.step_sent > hops[0].remote.step + 1;
    if (status == SN_STOP || !c->part.wait.from || !ahead) return status;
    const size_t silent = n_hops > 1 ? sn_hops_find_silent(hops, n_hops, p->chain->options.link, step_us) : n_hops;
    if (silent < n_hops) {
        c->failed_hop = silent;
        return sn_fail(err, SN_RETRY, "it does not answer");
    }
    sn_err why;
    const sn_status told = sn_chain_settle_group(p->chain, c->at, c->position, &why);
    if (told == SN_STOP) *err = why;
    if (told && told != SN_STOP) return status;
    chunk_try_again(c);
    return told;
}

/* SN_OK where the pipeline goes on. What failed with several under way will show again when its chunk is alone. */
static sn_status pipeline_recover(pipeline *p, sn_status status, sn_err *err) {
    sn_chain *chain = p->chain;
    chunk *c = p->failed;
    if (status == SN_STOP || (p->alone && !c)) return status;
    if (!p->alone) {
        const sn_err why = *err;
        return pipeline_go_alone(p, &why, err);
    }
    const size_t n_hops = chunk_group(p, c);
    const sn_hop *hops = &p->hops[c->at];
    status = sn_hops_blame(hops, n_hops, chain->options.link, &c->part, &c->failed_hop, err);
    if (sn_chain_is_put_off(chain, c->part.until_us, &status, err)) return SN_OK;
    status = chunk_bring_back(p, c, status, err);
    if (!status) return SN_OK;
    if (p->inputs) {
        if (status != SN_STOP) sn_chain_note_failure(chain, hops, n_hops, c->failed_hop);
        return status;
    }
    if (status != SN_STOP)
        status = sn_chain_fail_over(chain, &c->at, c->position, c->step.position, c->failed_hop, &c->losses, err);
    pipeline_take_hops(p, c);
    return status;
}

/* The first window of a round, or of what follows after wrong guesses; none: the run is over. */
static sn_status pipeline_begin_windows(pipeline *p, sn_err *err) {
    sn_status status = SN_OK;
    if (!p->memory || (p->alone && chain_takes_windows(p->chain))) status = pipeline_begin_round(p, err);
    p->none_now = false;
    return status || !pipeline_wants_guess(p) ? status : pipeline_add_guess(p, err);
}

static sn_status pipeline_run(pipeline *p, sn_err *err) {
    sn_status status = SN_OK;
    while (!status && (p->guesses || p->n_done < p->input.n)) {
        p->failed = NULL;
        p->idle = false;
        if (!p->n_chunks) status = p->guesses ? pipeline_begin_windows(p, err) : pipeline_begin_round(p, err);
        if (p->guesses && !p->n_chunks) break;
        for (size_t k = 0; k < p->n_chunks && !status; k++) {
            chunk *c = &p->chunks[k];
            while (!status && chunk_may_enter(p, k))
                status = p->hops[c->at].is_local ? chunk_step_local(p, c, err) : chunk_send(p, k, err);
            if (k + 1 == p->n_chunks && (c->at || c->in_flight) && !p->guesses) pipeline_add_chunk(p);
        }
        while (!status && p->n_chunks && p->chunks[0].at == p->n_hops) status = pipeline_finish_chunk(p, err);
        if (!status && p->n_chunks) status = pipeline_receive(p, err);
        if (!status && p->idle) status = pipeline_add_guess(p, err);
        if (status && !p->callers) status = pipeline_recover(p, status, err);
    }
    for (size_t k = 0; k < WINDOWS_MAX; k++) free(p->chunks[k].again);
    free(p->memory);
    return status;
}

sn_status sn_chain_run(sn_chain *chain, sn_hop *hops, size_t n_hops, const sn_hop *inputs, const sn_step *step,
                       sn_err *err) {
    pipeline p = {.chain = chain, .input = *step, .inputs = inputs, .hops = hops, .n_hops = n_hops};
    return pipeline_run(&p, err);
}

sn_status sn_chain_run_ahead(sn_chain *chain, int position, int end, const sn_guesses *guesses, sn_err *err) {
    pipeline p = {.chain = chain,
                  .input = {position, end - position, chain->hp.n_embd, NULL, NULL},
                  .hops = chain->hops,
                  .n_hops = chain->n_hops,
                  .guesses = guesses};
    return pipeline_run(&p, err);
}
