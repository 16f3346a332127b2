#!/usr/bin/env bash
# ARM: the programs and unit tests, cross-built for AArch64 and emulated by qemu-user, compute the bits that x86-64 computes, with
# each of ARM's instruction sets; and nodes of both kinds take each other's place in the middle of a text.
# usage: test_arm64.sh [build]      (build: only the cross-build, which takes minutes)
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
folder=${SN_ARM64_BUILD:-$here/../../build-arm64}
for tool in aarch64-linux-gnu-gcc qemu-aarch64-static mmdebstrap; do
  command -v $tool >/dev/null || skip "needs $tool: scripts/arm64.sh installs it"
done
# As ARM machines get it: other optimisation could give other bits.
arm_root=$(SWARM_CACHE=$cache ARM64_OPTIONS=-DCMAKE_BUILD_TYPE=Release \
  "$here/../../scripts/arm64.sh" "$folder" swarm swarm-node test_blocks 2>"$scratch/build.err" | tail -n 1)
[ -d "$arm_root" ] || { grep -q 'could not be unpacked' "$scratch/build.err" && skip "the packages of arm64 cannot be fetched"; fail "the cross-build failed"; }
[ "${1-}" != build ] || exit 0

# The bits of all golden families, as every x86-64 machine computes them. (They are float numbers: what `dotprod` has of its own,
# the products of quantised types, test_bits compares below.)
SN_BUILD=$folder/emulated SN_TEST_MODEL='' SN_TEST_ISAS=neon bash "$here/test_recorded_bits.sh" >&2 || fail "ARM computes other bits"

# Criterion starts its own program again, so the kernel must know the emulator: in a namespace, for this test alone.
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
export arm_root register=":arm64:M::$magic:$mask:$(command -v qemu-aarch64-static):F"
in_namespace() {
  timeout 300 unshare -Urm bash -c 'mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && printf %s "$register" >/proc/sys/fs/binfmt_misc/register ||
    exit 77; QEMU_LD_PREFIX=$arm_root exec "$@"' _ "$@"
}
in_namespace true 2>/dev/null || skip "unit tests of ARM: no namespace can register an emulator here (the bits of all families agree)"
in_namespace "$folder/tests/test_blocks" --filter 'bits/same_bits_on_every*' >"$scratch/bits.err" 2>&1 || fail "test_bits fails on ARM"
grep -q '^skipped: ' "$scratch/bits.err" && fail "an instruction set was not tested"

# Nodes of both kinds. The first blocks are x86's, behind a slow link, so that the text lasts some seconds.
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
generate=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 200 --ignore-eos --json)
succeeds "${generate[@]}" --local all
expected=$(query "$scratch/run.out" 'd["ids"]')
x86=$bin
start_kind() { # x86 | arm
  [ "$1" = x86 ] && bin=$x86 || bin=$folder/emulated
  start_node "$1" "$model" 2:4 --join "${address[first]}" --metrics 0
  bin=$x86
  wait_ready "$1"
}
# takes_over LEAVES COMES: a text begins with one kind of node and ends with the other.
takes_over() {
  start client "${generate[@]}" --join "${address[first]}" --timeout 300
  wait_metric "$1" steps_total $((${steps[$1]:-0} + 5)) 120
  signal client STOP
  start_kind "$2"
  wait_metric first announcements 2 120
  kill_node "$1"
  signal client CONT
  wait_end client 300
  [ $rc = 0 ] || fail "a text that begins on $1 and continues on $2 failed"
  [ "$(query "$scratch/client.out" 'd["ids"]')" = "$expected" ] || fail "another text when $2 takes the place of $1"
  steps[$2]=$(metric "$2" steps_total)
  [ "${steps[$2]}" -gt 0 ] || fail "$2 computed nothing"
}

# A client on ARM samples what a client on x86-64 samples.
sampled=(generate --model "$model" --ids-file "$scratch/ids" --max-tokens 64 --ignore-eos --json --local all --temperature 0.9 --top-p 0.95 --seed 7)
succeeds "$x86/swarm" "${sampled[@]}"
sampled_ids=$(query "$scratch/run.out" 'd["ids"]')
succeeds "$folder/emulated/swarm" "${sampled[@]}"
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$sampled_ids" ] || fail "a client on ARM samples another text"

declare -A steps
start_node first "$model" 0:2 --metrics 0 --emulate-link 1gbit,20ms
wait_ready first
start_kind arm
takes_over arm x86
takes_over x86 arm
