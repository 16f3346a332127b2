/* A library with cuBLASLt's functions of the backend, beside cublas.c, which needs it as the real one does. */
#include "device/cuda/cublaslt.h" /* private: for the list of functions */

#define X(member, function)                                                                                            \
    void fake_##member(void);                                                                                          \
    void fake_##member(void) {}                                                                                        \
    __asm__(".globl " #function "\n.set " #function ", fake_" #member);
SN_CUDA_LT_FUNCTIONS(X)
#undef X
