/* What audit.c (what is noted and compared) and audit_dispute.c (who lied) share. */
#ifndef SN_CLIENT_AUDIT_PRIVATE_H
#define SN_CLIENT_AUDIT_PRIVATE_H

#include "client/audit.h"
#include "client/evidence.h"

enum { SN_CAUGHT_MAX = 64, SN_AUDIT_LOGS_MAX = SN_HOPS_MAX };

/* One step as it was answered, until it is checked. */
typedef struct sn_audit_entry {
    int position, n;
    size_t n_hops;
    uint8_t *receipts;     /* (n_hops, SN_RECEIPT_SIZE) */
    bool exact;            /* all of them say so */
    sn_hash output;        /* of the last one, and its type on the wire */
    sn_dtype output_dtype;
    float *rows, *outputs; /* (n, n_embd): what went in, what came out of the last hop */
} sn_audit_entry;

/* All steps over blocks [first, end), in their order. */
typedef struct sn_audit_log {
    int first, end;
    sn_audit_entry *entries; /* not yet checked */
    size_t n, room;
    float *history; /* (length, n_embd): the inputs of what went before */
    int length, history_room;
    sn_chain *auditor; /* the second session, brought to `length`; NULL: none yet */
    bool due;
    int64_t retry_us; /* not before then is another auditor looked for */
} sn_audit_log;

/* What nodes announced when they were first seen: who speaks, and with which key. */
typedef struct sn_audit_voice {
    uint8_t node[SN_KEY_SIZE];
    sn_blob sealed;
} sn_audit_voice;

enum { SN_AUDIT_VOICES_MAX = 4 * SN_HOPS_MAX };

struct sn_audit {
    sn_audit_options options;
    const sn_hparams *hp;
    sn_audit_log logs[SN_AUDIT_LOGS_MAX];
    size_t n_logs;
    uint64_t coin;
    uint8_t caught[SN_CAUGHT_MAX][SN_KEY_SIZE]; /* the oldest is forgiven first */
    size_t n_caught;
    sn_audit_voice voices[SN_AUDIT_VOICES_MAX]; /* the oldest makes room */
    size_t n_voices;
    const sn_audit_log *asking; /* whose nodes may not check it */
    uint8_t third[SN_HOPS_MAX][SN_KEY_SIZE]; /* nor these, while a third is looked for */
    size_t n_third;
    sn_audit_report report;
};

/* Opens a chain over the log's blocks that knows none of the nodes it is about. `here`: computed on this machine. */
sn_status sn_audit_open(sn_audit *audit, const sn_audit_log *log, const sn_chain *like, bool here, const bool *cut_at,
                        sn_chain **out, sn_err *err) SN_MUST_USE;
/* Keeps what the hop's node announces. */
sn_status sn_audit_listen(sn_audit *audit, const sn_hop_at *hop, sn_err *err) SN_MUST_USE;
/* Kept announcement of the node, or NULL. */
const sn_blob *sn_audit_voice_of(const sn_audit *audit, const uint8_t node[SN_KEY_SIZE]);

typedef enum sn_audit_outcome {
    SN_AUDIT_RIGHT,     /* what was answered is right, as far as one knows */
    SN_AUDIT_WRONG,     /* the log's first entry is not */
    SN_AUDIT_UNDECIDED, /* it may be: two differ */
} sn_audit_outcome;

/* The auditor came to another answer than the nodes of the log's first entry. Finds out who is right, keeps evidence, catches
 * who lied. On SN_AUDIT_RIGHT the auditor is closed: it was not. */
sn_status sn_audit_dispute(sn_audit *audit, sn_audit_log *log, const sn_chain *like, sn_audit_outcome *out,
                           sn_err *err) SN_MUST_USE;

#endif
