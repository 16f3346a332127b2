/* Hyperparameters from a model's files. What changes a model's mathematics and is not known here is refused, never
 * ignored: a model that runs, runs as its makers meant it. */
#ifndef SN_MODEL_CONFIG_H
#define SN_MODEL_CONFIG_H

#include "model/family.h"
#include "model/gguf.h"

/* From the text of a config.json (transformers 4 and 5 spellings). hparams->name is left empty if it says none. */
sn_status sn_config_from_json(const char *text, size_t len, sn_hparams *hparams, const sn_family **family,
                              sn_err *err) SN_MUST_USE;

/* From a GGUF file's metadata, and the tensors that decide what the metadata leaves open. */
sn_status sn_config_from_gguf(const sn_gguf *gguf, sn_hparams *hparams, const sn_family **family,
                              sn_err *err) SN_MUST_USE;

/* ---- shared by the two ---- */

typedef enum sn_rope_scaling_kind { SN_ROPE_PLAIN, SN_ROPE_LINEAR, SN_ROPE_LLAMA3, SN_ROPE_YARN } sn_rope_scaling_kind;

/* How the angles are made. Su et al. 2021 (theta); linear: Chen et al. 2023, positions divided by factor; llama3: the
 * Llama 3.1 release, long wavelengths divided by factor, short ones kept, those between blended; yarn: Peng et al. 2023,
 * likewise by how often a pair turns over the original context, and cosines and sines grow by a factor of their own. */
typedef struct sn_rope_scaling {
    sn_rope_scaling_kind kind;
    double theta, factor, low_freq_factor, high_freq_factor, original_ctx;
    double beta_fast, beta_slow; /* yarn: pairs that turn more often are kept, those that turn less often divided */
    double attention_factor;     /* yarn: of cosines and sines; 0: by factor */
    bool truncate;               /* yarn: the pairs between begin and end at whole ones */
    const uint8_t
        *divisors; /* float32 [rope_dim / 2] of any alignment, each frequency is divided by its own; or NULL */
} sn_rope_scaling;

/* Checks that the hyperparameters fit together and lie within what the program can hold, then fills in what follows from
 * the family and from what the file left open, and the ropes: rope_freq by scaling[0], by scaling[1] the second one where
 * n_ropes is 2. */
sn_status sn_config_finish(sn_hparams *hparams, const sn_family *family, const sn_rope_scaling scaling[SN_ROPES_MAX],
                           sn_err *err) SN_MUST_USE;

/* Copies a name for people, unprintable bytes replaced, cut to fit. */
void sn_config_set_name(sn_hparams *hparams, const char *name, size_t len);

#endif
