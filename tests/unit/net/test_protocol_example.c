/* The worked example in docs/PROTOCOL.md has the hashes that this program computes. */
#include "net/timeline.h"

#include "base/file.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static void expect_line(const char *document, const char *name, const sn_hash *hash) {
    char hex[2 * SN_HASH_SIZE + 1], line[128];
    snprintf(line, sizeof line, "\n    %-9s%s\n", name, sn_hex(hash->bytes, SN_HASH_SIZE, hex));
    cr_assert(strstr(document, line), "docs/PROTOCOL.md lacks:%s", line);
}

Test(protocol_example, the_timeline_of_the_document_is_right) {
    sn_buf document;
    sn_err err = {0};
    sn_buf_init(&document, 1 << 20);
    cr_assert_eq(sn_read_file(SN_FIXTURES "/../../docs/PROTOCOL.md", 1 << 20, &document, &err), SN_OK, "%s", err.text);
    const char *text = (const char *)document.data;
    uint8_t model[SN_HASH_SIZE], blocks[2][SN_HASH_SIZE];
    memset(model, 0x11, sizeof model);
    memset(blocks[0], 0x22, sizeof blocks[0]);
    memset(blocks[1], 0x33, sizeof blocks[1]);
    sn_hasher *hasher = sn_hasher_new();
    sn_hash weights = sn_hash_of(blocks, sizeof blocks);
    sn_hash begin = sn_timeline_begin(model, 2, 4, (const uint8_t(*)[SN_HASH_SIZE])blocks);
    sn_hash one = sn_timeline_next(hasher, &begin, (const float[]){1, -2}, 2);
    sn_hash two = sn_timeline_next(hasher, &one, (const float[]){0.5f, 0}, 2);
    expect_line(text, "weights", &weights);
    expect_line(text, "T(0)", &begin);
    expect_line(text, "T(1)", &one);
    expect_line(text, "T(2)", &two);
    sn_hasher_free(hasher);
    sn_buf_fini(&document);
}
