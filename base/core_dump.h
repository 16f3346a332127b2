/* Core dumps, which hold identities, keys of a swarm and texts. */
#ifndef SN_BASE_CORE_DUMP_H
#define SN_BASE_CORE_DUMP_H

/* From now on this process leaves no core dump, and other programs of its user cannot read its memory (ptrace), unless
 * SWARM_DUMPABLE=1 is set, for who looks for a fault. A program calls it first, after sn_environment_use. */
void sn_core_dump_forbid(void);

#endif
