/* The integer sums of a group where an instruction multiplies two rows of x with two outputs at a time (SMMLA: 8 k of
 * each). Part of kernels.inc.c, in place of its group_sums. Sums of integers are exact, so their bits are the same. */

/* As in kernels.inc.c; an odd last row is multiplied alone. */
INLINE void group_sums(int rows, sn_dtype t, const uint8_t *w, size_t g, int h, const sn_xblock *x, size_t stride,
                       vs *dot) {
    const int vectors = sn_cpu_fine(t) ? 4 : 8, pairs = rows / 2, odd = rows % 2;
    vp sum[ROW_TILE / 2];
    vs alone = vs_zero();
    UNROLL
    for (int p = 0; p < pairs; p++) sum[p] = vp_zero();
    UNROLL
    for (int v = 4 * h; v < 4 * h + vectors; v += 2) {
        vb two[2];
        load_vectors(t, w, g, v, 2, two);
        const vw a = vw_of(sn_cpu_bits(t), two[0]), b = vw_of(sn_cpu_bits(t), two[1]);
        const int8_t *q = x->q + 4 * v;
        UNROLL
        for (int p = 0; p < pairs; p++)
            sum[p] = vp_dot(sum[p], a, b, q + (size_t)(2 * p) * stride * sizeof *x,
                            q + (size_t)(2 * p + 1) * stride * sizeof *x);
        const int8_t *last = q + (size_t)(rows - 1) * stride * sizeof *x;
        if (odd) alone = dot_single(dot_single(alone, a, last), b, last + 4);
    }
    UNROLL
    for (int r = 0; r < rows; r++) dot[r] = odd && r == rows - 1 ? alone : vp_row(sum[r / 2], r % 2);
}
