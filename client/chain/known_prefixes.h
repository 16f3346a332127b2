/* What a client remembers of the timelines that its chains have led to, so that it can take their KV pages again by
 * their hashes (ATTACH in net/message.h) without sending a row.
 *
 * A key names a route, that is nodes, their blocks and weights, what is rounded where, and the tokens from the
 * beginning up to a position (attach.c makes it); its value is the timeline hash of each hop there. Another key names
 * the tokens only; its value is the nodes of the route. At most so many bytes are kept; then what was not used goes,
 * the oldest first. Kept in a file, too, if it has a path: a client with a lasting identity finds its prefixes after a
 * restart. Any thread may use it. */
#ifndef SN_CLIENT_CHAIN_KNOWN_PREFIXES_H
#define SN_CLIENT_CHAIN_KNOWN_PREFIXES_H

#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct sn_known_prefixes sn_known_prefixes;

enum { SN_KNOWN_PREFIXES_BYTES = 16 << 20 };

/* path: of a file that is read, where it is one of these, and written by sn_known_prefixes_save; NULL: none. Copied. */
sn_status sn_known_prefixes_new(size_t bytes_max, const char *path, sn_known_prefixes **out, sn_err *err) SN_MUST_USE;
void sn_known_prefixes_free(sn_known_prefixes **prefixes); /* accepts NULL */

/* Without memory nothing is kept. */
void sn_known_prefixes_put(sn_known_prefixes *prefixes, const sn_hash *key, const sn_hash *timelines, size_t n);
/* Copies the hashes of the key, and returns how many it has; 0: there is no such key, or it has more than `most`. */
size_t sn_known_prefixes_get(sn_known_prefixes *prefixes, const sn_hash *key, sn_hash *timelines, size_t most);
/* Writes the file if something was put since the last time; a failure is a line in the log. */
void sn_known_prefixes_save(sn_known_prefixes *prefixes);

#endif
