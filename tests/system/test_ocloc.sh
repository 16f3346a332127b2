#!/usr/bin/env bash
# Intel's own compiler compiles the SPIR-V of the XPU kernels that is built into the programs, for a desktop card (dg2) and a
# data-centre card (pvc): a module that it refuses would run on no Intel GPU. In the code for dg2 every kernel of products of
# bytes has dp4a instructions, and every kernel for matrix units has dpas on the device whose lanes it is for: once the compiler lost a structure, and with it the products, without a word.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
spirv=${SN_BUILD:-$here/../../build}/xpu
command -v ocloc >/dev/null || { echo "ocloc is not installed (Debian: intel-opencl-icd)"; exit 77; }
[ -f "$spirv/block.spv" ] || { echo "this build has no XPU backend"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A module that this compiler has compiled is not compiled again: its name here is the hash of its bytes, the compiler and this test.
compiled=${SWARM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/swarm-node}/ocloc
compiler=$(dpkg-query -W intel-opencl-icd libigc1 libigdfcl1 2>&1; sha256sum "$(command -v ocloc)" "$0")
mkdir -p "$compiled"

rc=0 n=0 unseen=0
# compile MODULE DEVICE [INSTRUCTION]: every kernel of the module has this instruction
compile() {
  local dump=0 without before=$rc$unseen known
  n=$((n + 1))
  [ -z "${3:-}" ] || dump=1
  known=$compiled/$( (echo "$compiler $2 ${3:-}"; cat "$1") | sha256sum | cut -c1-64)
  [ ! -e "$known" ] || return
  mkdir -p "$scratch/dump"
  if ! IGC_ShaderDumpEnable=$dump IGC_DumpToCustomDir=$scratch/dump/ \
    timeout 120 ocloc compile -spirv_input -file "$1" -device "$2" -out_dir "$scratch" >"$scratch/log" 2>&1 ||
    ! grep -q 'Build succeeded' "$scratch/log" || grep -q INVALID "$scratch/log"; then
    echo "$(basename "$1") does not compile for $2:"
    tail -20 "$scratch/log"
    rc=1
  fi
  if [ $dump = 1 ] && ! ls "$scratch"/dump/*.asm >/dev/null 2>&1; then
    unseen=$((unseen + 1))
  elif [ $dump = 1 ] && without=$(grep -LE "^ *(\([^)]*\) *)?$3" "$scratch"/dump/*.asm) && [ -n "$without" ]; then
    echo "$(basename "$1") has kernels without $3 for $2:"
    sed -n 's/^\/\/\.kernel/ /p' $without
    rc=1
  fi
  rm -rf "$scratch/dump"
  [ "$rc$unseen" != "$before" ] || : >"$known"
}

for module in "$spirv"/*.spv; do
  case $module in
    */linear_xmx8_*) compile "$module" dg2 dpas ;;
    */linear_xmx16_*) compile "$module" pvc dpas ;;
    */linear_dot_*) compile "$module" dg2 dp4a; compile "$module" pvc ;;
    *) compile "$module" dg2; compile "$module" pvc ;;
  esac
done
[ $n -gt 0 ] || { echo "there is no module"; exit 1; }
[ $unseen = 0 ] || echo "not tested: the instructions of $unseen modules (this compiler wrote no machine code)"
[ $rc = 0 ] && echo "$n modules compile"
exit $rc
