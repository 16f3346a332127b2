/* The limits of offload on this machine: blocks in host memory are not streamed faster than memory is copied, blocks
 * on disk not faster than they are read and tagged.
 *
 * Usage: bench_copy FILE...      the files of an --offload-dir after a node has read them: from the page cache
 *
 * One thread, as in a node; blocks go to two slots alternately, as in a node. The best of 20 and 5 repeats. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/tag.h"

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

enum { READ, TAGGED, HASHED, WAYS };
static const char *const ways[WAYS] = {"read", "read, tagged", "read, hashed"};

static int64_t read_all(char **paths, int n, void *const slots[2], int way, sn_tagger *tagger) {
    static volatile uint8_t used;
    int64_t began = sn_now_us();
    for (int i = 0; i < n; i++) {
        void *slot = slots[i % 2];
        size_t bytes = read_file(paths[i], &slot);
        if (way == HASHED) used = sn_hash_of(slot, bytes).bytes[0];
        if (way != TAGGED) continue;
        sn_tagger_begin(tagger, NULL);
        sn_tagger_add(tagger, slot, bytes);
        used = sn_tagger_end(tagger).bytes[0];
    }
    (void)used;
    return sn_now_us() - began;
}

int main(int argc, char **argv) {
    int n = argc - 1;
    size_t total = 0, largest = 1;
    image *images = calloc((size_t)argc, sizeof *images);
    sn_tagger *tagger = sn_tagger_new();
    if (!images || !tagger) fail("calloc");
    for (int i = 0; i < n; i++) {
        images[i].bytes = read_file(argv[1 + i], &images[i].data);
        total += images[i].bytes;
        if (images[i].bytes > largest) largest = images[i].bytes;
    }
    void *slots[2] = {calloc(1, largest), calloc(1, largest)};
    if (!slots[0] || !slots[1]) fail("calloc");
    int64_t copied = INT64_MAX, best[WAYS] = {INT64_MAX, INT64_MAX, INT64_MAX};
    for (int round = 0; round < 20 && n; round++) {
        int64_t us = copy_all(images, n, slots);
        if (us < copied) copied = us;
    }
    for (int i = 0; i < 5 * WAYS && n; i++) {
        int64_t us = read_all(argv + 1, n, slots, i % WAYS, tagger);
        if (us < best[i % WAYS]) best[i % WAYS] = us;
    }
    printf("%d files, %.1f MB\n", n, (double)total / 1e6);
    if (n) print_report("copied", total, copied);
    for (int way = 0; way < WAYS && n; way++) print_report(ways[way], total, best[way]);
    for (int i = 0; i < n; i++) free(images[i].data);
    sn_tagger_free(tagger);
    free(slots[0]), free(slots[1]), free(images);
    return 0;
}
