/* Any bytes as a GGUF file, and as a model: read or refused with an error; all data that was read is in the file.
 * Blocks of quantised tensors hold any bits, and are decoded. */
#include "device/quant.h"
#include "model/config.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void touch_bytes(const void *data, size_t len) {
    if (len) sink = (uint8_t)(((const uint8_t *)data)[0] ^ ((const uint8_t *)data)[len - 1]);
}

static void touch_value(const sn_gguf_value *value) {
    touch_bytes(value->key.data, value->key.len);
    for (size_t i = 0; i < value->n && value->strings; i++) {
        sn_gguf_str text = sn_gguf_string_at(value, i);
        touch_bytes(text.data, text.len);
    }
    if (value->element == SN_GGUF_I32 && value->n) sink = (uint8_t)sn_gguf_i32_at(value, value->n - 1);
}

/* The first blocks of a tensor. */
static void decode(const sn_gguf_tensor *tensor) {
    enum { BLOCKS = 16 };
    sn_quant_group groups[SN_QUANT_GROUPS_MAX];
    const size_t bytes = sn_dtype_bytes(tensor->dtype);
    for (size_t i = 0; i < BLOCKS && (i + 1) * bytes <= tensor->bytes; i++) {
        sn_quant_decode(tensor->dtype, tensor->data + i * bytes, groups);
        sink = (uint8_t)groups[0].q[0];
    }
}

static void read_gguf(const uint8_t *data, size_t size) {
    sn_gguf *gguf = NULL;
    sn_err err = {0};
    if (sn_gguf_open_memory(data, size, "input", &gguf, &err)) {
        if (!err.text[0]) abort(); /* every refusal has a message */
        return;
    }
    for (size_t i = 0; i < sn_gguf_n_values(gguf); i++) touch_value(sn_gguf_value_at(gguf, i));
    for (size_t i = 0; i < sn_gguf_n_tensors(gguf); i++) {
        const sn_gguf_tensor *tensor = sn_gguf_tensor_at(gguf, i);
        if (sn_gguf_tensor_find(gguf, tensor->name) != tensor) abort();
        touch_bytes(tensor->data, tensor->bytes);
        if (sn_dtype_quantised(tensor->dtype)) decode(tensor);
    }
    sn_gguf_close(&gguf);
}

static void read_model(const char *path) {
    sn_model *model = NULL;
    sn_hash hash;
    sn_err err = {0};
    if (sn_model_open(path, &model, &err)) {
        if (!err.text[0]) abort();
        return;
    }
    if (sn_model_has_block(model, 0) && sn_model_block_hash(model, 0, &hash, &err)) abort();
    sn_model_close(&model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    read_gguf(data, size);
    int fd = memfd_create("input", MFD_CLOEXEC);
    if (fd < 0) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (write(fd, data, size) == (ssize_t)size) read_model(path);
    close(fd);
    return 0;
}
