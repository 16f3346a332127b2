/* Files that are there under a model's name and hold something else: what an unfinished git clone leaves, and pages
 * that were saved in place of a file. */
#ifndef SN_MODEL_NOT_A_MODEL_H
#define SN_MODEL_NOT_A_MODEL_H

#include <stddef.h>

/* A sentence about what the file is, by the bytes at its beginning; NULL: neither of the two. */
const char *sn_not_a_model(const void *bytes, size_t len);

#endif
