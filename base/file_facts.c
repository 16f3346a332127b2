#include "base/file_facts.h"

#include <sys/stat.h>
#include <time.h>

static int64_t ns_of(const struct timespec *t) {
    return (int64_t)((uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec);
}

bool sn_file_facts_read(int fd, const char *path, sn_file_facts *out) {
    struct stat st;
    *out = (sn_file_facts){0};
    if (fd >= 0 ? fstat(fd, &st) : stat(path, &st)) return false;
    *out = (sn_file_facts){.device = st.st_dev,
                           .inode = st.st_ino,
                           .size = (uint64_t)st.st_size,
                           .modified_ns = ns_of(&st.st_mtim),
                           .changed_ns = ns_of(&st.st_ctim)};
    return true;
}

bool sn_file_facts_equal(const sn_file_facts *a, const sn_file_facts *b) {
    return a->device == b->device && a->inode == b->inode && a->size == b->size && a->modified_ns == b->modified_ns &&
           a->changed_ns == b->changed_ns;
}

/* Steps are some milliseconds, and up to two seconds where a file system keeps no fractions. */
bool sn_file_facts_are_settled(const sn_file_facts *facts) {
    const int64_t second = 1000000000, step = facts->changed_ns % second ? second / 20 : 2 * second;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return facts->changed_ns < ns_of(&now) - step;
}
