/* A saved session that was encrypted with the right key: the input is its JSON, a NUL byte, and its KV cache. It is
 * refused with an error, or continues: a token can be appended where the context has room. */
#include "base/encrypted_file.h"
#include "include/swarm.h"
#include "tests/support/files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t secret[32] = "a key for the fuzzer's sessions";

static void require(bool good) {
    if (!good) abort();
}

static const swarm_model *model(void) {
    static swarm_model *opened;
    if (!opened) require(!swarm_model_open(SN_FIXTURES "/golden/llama", NULL, &opened, NULL));
    return opened;
}

static void make_file(const uint8_t *data, size_t size, const char *path) {
    const sn_file_key key = {(uint8_t *)(uintptr_t)secret, sizeof secret};
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    const size_t len = nul ? (size_t)(nul - data) : size, rest = nul ? size - len - 1 : 0;
    const uint8_t head[4] = {(uint8_t)len, (uint8_t)(len >> 8), (uint8_t)(len >> 16), (uint8_t)(len >> 24)};
    sn_encrypted_file *file = NULL;
    sn_err err;
    require(!sn_encrypted_file_create(path, "swarm session 1\n", &key, &file, &err) &&
            !sn_encrypted_file_write(file, head, sizeof head, &err) &&
            !sn_encrypted_file_write(file, data, len, &err) &&
            !sn_encrypted_file_write(file, data + size - rest, rest, &err) && !sn_encrypted_file_commit(file, &err));
    sn_encrypted_file_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    swarm_session *session = NULL;
    swarm_error *error = NULL;
    if (size > 1 << 20) return 0;
    char *folder = temp_folder(), *path = temp_path(folder, "session"), *key_path = temp_path(folder, "key");
    make_file(data, size, path);
    write_file(folder, "key", secret, sizeof secret);
    require(!chmod(key_path, 0600));
    require(!swarm_session_open(model(), NULL, NULL, NULL, NULL, &session, NULL));
    if (swarm_session_load(session, path, key_path, &error)) {
        require(*swarm_error_text(error));
        swarm_error_free(error);
    } else {
        size_t n;
        (void)swarm_session_tokens(session, &n);
        (void)swarm_session_extra(session, NULL);
        require(!swarm_session_append(session, (const int32_t[]){1}, 1, NULL, &error) || *swarm_error_text(error));
        swarm_error_free(error);
    }
    swarm_session_close(session);
    free(path);
    free(key_path);
    temp_folder_remove(&folder);
    return 0;
}
