/* The manifest that a user names with --manifest: FILE or URL, perhaps with "#KEY" behind it, the identity that must
 * have signed it. A signature that is there must be right in any case.
 *
 * Any thread may call this function. */
#ifndef SN_SHARING_HUB_TRUSTED_MANIFEST_H
#define SN_SHARING_HUB_TRUSTED_MANIFEST_H

#include "sharing/hub/http.h"
#include "sharing/hub/manifest.h"

/* http: how URLs are fetched. Free *out with sn_trusted_manifest_fini in any case. SN_REFUSED: it is no manifest, or
 * not signed by KEY. */
sn_status sn_trusted_manifest_read(const char *given, const sn_http_settings *http, sn_trusted_manifest *out,
                                   sn_err *err) SN_MUST_USE;
void sn_trusted_manifest_fini(sn_trusted_manifest *given); /* accepts a zeroed struct */
/* SN_REFUSED: the manifest is signed, and the signature is not that of its signer. name: of the manifest. */
sn_status sn_manifest_check_signature(const sn_manifest *manifest, const char *name, sn_err *err) SN_MUST_USE;

#endif
