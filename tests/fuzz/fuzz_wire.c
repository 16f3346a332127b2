/* Any bytes as hidden states on the wire: they decode to numbers that do not change when they are sent again. */
#include "base/wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOCK = 32, BLOCKS_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static float rows[BLOCKS_MAX * BLOCK], again[BLOCKS_MAX * BLOCK];
    for (int k = 1; k < SN_WIRE_DTYPES; k++) { /* F32 is copied */
        sn_dtype dtype = sn_wire_dtypes[k];
        size_t block = sn_dtype_bytes(dtype) * BLOCK / sn_dtype_block(dtype), n = size / block * BLOCK;
        if (n > BLOCKS_MAX * BLOCK) n = BLOCKS_MAX * BLOCK;
        sn_wire_decode(dtype, data, n, rows);
        sn_wire_round(dtype, rows, n); /* the bytes need not come from an encoder */
        memcpy(again, rows, n * sizeof *rows);
        sn_wire_round(dtype, again, n);
        if (memcmp(rows, again, n * sizeof *rows)) abort();
    }
    return 0;
}
