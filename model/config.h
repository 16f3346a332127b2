/* Reads hyperparameters from a model's files: config.json (config_json.c) or GGUF metadata (config_gguf.c), then checks
 * and completes them (config.c). A field that would change the model's mathematics and is not known is refused, never
 * ignored: a model that runs, runs as its makers meant it. Functions without state; SN_REFUSED names the field. Private
 * to model/. */
#ifndef SN_MODEL_CONFIG_H
#define SN_MODEL_CONFIG_H

#include "model/family.h"
#include "model/gguf.h"

/* From the text of a config.json, in the spellings of transformers 4 and 5. hparams->name is empty if the text has
 * none. */
sn_status sn_config_from_json(const char *text, size_t len, sn_hparams *hparams, const sn_family **family,
                              sn_err *err) SN_MUST_USE;

/* No block is recurrent: the sizes of states say nothing. */
void sn_config_no_recurrence(sn_hparams *hparams);

/* From a GGUF file's metadata, and from the presence of tensors where the metadata leaves something open. */
/* Opening a GGUF file reads its header, and of some files one tensor with hyperparameters: where it lies. *bytes is 0
 * where there is none. The file may have holes behind its header. */
sn_status sn_config_tensor_of_gguf(const char *path, uint64_t *from, uint64_t *bytes, sn_err *err) SN_MUST_USE;
sn_status sn_config_from_gguf(const sn_gguf *gguf, sn_hparams *hparams, const sn_family **family,
                              sn_err *err) SN_MUST_USE;

/* ---- shared by both readers ---- */

typedef enum sn_rope_scaling_kind {
    SN_ROPE_SCALING_NONE,
    SN_ROPE_SCALING_LINEAR,
    SN_ROPE_SCALING_LLAMA3,
    SN_ROPE_SCALING_YARN,
    SN_ROPE_SCALING_PROPORTIONAL,
    SN_ROPE_SCALING_LONG
} sn_rope_scaling_kind;

/* How the frequencies of a rope are computed. theta: Su et al. 2021. Scaling to a longer context:
 *   linear   Chen et al. 2023: all frequencies divided by `factor`
 *   llama3   release of Llama 3.1: those of long wavelengths divided by `factor`, those of short ones kept, those
 * between interpolated yarn     Peng et al. 2023: likewise, by the number of rotations over the original context;
 * besides, cosines and sines are multiplied by attention_factor
 *   long     Ding et al. 2024: each divided by its own factor, of two sets: sn_hparams.long_after; cosines and sines as
 * with yarn */
typedef struct sn_rope_scaling {
    sn_rope_scaling_kind kind;
    double theta, factor, low_freq_factor, high_freq_factor, original_ctx;
    double beta_fast, beta_slow;   /* yarn: rotations above which a pair is kept, and below which it is divided */
    double attention_factor;       /* yarn: 0: computed from `factor` and the next two; long: from original_ctx */
    double mscale, mscale_all_dim; /* yarn: DeepSeek-V2, 2024; 0: not given */
    double q_growth;               /* with original_ctx: sn_hparams; 0: none */
    bool truncate;                 /* yarn: round the limits of the interpolated pairs to whole pairs */
    double rotated; /* proportional: the share of the pairs that are rotated; the angle of the others is 0 */
    /* Divisors of the frequencies: 0 or rope_dim / 2 of them. long: of short timelines, and of long ones */
    int n_factors;
    float factors[2][SN_ROPE_FREQS_MAX];
} sn_rope_scaling;

/* Checks that the hyperparameters are consistent and within the program's limits; then fills in what follows from the
 * family, the defaults, and the frequencies of the ropes: scaling[0] for the first, scaling[1] for the second one if
 * n_ropes is 2. */
sn_status sn_config_finish(sn_hparams *hparams, const sn_family *family, const sn_rope_scaling scaling[SN_ROPES_MAX],
                           sn_err *err) SN_MUST_USE;

/* Sets the groups of experts; the numbers of experts are read. 1 group: there are none. */
sn_status sn_config_set_groups(sn_hparams *hparams, int groups, int used, sn_err *err) SN_MUST_USE;

/* Checks and completes latent attention: latent, nope_dim, value_dim and q_rank are read, and n_heads; rope_dim is
 * given. Sets n_kv_heads, head_dim, rope_dim, attn_scale and latent_eps. */
sn_status sn_config_finish_latent(sn_hparams *hparams, int rope_dim, const sn_rope_scaling *scaling,
                                  sn_err *err) SN_MUST_USE;

/* Checks and completes an indexer, after latent attention: index_topk, index_heads, index_dim and index_shared are
 * read.
 */
sn_status sn_config_finish_indexer(sn_hparams *hparams, const sn_family *family, sn_err *err) SN_MUST_USE;

/* g(m) = 1 + 0.1 m ln(factor) of yarn (1 up to a factor of 1). */
double sn_yarn_growth(const sn_rope_scaling *scaling, double m);

/* Copies a model's name as a file has it: out is valid UTF-8, without control characters and bytes that form no
 * character (replaced); a long name is cut after a character. */
void sn_config_copy_name(char out[SN_MODEL_NAME_SIZE], const char *name, size_t len);

#endif
