/* ggml_rows LIBGGML_BASE MODEL.gguf: compares each tensor's numbers in float32 with those that llama.cpp's own library
 * makes of it. Prints the types that were compared, and ends with 1 at the first tensor that differs. */
#include "base/mem.h"
#include "device/quant.h"
#include "model/gguf.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The beginning of ggml_type_traits (ggml.h of llama.cpp). */
typedef struct traits {
    const char *name;
    int64_t block, interleaved;
    size_t bytes;
    bool quantised;
    void (*to_float)(const void *row, float *out, int64_t n);
} traits;
typedef const traits *(*traits_fn)(int type);

/* Their traits of the type of that name. */
static const traits *find_traits(traits_fn get, const char *name) {
    enum { TYPES = 43 };
    for (int i = 0; i < TYPES; i++) {
        const traits *t = get(i);
        if (t->name && !strcasecmp(t->name, name)) return t;
    }
    return NULL;
}

static bool is_same(const sn_gguf_tensor *t, traits_fn get) {
    const traits *theirs = find_traits(get, sn_dtype_name(t->dtype));
    size_t cols = t->dims[0], rows = t->dims[1] * t->dims[2] * t->dims[3], row_bytes = t->bytes / rows;
    if (t->dtype == SN_F32) return true;
    float *ours = malloc(2 * cols * sizeof *ours), *want = ours + cols;
    bool same = ours && theirs && theirs->to_float && theirs->bytes == sn_dtype_bytes(t->dtype);
    for (size_t r = 0; r < rows && same; r++) {
        sn_dequantize_row(t->dtype, t->data + r * row_bytes, cols, ours);
        theirs->to_float(t->data + r * row_bytes, want, (int64_t)cols);
        for (size_t i = 0; i < cols; i++) same &= ours[i] == want[i]; /* a zero may have either sign */
    }
    free(ours);
    return same;
}

int main(int argc, char **argv) {
    sn_err err = {0};
    sn_gguf *gguf = NULL;
    bool seen[SN_DTYPE_COUNT] = {false};
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL,
         *symbol = library ? dlsym(library, "ggml_get_type_traits") : NULL;
    traits_fn get;
    memcpy(&get, &symbol, sizeof get);
    if (!symbol || sn_gguf_open(argv[2], &gguf, &err)) {
        fprintf(stderr, "%s\n", symbol ? err.text : "give the path of libggml-base.so and a file");
        return 2;
    }
    for (size_t i = 0; i < sn_gguf_n_tensors(gguf); i++) {
        const sn_gguf_tensor *t = sn_gguf_tensor_at(gguf, i);
        if (!is_same(t, get)) {
            printf("%s of type %s has other numbers\n", t->name, sn_dtype_name(t->dtype));
            return 1;
        }
        seen[t->dtype] = true;
    }
    for (int i = 0; i < SN_DTYPE_COUNT; i++)
        if (seen[i]) printf("%s ", sn_dtype_name((sn_dtype)i));
    printf("\n");
    sn_gguf_close(&gguf);
    return 0;
}
