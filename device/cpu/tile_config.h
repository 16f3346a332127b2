/* The shapes of a thread's tiles, in the format of LDTILECFG (tiles_c.h names the manual). Shared by tiles_c.h and
 * tiles_amx.h. */
#ifndef SN_DEVICE_CPU_TILE_CONFIG_H
#define SN_DEVICE_CPU_TILE_CONFIG_H

#include <stdint.h>

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "as LDTILECFG reads it");

#endif
