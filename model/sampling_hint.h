/* How a model's makers recommend to sample from it: generation_config.json of its folder, or general.sampling.* of its
 * GGUF file. Any thread. */
#ifndef SN_MODEL_SAMPLING_HINT_H
#define SN_MODEL_SAMPLING_HINT_H

typedef struct sn_sampling_hint {
    double temperature, top_k, top_p, min_p, repeat_penalty; /* NAN where nothing is recommended */
} sn_sampling_hint;

/* Of the model at this path. Files that are missing or damaged, and values that no sampler takes, recommend nothing. */
sn_sampling_hint sn_sampling_hint_read(const char *path);

#endif
