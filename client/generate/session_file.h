/* A session in a file: its tokens, RNG state and KV cache, so that it continues later or on another machine, over
 * another route, with the same bits as without the break.
 *
 * The file is encrypted with a key (base/encrypted_file.h); anyone with file and key has the session. Central type:
 * sn_session_file, an open file that is read. Used by the program's commands on the chain's thread. Errors: SN_REFUSED
 * with the reason; those of the chain while KV pages are read or written. */
#ifndef SN_CLIENT_GENERATE_SESSION_FILE_H
#define SN_CLIENT_GENERATE_SESSION_FILE_H

#include "base/encrypted_file.h"
#include "client/generate/generator.h"

#include <jansson.h>

/* Writes the session of a generator and its chain; reads the KV cache from the chain's hops. extra (borrowed, NULL
 * allowed): a JSON value of the caller that is saved with it. */
sn_status sn_session_file_write(const char *path, const sn_file_key *secret, const sn_model *model, sn_chain *chain,
                                const sn_generator *generator, const json_t *extra, sn_err *err) SN_MUST_USE;

typedef struct sn_session_file sn_session_file;

/* Opens the file and reads all but the KV cache. SN_REFUSED: no such file, another key or model, or it is damaged. */
sn_status sn_session_file_open(const char *path, const sn_file_key *secret, const sn_model *model,
                               sn_session_file **out, sn_err *err) SN_MUST_USE;
/* The timeline (n), with the token that was chosen last. Both results are borrowed until the file is closed. */
const int32_t *sn_session_file_ids(const sn_session_file *file, size_t *n);
const json_t *sn_session_file_extra(const sn_session_file *file); /* NULL: none was saved */
/* Puts the KV cache into a new chain, and brings a new generator to the state of the saved one. Once. */
sn_status sn_session_file_restore(sn_session_file *file, sn_lm_head *head, sn_chain *chain, sn_generator *generator,
                                  sn_err *err) SN_MUST_USE;
void sn_session_file_close(sn_session_file **file); /* accepts NULL */

#endif
