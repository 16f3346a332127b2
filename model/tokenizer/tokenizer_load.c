/* Opens the files of a tokenizer: a GGUF file, or a Hugging Face folder. */
#include "model/tokenizer/tokenizer_private.h"

#include "base/text.h"

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

static sn_status open_folder(const char *path, sn_tokenizer **out, sn_err *err) {
    sn_tokenizer_files files = {0};
    bool tiktoken = folder_has(path, "tiktoken.model") && !folder_has(path, "tokenizer.json");
    sn_status status = read_folder_file(path, "tokenizer.json", TOKENIZER_JSON_MAX, !tiktoken, &files.tokenizer, err);
    const char *other = folder_has(path, "tokenizer.model") ? "tokenizer.model"
                        : folder_has(path, "tekken.json")   ? "tekken.json"
                                                            : NULL;
    if (status && other && !folder_has(path, "tokenizer.json"))
        return sn_fail(
            err, SN_REFUSED,
            "%s has %s and no tokenizer.json, which is needed for texts: have transformers write it "
            "(AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)), or use a GGUF file of the model",
            path, other);
    if (!status && tiktoken)
        status = read_folder_file(path, "tiktoken.model", TOKENIZER_JSON_MAX, true, &files.tiktoken, err);
    if (!status)
        status = read_folder_file(path, "tokenizer_config.json", SIDE_FILE_MAX, false, &files.tokenizer_config, err);
    if (!status)
        status = read_folder_file(path, "generation_config.json", SIDE_FILE_MAX, false, &files.generation_config, err);
    if (!status)
        status = read_folder_file(path, "chat_template.jinja", SN_CHAT_TEMPLATE_MAX, false, &files.chat_template, err);
    if (!status)
        status = read_folder_file(path, "additional_chat_templates/tool_use.jinja", SN_CHAT_TEMPLATE_MAX, false,
                                  &files.tool_template, err);
    if (!status) {
        status = sn_tokenizer_from_files(&files, out, err);
        if (status) sn_err_context(err, "%s", path);
    }
    sn_buf_fini(&files.tokenizer);
    sn_buf_fini(&files.tiktoken);
    sn_buf_fini(&files.tokenizer_config);
    sn_buf_fini(&files.generation_config);
    sn_buf_fini(&files.chat_template);
    sn_buf_fini(&files.tool_template);
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
