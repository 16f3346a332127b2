/* Any bytes as a swarm.json: refused with an error, or hashes of blocks and a name that can stand in such a file again.
 */
#include "model/base_weights.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned byte_sum; /* of all hashes, so that each one is read */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sn_base_weights w;
    sn_err err = {0};
    if (sn_base_weights_parse((const char *)data, size, "swarm.json", &w, &err)) {
        if (!err.text[0] || w.n_blocks) abort(); /* every refusal has a message */
    } else {
        if (w.n_blocks < 1 || w.n_blocks > SN_BLOCKS_MAX || strlen(w.model) >= sizeof w.model) abort();
        for (size_t i = 0; i < (size_t)w.n_blocks * sizeof *w.blocks; i++) byte_sum += ((const uint8_t *)w.blocks)[i];
        json_t *name = json_string(w.model); /* NULL: it is not UTF-8 */
        if (!name) abort();
        json_decref(name);
        if (!sn_base_weights_block_differs(&w, w.n_blocks - 1, &err) || !err.text[0]) abort();
    }
    sn_base_weights_fini(&w);
    return 0;
}
