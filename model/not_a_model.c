#include "model/not_a_model.h"

#include <string.h>
#include <strings.h>

static int begins(const char *at, size_t len, const char *word) {
    size_t n = strlen(word);
    return len >= n && !strncasecmp(at, word, n);
}

const char *sn_not_a_model(const void *bytes, size_t len) {
    const char *at = bytes;
    if (begins(at, len, "version https://git-lfs"))
        return "this is git LFS's pointer to the file, not the file: fetch it with 'git lfs pull'";
    for (; len && strchr(" \t\r\n", *at) && *at; len--) at++;
    if (begins(at, len, "<!doctype") || begins(at, len, "<html"))
        return "this is a page of a website, saved in place of the file: fetch the file itself, where it asks for it "
               "with an account";
    return NULL;
}
