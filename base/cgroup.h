/* What this process may use of its machine: cores, and memory. A container or a service has less than the machine: its
 * control groups say so (v1 and v2, the group of the process and every group around it; the least counts). Any thread
 * may call these functions; they read small files of the kernel and do not fail: what cannot be read limits nothing. */
#ifndef SN_BASE_CGROUP_H
#define SN_BASE_CGROUP_H

#include <stddef.h>

typedef struct sn_cgroup_limits {
    size_t memory, memory_free; /* bytes, and what is left of them; SIZE_MAX: no limit */
    int cpus;                   /* processor time as a number of cores, rounded up; 0: no limit */
} sn_cgroup_limits;

/* The limits of this process's groups. root: "", or a folder with proc/self/cgroup and sys/fs/cgroup, for tests. */
void sn_cgroup_read(const char *root, sn_cgroup_limits *out);

/* The cores that this process may use, at least 1. */
int sn_cores(void);
/* Bytes of memory, and those of them that can be had without swapping; what the kernel can take back from its caches
 * is among them. */
void sn_memory_read(size_t *total, size_t *available);

#endif
