/* What a model's files recommend for sampling. */
#include "model/sampling_hint.h"

#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *folder;

static void begin(void) { folder = temp_folder(); }
static void end(void) { temp_folder_remove(&folder); }

static sn_sampling_hint of_config(const char *text) {
    write_file(folder, "generation_config.json", text, strlen(text));
    return sn_sampling_hint_read(folder);
}

static bool is_empty(sn_sampling_hint h) {
    return isnan(h.temperature) && isnan(h.top_k) && isnan(h.top_p) && isnan(h.min_p) && isnan(h.repeat_penalty);
}

Test(sampling_hint, a_folder_recommends_by_generation_config, .init = begin, .fini = end) {
    sn_sampling_hint h = of_config("{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, "
                                   "\"repetition_penalty\": 1.1, \"eos_token_id\": [1, 2]}");
    cr_expect_eq(h.temperature, 0.6);
    cr_expect_eq(h.top_k, 20);
    cr_expect_eq(h.top_p, 0.95);
    cr_expect_eq(h.repeat_penalty, 1.1);
    cr_expect(isnan(h.min_p));
}

Test(sampling_hint, nothing_is_recommended_by_damaged_or_missing_files, .init = begin, .fini = end) {
    cr_expect(is_empty(sn_sampling_hint_read(folder)));
    cr_expect(is_empty(sn_sampling_hint_read("/nowhere")));
    cr_expect(is_empty(of_config("{\"temperature\": 0.6")));
    cr_expect(is_empty(of_config("[0.6]")));
    cr_expect(is_empty(of_config("{\"temperature\": -1, \"top_p\": 1.5, \"top_k\": \"20\", \"min_p\": null}")));
}

Test(sampling_hint, a_gguf_file_recommends_by_its_metadata, .init = begin, .fini = end) {
    sn_buf b = {0};
    put_gguf_header(&b, 3, 0, 3);
    put_gguf_f32(&b, "general.sampling.temp", 0.6f);
    put_gguf_key(&b, "general.sampling.top_k", 5), put_bytes(&b, &(int32_t){40}, 4);
    put_gguf_f32(&b, "general.sampling.top_p", 7);
    pad_to(&b, 32);
    write_file(folder, "model.gguf", b.data, b.len);
    char *path = temp_path(folder, "model.gguf");
    sn_sampling_hint h = sn_sampling_hint_read(path);
    cr_expect_eq(h.temperature, 0.6);
    cr_expect_eq(h.top_k, 40);
    cr_expect(isnan(h.top_p), "a probability of 7");
    free(path);
    free(b.data);
}
