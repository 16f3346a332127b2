/* The limit of experts on disk on this machine: how fast pieces of the size of an expert are read from random places of
 * files, past the page cache, by as many threads as a node reads with.
 *
 * Usage: bench_pieces BYTES SECONDS FILE...      the files of an --offload-dir */
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/parse.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { THREADS = 4, READ_BYTES = 1 << 20 }; /* as in a node */

typedef struct reader {
    size_t piece;
    int64_t until;
    int n_files;
    const int *files;
    const uint64_t *sizes;
    unsigned seed;
    uint64_t bytes;
} reader;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void *run(void *ctx) {
    reader *r = ctx;
    size_t n = r->piece / READ_BYTES + 1, part = sn_round_up(r->piece / n, SN_FILE_PAGE), bytes = n * part;
    void *buffer = aligned_alloc(SN_FILE_PAGE, part);
    if (!buffer) fail("aligned_alloc");
    while (sn_now_us() < r->until) {
        int file = rand_r(&r->seed) % r->n_files;
        uint64_t at = (uint64_t)rand_r(&r->seed) % (r->sizes[file] / bytes) * bytes;
        for (size_t i = 0; i < n; i++)
            if (sn_file_read_at(r->files[file], buffer, part, at + i * part)) fail("read");
        r->bytes += bytes;
    }
    free(buffer);
    return NULL;
}

int main(int argc, char **argv) {
    int64_t piece, seconds;
    if (argc < 4 || sn_parse_int(argv[1], 1, 1 << 30, &piece, NULL) || sn_parse_int(argv[2], 1, 3600, &seconds, NULL))
        return fprintf(stderr, "Usage: bench_pieces BYTES SECONDS FILE...\n"), 1;
    int n = argc - 3, *files = calloc((size_t)n, sizeof *files);
    uint64_t *sizes = calloc((size_t)n, sizeof *sizes), bytes = 0;
    reader readers[THREADS];
    pthread_t threads[THREADS];
    if (!files || !sizes) fail("calloc");
    for (int i = 0; i < n; i++) {
        struct stat st;
        int file = open(argv[3 + i], O_RDONLY | O_CLOEXEC);
        if (file < 0 || fstat(file, &st)) fail(argv[3 + i]);
        if (st.st_size < piece + (piece / READ_BYTES + 1) * SN_FILE_PAGE) /* a part is whole pages */
            return fprintf(stderr, "bench_pieces: %s is smaller than a piece\n", argv[3 + i]), 1;
        sizes[i] = (uint64_t)st.st_size;
        if ((files[i] = sn_file_open_uncached(file)) < 0) fail("reads past the page cache");
    }
    int64_t began = sn_now_us();
    for (int t = 0; t < THREADS; t++) {
        readers[t] = (reader){(size_t)piece, began + seconds * 1000000, n, files, sizes, (unsigned)t + 1, 0};
        if (pthread_create(&threads[t], NULL, run, &readers[t])) fail("pthread_create");
    }
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL), bytes += readers[t].bytes;
    double us = (double)(sn_now_us() - began);
    printf("%.2f GB/s in pieces of %lld bytes by %d threads\n", (double)bytes / 1e3 / us, (long long)piece, THREADS);
    free(files), free(sizes);
    return 0;
}
