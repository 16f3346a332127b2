/* Runs a fuzz target over files (and the files of folders, one level deep) if libFuzzer is not linked in. */
#include "base/file.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int n_inputs;

static int replay_file(const char *path) {
    sn_buf input;
    sn_err err;
    if (sn_read_file(path, (size_t)1 << 30, &input, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    LLVMFuzzerTestOneInput(input.data, input.len);
    sn_buf_fini(&input);
    n_inputs++;
    return 0;
}

static int replay_folder(const char *path, DIR *folder) {
    int failed = 0;
    char name[4096];
    struct stat st;
    for (struct dirent *entry; (entry = readdir(folder));) {
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (!stat(name, &st) && S_ISREG(st.st_mode)) failed |= replay_file(name);
    }
    closedir(folder);
    return failed;
}

int main(int argc, char **argv) {
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        failed |= folder ? replay_folder(argv[i], folder) : replay_file(argv[i]);
    }
    printf("%d inputs replayed\n", n_inputs);
    return failed;
}
