/* Any bytes as a manifest: refused with an error, or files whose pieces are all of their bytes. */
#include "sharing/hub/manifest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sn_manifest m;
    sn_err err = {0};
    if (sn_manifest_parse((const char *)data, size, &m, &err)) {
        if (!err.text[0]) abort(); /* every refusal has a message */
    } else {
        if (m.n_blocks < 1 || !m.n_files) abort();
        for (size_t i = 0; i < m.n_files; i++) {
            const sn_manifest_file *file = &m.files[i];
            if (strchr(file->name, '/') || *file->name == '.' || !*file->name || file->header > file->size) abort();
            if (sn_manifest_piece_at(&m, file, 0)->from ||
                sn_manifest_piece_at(&m, file, file->size - 1)->to != file->size)
                abort();
        }
    }
    sn_manifest_fini(&m);
    return 0;
}
