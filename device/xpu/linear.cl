/* Products with weight matrices, compiled once per form of weight (weights.c describes the forms and packs them), with
 *
 * - LOW: 32, 16, 17 (bfloat16) or 9 (F8) bits of an element; of quantised types the low bits of a code: 8, 4 or 2
 * - HIGH: 0, 1 or 2 high bits of a code
 * - SCALE: none (float forms), D, DM, K, S, N, B or E, as sn_quant_scale of device/quant.h; SUPER: bytes of a
 * superblock
 * - ZERO: of the codes; TABLE: 1: codes are those of IQ4, 2: of MXFP4
 * - SUFFIX: of the kernels' names
 *
 * Rows are padded with zeros to a multiple of 8 elements; groups have 32 elements, superblocks 256. OpenCL C 1.2
 * without extensions and subgroups, so that any SPIR-V consumer accepts it.
 *
 * Sums are in float32, in an order that depends on the shape alone: the same bits from run to run. */
#define NAME_(base, suffix) base##_##suffix
#define NAME(base, suffix)  NAME_(base, suffix)
#define SCALE_NONE          0
#define SCALE_D             1
#define SCALE_DM            2
#define SCALE_K             3
#define SCALE_S             4
#define SCALE_N             5
#define SCALE_B             6
#define SCALE_E             7

typedef struct planes {
    __global const uchar *elements, *highs, *scales, *supers;
    uint steps; /* steps of 8 elements in a row */
} planes;

#define WEIGHT          __global const uchar *weight, ulong highs, ulong scales, ulong supers
#define PLANES_AT(base) {(base), (base) + highs, (base) + scales, (base) + supers, (cols + 7) / 8}

#if LOW <= 8
#if TABLE
__constant char table[16] =
#if TABLE == 1
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
#else
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
#endif
#endif

/* The integers of the 8 elements from 8 * at on. */
static inline float8 integers(planes w, size_t at) {
#if LOW == 8
    return convert_float8(vload8(at, (__global const char *)w.elements));
#else
    uint8 element = (uint8)(0, 1, 2, 3, 4, 5, 6, 7);
#if LOW == 4
    uint low = ((__global const uint *)w.elements)[at];
#else
    uint low = ((__global const ushort *)w.elements)[at];
#endif
    uint8 codes = (uint8)(low) >> element * LOW & (1u << LOW) - 1u;
#if HIGH == 1
    codes |= ((uint8)(w.highs[at]) >> element & 1u) << LOW;
#elif HIGH == 2
    codes |= ((uint8)(((__global const ushort *)w.highs)[at]) >> element * 2 & 3u) << LOW;
#endif
#if TABLE
    return (float8)(table[codes.s0], table[codes.s1], table[codes.s2], table[codes.s3], table[codes.s4],
                    table[codes.s5], table[codes.s6], table[codes.s7]);
#else
    return convert_float8(codes) - (float)ZERO;
#endif
#endif
}

/* Scale and offset of the 8 elements from 8 * at on. */
static inline float2 scales_of(planes w, size_t at) {
#if SCALE == SCALE_S || SCALE == SCALE_N
    size_t group = at / 2; /* half a group */
#else
    size_t group = at / 4;
#endif
#if SUPER == 4
    float2 super = vload_half2(at / 32, (__global const half *)w.supers);
#elif SUPER == 2
    float2 super = (float2)(vload_half(at / 32, (__global const half *)w.supers), 0.0f);
#endif
#if SCALE == SCALE_D
    return (float2)(vload_half(group, (__global const half *)w.scales), 0.0f);
#elif SCALE == SCALE_DM
    return vload_half2(group, (__global const half *)w.scales);
#elif SCALE == SCALE_E
    uint e = w.scales[group]; /* 2^(e - 127) / 2, also where that is subnormal */
    return (float2)(as_float(e < 2 ? 0x200000u << e : (e - 1) << 23), 0.0f);
#elif SCALE == SCALE_K
    return super * (float2)(w.scales[2 * group], w.scales[2 * group + 1]);
#elif SCALE == SCALE_S
    return super * (float)((__global const char *)w.scales)[group];
#elif SCALE == SCALE_N
    uint both = w.scales[group];
    return super * (float2)(both & 15u, both >> 4);
#else
    return super * (float)((__global const char *)w.scales)[group];
#endif
}
#elif LOW == 9
/* Eight elements of F8 (E4M3, without NaN), built without subnormal numbers, which a device may take for 0. */
static inline float8 f8_elements(uchar8 bits) {
    uint8 u = convert_uint8(bits), e = u >> 3 & 15u;
    float8 size = convert_float8((u & 7u) + (min(e, 1u) << 3)) * as_float8((max(e, 1u) + 117u) << 23);
    return as_float8(as_uint8(size) | (u & 0x80u) << 24);
}
#endif

/* Elements [8 * step, 8 * step + 8) of a row. */
static inline float8 weights(planes w, uint row, uint step) {
    size_t at = (size_t)row * w.steps + step;
#if LOW == 32
    return vload8(at, (__global const float *)w.elements);
#elif LOW == 16
    return vload_half8(at, (__global const half *)w.elements);
#elif LOW == 17
    return as_float8(convert_uint8(vload8(at, (__global const ushort *)w.elements)) << 16);
#elif LOW == 9
    return f8_elements(vload8(at, w.elements)) * ((__global const float *)w.scales)[at / 16];
#else
    float2 scale = scales_of(w, at);
    return integers(w, at) * scale.x + scale.y;
#endif
}

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

#define LANES   16
#define OUTPUTS 4

/* Few rows of x: 16 lanes read a row of the weight contiguously, so that it is read once, in order. A group computes 4
 * such outputs; `count` rows of x share what is read. */
#define MATVEC(base, count)                                                                                            \
    __kernel __attribute__((reqd_work_group_size(LANES, OUTPUTS, 1))) void NAME(base, SUFFIX)(                         \
        WEIGHT, uint rows, uint cols, __global const float *x, __global const float *bias, __global float *y,          \
        uint n) {                                                                                                      \
        __local float partial[OUTPUTS][count][LANES];                                                                  \
        uint lane = get_local_id(0), slot = get_local_id(1), row = get_group_id(0) * OUTPUTS + slot;                   \
        uint first = get_group_id(1) * count;                                                                          \
        planes w = PLANES_AT(weight);                                                                                  \
        float sums[count];                                                                                             \
        for (uint r = 0; r < count; r++) sums[r] = 0.0f;                                                               \
        for (uint step = lane; row < rows && step < w.steps; step += LANES) {                                          \
            float8 part = weights(w, row, step);                                                                       \
            for (uint r = 0; r < count; r++) {                                                                         \
                uint from = min(first + r, n - 1); /* beyond the last row: computed, but not written */                \
                sums[r] += dot8(part, inputs(x + (size_t)from * cols, step, cols));                                    \
            }                                                                                                          \
        }                                                                                                              \
        for (uint r = 0; r < count; r++) partial[slot][r][lane] = sums[r];                                             \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
        if (lane >= count || first + lane >= n || row >= rows) return;                                                 \
        float sum = 0.0f;                                                                                              \
        for (uint i = 0; i < LANES; i++) sum += partial[slot][lane][i];                                                \
        y[(size_t)(first + lane) * rows + row] = bias ? sum + bias[row] : sum;                                         \
    }

MATVEC(linear1, 1)
MATVEC(linear4, 4)
MATVEC(linear8, 8)

#define TILE  32 /* outputs, and rows of x, of a group */
#define DEPTH 32 /* elements of both in local memory at a time */

/* Many rows of x: a group of 8 x 8 items computes 32 x 32 outputs, each item 4 x 4. */
__kernel __attribute__((reqd_work_group_size(8, 8, 1))) void NAME(linear_tile, SUFFIX)(WEIGHT, uint rows, uint cols,
                                                                                       __global const float *x,
                                                                                       __global const float *bias,
                                                                                       __global float *y, uint n) {
    __local float wt[DEPTH][TILE + 1], xt[DEPTH][TILE + 1];
    uint lx = get_local_id(0), ly = get_local_id(1), item = ly * 8 + lx;
    uint first_out = get_group_id(0) * TILE, first_row = get_group_id(1) * TILE;
    planes w = PLANES_AT(weight);
    float sums[4][4];
    for (uint i = 0; i < 4; i++)
        for (uint j = 0; j < 4; j++) sums[i][j] = 0.0f;
    for (uint base = 0; base < w.steps; base += DEPTH / 8) {
        for (uint part = item; part < TILE * (DEPTH / 8); part += 64) { /* 8 elements of both sides */
            uint line = part / (DEPTH / 8), step = part % (DEPTH / 8);
            float8 a = 0.0f, b = 0.0f;
            if (first_out + line < rows && base + step < w.steps) a = weights(w, first_out + line, base + step);
            if (first_row + line < n && base + step < w.steps)
                b = inputs(x + (size_t)(first_row + line) * cols, base + step, cols);
            float va[8], vb[8];
            vstore8(a, 0, va);
            vstore8(b, 0, vb);
            for (uint i = 0; i < 8; i++) wt[8 * step + i][line] = va[i], xt[8 * step + i][line] = vb[i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint k = 0; k < DEPTH; k++)
            for (uint i = 0; i < 4; i++)
                for (uint j = 0; j < 4; j++) sums[i][j] += xt[k][ly + 8 * i] * wt[k][lx + 8 * j];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (uint i = 0; i < 4; i++)
        for (uint j = 0; j < 4; j++) {
            uint row = first_row + ly + 8 * i, out = first_out + lx + 8 * j;
            if (row < n && out < rows) y[(size_t)row * rows + out] = bias ? sums[i][j] + bias[out] : sums[i][j];
        }
}

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

/* -- mixtures of experts: the matrix of expert e lies e * stride bytes after `weight`. Simple rather than fast. */

static inline planes expert(WEIGHT, ulong stride, uint cols, int e) {
    planes w = PLANES_AT(weight + (ulong)e * stride);
    return w;
}

/* y (n, k, rows) = x . expert ids[i, j]^T + bias. One group of 64 per output of a pair; outputs along x, pairs along y.
 */
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
NAME(moe_linear, SUFFIX)(WEIGHT, ulong stride, uint rows, uint cols, uint k, uint per_expert, __global const int *ids,
                         __global const float *x, __global const float *bias, __global float *y) {
    __local float partial[64];
    uint lane = get_local_id(0), row = get_group_id(0), pair = get_group_id(1);
    int e = ids[pair];
    if (e < 0) return; /* the whole group */
    planes w = expert(weight, highs, scales, supers, stride, cols, e);
    __global const float *own = x + (size_t)(per_expert ? pair : pair / k) * cols;
    float sum = 0.0f;
    for (uint step = lane; step < w.steps; step += 64) sum += dot8(weights(w, row, step), inputs(own, step, cols));
    partial[lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_count = 32; half_count > 0; half_count /= 2) {
        if (lane < half_count) partial[lane] += partial[lane + half_count];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lane == 0) y[(size_t)pair * rows + row] = bias ? partial[0] + bias[(size_t)e * rows + row] : partial[0];
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
