#include "device/codebooks.h"

#include <stddef.h>

/* The books one after the other, those of eight weights first. */
#define SN_BOOK(name, ...) __VA_ARGS__,
static const uint32_t points[SN_BOOKS_OF_8 + SN_BOOKS_OF_4] = {
#include "device/codebooks.inc.h"
};

uint64_t sn_books_of_8[SN_BOOKS_OF_8];
uint32_t sn_books_of_4[SN_BOOKS_OF_4];

static uint64_t bytes_of(uint32_t point, size_t n, const uint8_t *levels) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) bytes |= (uint64_t)levels[point >> 4 * i & 15] << 8 * i;
    return bytes;
}

static void fill_8(size_t first, size_t end, const uint8_t levels[3]) {
    for (size_t i = first; i < end; i++) sn_books_of_8[i] = bytes_of(points[i], 8, levels);
}

static void fill_4(size_t first, size_t end, const uint8_t levels[8]) {
    for (size_t i = first; i < end; i++) sn_books_of_4[i] = (uint32_t)bytes_of(points[SN_BOOKS_OF_8 + i], 4, levels);
}

/* The levels are those of the GGUF format. */
__attribute__((constructor)) static void fill_books(void) {
    static const uint8_t iq2[3] = {128 + 8, 128 + 25, 128 + 43}, iq1[3] = {17 - 8, 17, 17 + 8};
    static const uint8_t iq3_xxs[8] = {128 + 4, 128 + 12, 128 + 20, 128 + 28, 128 + 36, 128 + 44, 128 + 52, 128 + 62};
    static const uint8_t iq3_s[8] = {16 + 1, 16 + 3, 16 + 5, 16 + 7, 16 + 9, 16 + 11, 16 + 13, 16 + 15};
    fill_8(SN_BOOK_IQ2_XXS, SN_BOOK_IQ1, iq2);
    fill_8(SN_BOOK_IQ1, SN_BOOKS_OF_8, iq1);
    fill_4(SN_BOOK_IQ3_XXS, SN_BOOK_IQ3_S, iq3_xxs);
    fill_4(SN_BOOK_IQ3_S, SN_BOOKS_OF_4, iq3_s);
}
