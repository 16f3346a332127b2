/* A Level Zero driver for tests: OpenCL on the CPU takes the place of the GPU. The real loader loads it
 * (ZE_ENABLE_ALT_DRIVERS), so that the backend under test is the one that ships, and so is the SPIR-V of its
 * kernels. It does not show speed, the races of a real memory model, or peculiarities of Intel's driver.
 *
 * It is stricter than a GPU where possible:
 * - Device memory is PROT_NONE except while the driver executes a command on it, and ends at a page that always
 *   faults: an access by the host crashes, and so does a kernel that runs over the end.
 * - A kernel reaches only the allocations among its arguments, unless it was told to follow addresses
 *   (zeKernelSetIndirectAccess).
 * - Commands between two barriers are executed in reverse order: a missing barrier gives wrong numbers every time.
 * - A larger allocation than the device's limit is refused unless it is asked for, and then as an argument of kernels
 *   that were not built for it.
 * - Copies touch memory of this driver only, and only inside one allocation. Freeing memory that queued commands use
 *   aborts.
 *
 * Functions that the backend does not use are missing: the loader returns UNSUPPORTED_FEATURE. Environment
 * variables: ZE_TEST_DEVICES (number of devices, 1), ZE_TEST_MEMORY (bytes per device, 4 GiB), ZE_TEST_STALL (while
 * this file exists, no kernel and no copy ends), ZE_TEST_RELAXED (set: more than half of the memory may be
 * allocated at once, for modules that were built for it), ZE_TEST_NO_DP4A (set: the devices do not multiply four pairs
 * of bytes at once), ZE_TEST_REFUSE_DOTS (they do, but modules with such products do not compile, as in drivers that
 * are older than them: with this ze_result_t), ZE_TEST_REFUSE_DOT_KERNELS (likewise, but they compile, and one of their
 * kernels is refused), ZE_TEST_XMX (the devices have matrix units, and so many lanes in their smallest subgroup),
 * ZE_TEST_REFUSE_XMX (they do, but modules for them do not compile: this ze_result_t), ZE_TEST_WAIT_S (300: so many
 * seconds after a loss, or after its list was freed, a command that has not ended ends the process with a sentence). */
#ifndef SN_TESTS_ZE_DRIVER_DRIVER_H
#define SN_TESTS_ZE_DRIVER_DRIVER_H

#include "tests/support/ze_driver/faults.h"

#include <CL/cl.h>
#include <level_zero/ze_api.h>
#include <level_zero/ze_ddi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { ARGS_MAX = 24, ARG_BYTES_MAX = 32, WAITS_MAX = 4, DEVICES_MAX = 4, KERNELS_MAX = 32 };

typedef struct allocation {
    struct allocation *next;
    uint8_t *base;
    size_t bytes;
    uint8_t *map; /* the mapping that contains base */
    size_t map_bytes;
    bool device;     /* otherwise host memory */
    uint64_t number; /* increases with every allocation */
    int open;        /* number of commands executing on it */
    int queued;      /* number of commands queued on it */
} allocation;

struct _ze_event_handle_t {
    bool signaled;
};

typedef struct argument {
    size_t bytes;
    bool set, local, pointer;
    uint8_t data[ARG_BYTES_MAX];
} argument;

typedef struct parameter {
    enum { PARAMETER_VALUE, PARAMETER_GLOBAL, PARAMETER_LOCAL } kind;
    uint32_t bytes; /* of a value */
} parameter;

typedef struct kernel_info {
    char name[64];
    uint32_t id, n_parameters; /* id: of its function */
    parameter parameters[ARGS_MAX];
} kernel_info;

struct _ze_module_handle_t {
    cl_program program;
    bool large; /* its kernels take allocations above the limit */
    int n_kernels;
    kernel_info kernels[KERNELS_MAX];
};

struct _ze_kernel_handle_t {
    ze_module_handle_t module;
    kernel_info info;
    uint32_t group[3];
    bool indirect;
    argument args[ARGS_MAX];
};

typedef enum command_kind { COMMAND_COPY, COMMAND_FILL, COMMAND_LAUNCH, COMMAND_BARRIER } command_kind;

typedef struct command {
    struct command *next;
    command_kind kind;
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    uint8_t fill;
    cl_kernel kernel;
    size_t global[3], local[3];
    bool indirect;
    uint64_t newest; /* newest allocation when the command began */
    allocation *uses[ARGS_MAX];
    int n_uses;
    ze_event_handle_t signal, waits[WAITS_MAX];
    uint32_t n_waits;
} command;

struct _ze_command_list_handle_t {
    struct _ze_command_list_handle_t *next;
    command *open;          /* commands since the last barrier, newest first */
    command *first, **last; /* commands to be executed, in this order */
    bool closing;
    pthread_t worker;
    cl_command_queue queue;
};

typedef struct driver {
    pthread_mutex_t lock; /* protects everything below, events and lists */
    pthread_cond_t changed;
    cl_device_id device;
    cl_context context;
    allocation *allocations;
    struct _ze_command_list_handle_t *lists;
    uint64_t newest;
    size_t memory_used;                      /* of allocations of the devices and of the host */
    size_t device_used, device_peak, memory; /* of the devices: used, the most since a reset, the limit */
    size_t allocation_max;
    uint32_t n_devices;
    int fail_allocation, fail_create, stall_ms, lose; /* 0: none */
    int healed;                                       /* how often heal was called */
    int objects, executing;                           /* executing: commands */
    uint64_t launches;                                /* that were appended */
    bool lost;
} driver;
extern driver ze_test;

/* memory.c. object_made counts an object that is made (false: its creation shall fail), object_gone one that is
 * freed. */
bool object_made(void);
void object_gone(void);

/* A wait that ends the process when it takes too long. */
struct timespec wait_limit(void);
_Noreturn void wait_failed(const char *what);

/* The caller holds the lock: */
void wait_for_change(const struct timespec *limit, const char *what); /* once; what: that has not ended until then */
allocation *allocation_of(const void *address, size_t bytes); /* the allocation that contains the range; or NULL */
void allocations_open(command *c);                            /* makes the memory accessible for execution */
void allocations_close(const command *c);

/* spirv.c: finds the kernels of a module and their parameters; returns the number of kernels. PoCL does not report
 * them for such binaries. */
int spirv_kernels(const void *words, size_t n_words, kernel_info *out, int capacity);

/* spirv_dots.c: the module with each OpSDotAccSat, which PoCL lacks, as products and sums of its bytes. Heap; NULL: no
 * memory. */
uint32_t *spirv_without_dots(const void *words, size_t n_words, size_t *n_out);

bool spirv_has_dots(const void *words, size_t n_words); /* whether the module has an OpSDotAccSat */

/* The functions of the loader's tables. */
ze_result_t memory_device(ze_context_handle_t, const ze_device_mem_alloc_desc_t *, size_t, size_t, ze_device_handle_t,
                          void **);
ze_result_t memory_host(ze_context_handle_t, const ze_host_mem_alloc_desc_t *, size_t, size_t, void **);
ze_result_t memory_free(ze_context_handle_t, void *);
ze_result_t memory_properties(ze_context_handle_t, const void *, ze_memory_allocation_properties_t *,
                              ze_device_handle_t *);
ze_result_t list_create(ze_context_handle_t, ze_device_handle_t, const ze_command_queue_desc_t *,
                        ze_command_list_handle_t *);
ze_result_t list_destroy(ze_command_list_handle_t);
ze_result_t list_barrier(ze_command_list_handle_t, ze_event_handle_t, uint32_t, ze_event_handle_t *);
ze_result_t list_copy(ze_command_list_handle_t, void *, const void *, size_t, ze_event_handle_t, uint32_t,
                      ze_event_handle_t *);
ze_result_t list_fill(ze_command_list_handle_t, void *, const void *, size_t, size_t, ze_event_handle_t, uint32_t,
                      ze_event_handle_t *);
ze_result_t list_launch(ze_command_list_handle_t, ze_kernel_handle_t, const ze_group_count_t *, ze_event_handle_t,
                        uint32_t, ze_event_handle_t *);
ze_result_t pool_create(ze_context_handle_t, const ze_event_pool_desc_t *, uint32_t, ze_device_handle_t *,
                        ze_event_pool_handle_t *);
ze_result_t pool_destroy(ze_event_pool_handle_t);
ze_result_t event_create(ze_event_pool_handle_t, const ze_event_desc_t *, ze_event_handle_t *);
ze_result_t event_destroy(ze_event_handle_t);
ze_result_t event_wait(ze_event_handle_t, uint64_t);
ze_result_t event_query(ze_event_handle_t);
ze_result_t event_reset(ze_event_handle_t);
ze_result_t module_create(ze_context_handle_t, ze_device_handle_t, const ze_module_desc_t *, ze_module_handle_t *,
                          ze_module_build_log_handle_t *);
ze_result_t module_destroy(ze_module_handle_t);
ze_result_t log_destroy(ze_module_build_log_handle_t);
ze_result_t log_text(ze_module_build_log_handle_t, size_t *, char *);
ze_result_t kernel_create(ze_module_handle_t, const ze_kernel_desc_t *, ze_kernel_handle_t *);
ze_result_t kernel_destroy(ze_kernel_handle_t);
ze_result_t kernel_group_size(ze_kernel_handle_t, uint32_t, uint32_t, uint32_t);
ze_result_t kernel_argument(ze_kernel_handle_t, uint32_t, size_t, const void *);
ze_result_t kernel_indirect(ze_kernel_handle_t, ze_kernel_indirect_access_flags_t);
/* Makes a command that executes the kernel with its present arguments. The caller holds the lock. */
ze_result_t kernel_command(ze_kernel_handle_t, const ze_group_count_t *, command *out);

#endif
