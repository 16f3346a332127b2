#include "base/terminal.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static const char instead[] = {'\xef', '\xbf', '\xbd'}; /* U+FFFD */

/* Bytes of the character that begins with this byte; 0: none does. */
static size_t character_bytes(uint8_t first) {
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first < 0xe0) return 2;
    if (first >= 0xe0 && first < 0xf0) return 3;
    return first >= 0xf0 && first < 0xf5 ? 4 : 0;
}

static uint32_t character_decode(const uint8_t *at, size_t n) {
    uint32_t c = n == 1 ? at[0] : at[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) c = c << 6 | (at[i] & 0x3f);
    return c;
}

static bool character_is_harmless(uint32_t c, size_t n) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* a longer form than necessary is none */
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return false;
    if (c < 0x20) return c == '\n' || c == '\t';
    if (c >= 0x7f && c < 0xa0) return false;
    return !(c >= 0x202a && c <= 0x202e) && !(c >= 0x2066 && c <= 0x2069) && c != 0x2028 && c != 0x2029;
}

size_t sn_terminal_clean(sn_terminal_text *state, const char *text, size_t n, char *out) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)text[i];
        bool continues = state->n_held && (byte & 0xc0) == 0x80;
        if (state->n_held && !continues) { /* the character before it is cut short */
            memcpy(out + used, instead, sizeof instead);
            used += sizeof instead;
            state->n_held = 0;
        }
        state->held[state->n_held++] = byte;
        size_t bytes = character_bytes(state->held[0]);
        if (state->n_held < bytes) continue;
        if (bytes && character_is_harmless(character_decode(state->held, bytes), bytes)) {
            memcpy(out + used, state->held, bytes);
            used += bytes;
        } else if (state->held[0] != '\r') {
            memcpy(out + used, instead, sizeof instead);
            used += sizeof instead;
        }
        state->n_held = 0;
    }
    return used;
}

/* -- stdout and stderr ------------------------------------------------------------------------------------------------
 */

typedef struct guarded {
    int fd;
    sn_terminal_text text;
} guarded;

static bool write_all(int fd, const char *data, size_t n) {
    while (n) {
        ssize_t sent = write(fd, data, n);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        data += sent;
        n -= (size_t)sent;
    }
    return true;
}

static ssize_t guarded_write(void *cookie, const char *data, size_t n) {
    enum { PART = 1024 };
    guarded *g = cookie;
    char clean[3 * (PART + 4)];
    for (size_t done = 0, part; done < n; done += part) {
        part = n - done < PART ? n - done : PART;
        if (!write_all(g->fd, clean, sn_terminal_clean(&g->text, data + done, part, clean))) return 0;
    }
    return (ssize_t)n;
}

static FILE *guard_stream(FILE *stream, guarded *g, int buffering) {
    if (!isatty(g->fd)) return stream;
    FILE *clean = fopencookie(g, "w", (cookie_io_functions_t){.write = guarded_write});
    if (!clean) return stream;
    fflush(stream);
    setvbuf(clean, NULL, buffering, BUFSIZ);
    return clean;
}

void sn_terminal_guard(void) {
    static guarded out = {.fd = STDOUT_FILENO}, err = {.fd = STDERR_FILENO};
    stdout = guard_stream(stdout, &out, _IOLBF);
    stderr = guard_stream(stderr, &err, _IONBF);
}

void sn_terminal_control(FILE *stream, const char *sequence) {
    fflush(stream);
    if (!write_all(stream == stderr ? STDERR_FILENO : STDOUT_FILENO, sequence, strlen(sequence))) return;
}
