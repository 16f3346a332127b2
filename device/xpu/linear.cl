/* Products with weight matrices, in float32, compiled once per form of weight (weights.c describes the forms and packs
 * them; planes.clh names the macros of a form).
 *
 * Rows are padded with zeros to a multiple of 8 elements; groups have 32 elements, superblocks 256. OpenCL C 1.2
 * without extensions and subgroups, so that any SPIR-V consumer accepts it.
 *
 * Sums are in float32, in an order that depends on the shape alone: the same bits from run to run. */
#include "device/xpu/planes.clh"

/* The same elements of a row of x; 0 beyond its end. */
static inline float8 inputs(__global const float *row, uint step, uint cols) {
    uint k = 8 * step;
    if (k + 8 <= cols) return vload8(0, row + k);
    float v[8];
    for (uint i = 0; i < 8; i++) v[i] = k + i < cols ? row[k + i] : 0.0f;
    return vload8(0, v);
}

static inline float dot8(float8 a, float8 b) {
    float8 p = a * b;
    return ((p.s0 + p.s1) + (p.s2 + p.s3)) + ((p.s4 + p.s5) + (p.s6 + p.s7));
}

/* Adds to sums the lane's share of `count` rows of x (from) times a row of the weight: 8 elements at a time. */
static inline void add_steps(planes m, uint row, uint cols, __global const float *x, uint count, const uint *from,
                             float *sums) {
    for (uint step = get_local_id(0); row < m.rows && step < m.steps; step += LANES) {
        float8 part = weights(m, row, step);
        for (uint r = 0; r < count; r++) sums[r] += dot8(part, inputs(x + (size_t)from[r] * cols, step, cols));
    }
}

/* Few rows of x: 16 lanes read a row of the weight contiguously, so that it is read once, in order. A group computes 4
 * such outputs; `count` rows of x share what is read. */
#define MATVEC(base, count)                                                                                            \
    __kernel __attribute__((reqd_work_group_size(LANES, OUTPUTS, 1))) void NAME(base, SUFFIX)(                         \
        MATRICES, uint cols, __global const float *x, uint n) {                                                        \
        __local float partial[OUTPUTS * count * LANES];                                                                \
        planes m = matrix_of_group(MATRIX_ARGS, cols, OUTPUTS);                                                        \
        uint lane = get_local_id(0), row = m.first + get_local_id(1), first = get_group_id(1) * count;                 \
        uint from[count];                                                                                              \
        float sums[count];                                                                                             \
        for (uint r = 0; r < count; r++)                                                                               \
            sums[r] = 0.0f, from[r] = min(first + r, n - 1); /* beyond the last row: computed, but not written */      \
        add_steps(m, row, cols, x, count, from, sums);                                                                 \
        join_lanes(m, row, first + lane, first + lane < n, count, sums, partial);                                      \
    }

MATVEC(linear1, 1)
MATVEC(linear4, 4)
MATVEC(linear8, 8)

#define TILE  64 /* outputs of a group */
#define DEPTH 32 /* elements of both in local memory at a time */

/* Many rows of x: a group of 8 x lines items computes lines * count rows of 64 outputs, each item count x 8. A weight
 * is decoded once for all rows of the group. */
#define MATMUL(base, count, lines)                                                                                     \
    __kernel __attribute__((reqd_work_group_size(8, lines, 1))) void NAME(base, SUFFIX)(                               \
        MATRICES, uint cols, __global const float *x, uint n) {                                                        \
        __local float wt[DEPTH][TILE + 1], xt[DEPTH][lines * count + 1];                                               \
        planes m = matrix_of_group(MATRIX_ARGS, cols, TILE);                                                           \
        uint lx = get_local_id(0), ly = get_local_id(1), item = ly * 8 + lx, first = get_group_id(1) * lines * count;  \
        float8 sums[count];                                                                                            \
        for (uint i = 0; i < count; i++) sums[i] = 0.0f;                                                               \
        for (uint base_step = 0; base_step < m.steps; base_step += DEPTH / 8) {                                        \
            _Pragma("nounroll") for (uint part = item; part < TILE * (DEPTH / 8);                                      \
                                     part += 8 * lines) { /* 8 elements of a line */                                   \
                uint line = part / (DEPTH / 8), step = part % (DEPTH / 8);                                             \
                bool within = base_step + step < m.steps;                                                              \
                float8 v = 0.0f;                                                                                       \
                if (within && m.first + line < m.rows) v = weights(m, m.first + line, base_step + step);               \
                STORE_COLUMN(wt, 8 * step, line, v);                                                                   \
                if (line >= lines * count) continue;                                                                   \
                v = 0.0f;                                                                                              \
                if (within && first + line < n) v = inputs(x + (size_t)(first + line) * cols, base_step + step, cols); \
                STORE_COLUMN(xt, 8 * step, line, v);                                                                   \
            }                                                                                                          \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                              \
            _Pragma("nounroll") for (uint k = 0; k < DEPTH; k++) {                                                     \
                float8 w = vload8(lx, wt[k]);                                                                          \
                for (uint i = 0; i < count; i++) sums[i] += xt[k][count * ly + i] * w;                                 \
            }                                                                                                          \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                              \
        }                                                                                                              \
        uint out = m.first + 8 * lx;                                                                                   \
        for (uint i = 0; i < count && first + count * ly + i < n; i++)                                                 \
            store_outputs(m, first + count * ly + i, out, sums[i]);                                                    \
    }

#define STORE_COLUMN(to, k, line, v)                                                                                   \
    (to[k][line] = v.s0, to[(k) + 1][line] = v.s1, to[(k) + 2][line] = v.s2, to[(k) + 3][line] = v.s3,                 \
     to[(k) + 4][line] = v.s4, to[(k) + 5][line] = v.s5, to[(k) + 6][line] = v.s6, to[(k) + 7][line] = v.s7)

MATMUL(linear_tile32, 4, 8)
MATMUL(linear_tile64, 4, 16)

/* y (n, cols) = rows ids[i] of the weight. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
NAME(get_rows, SUFFIX)(WEIGHT, uint cols, __global const int *ids, __global float *y) {
    uint step = get_global_id(0), i = get_group_id(1);
    planes w = PLANES_AT(weight);
    if (step >= w.steps) return;
    float v[8];
    vstore8(weights(w, (uint)ids[i], step), 0, v);
    for (uint e = 0; e < 8 && 8 * step + e < cols; e++) y[(size_t)i * cols + 8 * step + e] = v[e];
}

#define SHARED_ROWS 4

/* dx (n, cols) = dy (n, rows) . weight, or += it. One item computes 4 rows of 8 columns. */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
NAME(linear_input_grad, SUFFIX)(WEIGHT, uint rows, uint cols, __global const float *dy, uint accumulate,
                                __global float *dx, uint n) {
    uint step = get_global_id(0), first = get_group_id(1) * SHARED_ROWS;
    planes w = PLANES_AT(weight);
    float8 sums[SHARED_ROWS];
    if (step >= w.steps) return;
    for (uint i = 0; i < SHARED_ROWS; i++) sums[i] = 0.0f;
    for (uint r = 0; r < rows; r++) {
        float8 part = weights(w, r, step);
        for (uint i = 0; i < SHARED_ROWS; i++) sums[i] += dy[(size_t)min(first + i, n - 1) * rows + r] * part;
    }
    for (uint i = 0; i < SHARED_ROWS && first + i < n; i++) {
        float v[8];
        vstore8(sums[i], 0, v);
        for (uint e = 0; e < 8 && 8 * step + e < cols; e++) {
            size_t at = (size_t)(first + i) * cols + 8 * step + e;
            dx[at] = accumulate ? dx[at] + v[e] : v[e];
        }
    }
}

/* -- mixtures of experts: the matrix of expert e lies e * stride bytes after `weight`. */

/* y (n, k, rows) = x . expert ids[i, j]^T + bias. As MATVEC; a group computes outputs of up to `count` pairs of one
 * expert, with the bits of a pair by itself. Outputs along x; pairs, or chunks of them, along y. */
#define MOE_LINEAR(base, count)                                                                                        \
    __kernel __attribute__((reqd_work_group_size(LANES, OUTPUTS, 1))) void NAME(base, SUFFIX)(                         \
        MATRICES, EXPERTS, uint cols, __global const float *x) {                                                       \
        __local float partial[OUTPUTS * count * LANES];                                                                \
        uint4 chunk = chunk_of_group(ids, order, chunks);                                                              \
        if (chunk.s1 == 0) return; /* the whole group */                                                               \
        planes m = matrix_of_group(MATRIX_ARGS, cols, OUTPUTS);                                                        \
        GO_TO_EXPERT(m, chunk.s2);                                                                                     \
        uint lane = get_local_id(0), row = m.first + get_local_id(1);                                                  \
        uint from[count];                                                                                              \
        float sums[count];                                                                                             \
        for (uint r = 0; r < count; r++)                                                                               \
            sums[r] = 0.0f, from[r] = pair_at(order, chunk.s0 + min(r, chunk.s1 - 1)) / per_row;                       \
        add_steps(m, row, cols, x, count, from, sums);                                                                 \
        bool is_written = lane < count && lane < chunk.s1;                                                             \
        uint to = pair_at(order, chunk.s0 + (is_written ? lane : 0));                                                  \
        join_lanes(m, row, to, is_written, count, sums, partial);                                                      \
    }

MOE_LINEAR(moe_linear1, 1)
MOE_LINEAR(moe_linear8, 8)

static inline planes expert(WEIGHT, ulong stride, uint cols, int e) {
    planes w = PLANES_AT(weight + (ulong)e * stride);
    return w;
}

/* dx = dy . weight over the k experts of a row in their order (k 1: of a pair), or += it. One item computes 8 columns.
 */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
NAME(moe_linear_grad, SUFFIX)(WEIGHT, ulong stride, uint rows, uint cols, uint k, __global const int *ids,
                              __global const float *dy, uint accumulate, __global float *dx) {
    uint step = get_global_id(0), i = get_group_id(1);
    float8 sum = 0.0f;
    if (step >= (cols + 7) / 8) return;
    for (uint pair = i * k; pair < (i + 1) * k; pair++) {
        planes w = expert(weight, highs, scales, supers, stride, cols, ids[pair]);
        for (uint r = 0; r < rows; r++) sum += dy[(size_t)pair * rows + r] * weights(w, r, step);
    }
    float v[8];
    vstore8(sum, 0, v);
    for (uint e = 0; e < 8 && 8 * step + e < cols; e++) {
        size_t at = (size_t)i * cols + 8 * step + e;
        dx[at] = accumulate ? dx[at] + v[e] : v[e];
    }
}

/* -- a matrix for each head, as that of an expert: y (n, heads, rows + rest) from x (n, heads, cols + rest), where the
 * last elements are copied. As MATVEC with four rows; outputs along x, heads and then rows along y. */
__kernel __attribute__((reqd_work_group_size(LANES, OUTPUTS, 1))) void
NAME(head_linear, SUFFIX)(WEIGHT, ulong stride, uint rows, uint cols, uint n_heads, uint rest, uint n,
                          __global const float *x, __global float *y) {
    __local float partial[OUTPUTS][SHARED_ROWS][LANES];
    uint lane = get_local_id(0), slot = get_local_id(1), row = get_group_id(0) * OUTPUTS + slot;
    uint head = get_group_id(1) % n_heads, first = get_group_id(1) / n_heads * SHARED_ROWS;
    planes w = expert(weight, highs, scales, supers, stride, cols, head);
    float sums[SHARED_ROWS];
    for (uint r = 0; r < SHARED_ROWS; r++) sums[r] = 0.0f;
    for (uint step = lane; row < rows && step < w.steps; step += LANES) {
        float8 part = weights(w, row, step);
        for (uint r = 0; r < SHARED_ROWS; r++) {
            size_t from = (size_t)min(first + r, n - 1) * n_heads + head; /* beyond the last row: not written */
            sums[r] += dot8(part, inputs(x + from * (cols + rest), step, cols));
        }
    }
    for (uint r = 0; r < SHARED_ROWS; r++) partial[slot][r][lane] = sums[r];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane >= SHARED_ROWS || first + lane >= n) return;
    size_t item = (size_t)(first + lane) * n_heads + head;
    for (uint i = slot; i < rest && get_group_id(0) == 0; i += OUTPUTS)
        y[item * (rows + rest) + rows + i] = x[item * (cols + rest) + cols + i];
    if (row >= rows) return;
    float sum = 0.0f;
    for (uint i = 0; i < LANES; i++) sum += partial[slot][lane][i];
    y[item * (rows + rest) + row] = sum;
}
