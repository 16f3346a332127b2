#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

sn_status sn_parse_size(const char *text, size_t *bytes, sn_err *err) {
    static const struct {
        const char *word;
        double factor;
    } units[] = {{"", 1},          {"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
                 {"KB", 1e3},      {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"K", 0x1p10},   {"M", 0x1p20},
                 {"G", 0x1p30}};
    char *unit;
    double number = strtod(text, &unit);
    if (unit != text && number >= 0)
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (!strcmp(unit, units[i].word) && number * units[i].factor < 0x1p62) {
                *bytes = (size_t)(number * units[i].factor);
                return SN_OK;
            }
    return sn_fail(err, SN_REFUSED, "'%s' is no size: write a number with B, KiB, MiB, GiB, KB, MB or GB behind it", text);
}

sn_status sn_parse_int(const char *text, int64_t low, int64_t high, int64_t *out, sn_err *err) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < low || value > high)
        return sn_fail(err, SN_REFUSED, "'%s' must be a whole number from %lld to %lld", text, (long long)low,
                       (long long)high);
    *out = value;
    return SN_OK;
}

sn_status sn_parse_float(const char *text, double low, double high, double *out, sn_err *err) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < low || value > high)
        return sn_fail(err, SN_REFUSED, "'%s' must be a number from %g to %g", text, low, high);
    *out = value;
    return SN_OK;
}

sn_status sn_parse_blocks(const char *text, int *first, int *end, sn_err *err) {
    char *at, *behind = NULL;
    long a = strtol(text, &at, 10), b = 0;
    if (at != text && *at == ':') b = strtol(at + 1, &behind, 10);
    if (!behind || behind == at + 1 || *behind || a < 0 || b <= a || b > INT_MAX)
        return sn_fail(err, SN_REFUSED, "'%s' is no range of blocks: write A:B, first and end, as in 10:20", text);
    *first = (int)a;
    *end = (int)b;
    return SN_OK;
}

char *sn_format_size(size_t bytes, char out[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double n = (double)bytes;
    int unit = 0;
    for (; n >= 1024 && unit < 4; unit++) n /= 1024;
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", n, units[unit]);
    return out;
}

static sn_status read_open_file(int fd, const char *path, size_t limit, sn_buf *out, sn_err *err) {
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) return sn_fail(err, SN_REFUSED, "%s is no regular file", path);
    if ((size_t)st.st_size > limit)
        return sn_fail(err, SN_REFUSED, "%s has %zu bytes; at most %zu are taken", path, (size_t)st.st_size, limit);
    sn_buf_init(out, limit + 1);
    char chunk[65536];
    ssize_t got;
    sn_status status = SN_OK;
    while (!status && (got = read(fd, chunk, sizeof chunk)) > 0) status = sn_buf_append(out, chunk, (size_t)got, err);
    if (!status && got < 0) status = sn_fail(err, SN_REFUSED, "%s cannot be read: %s", path, strerror(errno));
    if (!status) status = sn_buf_append(out, "", 1, err);
    if (status) sn_buf_fini(out);
    else out->len--;
    return status;
}

sn_status sn_read_file(const char *path, size_t limit, sn_buf *out, sn_err *err) {
    *out = (sn_buf){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return sn_fail(err, SN_REFUSED, "%s cannot be opened: %s", path, strerror(errno));
    sn_status status = read_open_file(fd, path, limit, out, err);
    close(fd);
    return status;
}
