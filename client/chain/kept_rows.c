#include "client/chain/kept_rows.h"

#include "base/mem.h"
#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

void sn_kept_rows_fini(sn_kept_rows *rows) {
    free(rows->data);
    *rows = (sn_kept_rows){0};
}

static size_t offset(const sn_kept_rows *rows, int position) {
    return (size_t)(position - rows->from) * rows->row_bytes;
}

static sn_status kept_rows_reserve(sn_kept_rows *rows, int n, sn_err *err) {
    size_t bytes, capacity = (size_t)n + (size_t)n / 4 + 16;
    if (n <= rows->capacity) return SN_OK;
    uint8_t *data = sn_mul(capacity, rows->row_bytes, &bytes) ? realloc(rows->data, bytes) : NULL;
    if (!data) return sn_fail(err, SN_STOP, "out of memory to keep %d tokens for a replay", n);
    rows->data = data;
    rows->capacity = (int)capacity;
    return SN_OK;
}

sn_status sn_kept_rows_put(sn_kept_rows *rows, sn_dtype dtype, int position, int n, int n_embd, const float *in,
                           sn_err *err) {
    rows->dtype = dtype;
    rows->row_bytes = (size_t)n_embd / sn_dtype_block(dtype) * sn_dtype_bytes(dtype);
    if (position < rows->from || position > rows->end) rows->from = rows->end = position; /* the first ones */
    sn_status status = kept_rows_reserve(rows, position + n - rows->from, err);
    if (status) return status;
    sn_wire_encode(dtype, in, (size_t)n * (size_t)n_embd, rows->data + offset(rows, position));
    if (rows->end < position + n) rows->end = position + n;
    return SN_OK;
}

bool sn_kept_rows_have(const sn_kept_rows *rows, int position, int n) {
    return n <= 0 || (position >= rows->from && rows->end - position >= n);
}

void sn_kept_rows_get(const sn_kept_rows *rows, int position, int n, int n_embd, float *out) {
    sn_wire_decode(rows->dtype, rows->data + offset(rows, position), (size_t)n * (size_t)n_embd, out);
}

void sn_kept_rows_limit(sn_kept_rows *rows, size_t most, int least) {
    const size_t n = rows->end > rows->from ? (size_t)(rows->end - rows->from) : 0;
    if (n * rows->row_bytes <= most || n <= 2 * (size_t)least) return;
    size_t left = most / rows->row_bytes / 4 * 3; /* a quarter of it is free again: it is not moved for each token */
    if (left < (size_t)least) left = (size_t)least;
    memmove(rows->data, rows->data + (n - left) * rows->row_bytes, left * rows->row_bytes);
    rows->from = rows->end - (int)left;
    uint8_t *smaller = realloc(rows->data, (left + left / 2) * rows->row_bytes);
    if (!smaller) return;
    rows->data = smaller;
    rows->capacity = (int)(left + left / 2);
}
