/* Passes: the table of whose rows go through, and records of whole passes (CUDA graphs).
 *
 * Everything that differs between two passes of one shape - page addresses, positions, lengths - lies in the table, at
 * a fixed place of the device's memory that the kernels read. A named pass is run as it comes the first time, recorded
 * the second time, and from then on launched as a whole. */
#include "base/mem.h"
#include "device/cuda/inside.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* -- the table: rows, tiles, pages, each with room for as many as were told */

static size_t tiles_at(const sn_cuda *c) { return (size_t)c->rows_room * sizeof(sn_cuda_row); }
static size_t pages_at(const sn_cuda *c) { return tiles_at(c) + (size_t)c->tiles_room * sizeof(sn_cuda_tile); }

static int tiles_of(int n_rows, int n_sequences) {
    return n_rows / SN_CUDA_TILE_ROWS + (n_sequences < n_rows ? n_sequences : n_rows);
}

sn_status sn_cuda_table_room(sn_cuda *cuda, size_t rows, size_t sequences, size_t pages, sn_err *err) {
    size_t tiles = rows / SN_CUDA_TILE_ROWS + sn_min_size(sequences, rows);
    if (rows > INT_MAX / 4 || pages > INT_MAX / 2)
        return sn_fail(err, SN_REFUSED, "a pass of %zu rows over %zu pages is too large", rows, pages);
    if ((int)rows <= cuda->rows_room && (int)tiles <= cuda->tiles_room && (int)pages <= cuda->pages_room) return SN_OK;
    sn_cuda grown = {.rows_room = (int)rows > cuda->rows_room ? (int)rows : cuda->rows_room,
                     .tiles_room = (int)tiles > cuda->tiles_room ? (int)tiles : cuda->tiles_room,
                     .pages_room = (int)pages > cuda->pages_room ? (int)(pages + pages / 2) : cuda->pages_room};
    size_t bytes = pages_at(&grown) + (size_t)grown.pages_room * sizeof(void *);
    void *host = NULL;
    sn_status status = sn_calloc(&host, bytes, 1, err);
    if (!status) status = sn_cuda_make_room(cuda, &cuda->table, bytes, err);
    if (status) {
        free(host);
        if (!cuda->table.at) cuda->rows_room = cuda->tiles_room = cuda->pages_room = 0;
        return status;
    }
    free(cuda->table_host);
    cuda->table_host = host;
    cuda->rows_room = grown.rows_room;
    cuda->tiles_room = grown.tiles_room;
    cuda->pages_room = grown.pages_room;
    return SN_OK;
}

static size_t pages_of(const sn_kv_shape *shape, const sn_sequence *s) {
    return ((size_t)s->position + (size_t)s->n_rows + (size_t)shape->page_tokens - 1) / (size_t)shape->page_tokens;
}

static bool sequence_fits(const sn_sequence *s, int n_rows) {
    return s->position >= 0 && s->n_rows >= 0 && s->first_row >= 0 && s->first_row <= n_rows &&
           s->n_rows <= n_rows - s->first_row && s->position <= INT_MAX / 2 - s->n_rows;
}

static sn_status check_pass(const sn_kv_shape *shape, int n_rows, int n_sequences, const sn_sequence *sequences,
                            size_t *pages, sn_err *err) {
    *pages = 0;
    if (n_rows < 0 || n_sequences < 0 || shape->page_tokens <= 0 || shape->n_kv_heads <= 0 || shape->head_dim <= 0 ||
        shape->head_dim > SN_CUDA_HEAD_DIM_MAX)
        return sn_fail(err, SN_REFUSED, "a pass of %d rows with %d heads of %d, %d positions a page, is not possible",
                       n_rows, shape->n_kv_heads, shape->head_dim, shape->page_tokens);
    int64_t rows = 0;
    for (int i = 0; i < n_sequences; i++) {
        if (!sequence_fits(&sequences[i], n_rows))
            return sn_fail(err, SN_REFUSED, "rows %d to %d of sequence %d do not lie within the pass's %d",
                           sequences[i].first_row, sequences[i].first_row + sequences[i].n_rows, i, n_rows);
        rows += sequences[i].n_rows;
        *pages += pages_of(shape, &sequences[i]);
    }
    if (rows != n_rows)
        return sn_fail(err, SN_REFUSED, "the sequences of a pass of %d rows have %lld", n_rows, (long long)rows);
    return SN_OK;
}

/* Fills the host's copy. False when two sequences claim a row. */
static bool fill_table(sn_cuda *cuda, const sn_kv_shape *shape, int n_rows, int n_sequences,
                       const sn_sequence *sequences) {
    sn_cuda_row *rows = cuda->table_host;
    sn_cuda_tile *tiles = (sn_cuda_tile *)((char *)cuda->table_host + tiles_at(cuda));
    void **pages = (void **)((char *)cuda->table_host + pages_at(cuda));
    int n_tiles = 0, n_pages = 0;
    for (int i = 0; i < n_rows; i++) rows[i] = (sn_cuda_row){0, -1};
    for (int i = 0; i < n_sequences; i++) {
        const sn_sequence *s = &sequences[i];
        int own = s->n_rows ? (int)pages_of(shape, s) : 0;
        for (int r = 0; r < s->n_rows; r++) rows[s->first_row + r] = (sn_cuda_row){n_pages, s->position + r};
        for (int r = 0; r < s->n_rows; r += SN_CUDA_TILE_ROWS)
            tiles[n_tiles++] =
                (sn_cuda_tile){s->first_row + r, s->n_rows - r < SN_CUDA_TILE_ROWS ? s->n_rows - r : SN_CUDA_TILE_ROWS};
        if (own) memcpy(pages + n_pages, s->pages, (size_t)own * sizeof *pages);
        n_pages += own;
    }
    for (int all = tiles_of(n_rows, n_sequences); n_tiles < all;) tiles[n_tiles++] = (sn_cuda_tile){0, 0};
    for (int i = 0; i < n_rows; i++)
        if (rows[i].position < 0) return false;
    return true;
}

sn_status sn_cuda_table_send(sn_cuda *cuda, const sn_kv_shape *shape, int n_rows, int n_sequences,
                             const sn_sequence *sequences, sn_err *err) {
    size_t pages;
    sn_status status = check_pass(shape, n_rows, n_sequences, sequences, &pages, err);
    if (!status) status = sn_cuda_table_room(cuda, (size_t)n_rows, (size_t)n_sequences, pages, err);
    if (status || !n_rows) return status;
    if (!fill_table(cuda, shape, n_rows, n_sequences, sequences))
        return sn_fail(err, SN_REFUSED, "two sequences of a pass claim the same row");
    return sn_cuda_put(cuda, cuda->table.at, cuda->table_host, pages_at(cuda) + pages * sizeof(void *), err);
}

sn_cuda_past sn_cuda_past_of(const sn_cuda *cuda, const sn_kv_shape *shape, int block) {
    int padded = (int)sn_cuda_pad((size_t)shape->head_dim, 4);
    size_t block_floats = (size_t)shape->n_kv_heads * 2 * (size_t)shape->page_tokens * (size_t)padded;
    char *table = cuda->table.at;
    return (sn_cuda_past){shape->n_kv_heads,
                          shape->head_dim,
                          padded,
                          shape->page_tokens,
                          (size_t)block * block_floats,
                          (const sn_cuda_row *)table,
                          (const sn_cuda_tile *)(table + tiles_at(cuda)),
                          (float *const *)(table + pages_at(cuda))};
}

/* -- records */

static void forget(sn_cuda_record *record) {
    if (record->exec) cudaGraphExecDestroy(record->exec); /* one that runs is destroyed when it is done */
    *record = (sn_cuda_record){0};
}

void sn_cuda_forget_records(sn_cuda *cuda) {
    for (int i = 0; i < SN_CUDA_RECORDS; i++) forget(&cuda->records[i]);
    cuda->record = NULL;
}

/* The record of such a pass, or a new one in place of that which was not used for longest; *seen: it came by before. */
static sn_cuda_record *find_record(sn_cuda *cuda, const sn_pass *pass, bool *seen) {
    sn_cuda_record *oldest = &cuda->records[0];
    *seen = true;
    for (int i = 0; i < SN_CUDA_RECORDS; i++) {
        sn_cuda_record *r = &cuda->records[i];
        if (r->graph == pass->graph && r->n_rows == pass->n_rows && r->n_sequences == pass->n_sequences) return r;
        if (r->used < oldest->used) oldest = r;
    }
    forget(oldest);
    *seen = false;
    oldest->graph = pass->graph;
    oldest->n_rows = pass->n_rows;
    oldest->n_sequences = pass->n_sequences;
    return oldest;
}

/* Ends what is being recorded and throws it away. */
void sn_cuda_abandon(sn_cuda *cuda) {
    cudaGraph_t graph = NULL;
    if (cuda->state == SN_CUDA_RECORDING) {
        if (cudaStreamEndCapture(cuda->work, &graph) == cudaSuccess && graph) cudaGraphDestroy(graph);
        cudaGetLastError(); /* a capture that failed is no fault of the device */
    }
    cuda->state = SN_CUDA_NO_PASS;
    cuda->record = NULL;
}

sn_status sn_cuda_pass_begin(sn_device *d, const sn_pass *pass, bool *recorded, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    *recorded = false;
    if (cuda->state != SN_CUDA_NO_PASS) sn_cuda_abandon(cuda); /* the last one ended with an error */
    sn_status status = sn_cuda_enter(cuda, err);
    if (!status) status = sn_cuda_table_send(cuda, pass->shape, pass->n_rows, pass->n_sequences, pass->sequences, err);
    if (status) return status;
    cuda->shape = *pass->shape;
    cuda->n_rows = pass->n_rows;
    cuda->n_sequences = pass->n_sequences;
    cuda->n_tiles = tiles_of(pass->n_rows, pass->n_sequences);
    cuda->named = pass->graph != 0 && pass->n_rows > 0;
    cuda->spoilt = false;
    cuda->state = SN_CUDA_EAGER;
    cuda->record = NULL;
    if (!cuda->named) return SN_OK;
    bool seen;
    cuda->record = find_record(cuda, pass, &seen);
    cuda->record->used = ++cuda->passes;
    if (cuda->record->exec) {
        cuda->state = SN_CUDA_REPLAYING;
        *recorded = true;
    } else if (seen && !cuda->record->refused) {
        status = sn_cuda_check(cuda, cudaStreamBeginCapture(cuda->work, cudaStreamCaptureModeThreadLocal),
                               "beginning a record", err);
        if (!status) cuda->state = SN_CUDA_RECORDING;
    }
    return status;
}

/* What was recorded becomes something that can be launched. A pass that CUDA cannot record is run as it is from then
 * on; this time it was not run. */
static sn_status end_recording(sn_cuda *cuda, sn_err *err) {
    cudaGraph_t graph = NULL;
    sn_cuda_record *record = cuda->record;
    cudaError_t error = cudaStreamEndCapture(cuda->work, &graph);
    if (error == cudaSuccess && !cuda->spoilt) error = cudaGraphInstantiate(&record->exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (error != cudaSuccess) cudaGetLastError(); /* no fault of the device: nothing after this is blamed for it */
    if (cuda->spoilt) return sn_fail(err, SN_RETRY, "%s: an operation of the pass failed", cuda->description);
    if (error == cudaSuccess) {
        cuda->base.recorded++;
        return SN_OK;
    }
    record->exec = NULL;
    record->refused = true;
    return sn_fail(err, SN_RETRY, "%s: the pass could not be recorded (%s): it was not run, try again",
                   cuda->description, cudaGetErrorString(error));
}

sn_status sn_cuda_pass_end(sn_device *d, sn_err *err) {
    sn_cuda *cuda = (sn_cuda *)d;
    sn_cuda_pass_state state = cuda->state;
    sn_cuda_record *record = cuda->record;
    sn_status status = sn_cuda_enter(cuda, err);
    if (status) {
        sn_cuda_abandon(cuda);
        return status;
    }
    if (state == SN_CUDA_NO_PASS) return sn_fail(err, SN_REFUSED, "%s: no pass was begun", cuda->description);
    if (state == SN_CUDA_RECORDING) status = end_recording(cuda, err);
    cuda->state = SN_CUDA_NO_PASS;
    cuda->record = NULL;
    if (status || state == SN_CUDA_EAGER) return status;
    cuda->since_fence = SN_CUDA_FENCE_EVERY; /* a launch is many kernels */
    return sn_cuda_queued(cuda, cudaGraphLaunch(record->exec, cuda->work), "launching a record", err);
}
