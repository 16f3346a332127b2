/* A session in a file, as the settings say. */
#include "client/api/setup.h"

static sn_status load_session_key(const sn_settings *settings, sn_file_key *out, sn_err *err) {
    const char *path = settings->session.key ? settings->session.key : settings->common.identity;
    if (!path)
        return sn_fail(err, SN_REFUSED,
                       "a saved session is encrypted: give --session-key FILE (made by: head -c 32 /dev/urandom > "
                       "FILE; chmod 600 FILE), or --identity");
    return sn_file_key_load(path, out, err);
}

sn_status sn_session_open(const sn_setup *setup, sn_session_file **out, sn_err *err) {
    const sn_session_settings *o = &setup->settings->session;
    *out = NULL;
    if (!o->save && !o->load)
        return o->key ? sn_fail(err, SN_REFUSED,
                                "--session-key is for the file that --save writes or --load reads: give one of them")
                      : SN_OK;
    if (o->load && setup->settings->audit.share > 0)
        return sn_fail(err, SN_REFUSED,
                       "--audit cannot check a KV cache that comes from a file: leave out --load or --audit");
    sn_file_key secret = {0};
    sn_status status = load_session_key(setup->settings, &secret, err);
    if (!status && o->load) status = sn_session_file_open(o->load, &secret, setup->model, out, err);
    sn_file_key_fini(&secret);
    return status;
}

sn_status sn_session_save(const sn_setup *setup, const sn_generator *generator, const json_t *extra, sn_err *err) {
    const char *path = setup->settings->session.save;
    sn_file_key secret = {0};
    if (!path) return SN_OK;
    sn_setup_phase(setup, "saving the session");
    sn_status status = load_session_key(setup->settings, &secret, err);
    if (!status) status = sn_session_file_write(path, &secret, setup->model, setup->chain, generator, extra, err);
    sn_file_key_fini(&secret);
    sn_setup_phase(setup, NULL);
    return status;
}
