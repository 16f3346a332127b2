/* --save, --load, --session-key: a session in a file, of generate and chat. */
#include "client/cmd.h"

sn_session_options sn_given_session;

static const sn_option session_options[] = {
    SN_OPT_STRING("save", "FILE", &sn_given_session.save, "write the session there at the end: text, and keys and values of all blocks"),
    SN_OPT_STRING("load", "FILE", &sn_given_session.load, "go on with a saved session, over whatever nodes there are now"),
    SN_OPT_STRING("session-key", "FILE", &sn_given_session.key,
                  "the file is locked with what this one holds (16 bytes at least, at random); without it, with --identity"),
};
const sn_option_group sn_group_session = {"Session in a file:", session_options, sizeof session_options / sizeof *session_options};

static sn_status load_secret(sn_lock_key *out, sn_err *err) {
    const char *path = sn_given_session.key ? sn_given_session.key : sn_given.identity;
    if (!path)
        return sn_fail(err, SN_REFUSED, "a saved session is locked: give --session-key FILE (made by: head -c 32 /dev/urandom > "
                                        "FILE; chmod 600 FILE), or --identity");
    return sn_lock_key_load(path, out, err);
}

/* Before anything is computed: that the key can be read, and the file. */
sn_status sn_session_open(const sn_setup *setup, sn_saved **out, sn_err *err) {
    const sn_session_options *o = &sn_given_session;
    *out = NULL;
    if (!o->save && !o->load)
        return o->key ? sn_fail(err, SN_REFUSED, "--session-key locks what --save writes and --load reads: give one of them") : SN_OK;
    if (o->load && sn_audit_is_given())
        return sn_fail(err, SN_REFUSED, "--audit cannot look behind a past that comes from a file: leave out --load or --audit");
    sn_lock_key secret;
    sn_status status = load_secret(&secret, err);
    if (!status && o->load) status = sn_saved_open(o->load, &secret, setup->model, out, err);
    sn_lock_key_fini(&secret);
    return status;
}

sn_status sn_session_save(const sn_setup *setup, const sn_generator *generator, const json_t *more, sn_err *err) {
    sn_lock_key secret;
    if (!sn_given_session.save) return SN_OK;
    sn_progress_shown *shown = sn_progress_begin("saving the session");
    sn_status status = load_secret(&secret, err);
    if (!status) status = sn_saved_write(sn_given_session.save, &secret, setup->model, setup->chain, generator, more, err);
    sn_lock_key_fini(&secret);
    sn_progress_end(&shown);
    return status;
}
