/* The part of the SPIR-V specification that is needed to find the parameters of kernels. */
#include "tests/support/ze_driver/driver.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    HEADER_WORDS = 5,
    OP_ENTRY_POINT = 15,
    OP_TYPE_INT = 21,
    OP_TYPE_FLOAT = 22,
    OP_TYPE_VECTOR = 23,
    OP_TYPE_POINTER = 32,
    OP_FUNCTION = 54,
    OP_FUNCTION_PARAMETER = 55,
    WORKGROUP = 4,
    CROSS_WORKGROUP = 5,
};

typedef struct reader {
    parameter *types; /* indexed by id */
    uint32_t n_types;
    kernel_info *kernels;
    int n, capacity;
    kernel_info *function; /* kernel whose parameters are read now; NULL: none */
} reader;

static void note_type(reader *r, uint32_t id, parameter type) {
    if (id < r->n_types) r->types[id] = type;
}

static void note_function(reader *r, uint32_t id) {
    r->function = NULL;
    for (int i = 0; i < r->n; i++)
        if (r->kernels[i].id == id) r->function = &r->kernels[i];
}

static void read_instruction(reader *r, const uint32_t *w, uint32_t n) {
    switch (w[0] & 0xffff) {
    case OP_ENTRY_POINT:
        if (n < 4 || r->n == r->capacity) break;
        r->kernels[r->n] = (kernel_info){.id = w[2]};
        snprintf(r->kernels[r->n++].name, sizeof r->kernels->name, "%.*s", (int)(n - 3) * 4, (const char *)(w + 3));
        break;
    case OP_TYPE_INT:
    case OP_TYPE_FLOAT:
        if (n >= 3) note_type(r, w[1], (parameter){PARAMETER_VALUE, w[2] / 8});
        break;
    case OP_TYPE_VECTOR:
        if (n >= 4 && w[2] < r->n_types) note_type(r, w[1], (parameter){PARAMETER_VALUE, r->types[w[2]].bytes * w[3]});
        break;
    case OP_TYPE_POINTER:
        if (n >= 3 && w[2] == CROSS_WORKGROUP) note_type(r, w[1], (parameter){.kind = PARAMETER_GLOBAL});
        if (n >= 3 && w[2] == WORKGROUP) note_type(r, w[1], (parameter){.kind = PARAMETER_LOCAL});
        break;
    case OP_FUNCTION:
        if (n >= 3) note_function(r, w[2]);
        break;
    case OP_FUNCTION_PARAMETER:
        if (n >= 3 && r->function && r->function->n_parameters < ARGS_MAX && w[1] < r->n_types)
            r->function->parameters[r->function->n_parameters++] = r->types[w[1]];
        break;
    default:
        break;
    }
}

int spirv_kernels(const void *words, size_t n_words, kernel_info *out, int capacity) {
    const uint32_t *w = words;
    if (n_words < HEADER_WORDS) return 0;
    reader r = {.n_types = w[3], .kernels = out, .capacity = capacity};
    r.types = calloc(r.n_types ? r.n_types : 1, sizeof *r.types);
    for (size_t at = HEADER_WORDS; r.types && at < n_words;) {
        uint32_t n = w[at] >> 16;
        if (n == 0 || n > n_words - at) break;
        read_instruction(&r, w + at, n);
        at += n;
    }
    free(r.types);
    return r.n;
}
