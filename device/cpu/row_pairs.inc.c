/* The integer sums of a group where an instruction multiplies two rows of x with two outputs at a time (SMMLA: 8 k of
 * each). Part of kernels.inc.c, in place of its group_sums. Sums of integers are exact, so their bits are the same. */

/* The signed weights of 4 k at p: all of them, or the low or high nibbles. */
INLINE vb signed_weights(sn_layout layout, const uint8_t *p, bool high) {
    if (!sn_layout_nibbles(layout)) return vw_load(p);
    vb places = high ? vb_high(vb_load(p)) : vb_low(vb_load(p));
    return layout == SN_LAYOUT_Q4_TABLE ? vt_of(places) : places;
}

/* As in kernels.inc.c; an odd last row is multiplied alone. */
INLINE void group_sums(int rows, sn_layout layout, const uint8_t *w, int h, const sn_xblock *x, size_t stride,
                       vi *dot) {
    const bool nibbles = sn_layout_nibbles(layout), fine = sn_layout_fine(layout);
    const bool biased = layout == SN_LAYOUT_Q4_SIGNED;
    const int vectors = nibbles || fine ? 4 : 8, pairs = rows / 2, odd = rows % 2;
    vp sum[ROW_TILE / 2];
    vs alone = vs_zero();
    UNROLL
    for (int p = 0; p < pairs; p++) sum[p] = vp_zero();
    UNROLL
    for (int c = 0; c < vectors; c += 2) {
        for (int part = 0; part < (nibbles ? 2 : 1); part++) {
            const uint8_t *at = w + 256 * h + 64 * c;
            vb a = signed_weights(layout, at, part), b = signed_weights(layout, at + 64, part);
            const int8_t *q = x->q + 16 * (h + part) + 4 * c;
            UNROLL
            for (int p = 0; p < pairs; p++)
                sum[p] = vp_dot(sum[p], a, b, q + (size_t)(2 * p) * stride * sizeof *x,
                                q + (size_t)(2 * p + 1) * stride * sizeof *x);
            const int8_t *last = q + (size_t)(rows - 1) * stride * sizeof *x;
            if (odd) alone = dot_single(dot_single(alone, a, last), b, last + 4);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        vi total = odd && r == rows - 1 ? alone : vp_row(sum[r / 2], r % 2);
        dot[r] = biased ? vi_add(total, vi_set(x[(size_t)r * stride].nibble_bias)) : total;
    }
}
