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
#define X(form, ...) EMBED(linear_##form)
SN_XPU_FORMS(X)
#undef X

sn_xpu_spirv sn_xpu_spirv_block(void) {
    return (sn_xpu_spirv){sn_xpu_spv_block, (size_t)(sn_xpu_spv_block_end - sn_xpu_spv_block)};
}

sn_xpu_spirv sn_xpu_spirv_grad(void) {
    return (sn_xpu_spirv){sn_xpu_spv_grad, (size_t)(sn_xpu_spv_grad_end - sn_xpu_spv_grad)};
}

sn_xpu_spirv sn_xpu_spirv_linear(sn_xpu_form form) {
    static const uint8_t *const ends[][2] = {
#define X(name, ...) {sn_xpu_spv_linear_##name, sn_xpu_spv_linear_##name##_end},
        SN_XPU_FORMS(X)
#undef X
    };
    return (sn_xpu_spirv){ends[form][0], (size_t)(ends[form][1] - ends[form][0])};
}
