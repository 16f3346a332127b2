/* Training on a node: tasks that the network thread gives to the device thread besides steps, and the trainer that
 * does them. A task belongs to no session; it travels as a job of kind SN_JOB_TRAIN.
 *
 * Memory: bytes_max of a task is what the node gives to training (--tune-memory). Adapters take their part of it; the
 * rest is for the activations of the sequences in progress, and for activations that are kept from a FORWARD to its
 * BACKWARD. */
#ifndef SN_NODE_ENGINE_TRAINING_H
#define SN_NODE_ENGINE_TRAINING_H

#include "blocks/train.h"
#include "net/transport/transport.h"
#include "node/engine/job.h"

typedef enum sn_training_task_kind {
    SN_TRAINING_ADAPTER_LOAD,   /* make *adapter from the tensor's bytes, if they have the hash of the request */
    SN_TRAINING_ADAPTER_UNLOAD, /* free *adapter */
    SN_TRAINING_FORWARD,
    SN_TRAINING_BACKWARD,
} sn_training_task_kind;

typedef struct sn_training_task {
    sn_training_task_kind kind;
    sn_msg *request_msg; /* owned: its tensor is the input; NULL of UNLOAD */
    sn_peer requester;
    uint8_t owner[SN_KEY_SIZE];             /* CURVE key of the requester, */
    uint8_t network[SN_ADDRESS_PREFIX];     /* and its network address */
    struct sn_adapter_entry *adapter_entry; /* the network thread's: the entry in its table; NULL: no adapter */
    sn_adapter **adapter;                   /* only the device thread looks there; NULL: no adapter */
    int first, end;                         /* blocks */
    size_t bytes_max;                       /* memory for training, adapters included */
    const sn_sample *samples;               /* sequences of the batch, in request_msg; their rows follow one another */
    size_t n_samples, rows;                 /* rows: tokens of all sequences */
    size_t result;      /* result: floats of the output of FORWARD or BACKWARD; bytes of device memory of LOAD */
    int64_t compute_us; /* result: the time on the device */
    size_t rows_done;   /* the trainer's */
} sn_training_task;

void sn_training_task_free(sn_training_task **task); /* accepts NULL */

/* Whose turn the task takes: its client's. Adapters take turns of their own: a node has few places for them, and behind
 * their client's batches they would hold those for as long as these take. */
uint64_t sn_training_turn(const sn_training_task *task);

/* The device thread's side; trainer.c says how it works. A batch for which the adapters leave too little memory ends
 * with SN_RETRY. */
typedef struct sn_trainer sn_trainer;

sn_status sn_trainer_new(sn_span *span, sn_trainer **out, sn_err *err) SN_MUST_USE;
void sn_trainer_free(sn_trainer **trainer); /* accepts NULL; before the span */

/* Bytes of the saved activations. Those older than a minute, by the arrival times of jobs, are dropped when the next
 * FORWARD comes. */
size_t sn_trainer_saved_bytes(const sn_trainer *trainer);

/* What a piece may cost, in the units of sn_train_run (blocks/train.h), and what it did. */
typedef struct sn_training_budget {
    size_t cost, spent;
} sn_training_budget;
/* An adapter is hashed and loaded in pieces of so many bytes of its image, as KV pages are in parts. */
enum { SN_ADAPTER_PIECE_BYTES = 2 << 20 };

typedef enum sn_training_result {
    SN_TRAINING_WAITS,     /* nothing was done: the sequences of other jobs in progress leave too little memory, or
                            * another adapter is being loaded */
    SN_TRAINING_CONTINUES, /* call again for the next piece */
    SN_TRAINING_FINISHED,  /* job->status is set */
} sn_training_result;

/* Stops work on a job, which is not finished and will not be given to sn_trainer_work again. */
void sn_trainer_drop(sn_trainer *trainer, const sn_job *job);

/* Runs a piece of a sequence of the job (job->n_done counts whole ones), loads a piece of its adapter, or unloads it. A
 * job that is neither finished nor dropped may not be freed before the trainer. */
sn_training_result sn_trainer_work(sn_trainer *trainer, sn_job *job, sn_training_budget *budget);

#endif
