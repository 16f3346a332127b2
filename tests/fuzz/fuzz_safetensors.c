/* Any bytes as a safetensors file: read or refused with an error; the bytes of every tensor are in the file. Tensors
 * whose names end as those of quantised weights are joined, whatever they are, and unpacked. */
#include "model/safetensors.h"

#include "model/packed.h" /* private: the folder around the file would need a configuration, too */

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

/* "0" to ":" are the parts of a matrix; the first byte of "a" says whose names they are, the others its size. */
static void join(const sn_safetensors *file) {
    enum { ROWS_MAX = 512, COLS_MAX = 2048 };
    const sn_safetensors_tensor *files[SN_PACKED_PARTS], *about = sn_safetensors_find(file, "a");
    sn_hparams hparams = {.n_blocks = 1};
    sn_packed packed;
    sn_dtype dtype;
    sn_err err = {0};
    for (int i = 0; i < SN_PACKED_PARTS; i++) files[i] = sn_safetensors_find(file, (char[]){(char)('0' + i), 0});
    if (!about || about->bytes < 5 || !files[SN_PACKED_CODES] || !files[SN_PACKED_SCALES]) return;
    const uint8_t *a = about->data;
    size_t rows = (a[1] | (size_t)a[2] << 8) % ROWS_MAX, cols = (a[3] | (size_t)a[4] << 8) % COLS_MAX;
    hparams.zeros_less_one = a[0] & 4;
    hparams.zeros_in_middle = a[0] & 8;
    hparams.act_order = a[0] & 16;
    sn_status status = sn_packed_join(files, (sn_packed_naming)(a[0] % 5), rows, cols, &hparams, &packed, &dtype, &err);
    if (status && !err.text[0]) abort();
    if (status) return;
    size_t bytes = sn_packed_bytes(&packed, dtype);
    uint8_t *blocks = malloc(bytes);
    const sn_model_tensor t = {.dtype = dtype,
                               .rows = rows,
                               .cols = cols,
                               .data = files[0]->data,
                               .packed = &packed,
                               .bytes = bytes,
                               .group_rows = rows,
                               .group_stride = rows};
    if (blocks && sn_packed_unpack(&t, blocks, &err) && !err.text[0]) abort();
    if (blocks) sink = (uint8_t)(blocks[0] ^ blocks[bytes - 1]);
    free(blocks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sn_safetensors *file = NULL;
    sn_err err = {0};
    if (sn_safetensors_open_memory(data, size, "input", &file, &err)) {
        if (!err.text[0]) abort(); /* every refusal has a message */
        return 0;
    }
    for (size_t i = 0; i < sn_safetensors_n_tensors(file); i++) {
        const sn_safetensors_tensor *t = sn_safetensors_tensor_at(file, i);
        if (sn_safetensors_find(file, t->name) != t) abort();
        if (t->dtype != SN_DTYPE_COUNT && t->bytes != t->elements * sn_dtype_bytes(t->dtype)) abort();
        if (t->bytes) sink = (uint8_t)(t->data[0] ^ t->data[t->bytes - 1]);
    }
    join(file);
    sn_safetensors_close(&file);
    return 0;
}
