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
    if (out->path && sn_file_facts_read(fd, NULL, &out->facts)) return SN_OK;
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

static int compare_places(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const sn_mapped_file *)a)->data, y = (uintptr_t)((const sn_mapped_file *)b)->data;
    return (x > y) - (x < y);
}

void sn_mapped_files_sort(sn_mapped_file *maps, size_t n) {
    if (n) qsort(maps, n, sizeof *maps, compare_places);
}

bool sn_mapped_files_have(const sn_mapped_file *maps, size_t n, const void *bytes, const char **path,
                          uint64_t *offset) {
    uintptr_t at = (uintptr_t)bytes;
    size_t low = 0, high = n; /* the last file that begins at or before the bytes is low - 1 */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)maps[middle].data <= at)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low || at - (uintptr_t)maps[low - 1].data >= maps[low - 1].len) return false;
    *path = maps[low - 1].path;
    *offset = at - (uintptr_t)maps[low - 1].data;
    return true;
}
