/* Faults of file writing, for programs that are linked with the wrappers of write_faults.c (tests/CMakeLists.txt lists
 * them): the calls by which this process changes files can fail, and the process can end within them, after any byte.
 *
 * Changes are counted in units: each byte written is one, and each call that creates, renames, synchronises or deletes
 * is one. The power can fail, too: then bytes and names that no fsync has brought to the disk are lost, and a write is
 * one unit, however many bytes it has. */
#ifndef SN_TESTS_WRITE_FAULTS_H
#define SN_TESTS_WRITE_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum power_loss {
    POWER_STAYS,      /* the process is killed */
    POWER_LOSES_DATA, /* files that were not synchronised are empty; names stand */
    POWER_LOSES_NAMES /* also, files in folders that were not synchronised have the names of before */
} power_loss;

/* The process ends (exit code 0) when `units` units are done. Only for a forked child. */
void write_faults_end_after(uint64_t units, power_loss power);
/* Call number `nth` (from 0) that changes files fails with this errno; a write does half of its work first. */
void write_faults_fail(uint64_t nth, int error);
/* Zeros that are written become holes, so that a large file of zeros costs neither time nor space. */
void write_faults_holes(void);
void write_faults_none(void); /* heals; the counts begin again */
uint64_t write_faults_calls(void);

#endif
