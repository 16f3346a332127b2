/* --audit and its options, of generate and chat, and the report of an audit. */
#include "cli/io.h"
#include "cli/setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    double share;
    int64_t seed;
    bool local, hold;
    const char *evidence;
} given = {.seed = SN_INT_UNSET};

static const sn_option audit_options[] = {
    SN_OPT_RATIO("audit", "SHARE", &given.share, 0,
                 "check a node after this share of its steps, chosen at random: its results since the last check are "
                 "recomputed elsewhere and compared. What is not checked yet at the end of the text is checked then. "
                 "0: no audit"),
    SN_OPT_INT("audit-seed", "S", &given.seed, 0, 1LL << 53,
               "seed for choosing the steps; nodes must not know it (default: random)"),
    SN_OPT_FLAG("audit-local", &given.local, "recompute in this process, from the model's file, not at other nodes"),
    SN_OPT_FLAG("audit-hold", &given.hold,
                "print the text at its end, when it was checked, at a terminal too; pipes and files always get it so"),
    SN_OPT_STRING("evidence", "FOLDER", &given.evidence,
                  "folder for the signed statements of a node whose results are wrong (default: swarm/evidence in "
                  "XDG_STATE_HOME or ~/.local/state)"),
};
const sn_option_group sn_group_audit = SN_OPTION_GROUP("Audit:", audit_options);

/* The folder for evidence. That of the default is created, with those above it. */
static sn_status find_evidence_folder(char folder[1024], sn_err *err) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char path[900];
    if (given.evidence) {
        snprintf(folder, 1024, "%s", given.evidence);
        return SN_OK;
    }
    if (state && *state == '/')
        snprintf(path, sizeof path, "%s", state);
    else if (home && *home == '/')
        snprintf(path, sizeof path, "%.850s/.local/state", home);
    else
        return sn_fail(err, SN_REFUSED, "HOME is not set: give --evidence FOLDER");
    snprintf(folder, 1024, "%s/swarm", path);
    for (char *at = folder + 1; (at = strchr(at, '/')); at++) { /* its parents, with usual permissions */
        *at = 0;
        if (mkdir(folder, 0755)) {} /* an error shows when the evidence is written */
        *at = '/';
    }
    if (mkdir(folder, 0700)) {}
    snprintf(folder, 1024, "%s/swarm/evidence", path);
    return SN_OK;
}

sn_status sn_setup_audit(sn_setup *setup, const sn_chain_options *chain, sn_err *err) {
    if (!(given.share > 0)) {
        bool alone = given.seed != SN_INT_UNSET || given.local || given.hold || given.evidence;
        return alone ? sn_fail(err, SN_REFUSED,
                               "--audit-seed, --audit-local, --audit-hold and --evidence need --audit SHARE")
                     : SN_OK;
    }
    if (!setup->link) return sn_fail(err, SN_REFUSED, "--audit checks nodes: give --join, or leave out --audit");
    for (int b = 0; b < setup->hp->n_blocks && given.local; b++)
        if (!sn_model_has_block(setup->model, b))
            return sn_fail(err, SN_REFUSED,
                           "--audit-local needs every block in the model's file; block %d is not in it", b);
    if (given.seed == SN_INT_UNSET) given.seed = sn_cli_random_seed();
    sn_status status = find_evidence_folder(setup->evidence, err);
    if (status) return status;
    const sn_audit_options options = {.model = setup->model,
                                      .link = setup->link,
                                      .device = setup->device,
                                      .local = given.local,
                                      .share = given.share,
                                      .seed = (uint64_t)given.seed,
                                      .evidence = setup->evidence,
                                      .max_tokens = chain->max_tokens,
                                      .timeout_ms = chain->limits.timeout_ms,
                                      .node_filter = chain->routing.node_filter};
    return sn_audit_new(&options, &setup->audit, err);
}

bool sn_cli_wants_audit(void) { return given.share > 0; }
bool sn_cli_holds_text(void) { return given.share > 0 && (given.hold || !isatty(STDOUT_FILENO)); }

json_t *sn_audit_json(const sn_audit *audit) {
    sn_audit_report r = sn_audit_get_report(audit);
    json_t *o = json_object();
    json_object_set_new(o, "seed", json_integer((json_int_t)given.seed));
    json_object_set_new(o, "steps", json_integer((json_int_t)r.steps));
    json_object_set_new(o, "checked", json_integer((json_int_t)r.checked));
    json_object_set_new(o, "unchecked", json_integer((json_int_t)r.unchecked));
    json_object_set_new(o, "checks", json_integer((json_int_t)r.checks));
    json_object_set_new(o, "nodes_banned", json_integer((json_int_t)r.nodes_banned));
    json_object_set_new(o, "verdict", *r.verdict ? json_string(r.verdict) : json_null());
    json_object_set_new(o, "evidence", *r.evidence ? json_string(r.evidence) : json_null());
    return o;
}

void sn_audit_print(const sn_audit *audit) {
    sn_audit_report r = sn_audit_get_report(audit);
    fprintf(stderr, "audit: %llu of %llu steps of nodes checked, %s (audit seed %lld)\n", (unsigned long long)r.checked,
            (unsigned long long)r.steps, r.nodes_banned ? "wrong results found" : "all results correct",
            (long long)given.seed);
    if (r.unchecked)
        fprintf(stderr, "audit: %llu steps could not be checked: no other node serves their blocks\n",
                (unsigned long long)r.unchecked);
    if (*r.verdict) fprintf(stderr, "audit: %s\n", r.verdict);
    if (*r.evidence) fprintf(stderr, "audit: evidence is in %s; see 'swarm verify'\n", r.evidence);
}

sn_status sn_retract_print(const char *kept, size_t len, sn_err *err) {
    sn_status status = sn_flush_stdout(err);
    fputs("\n[audit failed: the text above is wrong, it is printed again]\n", stderr);
    if (!status) fwrite(kept, 1, len, stdout);
    return status ? status : sn_flush_stdout(err);
}
