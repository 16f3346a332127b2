/* --save, --load, --session-key: a session in a file, of generate and chat. */
#include "cli/progress.h"
#include "cli/setup.h"

sn_session_options sn_cli_session;

static const sn_option session_options[] = {
    SN_OPT_STRING("save", "FILE", &sn_cli_session.save,
                  "at the end, write the session to this file: its text, and the KV cache of all blocks"),
    SN_OPT_STRING("load", "FILE", &sn_cli_session.load,
                  "continue the session of this file, over the nodes that the swarm has now"),
    SN_OPT_STRING("session-key", "FILE", &sn_cli_session.key,
                  "the session's file is encrypted with the content of this file, 16 or more random bytes (default: "
                  "the file of --identity)"),
};
const sn_option_group sn_group_session = SN_OPTION_GROUP("Session in a file:", session_options);

static sn_status load_session_key(sn_file_key *out, sn_err *err) {
    const char *path = sn_cli_session.key ? sn_cli_session.key : sn_cli_options.identity;
    if (!path)
        return sn_fail(err, SN_REFUSED,
                       "a saved session is encrypted: give --session-key FILE (made by: head -c 32 /dev/urandom > "
                       "FILE; chmod 600 FILE), or --identity");
    return sn_file_key_load(path, out, err);
}

sn_status sn_session_open(const sn_setup *setup, sn_session_file **out, sn_err *err) {
    const sn_session_options *o = &sn_cli_session;
    *out = NULL;
    if (!o->save && !o->load)
        return o->key ? sn_fail(err, SN_REFUSED,
                                "--session-key is for the file that --save writes or --load reads: give one of them")
                      : SN_OK;
    if (o->load && sn_cli_wants_audit())
        return sn_fail(err, SN_REFUSED,
                       "--audit cannot check a KV cache that comes from a file: leave out --load or --audit");
    sn_file_key secret = {0};
    sn_status status = load_session_key(&secret, err);
    if (!status && o->load) status = sn_session_file_open(o->load, &secret, setup->model, out, err);
    sn_file_key_fini(&secret);
    return status;
}

sn_status sn_session_save(const sn_setup *setup, const sn_generator *generator, const json_t *extra, sn_err *err) {
    sn_file_key secret = {0};
    if (!sn_cli_session.save) return SN_OK;
    sn_progress_bar *bar = sn_progress_bar_begin("saving the session");
    sn_status status = load_session_key(&secret, err);
    if (!status)
        status = sn_session_file_write(sn_cli_session.save, &secret, setup->model, setup->chain, generator, extra, err);
    sn_file_key_fini(&secret);
    sn_progress_bar_end(&bar);
    return status;
}
