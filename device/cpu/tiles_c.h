/* The tiles of linear_tiles.inc.c in plain C: a model of AMX's instructions for tests on machines without AMX.
 * tiles_amx.h defines the same names with the same results.
 *
 * A thread has eight tiles of at most 16 rows of 64 bytes. Tile numbers are constants in the code, because the
 * instructions encode them. Aborts where the processor would fault. Source: Intel 64 and IA-32 Architectures Software
 * Developer's Manual, volume 1, chapter 18 and volume 2, LDTILECFG, TDPBSSD, TILELOADD, TILESTORED, TILEZERO. */
#ifndef SN_DEVICE_CPU_TILES_C_H
#define SN_DEVICE_CPU_TILES_C_H

#include "device/cpu/tile_config.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 8, TILE_ROWS = 16, TILE_BYTES = 64 };

static _Thread_local struct {
    tile_config config;
    uint8_t tile[TILES][TILE_ROWS][TILE_BYTES];
} tiles;

static _Thread_local size_t tile_dots; /* products that this thread has computed */

static inline void tile_need(bool right) {
    if (!right) abort();
}

/* Sets the shapes of the tiles and zeroes them. */
static inline void tile_configure(const tile_config *config) {
    static const uint8_t none[16];
    tile_need(config->palette == 1 && config->start_row == 0 &&
              !memcmp(config->reserved, none, sizeof config->reserved));
    for (int t = 0; t < 16; t++) {
        tile_need(t < TILES ? config->rows[t] <= TILE_ROWS && config->row_bytes[t] <= TILE_BYTES
                            : !config->rows[t] && !config->row_bytes[t]);
        tile_need(!config->rows[t] == !config->row_bytes[t]);
    }
    memset(&tiles, 0, sizeof tiles);
    tiles.config = *config;
}
static inline void tile_release(void) { memset(&tiles, 0, sizeof tiles); }

static inline void tile_zero(int t) {
    tile_need(tiles.config.rows[t]);
    memset(tiles.tile[t], 0, sizeof tiles.tile[t]);
}
/* Both: the rows lie `stride` bytes apart in memory. */
static inline void tile_load(int t, const void *base, size_t stride) {
    tile_zero(t);
    for (size_t r = 0; r < tiles.config.rows[t]; r++)
        memcpy(tiles.tile[t][r], (const uint8_t *)base + r * stride, tiles.config.row_bytes[t]);
}
static inline void tile_store(int t, void *base, size_t stride) {
    tile_need(tiles.config.rows[t]);
    for (size_t r = 0; r < tiles.config.rows[t]; r++)
        memcpy((uint8_t *)base + r * stride, tiles.tile[t][r], tiles.config.row_bytes[t]);
}

/* c[m][n] += sum over k of a[m][k] * b[k / 4][4 * n + k % 4]: signed bytes, 32-bit sums that wrap around. */
static inline void tile_dot(int c, int a, int b) {
    const tile_config *config = &tiles.config;
    tile_dots++;
    tile_need(c != a && c != b && a != b && config->rows[c] && config->rows[c] == config->rows[a] &&
              config->row_bytes[c] == config->row_bytes[b] && config->row_bytes[a] == 4 * config->rows[b]);
    for (int m = 0; m < config->rows[c]; m++) {
        uint32_t sums[TILE_BYTES / 4];
        memcpy(sums, tiles.tile[c][m], sizeof sums);
        for (int k = 0; k < config->row_bytes[a]; k++) {
            const int8_t x = (int8_t)tiles.tile[a][m][k];
            const uint8_t *w = tiles.tile[b][k / 4] + k % 4;
            for (int n = 0; n < TILE_BYTES / 4; n++) sums[n] += (uint32_t)(x * (int8_t)w[4 * n]);
        }
        memcpy(tiles.tile[c][m], sums, config->row_bytes[c]);
    }
}

#endif
