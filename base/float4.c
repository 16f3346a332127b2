#include "base/float4.h"

enum { DECADES = 7 };

float sn_float4_scales[256];

/* Of each decade up to 1 the middles of 1, 2, 4, .., 64 equal parts from a tenth on, with the roundings of torch's
 * float32; 0 and 1; and all but 1 with a sign. */
__attribute__((constructor)) static void fill_scales(void) {
    static const float decades[DECADES] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1};
    sn_float4_scales[255] = 1;
    for (int d = 0; d < DECADES; d++) {
        const int n = 1 << d;
        const double begin = 0.1f, step = (1 - 0.1f) / (float)n;
        float bounds[(1 << (DECADES - 1)) + 1];
        for (int i = 0; i <= n; i++) bounds[i] = (float)(i < (n + 1) / 2 ? begin + step * i : 1 - step * (n - i));
        for (int i = 0; i < n; i++) {
            float middle = (bounds[i] + bounds[i + 1]) / 2;
            middle *= decades[d];
            sn_float4_scales[127 + n + i] = middle;
            sn_float4_scales[127 - n - i] = -middle;
        }
    }
}
