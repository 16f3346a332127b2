/* The loading of cuBLAS when the first CUDA device is opened: the library is large, a machine without NVIDIA's software
 * does not have it, and the program must start there, too. The functions of this file satisfy the linker and forward
 * each call to the loaded library.
 *
 * Where it is looked for: the file or folder that the environment variable SWARM_CUBLAS names, and if it is set nowhere
 * else; then where the loader looks; then the folders of `places`. cuBLAS needs cuBLASLt, which it finds beside itself:
 * that one is used, as it was loaded. */
#include "base/program_environment.h"
#include "device/cuda/cuda_private.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

/* `declared` has its own parentheses. */
#define X(name, declared, passed) static cublasStatus_t(*real_##name) declared; // NOLINT(bugprone-macro-parentheses)
FUNCTIONS(X)
#undef X
static const char *(*real_string)(cublasStatus_t);

#define X(name, declared, passed)                                                                                      \
    cublasStatus_t name declared { return real_##name passed; }
FUNCTIONS(X)
#undef X
const char *cublasGetStatusString(cublasStatus_t status) { return real_string(status); }

static char reason[256]; /* the reason why cuBLAS cannot be used; "" when it can */

static bool find_symbol(void *library, const char *name, void *at) {
    *(void **)at = dlsym(library, name);
    return *(void **)at;
}

#define SONAME "libcublas.so." TEXT(CUBLAS_VER_MAJOR)

static void *open_library(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

/* The library in the folder of this pattern (glob) below the folder `base`. */
static void *open_below(const char *base, const char *pattern) {
    char all[512];
    glob_t found = {0};
    void *library = NULL;
    if (!base || snprintf(all, sizeof all, "%s%s/" SONAME, base, pattern) >= (int)sizeof all) return NULL;
    if (!glob(all, 0, NULL, &found))
        for (size_t i = 0; i < found.gl_pathc && !library; i++) library = open_library(found.gl_pathv[i]);
    globfree(&found);
    return library;
}

/* NVIDIA's toolkit in the usual places, and NVIDIA's packages for Python in those of Python. */
static void *open_usual(void) {
    static const struct {
        const char *variable, *pattern; /* the variable names the folder before the pattern; NULL: there is none */
    } places[] = {
        {"CUDA_HOME", "/lib64"},
        {"CUDA_PATH", "/lib64"},
        {NULL, "/usr/local/cuda/lib64"},
        {NULL, "/usr/local/cuda-" TEXT(CUBLAS_VER_MAJOR) "*/lib64"},
        {NULL, "/opt/cuda/lib64"},
        {"VIRTUAL_ENV", "/lib/python3*/site-packages/nvidia/*/lib"},
        {NULL, "/usr/lib/python3*/*-packages/nvidia/*/lib"},
        {NULL, "/usr/lib/python3/*-packages/nvidia/*/lib"},
        {NULL, "/usr/local/lib/python3*/*-packages/nvidia/*/lib"},
        {NULL, "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib"},
        {"HOME", "/.local/lib/python3*/site-packages/nvidia/*/lib"},
    };
    void *library = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places && !library; i++)
        library = open_below(places[i].variable ? sn_environment(places[i].variable) : "", places[i].pattern);
    return library;
}

static void *find_library(void) {
    const char *named = sn_environment("SWARM_CUBLAS");
    if (named && *named) {
        char path[512];
        struct stat st;
        bool is_file = !stat(named, &st) && S_ISREG(st.st_mode);
        snprintf(path, sizeof path, "%s%s", named, is_file ? "" : "/" SONAME);
        return open_library(path);
    }
    void *library = open_library(SONAME);
#ifdef SN_CUDA_LIBRARIES /* its folder when this was built */
    if (!library) library = open_library(SN_CUDA_LIBRARIES "/" SONAME);
#endif
    return library ? library : open_usual();
}

static void load_library(void) {
    void *library = find_library();
    bool complete = library && find_symbol(library, "cublasGetStatusString", &real_string);
#define X(name, declared, passed) complete = complete && find_symbol(library, #name, &real_##name);
    FUNCTIONS(X)
#undef X
    if (complete) return;
    const char *why = dlerror();
    snprintf(reason, sizeof reason, "%s", why ? why : "no " SONAME " was found");
}

static sn_cuda_lt_library lt;
static bool lt_complete;

static void load_lt(void) {
    void *library = open_library("libcublasLt.so." TEXT(CUBLAS_VER_MAJOR));
    lt_complete = library;
#define X(member, function) lt_complete = lt_complete && find_symbol(library, #function, &lt.member);
    SN_CUDA_LT_FUNCTIONS(X)
#undef X
}

const sn_cuda_lt_library *sn_cuda_lt_load(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_lt);
    return lt_complete ? &lt : NULL;
}

sn_status sn_cuda_cublas_load(sn_err *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_library);
    if (!reason[0]) return SN_OK;
    return sn_fail(err, SN_REFUSED,
                   "cuBLAS %s cannot be used (%s): install NVIDIA's CUDA libraries, let the environment variable "
                   "SWARM_CUBLAS name the folder of " SONAME ", or use cpu",
                   TEXT(CUBLAS_VER_MAJOR), reason);
}
