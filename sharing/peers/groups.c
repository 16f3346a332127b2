#include "sharing/peers/groups_private.h"

#include "base/clock.h"

#include <string.h>

static bool is_asked_for(const sn_announcement *a, const sn_swarm_query *query) {
    static const uint8_t none[SN_KEY_SIZE];
    char hex[2 * SN_KEY_SIZE + 1];
    if (a->state == SN_NODE_OFFLINE || !memcmp(a->manifest, none, sizeof none) || !a->n_blocks ||
        a->n_blocks > SN_BLOCKS_MAX)
        return false;
    if (!query->id) return true;
    size_t n = strlen(query->id);
    return !strncmp(sn_hex(a->manifest, SN_KEY_SIZE, hex), query->id, n) ||
           !strncmp(sn_hex(a->model, SN_KEY_SIZE, hex), query->id, n);
}

static sn_model_group *find_group(sn_model_group *groups, size_t *n, const sn_announcement *a) {
    for (size_t i = 0; i < *n; i++)
        if (!memcmp(groups[i].manifest.bytes, a->manifest, SN_KEY_SIZE) && groups[i].n_blocks == (int)a->n_blocks)
            return &groups[i];
    if (*n == SN_MODEL_GROUPS_MAX) return NULL;
    sn_model_group *new = &groups[(*n)++];
    *new = (sn_model_group){.n_blocks = (int)a->n_blocks};
    memcpy(new->manifest.bytes, a->manifest, SN_KEY_SIZE);
    memcpy(new->model.bytes, a->model, SN_KEY_SIZE);
    return new;
}

/* How well the blocks of a group's model are served, by nodes of the directory whether they share its files or not. */
static void measure(sn_model_group *g, const sn_directory *directory) {
    int nodes[SN_BLOCKS_MAX] = {0};
    uint64_t tokens_per_s[SN_BLOCKS_MAX] = {0};
    for (size_t i = 0; i < sn_directory_count(directory); i++) {
        const sn_announcement *a = sn_directory_at(directory, i);
        if (a->state > SN_NODE_ONLINE || memcmp(a->model, g->model.bytes, SN_KEY_SIZE)) continue;
        for (uint64_t b = a->first_block; b < a->end_block && b < (uint64_t)g->n_blocks; b++) {
            nodes[b]++;
            tokens_per_s[b] += a->tokens_per_s < UINT32_MAX ? a->tokens_per_s : UINT32_MAX;
        }
    }
    g->least_nodes = nodes[0];
    g->least_tokens_per_s = tokens_per_s[0];
    for (int b = 0; b < g->n_blocks; b++) {
        if (nodes[b] < g->least_nodes) g->least_nodes = nodes[b];
        if (tokens_per_s[b] < g->least_tokens_per_s) g->least_tokens_per_s = tokens_per_s[b];
        g->covered += nodes[b] > 0;
    }
}

size_t sn_model_groups(const sn_directory *directory, const sn_swarm_query *query,
                       sn_model_group groups[SN_MODEL_GROUPS_MAX]) {
    size_t n = 0;
    int64_t now_ms = sn_unix_ms();
    for (int proven = 1; proven >= 0; proven--)
        for (size_t i = 0; i < sn_directory_count(directory); i++) {
            const sn_announcement *a = sn_directory_at(directory, i);
            if (sn_directory_is_proven_at(directory, i, now_ms) != proven) continue;
            sn_model_group *g = is_asked_for(a, query) ? find_group(groups, &n, a) : NULL;
            if (!g) continue;
            g->nodes++;
            g->sessions += a->sessions < UINT32_MAX ? a->sessions : UINT32_MAX;
            g->joined |= proven;
        }
    for (size_t i = 0; i < n; i++) measure(&groups[i], directory);
    return n;
}
