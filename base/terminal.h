/* What a terminal may be sent. Text from model files and peers can hold control characters, with which it could rewrite
 * what the user has read, or make the terminal type. Where standard output or standard error is a terminal, everything
 * that a program prints passes sn_terminal_clean; files and pipes get the exact bytes. */
#ifndef SN_BASE_TERMINAL_H
#define SN_BASE_TERMINAL_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The beginning of a character whose other bytes come with the next text. Zeroed: none. */
typedef struct sn_terminal_text {
    uint8_t held[4];
    size_t n_held;
} sn_terminal_text;

/* Copies n bytes of UTF-8 to out (capacity 3 * (n + 4)) without what a terminal would act on: control characters (C0
 * but newline and tab, DEL, C1), overrides of the writing direction, and bytes that form no character become U+FFFD;
 * carriage returns are left out. Returns how many bytes it wrote. */
size_t sn_terminal_clean(sn_terminal_text *state, const char *text, size_t n, char *out);

/* From now on stdout and stderr, where they are terminals, clean what is printed. Call it once, before other threads
 * print. */
void sn_terminal_guard(void);
/* Writes the program's own control characters to stdout or stderr, after what was printed before. */
void sn_terminal_control(FILE *stream, const char *sequence);

#endif
