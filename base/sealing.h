/* Encryption of pieces of data that leave this process's memory and come back: AES-256-GCM (NIST SP 800-38D). Any
 * thread may call it. */
#ifndef SN_BASE_SEALING_H
#define SN_BASE_SEALING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SN_SEAL_KEY = 32, SN_SEAL_TAG = 16 };

/* Which piece: the number is never used twice with one key. n_head bytes of `head` are authenticated with it. */
typedef struct sn_seal_piece {
    const uint8_t *key; /* SN_SEAL_KEY bytes */
    uint64_t number;
    const void *head; /* NULL: none */
    size_t n_head;
} sn_seal_piece;

/* n bytes from `from` to `to` (the same memory, or apart). False: memory is out. */
bool sn_seal(const sn_seal_piece *piece, const void *from, size_t n, void *to, uint8_t tag[SN_SEAL_TAG]);
/* False: these are not the bytes, the number, the head and the tag of one sn_seal with this key, or memory is out. */
bool sn_unseal(const sn_seal_piece *piece, const void *from, size_t n, void *to, const uint8_t tag[SN_SEAL_TAG]);

#endif
