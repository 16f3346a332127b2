#include "cli/serve_identity.h"

#include "base/file.h"
#include "base/log.h"
#include "cli/options.h"
#include "net/identity.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

sn_status sn_serve_identity(sn_err *err) {
    static char path[SN_PATH_SIZE];
    sn_common_settings *o = &sn_program_settings.common;
    sn_identity identity;
    sn_err why;
    if (o->identity || !o->cache) return SN_OK;
    sn_status status = sn_path_join(path, o->cache, "server-identity", err);
    if (status) return status;
    if (mkdir(o->cache, 0700)) {} /* it is there already, or nothing can be kept there */
    if (access(path, F_OK)) {
        if ((status = sn_identity_new(&identity, err))) return status;
        if (sn_identity_save(&identity, path, &why)) sn_log(SN_LOG_INFO, "identity not kept", "text=%s", why.text);
        explicit_bzero(&identity, sizeof identity);
    }
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return SN_OK;
    if (!flock(fd, LOCK_EX | LOCK_NB))
        o->identity = path; /* fd stays open */
    else
        close(fd);
    return SN_OK;
}
