#include "base/log.h"

#include "base/terminal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const sn_word sn_log_level_words[] = {{"debug", SN_LOG_DEBUG}, {"info", SN_LOG_INFO}, {"warn", SN_LOG_WARN},
                                      {"error", SN_LOG_ERROR}, {"off", SN_LOG_OFF},   {NULL, 0}};
static atomic_int threshold = SN_LOG_OFF;
static atomic_bool as_json;

static struct {
    pthread_mutex_t lock;
    bool on;
    sn_buf lines;
    unsigned lost;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER, .lines = {.limit = SN_LOG_KEPT_BYTES}};

void sn_log_setup(sn_log_level level, bool json) {
    atomic_store(&threshold, (int)level);
    atomic_store(&as_json, json);
}

static size_t put_json_string(char *out, size_t capacity, const char *text, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len && n + 8 < capacity; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            out[n++] = '\\', out[n++] = (char)c;
        else if (c < 0x20)
            n += (size_t)snprintf(out + n, capacity - n, "\\u%04x", c);
        else
            out[n++] = (char)c;
    }
    return n;
}

/* Converts key=value key=value text=the rest to ,"key":"value",... */
static size_t put_json_pairs(char *out, size_t capacity, const char *pairs) {
    size_t n = 0;
    while (*pairs) {
        size_t key = strcspn(pairs, "= ");
        if (pairs[key] != '=') break;
        const char *value = pairs + key + 1;
        bool last = key == 4 && !strncmp(pairs, "text", 4);
        size_t len = last ? strlen(value) : strcspn(value, " ");
        if (n + key + 16 >= capacity) break;
        n += (size_t)snprintf(out + n, capacity - n, ",\"%.*s\":\"", (int)key, pairs);
        n += put_json_string(out + n, capacity - n - 2, value, len);
        out[n++] = '"';
        pairs = value + len;
        pairs += strspn(pairs, " ");
    }
    return n;
}

char *sn_log_sanitize(const char *text, char *out, size_t capacity) {
    size_t n = 0;
    for (; text[n] && n + 1 < capacity; n++) {
        bool plain = (text[n] >= '0' && text[n] <= '9') || (text[n] >= 'A' && text[n] <= 'Z') ||
                     (text[n] >= 'a' && text[n] <= 'z') || strchr(".:-_+", text[n]);
        out[n] = plain ? text[n] : '?';
    }
    if (!n && capacity > 1) out[n++] = '-';
    out[n] = 0;
    return out;
}

bool sn_log_rate_allows(sn_log_rate *rate, unsigned lines_max, int64_t now_us, const char *event) {
    int64_t until = atomic_load(&rate->until_us);
    if (now_us >= until &&
        atomic_compare_exchange_strong(&rate->until_us, &until, now_us + (int64_t)SN_LOG_RATE_S * 1000000)) {
        unsigned lines = atomic_exchange(&rate->lines, 0);
        if (lines > lines_max) sn_log(SN_LOG_WARN, event, "text=%u more like this were not logged", lines - lines_max);
    }
    return atomic_fetch_add(&rate->lines, 1) < lines_max;
}

static void write_lines(const char *lines, size_t n) {
    if (!isatty(STDERR_FILENO)) {
        if (write(STDERR_FILENO, lines, n) < 0) return; /* a log that cannot be written must not stop the node */
        return;
    }
    sn_terminal_text state = {0};
    for (size_t at = 0, part; at < n; at += part) {
        char clean[3 * (2048 + 4)];
        part = sn_min_size(n - at, 2048);
        size_t bytes = sn_terminal_clean(&state, lines + at, part, clean);
        if (write(STDERR_FILENO, clean, bytes) < 0) return;
    }
}

/* -- lines that are kept -- */

static bool keep_line(const char *line, size_t n) {
    pthread_mutex_lock(&kept.lock);
    bool on = kept.on;
    if (on && sn_buf_append(&kept.lines, line, n, NULL)) kept.lost++;
    pthread_mutex_unlock(&kept.lock);
    return on;
}

void sn_log_take(sn_buf *out) {
    pthread_mutex_lock(&kept.lock);
    sn_status status = kept.lines.len ? sn_buf_append(out, kept.lines.data, kept.lines.len, NULL) : SN_OK;
    if (!status && kept.lost) status = sn_buf_printf(out, NULL, "%u more log lines were not kept\n", kept.lost);
    if (!status) kept.lost = 0;
    kept.lines.len = 0;
    pthread_mutex_unlock(&kept.lock);
}

void sn_log_keep(bool on) {
    sn_buf lines;
    sn_buf_init(&lines, (size_t)2 * SN_LOG_KEPT_BYTES);
    pthread_mutex_lock(&kept.lock);
    kept.on = on;
    pthread_mutex_unlock(&kept.lock);
    if (!on) {
        sn_log_take(&lines);
        if (lines.len) write_lines((char *)lines.data, lines.len);
        sn_buf_fini(&kept.lines);
        sn_buf_init(&kept.lines, SN_LOG_KEPT_BYTES);
    }
    sn_buf_fini(&lines);
}

void sn_log(sn_log_level level, const char *event, const char *pairs_format, ...) {
    if ((int)level < atomic_load_explicit(&threshold, memory_order_relaxed) || level >= SN_LOG_OFF) return;
    char pairs[1024], line[2048], stamp[32];
    va_list args;
    va_start(args, pairs_format);
    vsnprintf(pairs, sizeof pairs, pairs_format, args);
    va_end(args);
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now); /* microseconds, because the logs of several nodes are read together */
    gmtime_r(&now.tv_sec, &tm);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    size_t n;
    if (atomic_load_explicit(&as_json, memory_order_relaxed)) {
        n = (size_t)snprintf(line, sizeof line, "{\"time\":\"%s.%06dZ\",\"level\":\"%s\",\"event\":\"%s\"", stamp,
                             (int)(now.tv_nsec / 1000), sn_log_level_words[level].name, event);
        n += put_json_pairs(line + n, sizeof line - n - 3, pairs);
        line[n++] = '}';
        line[n++] = '\n';
    } else {
        for (char *at = pairs; *at; at++) /* one line for each event, whatever a peer has written */
            if (*at == '\n') *at = ' ';
        n = (size_t)snprintf(line, sizeof line, "%s.%06dZ %-5s %s %s\n", stamp, (int)(now.tv_nsec / 1000),
                             sn_log_level_words[level].name, event, pairs);
        n = n < sizeof line ? n : sizeof line - 1;
    }
    if (!keep_line(line, n)) write_lines(line, n);
}
