/* Products of quantised weights with few rows of x in 8 bits (quantise_group of formulas.clh), compiled once per
 * quantised type, for devices that multiply and add four pairs of bytes at once (dp4a): SPV_KHR_integer_dot_product.
 * The products of 16 elements are exact integers, the rest is float32, in an order that depends on the shape alone. */
#include "device/xpu/planes.clh"

/* c + the sum of a * b */
int __attribute__((overloadable)) __attribute__((const)) dot_acc_sat(char4 a, char4 b, int c);

/* Adds to sums the lane's share of `count` rows of x (from) times a row of the weight: 16 elements at a time. */
static inline void add_units(planes m, uint row, uint cols, __global const uint *q, __global const float2 *scales,
                             uint count, const uint *from, float *sums) {
    uint units = cols / 16;
    for (uint unit = get_local_id(0); row < m.rows && unit < units; unit += LANES) {
        size_t at = (size_t)row * units + unit;
        float2 scale = scales_of(m, 2 * at);
        char4 c0 = codes(m, 4 * at), c1 = codes(m, 4 * at + 1), c2 = codes(m, 4 * at + 2), c3 = codes(m, 4 * at + 3);
        for (uint r = 0; r < count; r++) {
            size_t own_at = (size_t)from[r] * units + unit;
            uint4 own = vload4(own_at, q);
            float2 own_scale = scales[own_at]; /* and times the sum of q */
            int sum = dot_acc_sat(c0, as_char4(own.s0), 0);
            sum = dot_acc_sat(c1, as_char4(own.s1), sum);
            sum = dot_acc_sat(c2, as_char4(own.s2), sum);
            sum = dot_acc_sat(c3, as_char4(own.s3), sum);
            sums[r] += scale.x * own_scale.x * (float)sum + (scale.y - (float)ZERO * scale.x) * own_scale.y;
        }
    }
}

/* As MATVEC of linear.cl. q and scales: of x (n, cols). */
#define MATVEC_DOT(base, count)                                                                                        \
    __kernel __attribute__((reqd_work_group_size(LANES, OUTPUTS, 1))) void NAME(base, SUFFIX)(                         \
        MATRICES, uint cols, __global const uint *q, __global const float2 *scales, uint n) {                          \
        __local float partial[OUTPUTS * count * LANES];                                                                \
        planes m = matrix_of_group(MATRIX_ARGS, cols, OUTPUTS);                                                        \
        uint lane = get_local_id(0), row = m.first + get_local_id(1), first = get_group_id(1) * count;                 \
        uint from[count];                                                                                              \
        float sums[count];                                                                                             \
        for (uint r = 0; r < count; r++) sums[r] = 0.0f, from[r] = min(first + r, n - 1);                              \
        add_units(m, row, cols, q, scales, count, from, sums);                                                         \
        join_lanes(m, row, first + lane, first + lane < n, count, sums, partial);                                      \
    }

MATVEC_DOT(linear_dot1, 1)
MATVEC_DOT(linear_dot4, 4)
MATVEC_DOT(linear_dot8, 8)

/* As MOE_LINEAR of linear.cl. */
#define MOE_DOT(base, count)                                                                                           \
    __kernel __attribute__((reqd_work_group_size(LANES, OUTPUTS, 1))) void NAME(base, SUFFIX)(                         \
        MATRICES, EXPERTS, uint cols, __global const uint *q, __global const float2 *scales) {                         \
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
        add_units(m, row, cols, q, scales, count, from, sums);                                                         \
        bool is_written = lane < count && lane < chunk.s1;                                                             \
        uint to = pair_at(order, chunk.s0 + (is_written ? lane : 0));                                                  \
        join_lanes(m, row, to, is_written, count, sums, partial);                                                      \
    }

MOE_DOT(moe_dot1, 1)
MOE_DOT(moe_dot8, 8)
