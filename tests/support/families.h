/* The model families of which tests/fixtures/golden holds the reference's numbers: a promise about one is tested
 * with all. */
#ifndef SN_TESTS_FAMILIES_H
#define SN_TESTS_FAMILIES_H

#include <stdbool.h>
#include <string.h>

static const char *const FAMILIES[] = {
    "llama",
    "llama3_rope",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "phi3_longrope_short",
    "phi3_longrope_long",
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
    "smollm3",
    "granite",
    "olmo3",
    "ministral3",
    "qwen2_moe",
    "glm4_moe",
    "minimax_m2",
    "qwen3_5",
    "qwen3_5_moe",
    "gemma2",
    "llama4",
    "deepseek_v2",
    "deepseek_v2_grouped",
    "deepseek_v3",
    "glm4_moe_lite",
    "seed_oss",
    "exaone4",
    "hy_v3",
    "olmoe",
    "ernie4_5_moe",
    "mistral4",
    "deepseek_v32",
    "deepseek_v32_sparse",
    "glm_moe_dsa",
    "glm_moe_dsa_sparse",
    "cohere2",
    "qwen3_next",
    "lfm2",
    "lfm2_moe",
    "granitemoehybrid",
    "nemotron_h",
    "nemotron_h_moe",
    "nemotron_h_latent",
    "kimi_linear",
    "bailing_hybrid",
    "mimo_v2_flash",
    "step3p7",
    "gemma4",
    "gemma4_moe",
};
enum { N_FAMILIES = sizeof FAMILIES / sizeof *FAMILIES };

/* Blocks of these families hold recurrent states: they run on CPUs only, and nothing is trained through them. */
static inline bool family_is_recurrent(const char *name) {
    return !strncmp(name, "qwen3_5", 7) || !strcmp(name, "qwen3_next") || !strncmp(name, "lfm2", 4) ||
           !strcmp(name, "granitemoehybrid") || !strncmp(name, "nemotron_h", 10) || !strcmp(name, "kimi_linear") ||
           !strcmp(name, "bailing_hybrid");
}

/* These are not trained. */
static inline bool family_is_limited(const char *name) {
    return family_is_recurrent(name) || !strncmp(name, "deepseek", 8) || !strcmp(name, "glm4_moe_lite") ||
           !strcmp(name, "mistral4") || !strncmp(name, "glm_moe_dsa", 11) || !strcmp(name, "mimo_v2_flash") ||
           !strcmp(name, "step3p7") || !strncmp(name, "gemma4", 6);
}

static inline int family_blocks(const char *name) {
    if (!strncmp(name, "nemotron_h_", 11)) return 6;
    return !strncmp(name, "glm_moe_dsa", 11) || !strcmp(name, "nemotron_h") ? 5 : 4;
}

/* Blocks that stay with the one before them. */
static inline size_t family_bound_blocks(const char *name) { return !strcmp(name, "glm_moe_dsa_sparse") ? 2 : 0; }

#endif
