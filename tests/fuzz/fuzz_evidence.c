/* A file of evidence with a right checksum. The input is the header's JSON, a NUL byte, and what follows: the fields of
 * a receipt, which is signed and stands for each '@' of the JSON, and rows. It is refused with an error, or every
 * statement is about rows and blocks that it holds. */
#include "client/audit/evidence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOCKS_MAX = INT16_MAX + SN_SPAN_BLOCKS_MAX };

static volatile float sink;

static void require(bool good) {
    if (!good) abort();
}

/* The receipt of the first bytes, in hexadecimal digits. */
static void make_receipt(const uint8_t *data, size_t size, char text[2 * SN_RECEIPT_SIZE + 1]) {
    static sn_identity identity;
    static bool has_identity;
    sn_receipt receipt = {0};
    uint8_t sealed[SN_RECEIPT_SIZE];
    sn_err err;
    if (!has_identity) require(!sn_identity_new(&identity, &err));
    has_identity = true;
    memcpy(&receipt, data, size < sizeof receipt ? size : sizeof receipt);
    receipt.version[SN_RECEIPT_VERSION_SIZE] = 0;
    require(!sn_receipt_seal(&receipt, &identity, sealed, &err));
    sn_hex(sealed, sizeof sealed, text);
}

static void make_file(const uint8_t *data, size_t size, sn_buf *out) {
    char receipt[2 * SN_RECEIPT_SIZE + 1];
    sn_err err;
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    const size_t header = nul ? (size_t)(nul - data) : size, skipped = nul ? header + 1 : size;
    make_receipt(data + skipped, size - skipped, receipt);
    sn_buf_init(out, 64 << 20);
    require(!sn_buf_append(out, "swarm evidence 1\n", 17, &err));
    for (size_t i = 0; i < header; i++) {
        const bool stands = data[i] == '@';
        require(!sn_buf_append(out, stands ? (const void *)receipt : data + i, stands ? strlen(receipt) : 1, &err));
    }
    require(!sn_buf_append(out, "\n", 1, &err));
    const size_t rows = size - skipped > sizeof(sn_receipt) ? size - skipped - sizeof(sn_receipt) : 0;
    require(!sn_buf_append(out, data + size - rows, rows, &err));
    const sn_hash sum = sn_hash_of(out->data, out->len);
    require(!sn_buf_append(out, &sum, sizeof sum, &err));
}

static void read_all(const sn_evidence *e) {
    static bool at[BLOCKS_MAX + 1];
    const size_t width = (size_t)e->n_embd;
    for (size_t i = 0; i < (size_t)e->n_tokens * width; i++) sink += e->inputs[i];
    for (size_t i = 0; i < e->n; i++) {
        const sn_receipt *r = &e->statements[i].receipt;
        require(r->position + r->n <= (uint64_t)e->n_tokens && r->n_embd == (uint32_t)e->n_embd);
        for (size_t k = 0; e->statements[i].outputs && k < (size_t)r->n * width; k++)
            sink += e->statements[i].outputs[k];
    }
    for (int b = e->first; b < e->end; b++) sink += (float)e->block_hash[b - e->first].bytes[0];
    sn_evidence_cuts(e, at, e->end);
    (void)sn_evidence_wire(e, at, e->end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    sn_buf file;
    sn_evidence evidence;
    sn_err err = {0};
    if (size > 1 << 16) return 0;
    make_file(data, size, &file);
    const int fd = memfd_create("evidence", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, file.data, file.len) == (ssize_t)file.len);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (sn_evidence_load(path, &evidence, &err))
        require(*err.text);
    else
        read_all(&evidence);
    sn_evidence_fini(&evidence);
    close(fd);
    sn_buf_fini(&file);
    return 0;
}
