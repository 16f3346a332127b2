/* Work of training, which belongs to no session: what the network thread asks of the device's thread beside steps. */
#ifndef SN_NODE_TRAINING_H
#define SN_NODE_TRAINING_H

#include "blocks/train.h"
#include "net/transport.h"
#include "node/job.h"

typedef enum sn_training_kind {
    SN_TRAIN_LOAD,   /* make *tuning from the tensor's bytes */
    SN_TRAIN_UNLOAD, /* free *tuning */
    SN_TRAIN_FORWARD,
    SN_TRAIN_BACKWARD,
} sn_training_kind;

typedef struct sn_training {
    sn_training_kind kind;
    sn_msg *asked; /* owned: its tensor is the input; NULL for UNLOAD */
    sn_peer asker;
    uint8_t owner[SN_KEY_SIZE]; /* CURVE key of the asker */
    struct sn_tuned *tuned;   /* the network thread's: the tuning's place in its table; NULL: none */
    sn_tuning **tuning;       /* the device's thread's: it alone looks there; NULL: none */
    int first, end;           /* blocks */
    size_t bytes_max;         /* of memory for training; what clients trained takes its part of it */
    const sn_sample *samples; /* the message's: sequences, one behind the other */
    size_t n_samples, rows;   /* rows: of all of them */
    size_t result;            /* out: floats of a BACKWARD's answer; of a LOAD, bytes of the devices' memory */
    size_t rows_done;         /* the device's thread's */
} sn_training;

void sn_training_free(sn_training **training); /* NULL-safe */

/* The device's thread's side: what clients trained; and within what that leaves memory for one sequence at a time, made when it is
 * first needed, and what is kept between a FORWARD and its BACKWARD. A batch for which there is no room beside others' tunings is
 * over with SN_RETRY. */
typedef struct sn_trainer sn_trainer;

sn_status sn_trainer_new(sn_span *span, sn_trainer **out, sn_err *err) SN_MUST_USE;
void sn_trainer_free(sn_trainer **trainer); /* NULL-safe; before the span */

/* Bytes of what is kept now. What waits for more than a minute, by the times at which jobs arrived, goes when the next one comes. */
size_t sn_trainer_kept_bytes(const sn_trainer *trainer);

/* Does one sequence of the job (job->n_done counts them), or what else it asks. True when the job is over: job->status.
 */
bool sn_trainer_work(sn_trainer *trainer, sn_job *job);

#endif
