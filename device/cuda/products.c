/* Which way products of many rows go on CUDA: through the kernel that reads the weights as they lie
 * (kernels_products.cu), or through cuBLAS, which reads bfloat16, to which other weights are converted first.
 *
 * The choice is a rule of arithmetic; nothing was measured on a GPU. Per weight, the way to bfloat16 and back moves
 * four bytes and the packed weight; the product takes two operations for each row. On Hopper, cuBLAS multiplies about
 * twice as fast as `mma` can (wgmma), which pays for the way from about 512 rows on; on other GPUs both use the same
 * instructions, and the way never pays. BF16 needs no way. The kernel waits for memory where there are less than about
 * two tiles for each multiprocessor, because it does not split the columns: cuBLAS does. The rule reads nothing that
 * changes from run to run, so results repeat, and the log tells each choice once.
 *
 * The environment variable SWARM_CUDA_PRODUCTS decides in place of the rule for all types that both can multiply:
 * `kernel-64` or `kernel-128` (the side of the tiles), `cublas`, or `cublaslt` (cublaslt.c). For tests, and for
 * measurements (`bench_cuda --products`) that may change the rule. */
#include "base/log.h"
#include "base/program_environment.h"
#include "device/cuda/cuda_private.h"

#include <string.h>

enum { SM_HOPPER = 90, SM_HOPPER_END = 100, HOPPER_ROWS = 512, SMALL = 64, LARGE = 128, BY_RULE = -1 };

sn_status sn_cuda_products_open(sn_cuda *cuda, sn_err *err) {
    static const struct {
        const char *name;
        int side;
    } ways[] = {{"", BY_RULE}, {"kernel-64", SMALL}, {"kernel-128", LARGE}, {"cublas", 0}, {"cublaslt", 0}};
    struct cudaDeviceProp prop;
    const char *named = sn_environment("SWARM_CUDA_PRODUCTS");
    cudaError_t error = cudaGetDeviceProperties(&prop, cuda->base.id.ordinal);
    if (error != cudaSuccess) return sn_cuda_check(cuda, error, "asking for a device's properties", err);
    cuda->sm = prop.major * 10 + prop.minor;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (!strcmp(named ? named : "", ways[i].name)) {
            cuda->products_side = ways[i].side;
            cuda->products_lt = named && !strcmp(named, "cublaslt");
            return SN_OK;
        }
    return sn_fail(err, SN_REFUSED,
                   "SWARM_CUDA_PRODUCTS is '%s': set it to kernel-64, kernel-128, cublas or cublaslt, or unset it",
                   named);
}

static size_t count_tiles(int side, int n, int n_linears, const sn_linear *linears) {
    size_t tiles = 0, wide = (size_t)side;
    for (int i = 0; i < n_linears; i++) tiles += (linears[i].weight->rows + wide - 1) / wide;
    return tiles * (((size_t)n + wide - 1) / wide);
}

static int choose_side(const sn_cuda *cuda, int n, int n_linears, const sn_linear *linears) {
    sn_cuda_layout layout = sn_cuda_matrix_of(linears->weight).layout;
    size_t processors = (size_t)cuda->n_multiprocessors;
    if (layout == SN_CUDA_F32) return 0;
    if (cuda->products_side != BY_RULE) return cuda->products_side;
    if (layout == SN_CUDA_BF16) return 0;
    if (cuda->sm >= SM_HOPPER && cuda->sm < SM_HOPPER_END && n > HOPPER_ROWS) return 0;
    if (count_tiles(SMALL, n, n_linears, linears) < 2 * processors) return 0;
    /* Large tiles read each factor half as often, if there are enough of them. */
    return n > SMALL && count_tiles(LARGE, n, n_linears, linears) >= 2 * processors ? LARGE : SMALL;
}

/* Tells the log about the first product of each type and class of rows: up to 64, 128, 256 and so on. */
static void log_choice(sn_cuda *cuda, int n, const sn_linear *linear, int side) {
    int class = 0;
    sn_dtype dtype = linear->weight->dtype;
    while (class < 15 && n > 64 << class) class ++;
    if (cuda->products_told[dtype] >> class & 1) return;
    cuda->products_told[dtype] |= (uint16_t)(1 << class);
    sn_log(SN_LOG_INFO, "matrix products", "device=cuda:%d type=%s rows_up_to=%d shape=%zux%zu by=%s tiles=%d",
           cuda->base.id.ordinal, sn_dtype_name(dtype), 64 << class, linear->weight->rows, linear->weight->cols,
           side                                  ? "kernel"
           : cuda->lt.library && dtype != SN_F32 ? "cublaslt"
                                                 : "cublas",
           side);
}

int sn_cuda_products_side(sn_cuda *cuda, int n, int n_linears, const sn_linear *linears) {
    int side = choose_side(cuda, n, n_linears, linears);
    log_choice(cuda, n, linears, side);
    return side;
}
