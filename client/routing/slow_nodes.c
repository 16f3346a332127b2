#include "client/routing/slow_nodes.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 2 * SN_KEY_SIZE + 48 };

typedef struct slow_node {
    uint8_t id[SN_KEY_SIZE];
    int64_t block_ns, until_unix_ms;
} slow_node;

struct sn_slow_nodes {
    slow_node all[SN_SLOW_NODES_MAX];
    size_t n;
    char *path; /* NULL: none */
};

static slow_node *find(const sn_slow_nodes *nodes, const uint8_t id[SN_KEY_SIZE]) {
    for (size_t i = 0; nodes && i < nodes->n; i++)
        if (!memcmp(nodes->all[i].id, id, SN_KEY_SIZE)) return (slow_node *)&nodes->all[i];
    return NULL;
}

static void add(sn_slow_nodes *nodes, const slow_node *node) {
    slow_node *at = nodes->all;
    for (size_t i = 1; i < nodes->n; i++)
        if (nodes->all[i].until_unix_ms < at->until_unix_ms) at = &nodes->all[i];
    if (nodes->n < SN_SLOW_NODES_MAX) at = &nodes->all[nodes->n++];
    *at = *node;
}

/* A line is the id in hexadecimal, nanoseconds of a block, and when it is forgotten. Other lines are passed over. */
static void take_line(sn_slow_nodes *nodes, const char *line, int64_t unix_ms) {
    enum { DIGITS = 2 * SN_KEY_SIZE };
    char digits[DIGITS + 1], *at;
    slow_node node;
    if (strspn(line, "0123456789abcdef") != DIGITS) return;
    snprintf(digits, sizeof digits, "%.*s", DIGITS, line);
    if (sn_unhex(digits, node.id, SN_KEY_SIZE, NULL)) return;
    node.block_ns = strtoll(line + DIGITS, &at, 10);
    node.until_unix_ms = strtoll(at, &at, 10);
    if (*at != '\n') return;
    bool valid = node.block_ns > 0 && node.until_unix_ms > unix_ms && node.until_unix_ms <= unix_ms + SN_SLOW_MS;
    if (valid && !find(nodes, node.id)) add(nodes, &node);
}

sn_status sn_slow_nodes_new(const char *path, int64_t unix_ms, sn_slow_nodes **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status || !path) return status;
    if (!((*out)->path = strdup(path))) {
        sn_slow_nodes_free(out);
        return sn_fail(err, SN_STOP, "out of memory");
    }
    FILE *file = fopen(path, "r");
    char line[LINE_MAX_BYTES];
    for (int i = 0; file && i < 4 * SN_SLOW_NODES_MAX && fgets(line, sizeof line, file); i++)
        take_line(*out, line, unix_ms);
    if (file) fclose(file);
    return SN_OK;
}

void sn_slow_nodes_free(sn_slow_nodes **nodes) {
    if (*nodes) free((*nodes)->path);
    free(*nodes);
    *nodes = NULL;
}

static void save(const sn_slow_nodes *nodes) {
    sn_buf text;
    sn_err err = {0};
    sn_status status = SN_OK;
    if (!nodes->path) return;
    sn_buf_init(&text, SN_SLOW_NODES_MAX * LINE_MAX_BYTES);
    for (size_t i = 0; i < nodes->n && !status; i++) {
        char digits[2 * SN_KEY_SIZE + 1], line[LINE_MAX_BYTES];
        int len =
            snprintf(line, sizeof line, "%s %" PRId64 " %" PRId64 "\n", sn_hex(nodes->all[i].id, SN_KEY_SIZE, digits),
                     nodes->all[i].block_ns, nodes->all[i].until_unix_ms);
        status = sn_buf_append(&text, line, (size_t)len, &err);
    }
    if (!status) status = sn_file_replace(nodes->path, text.data, text.len, &err);
    if (status) sn_log(SN_LOG_DEBUG, "slow nodes not saved", "text=%s", err.text);
    sn_buf_fini(&text);
}

void sn_slow_nodes_note(sn_slow_nodes *nodes, const uint8_t id[SN_KEY_SIZE], int64_t claimed_ns, int64_t measured_ns,
                        int64_t unix_ms) {
    slow_node *known = find(nodes, id);
    if (!nodes || claimed_ns <= 0) return;
    bool slow = measured_ns / SN_SLOW_FACTOR > claimed_ns, near = measured_ns / 2 <= claimed_ns;
    if (known && near) {
        *known = nodes->all[--nodes->n];
        save(nodes);
    } else if (!known && slow) {
        slow_node node = {.block_ns = measured_ns, .until_unix_ms = unix_ms + SN_SLOW_MS};
        memcpy(node.id, id, SN_KEY_SIZE);
        add(nodes, &node);
        char digits[9];
        sn_log(SN_LOG_INFO, "node slower than it claims", "node=%s claimed_us=%" PRId64 " measured_us=%" PRId64,
               sn_hex(id, 4, digits), claimed_ns / 1000, measured_ns / 1000);
        save(nodes);
    }
}

int64_t sn_slow_nodes_block_ns(const sn_slow_nodes *nodes, const uint8_t id[SN_KEY_SIZE], int64_t unix_ms) {
    const slow_node *node = find(nodes, id);
    return node && node->until_unix_ms > unix_ms ? node->block_ns : 0;
}
