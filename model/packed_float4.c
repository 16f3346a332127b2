/* NF4 and FP4 of bitsandbytes: codes of all rows one after the other, the first in the high half of each byte, and a
 * scale for each `group` of them. Scales are float32; or they are codes themselves (double quantisation), which a map
 * turns into numbers that are multiplied by a scale of many and moved by one offset, all in float32. Codes stay codes
 * in the types NF4_256 and FP4_256, where the map is bitsandbytes' own and rows have whole blocks; else they become
 * float32. */
#include "base/mem.h"
#include "base/float4.h"
#include "model/packed.h"
#include "model/tensor_view.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum { BLOCK = SN_FLOAT4_PART, STATE_MAX = 4096, NESTED = 256 /* scales that share one, as bitsandbytes has them */ };

static bool is(const sn_safetensors_tensor *t, const char *type, size_t elements) {
    return t && !strcmp(t->type, type) && t->elements == elements;
}

static float number(const void *from, size_t i) {
    float x;
    memcpy(&x, (const uint8_t *)from + i * sizeof x, sizeof x);
    return x;
}

/* Whether the numbers of the scales' codes are bitsandbytes' own. */
static bool has_own_map(const sn_packed *p) {
    return !memcmp(p->parts[SN_PACKED_MAP], sn_float4_scales, sizeof sn_float4_scales);
}

/* No map at all: the bytes are fetched after the model was opened (model/source.h). */
static bool lacks_map(const sn_packed *p) { return number(p->parts[SN_PACKED_MAP], 255) == 0; }

sn_status sn_packed_join_float4(const sn_safetensors_tensor *const files[SN_PACKED_PARTS], sn_packed *p,
                                sn_dtype *dtype, sn_err *err) {
    const bool fp4 = files[SN_PACKED_OF_FP4];
    const sn_safetensors_tensor *codes = files[SN_PACKED_CODES], *scales = files[SN_PACKED_SCALES],
                                *state = files[fp4 ? SN_PACKED_OF_FP4 : SN_PACKED_STATE],
                                *nested = files[SN_PACKED_NESTED];
    size_t all, bytes, n = scales->elements;
    bool twice = !strcmp(scales->type, "U8");
    if (!p->rows || p->cols % BLOCK || !sn_mul(p->rows, p->cols, &all) || !sn_mul(all, 2, &bytes))
        return sn_fail(err, SN_REFUSED, "tensor '%s' stands for %zu rows of %zu in 4 bits, which are no multiple of %d",
                       codes->name, p->rows, p->cols, BLOCK);
    p->group = n && all % n == 0 ? all / n : 0;
    bool fits = is(codes, "U8", all / 2) && p->group && p->group % BLOCK == 0 && (twice || is(scales, "F32", n)) &&
                is(files[SN_PACKED_NUMBERS], "F32", 16) && state && !strcmp(state->type, "U8") &&
                state->elements <= STATE_MAX &&
                (!twice || (nested && nested->elements && is(nested, "F32", nested->elements) &&
                            is(files[SN_PACKED_MAP], "F32", 256)));
    if (!fits)
        return sn_fail(
            err, SN_REFUSED,
            "tensor '%s' and those beside it are not NF4 or FP4 of bitsandbytes for %zu rows of %zu, with a scale for "
            "each %d or a multiple: other forms are not supported",
            codes->name, p->rows, p->cols, BLOCK);
    for (int i = 0; i < SN_PACKED_PARTS; i++)
        if (files[i]) p->parts[i] = files[i]->data, p->bytes[i] = files[i]->bytes;
    const bool codes_stay = twice && p->cols % (BLOCK * SN_FLOAT4_PARTS) == 0 &&
                            nested->elements == (n - 1) / NESTED + 1 && (has_own_map(p) || lacks_map(p));
    *dtype = codes_stay ? fp4 ? SN_FP4_256 : SN_NF4_256 : fp4 ? SN_FP4 : SN_NF4;
    return SN_OK;
}

/* Of scales that are codes. */
typedef struct nesting {
    size_t group;
    float offset;
} nesting;

/* Whether the codes' numbers are these; the sign of zero does not matter. */
static bool has_numbers(const sn_packed *p, const float values[16]) {
    bool same = true;
    for (size_t i = 0; i < 16; i++) same &= number(p->parts[SN_PACKED_NUMBERS], i) == values[i];
    return same;
}

/* Whether the state says of the matrix what its tensors say. */
static bool read_state(const sn_packed *p, sn_dtype dtype, nesting *out) {
    const bool fp4 = sn_float4_values(dtype) == sn_fp4_values;
    const sn_packed_part part = fp4 ? SN_PACKED_OF_FP4 : SN_PACKED_STATE;
    json_t *state = json_loadb(p->parts[part], p->bytes[part], 0, NULL);
    const json_t *shape = json_object_get(state, "shape"), *offset = json_object_get(state, "nested_offset");
    const char *type = json_string_value(json_object_get(state, "quant_type"));
    size_t n = p->rows * p->cols / p->group, n_nested = p->bytes[SN_PACKED_NESTED] / sizeof(float);
    json_int_t group = json_integer_value(json_object_get(state, "nested_blocksize"));
    bool fits = type && !strcmp(type, fp4 ? "fp4" : "nf4") && json_array_size(shape) == 2 &&
                json_integer_value(json_array_get(shape, 0)) == (json_int_t)p->rows &&
                json_integer_value(json_array_get(shape, 1)) == (json_int_t)p->cols &&
                json_integer_value(json_object_get(state, "blocksize")) == (json_int_t)p->group;
    if (p->bytes[SN_PACKED_SCALES] == n) { /* bytes */
        fits = fits && group > 0 && json_is_number(offset) && (n - 1) / (size_t)group + 1 == n_nested &&
               (!sn_float4_twice(dtype) || group == NESTED);
        *out = (nesting){(size_t)group, (float)json_number_value(offset)};
    }
    json_decref(state);
    return fits && has_numbers(p, sn_float4_values(dtype));
}

/* Begins a block at element `at` of the matrix: its scale, or what its scales are made of. */
static uint8_t *begin_block(const sn_packed *p, sn_dtype dtype, const nesting *n, size_t at, uint8_t *to) {
    const uint8_t *scales = p->parts[SN_PACKED_SCALES];
    const size_t first = at / p->group;
    float scale = n->group ? number(p->parts[SN_PACKED_NESTED], first / n->group) : number(scales, first);
    const bool twice = sn_float4_twice(dtype);
    if (n->group && !twice) {
        scale = number(p->parts[SN_PACKED_MAP], scales[first]) * scale;
        scale += n->offset;
    }
    memcpy(to, &scale, sizeof scale);
    to += sizeof scale;
    if (!twice) return to;
    memcpy(to, &n->offset, sizeof n->offset);
    to += sizeof n->offset;
    for (size_t part = 0; part < SN_FLOAT4_PARTS; part++) *to++ = scales[(at + part * BLOCK) / p->group];
    return to;
}

static sn_status check_scales(sn_dtype dtype, const uint8_t *block, size_t row, sn_err *err) {
    for (size_t part = 0; part < sn_dtype_block(dtype) / BLOCK; part++)
        if (!(fabsf(sn_float4_scale(dtype, block, part)) <= 0x1p100f))
            return sn_fail(err, SN_REFUSED,
                           "row %zu has a scale that is no number up to 2^100: the file is damaged, fetch it again",
                           row);
    return SN_OK;
}

sn_status sn_packed_unpack_float4(const sn_model_tensor *t, uint8_t *to, sn_err *err) {
    const sn_packed *p = t->packed;
    const size_t block = sn_dtype_block(t->dtype);
    nesting nested = {0};
    sn_status status = SN_OK;
    if (!read_state(p, t->dtype, &nested))
        return sn_fail(err, SN_REFUSED, "what its quant_state says of the weights does not fit their tensors");
    if (sn_float4_twice(t->dtype) && !has_own_map(p))
        return sn_fail(err, SN_REFUSED,
                       "the codes of its scales have other numbers than bitsandbytes', which showed only now that the "
                       "file was fetched: start again");
    for (size_t r = 0; r < t->rows; r++) {
        size_t row = t->first_row + sn_tensor_view_line(t, r), at = row * p->cols;
        const uint8_t *codes = (const uint8_t *)p->parts[SN_PACKED_CODES] + at / 2;
        for (size_t k = 0; k < p->cols && !status; k += block) {
            const uint8_t *begin = to;
            to = begin_block(p, t->dtype, &nested, at + k, to);
            status = check_scales(t->dtype, begin, row, err);
            for (size_t i = 0; i < block / 2; i++, codes++) *to++ = (uint8_t)(*codes >> 4 | (*codes & 15) << 4);
        }
        if (status) return status;
    }
    return SN_OK;
}
