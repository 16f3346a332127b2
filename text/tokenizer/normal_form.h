/* Unicode's normal forms (UAX #15), which tokenizers bring texts to: characters and the sequences that mean the same
 * become one of them. By utf8proc; time and memory are proportional to the text. Functions without state. */
#ifndef SN_TEXT_TOKENIZER_NORMAL_FORM_H
#define SN_TEXT_TOKENIZER_NORMAL_FORM_H

#include "base/mem.h"

typedef enum sn_normal_form { SN_NFC, SN_NFD, SN_NFKC, SN_NFKD } sn_normal_form;

/* Appends the form of `text`, which is valid UTF-8, to `out`. plain (len; NULL: none) are marks of its bytes, of which
 * those of the output go to `out_plain`: a byte of the output is marked (bit 0) if any is from which it may come. */
sn_status sn_normal_form_append(sn_normal_form form, const char *text, size_t len, const uint8_t *plain, sn_buf *out,
                                sn_buf *out_plain, sn_err *err) SN_MUST_USE;

#endif
