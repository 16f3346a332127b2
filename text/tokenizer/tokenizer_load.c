/* Opens the files of a tokenizer: a GGUF file, or a Hugging Face folder. */
#include "text/tokenizer/tokenizer_private.h"

#include "base/file.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, TOKENIZER_JSON_MAX = 256 << 20, SIDE_FILE_MAX = 16 << 20 };

static bool folder_has(const char *folder, const char *name) {
    char path[PATH_SIZE];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && !access(path, F_OK);
}

/* Reads a file of the folder; a missing file that is not required leaves *out empty. */
static sn_status read_folder_file(const char *folder, const char *name, size_t limit, bool required, sn_buf *out,
                                  sn_err *err) {
    char path[PATH_SIZE];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return sn_fail(err, SN_REFUSED, "the path %.60s... is too long", folder);
    if (!required && !folder_has(folder, name)) return SN_OK;
    return sn_read_file(path, limit, out, err);
}

/* The first of these that is there is the vocabulary; beside it the others are not read. */
static sn_status read_vocabulary(const char *folder, sn_tokenizer_files *files, sn_err *err) {
    const struct {
        const char *name;
        sn_buf *out;
    } kinds[] = {{"tokenizer.json", &files->tokenizer},
                 {"tiktoken.model", &files->tiktoken},
                 {"tekken.json", &files->tekken},
                 {"tokenizer.model", &files->sentencepiece}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (folder_has(folder, kinds[i].name))
            return read_folder_file(folder, kinds[i].name, TOKENIZER_JSON_MAX, true, kinds[i].out, err);
    return read_folder_file(folder, kinds[0].name, TOKENIZER_JSON_MAX, true, kinds[0].out, err);
}

static sn_status read_folder(const char *folder, sn_tokenizer_files *files, sn_err *err) {
    const struct {
        const char *name;
        size_t limit;
        sn_buf *out;
    } others[] = {{"added_tokens.json", SIDE_FILE_MAX, &files->added_tokens},
                  {"tokenizer_config.json", SIDE_FILE_MAX, &files->tokenizer_config},
                  {"generation_config.json", SIDE_FILE_MAX, &files->generation_config},
                  {"chat_template.jinja", SN_CHAT_TEMPLATE_MAX, &files->chat_template},
                  {"additional_chat_templates/tool_use.jinja", SN_CHAT_TEMPLATE_MAX, &files->tool_template}};
    sn_status status = read_vocabulary(folder, files, err);
    for (size_t i = !files->sentencepiece.data; !status && i < sizeof others / sizeof *others; i++)
        status = read_folder_file(folder, others[i].name, others[i].limit, false, others[i].out, err);
    return status;
}

static sn_status open_folder(const char *path, sn_tokenizer **out, sn_err *err) {
    sn_tokenizer_files files = {0};
    sn_status status = read_folder(path, &files, err);
    if (!status) {
        status = sn_tokenizer_from_files(&files, out, err);
        if (status) sn_err_context(err, "%s", path);
    }
    sn_buf *all[] = {&files.tokenizer,     &files.tiktoken,         &files.tekken,
                     &files.sentencepiece, &files.tokenizer_config, &files.generation_config,
                     &files.chat_template, &files.tool_template,    &files.added_tokens};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) sn_buf_fini(all[i]);
    return status;
}

static sn_status open_gguf(const char *path, sn_tokenizer **out, sn_err *err) {
    sn_gguf *gguf = NULL;
    sn_status status = sn_gguf_open(path, &gguf, err);
    if (status) return status;
    status = sn_tokenizer_from_gguf(gguf, out, err);
    if (status) sn_err_context(err, "%s", path);
    sn_gguf_close(&gguf);
    return status;
}

sn_status sn_tokenizer_open(const char *path, sn_tokenizer **out, sn_err *err) {
    struct stat st;
    *out = NULL;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? open_folder(path, out, err) : open_gguf(path, out, err);
}
