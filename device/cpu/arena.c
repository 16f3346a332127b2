#include "base/mem.h"
#include "device/cpu/cpu.h"

#include <stdlib.h>

enum { PIECE = 32 << 20, LINE = 64 };

/* A piece is given back when the last of what lies in it is. What is larger than a piece gets one of its own. */
typedef struct piece {
    struct piece *next;
    uint8_t *memory;
    size_t bytes, used, users;
} piece;

struct sn_arena {
    piece *pieces; /* the newest first: only it is still filled */
};

sn_status sn_arena_new(sn_arena **out, sn_err *err) { return sn_calloc(out, 1, sizeof **out, err); }

static void piece_free(piece *p) {
    void *memory = p->memory;
    sn_pages_free(&memory, p->bytes);
    free(p);
}

void sn_arena_free(sn_arena **arena) {
    if (!*arena) return;
    for (piece *p = (*arena)->pieces, *next; p; p = next) {
        next = p->next;
        piece_free(p);
    }
    free(*arena);
    *arena = NULL;
}

static sn_status add_piece(sn_arena *arena, size_t bytes, sn_err *err) {
    piece *p = NULL;
    void *memory = NULL;
    sn_status status = sn_calloc(&p, 1, sizeof *p, err);
    if (!status) status = sn_pages_alloc(&memory, bytes, err);
    if (status) {
        free(p);
        return status;
    }
    *p = (piece){.next = arena->pieces, .memory = memory, .bytes = bytes};
    arena->pieces = p;
    return SN_OK;
}

sn_status sn_arena_take(sn_arena *arena, size_t bytes, void **out, sn_err *err) {
    *out = NULL;
    if (bytes > SIZE_MAX - LINE) return sn_fail(err, SN_STOP, "%zu bytes cannot be addressed", bytes);
    bytes = sn_round_up(bytes ? bytes : 1, LINE);
    piece *p = arena->pieces;
    if (!p || p->bytes - p->used < bytes) {
        sn_status status = add_piece(arena, bytes > PIECE ? bytes : PIECE, err);
        if (status) return status;
        p = arena->pieces;
    }
    *out = p->memory + p->used;
    p->used += bytes;
    p->users++;
    return SN_OK;
}

void sn_arena_give(sn_arena *arena, void *data) {
    for (piece **at = &arena->pieces; *at; at = &(*at)->next) {
        piece *p = *at;
        if ((uint8_t *)data < p->memory || (uint8_t *)data >= p->memory + p->bytes) continue;
        if (--p->users == 0) {
            *at = p->next;
            piece_free(p);
        }
        return;
    }
}
