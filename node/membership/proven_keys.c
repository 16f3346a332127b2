#include "node/membership/proven_keys.h"

#include <stdlib.h>
#include <string.h>

static int compare_keys(const void *a, const void *b) { return memcmp(a, b, SN_KEY_SIZE); }

void sn_proven_keys_fini(sn_proven_keys *proven) {
    free(proven->keys);
    *proven = (sn_proven_keys){0};
}

static void proven_keys_read(sn_proven_keys *proven, const sn_directory *directory, int64_t unix_ms) {
    size_t n = sn_directory_count(directory);
    sn_proven_keys_fini(proven);
    proven->read = true;
    proven->read_unix_ms = unix_ms;
    proven->keys = n ? malloc(n * sizeof *proven->keys) : NULL;
    for (size_t i = 0; proven->keys && i < n; i++)
        if (sn_directory_is_proven_at(directory, i, unix_ms))
            memcpy(proven->keys[proven->n++], sn_directory_at(directory, i)->curve_key, SN_KEY_SIZE);
    if (proven->n) qsort(proven->keys, proven->n, sizeof *proven->keys, compare_keys);
}

bool sn_proven_keys_has(sn_proven_keys *proven, const sn_directory *directory, const uint8_t key[SN_KEY_SIZE],
                        int64_t unix_ms) {
    int64_t age_ms = unix_ms - proven->read_unix_ms;
    if (!proven->read || age_ms < 0 || age_ms >= SN_PROVEN_KEYS_EVERY_MS) proven_keys_read(proven, directory, unix_ms);
    return proven->n && bsearch(key, proven->keys, proven->n, sizeof *proven->keys, compare_keys);
}
