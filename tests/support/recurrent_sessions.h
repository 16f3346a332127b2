/* Sessions of a small model with recurrent blocks on one device, and rows that each of them computes from the same
 * inputs, whatever is undone in between. */
#ifndef SN_TESTS_RECURRENT_SESSIONS_H
#define SN_TESTS_RECURRENT_SESSIONS_H

#include "blocks/span.h"
#include "kvcache/kvcache_private.h" /* private: tests give up snapshots */
#include "kvcache/prefix_cache.h"
#include "kvcache/swap.h"

enum {
    RECURRENT_TOKENS = 200,
    RECURRENT_WIDTH = 64, /* n_embd */
    RECURRENT_BLOCKS = 4, /* of most models */
};

typedef struct recurrent_options {
    const char *model;
    sn_device_id device;
    /* Of the largest expected element, by which rows may differ from those of the CPU; 0: they have the bits of a
     * session on this device that was never rewound. */
    float tolerance;
} recurrent_options;

typedef struct recurrent_sessions {
    recurrent_options options;
    sn_model *model;
    sn_device *device;
    sn_span *span;
    sn_kv_pool *pool;
    int n_blocks;
    float *inputs, *want; /* (RECURRENT_TOKENS, RECURRENT_WIDTH) */
} recurrent_sessions;

recurrent_sessions recurrent_begin(recurrent_options options, size_t kv_memory);
void recurrent_end(recurrent_sessions *s);

sn_kv_cache *recurrent_new_cache(const recurrent_sessions *s);
void recurrent_forward(const recurrent_sessions *s, sn_kv_cache *kv, const float *rows, int n, float *out);
/* Fails the test unless out is as expected of the n rows from `first` on. */
void recurrent_check_rows(const recurrent_sessions *s, const float *out, int first, int n);
/* Steps of `chunk` rows from the cache's end to `until`; every row must be as expected. */
void recurrent_expect_rows(const recurrent_sessions *s, sn_kv_cache *kv, int until, int chunk);
/* So many sessions of different lengths, at most RECURRENT_SESSIONS_MAX, decode `steps` rows each in common batches;
 * half way the last one is rewound to `rewound_to`. Every row must be as expected. */
enum { RECURRENT_SESSIONS_MAX = 8 };
void recurrent_expect_batches(const recurrent_sessions *s, int sessions, int steps, int rewound_to);
/* Rows that other inputs lead to: what a rejected draft leaves in a cache. */
void recurrent_other_rows(const recurrent_sessions *s, sn_kv_cache *kv, int n);

/* Computes rows up to `until` and offers their pages under hashes that name their positions. */
void recurrent_publish(const recurrent_sessions *s, sn_kv_cache *kv, int until);
/* Attaches such pages, at most `pages`; the result is that of sn_prefix_cache_attach. */
int recurrent_attach(sn_kv_cache *kv, int pages, float *out);

#endif
