/* What a terminal sends, as characters and pastes: bytes become Unicode characters, and what stands between the marks
 * of a bracketed paste (ESC[200~ ... ESC[201~) becomes one paste, whatever its size.
 *
 * The result does not depend on how the bytes are cut. Pasted text is valid UTF-8 with "\n" between its lines. One
 * thread. */
#ifndef SN_CLI_TERMINAL_KEYS_H
#define SN_CLI_TERMINAL_KEYS_H

#include "base/mem.h"

#define SN_KEYS_PASTE_BEGINS "\033[200~"
#define SN_KEYS_PASTE_ENDS   "\033[201~"

typedef struct sn_keys {
    sn_buf bytes; /* not used yet */
    size_t used;  /* of them */
    size_t seen;  /* of them, in a paste: how many were searched for its end */
    bool in_paste;
} sn_keys;

typedef enum sn_key {
    SN_KEY_NONE, /* more bytes are needed */
    SN_KEY_CHARACTER,
    SN_KEY_PASTE,
} sn_key;

void sn_keys_init(sn_keys *keys, size_t limit); /* limit: bytes of the longest paste */
void sn_keys_fini(sn_keys *keys);
/* SN_REFUSED: the paste is above the limit; what has come of it is dropped. */
sn_status sn_keys_push(sn_keys *keys, const void *bytes, size_t n, sn_err *err) SN_MUST_USE;
/* The next key. *character: U+FFFD for bytes that are none. *paste: appended to the caller's buffer; when that fails,
 * the paste is lost, and *status says why. */
sn_key sn_keys_next(sn_keys *keys, uint32_t *character, sn_buf *paste, sn_status *status, sn_err *err);
/* Drops what has come and is not used, also the beginning of a paste. */
void sn_keys_drop(sn_keys *keys);

/* The text that was typed ahead, before anybody asked for it: appends the characters of `bytes`, a complete stream, to
 * out. Backspace removes the character before it; line breaks stay, but not those at the end; cursor keys and other
 * control characters count for nothing. */
sn_status sn_keys_typed_ahead(sn_keys *keys, sn_buf *out, sn_err *err) SN_MUST_USE;

/* Bytes of the character that begins at text (n bytes, n > 0), its code in *character; 0: more bytes are needed. Bytes
 * that form none count as one character each, U+FFFD. */
size_t sn_utf8_next(const uint8_t *text, size_t n, uint32_t *character);
/* Writes a character as UTF-8 and returns its bytes. */
size_t sn_utf8_put(uint32_t character, char out[4]);

#endif
