/* Hidden states on the wire: the element types of messages, and the conversion of rows to and from them. Pure
 * functions, plain arithmetic: the same bits on every machine, each row independent of the others. docs/PROTOCOL.md,
 * "Types on the wire", is the specification.
 *
 * F32 is exact, the others are not. A number that has been rounded once does not change when it is rounded again, so
 * the number of nodes that forward it makes no difference. */
#ifndef SN_BASE_WIRE_H
#define SN_BASE_WIRE_H

#include "base/dtype.h"
#include "base/parse.h"

enum { SN_WIRE_DTYPES = 4 };
extern const sn_dtype sn_wire_dtypes[SN_WIRE_DTYPES]; /* F32, F16, BF16, Q8 */

bool sn_is_wire_dtype(uint64_t number);     /* whether a number from a message is one of sn_wire_dtypes */
extern const sn_word sn_wire_dtype_words[]; /* "f32", "bf16", "f16", "q8", of sn_dtype */

/* n elements, whole rows: a multiple of the type's block. `wire`: little-endian bytes of any alignment. Finite numbers
 * stay finite: numbers beyond the range of the type become its largest one. NaN and infinity keep their value; in Q8
 * they turn their whole block into NaN. */
void sn_wire_encode(sn_dtype dtype, const float *rows, size_t n, void *wire);
void sn_wire_decode(sn_dtype dtype, const void *wire, size_t n, float *rows);
/* Rounds rows to what the receiver of this type would decode. */
void sn_wire_round(sn_dtype dtype, float *rows, size_t n);

/* Whether all numbers are finite, and so small that norms over a row and sums over many rows stay finite, too: rows and
 * gradients of a node that are not would spoil all that is computed with them. */
bool sn_wire_is_usable(const float *rows, size_t n);

/* Numbers so small that sums and products with them would be subnormal, with which some CPUs compute tens of times
 * slower: of a row (`width` numbers) those below 2^-80 of its largest one and of 1, and all if the largest one is below
 * 2^-40. No model computes them; a stranger may send them. Cleared ones are 0. */
bool sn_wire_has_tiny(const float *rows, size_t n_rows, size_t width);
void sn_wire_clear_tiny(float *rows, size_t n_rows, size_t width);

#endif
