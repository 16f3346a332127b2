#include "text/jinja/run_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 16, ALIGNMENT = 16 };

struct sn_jchunk {
    sn_jchunk *next;
    size_t used, capacity;
    _Alignas(ALIGNMENT) uint8_t bytes[];
};

void sn_jrun_free(sn_jrun *run) {
    for (sn_jchunk *chunk = run->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    run->chunks = NULL;
    json_decref(run->json);
    run->json = NULL;
}

void sn_jfail(sn_jrun *run, const char *construct, const char *format, ...) {
    char sentence[sizeof run->err->text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    for (char *c = sentence; *c; c++)
        if ((uint8_t)*c < ' ') *c = ' '; /* an error is one line */
    run->status =
        sn_fail(run->err, SN_REFUSED, "line %d%s%s: %s", run->line, *construct ? ", " : "", construct, sentence);
    longjmp(run->out, 1);
}

void *sn_jalloc(sn_jrun *run, size_t n, size_t size) {
    size_t bytes;
    if (!sn_mul(n, size, &bytes) || bytes > run->limits.memory - run->memory)
        sn_jfail(run, "", "the template needs more than %zu MiB of memory", run->limits.memory >> 20);
    run->memory += bytes;
    bytes = sn_round_up(bytes, ALIGNMENT);
    sn_jchunk *chunk = run->chunks;
    if (!chunk || bytes > chunk->capacity - chunk->used) {
        size_t capacity = bytes > CHUNK_BYTES / 4 ? bytes : CHUNK_BYTES;
        chunk = calloc(1, sizeof *chunk + capacity);
        if (!chunk) {
            run->status = sn_fail(run->err, SN_STOP, "out of memory for a chat template: %zu bytes", capacity);
            longjmp(run->out, 1);
        }
        chunk->capacity = capacity;
        /* A large piece gets a chunk of its own behind the first, whose rest stays in use. */
        sn_jchunk **link = run->chunks && capacity != CHUNK_BYTES ? &run->chunks->next : &run->chunks;
        chunk->next = *link;
        *link = chunk;
    }
    void *out = chunk->bytes + chunk->used;
    chunk->used += bytes;
    return out;
}

void sn_jcharge(sn_jrun *run, size_t n) {
    if (n > run->limits.steps - run->steps)
        sn_jfail(run, "", "the template takes more than %zu steps", run->limits.steps);
    run->steps += n;
}

void sn_jenter(sn_jrun *run) {
    if (run->depth >= run->limits.depth) sn_jfail(run, "", "the template nests more than %d deep", run->limits.depth);
    run->depth++;
    sn_jcharge(run, 1);
}
