/* The nodes that share the files of one manifest, and what each of them has.
 *
 * Many may announce the files and send nothing, slowly, or something else. Of the places proven nodes have the first,
 * and take those of strangers. Who has sent no piece yet is asked for one at a time, and only where those that have
 * sent are busy; of these the one that is expected to send the next piece first is asked. A piece that takes four times
 * what another sender would need, or TRIAL_US at one that has sent none, goes to another one. */
#ifndef SN_SHARING_PEERS_SENDERS_PRIVATE_H
#define SN_SHARING_PEERS_SENDERS_PRIVATE_H

#include "sharing/peers/fetcher.h"

enum { SN_SENDERS_MAX = 64, SN_PIECES_PER_SENDER = 8 };

typedef struct sn_sender {
    uint8_t node[SN_KEY_SIZE], curve_key[SN_KEY_SIZE];
    char address[SN_ADDRESS_MAX + 1], name[64];
    sn_peer peer;           /* 0: not connected */
    bool dropped;           /* nothing is taken from it any more */
    bool proven;            /* by the link's directory */
    bool has_sent;          /* a piece that was right */
    int pieces;             /* that it is asked for now */
    int64_t piece_us;       /* that the last of them took, or one of them takes already */
    int turns;              /* in which it sent no manifest (fetch_manifest.c) */
    int64_t not_before_us;  /* it is left alone until then */
    uint64_t offer_id;      /* correlation id of the question what it has; 0: none is open */
    size_t offer_file;      /* of that question */
    int64_t offer_until_us; /* for which its answer is waited */
    bool *asked;            /* (n_files): it was asked what it has of the file, or has answered */
    sn_range_set *present;  /* (n_files) */
} sn_sender;

typedef struct sn_senders {
    sn_sender all[SN_SENDERS_MAX];
    size_t n, n_files;
    sn_hash manifest; /* its id */
} sn_senders;

void sn_senders_init(sn_senders *senders, const sn_hash *manifest, size_t n_files);
void sn_senders_fini(sn_senders *senders);
/* Adds the nodes of the directory that announce the manifest, proven ones first; where there is no place left, a proven
 * one takes that of a stranger that sends nothing now. */
sn_status sn_senders_update(sn_senders *senders, const sn_directory *directory, sn_err *err) SN_MUST_USE;
/* Asks those that were not asked yet what they have of the file. */
sn_status sn_senders_ask(sn_senders *senders, sn_link *link, size_t file, int64_t now_us, sn_err *err) SN_MUST_USE;
void sn_senders_ask_again(sn_senders *senders); /* the next sn_senders_ask asks all: they may have more by now */
/* Takes an answer, or an error, to that question; false: the message is none. */
bool sn_senders_take(sn_senders *senders, const sn_msg *msg);
/* The sender that has these bytes and is expected to send them first, by the time that its last piece took;
 * SN_SENDERS_MAX: none. Who has sent nothing yet is asked for one piece at a time, and only where no other may be
 * asked.
 */
size_t sn_senders_choose(const sn_senders *senders, size_t file, uint64_t from, uint64_t to, int64_t now_us);
/* Whether a piece that a sender has been asked for since begun_us is better asked of another one, which is expected to
 * take less than a quarter of that time: who is slow, or puts off again and again, holds neither the end of a file nor
 * a place of the fast ones. Where neither has sent, the other one is not tried yet, or was for a quarter of the time:
 * trials grow, so that a piece comes where all are slow. */
bool sn_senders_overtake(const sn_senders *senders, size_t sender, size_t file, const sn_piece *piece, int64_t begun_us,
                         int64_t now_us);
/* It did not answer, or its connection is lost: it is left alone for a while and then asked anew what it has. */
void sn_sender_rest(sn_senders *senders, size_t sender, int64_t now_us);
/* Says in the log why nothing more is taken from this node. */
void sn_sender_drop(sn_sender *sender, const char *what);

#endif
