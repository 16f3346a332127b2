/* Tags: 16 bytes by which a process knows bytes again that it has hashed before, several times faster than by another
 * hash. They are GMAC (NIST SP 800-38D, AES-128) through OpenSSL under a random key, which never leaves the process: so
 * no other program can make other bytes with the same tag, and a tag says nothing to another process.
 *
 * Any thread may call these functions; a tagger belongs to one thread at a time. */
#ifndef SN_BASE_TAG_H
#define SN_BASE_TAG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sn_tag {
    uint64_t number; /* the nonce: other bytes have another one; 0: no tag */
    uint8_t bytes[16];
} sn_tag;

typedef struct sn_tagger sn_tagger; /* a running tag */

/* NULL when memory is out, or OpenSSL lacks GMAC. Free with sn_tagger_free, which accepts NULL. */
sn_tagger *sn_tagger_new(void);
void sn_tagger_free(sn_tagger *tagger);
/* Begins a tag that can be compared with `known`; NULL, or no tag: of bytes that have none so far. */
void sn_tagger_begin(sn_tagger *tagger, const sn_tag *known);
void sn_tagger_add(sn_tagger *tagger, const void *data, size_t len);
sn_tag sn_tagger_end(sn_tagger *tagger); /* no tag if OpenSSL failed, which equals none */

bool sn_tag_equal(const sn_tag *a, const sn_tag *b);

#endif
