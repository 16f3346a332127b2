/* What all requests of one served model share: the bytes of its tokens, which tokens end an answer, and grammars of
 * answers.
 *
 * Central type: sn_served_model; any thread may use it. */
#ifndef SN_GATEWAY_OPENAI_SERVED_MODEL_H
#define SN_GATEWAY_OPENAI_SERVED_MODEL_H

#include "base/mem.h"
#include "gateway/grammar/answer_grammar.h"
#include "gateway/grammar/token_mask.h"
#include "gateway/openai/request.h"

typedef struct sn_served_model sn_served_model;

/* Borrows the model. `name` (copied) is what replies call it. Reads the bytes of all tokens: a fraction of a second. */
sn_status sn_served_model_new(const swarm_model *model, const char *name, sn_served_model **out,
                              sn_err *err) SN_MUST_USE;
void sn_served_model_free(sn_served_model **served); /* accepts NULL */

const swarm_model *sn_served_model_get(const sn_served_model *served);
const char *sn_served_model_name(const sn_served_model *served);
/* As grammars know them: a special token is its text between two SN_SPECIAL_EDGE; those that end answers have none. */
const sn_token_bytes *sn_served_model_tokens(const sn_served_model *served);
bool sn_served_model_ends(const sn_served_model *served, int32_t id);            /* as swarm_model_ends, from a table */
bool sn_served_model_writes(const sn_served_model *served, int32_t id);          /* it is text, and no special token */
const int32_t *sn_served_model_ending(const sn_served_model *served, size_t *n); /* those that do */

/* Where answers' parts begin, as swarm_model_answer_marks says; white space stands for any or none. */
typedef struct sn_answer_marks {
    const char *thought, *thought_end; /* NULL: not known */
    const char *calls[SN_CALL_MARKS_MAX];
    size_t n_calls;   /* 0: an object that is the whole answer is a call */
    bool calls_known; /* false: nothing says where a call begins */
} sn_answer_marks;
const sn_answer_marks *sn_served_model_marks(const sn_served_model *served);

/* As swarm_model_describe says of answers. */
const sn_request_sampling *sn_served_model_sampling(const sn_served_model *served);

/* Whether the model's chat template shows tools, or calls of them: else requests with tools can only be refused. */
bool sn_served_model_calls_tools(const sn_served_model *served);

/* The grammar of an answer and its masks, for one constraint at a time. Those that were given back are kept (a few, of
 * a few MiB, by all that their shape says), so that a schema which many requests name is compiled once for each that
 * runs at once. */
typedef struct sn_compiled_answer {
    sn_buf name;
    sn_grammar *grammar;
    sn_token_masks *masks;
    size_t bytes; /* while it is kept: of memory */
} sn_compiled_answer;
/* Marks of thoughts and calls must be those of the model. Errors: as sn_grammar_from_answer. */
sn_status sn_served_model_take_answer(sn_served_model *served, const sn_answer_shape *shape, sn_compiled_answer **out,
                                      sn_err *err) SN_MUST_USE;
/* usable: false when it failed, so that it is not used again. Accepts NULL. */
void sn_served_model_return_answer(sn_served_model *served, sn_compiled_answer **compiled, bool usable);
enum { SN_KEPT_ANSWERS_BYTES_MAX = 32 << 20 };
size_t sn_served_model_kept_bytes(sn_served_model *served); /* of those that are kept */

#endif
