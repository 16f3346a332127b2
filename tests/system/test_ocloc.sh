#!/usr/bin/env bash
# Intel's own compiler compiles the SPIR-V of the XPU kernels that is built into the programs, for a desktop card (dg2) and a
# data-centre card (pvc): a module that it refuses would run on no Intel GPU. In the code for dg2 every kernel of products of
# bytes has dp4a instructions: once the compiler lost a structure, and with it the products, without a word.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
spirv=${SN_BUILD:-$here/../../build}/xpu
command -v ocloc >/dev/null || { echo "ocloc is not installed (Debian: intel-opencl-icd)"; exit 77; }
[ -f "$spirv/block.spv" ] || { echo "this build has no XPU backend"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

rc=0 n=0 unseen=0
for module in "$spirv"/*.spv; do
  for device in dg2 pvc; do
    n=$((n + 1)) dump=0
    case $device:$module in dg2:*/linear_dot_*) dump=1 ;; esac
    mkdir -p "$scratch/dump"
    if ! IGC_ShaderDumpEnable=$dump IGC_DumpToCustomDir=$scratch/dump/ \
      timeout 120 ocloc compile -spirv_input -file "$module" -device $device -out_dir "$scratch" >"$scratch/log" 2>&1 ||
      ! grep -q 'Build succeeded' "$scratch/log"; then
      echo "$(basename "$module") does not compile for $device:"
      tail -20 "$scratch/log"
      rc=1
    fi
    if [ $dump = 1 ]; then
      if ! ls "$scratch"/dump/*.asm >/dev/null 2>&1; then
        unseen=$((unseen + 1))
      elif without=$(grep -L '^ *dp4a' "$scratch"/dump/*.asm) && [ -n "$without" ]; then
        echo "$(basename "$module") has kernels without dp4a for $device:"
        sed -n 's/^\/\/\.kernel/ /p' $without
        rc=1
      fi
    fi
    rm -rf "$scratch/dump"
  done
done
[ $n -gt 0 ] || { echo "there is no module"; exit 1; }
[ $unseen = 0 ] || echo "not tested: whether $unseen modules have dp4a for dg2 (this compiler wrote no machine code)"
[ $rc = 0 ] && echo "$n modules compiled"
exit $rc
