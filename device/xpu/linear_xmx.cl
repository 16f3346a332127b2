/* Products of quantised weights with many rows of x in 8 bits (quantise_group of formulas.clh) by the matrix units of
 * Intel's GPUs (XMX), compiled once per quantised type and per WIDTH, the lanes of a subgroup that shares such a unit:
 * 8, or 16 on GPUs whose smallest subgroup has 16. The function of subgroups that reaches them
 * (cl_intel_subgroup_matrix_multiply_accumulate) is known by its name to Intel's compiler; SPIR-V imports it.
 *
 * Products of 32 elements are exact integers, the rest is float32, in an order that depends on the shape alone. Types
 * with a scale for 16 elements take two of these products, with zeros for the other half: both at once spill registers.
 */
#include "device/xpu/planes.clh"

/* 8 rows of the weight: of each the lane has 32 / WIDTH elements of a group of 32. */
#if WIDTH == 8
typedef int8 part;
#else
typedef short8 part;
#endif

#ifdef EMULATED /* for the tests, on a device without matrix units and subgroups: the same function in plain C */
#define EXCHANGE __local part exchange[LINES][WIDTH]
static inline int8 emulated_mad(part a, int8 b, __local part *exchange) {
    char column[32];
    int sums[8];
    exchange[get_local_id(0)] = a;
    barrier(CLK_LOCAL_MEM_FENCE);
    vstore8(b, 0, (int *)column);
    vstore8((int8)(0), 0, sums);
    for (uint k = 0; k < 32; k++) {
        uint lane = k / (32 / WIDTH), own = k % (32 / WIDTH);
        __local const char *rows = (__local const char *)(exchange + lane);
        for (uint r = 0; r < 8; r++) sums[r] += rows[r * (32 / WIDTH) + own] * column[k];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return vload8(0, sums);
}
#define MAD(a, b) emulated_mad(a, b, exchange[get_local_id(1)])
#else
#define EXCHANGE
/* sum + 8 rows of 32 elements, which the lanes share, times the 32 elements of each lane */
int8 __attribute__((overloadable)) intel_sub_group_i8_i8_matrix_mad_k32(part a, int8 b, int8 sum);
#define MAD(a, b) intel_sub_group_i8_i8_matrix_mad_k32(a, b, (int8)(0))
#endif

#define LINES 4 /* subgroups of a group, each for 8 outputs */
#define TILES 4 /* of WIDTH rows of x, which share what is decoded of the weight */

/* The lane's elements of group `group` of 8 rows from `first` on; beyond the last row again those of this one. */
static inline part part_of(planes m, uint first, uint group) {
    uint lane = get_local_id(0), groups = m.steps / 4;
#if WIDTH == 8
    int v[8];
    for (uint r = 0; r < 8; r++)
        v[r] = as_int(codes(m, 8 * ((size_t)min(first + r, m.rows - 1) * groups + group) + lane));
#else
    short v[8];
    for (uint r = 0; r < 8; r++) {
        char4 four = codes(m, 8 * ((size_t)min(first + r, m.rows - 1) * groups + group) + lane / 2);
        v[r] = as_short(lane % 2 ? four.s23 : four.s01);
    }
#endif
    return vload8(0, v);
}

#if SCALE_OF_HALVES
#define SCALES 2 /* of a group: one for each half */
#else
#define SCALES 1
#endif

/* Scales and offsets of the same rows, for elements that begin at half `h` of the group. */
static inline void scales_of_rows(planes m, uint first, uint group, uint h, float8 *scale, float8 *offset) {
    float s[8], o[8];
    for (uint r = 0; r < 8; r++) {
        size_t at = (size_t)min(first + r, m.rows - 1) * m.steps + 4 * group + 2 * h;
        float2 both = scales_of(m, at);
        s[r] = both.x;
        o[r] = both.y;
    }
    *scale = vload8(0, s);
    *offset = vload8(0, o);
}

/* A subgroup computes 8 outputs, which its lanes share, of TILES rows of x in each lane. Outputs along x, rows of x
 * along y. All subgroups of a group call MAD equally often. */
__kernel
    __attribute__((reqd_work_group_size(WIDTH, LINES, 1)))
#ifndef EMULATED
    __attribute__((intel_reqd_sub_group_size(WIDTH)))
#endif
    void
    KERNEL(MATRICES, uint cols, __global const int *q, __global const float2 *scales, uint n) {
    EXCHANGE;
    planes m = matrix_of_group(MATRIX_ARGS, cols, 8 * LINES);
    uint lane = get_local_id(0), first = m.first + 8 * get_local_id(1), groups = cols / 32;
    uint row = get_group_id(1) * TILES * WIDTH + lane;
    float8 sums[TILES];
    for (uint t = 0; t < TILES; t++) sums[t] = 0.0f;
    for (uint unit = 0; unit < groups * SCALES; unit++) { /* the elements with one scale */
        uint group = unit / SCALES, h = unit % SCALES;
        float8 scale, offset;
        scales_of_rows(m, first, group, h, &scale, &offset);
        part own = part_of(m, first, group);
        if (SCALES == 2 && lane / (WIDTH / 2) != h) own = (part)(0);
        for (uint t = 0; t < TILES; t++) {
            size_t at = (size_t)min(row + t * WIDTH, n - 1) * groups + group;
            float2 x = scales[2 * at + h]; /* and times the sum of q, of this half */
            if (SCALES == 1) x.y += scales[2 * at + 1].y;
            sums[t] += scale * (x.x * convert_float8(MAD(own, vload8(at, q))) - (float)ZERO * x.y) + offset * x.y;
        }
    }
    for (uint t = 0; t < TILES; t++)
        if (row + t * WIDTH < n) store_outputs(m, row + t * WIDTH, first, sums[t]);
}
