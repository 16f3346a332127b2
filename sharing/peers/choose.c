/* Choosing a model of the swarm: the groups of announcements are compared. */
#include "sharing/peers/groups_private.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DISCOVER_MS = 5000, ASK_EVERY_US = 1000000, PATIENCE_MS = 60000, SHOWN_DIGITS = 12 };

static int compare_for_node(const void *a, const void *b) {
    const sn_model_group *x = a, *y = b;
    if (x->joined != y->joined) return x->joined ? -1 : 1;
    if (x->least_nodes != y->least_nodes) return x->least_nodes < y->least_nodes ? -1 : 1;
    if (x->sessions != y->sessions) return x->sessions > y->sessions ? -1 : 1;
    return memcmp(&x->manifest, &y->manifest, sizeof x->manifest);
}

static int compare_for_client(const void *a, const void *b) {
    const sn_model_group *x = a, *y = b;
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
static sn_status take_fitting(sn_fetcher *fetcher, const sn_model_group *groups, size_t n, const sn_swarm_query *query,
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

static void describe(const sn_model_group *g, const sn_manifest *manifest, size_t n, const sn_swarm_query *query,
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
                             sn_model_group groups[SN_MODEL_GROUPS_MAX], size_t *n, sn_err *err) {
    int64_t until_us = patience_end(access);
    while (true) {
        sn_status status = sn_link_discover(link, NULL, DISCOVER_MS, err);
        if (status && (status != SN_RETRY || sn_now_us() >= until_us)) return status;
        *n = sn_model_groups(sn_link_directory(link), query, groups);
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
    sn_model_group *groups = NULL;
    size_t n = 0, which = 0;
    char hex[2 * SN_HASH_SIZE + 1];
    sn_manifest manifest = {0};
    sn_fetcher *fetcher = NULL;
    sn_status status = sn_calloc(&groups, SN_MODEL_GROUPS_MAX, sizeof *groups, err);
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
