/* The codebooks of the IQ types as kernels read them, in the memory of the device; made while this is compiled. */
#ifndef SN_DEVICE_CUDA_BOOKS_CUH
#define SN_DEVICE_CUDA_BOOKS_CUH

#include "device/codebooks.h"

#include <cuda_fp16.h>

#define SN_BITS constexpr char
#include "device/codebooks.inc.h"

namespace {

/* Of each entry four bits for each of its weights, the first in the lowest: which level the weight has. First the
 * entries of eight weights, in the order of codebooks.h, then those of four. */
struct books {
    uint32_t entry[SN_BOOKS_OF_8 + SN_BOOKS_OF_4];
};

constexpr unsigned int hex_digit(char c) { return static_cast<unsigned int>(c <= '9' ? c - '0' : c - 'a' + 10); }

/* Entries [first, end): those of the points of `weights` coordinates, of `levels` each, whose bit is set. */
constexpr void fill_book(books &b, const char *bits, int first, int end, int weights, unsigned int levels) {
    for (unsigned int place = 0; first < end; place++) {
        if (!(hex_digit(bits[place / 8 * 2 + !(place & 4)]) >> place % 4 & 1)) continue;
        uint32_t entry = 0;
        unsigned int rest = place;
        for (int i = 0; i < weights; i++, rest /= levels) entry |= rest % levels << 4 * i;
        b.entry[first++] = entry;
    }
}

constexpr books make_books() {
    books b = {};
    fill_book(b, iq2_xxs_points, SN_BOOK_IQ2_XXS, SN_BOOK_IQ2_XS, 8, 3);
    fill_book(b, iq2_xs_points, SN_BOOK_IQ2_XS, SN_BOOK_IQ2_S, 8, 3);
    fill_book(b, iq2_s_points, SN_BOOK_IQ2_S, SN_BOOK_IQ1, 8, 3);
    fill_book(b, iq1_s_points, SN_BOOK_IQ1, SN_BOOKS_OF_8, 8, 3);
    fill_book(b, iq3_xxs_points, SN_BOOKS_OF_8 + SN_BOOK_IQ3_XXS, SN_BOOKS_OF_8 + SN_BOOK_IQ3_S, 4, 8);
    fill_book(b, iq3_s_points, SN_BOOKS_OF_8 + SN_BOOK_IQ3_S, SN_BOOKS_OF_8 + SN_BOOKS_OF_4, 4, 8);
    return b;
}

__device__ constexpr books BOOKS = make_books();

} // namespace

#endif
