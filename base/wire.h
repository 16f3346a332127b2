/* Hidden states as they travel: types of tensors on the wire, and rows to and from them. Plain arithmetic, the same bits on
 * every machine, each row by itself; docs/PROTOCOL.md, "Types on the wire", is the specification.
 *
 * F32 is exact, the others are not; but what has been rounded once does not change when it is rounded again, so it makes
 * no difference over how many hands it goes. */
#ifndef SN_BASE_WIRE_H
#define SN_BASE_WIRE_H

#include "base/dtype.h"

enum { SN_WIRE_DTYPES = 4 };
extern const sn_dtype sn_wire_dtypes[SN_WIRE_DTYPES]; /* F32, F16, BF16, Q8 */

bool sn_is_wire_dtype(uint64_t number); /* of sn_dtype, from outside */
/* "f32", "bf16", "f16" or "q8"; SN_REFUSED with the list. */
sn_status sn_wire_dtype_parse(const char *name, sn_dtype *out, sn_err *err) SN_MUST_USE;

/* n elements, whole rows: a multiple of the type's block. `wire`: bytes, little-endian, of any alignment. Finite numbers stay
 * finite: those that are too large become the largest there is. NaN and infinity stay what they are, but in Q8 make NaN of
 * their block. */
void sn_wire_encode(sn_dtype dtype, const float *rows, size_t n, void *wire);
void sn_wire_decode(sn_dtype dtype, const void *wire, size_t n, float *rows);
/* To what arrives of them. */
void sn_wire_round(sn_dtype dtype, float *rows, size_t n);

#endif
