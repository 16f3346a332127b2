#include "cli/serve_room.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 30 }; /* tokens that a node without any attention has room for */

/* "A:B" */
static bool read_range(const char *text, size_t *first, size_t *end) {
    char *colon, *rest;
    *first = strtoull(text, &colon, 10);
    if (colon == text || *colon != ':') return false;
    *end = strtoull(colon + 1, &rest, 10);
    return rest != colon + 1 && !*rest;
}

/* Tokens that all blocks of a node have room for; 0: it does not serve this model now. Its blocks are [*first, *end).
 */
static double tokens_of(const json_t *node, const json_t *description, double bytes, size_t *first, size_t *end) {
    const json_t *blocks = json_object_get(description, "blocks");
    const char *id = json_string_value(json_object_get(description, "id")),
               *model = json_string_value(json_object_get(node, "model")),
               *state = json_string_value(json_object_get(node, "state")),
               *range = json_string_value(json_object_get(node, "blocks"));
    const double room = json_number_value(json_object_get(node, "kv_bytes_max")) * 7 / 8;
    double per_token = 0;
    if (!id || !model || strcmp(id, model) != 0 || !state || strcmp(state, "online") != 0 || !range || !(room > 0) ||
        !read_range(range, first, end) || *end > json_array_size(blocks) || *first >= *end)
        return 0;
    for (size_t b = *first; b < *end; b++)
        per_token += bytes * json_number_value(json_object_get(json_array_get(blocks, b), "kv_floats"));
    return room / per_token < MOST ? room / per_token : MOST;
}

sn_serve_room sn_serve_room_of(const json_t *status, const json_t *description, double bytes) {
    const json_t *nodes = json_object_get(status, "nodes"), *node;
    const size_t n = json_array_size(json_object_get(description, "blocks"));
    sn_serve_room room = {0};
    double *most = calloc(n + 1, sizeof *most), *sum = calloc(n + 1, sizeof *sum);
    size_t i, first = 0, end = 0;
    json_array_foreach(nodes, i, node) {
        const double tokens = most && sum ? tokens_of(node, description, bytes, &first, &end) : 0;
        for (size_t b = first; b < end && tokens > 0; b++) {
            most[b] = tokens > most[b] ? tokens : most[b];
            sum[b] += tokens;
        }
    }
    bool any = false;
    for (size_t b = 0; b < n && most && sum; b++) {
        if (!(most[b] > 0)) continue; /* no node serves it yet */
        room.longest = any ? sn_min_size(room.longest, (size_t)most[b]) : (size_t)most[b];
        room.all = any ? sn_min_size(room.all, (size_t)sum[b]) : (size_t)sum[b];
        any = true;
    }
    free(most);
    free(sum);
    return room;
}
