/* Choosing a model of the swarm: the announcements are grouped by manifest, and the groups are compared. */
#include "sharing/swarm_model.h"

#include "base/clock.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS_MAX = 64, DISCOVER_MS = 5000, ASK_EVERY_US = 1000000, PATIENCE_MS = 60000, SHOWN_DIGITS = 12 };

typedef struct group {
    sn_hash manifest, model;
    int n_blocks, nodes;
    bool joined; /* a node that was joined serves it, or one that such a node has proven */
    uint64_t sessions;
    int least_nodes; /* of the block that the fewest nodes serve */
    uint64_t least_tokens_per_s;
    int covered; /* blocks that a node serves */
} group;

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

static group *find_group(group *groups, size_t *n, const sn_announcement *a) {
    for (size_t i = 0; i < *n; i++)
        if (!memcmp(groups[i].manifest.bytes, a->manifest, SN_KEY_SIZE) && groups[i].n_blocks == (int)a->n_blocks)
            return &groups[i];
    if (*n == GROUPS_MAX) return NULL;
    group *new = &groups[(*n)++];
    *new = (group){.n_blocks = (int)a->n_blocks};
    memcpy(new->manifest.bytes, a->manifest, SN_KEY_SIZE);
    memcpy(new->model.bytes, a->model, SN_KEY_SIZE);
    return new;
}

/* How well the blocks of a group's model are served, by nodes of the directory whether they share its files or not. */
static void measure(group *g, const sn_directory *directory) {
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

static size_t make_groups(const sn_directory *directory, const sn_swarm_query *query, group groups[GROUPS_MAX]) {
    size_t n = 0;
    int64_t now_ms = sn_unix_ms();
    for (size_t i = 0; i < sn_directory_count(directory); i++) {
        const sn_announcement *a = sn_directory_at(directory, i);
        group *g = is_asked_for(a, query) ? find_group(groups, &n, a) : NULL;
        if (!g) continue;
        g->nodes++;
        g->sessions += a->sessions < UINT32_MAX ? a->sessions : UINT32_MAX;
        g->joined |= sn_directory_is_proven_at(directory, i, now_ms);
    }
    for (size_t i = 0; i < n; i++) measure(&groups[i], directory);
    return n;
}

static int compare_for_node(const void *a, const void *b) {
    const group *x = a, *y = b;
    if (x->joined != y->joined) return x->joined ? -1 : 1;
    if (x->least_nodes != y->least_nodes) return x->least_nodes < y->least_nodes ? -1 : 1;
    if (x->sessions != y->sessions) return x->sessions > y->sessions ? -1 : 1;
    return memcmp(&x->manifest, &y->manifest, sizeof x->manifest);
}

static int compare_for_client(const void *a, const void *b) {
    const group *x = a, *y = b;
    if (x->joined != y->joined) return x->joined ? -1 : 1;
    bool x_whole = x->covered == x->n_blocks, y_whole = y->covered == y->n_blocks;
    if (x_whole != y_whole) return x_whole ? -1 : 1;
    if (x->least_tokens_per_s != y->least_tokens_per_s) return x->least_tokens_per_s > y->least_tokens_per_s ? -1 : 1;
    return memcmp(&x->manifest, &y->manifest, sizeof x->manifest);
}

/* Bytes of one block, by the manifest: an equal share of the files. */
static uint64_t block_bytes(const sn_manifest *m) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->n_files; i++) bytes += m->files[i].size - m->files[i].header;
    return m->n_blocks ? bytes / (uint64_t)m->n_blocks : 0;
}

/* The first group that fits; its manifest. A manifest that does not come takes a quarter of the time that is left, and
 * the last one all of it, so that invented models do not draw the choice out. SN_REFUSED: none fits. */
static sn_status take_fitting(sn_fetcher *fetcher, const group *groups, size_t n, const sn_swarm_query *query,
                              int64_t until_us, size_t *which, sn_manifest *manifest, sn_err *err) {
    sn_buf text;
    uint64_t memory = query->memory;
    sn_status status = SN_REFUSED;
    sn_buf_init(&text, SN_MANIFEST_MAX);
    for (*which = 0; *which < n; ++*which) {
        int64_t now_us = sn_now_us(), each_us = *which + 1 < n ? (until_us - now_us) / 4 : until_us - now_us;
        sn_manifest_fini(manifest);
        status =
            sn_fetcher_manifest(fetcher, &groups[*which].manifest, now_us + (each_us > 0 ? each_us : 1), &text, err);
        if (!status) status = sn_manifest_parse((const char *)text.data, text.len, manifest, err);
        if (status == SN_STOP) break;
        if (!status && memory && block_bytes(manifest) > memory)
            status =
                sn_fail(err, SN_REFUSED, "a block of '%s' does not fit into this machine's memory", manifest->name);
        if (!status) break;
    }
    sn_buf_fini(&text);
    return status;
}

static void describe(const group *g, const sn_manifest *manifest, size_t n, const sn_swarm_query *query,
                     char *sentence) {
    char hex[2 * SN_HASH_SIZE + 1];
    sn_hex(g->manifest.bytes, SN_HASH_SIZE, hex);
    size_t used = (size_t)snprintf(sentence, SN_SWARM_SENTENCE_SIZE,
                                   "model '%s' (--model-id %.*s), %s: its least served block has %d node%s, %" PRIu64
                                   " tokens/s, %" PRIu64 " sessions",
                                   manifest->name, SHOWN_DIGITS, hex,
                                   n == 1 ? "the only one that is shared here" : "of several shared here",
                                   g->least_nodes, g->least_nodes == 1 ? "" : "s", g->least_tokens_per_s, g->sessions);
    if (!query->memory || used >= SN_SWARM_SENTENCE_SIZE) return;
    uint64_t each = block_bytes(manifest), fit = each ? query->memory / each : 0;
    snprintf(sentence + used, SN_SWARM_SENTENCE_SIZE - used, "; about %" PRIu64 " of its %d blocks fit here",
             fit < (uint64_t)g->n_blocks ? fit : (uint64_t)g->n_blocks, g->n_blocks);
}

static int64_t patience_end(const sn_swarm_access *access) {
    return sn_now_us() + 1000 * (int64_t)(access->patience_ms ? access->patience_ms : PATIENCE_MS);
}

/* Waits until a node shares a model: a node that has just started reads its files first. */
static sn_status find_groups(const sn_swarm_access *access, sn_link *link, const sn_swarm_query *query,
                             group groups[GROUPS_MAX], size_t *n, sn_err *err) {
    int64_t until_us = patience_end(access);
    while (true) {
        sn_status status = sn_link_discover(link, NULL, DISCOVER_MS, err);
        if (status && (status != SN_RETRY || sn_now_us() >= until_us)) return status;
        *n = make_groups(sn_link_directory(link), query, groups);
        if (*n) return SN_OK;
        if (sn_now_us() >= until_us) break;
        status = sn_link_pause(link, ASK_EVERY_US, err);
        if (status) return status;
    }
    return sn_fail(err, SN_RETRY, "no node that answers at %s shares %s: give --model, or another address",
                   access->join[0], query->id ? "a model of this --model-id" : "the files of a model");
}

sn_status sn_swarm_choose(const sn_swarm_access *access, const sn_swarm_query *query, char name[SN_SWARM_NAME_SIZE],
                          char sentence[SN_SWARM_SENTENCE_SIZE], sn_err *err) {
    group *groups = NULL;
    size_t n = 0, which = 0;
    char hex[2 * SN_HASH_SIZE + 1];
    sn_manifest manifest = {0};
    sn_fetcher *fetcher = NULL;
    sn_status status = sn_calloc(&groups, GROUPS_MAX, sizeof *groups, err);
    if (!status) status = sn_fetcher_new(access, &fetcher, err);
    sn_link *link = status ? NULL : sn_fetcher_link(fetcher);
    if (!status && !link) status = sn_fail(err, SN_REFUSED, "no model and no address were given: --model or --join");
    if (!status) status = find_groups(access, link, query, groups, &n, err);
    if (!status && n) qsort(groups, n, sizeof *groups, query->memory ? compare_for_node : compare_for_client);
    if (!status) status = take_fitting(fetcher, groups, n, query, patience_end(access), &which, &manifest, err);
    if (!status) {
        snprintf(name, SN_SWARM_NAME_SIZE, "swarm:%s", sn_hex(groups[which].manifest.bytes, SN_HASH_SIZE, hex));
        describe(&groups[which], &manifest, n, query, sentence);
    }
    sn_manifest_fini(&manifest);
    sn_fetcher_free(&fetcher);
    free(groups);
    return status;
}
