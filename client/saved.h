/* A session in a file: what was said, and the past of every block, so that it goes on elsewhere and later, over another cut of
 * the swarm, with the bits of never having stopped. Locked with a key (base/locked.h): whoever has the file and the key has the
 * session. */
#ifndef SN_CLIENT_SAVED_H
#define SN_CLIENT_SAVED_H

#include "base/locked.h"
#include "client/generate.h"

#include <jansson.h>

/* Gathers the past from the chain's hops. `more` (borrowed, NULL allowed): a JSON value of the caller's, kept with it. */
sn_status sn_saved_write(const char *path, const sn_lock_key *secret, const sn_model *model, sn_chain *chain,
                         const sn_generator *generator, const json_t *more, sn_err *err) SN_MUST_USE;

typedef struct sn_saved sn_saved;

/* Reads what stands before the past. SN_REFUSED with a sentence: no such file, another key or model, damaged. */
sn_status sn_saved_open(const char *path, const sn_lock_key *secret, const sn_model *model, sn_saved **out, sn_err *err) SN_MUST_USE;
const int32_t *sn_saved_ids(const sn_saved *saved, size_t *n); /* the timeline, and the token chosen last */
const json_t *sn_saved_more(const sn_saved *saved);            /* or NULL */
/* Puts the past into a fresh chain, a fresh generator where the other one stood. */
sn_status sn_saved_restore(sn_saved *saved, sn_head *head, sn_chain *chain, sn_generator *generator, sn_err *err) SN_MUST_USE;
void sn_saved_close(sn_saved **saved); /* NULL-safe */

#endif
