#include "sharing/hub/trusted_manifest.h"

#include "base/file.h"
#include "net/identity.h"

#include <stdio.h>
#include <string.h>

void sn_trusted_manifest_fini(sn_trusted_manifest *given) {
    sn_manifest_fini(&given->manifest);
    sn_buf_fini(&given->text);
}

sn_status sn_manifest_check_signature(const sn_manifest *m, const char *name, sn_err *err) {
    if (!m->is_signed || sn_verify(m->signer, m->id.bytes, sizeof m->id.bytes, m->signature)) return SN_OK;
    return sn_fail(err, SN_REFUSED, "the signature of %s is not that of its signer", name);
}

static sn_status fetch(const char *url, const sn_http_settings *settings, sn_buf *text, sn_err *err) {
    sn_http *http = NULL;
    sn_status status = sn_http_new(settings, &http, err);
    if (!status) status = sn_http_get(http, url, SN_MANIFEST_MAX, text, err);
    sn_http_free(&http);
    return status;
}

sn_status sn_trusted_manifest_read(const char *given, const sn_http_settings *http, sn_trusted_manifest *out,
                                   sn_err *err) {
    char place[SN_URL_SIZE];
    uint8_t key[SN_KEY_SIZE];
    const char *hash = strrchr(given, '#');
    int len = hash ? (int)(hash - given) : (int)strlen(given);
    *out = (sn_trusted_manifest){0};
    if (snprintf(place, sizeof place, "%.*s", len, given) >= (int)sizeof place)
        return sn_fail(err, SN_REFUSED, "the name of the manifest is too long");
    if (hash && sn_unhex(hash + 1, key, sizeof key, NULL))
        return sn_fail(err, SN_REFUSED, "behind # stands the id of the signer, 64 hexadecimal digits");
    bool plain = !strncmp(place, "http://", 7), remote = plain || !strncmp(place, "https://", 8);
    if (plain && !hash)
        return sn_fail(err, SN_REFUSED,
                       "a manifest over http:// can be anybody's: give its signer as #KEY, or https://");
    sn_status status =
        remote ? fetch(place, http, &out->text, err) : sn_read_file(place, SN_MANIFEST_MAX, &out->text, err);
    if (!status) status = sn_manifest_parse((const char *)out->text.data, out->text.len, &out->manifest, err);
    if (!status) status = sn_manifest_check_signature(&out->manifest, place, err);
    if (!status && hash && (!out->manifest.is_signed || memcmp(out->manifest.signer, key, sizeof key)))
        status = sn_fail(err, SN_REFUSED, "%s is not signed by this key", place);
    return status;
}
