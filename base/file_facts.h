/* What tells whether a file is the same one, with the same bytes, as before. The system sets `changed` (ctime) at each
 * change of bytes or of what else is here, and no program can set it back. Any thread may call these functions. */
#ifndef SN_BASE_FILE_FACTS_H
#define SN_BASE_FILE_FACTS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sn_file_facts {
    uint64_t device, inode, size;
    int64_t modified_ns, changed_ns; /* since 1970 */
} sn_file_facts;

/* Of the open file, or of the file at `path` if fd is -1. False: the system does not say. */
bool sn_file_facts_read(int fd, const char *path, sn_file_facts *out);
bool sn_file_facts_equal(const sn_file_facts *a, const sn_file_facts *b);
/* Whether the next change of the file will show: not so right after a change, since times of files go by steps. */
bool sn_file_facts_are_settled(const sn_file_facts *facts);

#endif
