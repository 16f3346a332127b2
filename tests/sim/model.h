/* What every simulated swarm serves: a tiny model, one of three kinds, its spans, and the texts that it writes
 * undisturbed. Each is made once per process; weights are immutable, so that all swarms and nodes share them. */
#ifndef SN_TESTS_SIM_MODEL_H
#define SN_TESTS_SIM_MODEL_H

#include "blocks/span.h"
#include "client/generate/lm_head.h"
#include "client/tune/params.h"

enum { SIM_BLOCKS = 4, SIM_EMBD = 32, SIM_VOCAB = 64, SIM_CONTEXT = 128, SIM_PROMPTS = 12, SIM_ADAPTERS = 2 };

typedef struct sim_model {
    char *path;
    sn_device *device;
    sn_model *model;
    sn_hash id;
    sn_lm_head *head;
    sn_span *spans[SIM_BLOCKS][SIM_BLOCKS + 1]; /* [first][end], loaded when first requested */
} sim_model;

typedef enum sim_model_kind {
    SIM_USUAL,
    SIM_STATES,  /* blocks 0 and 2 hold recurrent states */
    SIM_MIXTURE, /* every block is a mixture of SIM_MIXTURE_EXPERTS experts, of which a token takes 2 */
} sim_model_kind;
enum { SIM_MIXTURE_EXPERTS = 6 };

/* From here on the model is of this kind. */
void sim_model_use(sim_model_kind kind);
sim_model *sim_model_get(void);
void sim_model_free(void);
sn_span *sim_model_span(int first, int end);

/* LoRA adapters of every block of the usual model, by number: [1, SIM_ADAPTERS]. */
typedef struct sim_adapter {
    sn_params *params;
    sn_buf image;
    sn_hash hash;
} sim_adapter;
const sim_adapter *sim_model_adapter(int number);

/* A text: a prompt, then the model's greedy continuation, SIM_CONTEXT tokens in all. The prompts of texts 2i and 2i
 * + 1 differ in their last token only. */
typedef struct sim_text {
    int n_prompt, n;
    int32_t ids[SIM_CONTEXT];
    float hidden[SIM_CONTEXT][SIM_BLOCKS + 1][SIM_EMBD]; /* [position][block]: input of the block */
} sim_text;
/* number: [0, SIM_PROMPTS); adapter: 0 for none. */
const sim_text *sim_model_text(int number, int adapter);

#endif
