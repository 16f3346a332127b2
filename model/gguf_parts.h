/* Models whose GGUF file is cut into several, as gguf-split of llama.cpp does it and hubs ask for above 50 GB:
 * NAME-00001-of-00003.gguf, NAME-00002-of-00003.gguf, ... Each is a GGUF file with some of the tensors; the first has
 * the metadata, and every one says in split.no and split.count which part of how many it is. A part finds the others by
 * its path, so programs that know only names (a hub's list, a manifest) find them, too.
 *
 * Functions without state. */
#ifndef SN_MODEL_GGUF_PARTS_H
#define SN_MODEL_GGUF_PARTS_H

#include "base/file.h"

enum { SN_GGUF_PARTS_MAX = 4096 };

/* How many files the model of this path has, by its name: above 1 if it ends as above. *number: which of them it is,
 * from 1. NULL: it is not asked for. */
int sn_gguf_parts_of(const char *path, int *number);
/* The path of the part of this number of the same model; of a model that is one file, its path. */
sn_status sn_gguf_part_path(const char *path, int number, char out[SN_PATH_SIZE], sn_err *err) SN_MUST_USE;

#endif
