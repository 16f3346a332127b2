/* Loading of SPIR-V modules, and of the kernels in them. */
#include "device/xpu/xpu_private.h"

#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

static void log_build(sn_log_level level, ze_module_build_log_handle_t log) {
    size_t bytes = 0;
    char *text = NULL;
    if (!zeModuleBuildLogGetString(log, &bytes, NULL) && bytes > 1 && !sn_calloc(&text, 1, bytes + 1, NULL) &&
        !zeModuleBuildLogGetString(log, &bytes, text))
        sn_log(level, "kernel compilation failed", "text=%s", text);
    free(text);
}

/* What the compiler says about a failure is logged with this level. */
static ze_result_t build_module(sn_xpu *x, sn_xpu_spirv spirv, sn_log_level level, ze_module_handle_t *out) {
    ze_module_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_MODULE_DESC,
                             .format = ZE_MODULE_FORMAT_IL_SPIRV,
                             .inputSize = spirv.bytes,
                             .pInputModule = spirv.data,
                             .pBuildFlags = x->relaxed ? "-ze-opt-greater-than-4GB-buffer-required" : NULL};
    ze_module_build_log_handle_t log = NULL;
    ze_result_t result = zeModuleCreate(x->context, x->device, &desc, out, &log);
    if (result) *out = NULL;
    if (log) {
        if (result) log_build(level, log);
        zeModuleBuildLogDestroy(log);
    }
    return result;
}

static sn_status load_module(sn_xpu *x, sn_xpu_spirv spirv, ze_module_handle_t *out, sn_err *err) {
    return sn_xpu_check(x, build_module(x, spirv, SN_LOG_ERROR, out), "compiling kernels", err);
}

static ze_result_t create_kernel(ze_module_handle_t module, const char *name, uint32_t group_x, uint32_t group_y,
                                 ze_kernel_handle_t *out) {
    ze_kernel_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_KERNEL_DESC, .pKernelName = name};
    const ze_result_t result = zeKernelCreate(module, &desc, out);
    if (result) *out = NULL;
    return result ? result : zeKernelSetGroupSize(*out, group_x, group_y, 1);
}

static sn_status load_kernel(sn_xpu *x, ze_module_handle_t module, const char *name, uint32_t group_x, uint32_t group_y,
                             ze_kernel_handle_t *out, sn_err *err) {
    return sn_xpu_check(x, create_kernel(module, name, group_x, group_y, out), "loading a kernel", err);
}

/* For kernels that follow addresses that they find in the batch table. */
static sn_status allow_indirect(sn_xpu *x, ze_kernel_handle_t kernel, sn_err *err) {
    return sn_xpu_check(x, zeKernelSetIndirectAccess(kernel, ZE_KERNEL_INDIRECT_ACCESS_FLAG_DEVICE), "loading a kernel",
                        err);
}

sn_status sn_xpu_load_block(sn_xpu *x, sn_err *err) {
    static const struct {
        const char *name;
        uint32_t x, y;
    } kernels[] = {
#define X(name, x, y) {#name, x, y},
        SN_XPU_KERNELS(X)
#undef X
    };
    sn_status status = load_module(x, sn_xpu_spirv_block(), &x->module, err);
    for (int i = 0; i < SN_XPU_KERNEL_COUNT && !status; i++)
        status = load_kernel(x, x->module, kernels[i].name, kernels[i].x, kernels[i].y, &x->kernels[i], err);
    static const sn_xpu_kernel indirect[] = {
        SN_XPU_short_conv,   SN_XPU_delta_rule4,   SN_XPU_delta_rule16, SN_XPU_keyed_delta4, SN_XPU_keyed_delta16,
        SN_XPU_state_space4, SN_XPU_state_space16, SN_XPU_index_store,  SN_XPU_index_copy,   SN_XPU_index_scores};
    for (size_t i = 0; i < sizeof indirect / sizeof *indirect && !status; i++)
        status = allow_indirect(x, x->kernels[indirect[i]], err);
    return status;
}

sn_status sn_xpu_load_kv(sn_xpu *x, sn_kv_dtype dtype, sn_err *err) {
    sn_xpu_kv_kernels *k = &x->kv[dtype];
    const struct {
        const char *name;
        uint32_t x, y;
        ze_kernel_handle_t *kernel;
    } all[] = {{"kv_store", 64, 1, &k->store},
               {"rope_store", 64, 1, &k->rope_store},
               {"kv_copy", 64, 1, &k->copy},
               {"attention_row", 64, 1, &k->attention_row},
               {"attention_join", 64, 1, &k->attention_join},
               {"attention_tile", 8, 16, &k->attention_tile},
               {"latent_store", 64, 1, &k->latent_store},
               {"latent_copy", 64, 1, &k->latent_copy},
               {"latent_attention", 128, 1, &k->latent_attention}};
    sn_status status = sn_xpu_check_alive(x, err);
    if (status || k->module) return status;
    status = load_module(x, sn_xpu_spirv_kv(dtype), &k->module, err);
    for (size_t i = 0; i < sizeof all / sizeof *all && !status; i++) {
        status = load_kernel(x, k->module, all[i].name, all[i].x, all[i].y, all[i].kernel, err);
        if (!status) status = allow_indirect(x, *all[i].kernel, err);
    }
    return status;
}

sn_status sn_xpu_load_grad(sn_xpu *x, sn_err *err) {
    static const char *const names[] = {
#define X(name) #name,
        SN_XPU_GRADS(X)
#undef X
    };
    sn_status status = sn_xpu_check_alive(x, err);
    if (status || x->grad_module) return status;
    status = load_module(x, sn_xpu_spirv_grad(), &x->grad_module, err);
    for (int i = 0; i < SN_XPU_GRAD_COUNT && !status; i++)
        status = load_kernel(x, x->grad_module, names[i], 64, 1, &x->grads[i], err);
    return status;
}

/* A kernel of a module that is compiled once per form of weight: its name before that of the form, and its group. */
typedef struct form_kernel {
    const char *base;
    uint32_t group_x, group_y;
    ze_kernel_handle_t *kernel;
} form_kernel;

static ze_result_t create_form_kernels(sn_xpu_form form, ze_module_handle_t module, size_t n,
                                       const form_kernel *kernels) {
    static const char *const forms[] = {
#define X(name, ...) #name,
        SN_XPU_FORMS(X)
#undef X
    };
    ze_result_t result = ZE_RESULT_SUCCESS;
    for (size_t i = 0; i < n && !result; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s_%s", kernels[i].base, forms[form]);
        result = create_kernel(module, name, kernels[i].group_x, kernels[i].group_y, kernels[i].kernel);
    }
    return result;
}

sn_status sn_xpu_load_linear(sn_xpu *x, sn_xpu_form form, sn_err *err) {
    sn_xpu_linear_kernels *k = &x->linear[form];
    const form_kernel all[] = {{"linear1", 16, 4, &k->matvec1},
                               {"linear4", 16, 4, &k->matvec4},
                               {"linear8", 16, 4, &k->matvec8},
                               {"linear_tile32", 8, 8, &k->matmul_tile32},
                               {"linear_tile64", 8, 16, &k->matmul_tile64},
                               {"get_rows", 64, 1, &k->get_rows},
                               {"linear_input_grad", 64, 1, &k->input_grad},
                               {"moe_linear1", 16, 4, &k->moe_linear1},
                               {"moe_linear8", 16, 4, &k->moe_linear8},
                               {"moe_linear_grad", 64, 1, &k->moe_linear_grad},
                               {"head_linear", 16, 4, &k->head_linear}};
    sn_status status = sn_xpu_check_alive(x, err);
    if (status || k->module) return status;
    status = load_module(x, sn_xpu_spirv_linear(form), &k->module, err);
    if (status) return status;
    return sn_xpu_check(x, create_form_kernels(form, k->module, sizeof all / sizeof *all, all), "loading a kernel",
                        err);
}

static void drop_kernel(ze_kernel_handle_t kernel) {
    if (kernel) zeKernelDestroy(kernel);
}

static void drop_dot(sn_xpu_dot_kernels *k) {
    drop_kernel(k->matvec1);
    drop_kernel(k->matvec4);
    drop_kernel(k->matvec8);
    drop_kernel(k->moe1);
    drop_kernel(k->moe8);
    if (k->module) zeModuleDestroy(k->module);
    *k = (sn_xpu_dot_kernels){0};
}

static bool lacks_memory(ze_result_t result) {
    return result == ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY || result == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
}

/* Of a module that the device can do without: a driver that is older than an instruction in SPIR-V, or cannot compile
 * it for another reason that stays. */
static bool is_refusal(ze_result_t result) {
    return result && result != ZE_RESULT_ERROR_DEVICE_LOST && !lacks_memory(result);
}

/* Of one that is no refusal. Memory that lacks does not stop the device: the next call compiles anew. */
static sn_status check_optional(sn_xpu *x, ze_result_t result, sn_err *err) {
    if (!lacks_memory(result)) return sn_xpu_check(x, result, "compiling kernels", err);
    return sn_fail(err, SN_STOP, "%s cannot compile kernels now: %s; give it fewer blocks or less memory for KV caches",
                   x->name, sn_xpu_result_text(result));
}

sn_status sn_xpu_load_dot(sn_xpu *x, sn_xpu_form form, sn_err *err) {
    sn_xpu_dot_kernels *k = &x->dots[form];
    const form_kernel all[] = {{"linear_dot1", 16, 4, &k->matvec1},
                               {"linear_dot4", 16, 4, &k->matvec4},
                               {"linear_dot8", 16, 4, &k->matvec8},
                               {"moe_dot1", 16, 4, &k->moe1},
                               {"moe_dot8", 16, 4, &k->moe8}};
    const sn_xpu_spirv spirv = sn_xpu_spirv_dot(form);
    sn_status status = sn_xpu_check_alive(x, err);
    if (status || !x->dp4a || !spirv.data || k->module) return status;
    ze_result_t result = build_module(x, spirv, SN_LOG_WARN, &k->module);
    if (!result) result = create_form_kernels(form, k->module, sizeof all / sizeof *all, all);
    if (result) drop_dot(k);
    if (!is_refusal(result)) return check_optional(x, result, err);
    sn_log(SN_LOG_WARN, "driver compiles no products of bytes, all products are float32",
           "device=%s reason=%s result=0x%x", x->name, sn_xpu_result_text(result), (unsigned)result);
    x->dp4a = false;
    x->xmx_lanes = 0; /* few rows are in 8 bits where many are */
    return SN_OK;
}

static void drop_xmx(sn_xpu_xmx_kernels *k) {
    drop_kernel(k->matmul);
    if (k->module) zeModuleDestroy(k->module);
    *k = (sn_xpu_xmx_kernels){0};
}

sn_status sn_xpu_load_xmx(sn_xpu *x, sn_xpu_form form, sn_err *err) {
    sn_xpu_xmx_kernels *k = &x->xmx[form];
    const uint32_t lanes = (uint32_t)x->xmx_lanes;
    const form_kernel kernel = {lanes == 16 ? "linear_xmx16" : "linear_xmx8", lanes, 4, &k->matmul};
    const sn_xpu_spirv spirv = sn_xpu_spirv_xmx(form, x->xmx_lanes);
    sn_status status = sn_xpu_check_alive(x, err);
    if (status || !x->xmx_lanes || !spirv.data || k->module) return status;
    ze_result_t result = build_module(x, spirv, SN_LOG_WARN, &k->module);
    if (!result) result = create_form_kernels(form, k->module, 1, &kernel);
    if (result) drop_xmx(k);
    if (!is_refusal(result)) return check_optional(x, result, err);
    sn_log(SN_LOG_WARN, "driver compiles nothing for matrix units, products of many rows are float32",
           "device=%s reason=%s result=0x%x", x->name, sn_xpu_result_text(result), (unsigned)result);
    x->xmx_lanes = 0;
    return SN_OK;
}

void sn_xpu_unload(sn_xpu *x) {
    for (int i = 0; i < SN_XPU_FORM_COUNT; i++) {
        sn_xpu_linear_kernels *k = &x->linear[i];
        drop_kernel(k->matvec1);
        drop_kernel(k->matvec4);
        drop_kernel(k->matvec8);
        drop_kernel(k->matmul_tile32);
        drop_kernel(k->matmul_tile64);
        drop_kernel(k->get_rows);
        drop_kernel(k->input_grad);
        drop_kernel(k->moe_linear1);
        drop_kernel(k->moe_linear8);
        drop_kernel(k->moe_linear_grad);
        drop_kernel(k->head_linear);
        if (k->module) zeModuleDestroy(k->module);
        drop_dot(&x->dots[i]);
        drop_xmx(&x->xmx[i]);
    }
    for (int i = 0; i < SN_KV_DTYPE_COUNT; i++) {
        sn_xpu_kv_kernels *k = &x->kv[i];
        drop_kernel(k->store);
        drop_kernel(k->rope_store);
        drop_kernel(k->copy);
        drop_kernel(k->attention_row);
        drop_kernel(k->attention_join);
        drop_kernel(k->attention_tile);
        drop_kernel(k->latent_store);
        drop_kernel(k->latent_copy);
        drop_kernel(k->latent_attention);
        if (k->module) zeModuleDestroy(k->module);
    }
    for (int i = 0; i < SN_XPU_KERNEL_COUNT; i++) drop_kernel(x->kernels[i]);
    for (int i = 0; i < SN_XPU_GRAD_COUNT; i++) drop_kernel(x->grads[i]);
    if (x->grad_module) zeModuleDestroy(x->grad_module);
    if (x->module) zeModuleDestroy(x->module);
}
