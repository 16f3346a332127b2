/* How much memory of a device is free, asked of NVIDIA's management library (NVML), which comes with the driver: the
 * CUDA runtime tells it only of a device on which this process has a context, and a context takes hundreds of MB of the
 * device. The library is loaded at the first question; without it nothing is known. */
#include "device/cuda/cuda_private.h"

#include <dlfcn.h>
#include <pthread.h>

/* The part of nvml.h that is needed: NVIDIA keeps names and shapes stable. */
typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;
static int (*nvml_init)(void);
static int (*nvml_find)(const char *bus, void **device);
static int (*nvml_ask)(void *device, nvml_memory *out);
static bool usable;

static void load_nvml(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    *(void **)(void *)&nvml_init = dlsym(library, "nvmlInit_v2");
    *(void **)(void *)&nvml_find = dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)(void *)&nvml_ask = dlsym(library, "nvmlDeviceGetMemoryInfo");
    usable = nvml_init && nvml_find && nvml_ask && !nvml_init();
}

bool sn_cuda_free_memory(int ordinal, size_t *bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char bus[32];
    void *device;
    nvml_memory memory;
    pthread_once(&once, load_nvml);
    if (!usable || cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal) != cudaSuccess) return false;
    if (nvml_find(bus, &device) || nvml_ask(device, &memory)) return false;
    *bytes = (size_t)memory.free;
    return true;
}
