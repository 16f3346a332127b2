#include "model/sampling_hint.h"

#include "base/file.h"
#include "model/gguf.h"
#include "model/json.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { FILE_MAX = 1 << 20 };

/* A field of the hint, its names in both kinds of files, and its range. */
typedef struct field {
    double *value;
    const char *json, *gguf;
    double low, high;
} field;

static void keep(const field *f, double value) {
    if (value >= f->low && value <= f->high) *f->value = value;
}

static void read_folder(const char *path, const field *fields, size_t n) {
    char file[SN_PATH_SIZE];
    sn_buf text;
    if (sn_path_join(file, path, "generation_config.json", NULL) || sn_read_file(file, FILE_MAX, &text, NULL)) return;
    json_t *config = sn_json_read((const char *)text.data, text.len, NULL);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(config, fields[i].json);
        if (json_is_number(value)) keep(&fields[i], json_number_value(value));
    }
    json_decref(config);
    sn_buf_fini(&text);
}

static void read_gguf(const char *path, const field *fields, size_t n) {
    sn_gguf *gguf;
    if (sn_gguf_open(path, &gguf, NULL)) return;
    for (size_t i = 0; i < n; i++) {
        float real = NAN;
        int32_t whole = 0;
        if (sn_gguf_f32(gguf, fields[i].gguf, true, &real, NULL)) {
            if (!sn_gguf_i32(gguf, fields[i].gguf, true, &whole, NULL)) keep(&fields[i], whole);
            continue;
        }
        char text[32]; /* 0.6, and not the double that is nearest to the float */
        snprintf(text, sizeof text, "%.7g", (double)real);
        keep(&fields[i], strtod(text, NULL));
    }
    sn_gguf_close(&gguf);
}

sn_sampling_hint sn_sampling_hint_read(const char *path) {
    sn_sampling_hint hint = {NAN, NAN, NAN, NAN, NAN};
    const field fields[] = {{&hint.temperature, "temperature", "general.sampling.temp", 0, 1000},
                            {&hint.top_k, "top_k", "general.sampling.top_k", 0, 1 << 30},
                            {&hint.top_p, "top_p", "general.sampling.top_p", 1e-9, 1},
                            {&hint.min_p, "min_p", "general.sampling.min_p", 0, 1},
                            {&hint.repeat_penalty, "repetition_penalty", "general.sampling.penalty_repeat", 1e-9, 100}};
    struct stat st;
    bool folder = !stat(path, &st) && S_ISDIR(st.st_mode);
    (folder ? read_folder : read_gguf)(path, fields, sizeof fields / sizeof *fields);
    return hint;
}
