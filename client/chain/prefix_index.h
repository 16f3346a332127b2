/* What a client remembers of the timelines that its chains have led to, so that it can take their KV pages again by
 * their hashes (ATTACH in net/message.h) without sending a row.
 *
 * A key names a route, that is nodes, their blocks and weights, what is rounded where, and the tokens from the beginning
 * up to a position (attach.c makes it); its value is the timeline hash of each hop there. At most so many bytes are
 * kept; then what was not used goes, the oldest first. Kept in a file, too, if it has a path: a client with a lasting
 * identity finds its prefixes after a restart. Any thread may use it. */
#ifndef SN_CLIENT_CHAIN_PREFIX_INDEX_H
#define SN_CLIENT_CHAIN_PREFIX_INDEX_H

#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct sn_prefix_index sn_prefix_index;

enum { SN_PREFIX_INDEX_BYTES = 16 << 20 };

/* path: of a file that is read, where it is one of these, and written by sn_prefix_index_save; NULL: none. Copied. */
sn_status sn_prefix_index_new(size_t bytes_max, const char *path, sn_prefix_index **out, sn_err *err) SN_MUST_USE;
void sn_prefix_index_free(sn_prefix_index **index); /* accepts NULL */

/* Without memory nothing is kept. */
void sn_prefix_index_put(sn_prefix_index *index, const sn_hash *key, const sn_hash *timelines, size_t n);
/* Copies the n hashes of the key. False: there is no such key, or it has another number of them. */
bool sn_prefix_index_get(sn_prefix_index *index, const sn_hash *key, sn_hash *timelines, size_t n);
/* Writes the file if something was put since the last time; a failure is a line in the log. */
void sn_prefix_index_save(sn_prefix_index *index);

#endif
