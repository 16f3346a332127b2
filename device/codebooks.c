#include "device/codebooks.h"

#define SN_BITS static const char
#include "device/codebooks.inc.h"

#include <stddef.h>

uint64_t sn_books_of_8[SN_BOOKS_OF_8];
uint32_t sn_books_of_4[SN_BOOKS_OF_4];

static unsigned hex_digit(char c) { return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10); }

/* Of the points that `n` coordinates of `n_levels` give, writes those whose bit is set: a byte of each coordinate. */
static size_t next_point(const char *bits, size_t place, unsigned n, unsigned n_levels, const uint8_t *levels,
                         uint64_t *point) {
    while (!(hex_digit(bits[place / 8 * 2 + !(place & 4)]) >> place % 4 & 1)) place++;
    *point = 0;
    for (size_t i = 0, rest = place; i < n; i++, rest /= n_levels) *point |= (uint64_t)levels[rest % n_levels] << 8 * i;
    return place + 1;
}

static void fill_8(const char *bits, size_t first, size_t end, const uint8_t levels[3]) {
    for (size_t place = 0, i = first; i < end; i++) place = next_point(bits, place, 8, 3, levels, &sn_books_of_8[i]);
}

static void fill_4(const char *bits, size_t first, size_t end, const uint8_t levels[8]) {
    uint64_t point;
    for (size_t place = 0, i = first; i < end; i++) {
        place = next_point(bits, place, 4, 8, levels, &point);
        sn_books_of_4[i] = (uint32_t)point;
    }
}

/* The levels are those of the GGUF format. */
__attribute__((constructor)) static void fill_books(void) {
    static const uint8_t iq2[3] = {128 + 8, 128 + 25, 128 + 43}, iq1[3] = {17 - 8, 17, 17 + 8};
    static const uint8_t iq3_xxs[8] = {128 + 4, 128 + 12, 128 + 20, 128 + 28, 128 + 36, 128 + 44, 128 + 52, 128 + 62};
    static const uint8_t iq3_s[8] = {16 + 1, 16 + 3, 16 + 5, 16 + 7, 16 + 9, 16 + 11, 16 + 13, 16 + 15};
    fill_8(iq2_xxs_points, SN_BOOK_IQ2_XXS, SN_BOOK_IQ2_XS, iq2);
    fill_8(iq2_xs_points, SN_BOOK_IQ2_XS, SN_BOOK_IQ2_S, iq2);
    fill_8(iq2_s_points, SN_BOOK_IQ2_S, SN_BOOK_IQ1, iq2);
    fill_8(iq1_s_points, SN_BOOK_IQ1, SN_BOOKS_OF_8, iq1);
    fill_4(iq3_xxs_points, SN_BOOK_IQ3_XXS, SN_BOOK_IQ3_S, iq3_xxs);
    fill_4(iq3_s_points, SN_BOOK_IQ3_S, SN_BOOKS_OF_4, iq3_s);
}
