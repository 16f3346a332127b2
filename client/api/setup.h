/* What a session works with: model, tokenizer, device, LM head, link, audit, draft and chain, opened as the settings
 * say.
 *
 * The central type is sn_setup. Its owner fills the first part, opens it with sn_setup_open and, when the length of its
 * timeline is known, the chain with sn_setup_chain; sn_setup_close closes all, also after a failure. One thread, that
 * of the session. Errors are sentences about settings and files (SN_REFUSED) or what the layers below report. */
#ifndef SN_CLIENT_API_SETUP_H
#define SN_CLIENT_API_SETUP_H

#include "client/api/settings.h"
#include "client/audit/audit.h"
#include "client/chain/chain.h"
#include "client/generate/generator.h"
#include "client/generate/lm_head.h"
#include "client/generate/session_file.h"
#include "client/net/bootstrap.h"
#include "client/net/link.h"
#include "client/tune/backbone.h"
#include "client/tune/loaded_adapter.h"
#include "text/tokenizer/tokenizer.h"

#include <jansson.h>

/* How a setup tells its owner what it does. Every entry may be NULL. */
typedef struct sn_setup_hooks {
    void *ctx;
    void (*phase)(void *ctx, const char *what); /* work of seconds begins: "loading the blocks"; NULL: it has ended */
    void (*warning)(void *ctx, const char *sentence);
} sn_setup_hooks;

typedef struct sn_setup {
    /* Given by the owner; borrowed. */
    const sn_settings *settings;
    sn_setup_hooks hooks;
    const sn_cancel *cancel; /* ends waits and work; NULL: nothing does */
    bool plan_only;          /* the chain opens no sessions */

    bool borrows_model; /* model, tokenizer, LM head and adapter are another's, who filled them in */
    sn_model *model;
    const sn_hparams *hp;
    sn_tokenizer *tokenizer; /* NULL when the model has none and none is needed */
    sn_device *device;       /* of the setting; NULL until something computes on it */
    sn_device *exact;        /* a CPU for the audit, where `device` is none; or NULL */
    sn_lm_head *lm_head;
    sn_link *link;   /* NULL without a swarm */
    sn_audit *audit; /* NULL without one */
    sn_slow_nodes *slow_nodes;
    struct sn_known_prefixes *prefixes; /* borrowed: the connection's; NULL without one */
    sn_chain *chain;
    sn_draft draft; /* n_max 0: no draft tokens */
    sn_draft_model *draft_model;
    sn_draft_mtp *draft_mtp;   /* at most one of these two is the draft's source */
    sn_loaded_adapter adapter; /* the folder of the setting; zeroed: none */
} sn_setup;

/* Opens model, adapter, tokenizer, device and LM head. A model without a tokenizer is accepted unless needed. */
sn_status sn_setup_open(sn_setup *setup, bool needs_tokenizer, sn_err *err) SN_MUST_USE;
/* Opens setup->device, if it is not open: what only talks to nodes holds no part of a GPU. */
sn_status sn_setup_need_device(sn_setup *setup, sn_err *err) SN_MUST_USE;
/* A device alone. cancel: of what it computes; NULL: nothing ends that. */
sn_status sn_setup_device(const sn_settings *settings, const sn_cancel *cancel, sn_device **out,
                          sn_err *err) SN_MUST_USE;
void sn_setup_close(sn_setup *setup); /* accepts a setup of which nothing was opened */

/* Loads the adapter's folder of the settings. SN_REFUSED when the folder says that it was trained for another
 * embedding, last norm or LM head; the chain then checks the blocks, wherever they are: an adapter for other weights of
 * the same shapes would give wrong results. An adapter that names no weights is accepted with a warning. Free *out in
 * any case. */
sn_status sn_setup_adapter(const sn_setup *setup, const sn_model *model, sn_loaded_adapter *out,
                           sn_err *err) SN_MUST_USE;
/* SN_REFUSED when the adapter is a classifier, for callers that generate text. */
sn_status sn_setup_refuse_classifier(const sn_setup *setup, sn_err *err) SN_MUST_USE;

/* The length of the timeline: `asked` (--ctx), or `default_tokens` when it is 0; the model's context at most. */
sn_status sn_setup_context(const sn_setup *setup, int64_t asked, int64_t default_tokens, int *out,
                           sn_err *err) SN_MUST_USE;

/* How this process enters a swarm: its identity, and the addresses that it asks first. Read once from the settings;
 * every link that is opened with it has the same identity, so that nodes share prefix caches among them. It does not
 * change after sn_entry_find, and any thread may then open links with it. It must not be moved, and borrows from the
 * settings. */
typedef struct sn_entry {
    sn_identity identity;
    sn_bootstrap bootstrap;
    sn_link_options link;
} sn_entry;
/* model: whose nodes are looked for in the DHT; all zero where the settings name no DHT. SN_REFUSED: a setting or a
 * file is wrong; SN_RETRY: the DHT has no node. Without a swarm in the settings no address is found. */
sn_status sn_entry_find(sn_entry *entry, const sn_settings *settings, const sn_hash *model, const sn_cancel *cancel,
                        sn_err *err) SN_MUST_USE;

/* Opens the link to the swarm into setup->link; without a swarm in the settings nothing is opened. */
sn_status sn_setup_link(sn_setup *setup, sn_err *err) SN_MUST_USE;
/* Opens link, if there is none yet, audit and chain, for timelines of at most max_tokens. every_block: the route is cut
 * at every block. */
sn_status sn_setup_chain(sn_setup *setup, int max_tokens, bool every_block, sn_err *err) SN_MUST_USE;

/* -- draft tokens -- */

/* Opens the draft of the settings for a text sampled so, of at most max_context tokens. */
sn_status sn_setup_open_draft(sn_setup *setup, const sn_sampling *sampling, int max_context, sn_err *err) SN_MUST_USE;
sn_draft *sn_setup_get_draft(sn_setup *setup); /* NULL: no draft tokens */
/* The text is sampled so from now on. */
sn_status sn_setup_set_draft_sampling(sn_setup *setup, const sn_sampling *sampling, sn_err *err) SN_MUST_USE;

/* -- the audit -- */

/* Opens the audit of the settings, for a chain with these options, into setup->audit. */
sn_status sn_setup_audit(sn_setup *setup, const sn_chain_options *chain, sn_err *err) SN_MUST_USE;
json_t *sn_audit_json(const sn_audit *audit);

/* -- training -- */

/* A backbone over these blocks, at nodes (opening the link) or in this process, as the settings say. base: as of
 * sn_backbone_swarm_options. */
sn_status sn_setup_backbone(sn_setup *setup, sn_backbone_blocks blocks, const sn_base_weights *base, sn_backbone **out,
                            sn_err *err) SN_MUST_USE;

/* Calls the hook. */
void sn_setup_phase(const sn_setup *setup, const char *what);

#endif
