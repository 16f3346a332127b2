/* The codebooks of the IQ types of GGUF: points of eight or four weights, which the codes of these types name. The
 * tables are filled before main begins and never change. */
#ifndef SN_DEVICE_CODEBOOKS_H
#define SN_DEVICE_CODEBOOKS_H

#include <stdint.h>

/* Where the points of each type begin in the table of its kind, and the size of the tables. */
enum {
    SN_BOOK_IQ2_XXS = 0,
    SN_BOOK_IQ2_XS = SN_BOOK_IQ2_XXS + 256,
    SN_BOOK_IQ2_S = SN_BOOK_IQ2_XS + 512,
    SN_BOOK_IQ1 = SN_BOOK_IQ2_S + 1024,
    SN_BOOKS_OF_8 = SN_BOOK_IQ1 + 2048,
    SN_BOOK_IQ3_XXS = 0,
    SN_BOOK_IQ3_S = SN_BOOK_IQ3_XXS + 256,
    SN_BOOKS_OF_4 = SN_BOOK_IQ3_S + 512,
};

/* Byte i of a point is what belongs to weight i: its size, plus the zero of the type's form (device/quant.h). Of IQ1
 * 8 times the weight, plus the zero, plus 1. */
extern uint64_t sn_books_of_8[SN_BOOKS_OF_8];
extern uint32_t sn_books_of_4[SN_BOOKS_OF_4];

#endif
