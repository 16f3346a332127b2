/* How a batch runs on CUDA: the batch table, and graphs of whole batches (CUDA graphs).
 *
 * Everything that differs between two batches of one shape (addresses of pages and states, positions, lengths) lies in
 * the batch table, which batch_begin fills and uploads to a fixed address that the kernels read. Therefore all kernel
 * launches of a batch with the same graph_key, rows and sequences, and as many rows of sequences of few rows (which
 * take another kernel of attention), are the same calls with the same arguments.
 *
 * Such a batch runs eagerly the first time, is captured into a graph the second time, and is replayed as a whole from
 * then on: batch_begin reports `replayed`, batch_end launches the graph. The states are SN_CUDA_EAGER,
 * SN_CUDA_CAPTURING and SN_CUDA_REPLAYING. `graphs` keeps the last SN_CUDA_GRAPHS_MAX batches; graph_find replaces the
 * one that was unused for longest. When a buffer of the device moves, all graphs are dropped, because they contain its
 * address (sn_cuda_buffer_reserve). */
#include "base/mem.h"
#include "device/cuda/cuda_private.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* -- the table: rows, tiles, few rows, states, pages, each with its reserved capacity */

static size_t table_tiles_at(const sn_cuda *c) { return (size_t)c->rows_capacity * sizeof(sn_cuda_row); }
static size_t table_few_at(const sn_cuda *c) {
    return table_tiles_at(c) + (size_t)c->tiles_capacity * sizeof(sn_cuda_tile);
}
static size_t table_states_at(const sn_cuda *c) {
    return table_few_at(c) + sn_cuda_pad((size_t)c->rows_capacity, 2) * sizeof(int32_t);
}
static size_t table_pages_at(const sn_cuda *c) {
    return table_states_at(c) + (size_t)c->states_capacity * sizeof(sn_cuda_state);
}

/* The most tiles of a batch; each part of a split one counts. */
static size_t count_tiles(size_t n_rows, size_t n_sequences) {
    size_t whole = n_rows / SN_CUDA_TILE_ROWS + sn_min_size(n_sequences, n_rows);
    return sn_min_size(whole * SN_CUDA_TILE_PARTS, whole + SN_CUDA_MORE_TILES);
}

static bool has_few_rows(const sn_sequence *s) { return s->n_rows <= SN_CUDA_CHUNK_ROWS; }

/* A table with room for so many, and not less than this one: capacities only. */
static sn_cuda table_grown(const sn_cuda *c, size_t rows, size_t sequences, size_t pages) {
    size_t tiles = count_tiles(rows, sequences);
    return (sn_cuda){.rows_capacity = (int)rows > c->rows_capacity ? (int)rows : c->rows_capacity,
                     .tiles_capacity = (int)tiles > c->tiles_capacity ? (int)tiles : c->tiles_capacity,
                     .states_capacity = (int)sequences > c->states_capacity ? (int)sequences : c->states_capacity,
                     .pages_capacity = (int)pages > c->pages_capacity ? (int)pages : c->pages_capacity};
}

static size_t table_bytes(const sn_cuda *c) { return table_pages_at(c) + (size_t)c->pages_capacity * sizeof(void *); }

size_t sn_cuda_table_pages(const sn_device_limits *l) {
    size_t sequences = (size_t)(l->sequences ? l->sequences : l->rows);
    return sequences * ((size_t)l->context / 16 + 1);
}

size_t sn_cuda_table_bytes(const sn_cuda *cuda, size_t rows, size_t sequences, size_t pages) {
    const sn_cuda grown = table_grown(cuda, rows, sequences, pages);
    return table_bytes(&grown);
}

sn_status sn_cuda_table_reserve(sn_cuda *cuda, size_t rows, size_t sequences, size_t pages, sn_err *err) {
    if (rows > INT_MAX / 4 || sequences > INT_MAX / 64 || pages > INT_MAX / 2)
        return sn_fail(err, SN_REFUSED, "a batch of %zu rows with %zu pages is too large", rows, pages);
    const sn_cuda grown = table_grown(cuda, rows, sequences, pages);
    size_t bytes = table_bytes(&grown);
    if (bytes <= table_bytes(cuda)) return SN_OK;
    void *host = NULL;
    sn_status status = sn_calloc(&host, bytes, 1, err);
    if (!status) status = sn_cuda_buffer_reserve(cuda, &cuda->batch_table, bytes, err);
    if (status) {
        free(host);
        return status;
    }
    free(cuda->batch_table_host);
    cuda->batch_table_host = host;
    cuda->rows_capacity = grown.rows_capacity;
    cuda->tiles_capacity = grown.tiles_capacity;
    cuda->states_capacity = grown.states_capacity;
    cuda->pages_capacity = grown.pages_capacity;
    return SN_OK;
}

static size_t count_pages(const sn_kv_shape *shape, const sn_sequence *s) {
    return ((size_t)s->position + (size_t)s->n_rows + (size_t)shape->page_tokens - 1) / (size_t)shape->page_tokens;
}

static bool sequence_fits(const sn_sequence *s, int n_rows) {
    return s->position >= 0 && s->n_rows >= 0 && s->first_row >= 0 && s->first_row <= n_rows &&
           s->n_rows <= n_rows - s->first_row && s->position <= INT_MAX / 2 - s->n_rows;
}

static sn_status batch_check(const sn_kv_shape *shape, int n_rows, int n_sequences, const sn_sequence *sequences,
                             size_t *pages, sn_err *err) {
    *pages = 0;
    if (n_rows < 0 || n_sequences < 0 || shape->page_tokens <= 0 || shape->n_kv_heads <= 0 || shape->head_dim <= 0 ||
        sn_kv_head_dim_max(shape) > (shape->latent ? SN_LATENT_DIM_MAX : SN_CUDA_HEAD_DIM_MAX) || shape->latent < 0 ||
        shape->latent > shape->head_dim)
        return sn_fail(err, SN_REFUSED,
                       "a batch of %d rows with %d heads of %d and %d positions per page is not possible", n_rows,
                       shape->n_kv_heads, sn_kv_head_dim_max(shape), shape->page_tokens);
    int64_t rows = 0;
    for (int i = 0; i < n_sequences; i++) {
        if (!sequence_fits(&sequences[i], n_rows))
            return sn_fail(err, SN_REFUSED, "rows %d to %d of sequence %d do not lie within the %d of the batch",
                           sequences[i].first_row, sequences[i].first_row + sequences[i].n_rows, i, n_rows);
        rows += sequences[i].n_rows;
        *pages += count_pages(shape, &sequences[i]);
    }
    if (rows != n_rows)
        return sn_fail(err, SN_REFUSED, "the sequences of a batch of %d rows have %lld", n_rows, (long long)rows);
    return SN_OK;
}

/* -- the tiles: those with a long context are split into parts, as long as there is room for the partial results */

static int tile_rows(const sn_sequence *s, int first) {
    return s->n_rows - first < SN_CUDA_TILE_ROWS ? s->n_rows - first : SN_CUDA_TILE_ROWS;
}

static int tile_parts(const sn_sequence *s, int first, int share) {
    int parts = (s->position + first + tile_rows(s, first) - 1) / share + 1;
    return parts < SN_CUDA_TILE_PARTS ? parts : SN_CUDA_TILE_PARTS;
}

/* The fewest positions of a part for which all parts have room. */
static int tile_share(int n_rows, int n_sequences, const sn_sequence *sequences) {
    for (int share = 256; share < 1 << 30; share *= 2) {
        int room = sn_cuda_tile_room(n_rows), more = SN_CUDA_MORE_TILES;
        for (int i = 0; i < n_sequences; i++)
            for (int r = 0; r < sequences[i].n_rows && !has_few_rows(&sequences[i]) && room >= 0;
                 r += SN_CUDA_TILE_ROWS) {
                int parts = tile_parts(&sequences[i], r, share);
                if (parts > 1) room -= tile_rows(&sequences[i], r) * parts;
                more -= parts - 1;
            }
        if (room >= 0 && more >= 0) return share;
    }
    return 1 << 30; /* more than a position: nothing is split */
}

/* Fills in all n_tiles. */
static void tiles_fill(sn_cuda_tile *tiles, int n_tiles, int n_rows, int n_sequences, const sn_sequence *sequences) {
    int n = 0, n_parts = 0, share = tile_share(n_rows, n_sequences, sequences);
    for (int i = 0; i < n_sequences; i++)
        for (int r = 0; r < sequences[i].n_rows && !has_few_rows(&sequences[i]); r += SN_CUDA_TILE_ROWS) {
            int rows = tile_rows(&sequences[i], r), parts = tile_parts(&sequences[i], r, share);
            for (int p = 0; p < parts; p++)
                tiles[n++] = (sn_cuda_tile){sequences[i].first_row + r, rows, n_parts, (int16_t)p, (int16_t)parts};
            if (parts > 1) n_parts += rows * parts;
        }
    while (n < n_tiles) tiles[n++] = (sn_cuda_tile){0, 0, 0, 0, 1};
}

/* Fills the host's copy. Returns false when two sequences have the same row. */
static bool table_fill(sn_cuda *cuda, const sn_kv_shape *shape, int n_rows, int n_sequences,
                       const sn_sequence *sequences) {
    sn_cuda_row *rows = cuda->batch_table_host;
    sn_cuda_tile *tiles = (sn_cuda_tile *)((char *)cuda->batch_table_host + table_tiles_at(cuda));
    int32_t *few = (int32_t *)((char *)cuda->batch_table_host + table_few_at(cuda));
    sn_cuda_state *states = (sn_cuda_state *)((char *)cuda->batch_table_host + table_states_at(cuda));
    void **pages = (void **)((char *)cuda->batch_table_host + table_pages_at(cuda));
    int n_pages = 0, n_few = 0;
    for (int i = 0; i < n_rows; i++) rows[i] = (sn_cuda_row){0, -1};
    for (int i = 0; i < n_sequences; i++) {
        const sn_sequence *s = &sequences[i];
        int own = s->n_rows ? (int)count_pages(shape, s) : 0;
        states[i] = (sn_cuda_state){
            s->state.before, s->state.after, s->state.snapshot, s->state.snapshot_rows, s->first_row, s->n_rows, 0};
        for (int r = 0; r < s->n_rows; r++) rows[s->first_row + r] = (sn_cuda_row){n_pages, s->position + r};
        for (int r = 0; r < s->n_rows && has_few_rows(s); r++) few[n_few++] = s->first_row + r;
        if (own) memcpy(pages + n_pages, s->pages, (size_t)own * sizeof *pages);
        n_pages += own;
    }
    size_t n_tiles = count_tiles((size_t)(n_rows - n_few), (size_t)n_sequences);
    tiles_fill(tiles, (int)n_tiles, n_rows, n_sequences, sequences);
    for (int i = 0; i < n_rows; i++)
        if (rows[i].position < 0) return false;
    return true;
}

sn_status sn_cuda_table_upload(sn_cuda *cuda, const sn_kv_shape *shape, int n_rows, int n_sequences,
                               const sn_sequence *sequences, sn_err *err) {
    size_t pages;
    sn_status status = batch_check(shape, n_rows, n_sequences, sequences, &pages, err);
    if (status || !n_rows) return status;
    if (pages > (size_t)cuda->pages_capacity ||
        sn_cuda_table_bytes(cuda, (size_t)n_rows, (size_t)n_sequences, pages) > table_bytes(cuda))
        return sn_fail(err, SN_REFUSED, "%s was prepared for smaller batches than one of %d rows with %zu pages",
                       cuda->description, n_rows, pages);
    if (!table_fill(cuda, shape, n_rows, n_sequences, sequences))
        return sn_fail(err, SN_REFUSED, "two sequences of a batch have the same row");
    return sn_cuda_upload_staged(cuda, cuda->batch_table.at, cuda->batch_table_host,
                                 table_pages_at(cuda) + pages * sizeof(void *), err);
}

sn_cuda_kv sn_cuda_kv_of(const sn_cuda *cuda, const sn_kv_shape *shape, int block) {
    const sn_kv_shape own = sn_kv_block_shape(shape, block);
    int padded = (int)sn_cuda_pad((size_t)own.head_dim, 4);
    size_t head_floats = sn_cuda_kv_head_bytes(&own) / sizeof(float);
    char *table = cuda->batch_table.at;
    return (sn_cuda_kv){own.n_kv_heads,
                        own.head_dim,
                        padded,
                        shape->page_tokens,
                        sn_kv_value_dim(&own),
                        sn_kv_block_offset(shape, block, sn_cuda_kv_block_bytes) / sizeof(float),
                        head_floats,
                        (const sn_cuda_row *)table,
                        (const int32_t *)(table + table_few_at(cuda)),
                        (const sn_cuda_tile *)(table + table_tiles_at(cuda)),
                        (float *const *)(table + table_pages_at(cuda)),
                        own.latent,
                        own.dtype,
                        own.latent || own.keys_only};
}

const sn_cuda_state *sn_cuda_states_of(const sn_cuda *cuda) {
    return (const sn_cuda_state *)((const char *)cuda->batch_table.at + table_states_at(cuda));
}

/* -- graphs */

static void graph_reset(sn_cuda *cuda, sn_cuda_graph *cached) {
    if (cached->exec) cudaGraphExecDestroy(cached->exec); /* CUDA destroys a running graph when it has finished */
    sn_device_give_memory(&cuda->base, cached->bytes);
    *cached = (sn_cuda_graph){0};
}

void sn_cuda_graphs_clear(sn_cuda *cuda) {
    for (int i = 0; i < SN_CUDA_GRAPHS_MAX; i++) graph_reset(cuda, &cuda->graphs[i]);
    cuda->graph = NULL;
}

/* Counts the memory of a graph before it is made executable; graphs that were not used for long make room. */
static bool graph_take_memory(sn_cuda *cuda, sn_cuda_graph *cached, cudaGraph_t graph) {
    size_t nodes = 0, bytes;
    if (cudaGraphGetNodes(graph, NULL, &nodes) != cudaSuccess || !sn_mul(nodes, SN_CUDA_NODE_BYTES, &bytes))
        return false;
    while (bytes > sn_device_memory_left(&cuda->base)) {
        sn_cuda_graph *oldest = NULL;
        for (int i = 0; i < SN_CUDA_GRAPHS_MAX; i++) {
            sn_cuda_graph *other = &cuda->graphs[i];
            if (other->exec && (!oldest || other->last_used < oldest->last_used)) oldest = other;
        }
        if (!oldest || cuda->n_batches - oldest->last_used < SN_CUDA_GRAPHS_MAX) return false;
        graph_reset(cuda, oldest);
    }
    cached->bytes = bytes;
    return !sn_device_take_memory(&cuda->base, bytes, NULL);
}

/* The entry of this batch, or a new one in the place of the entry unused for longest. *seen_before: the entry existed.
 */
static sn_cuda_graph *graph_find(sn_cuda *cuda, const sn_batch *batch, bool *seen_before) {
    sn_cuda_graph *oldest = &cuda->graphs[0];
    *seen_before = true;
    for (int i = 0; i < SN_CUDA_GRAPHS_MAX; i++) {
        sn_cuda_graph *r = &cuda->graphs[i];
        if (r->key == batch->graph_key && r->n_rows == batch->n_rows && r->n_sequences == batch->n_sequences &&
            r->n_few == cuda->n_few)
            return r;
        if (r->last_used < oldest->last_used) oldest = r;
    }
    graph_reset(cuda, oldest);
    *seen_before = false;
    oldest->key = batch->graph_key;
    oldest->n_rows = batch->n_rows;
    oldest->n_sequences = batch->n_sequences;
    oldest->n_few = cuda->n_few;
    return oldest;
}

/* Ends an open capture and drops it. */
void sn_cuda_batch_abort(sn_cuda *cuda) {
    cudaGraph_t graph = NULL;
    if (cuda->state == SN_CUDA_CAPTURING) {
        if (cudaStreamEndCapture(cuda->work, &graph) == cudaSuccess && graph) cudaGraphDestroy(graph);
        cudaGetLastError(); /* a failed capture is not an error of the device */
    }
    cuda->state = SN_CUDA_NO_BATCH;
    cuda->graph = NULL;
}

sn_status sn_cuda_batch_begin(sn_device *d, const sn_batch *batch, bool *replayed, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    *replayed = false;
    if (cuda->state != SN_CUDA_NO_BATCH) sn_cuda_batch_abort(cuda); /* the last batch ended with an error */
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status)
        status = sn_cuda_table_upload(cuda, batch->shape, batch->n_rows, batch->n_sequences, batch->sequences, err);
    if (status) return status;
    cuda->shape = *batch->shape;
    cuda->n_rows = batch->n_rows;
    cuda->n_sequences = batch->n_sequences;
    cuda->sequences = batch->sequences;
    cuda->n_few = 0;
    for (int i = 0; i < batch->n_sequences; i++)
        if (has_few_rows(&batch->sequences[i])) cuda->n_few += batch->sequences[i].n_rows;
    cuda->n_tiles = (int)count_tiles((size_t)(batch->n_rows - cuda->n_few), (size_t)batch->n_sequences);
    cuda->capturable = batch->graph_key != 0 && batch->n_rows > 0;
    cuda->batch_failed = false;
    cuda->state = SN_CUDA_EAGER;
    cuda->graph = NULL;
    if (!cuda->capturable) return SN_OK;
    bool seen_before;
    cuda->graph = graph_find(cuda, batch, &seen_before);
    cuda->graph->last_used = ++cuda->n_batches;
    if (cuda->graph->exec) {
        cuda->state = SN_CUDA_REPLAYING;
        *replayed = true;
    } else if (seen_before && !cuda->graph->uncapturable) {
        cuda->state = SN_CUDA_CAPTURING;
        status = sn_cuda_check(cuda, cudaStreamBeginCapture(cuda->work, cudaStreamCaptureModeThreadLocal),
                               "beginning a capture", err);
        if (status) cuda->state = SN_CUDA_NO_BATCH;
    }
    return status;
}

/* Makes the capture an executable graph. A batch that CUDA cannot capture runs eagerly from the next time on; this time
 * it did not run. */
static sn_status graph_capture_end(sn_cuda *cuda, sn_err *err) {
    cudaGraph_t graph = NULL;
    sn_cuda_graph *cached = cuda->graph;
    cudaError_t error = cudaStreamEndCapture(cuda->work, &graph);
    if (error == cudaSuccess && !cuda->batch_failed)
        error = graph_take_memory(cuda, cached, graph) ? cudaGraphInstantiate(&cached->exec, graph, 0)
                                                       : cudaErrorMemoryAllocation;
    if (graph) cudaGraphDestroy(graph);
    if (error != cudaSuccess) cudaGetLastError(); /* not an error of the device: the next launch must not report it */
    if (cuda->batch_failed) return sn_fail(err, SN_RETRY, "%s: an operation of the batch failed", cuda->description);
    if (error == cudaSuccess) {
        cuda->base.graphs_captured++;
        return SN_OK;
    }
    sn_device_give_memory(&cuda->base, cached->bytes);
    cached->exec = NULL;
    cached->bytes = 0;
    cached->uncapturable = true;
    return sn_fail(err, SN_RETRY, "%s: the batch could not be captured (%s): it was not run, try again",
                   cuda->description, cudaGetErrorString(error));
}

sn_status sn_cuda_batch_end(sn_device *d, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_cuda_batch_state state = cuda->state;
    sn_cuda_graph *cached = cuda->graph;
    sn_status status = sn_cuda_enter(cuda, err);
    if (status) {
        sn_cuda_batch_abort(cuda);
        return status;
    }
    if (state == SN_CUDA_NO_BATCH)
        return sn_fail(err, SN_REFUSED, "%s: batch_end without batch_begin", cuda->description);
    if (state == SN_CUDA_CAPTURING) status = graph_capture_end(cuda, err);
    cuda->state = SN_CUDA_NO_BATCH;
    cuda->graph = NULL;
    if (status || state == SN_CUDA_EAGER) return status;
    cuda->launches_since_event = SN_CUDA_LAUNCHES_PER_EVENT; /* a graph counts as many kernels */
    return sn_cuda_check_launch(cuda, cudaGraphLaunch(cached->exec, cuda->work), "launching a graph", err);
}
