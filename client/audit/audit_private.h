/* What an audit keeps, for audit.c and for tests that count it. */
#ifndef SN_CLIENT_AUDIT_AUDIT_PRIVATE_H
#define SN_CLIENT_AUDIT_AUDIT_PRIVATE_H

#include "client/audit/audit.h"
#include "client/audit/evidence.h"

enum { SN_AUDIT_BANNED_MAX = 1024, SN_AUDIT_AVOIDED_MAX = 1024, SN_AUDIT_LOGS_MAX = SN_HOPS_MAX };
enum { SN_AUDIT_ANNOUNCEMENTS_MAX = 4 * SN_HOPS_MAX };

/* One step with its answer, kept until it is checked. */
typedef struct sn_audit_entry {
    int position, n;
    size_t n_hops;
    uint8_t *receipts; /* (n_hops, SN_RECEIPT_SIZE) */
    bool exact;        /* every receipt says that the device is exact, and all keys and values its own */
    bool past;         /* the session has left its positions, or computes them anew */
    sn_hash output;    /* as the last hop signed it, and its wire type */
    sn_dtype output_dtype;
    float *rows, *outputs; /* (n, n_embd): what entered the first hop; what left the last one */
} sn_audit_entry;

/* All steps over blocks [first, end), in their order. */
typedef struct sn_audit_log {
    int first, end;
    sn_audit_entry *entries;  /* (n): not checked yet */
    size_t n, capacity, rows; /* rows: of the entries, which have them in memory */
    float *history;           /* (length, n_embd): the inputs of the steps before the entries */
    int length;
    size_t history_capacity; /* rows */
    sn_chain *auditor;       /* the second session, at position `length`; NULL: none yet */
    bool due;                /* a draw asked for a check */
    bool left;               /* the session does these blocks in other ranges now */
    bool auditor_failed;     /* an auditor was found for the entries, but failed or gave wrong results */
    bool auditor_changed;    /* a node of it was replaced while it computed its newest answer */
    int64_t retry_us;        /* no auditor was found: earliest time at which to look again */
} sn_audit_log;

/* What a node announced when it was first seen: its name, address and keys, signed. */
typedef struct sn_audit_announcement {
    uint8_t node[SN_KEY_SIZE];
    sn_blob sealed;
} sn_audit_announcement;

/* A node that is no auditor until then; INT64_MAX: for good. */
typedef struct sn_audit_avoided {
    uint8_t node[SN_KEY_SIZE];
    int64_t until_us;
} sn_audit_avoided;

struct sn_audit {
    sn_audit_options options;
    const sn_hparams *hp;
    sn_audit_log logs[SN_AUDIT_LOGS_MAX];
    size_t n_logs;
    int longest;       /* positions of the longest timeline so far */
    int given_up_from; /* position of the first step of the timeline that was given up; INT_MAX: none */
    int failed_from;   /* the same of those whose auditors failed */
    uint64_t rng_state;
    uint8_t banned[SN_AUDIT_BANNED_MAX][SN_KEY_SIZE]; /* the oldest entry is overwritten first */
    size_t n_banned;
    sn_audit_avoided avoided[SN_AUDIT_AVOIDED_MAX]; /* the oldest entry is overwritten first */
    size_t n_avoided;
    sn_audit_announcement announcements[SN_AUDIT_ANNOUNCEMENTS_MAX]; /* the oldest entry is overwritten first */
    size_t n_announcements;
    const sn_audit_log *log_in_check;               /* its nodes may not check it */
    uint8_t excluded[2 * SN_HOPS_MAX][SN_KEY_SIZE]; /* nor may these nodes, while a dispute lasts */
    size_t n_excluded;
    bool apart; /* the newest check failed without showing which of several nodes was wrong */
    sn_audit_report report;
    size_t n_evidence, evidence_bytes; /* files that were saved */
};

/* How long no auditor is looked for, after a search or a check took spent_us in vain: ranges that are checked one after
 * the other, without success, take a third of a session's time at most. */
int64_t sn_audit_pause_us(size_t n_logs, int64_t spent_us);

#endif
