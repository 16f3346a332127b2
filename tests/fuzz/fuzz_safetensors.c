/* Any bytes as a safetensors file: read or refused with an error; the bytes of every tensor are in the file. */
#include "model/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

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
    sn_safetensors_close(&file);
    return 0;
}
