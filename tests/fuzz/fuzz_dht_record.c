/* Any bytes as a DHT record: refused with an error, or complete. */
#include "net/dht_record.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sn_err err = {0};
    sn_dht_record record;
    uint8_t model[SN_KEY_SIZE];
    memset(model, 7, sizeof model);
    sn_status status = sn_dht_record_open(data, size, model, 1000000, &record, &err);
    if (status ? !*err.text : !memchr(record.address, 0, sizeof record.address)) abort();
    return 0;
}
