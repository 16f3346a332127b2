/* The loading of cuBLAS when the first CUDA device is opened: the library is large, a machine without NVIDIA's software
 * does not have it, and the program must start there, too. The functions of this file satisfy the linker and forward
 * each call to the loaded library. */
#include "device/cuda/cuda_private.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

/* function, parameters as declared, arguments as forwarded */
#define FUNCTIONS(X)                                                                                                   \
    X(cublasCreate_v2, (cublasHandle_t * a), (a))                                                                      \
    X(cublasDestroy_v2, (cublasHandle_t a), (a))                                                                       \
    X(cublasSetStream_v2, (cublasHandle_t a, cudaStream_t b), (a, b))                                                  \
    X(cublasSetWorkspace_v2, (cublasHandle_t a, void *b, size_t c), (a, b, c))                                         \
    X(cublasGemmEx,                                                                                                    \
      (cublasHandle_t a, cublasOperation_t b, cublasOperation_t c, int d, int e, int f, const void *g, const void *h,  \
       cudaDataType i, int j, const void *k, cudaDataType l, int m, const void *n, void *o, cudaDataType p, int q,     \
       cublasComputeType_t r, cublasGemmAlgo_t s),                                                                     \
      (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s))

#define X(name, declared, passed) static cublasStatus_t(*real_##name) declared;
FUNCTIONS(X)
#undef X
static const char *(*real_string)(cublasStatus_t);

#define X(name, declared, passed)                                                                                      \
    cublasStatus_t name declared { return real_##name passed; }
FUNCTIONS(X)
#undef X
const char *cublasGetStatusString(cublasStatus_t status) { return real_string(status); }

static char reason[192]; /* the reason why cuBLAS cannot be used; "" when it can */

static bool find_symbol(void *library, const char *name, void *at) {
    *(void **)at = dlsym(library, name);
    return *(void **)at;
}

static void load_library(void) {
    static const char soname[] = "libcublas.so." TEXT(CUBLAS_VER_MAJOR);
    void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
#ifdef SN_CUDA_LIBRARIES /* its folder when this was built */
    if (!library) library = dlopen(SN_CUDA_LIBRARIES "/libcublas.so." TEXT(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
#endif
    bool complete = library && find_symbol(library, "cublasGetStatusString", &real_string);
#define X(name, declared, passed) complete = complete && find_symbol(library, #name, &real_##name);
    FUNCTIONS(X)
#undef X
    if (!complete) {
        const char *why = dlerror();
        sn_err text;
        (void)sn_fail(&text, SN_REFUSED, "%s", why ? why : soname);
        size_t n = 0;
        for (; text.text[n] && n + 1 < sizeof reason; n++) reason[n] = text.text[n];
        reason[n] = '\0';
    }
}

sn_status sn_cuda_cublas_load(sn_err *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_library);
    if (!reason[0]) return SN_OK;
    return sn_fail(err, SN_REFUSED, "cuBLAS %s cannot be used (%s): install the CUDA runtime libraries, or use cpu",
                   TEXT(CUBLAS_VER_MAJOR), reason);
}
