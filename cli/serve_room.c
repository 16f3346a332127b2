#include "cli/serve_room.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "A:B" */
static bool read_range(const char *text, size_t *first, size_t *end) {
    char *colon, *rest;
    *first = strtoull(text, &colon, 10);
    if (colon == text || *colon != ':') return false;
    *end = strtoull(colon + 1, &rest, 10);
    return rest != colon + 1 && !*rest;
}

/* What a node of this model has room for; zeros: it does not serve it now. Its blocks are [*first, *end). */
static sn_serve_room room_of(const json_t *node, const json_t *description, size_t *first, size_t *end) {
    const char *id = json_string_value(json_object_get(description, "id")),
               *model = json_string_value(json_object_get(node, "model")),
               *state = json_string_value(json_object_get(node, "state")),
               *range = json_string_value(json_object_get(node, "blocks"));
    const double tokens = json_number_value(json_object_get(node, "kv_tokens_max")),
                 bytes = json_number_value(json_object_get(node, "kv_bytes_max")),
                 swapped = json_number_value(json_object_get(node, "swap_bytes_max"));
    if (!id || !model || strcmp(id, model) != 0 || !state || strcmp(state, "online") != 0 || !range || !(bytes > 0) ||
        !(tokens > 0) || !read_range(range, first, end) ||
        *end > json_array_size(json_object_get(description, "blocks")) || *first >= *end)
        return (sn_serve_room){0};
    return (sn_serve_room){(size_t)tokens, (size_t)(tokens * (1 + swapped / bytes) * 7 / 8)};
}

sn_serve_room sn_serve_room_of(const json_t *status, const json_t *description) {
    const json_t *nodes = json_object_get(status, "nodes"), *node;
    const size_t n = json_array_size(json_object_get(description, "blocks"));
    sn_serve_room room = {0};
    size_t *most = calloc(n + 1, sizeof *most), *sum = calloc(n + 1, sizeof *sum);
    size_t i, first = 0, end = 0;
    json_array_foreach(nodes, i, node) {
        const sn_serve_room here = most && sum ? room_of(node, description, &first, &end) : (sn_serve_room){0};
        for (size_t b = first; b < end && here.longest; b++) {
            most[b] = here.longest > most[b] ? here.longest : most[b];
            sum[b] += here.all;
        }
    }
    bool any = false;
    for (size_t b = 0; b < n && most && sum; b++) {
        if (!most[b]) continue; /* no node serves it yet */
        room.longest = any ? sn_min_size(room.longest, most[b]) : most[b];
        room.all = any ? sn_min_size(room.all, sum[b]) : sum[b];
        any = true;
    }
    free(most);
    free(sum);
    return room;
}
