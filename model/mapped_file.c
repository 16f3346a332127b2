#include "model/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static sn_status mapped_file_map(int fd, const char *path, sn_mapped_file *out, sn_err *err) {
    struct stat st;
    if (fstat(fd, &st)) return sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return sn_fail(err, SN_REFUSED, "%s is not a regular file", path);
    if (st.st_size == 0) return sn_fail(err, SN_REFUSED, "%s is empty: fetch the file again", path);
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return sn_fail(err, SN_STOP, "%s cannot be mapped into memory: %s", path, strerror(errno));
    *out = (sn_mapped_file){.data = data, .len = (size_t)st.st_size, .path = strdup(path)};
    if (out->path) return SN_OK;
    sn_mapped_file_close(out);
    return sn_fail(err, SN_STOP, "out of memory for the name of a file");
}

sn_status sn_mapped_file_open(const char *path, sn_mapped_file *out, sn_err *err) {
    *out = (sn_mapped_file){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a pipe does not wait for its writer */
    if (fd < 0) return sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    sn_status status = mapped_file_map(fd, path, out, err);
    close(fd);
    return status;
}

void sn_mapped_file_close(sn_mapped_file *map) {
    if (map->data) munmap((void *)map->data, map->len);
    free(map->path);
    *map = (sn_mapped_file){0};
}

bool sn_mapped_file_has(const sn_mapped_file *map, const void *bytes, const char **path, uint64_t *offset) {
    uintptr_t at = (uintptr_t)bytes, begin = (uintptr_t)map->data;
    if (!map->data || at < begin || at - begin >= map->len) return false;
    *path = map->path;
    *offset = at - begin;
    return true;
}
