/* The limits of offload on this machine: blocks in host memory are not streamed faster than memory is copied, blocks
 * on disk not faster than they are read and hashed.
 *
 * Usage: bench_copy FILE...      the files of an --offload-dir after a node has read them: from the page cache
 *
 * One thread, as in a node; blocks go to two slots alternately, as in a node. The best of 20 and 5 repeats. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct image {
    size_t bytes;
    void *data;
} image;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static size_t read_file(const char *path, void **data) {
    struct stat st;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &st)) fail(path);
    size_t bytes = (size_t)st.st_size;
    if (!*data && !(*data = malloc(bytes))) fail("malloc");
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(file, (uint8_t *)*data + done, bytes - done, (off_t)done);
        if (n <= 0) fail(path);
        done += (size_t)n;
    }
    close(file);
    return bytes;
}

static void print_report(const char *what, size_t bytes, int64_t us) {
    printf("%-14s %7.2f GB/s, %8.2f ms for all\n", what, (double)bytes / 1e3 / (double)us, (double)us / 1e3);
}

static int64_t copy_all(const image *images, int n, void *const slots[2]) {
    int64_t began = sn_now_us();
    for (int i = 0; i < n; i++) memcpy(slots[i % 2], images[i].data, images[i].bytes);
    return sn_now_us() - began;
}

static int64_t read_all(char **paths, int n, void *const slots[2], bool hashed) {
    static volatile uint8_t used;
    int64_t began = sn_now_us();
    for (int i = 0; i < n; i++) {
        void *slot = slots[i % 2];
        size_t bytes = read_file(paths[i], &slot);
        if (hashed) used = sn_hash_of(slot, bytes).bytes[0];
    }
    (void)used;
    return sn_now_us() - began;
}

int main(int argc, char **argv) {
    int n = argc - 1;
    size_t total = 0, largest = 1;
    image *images = calloc((size_t)argc, sizeof *images);
    if (!images) fail("calloc");
    for (int i = 0; i < n; i++) {
        images[i].bytes = read_file(argv[1 + i], &images[i].data);
        total += images[i].bytes;
        if (images[i].bytes > largest) largest = images[i].bytes;
    }
    void *slots[2] = {calloc(1, largest), calloc(1, largest)};
    if (!slots[0] || !slots[1]) fail("calloc");
    int64_t copied = INT64_MAX, read = INT64_MAX, hashed = INT64_MAX;
    for (int round = 0; round < 20 && n; round++) {
        int64_t us = copy_all(images, n, slots);
        if (us < copied) copied = us;
    }
    for (int round = 0; round < 5 && n; round++) {
        int64_t us = read_all(argv + 1, n, slots, false);
        if (us < read) read = us;
        us = read_all(argv + 1, n, slots, true);
        if (us < hashed) hashed = us;
    }
    printf("%d files, %.1f MB\n", n, (double)total / 1e6);
    if (n)
        print_report("copied", total, copied), print_report("read", total, read),
            print_report("read, hashed", total, hashed);
    for (int i = 0; i < n; i++) free(images[i].data);
    free(slots[0]), free(slots[1]), free(images);
    return 0;
}
