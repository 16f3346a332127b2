/* Options of the audit, and what is said about it in the end. */
#include "client/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct {
    double share;
    int64_t seed;
    bool local;
    const char *evidence;
} given = {.seed = -1};

static const sn_option audit_options[] = {
    SN_OPT_FLOAT("audit", "SHARE", &given.share, 0, 1,
                 "check nodes after this share of their steps, drawn by chance: what they answered since the last check is "
                 "computed again elsewhere and compared; what is left is checked when the text ends; 0, the default: never"),
    SN_OPT_INT("audit-seed", "S", &given.seed, -1, 1LL << 53,
               "the same seed draws the same steps; keep it to yourself; without it, another one for each run"),
    SN_OPT_FLAG("audit-local", &given.local, "compute here what is checked, from the model's file, and not at other nodes"),
    SN_OPT_STRING("evidence", "FOLDER", &given.evidence,
                  "where what a lying node signed is kept; without it, swarm/evidence in the folder for users' state"),
};
const sn_option_group sn_group_audit = {"Audit:", audit_options, sizeof audit_options / sizeof *audit_options};

/* $XDG_STATE_HOME/swarm/evidence, or below ~/.local/state; each folder is made when it is needed. */
static sn_status find_folder(char folder[1024], sn_err *err) {
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
        return sn_fail(err, SN_REFUSED, "there is no folder for evidence: give --evidence FOLDER");
    snprintf(folder, 1024, "%s/swarm", path);
    for (char *at = folder + 1; (at = strchr(at, '/')); at++) { /* those above it, with the rights that are usual */
        *at = 0;
        if (mkdir(folder, 0755)) {} /* writing says what is wrong */
        *at = '/';
    }
    if (mkdir(folder, 0700)) {}
    snprintf(folder, 1024, "%s/swarm/evidence", path);
    return SN_OK;
}

sn_status sn_setup_audit(sn_setup *setup, const sn_chain_options *chain, sn_err *err) {
    if (!(given.share > 0)) {
        bool alone = given.seed >= 0 || given.local || given.evidence;
        return alone ? sn_fail(err, SN_REFUSED, "--audit-seed, --audit-local and --evidence belong to --audit SHARE") : SN_OK;
    }
    if (!setup->link) return sn_fail(err, SN_REFUSED, "--audit checks nodes: give --join, or leave it out");
    for (int b = 0; b < setup->hp->n_blocks && given.local; b++)
        if (!sn_model_has_block(setup->model, b))
            return sn_fail(err, SN_REFUSED, "--audit-local needs every block in the model's file; block %d is not in it", b);
    if (given.seed < 0) { /* as --seed */
        uint64_t chance;
        sn_random(&chance, sizeof chance);
        given.seed = (int64_t)(chance >> 11);
    }
    sn_status status = find_folder(setup->evidence, err);
    if (status) return status;
    const sn_audit_options options = {.model = setup->model,
                                      .link = setup->link,
                                      .device = setup->device,
                                      .local = given.local,
                                      .share = given.share,
                                      .seed = (uint64_t)given.seed,
                                      .evidence = setup->evidence,
                                      .max_tokens = chain->max_tokens,
                                      .timeout_ms = chain->timeout_ms,
                                      .pick = chain->pick};
    return sn_audit_new(&options, &setup->audit, err);
}

bool sn_audit_is_given(void) { return given.share > 0; }

json_t *sn_audit_json(const sn_audit *audit) {
    sn_audit_report r = sn_audit_read(audit);
    json_t *o = json_object();
    json_object_set_new(o, "seed", json_integer((json_int_t)given.seed));
    json_object_set_new(o, "steps", json_integer((json_int_t)r.steps));
    json_object_set_new(o, "checked", json_integer((json_int_t)r.checked));
    json_object_set_new(o, "unchecked", json_integer((json_int_t)r.unchecked));
    json_object_set_new(o, "draws", json_integer((json_int_t)r.checks));
    json_object_set_new(o, "lies", json_integer((json_int_t)r.lies));
    json_object_set_new(o, "verdict", *r.verdict ? json_string(r.verdict) : json_null());
    json_object_set_new(o, "evidence", *r.evidence ? json_string(r.evidence) : json_null());
    return o;
}

void sn_audit_print(const sn_audit *audit) {
    sn_audit_report r = sn_audit_read(audit);
    fprintf(stderr, "audit: %llu of %llu steps of nodes checked, %s (audit seed %lld)\n", (unsigned long long)r.checked,
            (unsigned long long)r.steps, r.lies ? "and lies found" : "no lie found", (long long)given.seed);
    if (r.unchecked)
        fprintf(stderr, "audit: %llu steps could not be checked, since nobody else serves their blocks\n",
                (unsigned long long)r.unchecked);
    if (*r.verdict) fprintf(stderr, "audit: %s\n", r.verdict);
    if (*r.evidence) fprintf(stderr, "audit: evidence is in %s; see 'swarm verify'\n", r.evidence);
}

sn_status sn_void_print(const char *kept, size_t len, sn_err *err) {
    sn_status status = sn_flush_stdout(err);
    fputs("\n[a node lied: the text above is wrong; it follows again]\n", stderr);
    if (!status) fwrite(kept, 1, len, stdout);
    return status ? status : sn_flush_stdout(err);
}
