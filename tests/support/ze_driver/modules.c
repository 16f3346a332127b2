/* SPIR-V modules and kernels. PoCL 3.1 does not accept SPIR-V, but LLVM bitcode in OpenCL's form: llvm-spirv
 * translates SPIR-V to it. */
#include "tests/support/ze_driver/driver.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct _ze_module_build_log_handle_t {
    size_t bytes;
    char text[8192];
};

static bool write_all(int fd, const uint8_t *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);
        if (n <= 0) return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool translate_spirv(const char *from, const char *to) {
    char *arguments[] = {"llvm-spirv", "-r", "--spirv-target-env=CL1.2", (char *)from, "-o", (char *)to, NULL};
    pid_t child;
    int status;
    if (posix_spawn(&child, SN_LLVM_SPIRV, NULL, NULL, arguments, environ)) return false;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static uint8_t *read_all(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    struct stat about;
    uint8_t *data = NULL;
    if (!file) return NULL;
    if (!fstat(fileno(file), &about) && (data = malloc((size_t)about.st_size + 1))) {
        *bytes = fread(data, 1, (size_t)about.st_size, file);
    }
    fclose(file);
    return data;
}

/* Returns heap memory; NULL when anything fails. */
static uint8_t *to_bitcode(const uint8_t *spirv, size_t spirv_bytes, size_t *bytes) {
    char from[] = "/tmp/ze_test_XXXXXX", to[sizeof from + 3];
    int fd = mkstemp(from);
    if (fd < 0) return NULL;
    snprintf(to, sizeof to, "%s.bc", from);
    size_t n_words;
    uint32_t *words = spirv_without_dots(spirv, spirv_bytes / 4, &n_words);
    bool written = words && write_all(fd, (const uint8_t *)words, n_words * 4);
    free(words);
    close(fd);
    uint8_t *data = written && translate_spirv(from, to) ? read_all(to, bytes) : NULL;
    unlink(from);
    unlink(to);
    return data;
}

/* A module for matrix units is the same source with these in plain C: SPIR-V on heap memory. NULL: it is no such one,
 * or there is none. */
static uint8_t *without_matrix_units(const ze_module_desc_t *desc, size_t *bytes) {
    static const char function[] = "intel_sub_group_i8_i8_matrix_mad_k32";
    kernel_info kernels[KERNELS_MAX];
    char path[256];
    if (!memmem(desc->pInputModule, desc->inputSize, function, sizeof function - 1)) return NULL;
    if (spirv_kernels(desc->pInputModule, desc->inputSize / 4, kernels, KERNELS_MAX) != 1) return NULL;
    snprintf(path, sizeof path, "%s/%s.spv", SN_XPU_EMULATED, kernels->name);
    return read_all(path, bytes);
}

/* The result in the environment with which something is refused; 0: nothing is. */
static ze_result_t refusal(const char *variable) {
    const char *result = getenv(variable);
    return result ? (ze_result_t)strtoul(result, NULL, 0) : ZE_RESULT_SUCCESS;
}

ze_result_t module_create(ze_context_handle_t context, ze_device_handle_t device, const ze_module_desc_t *desc,
                          ze_module_handle_t *out, ze_module_build_log_handle_t *log) {
    (void)context, (void)device;
    size_t bytes;
    cl_int failed, loaded;
    if (desc->format != ZE_MODULE_FORMAT_IL_SPIRV) return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
    if (spirv_has_dots(desc->pInputModule, desc->inputSize / 4) && refusal("ZE_TEST_REFUSE_DOTS"))
        return refusal("ZE_TEST_REFUSE_DOTS");
    size_t emulated_bytes = 0;
    uint8_t *emulated = without_matrix_units(desc, &emulated_bytes);
    if (emulated && refusal("ZE_TEST_REFUSE_XMX")) {
        free(emulated);
        return refusal("ZE_TEST_REFUSE_XMX");
    }
    uint8_t *bitcode = emulated ? to_bitcode(emulated, emulated_bytes, &bytes)
                                : to_bitcode(desc->pInputModule, desc->inputSize, &bytes);
    free(emulated);
    if (!bitcode) return ZE_RESULT_ERROR_MODULE_BUILD_FAILURE;
    const unsigned char *binary = bitcode;
    cl_program program =
        clCreateProgramWithBinary(ze_test.context, 1, &ze_test.device, &bytes, &binary, &loaded, &failed);
    free(bitcode);
    if (failed) return ZE_RESULT_ERROR_INVALID_NATIVE_BINARY;
    failed = clBuildProgram(program, 1, &ze_test.device, "-x spir -spir-std=1.2", NULL, NULL);
    if (log && (*log = calloc(1, sizeof **log)))
        clGetProgramBuildInfo(program, ze_test.device, CL_PROGRAM_BUILD_LOG, sizeof(*log)->text - 1, (*log)->text,
                              NULL);
    *out = failed ? NULL : calloc(1, sizeof **out);
    if (!*out) {
        clReleaseProgram(program);
        return failed ? ZE_RESULT_ERROR_MODULE_BUILD_FAILURE : ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    }
    (*out)->program = program;
    (*out)->large = desc->pBuildFlags && strstr(desc->pBuildFlags, "-ze-opt-greater-than-4GB-buffer-required");
    (*out)->n_kernels = spirv_kernels(desc->pInputModule, desc->inputSize / 4, (*out)->kernels, KERNELS_MAX);
    return ZE_RESULT_SUCCESS;
}

ze_result_t module_destroy(ze_module_handle_t module) {
    clReleaseProgram(module->program);
    free(module);
    return ZE_RESULT_SUCCESS;
}

ze_result_t log_destroy(ze_module_build_log_handle_t log) {
    free(log);
    return ZE_RESULT_SUCCESS;
}

ze_result_t log_text(ze_module_build_log_handle_t log, size_t *bytes, char *text) {
    size_t all = strlen(log->text) + 1;
    if (text) memcpy(text, log->text, *bytes < all ? *bytes : all);
    *bytes = all;
    return ZE_RESULT_SUCCESS;
}

/* -- kernels */

ze_result_t kernel_create(ze_module_handle_t module, const ze_kernel_desc_t *desc, ze_kernel_handle_t *out) {
    if (!strncmp(desc->pKernelName, "linear_dot8", 11) && refusal("ZE_TEST_REFUSE_DOT_KERNELS"))
        return refusal("ZE_TEST_REFUSE_DOT_KERNELS");
    for (int i = 0; i < module->n_kernels; i++) {
        if (strcmp(module->kernels[i].name, desc->pKernelName)) continue;
        *out = calloc(1, sizeof **out);
        if (!*out) return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
        (*out)->module = module;
        (*out)->info = module->kernels[i];
        return ZE_RESULT_SUCCESS;
    }
    return ZE_RESULT_ERROR_INVALID_KERNEL_NAME;
}

ze_result_t kernel_destroy(ze_kernel_handle_t kernel) {
    free(kernel);
    return ZE_RESULT_SUCCESS;
}

ze_result_t kernel_group_size(ze_kernel_handle_t kernel, uint32_t x, uint32_t y, uint32_t z) {
    uint32_t group[] = {x, y, z};
    if (!x || !y || !z || (uint64_t)x * y * z > 1024) return ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION;
    memcpy(kernel->group, group, sizeof group);
    return ZE_RESULT_SUCCESS;
}

ze_result_t kernel_argument(ze_kernel_handle_t kernel, uint32_t index, size_t bytes, const void *data) {
    if (index >= kernel->info.n_parameters) return ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX;
    if (data && bytes > ARG_BYTES_MAX) return ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE;
    argument *a = &kernel->args[index];
    *a = (argument){.bytes = bytes, .set = true, .local = !data};
    if (data) memcpy(a->data, data, bytes);
    return ZE_RESULT_SUCCESS;
}

ze_result_t kernel_indirect(ze_kernel_handle_t kernel, ze_kernel_indirect_access_flags_t flags) {
    kernel->indirect = flags & ZE_KERNEL_INDIRECT_ACCESS_FLAG_DEVICE;
    return ZE_RESULT_SUCCESS;
}

/* A pointer must be NULL or point into an allocation of this driver: plain host memory is refused, because a GPU
 * would fault. */
static ze_result_t set_pointer(cl_kernel kernel, cl_uint index, const argument *a, bool large, command *out) {
    void *pointer;
    if (a->bytes != sizeof pointer) return ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE;
    memcpy(&pointer, a->data, sizeof pointer);
    allocation *used = pointer ? allocation_of(pointer, 0) : NULL;
    if (pointer && (!used || (used->bytes > ze_test.allocation_max && !large))) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    if (used) out->uses[out->n_uses++] = used;
    return clSetKernelArgSVMPointer(kernel, index, pointer) ? ZE_RESULT_ERROR_UNKNOWN : ZE_RESULT_SUCCESS;
}

static ze_result_t set_argument(cl_kernel kernel, cl_uint index, const parameter *p, const argument *a, bool large,
                                command *out) {
    if (!a->set || (p->kind == PARAMETER_LOCAL) != a->local) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    if (p->kind == PARAMETER_GLOBAL) return set_pointer(kernel, index, a, large, out);
    if (p->kind == PARAMETER_VALUE && p->bytes != a->bytes) return ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE;
    return clSetKernelArg(kernel, index, a->bytes, a->local ? NULL : a->data)
               ? ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE
               : ZE_RESULT_SUCCESS;
}

ze_result_t kernel_command(ze_kernel_handle_t kernel, const ze_group_count_t *groups, command *out) {
    cl_int failed;
    uint32_t counts[] = {groups->groupCountX, groups->groupCountY, groups->groupCountZ};
    *out = (command){.kind = COMMAND_LAUNCH, .indirect = kernel->indirect};
    for (int i = 0; i < 3; i++) {
        out->local[i] = kernel->group[i];
        out->global[i] = (size_t)kernel->group[i] * counts[i];
        if (!out->global[i]) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    out->kernel = clCreateKernel(kernel->module->program, kernel->info.name, &failed);
    ze_result_t result = failed ? ZE_RESULT_ERROR_UNKNOWN : ZE_RESULT_SUCCESS;
    for (cl_uint i = 0; i < kernel->info.n_parameters && !result; i++)
        result =
            set_argument(out->kernel, i, &kernel->info.parameters[i], &kernel->args[i], kernel->module->large, out);
    if (result && !failed) clReleaseKernel(out->kernel);
    return result;
}
