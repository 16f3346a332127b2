/* What the handles of include/swarm.h are, and what the files of the C API share.
 *
 * error.c       errors, cancel flags, memory
 * options.c     options as text
 * connection.c  a swarm: identity, addresses, one link behind a lock
 * model.c       tokenizer, embedding and LM head
 * model_source.c  models that are fetched by name
 * answer.c      answers taken apart, also while they grow
 * session.c     a timeline: opening, events, steps, files
 * generate.c    generation and sampling in a session
 * adapter.c     adapters
 * blocks.c      forward and backward passes of hidden states through blocks
 * training.c    a training run
 * setup.c       what the last four stand on (sn_api_setup)
 *
 * Functions of the C API check what they are given, call the layers below with an sn_err, and hand its sentence to the
 * caller (sn_api_end). A handle keeps a copy of its options, from which its settings borrow. */
#ifndef SN_CLIENT_API_API_PRIVATE_H
#define SN_CLIENT_API_API_PRIVATE_H

#include "base/file.h"
#include "client/api/setup.h"
#include "client/chain/known_prefixes.h"
#include "include/swarm.h"
#include "text/chat/answer_format.h"

#include <pthread.h>

struct swarm_cancel {
    sn_cancel flag;
};

static inline const sn_cancel *sn_api_flag(const swarm_cancel *cancel) { return cancel ? &cancel->flag : NULL; }

struct swarm_options {
    struct sn_key_value {
        char *key, *value; /* one allocation, that of key */
    } *given;
    size_t n;
};

/* Options of a handle: a copy, and the settings that it gives. */
typedef struct sn_api_options {
    swarm_options copy;
    sn_settings settings;
} sn_api_options;

/* of: a kind of options. like: the settings before the options; NULL: the defaults. SN_REFUSED names the key. Free *out
 * with sn_api_options_fini in any case. */
sn_status sn_api_options_init(sn_api_options *out, const swarm_options *given, const char *of, const sn_settings *like,
                              sn_err *err) SN_MUST_USE;
void sn_api_options_fini(sn_api_options *options);

/* The end of a function of the C API: its code, and after a failure *error. cancel (NULL allowed): a failure while it
 * is set is SWARM_CANCELLED. */
swarm_code sn_api_end(sn_status status, const sn_err *err, const sn_cancel *cancel, swarm_error **error);
swarm_code sn_api_fail(swarm_code code, swarm_error **error, const char *format, ...) SN_PRINTF(3, 4);

/* Moves a JSON value to the caller as text; `value` is consumed, NULL: memory is out. */
sn_status sn_api_json(json_t *value, char **text, size_t *length, sn_err *err) SN_MUST_USE;
json_t *sn_api_ids_json(const sn_token_ids *ids);
/* Copies bytes to the caller, with a NUL behind them. */
sn_status sn_api_text(const void *data, size_t len, char **text, size_t *length, sn_err *err) SN_MUST_USE;

struct swarm_connection {
    sn_api_options options;
    sn_entry entry;
    swarm_cancel *cancel;        /* borrowed; may be NULL */
    sn_known_prefixes *prefixes; /* of all its sessions */
    sn_hash model;               /* whose nodes are looked for; meaningful if has_model */
    bool has_model;
    /* Opens a link of this connection's identity. For tests over another transport it is replaced before the first call
     * that needs one. */
    sn_status (*open_link)(void *ctx, sn_link **out, sn_err *err);
    void *open_link_ctx;
    pthread_mutex_t lock; /* of what follows */
    sn_link *link;        /* NULL: a session has taken it over */
    bool discovered;      /* the directory is new, of this time */
    int64_t discovered_us;
};
/* Opens the link if there is none. With the lock held. */
sn_status sn_connection_needs_link(swarm_connection *connection, sn_err *err) SN_MUST_USE;
/* A link for a session: the connection's own while it is new, else another one. */
sn_status sn_connection_give_link(swarm_connection *connection, sn_link **out, sn_err *err) SN_MUST_USE;
/* A connection without a link, over links that `open_link` makes. */
sn_status sn_connection_new(const swarm_options *options, swarm_cancel *cancel, swarm_connection **out,
                            sn_err *err) SN_MUST_USE;

struct swarm_model {
    sn_api_options options;
    char *path;
    sn_model *model; /* NULL: only the tokenizer, or only a chat template, was read */
    const sn_hparams *hp;
    sn_tokenizer *tokenizer; /* NULL: the model has none, for the reason below */
    sn_err no_tokenizer;
    sn_chat_template *chat; /* of the model, or of the option; NULL: the same */
    sn_err no_chat;
    sn_sampling_hint sampling; /* as its makers recommend */
    pthread_mutex_t lock;      /* of what follows, which the first call that needs it opens */
    sn_device *device;
    sn_lm_head *lm_head;
    sn_answer_format *answers;
};
/* Opens the files of a model by its path or, with the option "cache", its name: path is then where they are. */
sn_status sn_api_open_named(const char *name, const sn_settings *settings, char path[SN_PATH_SIZE], sn_model **out,
                            sn_err *err) SN_MUST_USE;
/* The LM head, opened. */
sn_status sn_model_open_head(const swarm_model *model, sn_lm_head **out, sn_err *err) SN_MUST_USE;

/* SN_REFUSED with the reason when the model has no tokenizer. */
sn_status sn_model_needs_tokenizer(const swarm_model *model, sn_err *err) SN_MUST_USE;

/* Appends the bytes of a token; those of a special one only if `special`. */
sn_status sn_model_spell_token(const swarm_model *m, int32_t id, bool special, sn_buf *out, sn_err *err) SN_MUST_USE;
/* Removes the space that the tokenizer puts before a text, and says whether there was one. */
bool sn_model_drop_space(const swarm_model *m, sn_buf *text);
/* How the model writes answers, opened by the first call. */
sn_status sn_model_open_answers(const swarm_model *model, const sn_answer_format **out, sn_err *err) SN_MUST_USE;

/* A setup for a handle over this model: its LM head, and a link of the connection; without a
 * connection this process computes the blocks. Close *out with sn_setup_close in any case. */
sn_status sn_api_setup(sn_setup *out, const swarm_model *model, swarm_connection *connection, const sn_cancel *cancel,
                       sn_settings *settings, sn_err *err) SN_MUST_USE;

/* Makes the folder of results, unless it is there. */
sn_status sn_api_folder(const char *path, sn_err *err) SN_MUST_USE;

struct swarm_adapter {
    const swarm_model *model;
    sn_loaded_adapter loaded; /* zeroed: nodes hold it */
    char *name;               /* "name:NAME@HASH", or the folder; NULL: values of blocks */
    char *warning;            /* NULL: none */
};

enum { SN_EVENT_NUMBERS = 4 };
struct swarm_event {
    swarm_event_kind kind;
    const char *text;
    size_t length;
    struct {
        const char *name;
        double value;
    } numbers[SN_EVENT_NUMBERS];
    const int32_t *top_ids;
    const double *top_logprobs;
    size_t n_top;
};

struct swarm_session {
    const swarm_model *model;
    swarm_connection *connection;
    swarm_cancel *cancel;
    sn_api_options options;
    sn_setup setup;
    sn_generator *generator;
    int context; /* tokens of the longest timeline */
    bool seeded; /* the random numbers of the sampler have begun */
    bool of_hidden_states;
    swarm_event_callback on_event;
    void *event_ctx;
    uint64_t unwanted; /* kinds of events that the callback is not given, a bit for each */
    swarm_logits_callback on_logits;
    void *logits_ctx;
    sn_cancel stop;      /* set when a callback asks for it; the caller's flag is its `also` */
    size_t prompt, done; /* tokens of the prompt in progress; 0: none */
    size_t reused;       /* of them: in the timeline already */
    int n_top;           /* the option "logprobs" of the call in progress */
    int32_t *top_ids;
    double *top_logprobs;
    size_t top_capacity;
    struct {
        uint64_t failovers, moves, bans;
    } noted;     /* what there were events about */
    sn_buf text; /* of the event in progress, with a NUL */
    sn_buf extra;
    bool has_extra;
};
/* Around the work of a call that may take long. `status`, `err`: of the work. */
void sn_session_begin(swarm_session *s);
swarm_code sn_session_end(swarm_session *s, sn_status status, const sn_err *err, swarm_error **error);
bool sn_session_wants(const swarm_session *s, swarm_event_kind kind);
void sn_session_emit(swarm_session *s, const swarm_event *event);
void sn_session_note_changes(swarm_session *s); /* events about what chain and audit have done since the last time */
/* SN_REFUSED: the session has been used for hidden states, or for tokens. */
sn_status sn_session_needs_tokens(const swarm_session *s, sn_err *err) SN_MUST_USE;

#endif
