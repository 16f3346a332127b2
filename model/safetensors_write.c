/* Writes safetensors: to a file by way of a temporary name, or to a buffer. */
#include "model/safetensors.h"

#include "base/file.h"
#include "base/mem.h"

#include <string.h>

enum { HEADER_MAX = 64 << 20, ALIGNMENT = 8 };

static sn_status entry_bytes(const sn_safetensors_entry *entry, size_t *bytes, sn_err *err) {
    bool plain = (unsigned)entry->dtype < SN_DTYPE_COUNT && sn_dtype_block(entry->dtype) == 1;
    if (!plain || entry->n_dims < 0 || entry->n_dims > SN_SAFETENSORS_DIMS_MAX)
        return sn_fail(err, SN_REFUSED, "tensor '%s' cannot be written: its type or its number of dimensions",
                       entry->name);
    *bytes = sn_dtype_bytes(entry->dtype);
    for (int i = 0; i < entry->n_dims; i++)
        if (!sn_mul(*bytes, entry->dims[i], bytes))
            return sn_fail(err, SN_REFUSED, "tensor '%s' is too large", entry->name);
    for (const char *at = entry->name; *at; at++)
        if (*at < 0x20 || *at > 0x7e || *at == '"' || *at == '\\')
            return sn_fail(err, SN_REFUSED, "a tensor's name must be printable ASCII without quotes");
    return SN_OK;
}

/* Appends the header: eight bytes of length, then JSON, padded with spaces so that the data begins aligned. */
static sn_status make_header(const sn_safetensors_entry *entries, size_t n, sn_buf *out, sn_err *err) {
    uint64_t len = 0;
    size_t bytes, at = 0;
    sn_status status = sn_buf_append(out, &len, sizeof len, err);
    if (!status) status = sn_buf_printf(out, err, "{");
    for (size_t i = 0; !status && i < n; i++) {
        const sn_safetensors_entry *e = &entries[i];
        status = entry_bytes(e, &bytes, err);
        if (!status)
            status = sn_buf_printf(out, err, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", e->name,
                                   sn_dtype_name(e->dtype));
        for (int d = 0; !status && d < e->n_dims; d++)
            status = sn_buf_printf(out, err, "%s%zu", d ? "," : "", e->dims[d]);
        if (!status) status = sn_buf_printf(out, err, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    if (!status) status = sn_buf_printf(out, err, "}");
    while (!status && out->len % ALIGNMENT) status = sn_buf_append(out, " ", 1, err);
    if (status) return status;
    len = out->len - sizeof len;
    memcpy(out->data, &len, sizeof len);
    return SN_OK;
}

sn_status sn_safetensors_serialize(const sn_safetensors_entry *entries, size_t n, sn_buf *out, sn_err *err) {
    size_t bytes = 0;
    sn_status status = make_header(entries, n, out, err);
    for (size_t i = 0; !status && i < n; i++) {
        status = entry_bytes(&entries[i], &bytes, err);
        if (!status) status = sn_buf_append(out, entries[i].data, bytes, err);
    }
    return status;
}

static sn_status write_entries(sn_new_file *file, const sn_safetensors_entry *entries, size_t n, const sn_buf *header,
                               sn_err *err) {
    size_t bytes = 0;
    sn_status status = sn_new_file_write(file, header->data, header->len, err);
    for (size_t i = 0; !status && i < n; i++) {
        status = entry_bytes(&entries[i], &bytes, err);
        if (!status) status = sn_new_file_write(file, entries[i].data, bytes, err);
    }
    return status;
}

sn_status sn_safetensors_write(const char *path, const sn_safetensors_entry *entries, size_t n, sn_err *err) {
    sn_new_file file;
    sn_buf header;
    sn_buf_init(&header, HEADER_MAX);
    sn_status status = make_header(entries, n, &header, err);
    if (!status) {
        status = sn_new_file_create(path, &file, err);
        if (!status) status = write_entries(&file, entries, n, &header, err);
        if (!status) status = sn_new_file_commit(&file, err);
        sn_new_file_discard(&file);
    }
    sn_buf_fini(&header);
    return status;
}
