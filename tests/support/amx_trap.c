#include "tests/support/amx_trap.h"

#ifdef SN_AMX
#include "device/cpu/tiles_c.h"

#include <cpuid.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <ucontext.h>

static atomic_size_t products;

/* An instruction with a three-byte VEX prefix, and the fields of its ModRM byte (Intel's Software Developer's
 * Manual, volume 2, sections 2.1 and 2.3). */
typedef struct instruction {
    uint8_t map, wide, vvvv, vector_256, prefix; /* prefix: 0, 0x66, 0xf3, 0xf2 as 0 to 3 */
    uint8_t opcode, mod, reg, rm;
    uint8_t *base; /* of the memory operand, without the index */
    size_t index;  /* scaled */
    size_t bytes;
} instruction;

static size_t reg(const ucontext_t *u, int number) {
    static const int at[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return (size_t)u->uc_mcontext.gregs[at[number]];
}

/* Decodes a memory operand: one with a SIB byte, or one with a base register alone. */
static bool decode_memory(const ucontext_t *u, const uint8_t *at, int x, int b, instruction *i) {
    size_t base;
    int32_t displacement = 0;
    int low = i->rm;
    if (i->rm == 4) {
        const int scale = *at >> 6, index = (*at >> 3 & 7) | x << 3;
        low = *at++ & 7;
        i->bytes++;
        if (index != 4) i->index = reg(u, index) << scale;
    }
    /* no base, or relative to the next instruction: the kernels use neither */
    if (low == 5 && i->mod == 0) return false;
    base = reg(u, low | b << 3);
    if (i->mod == 1) displacement = *at < 128 ? *at : *at - 256;
    if (i->mod == 2) memcpy(&displacement, at, sizeof displacement);
    i->bytes += i->mod == 1 ? 1 : i->mod == 2 ? 4 : 0;
    i->base = (uint8_t *)(base + (size_t)(ptrdiff_t)displacement);
    return true;
}

static bool decode(const ucontext_t *u, instruction *i) {
    const uint8_t *p = (const uint8_t *)u->uc_mcontext.gregs[REG_RIP];
    if (p[0] != 0xc4) return false;
    const int r = !(p[1] >> 7), x = !(p[1] >> 6 & 1), b = !(p[1] >> 5 & 1);
    *i = (instruction){.map = p[1] & 31,
                       .wide = p[2] >> 7,
                       .vvvv = ~(p[2] >> 3) & 15,
                       .vector_256 = p[2] >> 2 & 1,
                       .prefix = p[2] & 3,
                       .opcode = p[3],
                       .mod = p[4] >> 6,
                       .reg = p[4] >> 3 & 7,
                       .rm = p[4] & 7,
                       .bytes = 5};
    if (r || i->map != 2 || i->wide || i->vector_256) return false;
    return i->mod == 3 ? !b : decode_memory(u, p + 5, x, b, i);
}

/* Executes one AMX instruction in C. The encodings are those of the manual, volume 2: LDTILECFG and TILERELEASE
 * NP.49, TILEZERO F2.49, TILELOADD F2.4B, TILESTORED F3.4B, TDPBSSD F2.5E. In TDPBSSD, ModRM.reg is the sum,
 * ModRM.r/m the rows and VEX.vvvv the columns. */
static bool emulate(const instruction *i) {
    enum { NP = 0, F3 = 2, F2 = 3 };
    const bool memory = i->mod != 3, plain = !i->vvvv, sib = memory && i->rm == 4;
    tile_config config;
    if (i->opcode == 0x49 && i->prefix == NP && plain && memory && !i->reg && !i->index) {
        memcpy(&config, i->base, sizeof config);
        tile_configure(&config);
    } else if (i->opcode == 0x49 && i->prefix == NP && plain && !memory && !i->reg && !i->rm)
        tile_release();
    else if (i->opcode == 0x49 && i->prefix == F2 && plain && !memory && !i->rm)
        tile_zero(i->reg);
    else if (i->opcode == 0x4b && i->prefix == F2 && plain && sib)
        tile_load(i->reg, i->base, i->index);
    else if (i->opcode == 0x4b && i->prefix == F3 && plain && sib)
        tile_store(i->reg, i->base, i->index);
    else if (i->opcode == 0x5e && i->prefix == F2 && !memory && i->vvvv < TILES) {
        tile_dot(i->reg, i->rm, i->vvvv);
        products++;
    } else
        return false;
    return true;
}

static void on_illegal(int signal_number, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    instruction i;
    (void)info;
    if (decode(u, &i) && emulate(&i)) {
        u->uc_mcontext.gregs[REG_RIP] += (greg_t)i.bytes;
    } else {
        signal(signal_number, SIG_DFL); /* the instruction faults again, and the default action ends the process */
    }
}

void (*test_amx_trapped(void))(const sn_linear_job *job, size_t first_panel, size_t end_panel) {
    enum { TILE = 1 << 24 };
    unsigned a, b, c, d;
    const sn_cpu_kernels *needed;
    if (sn_cpu_kernels_find("avx512", &needed, NULL)) return NULL;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && d & TILE) return NULL;
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    return sigaction(SIGILL, &action, NULL) ? NULL : sn_cpu_linear_amx;
}
size_t test_amx_trapped_products(void) { return products; }
#else
void (*test_amx_trapped(void))(const sn_linear_job *job, size_t first_panel, size_t end_panel) { return NULL; }
size_t test_amx_trapped_products(void) { return 0; }
#endif
