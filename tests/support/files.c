#include "tests/support/files.h"

#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void require(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "test support: %s failed\n", what);
    abort();
}

void put_bytes(sn_buf *buf, const void *data, size_t len) {
    if (!buf->limit) sn_buf_init(buf, 64 << 20);
    require(sn_buf_append(buf, data, len, NULL) == SN_OK, "appending");
}

void put_u32(sn_buf *buf, uint32_t value) { put_bytes(buf, &value, sizeof value); }
void put_u64(sn_buf *buf, uint64_t value) { put_bytes(buf, &value, sizeof value); }
void put_f32(sn_buf *buf, float value) { put_bytes(buf, &value, sizeof value); }
void put_text(sn_buf *buf, const char *text) { put_bytes(buf, text, strlen(text)); }

void put_zeros(sn_buf *buf, size_t len) {
    for (; len; len--) put_bytes(buf, "", 1);
}

void pad_to(sn_buf *buf, size_t multiple) { put_zeros(buf, sn_round_up(buf->len, multiple) - buf->len); }

void put_gguf_string(sn_buf *buf, const char *text) {
    put_u64(buf, strlen(text));
    put_text(buf, text);
}

void put_gguf_header(sn_buf *buf, uint32_t version, uint64_t n_tensors, uint64_t n_values) {
    put_text(buf, "GGUF");
    put_u32(buf, version);
    put_u64(buf, n_tensors);
    put_u64(buf, n_values);
}

void put_gguf_key(sn_buf *buf, const char *key, uint32_t type) {
    put_gguf_string(buf, key);
    put_u32(buf, type);
}

void put_gguf_u32(sn_buf *buf, const char *key, uint32_t value) {
    put_gguf_key(buf, key, 4);
    put_u32(buf, value);
}

void put_gguf_f32(sn_buf *buf, const char *key, float value) {
    put_gguf_key(buf, key, 6);
    put_f32(buf, value);
}

void put_gguf_text(sn_buf *buf, const char *key, const char *value) {
    put_gguf_key(buf, key, 8);
    put_gguf_string(buf, value);
}

void put_gguf_tensor(sn_buf *buf, const char *name, uint64_t cols, uint64_t rows, uint32_t type, uint64_t offset) {
    put_gguf_string(buf, name);
    put_u32(buf, rows ? 2 : 1); /* rows == 0: a vector */
    put_u64(buf, cols);
    if (rows) put_u64(buf, rows);
    put_u32(buf, type);
    put_u64(buf, offset);
}

void put_safetensors(sn_buf *buf, const char *header, size_t data_len) {
    put_u64(buf, strlen(header));
    put_text(buf, header);
    put_zeros(buf, data_len);
}

char *temp_folder(void) {
    const char *base = getenv("TMPDIR");
    char *folder = NULL;
    require(asprintf(&folder, "%s/sn_test_XXXXXX", base ? base : "/tmp") > 0, "asprintf");
    require(mkdtemp(folder) != NULL, "mkdtemp");
    return folder;
}

void temp_folder_remove(char **folder) {
    DIR *dir = opendir(*folder);
    require(dir != NULL, "opendir");
    for (struct dirent *e; (e = readdir(dir));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
    require(rmdir(*folder) == 0, "rmdir");
    free(*folder);
    *folder = NULL;
}

char *temp_path(const char *folder, const char *name) {
    char *path = NULL;
    require(asprintf(&path, "%s/%s", folder, name) > 0, "asprintf");
    return path;
}

void write_file(const char *folder, const char *name, const void *data, size_t len) {
    char *path = temp_path(folder, name);
    FILE *file = fopen(path, "wb");
    require(file && fwrite(data, 1, len, file) == len && !fclose(file), "writing a file");
    free(path);
}

void damage_files(const char *folder) {
    static const char zeros[4096];
    DIR *dir = opendir(folder);
    require(dir != NULL, "opening a folder");
    for (struct dirent *e; (e = readdir(dir));) {
        int fd = e->d_name[0] == '.' ? -1 : openat(dirfd(dir), e->d_name, O_RDWR | O_CLOEXEC);
        if (fd < 0) continue;
        for (off_t at = sizeof zeros, end = lseek(fd, 0, SEEK_END) - at; at < end; at += (off_t)sizeof zeros)
            require(pwrite(fd, zeros, sizeof zeros, at) == (ssize_t)sizeof zeros, "writing a file");
        close(fd);
    }
    closedir(dir);
}

void copy_file(const char *from_folder, const char *folder, const char *name) {
    char *from = temp_path(from_folder, name);
    sn_buf bytes;
    require(sn_read_file(from, 64 << 20, &bytes, NULL) == SN_OK, "reading a file");
    write_file(folder, name, bytes.data, bytes.len);
    sn_buf_fini(&bytes);
    free(from);
}

int unnamed_file(void) {
    char path[64], target[PATH_MAX];
    for (int fd = 3; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n > 0 && (target[n] = 0, strstr(target, "(deleted)")) && !strncmp(target, "/tmp/", 5)) return fd;
    }
    return -1;
}

static int remove_one(const char *path, const struct stat *is, int kind, struct FTW *at) {
    (void)is, (void)kind, (void)at;
    return remove(path);
}

void remove_tree(const char *folder) {
    require(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0, "removing a folder");
}
