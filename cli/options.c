#include "cli/options.h"

#include "base/file.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

sn_output_options sn_cli_output = {.log_level = SN_LOG_WARN};

static const sn_option log_options[] = {
    SN_OPT_ENUM("log-level", &sn_cli_output.log_level, sn_log_level_words, "least level of log lines"),
    SN_OPT_FLAG("json-log", &sn_cli_output.json_log, "log lines are JSON objects"),
};
const sn_option_group sn_group_log = SN_OPTION_GROUP("Log (on stderr):", log_options);

/* "swarm/evidence" in the user's folder for state, which is created with those above it. */
static sn_status find_evidence_folder(char folder[SN_PATH_SIZE], sn_err *err) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char path[SN_PATH_SIZE - 100];
    if (state && *state == '/')
        snprintf(path, sizeof path, "%s", state);
    else if (home && *home == '/')
        snprintf(path, sizeof path, "%.850s/.local/state", home);
    else
        return sn_fail(err, SN_REFUSED, "HOME is not set: give --evidence FOLDER");
    snprintf(folder, SN_PATH_SIZE, "%s/swarm", path);
    for (char *at = folder + 1; (at = strchr(at, '/')); at++) { /* its parents, with usual permissions */
        *at = 0;
        if (mkdir(folder, 0755)) {} /* an error shows when the evidence is written */
        *at = '/';
    }
    if (mkdir(folder, 0700)) {}
    snprintf(folder, SN_PATH_SIZE, "%s/swarm/evidence", path);
    return SN_OK;
}

/* $SWARM_CACHE, or "swarm-node" in the user's folder for caches; NULL when there is none. */
static const char *find_cache_folder(char folder[SN_PATH_SIZE]) {
    const char *own = getenv("SWARM_CACHE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const char *base = own && *own ? own : cache && *cache ? cache : home && *home && strcmp(home, "/") ? home : NULL;
    if (!base) return NULL;
    const char *below = base == own ? "" : base == cache ? "/swarm-node" : "/.cache/swarm-node";
    int len = snprintf(folder, SN_PATH_SIZE, "%s%s", base, below);
    return len > 0 && len < SN_PATH_SIZE ? folder : NULL;
}

sn_status sn_cli_find_folders(sn_settings *settings, sn_err *err) {
    static char evidence[SN_PATH_SIZE], cache[SN_PATH_SIZE];
    if (!settings->common.cache) settings->common.cache = find_cache_folder(cache);
    if (!(settings->audit.share > 0) || settings->audit.evidence) return SN_OK;
    settings->audit.evidence = evidence;
    return find_evidence_folder(evidence, err);
}
