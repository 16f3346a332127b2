/* The compiled kernels, embedded in the program. SN_XPU_SPIRV is the folder to which cmake/xpu.cmake compiles them. */
#include "device/xpu/xpu_private.h"

#define EMBED(name)                                                                                                    \
    __asm__(".section .rodata\n.balign 8\n"                                                                            \
            ".globl sn_xpu_spv_" #name ", sn_xpu_spv_" #name "_end\n"                                                  \
            "sn_xpu_spv_" #name ":\n.incbin \"" SN_XPU_SPIRV "/" #name ".spv\"\n"                                      \
            "sn_xpu_spv_" #name "_end:\n.byte 0\n.text\n");                                                            \
    extern const uint8_t sn_xpu_spv_##name[], sn_xpu_spv_##name##_end[];

EMBED(block)
EMBED(grad)
EMBED(kv_f32)
EMBED(kv_f16)
EMBED(kv_q8)
#define X(form, ...) EMBED(linear_##form)
SN_XPU_FORMS(X)
#undef X
#define X(form, ...) EMBED(linear_dot_##form) EMBED(linear_xmx8_##form) EMBED(linear_xmx16_##form)
SN_ALL_QUANT_TYPES(X)
#undef X

sn_xpu_spirv sn_xpu_spirv_block(void) {
    return (sn_xpu_spirv){sn_xpu_spv_block, (size_t)(sn_xpu_spv_block_end - sn_xpu_spv_block)};
}

sn_xpu_spirv sn_xpu_spirv_grad(void) {
    return (sn_xpu_spirv){sn_xpu_spv_grad, (size_t)(sn_xpu_spv_grad_end - sn_xpu_spv_grad)};
}

sn_xpu_spirv sn_xpu_spirv_kv(sn_kv_dtype dtype) {
    static const uint8_t *const ends[][2] = {[SN_KV_F32] = {sn_xpu_spv_kv_f32, sn_xpu_spv_kv_f32_end},
                                             [SN_KV_F16] = {sn_xpu_spv_kv_f16, sn_xpu_spv_kv_f16_end},
                                             [SN_KV_Q8] = {sn_xpu_spv_kv_q8, sn_xpu_spv_kv_q8_end}};
    return (sn_xpu_spirv){ends[dtype][0], (size_t)(ends[dtype][1] - ends[dtype][0])};
}

sn_xpu_spirv sn_xpu_spirv_linear(sn_xpu_form form) {
    static const uint8_t *const ends[][2] = {
#define X(name, ...) {sn_xpu_spv_linear_##name, sn_xpu_spv_linear_##name##_end},
        SN_XPU_FORMS(X)
#undef X
    };
    return (sn_xpu_spirv){ends[form][0], (size_t)(ends[form][1] - ends[form][0])};
}

sn_xpu_spirv sn_xpu_spirv_dot(sn_xpu_form form) {
    static const uint8_t *const ends[SN_XPU_FORM_COUNT][2] = {
#define X(name, ...) [SN_XPU_FORM_##name] = {sn_xpu_spv_linear_dot_##name, sn_xpu_spv_linear_dot_##name##_end},
        SN_ALL_QUANT_TYPES(X)
#undef X
    };
    return (sn_xpu_spirv){ends[form][0], (size_t)(ends[form][1] - ends[form][0])};
}

sn_xpu_spirv sn_xpu_spirv_xmx(sn_xpu_form form, int lanes) {
    static const uint8_t *const ends[SN_XPU_FORM_COUNT][2][2] = {
#define X(name, ...)                                                                                                   \
    [SN_XPU_FORM_##name] = {{sn_xpu_spv_linear_xmx8_##name, sn_xpu_spv_linear_xmx8_##name##_end},                      \
                            {sn_xpu_spv_linear_xmx16_##name, sn_xpu_spv_linear_xmx16_##name##_end}},
        SN_ALL_QUANT_TYPES(X)
#undef X
    };
    const uint8_t *const *own = ends[form][lanes == 16];
    return (sn_xpu_spirv){own[0], (size_t)(own[1] - own[0])};
}
