/* What a command works with: model, tokenizer, device, LM head, link, chain, opened as the options say.
 *
 * The central type is sn_setup. A command opens it with sn_setup_open and, when the length of its timeline is known,
 * the chain with sn_setup_chain; sn_setup_close closes all, also after a failure. Everything runs on the main thread.
 * Errors are sentences about options and files (SN_REFUSED) or what the layers below report. */
#ifndef SN_CLI_SETUP_H
#define SN_CLI_SETUP_H

#include "cli/options.h"
#include "client/audit/audit.h"
#include "client/chain/chain.h"
#include "client/generate/generator.h"
#include "client/generate/lm_head.h"
#include "client/generate/session_file.h"
#include "client/net/bootstrap.h"
#include "client/net/link.h"
#include "client/tune/loaded_adapter.h"
#include "model/tokenizer/tokenizer.h"

#include <jansson.h>

typedef struct sn_setup {
    sn_model *model;
    const sn_hparams *hp;
    sn_tokenizer *tokenizer; /* NULL when the model has none and the command needs none */
    sn_device *device;
    sn_lm_head *lm_head;
    sn_link *link;   /* NULL without --join and --dht */
    sn_audit *audit; /* NULL without --audit */
    sn_slow_nodes *slow_nodes;
    sn_chain *chain;
    sn_draft draft; /* without a source: no draft tokens */
    sn_draft_model *draft_model;
    sn_loaded_adapter adapter; /* the folder of --adapter; zeroed: none */
    bool plan_only;            /* set before sn_setup_chain: the chain opens no sessions */
    char evidence[1024];       /* folder for evidence of the audit */
} sn_setup;

/* Opens model, adapter, tokenizer, device and LM head. A model without a tokenizer is accepted unless needed. */
sn_status sn_setup_open(sn_setup *setup, bool needs_tokenizer, sn_err *err) SN_MUST_USE;
void sn_setup_close(sn_setup *setup); /* accepts a zeroed setup */

/* Loads the folder of --adapter. SN_REFUSED when the folder says that it was trained for another embedding, last norm
 * or LM head; the chain then checks the blocks, wherever they are: an adapter for other weights of the same shapes
 * would give wrong results. An adapter that names no weights is accepted with a warning on stderr. Free *out in any
 * case. */
sn_status sn_setup_adapter(const sn_model *model, sn_loaded_adapter *out, sn_err *err) SN_MUST_USE;
/* SN_REFUSED when --adapter is a classifier, for commands that generate text. */
sn_status sn_setup_refuse_classifier(const sn_setup *setup, sn_err *err) SN_MUST_USE;

/* The length of the timeline: `asked` (--ctx), or `default_tokens` when it is 0; the model's context at most. */
sn_status sn_setup_context(const sn_setup *setup, int64_t asked, int64_t default_tokens, int *out,
                           sn_err *err) SN_MUST_USE;

/* The first addresses to ask for nodes of this model, of --join and --dht. */
sn_status sn_setup_bootstrap(sn_bootstrap *out, const sn_hash *model, sn_err *err) SN_MUST_USE;
/* Opens the link to the swarm of --join and --dht into setup->link; without these options nothing is opened. */
sn_status sn_setup_link(sn_setup *setup, sn_err *err) SN_MUST_USE;
/* Opens link, audit and chain, for timelines of at most max_tokens. every_block: the route is cut at every block. */
sn_status sn_setup_chain(sn_setup *setup, int max_tokens, bool every_block, sn_err *err) SN_MUST_USE;

/* -- draft tokens (options_draft.c) -- */

/* Opens the draft of the options for a text sampled so, of at most max_context tokens. */
sn_status sn_setup_open_draft(sn_setup *setup, const sn_sampling *sampling, int max_context, sn_err *err) SN_MUST_USE;
sn_draft *sn_setup_get_draft(sn_setup *setup); /* NULL: no draft tokens */

/* -- the audit (options_audit.c) -- */

/* Opens the audit of the options, for a chain with these options, into setup->audit. */
sn_status sn_setup_audit(sn_setup *setup, const sn_chain_options *chain, sn_err *err) SN_MUST_USE;
json_t *sn_audit_json(const sn_audit *audit);
void sn_audit_print(const sn_audit *audit); /* on stderr */
/* Text that was printed on stdout is retracted: says so on stderr and prints the part that stands again. */
sn_status sn_retract_print(const char *kept, size_t len, sn_err *err) SN_MUST_USE;

/* -- a session in a file (options_session.c) -- */

/* Checks the options before anything is computed; *out: the session of --load, or NULL. */
sn_status sn_session_open(const sn_setup *setup, sn_session_file **out, sn_err *err) SN_MUST_USE;
/* Writes the session to the file of --save; without the option nothing is written. */
sn_status sn_session_save(const sn_setup *setup, const sn_generator *generator, const json_t *extra,
                          sn_err *err) SN_MUST_USE;

/* -- classifiers (eval_classifier.c) -- */

/* `swarm eval` of a classifier: its accuracy over the labelled texts of a file. */
sn_status sn_eval_classifier(sn_setup *setup, const char *path, sn_err *err) SN_MUST_USE;

#endif
