/* What core.c and core_*.c share: one object in a few files, one for each subject. */
#ifndef SN_NODE_CORE_PRIVATE_H
#define SN_NODE_CORE_PRIVATE_H

#include "node/core.h"
#include "node/distance.h"
#include "node/gossip.h"
#include "node/training.h"

enum { SN_JOINED_MAX = 64 };

typedef struct sn_joined {
    sn_peer peer;
    bool answered;
    int pages_left; /* of whom it knows, that we may yet ask for */
} sn_joined;

/* Where a node serves, and on the way there. */
typedef enum sn_seat_state {
    SN_SEAT_LISTENING, /* what does the swarm lack? */
    SN_SEAT_WAITING,   /* a while at random, so that nodes that start at once do not choose at once */
    SN_SEAT_CLAIMED,   /* chosen and announced; are others about to serve the same? */
    SN_SEAT_LOADING,
    SN_SEAT_SERVING,
    SN_SEAT_PARTING,   /* announced that it means to move; does another one leave the same blocks? */
    SN_SEAT_MOVING,    /* its sessions are moved elsewhere */
} sn_seat_state;

typedef struct sn_seat {
    sn_seat_state state;
    int first, end;  /* of the blocks served, or about to be */
    int to;          /* while PARTING and MOVING: where it goes */
    bool asked;      /* the daemon loads them */
    int claims;      /* how often it has chosen */
    int64_t due_us;  /* when to look again */
    uint64_t seed;
    uint64_t moves;  /* made since the start */
} sn_seat;

/* What clients have trained and is held for them (core_train.c). Named by what it is, so whoever knows the name may use it. */
enum { SN_TUNED_MAX = 64, SN_TRAININGS_MAX = 32 };
typedef struct sn_tuned {
    enum { SN_TUNED_FREE, SN_TUNED_COMING, SN_TUNED_HELD, SN_TUNED_GOING } state;
    sn_hash hash;
    size_t bytes;
    size_t users; /* sessions, and jobs in the engine */
    int64_t used_us;
    bool published; /* by the node's owner: it counts as a user, and takes none of the memory for training */
    char name[SN_ADAPTER_NAME_MAX + 1];
    sn_tuning *tuning; /* the device's thread's: not to be touched here while the engine lives */
} sn_tuned;

struct sn_core {
    sn_core_setup setup;
    char address[SN_ADDRESS_MAX + 1], name[64];
    const sn_hparams *hp;
    sn_sessions *sessions;
    sn_hasher *hasher;
    sn_quota *quota;
    size_t jobs, reads; /* in the engine; reads: those of them that read a past */
    bool draining; /* takes no new sessions */
    bool leaving;  /* nor steps */
    uint64_t moved; /* sessions whose past another node got, since the start */
    uint64_t last_request; /* of our own questions to other nodes */
    int64_t started_us;
    uint64_t steps, tokens, refusals[SN_STOP + 1]; /* refusals: ERRORs sent, by status */
    sn_histogram step_times, queue_times;
    int64_t unix_ms, unix_ahead_ms; /* as of the newest call; unix_ahead_ms: of the clock that now_us reads */

    sn_directory *directory;
    sn_joined joined[SN_JOINED_MAX]; /* nodes that we were told to join */
    size_t n_joined;
    sn_gossip gossip;
    int64_t announce_us; /* when to announce again */
    uint64_t sequence;   /* of our own newest announcement */
    sn_buf sealed;       /* our own newest announcement */

    sn_seat seat;
    sn_tuned tuned[SN_TUNED_MAX];
    const sn_training *trainings[SN_TRAININGS_MAX]; /* batches in the engine */
    size_t n_trainings, training_bytes;             /* bytes: of their tensors */

    sn_distance distance;
    uint64_t last_ping, ping_rounds;
};

/* Sends *msg, or drops it with a log line: a peer that cannot be reached shows at the asker as silence. */
void sn_core_send(sn_core *core, sn_peer peer, sn_msg **msg);
/* Answers a request with an ERROR; session may be NULL. */
void sn_core_refuse(sn_core *core, sn_peer peer, const sn_msg *request, const sn_err *why);
/* A message of the kind, or NULL with a log line when memory is out. */
sn_msg *sn_core_new_msg(sn_msg_kind kind, uint64_t request);

void sn_core_on_step(sn_core *core, sn_event *event, int64_t now_us);
void sn_core_next_step(sn_core *core, sn_session *session, int64_t now_us); /* begins what waited for the one before it */
void sn_core_step_done(sn_core *core, sn_session *session, sn_job *job, int64_t now_us);
/* A node that we pushed to refuses: passed on to the client whose step it was. */
void sn_core_on_error(sn_core *core, const sn_event *event);

/* -- core_quota.c */

sn_status sn_core_quota_open(const sn_core *core, const uint8_t client[SN_KEY_SIZE], sn_err *err) SN_MUST_USE;
sn_status sn_core_quota_step(sn_core *core, const sn_session *session, const sn_msg *msg, int64_t now_us,
                             sn_err *err) SN_MUST_USE;

/* -- core_receipt.c: what this node signs about steps */

/* Remembers what the step went in with that was just done at `position`, while its message is there. */
void sn_core_note_step(const sn_core *core, sn_session *session, int position);
sn_status sn_core_check_receipts(const sn_msg_step *step, sn_err *err) SN_MUST_USE; /* of others, that came along */
/* Receipts for an answer with this tensor: those that came with the question, and our own. Free as a message's list. */
sn_status sn_core_add_receipt(const sn_core *core, const sn_session *session, const sn_msg_step *asked,
                              const sn_wire_tensor *output, sn_blob **out, size_t *n, sn_err *err) SN_MUST_USE;

void sn_core_close_session(sn_core *core, sn_session *session); /* now, or as soon as its job is back */

/* core_past.c: a past comes in, is read, is gone on from */
void sn_core_on_put(sn_core *core, sn_event *event, int64_t now_us);
void sn_core_on_get(sn_core *core, const sn_event *event);
void sn_core_on_resume(sn_core *core, const sn_event *event, int64_t now_us);
void sn_core_put_done(sn_core *core, sn_session *session, sn_job *job, int64_t now_us);
void sn_core_get_done(sn_core *core, sn_session *session, sn_job *job);
/* A KV_PUT or KV_PART from what a job has read; NULL: memory is out. */
sn_msg *sn_core_past_message(sn_core *core, sn_msg_kind kind, uint64_t request, const sn_session *session, sn_job *job);
/* A job that reads n tokens of the past, given to the engine; NULL: it is full, or memory is out. */
sn_job *sn_core_read_past(sn_core *core, sn_session *session, int first, int end, int position, int n, void *purpose);
sn_status sn_core_owned(sn_core *core, const sn_event *event, const uint8_t *id, sn_session **out, sn_err *err) SN_MUST_USE;

/* core_move.c: a past is copied to another node, and kept up to date there */
void sn_core_on_send(sn_core *core, const sn_event *event, int64_t now_us);
void sn_core_on_taken(sn_core *core, const sn_event *event, int64_t now_us);
bool sn_core_move_refused(sn_core *core, const sn_event *event, int64_t now_us); /* an ERROR; true: it was about a move */
void sn_core_read_done(sn_core *core, sn_session *session, sn_job *job, int64_t now_us);
void sn_core_moves_rewind(sn_session *session, int position); /* what lies behind is about to be written over */
void sn_core_moves_go_on(sn_core *core, sn_session *session, int64_t now_us);
void sn_core_moves_free(sn_session *session, bool engine_is_gone);
int64_t sn_core_moves_tick(sn_core *core, int64_t now_us); /* returns when to be called again */

/* core_train.c */
void sn_core_on_tune(sn_core *core, sn_event *event, int64_t now_us);
void sn_core_on_batch(sn_core *core, sn_event *event, int64_t now_us); /* FORWARD or BACKWARD */
void sn_core_train_done(sn_core *core, sn_job *job, int64_t now_us);
/* The tuning of this name, *out NULL for the name of zeros; SN_REBUILD when it is not held. */
sn_status sn_core_use_tuning(sn_core *core, const uint8_t hash[SN_KEY_SIZE], int64_t now_us, sn_tuned **out,
                             sn_err *err) SN_MUST_USE;
void sn_core_tunings_free(sn_core *core); /* all of them: the engine is gone, the span still there */

/* core_adapters.c */
void sn_core_on_adapters(sn_core *core, const sn_event *event);
void sn_core_announce_adapters(const sn_core *core, sn_announcement *a);

/* core_peers.c */
void sn_core_on_peers(sn_core *core, sn_event *event, int64_t now_us, int64_t unix_ms);
void sn_core_on_peers_are(sn_core *core, sn_event *event, int64_t now_us, int64_t unix_ms);
void sn_core_on_loss(sn_core *core, const sn_event *event); /* a peer that we dialled cannot be reached */
void sn_core_announce(sn_core *core, int64_t now_us, int64_t unix_ms);
void sn_core_announce_round(sn_core *core, int64_t now_us, int64_t unix_ms);
sn_status sn_core_list_own(const sn_core *core, sn_blob **out, size_t *n, sn_err *err) SN_MUST_USE;
sn_status sn_core_copy_blob(const sn_blob *from, sn_blob *to, sn_err *err) SN_MUST_USE;

/* core_gossip.c */
void sn_core_heard(sn_core *core, uint64_t tag, sn_news news, int64_t now_us); /* of the node with this tag */
void sn_core_tell_everybody(sn_core *core);                                    /* our own newest announcement, now */
void sn_core_gossip_round(sn_core *core, int64_t unix_ms);                     /* once for each announcement: who is near */
int64_t sn_core_gossip(sn_core *core, int64_t now_us, int64_t unix_ms);        /* what is due; returns when to call again */
/* Asks for what is newer than we know; and tells our own announcement with it. */
void sn_core_ask_newer(sn_core *core, sn_peer peer, bool tell_own);
void sn_core_gossip_loss(sn_core *core, sn_peer peer);
size_t sn_core_answer_bytes(sn_core *core, int64_t now_us); /* what an answer to another node may cost now */
void sn_core_answered(sn_core *core, size_t bytes);

/* core_seat.c */
void sn_core_seat_begin(sn_core *core, int64_t now_us);
int64_t sn_core_seat(sn_core *core, int64_t now_us, int64_t unix_ms); /* what is due; returns when to call again */
bool sn_core_serving(const sn_core *core);                           /* it has blocks loaded */

/* core_ping.c */
void sn_core_ping(sn_core *core, sn_peer peer, const uint8_t id[SN_KEY_SIZE], bool padded, int64_t now_us);
void sn_core_measure_distances(sn_core *core, int64_t now_us);
void sn_core_on_ping(sn_core *core, const sn_event *event);
void sn_core_on_pong(sn_core *core, const sn_event *event, int64_t now_us);

#endif
