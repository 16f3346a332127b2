/* Bytes assembled by hand, and temporary folders to put them in, for tests of file readers. Every failure here
 * aborts the test. */
#ifndef SN_TESTS_FILES_H
#define SN_TESTS_FILES_H

#include "base/mem.h"

void put_bytes(sn_buf *buf, const void *data, size_t len);
void put_u32(sn_buf *buf, uint32_t value);
void put_u64(sn_buf *buf, uint64_t value);
void put_f32(sn_buf *buf, float value);
void put_text(sn_buf *buf, const char *text); /* without length or NUL */
void put_zeros(sn_buf *buf, size_t len);
void pad_to(sn_buf *buf, size_t multiple);

/* The parts of a GGUF file. */
void put_gguf_string(sn_buf *buf, const char *text);
void put_gguf_header(sn_buf *buf, uint32_t version, uint64_t n_tensors, uint64_t n_values);
void put_gguf_key(sn_buf *buf, const char *key, uint32_t type);
void put_gguf_u32(sn_buf *buf, const char *key, uint32_t value);
void put_gguf_f32(sn_buf *buf, const char *key, float value);
void put_gguf_text(sn_buf *buf, const char *key, const char *value);
void put_gguf_tensor(sn_buf *buf, const char *name, uint64_t cols, uint64_t rows, uint32_t type, uint64_t offset);

/* A safetensors file with this JSON header and data_len zero bytes of data. */
void put_safetensors(sn_buf *buf, const char *header, size_t data_len);

char *temp_folder(void); /* heap */
/* removes the folder with its files (it holds no folders); frees and sets NULL */
void temp_folder_remove(char **folder);
void remove_tree(const char *folder);                  /* with everything in it */
char *temp_path(const char *folder, const char *name); /* heap */
void write_file(const char *folder, const char *name, const void *data, size_t len);
void copy_file(const char *from_folder, const char *folder, const char *name);
void damage_files(const char *folder); /* zeros in all of its files, but for their first and last 4,096 bytes */
int unnamed_file(void); /* a descriptor of this process that refers to a deleted file in /tmp; -1: none */

#endif
