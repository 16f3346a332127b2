#include "model/hub/cached.h"

#include "model/hub/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A folder of folders, each of which is a model. kind: the beginning of its name. */
static sn_status list_folder(const char *folder, const char *kind,
                             sn_status (*each)(void *, const sn_cached_model *, sn_err *), void *ctx, sn_err *err) {
    DIR *listed = opendir(folder);
    sn_status status = SN_OK;
    for (const struct dirent *entry; listed && !status && (entry = readdir(listed));) {
        sn_cached_model model = {0};
        char file[SN_PATH_SIZE];
        struct stat st;
        if (*entry->d_name == '.' || sn_path_join(model.path, folder, entry->d_name, NULL) || stat(model.path, &st) ||
            !S_ISDIR(st.st_mode))
            continue;
        snprintf(model.name, sizeof model.name, "%s%s", kind, entry->d_name);
        DIR *files = opendir(model.path);
        for (const struct dirent *f; files && (f = readdir(files));) {
            if (*f->d_name == '.' || sn_path_join(file, model.path, f->d_name, NULL) || stat(file, &st)) continue;
            model.bytes += (uint64_t)st.st_blocks * 512;
            model.has_manifest |= !strcmp(f->d_name, SN_MANIFEST_NAME);
        }
        if (files) closedir(files);
        status = each(ctx, &model, err);
    }
    if (listed) closedir(listed);
    return status;
}

sn_status sn_cached_models(const char *cache, sn_status (*each)(void *, const sn_cached_model *, sn_err *), void *ctx,
                           sn_err *err) {
    char models[SN_PATH_SIZE], folder[SN_PATH_SIZE], kind[SN_HUB_REPO_SIZE + 2];
    sn_status status = sn_path_join(models, cache, "models", err);
    DIR *listed = status ? NULL : opendir(models);
    for (const struct dirent *entry; listed && !status && (entry = readdir(listed));) {
        const char *name = entry->d_name, *dashes = strstr(name, "--");
        if (*name == '.' || sn_path_join(folder, models, name, NULL)) continue;
        if (dashes)
            snprintf(kind, sizeof kind, "%.*s/%.*s@", (int)(dashes - name), name, SN_HUB_REPO_SIZE / 2, dashes + 2);
        else
            snprintf(kind, sizeof kind, "%.*s:", SN_HUB_REPO_SIZE / 2, name);
        status = list_folder(folder, kind, each, ctx, err);
    }
    if (listed) closedir(listed);
    return status;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

sn_status sn_cached_model_remove(const sn_cached_model *model, sn_err *err) {
    if (nftw(model->path, remove_entry, 16, FTW_DEPTH | FTW_PHYS))
        return sn_fail(err, SN_REFUSED, "%s cannot be removed: %s", model->path, strerror(errno));
    return SN_OK;
}
