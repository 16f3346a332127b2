/* The families that tests/fixtures/golden has the reference's numbers of: what is promised of one is tested of all. */
#ifndef SN_TESTS_FAMILIES_H
#define SN_TESTS_FAMILIES_H

static const char *const FAMILIES[] = {
    "llama",
    "llama3_rope",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "olmo2",
    "gemma3",
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
    "falcon",
    "falcon_7b",
    "falcon_serial",
    "bloom",
    "bloom_odd",
};
enum { N_FAMILIES = sizeof FAMILIES / sizeof *FAMILIES };

#endif
